"""Joining servers, as seen by the leader: it invites them and replicates its log to them.

    connected ──▶ JoinClusterRequest ──accepted──▶ appends with entries go out as log packs
                        │ refused                   heartbeats and snapshot chunks go out unchanged
                        └──▶ the invitation has failed

The core replicates to a joining peer as to any other server. Only the messages differ; this module chooses them. The
leader sends the invitation again on each new connection, since the peer may have restarted. It sends a pack only at the
known end of the peer's log. If an append would leave a gap, the core gets the index to send next (`append_not_sent`).

A joining peer without extensions is a server of another implementation, which does not check its input. Without these
rules it would corrupt its log or end its process:

* Appends and snapshots are sent only after the peer has accepted the invitation: before, it may lead its own cluster.
* The first pack begins at index 1, regardless of the index that the peer reports, and precedes any heartbeat. The peer
  may have elected itself, with its own entry at index 1.
* The offsets of a pack begin at the end of the peer's data file: the total size of the earlier packs (`log_pack`).
* A pack holds committed entries only, since the peer executes all of them. Other entries are sent as appends.
* After `PACKED_ENTRIES_MAX` entries, appends follow: a snapshot of the peer moves its data file by an unknown distance.
"""

from collections.abc import Callable

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.model import Index, LogId
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.wire import messages as wire

PACKED_ENTRIES_MAX = 4_096
"""Limit of the entries that a server of another implementation gets in packs. The demonstration server of JRaft writes
a snapshot after 5,000 entries, and then moves its data file.
"""


class Part(Struct, frozen=True):
    """A part of one append, sent as a log pack or as an append."""

    append: core.AppendEntries
    packed: bool = False
    offset: int = 0
    """For a pack: the size of the peer's data file before it, in bytes."""


class JoiningPeer(Struct, eq=False):
    """One joining peer, from its invitation until it is an ordinary peer."""

    address: PeerAddress | None
    invitation: Callable[[bool], wire.JoinClusterRequest]
    """Makes the request; the argument is True if the peer supports joint configurations and learners."""
    accepted: bool | None = None
    """Result of the first reply to an invitation; None before that reply."""
    packs: int = 0
    chunks: int = 0
    trusting: bool = False
    """True if the peer belongs to another implementation and stores packs without a comparison with its log."""
    _expected: Index | None = None
    """The next index after the requests under way. Without it, a peer without extensions does not get appends."""
    _confirmed_end: Index = 1
    """The index after the last entry that the peer has confirmed."""
    _is_log_from_leader: bool = False
    """True if the peer's whole log certainly originates from this leader."""
    _packing: bool = True
    """True while the next entries are sent as packs."""
    _packed_entries: int = 0
    _offset: int = 0
    """The size in bytes of the peer's data file when all packs under way have arrived."""
    _reply_received: trio.Event = field(default_factory=trio.Event)

    async def answer(self) -> bool:
        """Wait for the peer's first reply; return True if it accepts the invitation."""
        await self._reply_received.wait()
        return self.accepted is True

    def on_join_reply(self, reply: wire.Reply) -> None:
        """Handle a reply to an invitation. Only the first reply decides if the peer joins.

        A peer without extensions refuses a second invitation while it catches up.
        """
        if self.accepted is None:
            self.accepted = reply.accepted
            self._reply_received.set()
        if not self.accepted:
            return
        if not self.trusting:
            self._expected = self._confirmed_end = reply.next_index
        elif self._is_log_from_leader and reply.next_index >= self._confirmed_end:
            self._expected, self._packing = reply.next_index, False
        else:
            self._expected, self._confirmed_end, self._is_log_from_leader = 1, 1, False
            self._restart_packs()

    def connection_lost(self) -> None:
        """Record a lost connection: requests may be lost. The reply to the next invitation contains the next index."""
        self._expected = None
        self._is_log_from_leader = self._is_log_from_leader and self._confirmed_end > 1

    def parts(self, append: core.AppendEntries) -> tuple[Part, ...] | Index:
        """Return the parts to send for an append, in order; or the index of the entry that must be sent first.

        The peer has confirmed this entry only if it reported a shorter log after the confirmation.
        """
        if append.entries and append.previous.index + 1 > (self._expected or 1):
            return self._expected or self._confirmed_end
        if not self.trusting:
            return (Part(append, packed=bool(append.entries)),)
        if self._expected is None:
            return self._confirmed_end
        return (
            self._entries_without_extensions(append) if append.entries else self._heartbeat_without_extensions(append)
        )

    def _entries_without_extensions(self, append: core.AppendEntries) -> tuple[Part, ...] | Index:
        previous, entries = append.previous, append.entries
        if not self._packing or previous.index + 1 != self._expected:
            return (Part(append),)
        room = min(PACKED_ENTRIES_MAX - self._packed_entries, append.commit - previous.index)
        if room >= len(entries):
            return (Part(append, packed=True, offset=self._offset),)
        if room <= 0:
            return (Part(append),) if self._is_log_from_leader else previous.index + 1
        cut = LogId(previous.index + room, entries[room - 1].term)
        head, tail = replace(append, entries=entries[:room]), replace(append, previous=cut, entries=entries[room:])
        return Part(head, packed=True, offset=self._offset), Part(tail)

    def _heartbeat_without_extensions(self, append: core.AppendEntries) -> tuple[Part, ...] | Index:
        return (Part(append),) if self._is_log_from_leader else 1

    def may_send_snapshot(self) -> bool:
        """Return True if a chunk may be sent. A peer of another implementation must accept the invitation first."""
        return not self.trusting or self._expected is not None

    def sent(self, part: Part, records_bytes: int) -> None:
        """Record a sent part, which adds `records_bytes` to the peer's data file if it is a pack."""
        append = part.append
        if not append.entries:
            return
        after = append.previous.index + 1 + len(append.entries)
        if part.packed:
            self.packs += 1
            self._packed_entries += len(append.entries)
            self._offset += records_bytes
            self._is_log_from_leader = True
            self._expected = after
        else:
            self._packing = False
            self._expected = max(self._expected or 1, after)

    def replied(self, request: core.Request, reply: core.Reply) -> None:
        """Handle a reply to an append or a snapshot chunk, which may show the end of the peer's log."""
        match request, reply:
            case core.AppendEntries(), core.AppendReply(success=True, next_index=next_index):
                self._holds(next_index)
            case core.AppendEntries(), core.AppendReply(next_index=next_index) if self.trusting:
                # The peer replies in order, so its log ends here. From now on it gets appends, which it compares.
                self._packing, self._expected = False, max(next_index, self._confirmed_end)
            case core.AppendEntries(), core.AppendReply(next_index=next_index):
                # The peer replies to heartbeats immediately, but to packs only when they are durable. So this reply may
                # be older than the last confirmation.
                self._expected = max(next_index, self._confirmed_end)
            case core.InstallSnapshot(last=last), core.SnapshotReply(installed=True):
                self._holds(last.index + 1)
                self._restart_packs()
                self._is_log_from_leader = True
            case core.InstallSnapshot(), core.SnapshotReply():
                self.chunks += 1
            case _:
                pass

    def _restart_packs(self) -> None:
        """Make the next pack begin at the start of the peer's data file."""
        self._packing, self._packed_entries, self._offset = True, 0, 0

    def _holds(self, next_index: Index) -> None:
        self._confirmed_end = max(self._confirmed_end, next_index)
        self._expected = max(self._expected or 1, self._confirmed_end)
