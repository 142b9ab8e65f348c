"""The places of records by time: the latest time of each block of committed records.

    committed records ──▶ blocks of 128: latest time ──▶ highest time up to each block
    first(time) ──▶ bisect the highest times ──▶ read one block ──▶ offset
    latest()    ──▶ the first block with the highest time        ──▶ offset

Records may have any timestamps, so a bisection of the records is impossible, and reading the log for each request is
too slow. Each record is indexed once, by the first request that needs it. After that, a search by time reads at most
one block in most cases. The index uses a fifth of a byte for a record. Committed records do not change, but the log's
start rises: then the first block is read again, because its latest record may have been dropped.

Commits of other clients wait during each read. So while the log grows, a long read is divided into parts of a few
milliseconds. After each part, the read pauses for three times the part's duration.
"""

from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Final

import trio

from consensus.core.model import Entry, EntryKind, Index
from consensus.protocols.kraft.wire.entries import entry_head

BLOCK_RECORDS: Final = 128
PART_RECORDS: Final = 512
"""Limit of the records in one read."""
_READ_BYTES: Final = 256 * 1024
_PAUSE: Final = 3.0
"""Length of the pause after a read, as a multiple of the duration of the read."""
_EMPTY: Final = (-1, -(2**63))
"""The latest record of a block without records."""

Place = tuple[int, int]
"""Offset and timestamp of a record."""


class TimeIndex:
    """The index of one log."""

    def __init__(
        self,
        read: Callable[[Index, int, int], Awaitable[tuple[Entry, ...]]],
        committed: Callable[[], tuple[int, int]],
    ) -> None:
        """Make the index; `read(first, entries, bytes)` reads the log; `committed` returns first offset and end."""
        self._read = read
        self._committed = committed
        self._start = self._base = self._end = 0
        """First offset of the log; first offset of the blocks; end of the indexed records."""
        self._offsets, self._times = array("q"), array("q")
        """Offset and time of the record with the highest time in each complete block; of several, the first."""
        self._highest = array("q")
        """Highest time up to the end of each block."""
        self._open: list[Place] = []
        """Records after the last complete block."""
        self._one_reader = trio.Lock()

    async def first(self, timestamp_ms: int) -> Place | None:
        """Return the first record of this time or a later one, or None."""
        async with self._one_reader:
            while True:
                await self._update(timestamp_ms)
                for block in range(bisect_left(self._highest, timestamp_ms), len(self._times)):
                    if self._times[block] >= timestamp_ms:
                        found = await self._places_of(block, self._start)
                        if (place := _first_of(found, timestamp_ms)) is not None:
                            return place
                if self._start == self._committed()[0]:
                    return _first_of(self._open, timestamp_ms)

    async def latest(self) -> Place | None:
        """Return the record with the latest time (of several, the first), or None."""
        async with self._one_reader:
            await self._update()
            found = _latest_of(self._open)
            if self._highest and self._highest[-1] >= found[1]:
                block = self._times.index(self._highest[-1])
                found = self._offsets[block], self._times[block]
            return None if found == _EMPTY else found

    async def _update(self, wanted_ms: int | None = None) -> None:
        """Drop compacted records, and index new ones: all, or up to a block with a record of `wanted_ms` or later."""
        target = self._committed()[1]
        while True:
            start, began_s = self._committed()[0], trio.current_time()
            if start != self._start:
                await self._drop_before(start)
            if self._end >= target or self._reaches(wanted_ms):
                return
            entries = await self._read(self._end + 1, min(PART_RECORDS, target - self._end), _READ_BYTES)
            for place in _places(self._end, entries):
                self._close_blocks(place[0])
                self._open.append(place)
            self._end += len(entries)
            self._close_blocks(self._end)
            newest_start, newest_end = self._committed()
            if not entries and newest_start == start:
                return
            if self._end < target < newest_end:
                await trio.sleep(_PAUSE * (trio.current_time() - began_s))

    def _reaches(self, wanted_ms: int | None) -> bool:
        return wanted_ms is not None and bool(self._highest) and self._highest[-1] >= wanted_ms

    def _close_blocks(self, offset: int) -> None:
        """Close the blocks that end before `offset` or at it."""
        while offset >= self._open_start + BLOCK_RECORDS:
            latest = _latest_of(self._open)
            self._offsets.append(latest[0])
            self._times.append(latest[1])
            self._highest.append(max(self._highest[-1], latest[1]) if self._highest else latest[1])
            self._open = []

    @property
    def _open_start(self) -> int:
        return self._base + len(self._times) * BLOCK_RECORDS

    async def _drop_before(self, start: int) -> None:
        dropped = (start - self._base) // BLOCK_RECORDS
        # Read before any change, so that a refused or canceled read leaves the index as before.
        left = await self._places_of(dropped, start) if dropped < len(self._times) else []
        del self._offsets[:dropped], self._times[:dropped]
        self._base = start if start >= self._end else self._base + dropped * BLOCK_RECORDS
        self._start, self._end = start, max(start, self._end)
        self._open = [place for place in self._open if place[0] >= start]
        if self._times:
            self._offsets[0], self._times[0] = _latest_of(left)
        self._highest = array("q", accumulate(self._times, max))

    async def _places_of(self, block: int, start: int) -> list[Place]:
        """Return the records of a complete block from `start` on, in the log."""
        end = self._base + (block + 1) * BLOCK_RECORDS
        at = max(start, end - BLOCK_RECORDS)
        places: list[Place] = []
        while at < end and (entries := await self._read(at + 1, end - at, _READ_BYTES)):
            places += _places(at, entries)
            at += len(entries)
        return places


def _places(offset: int, entries: tuple[Entry, ...]) -> list[Place]:
    """Return the clients' records among entries; the first entry has `offset`."""
    return [
        (at, head.timestamp_ms)
        for at, entry in enumerate(entries, offset)
        if entry.kind is EntryKind.COMMAND and (head := entry_head(entry.data)) is not None
    ]


def _first_of(places: list[Place], timestamp_ms: int) -> Place | None:
    return next((place for place in places if place[1] >= timestamp_ms), None)


def _latest_of(places: list[Place]) -> Place:
    return max(places, key=lambda place: (place[1], -place[0]), default=_EMPTY)
