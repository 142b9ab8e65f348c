"""RequestEntries at a leader: sends the log from an index on, in messages that the client confirms later.

    EntriesRequest ─▶ EntryStreams ─┬─ this peer does not lead ──────▶ EntriesRedirect; an open stream ends
                                    ├─ no later entry ───────────────▶ EntriesBatch, last and empty
                                    └─ a new stream:  room ─▶ read ─▶ send ─▶ … ─▶ the end

    EntriesRequest of the same client and request id: confirms the oldest unconfirmed message. With a count of 0 it
    ends the stream. If it does not match that message, messages were lost, and it begins a new stream.

A stream sends the entries applied at its start, so it ends even in a growing log. Up to five messages of 64 KiB may be
unconfirmed; after a larger one, with one entry, the stream waits for its confirmation. For compacted entries the
snapshot's chunks come instead, two ahead. The stream ends with the last chunk: the client then requests later entries
under the same request id. A replaced snapshot is sent again from offset 0; the client checks each chunk's snapshot.
Clients do not confirm the last message. So a stream ends when all other messages are confirmed.

A stream without a confirmation for five seconds ends. Messages are not kept here, but may be in the socket's queues. So
all streams share a budget of bytes, and each reserves the bytes of a message before it reads the message. The excess is
at most one entry of 10 MiB per concurrent read. New requests are ignored while a stream waits for the budget, and when
the number of streams has reached the high watermark. If a client confirms messages that it has not received, the
socket's own high watermark bounds the memory.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import trio
from msgspec import Struct

from consensus.core.model import Index, LogId
from consensus.protocols.zmq_raft.counters import EndpointDrop
from consensus.protocols.zmq_raft.endpoint.served_log import ServedLog, SnapshotUnreadableError
from consensus.protocols.zmq_raft.wire.messages import (
    EntriesBatch,
    EntriesRedirect,
    EntriesReply,
    EntriesRequest,
    RequestId,
    SnapshotPiece,
)
from consensus.server.callbacks import run_task
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.task_owner import TaskOwner

T = TypeVar("T")

_RETRY_S: Final = 0.05
"""Delay before a busy log is read again."""
_FRAME_BYTES: Final = 64
"""Size of a frame in ØMQ's queues in addition to its data."""


class StreamOptions(Struct, frozen=True):
    """Limits of all streams. The defaults come from the specification, if it has them."""

    messages_ahead: int = 5
    chunks_ahead: int = 2
    message_bytes: int = 64 * 1024
    message_entries: int = 4096
    unconfirmed_s: float = 5.0
    high_watermark: int = 8_000
    """Limit of concurrent streams, including ending ones."""
    streams_of_client: int = 64
    budget_bytes: int = 64 * 1024 * 1024
    """Limit of unconfirmed messages and messages being read, of all streams."""
    reads_at_once: int = 8
    """Limit of concurrent reads. It is below the server's limit, because the server also has other readers."""


class _Budget:
    """Bytes shared by all streams. The budget grants them in request order; all requests have the same size."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: OrderedDict[trio.Event, int] = OrderedDict()

    @property
    def exhausted(self) -> bool:
        return bool(self._waiting)

    async def reserve(self, size_bytes: int) -> None:
        """Reserve the bytes of one message, immediately or when they are free."""
        if self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        granted = trio.Event()
        self._waiting[granted] = size_bytes
        try:
            await granted.wait()
        except trio.Cancelled:
            if self._waiting.pop(granted, None) is None:
                self.change(-size_bytes)
            raise

    def change(self, size_bytes: int) -> None:
        """Add to the used bytes. The sum may exceed the limit, for a message larger than its reservation."""
        self.used_bytes += size_bytes
        while self._waiting and self._fits(next(iter(self._waiting.values()))):
            granted, wanted_bytes = self._waiting.popitem(last=False)
            self.used_bytes += wanted_bytes
            granted.set()

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self._limit_bytes


class _Unconfirmed(Struct, frozen=True):
    """A sent message, and the contents of its confirmation."""

    previous_index: Index
    snapshot_offset: int | None
    size_bytes: int
    is_large: bool = False

    def is_confirmed_by(self, request: EntriesRequest) -> bool:
        """Return True if that request confirms this message. The offset is optional, and is ignored for entries."""
        return request.previous_index == self.previous_index and (
            self.snapshot_offset is None or request.snapshot_offset in {None, self.snapshot_offset}
        )


class EntryStream:
    """The replies to one request for entries."""

    def __init__(
        self, streams: "EntryStreams", request: EntriesRequest, last: Index, answer: Callable[[EntriesReply], bool]
    ) -> None:
        self._streams = streams
        self._options = streams.options
        self._request = request
        self._answer = answer
        self._position = request.previous_index
        self._last = last
        self._unconfirmed: deque[_Unconfirmed] = deque()
        self._has_sent = False
        self._unconfirmed_bytes = 0
        self._life = trio.CancelScope(deadline=trio.current_time() + self._options.unconfirmed_s)
        self._news = trio.lowlevel.ParkingLot()

    @property
    def expired(self) -> bool:
        """Return True if the client did not confirm a message for too long."""
        return self._life.cancelled_caught and trio.current_time() >= self._life.deadline

    def end(self) -> None:
        """Stop sending."""
        self._life.deadline = float("inf")
        self._life.cancel()

    def confirm(self, request: EntriesRequest) -> bool:
        """Process the client's next request for this stream; return False if the stream cannot continue with it."""
        if request.count == 0:
            self.end()
            return True
        if self._life.cancel_called:
            return False
        if not self._has_sent and request == self._request:
            # The client repeats a request whose entries are still being read.
            self._refresh()
            return True
        if not self._unconfirmed or not self._unconfirmed[0].is_confirmed_by(request):
            return False
        self._hold(-self._unconfirmed.popleft().size_bytes)
        self._refresh()
        self._news.unpark_all()
        return True

    async def run(self, *, compacted: bool) -> None:
        """Send until the end, until the client stops or confirms nothing, or until this peer no longer leads."""
        try:
            with suppress(ServerStoppedError), self._life:
                if compacted:
                    await self._send_snapshot(self._request.snapshot_offset or 0)
                elif not await self._send_entries():
                    await self._send_snapshot(0)
                while len(self._unconfirmed) > 1:
                    await self._news.park()
        finally:
            self._hold(-self._unconfirmed_bytes)

    async def _send_entries(self) -> bool:
        """Send all entries; return False if the next entries are compacted."""
        log, options = self._streams.log, self._options
        while self._position < self._last:
            await self._room(options.messages_ahead)
            count = min(self._last - self._position, options.message_entries)
            entries = await self._read(partial(log.read, self._position + 1, count, options.message_bytes))
            if not entries:
                self._hold(-options.message_bytes)
                return False
            self._position += len(entries)
            batch = EntriesBatch(
                request_id=self._request.request_id,
                is_last=self._position == self._last,
                last_index=self._position,
                entries=entries,
            )
            size_bytes = sum(len(entry.data) + _FRAME_BYTES for entry in entries)
            is_large = len(entries) == 1 and size_bytes > options.message_bytes
            self._send(batch, _Unconfirmed(self._position, None, size_bytes, is_large))
        return True

    async def _send_snapshot(self, offset: int) -> None:
        log, options = self._streams.log, self._options
        sent: LogId | None = None
        while True:
            await self._room(options.chunks_ahead)
            chunk = await self._read(partial(log.read_snapshot, offset, options.message_bytes))
            if chunk is None or chunk.last.index <= self._position:
                # The log was compacted a moment ago.
                self._hold(-options.message_bytes)
                await trio.sleep(_RETRY_S)
                continue
            if sent not in {None, chunk.last}:
                self._hold(-options.message_bytes)
                sent, offset = None, 0
                continue
            sent, offset = chunk.last, chunk.offset + len(chunk.data)
            piece = SnapshotPiece(
                request_id=self._request.request_id,
                last_index=chunk.last.index,
                last_term=chunk.last.term,
                offset=chunk.offset,
                total_bytes=chunk.total_bytes,
                data=chunk.data,
            )
            self._send(piece, _Unconfirmed(self._position, offset, len(chunk.data)))
            if offset == chunk.total_bytes:
                return

    async def _room(self, ahead: int) -> None:
        while len(self._unconfirmed) >= ahead or any(message.is_large for message in self._unconfirmed):
            await self._news.park()

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Reserve the bytes of a message, and read it.

        The limit of reads covers both steps, so few messages can be larger than their reservation.
        """
        while True:
            async with self._streams.reads:
                await self._streams.budget.reserve(self._options.message_bytes)
                self._unconfirmed_bytes += self._options.message_bytes
                try:
                    return await read()
                except ServerBusyError:
                    self._hold(-self._options.message_bytes)
            await trio.sleep(_RETRY_S)

    def _send(self, reply: EntriesReply, message: _Unconfirmed) -> None:
        """Send a message whose bytes were reserved, if this peer still leads and the client's queue has room."""
        self._hold(message.size_bytes - self._options.message_bytes)
        description = self._streams.log.describe()
        if not description.is_leader:
            self._answer(EntriesRedirect(self._request.request_id, description.leader))
            self.end()
        elif self._answer(reply):
            self._has_sent = True
            self._unconfirmed.append(message)
        else:
            self.end()

    def _hold(self, more_bytes: int) -> None:
        self._unconfirmed_bytes += more_bytes
        self._streams.budget.change(more_bytes)

    def _refresh(self) -> None:
        self._life.deadline = trio.current_time() + self._options.unconfirmed_s


class EntryStreams(TaskOwner):
    """All streams of one endpoint. `answer` sends a reply to an identity and returns False if its queue is full."""

    def __init__(
        self,
        log: ServedLog,
        answer: Callable[[bytes, EntriesReply], bool],
        counts: Counter[EndpointDrop],
        options: StreamOptions,
    ) -> None:
        self.log = log
        self.options = options
        self.budget = _Budget(options.budget_bytes)
        self.reads = trio.CapacityLimiter(options.reads_at_once)
        self._answer = answer
        self._counts = counts
        self._streams: dict[tuple[bytes, RequestId], EntryStream] = {}
        self._of_client: Counter[bytes] = Counter()
        self._running = 0

    @property
    def count(self) -> int:
        """Return the number of streams, including ending ones."""
        return self._running

    def submit(self, identity: bytes, request: EntriesRequest) -> None:
        """Process a request, which begins a stream or belongs to one."""
        description = self.log.describe()
        stream = self._streams.get((identity, request.request_id))
        if stream is not None:
            if description.is_leader and stream.confirm(request):
                return
            stream.end()
        if not description.is_leader:
            self._answer(identity, EntriesRedirect(request.request_id, description.leader))
        elif request.count == 0:
            pass  # a request to stop that arrived after the end
        elif request.previous_index >= description.last_applied:
            self._answer(
                identity, EntriesBatch(request_id=request.request_id, is_last=True, last_index=description.last_applied)
            )
        else:
            limit = description.last_applied
            last = limit if request.count is None else min(limit, request.previous_index + request.count)
            self._begin(identity, request, last, compacted=request.previous_index + 1 < description.first_index)

    def _begin(self, identity: bytes, request: EntriesRequest, last: Index, *, compacted: bool) -> None:
        if self._nursery is None:
            self._counts[EndpointDrop.NOT_RUNNING] += 1
        elif self._running >= self.options.high_watermark:
            self._counts[EndpointDrop.TOO_MANY_STREAMS] += 1
        elif self._of_client[identity] >= self.options.streams_of_client:
            self._counts[EndpointDrop.CLIENT_STREAMS] += 1
        elif self.budget.exhausted:
            self._counts[EndpointDrop.UNCONFIRMED_BYTES] += 1
        else:
            stream = EntryStream(self, request, last, lambda reply: self._answer(identity, reply))
            self._streams[identity, request.request_id] = stream
            self._running += 1
            self._of_client[identity] += 1
            self._nursery.start_soon(run_task, self._run, identity, request.request_id, stream, compacted)

    async def _run(self, identity: bytes, request_id: RequestId, stream: EntryStream, compacted: bool) -> None:  # noqa: FBT001 - start_soon passes positions
        try:
            await stream.run(compacted=compacted)
        except SnapshotUnreadableError:
            self._counts[EndpointDrop.SNAPSHOT_UNREADABLE] += 1
        finally:
            if self._streams.get((identity, request_id)) is stream:
                del self._streams[identity, request_id]
            self._running -= 1
            self._of_client[identity] -= 1
            if not self._of_client[identity]:
                del self._of_client[identity]
        if stream.expired:
            self._counts[EndpointDrop.STREAM_EXPIRED] += 1
