"""Membership without gossip: servers describe themselves when they connect, and connections show which are alive.

    introduction, first hand ──▶ alive       nothing for `silent_after_ms`, and no Raft connection ──▶ dead
    introduction by another  ──▶ alive, if unknown or newer            signed departure ──▶ left

Each server describes itself in the handshake of every connection, with the same signed description that gossip would
carry. It also passes on the descriptions of the other servers that it considers alive, so a newcomer with one working
seed discovers all. A second-hand description counts only if its server is unknown, or if it is newer than the known
description. It then marks the server alive for `silent_after_ms`. If repeated descriptions counted, two servers could
keep sending each other the description of a dead server, which would never be marked dead. A server is alive if a Raft
connection to it is open or has just been opened. Servers do not exchange judgments, so nothing needs a refutation.

Of two descriptions the higher incarnation counts, as in gossip. A server may receive its own description first hand
with other content, at its own incarnation or later. This is an identity conflict: a second process uses its identity.
If other servers pass on a description of this server with a later generation, this server's record of its generations
is out of date. It then begins a generation after that one. If the description has this server's address, this server
also raises an alarm, since the record of its votes may be out of date, too.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gossip import (
    LAST_GENERATION,
    AdoptGeneration,
    Alarm,
    AlarmKind,
    Incarnation,
    Member,
    MembershipChanged,
    NodeId,
    NodeInfo,
    Status,
    equivocate,
    equivocation,
    is_plausible,
    rolled_back,
)

SERVERS_MAX = 64
Consequence = MembershipChanged | Alarm | AdoptGeneration


class _ConnectedMember(Struct):
    """A gossip `Member`, with the time of its last sign of life."""

    info: NodeInfo
    status: Status
    seen_ms: int
    since_ms: int
    is_peer: bool = False
    """True if a Raft connection to the server is open."""
    equivocates: bool = False
    round_trip_ms: None = None
    peer_count: None = None

    @property
    def node_id(self) -> NodeId:
        return self.info.node_id

    @property
    def incarnation(self) -> Incarnation:
        return self.info.incarnation


class ConnectionMembership:
    """The other servers, and this node's own description. Pure: `now` is monotonic milliseconds."""

    def __init__(self, own: NodeInfo, silent_after_ms: int, *, most: int = SERVERS_MAX) -> None:
        self.own = own
        self.leaving = False
        self._silent_after_ms = silent_after_ms
        self._most = most
        self._others: dict[NodeId, _ConnectedMember] = {}
        self.left_out = 0
        """Number of descriptions dropped because the table was full."""

    def announce(self, metadata: bytes) -> None:
        """Change this node's metadata."""
        self.own = replace(self.own, metadata=metadata, incarnation=self.own.incarnation.raised())

    def announce_departure(self) -> None:
        """Mark this node as leaving in its description."""
        self.leaving = True
        self.own = replace(self.own, incarnation=self.own.incarnation.raised())

    def adopt(self, generation: int) -> None:
        """Begin a later generation."""
        self.own = replace(self.own, incarnation=Incarnation(generation, 0))

    def receive(self, info: NodeInfo, now: int, *, first_hand: bool, leaving: bool = False) -> Sequence[Consequence]:
        """Process a signed description, from its server itself or passed on."""
        if not is_plausible(info):
            return ()
        if info.node_id == self.own.node_id:
            return self._receive_own(info, first_hand=first_hand)
        known = self._others.get(info.node_id)
        if known is None:
            return self._welcome(info, now, leaving=leaving)
        return self._receive_known(known, info, now, first_hand=first_hand, leaving=leaving)

    def _receive_known(
        self, known: _ConnectedMember, info: NodeInfo, now: int, *, first_hand: bool, leaving: bool
    ) -> Sequence[Consequence]:
        newer = info.incarnation > known.info.incarnation
        if known.equivocates and info.incarnation.generation > known.info.incarnation.generation:
            # The member has signed that it has started again; its earlier signatures do not count for this run.
            known.equivocates = False
            changes = self._receive_known(known, info, now, first_hand=first_hand, leaving=leaving)
            return (*changes, self._equivocation())
        if not newer and info.incarnation != known.info.incarnation:
            return ()
        if not leaving and known.status is not Status.LEFT and equivocate(info, known.info):
            return self._equivocates(known)
        if leaving:
            return self._becomes(known, Status.LEFT, now, info)
        if known.status is Status.LEFT and not (newer and first_hand):
            return ()
        if first_hand:
            known.seen_ms = now
        # A newer description of a dead server: it may have started again, so it counts as seen now.
        return self._becomes(known, Status.ALIVE, now, info, always=newer) if first_hand or newer else ()

    def _equivocates(self, known: _ConnectedMember) -> Sequence[Consequence]:
        if known.equivocates:
            return ()
        known.equivocates = True
        return (
            MembershipChanged(known.info, known.status, known.status, equivocates=True),
            self._equivocation(),
        )

    def _equivocation(self) -> Alarm:
        return equivocation([node_id for node_id, each in self._others.items() if each.equivocates])

    def update_status(self, now: int, connected: Collection[NodeId]) -> list[MembershipChanged]:
        """Update the status of the servers; a server in `connected` has an open Raft connection."""
        changes = []
        for node_id, known in self._others.items():
            known.is_peer = node_id in connected
            if known.is_peer:
                known.seen_ms = now
            if known.status is Status.LEFT:
                continue
            silent = now - known.seen_ms >= self._silent_after_ms
            changes += self._becomes(known, Status.DEAD if silent else Status.ALIVE, now, known.info)
        return changes

    def members(self) -> tuple[Member, ...]:
        """Return all other servers."""
        return tuple(self._others.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Number of known others, and the number of alive ones."""
        return len(self._others), len(self.alive())

    def alive(self) -> tuple[NodeInfo, ...]:
        """Return the descriptions to pass on."""
        return tuple(known.info for known in self._others.values() if known.status is Status.ALIVE)

    def _welcome(self, info: NodeInfo, now: int, *, leaving: bool) -> Sequence[Consequence]:
        if leaving:
            return []
        ended: list[Alarm] = []
        if len(self._others) >= self._most:
            removable = [node_id for node_id, known in self._others.items() if known.status is not Status.ALIVE]
            if not removable:
                self.left_out += 1
                return []
            former = self._others.pop(min(removable, key=lambda node_id: self._others[node_id].seen_ms))
            ended = [self._equivocation()] if former.equivocates else []
        self._others[info.node_id] = _ConnectedMember(info, Status.ALIVE, seen_ms=now, since_ms=now)
        return [MembershipChanged(info, Status.ALIVE, None), *ended]

    def _receive_own(self, info: NodeInfo, *, first_hand: bool) -> Sequence[Consequence]:
        own = self.own
        if first_hand:
            same = replace(info, credential=b"") == replace(own, credential=b"")
            if info.incarnation < own.incarnation or same:
                return []  # this process has connected to itself
            return [
                Alarm(
                    AlarmKind.IDENTITY_CONFLICT,
                    f"another process uses this node's identity {own.node_id.hex()}: its state directory was "
                    "copied. Stop one of the two and give it a new state directory and another name",
                )
            ]
        if own.incarnation.generation < info.incarnation.generation < LAST_GENERATION:
            received, known = info.incarnation.generation, own.incarnation.generation
            alarms = [rolled_back(own.node_id, received, known)] if info.address == own.address else []
            return [AdoptGeneration(received + 1), *alarms]
        return []

    @staticmethod
    def _becomes(
        known: _ConnectedMember, status: Status, now: int, info: NodeInfo, *, always: bool = False
    ) -> list[MembershipChanged]:
        previous = known.status
        if status is previous and not always:
            return []
        if status is not previous:
            known.since_ms = now
        if status is Status.ALIVE and previous is not Status.ALIVE:
            known.seen_ms = now
        known.info, known.status = info, status
        return [MembershipChanged(info, status, previous, known.equivocates)]
