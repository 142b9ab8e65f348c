"""The places of records by time: the latest time of each block of committed records.

    first(time) ──▶ skip blocks whose latest time is earlier ──▶ read one block ──▶ offset
    latest()    ──▶ the latest of the blocks' latest times   ──▶ offset

Records may have any timestamps, so bisection is impossible, and reading the log from its start for each request is too
slow for a million records: clients may query often. A block is read once, when a request first needs it, and only if a
record of the wanted time must be in it. Committed records do not change. The log's start rises, so the first block is
read whenever its latest record counts.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from consensus.core.model import Entry, EntryKind, Index
from consensus.protocols.kraft.wire.entries import entry_head

BLOCK_RECORDS: Final = 1_024
_READ_BYTES: Final = 1024 * 1024

Place = tuple[int, int]
"""Offset and timestamp of a record."""


class TimeIndex:
    """The index of one log."""

    def __init__(
        self,
        read: Callable[[Index, int, int], Awaitable[tuple[Entry, ...]]],
        committed: Callable[[], tuple[int, int]],
    ) -> None:
        """Make it; `read(first index, entries, bytes)` reads the log; `committed` returns first offset and end."""
        self._read = read
        self._committed = committed
        self._latest: dict[int, Place | None] = {}
        """Latest record of each read block, the first of several; None: the block is empty."""
        self._one_reader = trio.Lock()

    async def first(self, timestamp_ms: int) -> Place | None:
        """Return the first record of this time or a later one, or None."""
        async with self._one_reader:
            start, end = self._range()
            for block in range(start // BLOCK_RECORDS, _blocks(end)):
                if block in self._latest:
                    latest = self._latest[block]
                    if latest is None or latest[1] < timestamp_ms:
                        continue
                for place in await self._places(block, start, end):
                    if place[1] >= timestamp_ms:
                        return place
        return None

    async def latest(self) -> Place | None:
        """Return the record of the latest time, the first of several, or None."""
        async with self._one_reader:
            start, end = self._range()
            found: Place | None = None
            for block in range(start // BLOCK_RECORDS, _blocks(end)):
                latest = self._latest.get(block)
                if block not in self._latest or (latest is not None and latest[0] < start):
                    latest = _latest_of(await self._places(block, start, end))
                if latest is not None and (found is None or latest[1] > found[1]):
                    found = latest
        return found

    def _range(self) -> tuple[int, int]:
        start, end = self._committed()
        for block in [each for each in self._latest if each < start // BLOCK_RECORDS]:
            del self._latest[block]
        return start, end

    async def _places(self, block: int, start: int, end: int) -> list[Place]:
        """Return the records of a block in the log."""
        block_end = (block + 1) * BLOCK_RECORDS
        at, last = max(start, block * BLOCK_RECORDS), min(end, block_end)
        places: list[Place] = []
        while at < last:
            entries = await self._read(at + 1, last - at, _READ_BYTES)
            if not entries:
                break
            for offset, entry in enumerate(entries, at):
                head = entry_head(entry.data) if entry.kind is EntryKind.COMMAND else None
                if head is not None:
                    places.append((offset, head.timestamp_ms))
            at += len(entries)
        if at == block_end:
            self._latest[block] = _latest_of(places)
        return places


def _blocks(end: int) -> int:
    """Return the number of blocks for the offsets before `end`."""
    return -(-end // BLOCK_RECORDS)


def _latest_of(places: list[Place]) -> Place | None:
    return max(places, key=lambda place: (place[1], -place[0]), default=None)
