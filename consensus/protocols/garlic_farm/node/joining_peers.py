"""Newcomers on a leader's links: servers that were invited and are being brought up to the leader's log.

    connected ──▶ JoinClusterRequest ──accepted──▶ appends with entries go out as log packs
                        │ refused                   heartbeats and snapshot chunks go out as they are
                        └──▶ the invitation has failed

The core replicates to a newcomer as to everybody; only the words differ, so they are exchanged here, on the way out.
A connection that is new begins with the invitation again, since the newcomer may have been started anew. A pack is sent
only where the newcomer's log is known to end: an append that would leave a gap is kept back here, and the core is told
which entry comes first (`AppendNotSent`). The newcomer has said nothing then, so the core counts it for no majority.

A newcomer whose handshake agreed on no extension is taken for one of another make, which trusts what it is sent. Such a
server corrupts its log or ends its process unless all of this holds:

* It is told nothing before it has accepted the invitation: until then it may lead a cluster of its own.
* The first pack begins at index 1, whatever it says that it holds: it may have elected itself and hold an entry of its
  own there, of the very term that ours has. Until that pack is sent, heartbeats are kept back.
* The offsets of a pack begin where its data file ends, which is the sum of the packs before (`log_pack`).
* A pack holds committed entries only, since it executes all that is in one. What is not committed goes as an append.
* After `PACKED_ENTRIES_MAX` entries, appends follow. A server that writes its own snapshot while it catches up moves
  its data file, and nothing tells how far; to an append it finds the place itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import trio

from consensus.core import messages as core
from consensus.core.model import Index, LogId
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.wire import messages as wire

PACKED_ENTRIES_MAX = 4_096
"""How many entries a server of another make gets in packs. The demonstration server of the running implementation
writes a snapshot after 5,000, and moves its data file then."""


@dataclass(frozen=True, slots=True)
class Part:
    """What goes out of one append: as a log pack, or else in the words of an append."""

    append: core.AppendEntries
    packed: bool = False
    offset: int = 0
    """Of a pack: the size in bytes of the newcomer's data file."""


@dataclass(slots=True, eq=False)
class JoiningPeer:
    """One newcomer, from its invitation until it is spoken to like any other."""

    address: PeerAddress | None
    invitation: Callable[[bool], wire.JoinClusterRequest]
    """Makes one; True: the newcomer can read joint configurations and learners."""
    accepted: bool | None = None
    """What it answered at first; None: not yet."""
    packs: int = 0
    chunks: int = 0
    trusting: bool = False
    """Whether it is of another make and puts packs into its log without a comparison."""
    _expected: Index | None = None
    """One beyond what it holds, or will when all that is under way has arrived; None: it has to join first."""
    _held: Index = 1
    """One beyond what it has said that it holds."""
    _ours: bool = False
    """Whether its log, up to where it ends, is known to come from this leader."""
    _packing: bool = True
    """Whether what follows still goes as packs."""
    _packed_entries: int = 0
    _offset: int = 0
    """The size in bytes of its data file when all packs under way have arrived."""
    _answered: trio.Event = field(default_factory=trio.Event)

    async def answer(self) -> bool:
        """Wait for its first answer."""
        await self._answered.wait()
        return self.accepted is True

    def on_join_reply(self, reply: wire.Reply) -> None:
        """It answered an invitation. One of another make that is catching up already refuses a second."""
        if self.accepted is None:
            self.accepted = reply.accepted
            self._answered.set()
        if not self.accepted:
            return
        if not self.trusting:
            self._expected = self._held = reply.next_index
        elif self._ours and reply.next_index >= self._held:
            self._expected, self._packing = reply.next_index, False
        else:
            self._expected, self._held, self._ours = 1, 1, False
            self._restart_packs()

    def connection_lost(self) -> None:
        """What was under way may not have arrived: it says where to go on when it answers the next invitation."""
        self._expected = None
        self._ours = self._ours and self._held > 1

    def parts(self, append: core.AppendEntries) -> tuple[Part, ...] | Index:
        """What goes out for an append, in this order; or the index of the entry that must go before it."""
        expected = self._expected or 1
        if append.entries and append.previous.index + 1 > expected:
            return expected
        if not self.trusting:
            return (Part(append, packed=bool(append.entries)),)
        if self._expected is None:
            return expected
        return self._entries_for_another_make(append) if append.entries else self._heartbeat_for_another_make(append)

    def _entries_for_another_make(self, append: core.AppendEntries) -> tuple[Part, ...] | Index:
        previous, entries = append.previous, append.entries
        if not self._packing or previous.index + 1 != self._expected:
            return (Part(append),)
        room = min(PACKED_ENTRIES_MAX - self._packed_entries, append.commit - previous.index)
        if room >= len(entries):
            return (Part(append, packed=True, offset=self._offset),)
        if room <= 0:
            return (Part(append),) if self._ours else previous.index + 1
        cut = LogId(previous.index + room, entries[room - 1].term)
        head, tail = replace(append, entries=entries[:room]), replace(append, previous=cut, entries=entries[room:])
        return Part(head, packed=True, offset=self._offset), Part(tail)

    def _heartbeat_for_another_make(self, append: core.AppendEntries) -> tuple[Part, ...] | Index:
        return (Part(append),) if self._ours else 1

    def may_send_snapshot(self) -> bool:
        """Whether a chunk may be sent: a newcomer of another make has to join first."""
        return not self.trusting or self._expected is not None

    def sent(self, part: Part, records_bytes: int) -> None:
        """A part is on its way; a pack adds `records_bytes` to a data file. What could not be sent is not told here."""
        append = part.append
        if not append.entries:
            return
        after = append.previous.index + 1 + len(append.entries)
        if part.packed:
            self.packs += 1
            self._packed_entries += len(append.entries)
            self._offset += records_bytes
            self._ours = True
            self._expected = after
        else:
            self._packing = False
            self._expected = max(self._expected or 1, after)

    def replied(self, asked: core.Request, reply: core.Reply) -> None:
        """It answered something else: that may tell where its log ends."""
        match asked, reply:
            case core.AppendEntries(), core.AppendReply(success=True, next_index=next_index):
                self._holds(next_index)
            case core.AppendEntries(), core.AppendReply(next_index=next_index) if self.trusting:
                # It answers in order, so this is where its log ends. From there on it compares.
                self._packing, self._expected = False, max(next_index, self._held)
            case core.AppendEntries(), core.AppendReply(next_index=next_index):
                # Heartbeats are answered at once, packs when they are durable: this may speak of a time before them.
                self._expected = max(next_index, self._held)
            case core.InstallSnapshot(last=last), core.SnapshotReply(installed=True):
                self._holds(last.index + 1)
                self._restart_packs()
                self._ours = True
            case core.InstallSnapshot(), core.SnapshotReply():
                self.chunks += 1
            case _:
                pass

    def _restart_packs(self) -> None:
        """The next pack is written to the start of its data file."""
        self._packing, self._packed_entries, self._offset = True, 0, 0

    def _holds(self, following: Index) -> None:
        self._held = max(self._held, following)
        self._expected = max(self._expected or 1, self._held)
