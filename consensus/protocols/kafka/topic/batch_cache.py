"""A cache of record batches as bytes, shared by all consumers of a topic and bounded in bytes.

    read(offset) ─▶ cached? ─▶ join adjacent batches up to max_bytes ─▶ bytes of the reply
                      └ no ─▶ load(offset) from the log, once for all readers ─▶ cut into batches ─▶ keep

Encoding entries as batches costs far more than sending them. Consumers of one topic read the same batches, mostly near
its end, so the bytes are kept in wire form. They are kept by batch and not by reply, since two consumers rarely use the
same offset and the same limit.

The cache holds only batches below the high watermark: they never change. The least recently read one is dropped first.
Batches do not overlap: a larger batch replaces all batches in its range, such as small batches from the growing end of
the log.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio
from msgspec import Struct

from consensus.protocols.kafka.wire.record_batches import batch_heads

_LOAD_BYTES: Final = 1024 * 1024
"""Least number of bytes per load, so that consecutive small reads cost one load."""

Load = Callable[[int, int], Awaitable[bytes]]
"""Takes an offset and a number of bytes; returns whole batches, from the first with a record at or after the offset."""


class _Batch(Struct, frozen=True):
    first: int
    """The first offset whose read begins with this batch."""
    end: int
    """End of the offsets, exclusive."""
    data: bytes


class BatchCache:
    """Reads whole batches by offset, from memory if possible."""

    def __init__(self, load: Load, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._load = load
        self._max_bytes = max_bytes
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        """Batches by first offset, the least recently read one first."""
        self._firsts: list[int] = []
        """The first offsets, ascending."""
        self._loading = trio.Lock()
        self.cached_bytes = 0
        self.loads = 0

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches from the batch of `offset` on: at least one, up to `max_bytes`. Raises as `load` does.

        `offset` must be below the high watermark.
        """
        found = self._cached(offset, max_bytes)
        if found:
            return found
        async with self._loading:
            found = self._cached(offset, max_bytes)
            if found:
                return found
            self.loads += 1
            cached = self._batches
            loaded = await self._load(offset, max(max_bytes, _LOAD_BYTES))
            batches = list(_cut(loaded, offset))
            # A call of `clear` during the load has replaced the mapping: these batches belong to the previous log.
            for batch in batches if cached is self._batches else ():
                self._keep(batch)
        return _joined((batch for batch in batches if batch.end > offset), max_bytes)

    def drop_before(self, offset: int) -> None:
        """Drop the batches that end at `offset` or before it: the log starts there now."""
        while self._firsts and self._batches[self._firsts[0]].end <= offset:
            self._drop(self._firsts[0])

    def clear(self) -> None:
        """Drop everything, as after a snapshot has replaced the log."""
        self._batches = OrderedDict()
        self._firsts.clear()
        self.cached_bytes = 0

    def _cached(self, offset: int, max_bytes: int) -> bytes:
        return _joined(self._from(offset), max_bytes)

    def _from(self, offset: int) -> Iterator[_Batch]:
        at = bisect_right(self._firsts, offset) - 1
        while 0 <= at < len(self._firsts):
            batch = self._batches[self._firsts[at]]
            if not batch.first <= offset < batch.end:
                return
            self._batches.move_to_end(batch.first)
            yield batch
            offset = batch.end
            at += 1

    def _keep(self, batch: _Batch) -> None:
        if len(batch.data) > self._max_bytes:
            return
        overlapping = self._overlapping(batch)
        if any(old.first < batch.first or old.end > batch.end for old in overlapping):
            return
        for old in overlapping:
            self._drop(old.first)
        while self.cached_bytes + len(batch.data) > self._max_bytes:
            self._drop(next(iter(self._batches)))
        self._batches[batch.first] = batch
        insort(self._firsts, batch.first)
        self.cached_bytes += len(batch.data)

    def _overlapping(self, batch: _Batch) -> list[_Batch]:
        at = max(bisect_right(self._firsts, batch.first) - 1, 0)
        near: list[_Batch] = []
        while at < len(self._firsts) and self._firsts[at] < batch.end:
            old = self._batches[self._firsts[at]]
            if old.end > batch.first:
                near.append(old)
            at += 1
        return near

    def _drop(self, first: int) -> None:
        self.cached_bytes -= len(self._batches.pop(first).data)
        del self._firsts[bisect_right(self._firsts, first) - 1]


def _joined(batches: Iterator[_Batch], max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for batch in batches:
        size += len(batch.data)
        if parts and size > max_bytes:
            break
        parts.append(batch.data)
    return b"".join(parts)


def _cut(data: bytes, offset: int) -> Iterator[_Batch]:
    """Yield the batches with their ranges of offsets; offsets without a record belong to the next batch."""
    first = offset
    for at, head in batch_heads(data):
        yield _Batch(min(first, head.base_offset), head.last_offset + 1, data[at : at + head.size_bytes])
        first = head.last_offset + 1
