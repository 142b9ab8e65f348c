"""The index of records by time, in a log with arbitrary timestamps: it agrees with a scan, and reads one block."""

from random import Random

import pytest
import trio
import trio.testing

from consensus.core.model import Entry, EntryKind
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica.time_index import BLOCK_RECORDS, PART_RECORDS, TimeIndex
from consensus.protocols.kraft.wire.entries import control_data, data_of
from consensus.server.errors import ServerBusyError

SEEDS = (1, 2, 3)


def record(timestamp_ms: int) -> Entry:
    return Entry.command(1, data_of(RecordBatch(0, -1, (Record(timestamp_ms, None, b"x"),)))[0])


class Log:
    """A log with random times, a rising start, and a count of the entries read."""

    def __init__(self, random: Random, count: int) -> None:
        self.random = random
        self.entries: list[Entry] = []
        self.start = 0
        self.read_entries = 0
        self.refused_reads = 0
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
        if self.refused_reads:
            self.refused_reads -= 1
            raise ServerBusyError("too many reads")
        found = self.entries[first - 1 : first - 1 + min(limit_entries, 70)]
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
    for most in (1, BLOCK_RECORDS, 4 * BLOCK_RECORDS, BLOCK_RECORDS):
        await log.check()
        log.start = min(len(log.entries), log.start + log.random.randint(1, most))
        await log.check()
        log.grow(log.random.randrange(3 * BLOCK_RECORDS))


async def test_refused_read_leaves_index_correct() -> None:
    log = Log(Random(4), 5 * BLOCK_RECORDS)
    for refused_at in (0, 3 * BLOCK_RECORDS + 1):
        log.start, log.refused_reads = refused_at, 1
        with pytest.raises(ServerBusyError):
            await log.index.first(0)
        await log.check()


async def test_index_of_empty_log_is_empty() -> None:
    log = Log(Random(1), 0)
    assert await log.index.first(0) is None
    assert await log.index.latest() is None


async def test_request_reads_up_to_wanted_time_once() -> None:
    log = Log(Random(1), 20 * BLOCK_RECORDS + 5)
    await log.index.first(500_000)
    assert log.read_entries <= PART_RECORDS + BLOCK_RECORDS
    await log.index.first(2_000_000)
    assert log.read_entries <= len(log.entries) + BLOCK_RECORDS
    for time_ms in (0, 990_000, 2_000_000):
        log.read_entries = 0
        await log.index.first(time_ms)
        await log.index.latest()
        assert log.read_entries == (0 if time_ms == 2_000_000 else BLOCK_RECORDS)


@pytest.mark.parametrize(("growth", "parts"), [(0, 15), (1, 57)])
async def test_growing_log_gets_pauses(growth: int, parts: int, autojump_clock: trio.testing.MockClock) -> None:
    log = Log(Random(1), 2 * PART_RECORDS)

    async def read(first: int, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        await trio.sleep(0.01)
        log.grow(growth)
        return await log.read(first, limit_entries, limit_bytes)

    index = TimeIndex(read, lambda: (log.start, len(log.entries)))
    began_s = trio.current_time()
    await index.first(2_000_000)
    assert trio.current_time() - began_s == pytest.approx(parts / 100)
