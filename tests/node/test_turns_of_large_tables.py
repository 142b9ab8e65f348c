"""A state machine never blocks the event loop for more than 50 ms, even with large tables and large batches."""

import time
from collections.abc import AsyncIterator, Iterable

import pytest
import trio
import trio.testing

from consensus.core.effects import Apply
from consensus.core.model import Entry, LogId, SnapshotDescription
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica.state_machine import MAX_PRODUCERS, Producer, QuorumLog, WrittenBatch
from consensus.protocols.kraft.wire.entries import data_of
from consensus.server.applying import YIELD_S, Applying
from consensus.server.interfaces import APPLIED_AT_ONCE

RECORDS = 5_000
LIMIT_S = 0.05


class Steps(trio.abc.Instrument):
    """The longest step of a task, in processor time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


def quorum_log(producers: int) -> QuorumLog:
    """Return a log with `producers` producers, each with the largest number of stored batches."""
    machine = QuorumLog(64 * 1024 * 1024)
    for number in range(1, producers + 1):
        machine.producers[number] = Producer(0, 1_000, [WrittenBatch(place, place, place) for place in range(5)])
    return machine


def batch(producer: int) -> tuple[Entry, ...]:
    records = tuple(Record(1_000, None, b"x" * 20) for _ in range(RECORDS))
    made = RecordBatch(0, -1, records, producer_id=producer, producer_epoch=0, base_sequence=5)
    return tuple(Entry.command(1, data) for data in data_of(made))


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a snapshot in the form that a state machine receives."""
    for chunk in chunks:
        yield chunk


def test_batch_of_producer_yields_to_other_tasks() -> None:
    machine, steps = quorum_log(MAX_PRODUCERS), Steps()
    trio.run(machine.apply, 1, batch(7), instruments=[steps])
    assert len(machine.records) == RECORDS
    assert steps.longest_s < LIMIT_S


def test_cost_of_record_is_independent_of_producer_count() -> None:
    def cost_s(producers: int) -> float:
        machine, entries = quorum_log(producers), batch(7)
        began_s = time.process_time()
        trio.run(machine.apply, 1, entries)
        return time.process_time() - began_s

    assert cost_s(MAX_PRODUCERS) < 10 * cost_s(10)


async def test_restoring_many_producers_yields_to_other_tasks(nursery: trio.Nursery) -> None:
    machine, other, turns = quorum_log(MAX_PRODUCERS), QuorumLog(64 * 1024 * 1024), list[int]()
    chunks = [*machine.snapshot()]

    async def count() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns.append(1)

    nursery.start_soon(count)
    await other.restore(LogId(9, 1), stream(chunks))
    assert other.producers == machine.producers
    assert len(turns) >= MAX_PRODUCERS // 512


def test_snapshot_has_state_of_its_moment() -> None:
    machine, other = quorum_log(3), QuorumLog(64 * 1024 * 1024)
    trio.run(machine.apply, 1, batch(2)[:10])
    before = dict(machine.producers)
    kept = {number: (each.seen_ms, list(each.batches)) for number, each in before.items()}
    state = machine.snapshot()
    trio.run(machine.apply, 11, batch(2)[10:])
    trio.run(other.restore, LogId(10, 1), stream(state))
    assert {number: (each.seen_ms, each.batches) for number, each in other.producers.items()} == kept


@pytest.mark.parametrize(("part_s", "yields"), [(0.0, False), (YIELD_S, True)])
async def test_server_yields_only_after_slow_parts_of_entries(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, part_s: float, *, yields: bool
) -> None:
    given: list[tuple[int, int, int]] = []
    taken = 0

    class Machine:
        async def apply(self, first: int, entries: tuple[Entry, ...]) -> None:
            mock_clock.jump(part_s)
            given.append((first, len(entries), taken))

        def snapshot(self) -> Iterable[bytes]:
            return iter(())

        async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
            raise AssertionError((last, state))

    async def count() -> None:
        nonlocal taken
        while True:
            await trio.lowlevel.checkpoint()
            taken += 1

    applying = Applying(Machine(), 1 << 20)  # type: ignore[arg-type] # its snapshot is never taken
    applying.push(Apply(1, tuple(Entry.command(1, b"x") for _ in range(200)), 200))
    nursery.start_soon(applying.run, _no_entries, _no_state)
    nursery.start_soon(count)
    await applying.wait_applied(200)
    assert [first for first, *_ in given] == list(range(1, 201, APPLIED_AT_ONCE))
    assert max(entries for _, entries, _ in given) <= APPLIED_AT_ONCE
    assert (given[-1][-1] > given[0][-1]) is yields


async def _no_entries(first: int, last: int, limit_bytes: int) -> tuple[Entry, ...]:
    raise AssertionError((first, last, limit_bytes))


async def _no_state(snapshot: SnapshotDescription) -> AsyncIterator[bytes]:
    raise AssertionError(snapshot)
    yield b""
