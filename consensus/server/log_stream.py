"""Committed entries as a stream, from any index on, for a consumer of the log over any protocol.

    is `first` compacted?  ──yes──▶ the stored snapshot, chunk by chunk ──▶ the entries after it
            │ no
            ▼
    entries, in batches of `batch_bytes` ──▶ … ──▶ at the commit index: wait for more

Each chunk contains the size of the whole snapshot. The chunks are the snapshot as servers exchange it. The log may be
compacted while a slow consumer lags, and a snapshot may be replaced while it is sent. Then the stream continues with
the newer one, from offset 0, and the consumer restarts.

The stream reads at most `ahead` items ahead of its consumer, so a stopped consumer costs only this memory and one task.
The stream does not delay compaction or other readers: it has one read under way at a time, and waits while the server
is busy. The number of streams, `ahead` and `batch_bytes` are bounded, and a stream that is never entered does not cost
anything, because reading begins with the `with` block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from msgspec import Struct

from consensus.core.model import Entry, Index, LogId, SnapshotDescription
from consensus.server.applying import Applying
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.storage_reads import StorageReads
from consensus.server.task_owner import TaskOwner

MAX_AHEAD_ITEMS = 16
MAX_BATCH_BYTES = 1024 * 1024
_BUSY_S = 0.05


class SnapshotChunk(Struct, frozen=True):
    """Bytes of the snapshot that covers everything up to `last`, from `offset` on."""

    last: LogId
    total_bytes: int
    offset: int
    data: bytes


class EntryBatch(Struct, frozen=True):
    """Committed entries from index `first` on; the log was committed up to `commit` when they were read."""

    first: Index
    entries: tuple[Entry, ...]
    commit: Index


StreamItem = SnapshotChunk | EntryBatch


class LogStream:
    """One consumer's stream, for `async for item in stream:`. Raises `ServerStoppedError` at its end."""

    def __init__(self, items: trio.MemoryReceiveChannel[StreamItem]) -> None:
        self._items = items

    def __aiter__(self) -> "LogStream":
        """Return the stream itself: items in order, until the server stops."""
        return self

    async def __anext__(self) -> StreamItem:
        """Return the next item, when there is one."""
        try:
            return await self._items.receive()
        except trio.EndOfChannel:
            raise ServerStoppedError("the server has stopped") from None


class LogStreams(TaskOwner):
    """The streams of one server, at most `limit` at the same time."""

    def __init__(
        self,
        reads: StorageReads,
        applying: Applying,
        stored_snapshot: Callable[[], SnapshotDescription | None],
        limit: int,
    ) -> None:
        self._reads = reads
        self._applying = applying
        self._stored_snapshot = stored_snapshot
        self._limit = limit

    @property
    def count(self) -> int:
        """Return the number of open streams. A stream counts until its task has ended."""
        return 0 if self._nursery is None else len(self._nursery.child_tasks)

    @contextmanager
    def open(self, first: Index, ahead: int, batch_bytes: int) -> Iterator[LogStream]:
        """Open a stream of committed entries from index `first` on. The stream begins and ends with the `with` block.

        Raises `ValueError` for figures out of bounds, `ServerStoppedError`, or `ServerBusyError` if `limit` are open.
        """
        if first < 1:
            raise ValueError(f"the log begins at index 1, not at {first}")
        if not 0 <= ahead <= MAX_AHEAD_ITEMS:
            raise ValueError(f"a stream reads 0 to {MAX_AHEAD_ITEMS} items ahead, not {ahead}")
        if not 1 <= batch_bytes <= MAX_BATCH_BYTES:
            raise ValueError(f"a batch of a stream has 1 to {MAX_BATCH_BYTES} bytes, not {batch_bytes}")
        if self._nursery is None:
            raise ServerStoppedError("the server does not run")
        if self.count >= self._limit:
            raise ServerBusyError(f"{self.count} streams of the log are open, and no more are permitted")
        send, receive = trio.open_memory_channel[StreamItem](ahead)
        life = trio.CancelScope()
        self._nursery.start_soon(self._feed, life, send, first, batch_bytes)
        try:
            yield LogStream(receive)
        finally:
            life.cancel()
            receive.close()

    async def _feed(
        self, life: trio.CancelScope, items: trio.MemorySendChannel[StreamItem], first: Index, batch_bytes: int
    ) -> None:
        with life, items:
            next_index = first
            while True:
                try:
                    next_index = await self._send_next(items, next_index, batch_bytes)
                except ServerBusyError:
                    await trio.sleep(_BUSY_S)
                except (ServerStoppedError, trio.BrokenResourceError):
                    return

    async def _send_next(self, items: trio.MemorySendChannel[StreamItem], first: Index, batch_bytes: int) -> Index:
        """Send a batch, or the snapshot that covers it; return the next index."""
        commit = await self._applying.wait_commit(first)
        entries = await self._reads.log(first, commit, batch_bytes)
        if entries:
            await items.send(EntryBatch(first, entries, commit))
            return first + len(entries)
        snapshot = self._stored_snapshot()
        if snapshot is None or snapshot.last.index < first or not await self._send_snapshot(items, snapshot):
            # The entries or the snapshot were replaced during the read: try again.
            await trio.sleep(_BUSY_S)
            return first
        return snapshot.last.index + 1

    async def _send_snapshot(self, items: trio.MemorySendChannel[StreamItem], snapshot: SnapshotDescription) -> bool:
        """Send all chunks; False if a newer snapshot has replaced this one."""
        offset = 0
        while offset < snapshot.size_bytes:
            data = await self._reads.chunk(snapshot, offset)
            if data is None:
                return False
            await items.send(SnapshotChunk(snapshot.last, snapshot.size_bytes, offset, data))
            offset += len(data)
        return True
