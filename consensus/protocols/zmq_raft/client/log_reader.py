"""RequestEntries at the client: the committed log from an index on, by as many requests as necessary.

    request ──▶ message, message, … up to 5 unconfirmed ──▶ kept until the consumer has taken them
       ▲                                                        │ a taken message is confirmed, and one more comes
       │                                                        ▼
       │   the last entry of a message = the end of the read part: the next request begins there
       │
       └── a redirect, no reply, entries out of order, a consumer so slow that the server drops the request

A confirmation is sent when the consumer has taken the message. So a slow consumer slows the server down. Waiting
messages are bounded: beyond `max_ahead` messages or `max_ahead_bytes` the reader discards further messages, and
requests their entries again later. Each request has its own id, so a late message of an abandoned request can neither
leave a gap nor repeat entries. After 5 to 7 seconds without a confirmation, a server drops the request, and would treat
a later confirmation as a new request. So a late reader does not confirm, and starts a new request.

*Slow links.* libzmq delivers only complete messages, so a slow message looks like a missing one. After a timeout the
reader abandons that message and starts a new request. The abandoned message still arrives, before the later ones. It
restarts the timer of the new request, and doubles the time for all later messages.

If the log is compacted, the snapshot comes first, in pieces from offset 0 on; again from 0 if the sender changes.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from enum import StrEnum
from typing import Final, assert_never

import trio
from msgspec import Struct

from consensus.core.model import COMMAND, Entry, EntryKind, Index, Term
from consensus.protocols.zmq_raft.client.known_leader import KnownLeader
from consensus.protocols.zmq_raft.client.links import ClientLink, NoReply, ZmqClientOptions
from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.wire.codec import encode_request
from consensus.protocols.zmq_raft.wire.entries import ENTRY_HEAD_BYTES, entry_frame
from consensus.protocols.zmq_raft.wire.frames import REQUEST_ID_BYTES
from consensus.protocols.zmq_raft.wire.messages import (
    ClientReply,
    ClientRequest,
    EntriesBatch,
    EntriesRedirect,
    EntriesReply,
    EntriesRequest,
    SnapshotPiece,
)

_PATIENCE_MAX: Final = 5
"""Limit for the factor of time for a peer with a slow disk, as in the npm package `zmq-raft`."""
_SLOWNESS_MAX: Final = 256
"""Limit for the factor of time on a slow link: 128 s, enough for the largest entry (10 MiB) at 1 Mbit/s."""


class LogEntryKind(StrEnum):
    """Purpose of an entry."""

    STATE = "state"
    """An update."""
    CONFIG = "config"
    """The members, as MessagePack: `[[id, url], …]`, or `{"old": …, "new": …}` while they change."""
    CHECKPOINT = "checkpoint"
    """The first entry of a leader's term; it commits the entries of earlier terms."""


class CommittedEntry(Struct, frozen=True):
    """A committed entry. `request_id` has 12 bytes, all zero for an entry without a client's request."""

    index: Index
    term: Term
    kind: LogEntryKind
    request_id: bytes
    data: bytes


class SnapshotPart(Struct, frozen=True):
    """Bytes of the snapshot that covers all entries up to `last_index`, from `offset` on.

    A part with offset 0 begins a new snapshot: earlier parts are void.
    """

    last_index: Index
    last_term: Term
    offset: int
    total_bytes: int
    data: bytes

    @property
    def is_last(self) -> bool:
        """Return True if the snapshot is complete with this part."""
        return self.offset + len(self.data) == self.total_bytes


LogItem = CommittedEntry | SnapshotPart


class NoProgressError(Exception):
    """No peer has sent anything new for too long."""


def log_entry(index: Index, entry: Entry) -> CommittedEntry:
    """Return an entry in the form for clients."""
    data = entry.data
    if entry.kind == COMMAND:
        return CommittedEntry(index, entry.term, LogEntryKind.STATE, data[:REQUEST_ID_BYTES], data[REQUEST_ID_BYTES:])
    kind = LogEntryKind.CONFIG if entry.kind == EntryKind.CONFIGURATION else LogEntryKind.CHECKPOINT
    frame = entry_frame(entry)
    return CommittedEntry(index, entry.term, kind, frame[:REQUEST_ID_BYTES], frame[ENTRY_HEAD_BYTES:])


class _EntryStream:
    """One RequestEntries under way: a `Call` that keeps messages until they are taken."""

    request_type: type[ClientRequest] = EntriesRequest
    follows_leader = True

    def __init__(self, link: ClientLink, request: EntriesRequest, options: ZmqClientOptions) -> None:
        self.link = link
        self._request = request
        self._options = options
        self._buffered_replies: deque[tuple[EntriesReply, int]] = deque()
        self._buffered_bytes = 0
        self._arrived = trio.Event()
        self._is_over = False
        """True if the server has sent its last message."""
        self._is_cut = False
        """True if all later messages of this reply are ignored."""
        self._unconfirmed = 0
        """Number of taken messages whose confirmation the server may wait for."""
        self.sign_s = trio.current_time()
        """Time of the last message of this request to the server."""
        link.begin(request.request_id, self, encode_request(request))

    def take(self, reply: ClientReply, size: int) -> None:
        """Store a message; if too many are stored, discard this message and all later messages."""
        if self._is_over or self._is_cut or not isinstance(reply, EntriesBatch | SnapshotPiece | EntriesRedirect):
            return
        too_large = self._buffered_bytes + size > self._options.max_ahead_bytes
        if self._buffered_replies and (too_large or len(self._buffered_replies) >= self._options.max_ahead):
            self._is_cut = True
            return
        self._is_over = isinstance(reply, EntriesRedirect) or (isinstance(reply, EntriesBatch) and reply.is_last)
        self._buffered_replies.append((reply, size))
        self._buffered_bytes += size
        self._arrived.set()

    def give_up(self) -> None:
        """Stop, because another peer leads. Stored messages are still correct; later messages are discarded."""
        self._is_cut = True
        self._arrived.set()

    async def next(self, ttl_s: float) -> EntriesReply | NoReply:
        """Return the next message, or the reason for its absence. Late replies to ended requests restart the time."""
        start_s = trio.current_time()
        while not self._buffered_replies and not self._is_cut:
            due_s = max(start_s, self.link.leftover_s) + ttl_s
            if trio.current_time() >= due_s:
                break
            self._arrived = trio.Event()
            with trio.move_on_at(due_s):
                await self._arrived.wait()
        if self._buffered_replies:
            reply, size = self._buffered_replies.popleft()
            self._buffered_bytes -= size
            self._unconfirmed += 1
            return reply
        return NoReply.MOVED if self._is_cut else NoReply.SILENT

    def confirm(self, previous: Index, count: int | None, offset: int | None) -> None:
        """Confirm the previous message, unless the server may have dropped the request or has sent its last message.

        In these cases the server would treat the confirmation as another request.
        """
        now_s = trio.current_time()
        if now_s - self.sign_s > self._options.confirm_within_s and not self._is_over:
            self._is_cut = True
        if not self._is_cut and not self._is_over:
            self.sign_s = now_s
            self._unconfirmed -= 1
            request = self._request
            confirmation = EntriesRequest(
                request_id=request.request_id,
                ident=request.ident,
                previous_index=previous,
                count=count,
                snapshot_offset=offset,
            )
            self.link.send(encode_request(confirmation))

    def end(self, previous: Index) -> None:
        """Discard later messages, and make the server end the stream."""
        request = self._request
        self.link.end(request.request_id)
        if not self._is_over or self._unconfirmed + len(self._buffered_replies) > 1:
            self.link.send(
                encode_request(
                    EntriesRequest(request_id=request.request_id, ident=request.ident, previous_index=previous, count=0)
                )
            )


class LogReader:
    """The progress of one consumer, which determines the start of the next request."""

    def __init__(self, leader: KnownLeader, previous: Index, count: int | None, timeout_s: float) -> None:
        self._leader = leader
        self._options = leader.options
        self._previous = previous
        self._count = count
        self._snapshot: SnapshotPiece | None = None
        """The last received piece, while a snapshot is being received."""
        self._timeout_s = timeout_s
        self._deadline_s = trio.current_time() + timeout_s
        self._is_done = False
        self._failures = 0
        self._slowness = 1
        """Factor of the time for a message, doubled when an abandoned message arrives late."""
        self._gave_up_s = math.inf
        """Time of the last timeout, until a message of an abandoned request arrives."""

    async def items(self) -> AsyncGenerator[LogItem, None]:
        """Yield all requested items. Raises `NoProgressError` if no new item arrives for `timeout_s`."""
        while not self._is_done:
            stream = await self._begin()
            try:
                while (reply := await self._next(stream)) is not None:
                    for item in self._take(reply):
                        yield item
                    self._failures = 0
                    self._deadline_s = trio.current_time() + self._timeout_s
                    if self._is_done:
                        break
                    stream.confirm(self._previous, self._count, self._offset or None)
            finally:
                stream.end(self._previous)

    @property
    def _offset(self) -> int:
        """Return the size of the received part of a snapshot; 0 if none is being received."""
        return 0 if self._snapshot is None else self._snapshot.offset + len(self._snapshot.data)

    async def _begin(self) -> _EntryStream:
        self._snapshot = None
        with trio.CancelScope(deadline=self._deadline_s):
            await trio.lowlevel.checkpoint()
            link = await self._leader.link()
            links = self._leader.links
            request = EntriesRequest(
                request_id=links.next_request_id(),
                ident=self._leader.ident,
                previous_index=self._previous,
                count=self._count,
            )
            return _EntryStream(link, request, self._options)
        raise NoProgressError

    async def _next(self, stream: _EntryStream) -> EntriesBatch | SnapshotPiece | None:
        """Return the next message if it continues the previous one; None if the reader must send its request again."""
        ttl_s = self._options.response_ttl_s * min(1 + self._failures, _PATIENCE_MAX) * self._slowness
        reply = await stream.next(min(ttl_s, max(0.0, self._deadline_s - trio.current_time())))
        if stream.link.leftover_s >= self._gave_up_s:
            self._gave_up_s = math.inf
            self._slowness = min(2 * self._slowness, _SLOWNESS_MAX)
            self._deadline_s = max(self._deadline_s, stream.link.leftover_s + self._timeout_s)
        match reply:
            case NoReply.MOVED:
                return None
            case NoReply.SILENT:
                self._failures += 1
                self._gave_up_s = trio.current_time()
                self._leader.silent(stream.link, stream.sign_s)
                return None
            case EntriesRedirect():
                self._leader.redirected(stream.link, reply.leader)
                return None
            case EntriesBatch() | SnapshotPiece():
                pass
            case _:
                assert_never(reply)
        if self._continues(reply):
            self._leader.served(stream.link)
            return reply
        self._leader.links.counters[ClientEvent.ENTRIES_OUT_OF_ORDER] += 1
        self._failures += 1
        await trio.sleep(self._options.election_grace_s)
        return None

    def _continues(self, reply: EntriesBatch | SnapshotPiece) -> bool:
        """Return True if the message continues the previous one; an empty message does so only at the end."""
        if isinstance(reply, EntriesBatch):
            if not reply.entries:
                return reply.is_last
            return self._snapshot is None and reply.last_index - len(reply.entries) == self._previous
        if reply.last_index <= self._previous or not (reply.data or reply.total_bytes == 0):
            return False
        before = self._snapshot
        return reply.offset == 0 or (
            before is not None
            and (before.last_index, before.last_term, before.total_bytes)
            == (reply.last_index, reply.last_term, reply.total_bytes)
            and reply.offset == self._offset
        )

    def _take(self, reply: EntriesBatch | SnapshotPiece) -> Sequence[LogItem]:
        """Return the consumer's items of a message, which counts as read from now on."""
        if isinstance(reply, EntriesBatch):
            first = self._previous + 1
            entries = reply.entries[: self._count]
            self._previous += len(entries)
            if self._count is not None:
                self._count -= len(entries)
            self._is_done = reply.is_last or self._count == 0
            return [log_entry(first + number, entry) for number, entry in enumerate(entries)]
        part = SnapshotPart(reply.last_index, reply.last_term, reply.offset, reply.total_bytes, reply.data)
        self._snapshot = reply
        if part.is_last:
            self._previous = reply.last_index
            self._snapshot = None
        return (part,)
