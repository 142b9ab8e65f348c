"""Newcomers on a leader's links: servers that were invited and are being brought up to the leader's log.

    connected ──▶ JoinClusterRequest ──accepted──▶ appends with entries go out as log packs
                        │ refused                   heartbeats and snapshot chunks go out as they are
                        └──▶ the invitation has failed

The core replicates to a newcomer as to everybody; only the words differ, so they are exchanged here, on the way out.
Two things need more than another word. A connection that is new begins with the invitation again, since the newcomer
may have been started anew. And a newcomer of another make puts a pack into its log without comparing what lies before:
so a pack is only sent where the newcomer's log is known to end, and an append that would leave a gap is refused here,
in its place, with the index that it would have named itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from consensus.core import messages as core
from consensus.core.position import Index
from consensus.node.garlic_farm_dial import PeerAddress
from consensus.wire.garlic_farm import messages as wire


@dataclass(slots=True, eq=False)
class Guest:
    """One newcomer, from its invitation until it is spoken to like any other."""

    address: PeerAddress | None
    invitation: Callable[[bool], wire.JoinClusterRequest]
    """Makes one; True: the newcomer can read joint configurations and learners."""
    accepted: bool | None = None
    """What it answered at first; None: not yet."""
    packs: int = 0
    chunks: int = 0
    _expected: Index | None = None
    """One beyond what it holds, or will when all that is under way has arrived; None: it has to join first."""
    _held: Index = 1
    """One beyond what it has said that it holds."""
    _answered: trio.Event = field(default_factory=trio.Event)

    async def answer(self) -> bool:
        """Wait for its first answer."""
        await self._answered.wait()
        return self.accepted is True

    def greeted(self, reply: wire.Reply) -> None:
        """It answered an invitation. One of another make that is catching up already refuses a second."""
        if self.accepted is None:
            self.accepted = reply.accepted
            self._answered.set()
        if self.accepted:
            self._expected = self._held = reply.next_index

    def connection_lost(self) -> None:
        """What was under way may not have arrived: it says where to go on when it answers the next invitation."""
        self._expected = None

    def gap(self, append: core.AppendEntries) -> core.AppendReply | None:
        """The refusal of a pack that would not follow on what the newcomer holds; None if it does."""
        first = append.previous.index + 1
        expected = self._expected or 1
        if first > expected:
            return core.AppendReply(append.term, success=False, next_index=expected, correlation=append.correlation)
        return None

    def packed(self, append: core.AppendEntries) -> None:
        """A pack is on its way. What could not be sent is not: the next would leave a gap in its place."""
        self._expected = append.previous.index + 1 + len(append.entries)
        self.packs += 1

    def replied(self, asked: core.Request, reply: core.Reply) -> None:
        """It answered something else: that may tell where its log ends."""
        match asked, reply:
            case core.AppendEntries(), core.AppendReply(success=True, next_index=next_index):
                self._holds(next_index)
            case core.AppendEntries(), core.AppendReply(next_index=next_index):
                # Heartbeats are answered at once, packs when they are durable: this may speak of a time before them.
                self._expected = max(next_index, self._held)
            case core.InstallSnapshot(last=last), core.SnapshotReply(installed=True):
                self._holds(last.index + 1)
            case core.InstallSnapshot(), core.SnapshotReply():
                self.chunks += 1
            case _:
                pass

    def _holds(self, following: Index) -> None:
        self._held = max(self._held, following)
        self._expected = max(self._expected or 1, self._held)
