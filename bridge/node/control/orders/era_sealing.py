"""The gossip key of a new era (version of the farm's keys), sealed for each remaining identity.

    admitted members, this node first, then running ones ──▶ public key known? ──▶ a box (sealed key) for each
                                                        └──▶ no, or no room  ──▶ left out, by name

Eras increase by one, in the log and in each keyring. The keyrings may be ahead of the log after a recovery from a
backup, or after a node has loaded a newer key file. Then the log must first get entries for these eras (`eras_behind`).

A public key is known from the admission of its identity, or from its signed description in gossip. A member without a
sealed copy of the key needs the key file from an operator.
"""

from collections.abc import Mapping

from msgspec import Struct

from bridge.core.formation.member import FarmMember
from bridge.core.log.fields import BOXES_LIMIT
from bridge.core.membership.admission import Admitted
from bridge.core.membership.eviction import LAST_ERA
from bridge.core.state.farm_state import FarmState
from bridge.node.events.event_log import clock_ms
from bridge.node.membership.membership_provider import MembershipProvider
from bridge.wire.keys.box import EraKey, new_key, seal_key
from gossip import ClockBound, Keyring


class SealedEra(Struct, frozen=True):
    """A proposed era: the boxes of the remaining members, and the names of members without a box."""

    era: int
    boxes: tuple[tuple[bytes, bytes], ...]
    left_out: tuple[str, ...]


ERAS_BEHIND_MAX = 256
"""Limit for the number of eras that the log lacks. Each missing era needs its own entry."""


def eras_behind(state: FarmState, chain: Keyring) -> int:
    """Return the number of eras that the log lacks compared with this node's keyring."""
    return max(0, chain.era - state.rekeying.era)


def is_era_left(state: FarmState, chain: Keyring) -> bool:
    """Return True if the keys can be replaced once more."""
    return max(state.rekeying.era, chain.era) < LAST_ERA and eras_behind(state, chain) <= ERAS_BEHIND_MAX


def seal_era(
    state: FarmState,
    chain: Keyring,
    membership: MembershipProvider,
    label: bytes,
    seen: Mapping[bytes, FarmMember],
    *,
    without: bytes | None = None,
) -> SealedEra:
    """Seal a new key for each member except `without`. Only the content of the boxes is secret.

    The caller has checked that an era is left.
    """
    used_at = min(chain.clock + 1, ClockBound(clock_ms()).at(0))
    content = EraKey(max(state.rekeying.era, chain.era) + 1, used_at, new_key())
    boxes: list[tuple[bytes, bytes]] = []
    left_out: list[str] = []
    for each in staying(state, membership.node_id, seen, without=without):
        listed = seen.get(each.node_id)
        own = each.node_id == membership.node_id
        key = membership.public_key if own else each.key or (listed.key if listed else None)
        if key and len(boxes) < BOXES_LIMIT:
            # The key is a valid point of the curve: its hash is the NodeId of a member, whose signatures gossip has
            # verified.
            boxes.append((each.node_id, seal_key(content, key, label)))
        else:
            left_out.append(each.name or each.node_id.hex())
    return SealedEra(content.era, tuple(boxes), tuple(left_out))


def staying(
    state: FarmState, own_id: bytes, seen: Mapping[bytes, FarmMember], *, without: bytes | None = None
) -> list[Admitted]:
    """Return the members except `without`: this node first, then running members, then others."""
    members = [each for each in state.admitted.values() if each.is_member and each.node_id != without]

    def rank(each: Admitted) -> tuple[bool, bool]:
        listed = seen.get(each.node_id)
        return each.node_id != own_id, listed is None or not listed.reachable

    return sorted(members, key=rank)


def not_admitted(state: FarmState, seen: Mapping[bytes, FarmMember]) -> tuple[str, ...]:
    """Return the names of running nodes that the log has not admitted: they do not get a box."""
    known = {each.node_id for each in state.admitted.values()}
    return tuple(each.metadata.name for each in seen.values() if each.node_id not in known and each.reachable)
