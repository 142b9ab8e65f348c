"""Throwing an identity out, and replacing all keys: who is out loses its standing for ever, and the keys are others.

    eviction entry ──▶ the table: EVICTED, also an identity that was never admitted (`bridge.core.membership.admission`)
                  └──▶ Rekeying: the era that begins, and for each remaining identity the new gossip key in a box

    rekeying entry ──▶ Rekeying alone: a key file was copied, and nobody in the table is to blame

Both in one entry of an eviction, since either without the other is worth nothing: with the old keys the box goes on to
read and to submit, and with the new ones a member of the table is still a voter. The boxes lie in the log, because
every remaining server gets that, also one that is down at the moment, and because nobody can make the farm take another
key for the new one without being its leader. Whoever is evicted may have the entry as well and can open none of its
boxes.

Whoever hears of its eviction stops, and nobody talks to it any more, so its vote is lost from that moment: in a group
of four with one dead the leader would be without a majority before it could remove anybody. Therefore a voter gives up
its vote first and is thrown out as a learner, which still hears of it (`vote_goes_first`); until the eviction is
applied the leader does not promote it again, well as it is. Where the farm has no voter to spare it keeps its seat,
empty, until another takes it.

Only the boxes of the last era are kept. Eras count up: of two entries that begin the same one, the second is refused,
and whoever asked for it asks again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bridge.core.log.records import Eviction, KeyReplacement
from bridge.core.membership.admission import ADMITTED_MAX, Admitted, Standing, raft_id_of


@dataclass(frozen=True, slots=True)
class Rekeying:
    """The last time that all keys were replaced; `boxes` by NodeId in hexadecimal, opaque here."""

    era: int = 0
    boxes: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerEvicted:
    """This identity is out."""

    server_id: int
    node_id: bytes
    era: int


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """An eviction that changed nothing, and why."""

    node_id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class KeysReplaced:
    """An era has begun, of which everybody keeps its standing."""

    era: int
    sealed_for: int


@dataclass(frozen=True, slots=True)
class KeysNotReplaced:
    """A replacement of the keys that changed nothing, and why."""

    era: int
    reason: str


SPONSORS_LEAST = 2


def sponsors_needed(voters: int) -> int:
    """How many of the `voters` other voters must vouch for a key, before a router that was away believes them.

    Whoever was evicted meanwhile was a member when that router went: one word alone could be his.
    """
    return max(SPONSORS_LEAST, voters // 2 + 1)


def vote_goes_first(voters: Collection[int], server_id: int | None, expect: int) -> bool:
    """Whether this voter loses its vote before the eviction; a group of fewer than `expect` voters is never made."""
    return server_id in voters and len(voters) > expect


def majority_lost(voters: Collection[int], well: Collection[int], server_id: int | None, expect: int) -> str | None:
    """Why the farm would stand still without this server; `well` are those that answer, the leader among them."""
    if server_id is None or server_id not in voters:
        return None
    there = set(voters) & set(well) - {server_id}
    deciding = len(voters) - vote_goes_first(voters, server_id, expect)
    if 2 * len(there) > deciding:
        return None
    empty = "" if deciding < len(voters) else f", the evicted one's empty seat (a farm of {expect} needs it) among them"
    return (
        f"of the {deciding} voters that there would be{empty}, only {len(there)} can be reached, which is no majority:"
        " the farm would stand still. Start the others first; or force it, and `garlicfarm recover` makes a farm of"
        " what is left if it comes to that"
    )


def evict(
    admitted: Mapping[int, Admitted], rekeying: Rekeying, eviction: Eviction
) -> tuple[Mapping[int, Admitted], Rekeying, ServerEvicted | EvictionRefused]:
    """Table and keys after one eviction."""
    known = raft_id_of(admitted, eviction.node_id)
    if eviction.era <= rekeying.era:
        return admitted, rekeying, EvictionRefused(eviction.node_id, _begun_already(eviction.era))
    if known is None and len(admitted) >= ADMITTED_MAX:
        reason = f"{ADMITTED_MAX} identities are known to this farm, and no more can be"
        return admitted, rekeying, EvictionRefused(eviction.node_id, reason)
    server_id = known if known is not None else max(admitted, default=0) + 1
    before = admitted.get(server_id, Admitted(eviction.node_id))
    table = {**admitted, server_id: replace(before, standing=Standing.EVICTED)}
    boxes = {node_id.hex(): box for node_id, box in eviction.boxes if node_id != eviction.node_id}
    return table, Rekeying(eviction.era, boxes), ServerEvicted(server_id, eviction.node_id, eviction.era)


def replace_keys(rekeying: Rekeying, replacement: KeyReplacement) -> tuple[Rekeying, KeysReplaced | KeysNotReplaced]:
    """The keys after a replacement."""
    era = replacement.era
    if era <= rekeying.era:
        return rekeying, KeysNotReplaced(era, _begun_already(era))
    boxes = {node_id.hex(): box for node_id, box in replacement.boxes}
    return Rekeying(era, boxes), KeysReplaced(era, len(boxes))


def _begun_already(era: int) -> str:
    return f"era {era} of the keys has begun already: somebody else replaced them at the same time; ask again"
