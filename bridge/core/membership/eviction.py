"""Permanent eviction of an identity, and replacement of the gossip keys of all others.

    eviction entry ──▶ the table: EVICTED, also an identity that was never admitted (`bridge.core.membership.admission`)
                  └──▶ Rekeying: the era that begins, and for each remaining identity the new gossip key in a box
    rekeying entry ──▶ Rekeying alone: a key file was copied, and all identities stay

One entry evicts the identity and replaces the keys, since neither helps without the other. With the old keys the
evicted node could still read and submit, and without the eviction it would still be a voter. The sealed keys ("boxes")
are in the log, because every remaining server receives the log, even after an outage. Only the leader writes the
entry, so no other server could replace the boxes. Only the boxes of the last era are kept. docs/how-to/stolen-node.md
has the steps for operators.

A voter is demoted first and evicted as a learner, which still receives the entry (`vote_goes_first`); the reason is in
docs/explanation/changing-servers.md ("How a farm decides about changes").

Eras count up by one: of two entries that begin the same era the second is refused, and its author tries again. Below
`BOUNDS_LEVEL` any later era is accepted, so an entry of one hostile leader can name the last era. After such an entry
the keys cannot be replaced, and an eviction only removes the identity's rights.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.log.records import Eviction, KeyReplacement
from bridge.core.membership.admission import ADMITTED_MAX, Admitted, Standing, raft_id_of, with_room

LAST_ERA = 2**32 - 1
"""Eras have 32 bits in entries, boxes and keyrings."""


class Rekeying(Struct, frozen=True):
    """The last replacement of all keys; `boxes` has the sealed key for each node, by NodeId in hexadecimal."""

    era: int = 0
    boxes: Mapping[str, bytes] = field(default_factory=dict)


class ServerEvicted(Struct, frozen=True):
    """This identity is evicted. `era` is the era of the keys afterwards."""

    server_id: int
    node_id: bytes
    era: int
    keys_replaced: bool = True


class EvictionRefused(Struct, frozen=True):
    """An eviction without effect, and the reason."""

    node_id: bytes
    reason: str


class NewEra(Struct, frozen=True):
    """An era has begun without an eviction."""

    era: int
    sealed_for: int


class KeysNotReplaced(Struct, frozen=True):
    """A replacement of the keys without effect, and the reason."""

    era: int
    reason: str


NO_ERA_LEFT = (
    "the eras of the farm's keys are used up (an entry of a former leader named the last one), so no key can be"
    " replaced in this cluster. Stop the nodes; on one of them, run"
    " `garlicfarm recover --from STATE_DIR --reset era --farm-key FILE`; let the others join it"
    " (`garlicfarm help recover`), then run `garlicfarm keys replace`"
)
"""The reason why keys are not replaced, with the remedy."""

SPONSORS_LEAST = 2


def sponsors_needed(voters: int) -> int:
    """Return the number of other voters that must vouch for a key, before a node that was away accepts it.

    A member may have been evicted since that node went offline, and a single signature could be that member's.
    """
    return max(SPONSORS_LEAST, voters // 2 + 1)


def vote_goes_first(voters: Collection[int], server_id: int | None, expect: int) -> bool:
    """Return True if this voter loses its vote before the eviction; a group never gets fewer than `expect` voters."""
    return server_id in voters and len(voters) > expect


def too_few_answer(voters: Collection[int], well: Collection[int], without: int | None, deciding: int) -> str | None:
    """Return the number of voters that answer, as text, if it is at most half of `deciding` voters.

    The server `without` does not count.
    """
    there = set(voters) & set(well) - {without}
    return None if 2 * len(there) > deciding else f"only {len(there)} of {deciding} voters"


def majority_lost(voters: Collection[int], well: Collection[int], server_id: int | None, expect: int) -> str | None:
    """Return the reason why the farm would stop without this server; None if it would not.

    `well` are the servers that answer, the leader among them.
    """
    if server_id is None or server_id not in voters:
        return None
    deciding = len(voters) - vote_goes_first(voters, server_id, expect)
    missing = too_few_answer(voters, well, server_id, deciding)
    if missing is None:
        return None
    counted = "" if deciding < len(voters) else f" (a farm of {expect} does not get fewer voters by an eviction)"
    return (
        f"after the eviction {missing}{counted} could be reached, less than a majority: the"
        " farm could not commit anything. Start the others first. Or evict with --force; if the farm then cannot"
        " commit, `garlicfarm recover` creates a new farm from a survivor"
    )


def evict(
    admitted: Mapping[int, Admitted], rekeying: Rekeying, eviction: Eviction, level: int = BOUNDS_LEVEL
) -> tuple[Mapping[int, Admitted], Rekeying, ServerEvicted | EvictionRefused]:
    """Return table and keys after one eviction at this feature level, and the change."""
    known = raft_id_of(admitted, eviction.node_id)
    objection = _objection_to_era(eviction.era, rekeying, level)
    without_keys = level >= BOUNDS_LEVEL and rekeying.era >= LAST_ERA
    if objection is not None and not without_keys:
        return admitted, rekeying, EvictionRefused(eviction.node_id, objection)
    if known is None and level >= BOUNDS_LEVEL:
        admitted = with_room(admitted)
    if known is None and len(admitted) >= ADMITTED_MAX:
        reason = f"{ADMITTED_MAX} identities are known to this farm, which is the maximum"
        return admitted, rekeying, EvictionRefused(eviction.node_id, reason)
    server_id = known if known is not None else max(admitted, default=0) + 1
    before = admitted.get(server_id, Admitted(eviction.node_id))
    table = {**admitted, server_id: replace(before, standing=Standing.EVICTED)}
    if without_keys:
        return table, rekeying, ServerEvicted(server_id, eviction.node_id, rekeying.era, keys_replaced=False)
    boxes = {node_id.hex(): box for node_id, box in eviction.boxes if node_id != eviction.node_id}
    return table, Rekeying(eviction.era, boxes), ServerEvicted(server_id, eviction.node_id, eviction.era)


def replace_keys(
    rekeying: Rekeying, replacement: KeyReplacement, level: int = BOUNDS_LEVEL
) -> tuple[Rekeying, NewEra | KeysNotReplaced]:
    """Return the keys after a replacement at this feature level, and the change."""
    era = replacement.era
    objection = _objection_to_era(era, rekeying, level)
    if objection is not None:
        return rekeying, KeysNotReplaced(era, objection)
    boxes = {node_id.hex(): box for node_id, box in replacement.boxes}
    return Rekeying(era, boxes), NewEra(era, len(boxes))


def _objection_to_era(era: int, rekeying: Rekeying, level: int) -> str | None:
    if level >= BOUNDS_LEVEL and rekeying.era >= LAST_ERA:
        return NO_ERA_LEFT
    if era <= rekeying.era:
        return f"era {era} of the keys has begun already: another operator replaced them at the same time; try again"
    if level >= BOUNDS_LEVEL and era != rekeying.era + 1:
        return f"era {era} of the keys is not the next one, {rekeying.era + 1}; try again"
    return None
