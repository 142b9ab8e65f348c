"""The index of records by time, in a log with arbitrary timestamps: it agrees with a scan, and reads one block."""

from random import Random

import pytest

from consensus.core.model import Entry, EntryKind
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica.time_index import BLOCK_RECORDS, TimeIndex
from consensus.protocols.kraft.wire.entries import control_data, data_of

SEEDS = (1, 2, 3)


def record(timestamp_ms: int) -> Entry:
    """Return a client's record."""
    return Entry.command(1, data_of(RecordBatch(0, -1, (Record(timestamp_ms, None, b"x"),)))[0])


class Log:
    """A log with random times, a rising start, and a count of the entries read."""

    def __init__(self, random: Random, count: int) -> None:
        self.random = random
        self.entries: list[Entry] = []
        self.start = 0
        self.read_entries = 0
        self.grow(count)
        self.index = TimeIndex(self.read, lambda: (self.start, len(self.entries)))

    def grow(self, count: int) -> None:
        """Append committed entries."""
        for _ in range(count):
            is_control = self.random.random() < 0.1
            time_ms = self.random.randrange(1_000_000)
            control = Entry(1, EntryKind.CONTROL, control_data(1_000, b"", time_ms))
            self.entries.append(control if is_control else record(time_ms))

    async def read(self, first: int, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return a part of the log, as a server does."""
        assert limit_bytes > 0
        assert first > self.start
        found = self.entries[first - 1 : first - 1 + min(limit_entries, 700)]
        self.read_entries += len(found)
        return tuple(found)

    @property
    def places(self) -> list[tuple[int, int]]:
        """All records, by the scan that the index replaces."""
        return [
            (offset, int.from_bytes(entry.data[1:9], "big"))
            for offset, entry in enumerate(self.entries)
            if offset >= self.start and entry.kind is EntryKind.COMMAND
        ]

    async def check(self) -> None:
        """Compare the index with the scan."""
        places = self.places
        for time_ms in (0, 500_000, 999_000, 1_000_001, self.random.randrange(1_000_000)):
            expected = next((place for place in places if place[1] >= time_ms), None)
            assert await self.index.first(time_ms) == expected
        assert await self.index.latest() == max(places, key=lambda place: (place[1], -place[0]), default=None)


@pytest.mark.parametrize("seed", SEEDS)
async def test_index_agrees_with_scan(seed: int) -> None:
    log = Log(Random(seed), 3 * BLOCK_RECORDS + 17)
    for _ in range(4):
        await log.check()
        log.start += log.random.randrange(BLOCK_RECORDS)
        await log.check()
        log.grow(log.random.randrange(BLOCK_RECORDS))


async def test_index_of_empty_log_is_empty() -> None:
    log = Log(Random(1), 0)
    assert await log.index.first(0) is None
    assert await log.index.latest() is None


async def test_repeated_request_reads_only_open_block() -> None:
    log = Log(Random(1), 20 * BLOCK_RECORDS + 5)
    await log.index.first(2_000_000)
    assert log.read_entries == len(log.entries)
    for _ in range(10):
        log.read_entries = 0
        assert await log.index.first(2_000_000) is None
        await log.index.latest()
        assert log.read_entries <= 2 * 5
