"""The executor's guarantees: sends wait for durability, persists merge into groups, and reads see earlier persists."""

from random import Random

from consensus.core.effects import Persist, ReadEntries, Send
from consensus.core.messages import AppendReply
from consensus.core.model import Entry, HardState
from consensus.server.executor import Executor
from consensus.storage.jobs import PreparationJob, ReadJob, WriteJob
from consensus.storage.planner import Owner, StorageOptions, read_extents, recover
from tests.node.crash_disk import CrashDisk

PEER = 2
SMALL = StorageOptions(segment_bytes=64 * 1024)


def machine(group_bytes: int = 10_000) -> tuple[Executor, CrashDisk]:
    disk = CrashDisk()
    recovery = recover(disk, Owner(b"node-one", 1, 1), bytes(16), SMALL)
    disk.run(recovery.operations)
    return Executor(recovery.storage, group_bytes), disk


def persist(number: int, first: int | None = None, size: int = 10) -> Persist:
    entries = () if first is None else (Entry.command(1, b"%d" % number * size),)
    return Persist(number=number, hard_state=HardState(number), truncate_from=None, first=first or 0, entries=entries)


def send(tag: int, after: int = 0) -> Send:
    return Send(PEER, AppendReply(term=1, success=True, next_index=1, correlation=tag), after)


def write(executor: Executor) -> WriteJob:
    job = executor.next_job()
    assert isinstance(job, WriteJob)
    return job


def accept(executor: Executor, effects: list[Persist | Send | ReadEntries]) -> list[Send]:
    """Pass effects to the executor as a server does, and return the sends that may leave immediately."""
    released: list[Send] = []
    for effect in effects:
        match effect:
            case Persist():
                executor.persist(effect)
            case Send():
                released += [effect] if executor.may_send(effect) else []
            case ReadEntries():
                executor.queue_read(effect)
    return released


def test_send_waits_only_for_its_persist() -> None:
    executor, _ = machine()
    held, free = send(1, after=1), send(2)
    assert accept(executor, [persist(1, 1), held, free]) == [free]
    assert executor.written(write(executor)) == [held]


def test_held_sends_leave_in_order_of_emission() -> None:
    executor, _ = machine()
    accept(executor, [persist(1, 1), send(1, after=1), persist(2, 2), send(2, after=2), send(3, after=1)])
    assert executor.written(write(executor)) == [send(1, after=1), send(2, after=2), send(3, after=1)]


def test_persists_during_write_become_one_group() -> None:
    executor, _ = machine()
    accept(executor, [persist(1, 1)])
    first = write(executor)
    accept(executor, [persist(2, 2), send(2, after=2), persist(3, 3), send(3, after=3)])
    assert executor.next_job() is None
    assert executor.written(first) == []
    second = write(executor)
    assert second.number == 3
    assert executor.written(second) == [send(2, after=2), send(3, after=3)]
    assert (executor.groups, executor.persists) == (2, 3)


def test_group_is_bounded_in_bytes() -> None:
    executor, _ = machine(group_bytes=3_000)
    accept(executor, [persist(n, n, size=1_000) for n in range(1, 6)])
    backlog = executor.backlog_bytes
    assert backlog > 5_000
    numbers = []
    while (job := executor.next_job()) is not None:
        assert isinstance(job, WriteJob)
        numbers.append(job.number)
        executor.written(job)
    assert numbers == [2, 4, 5]
    assert executor.backlog_bytes == 0


def test_send_after_durable_persist_leaves_immediately() -> None:
    executor, _ = machine()
    accept(executor, [persist(1)])
    executor.written(write(executor))
    assert accept(executor, [send(9, after=1)]) == [send(9, after=1)]


def test_read_sees_all_earlier_persists() -> None:
    executor, disk = machine()
    accept(executor, [persist(1, 1), persist(2, 2)])
    job = write(executor)
    disk.run(job.operations)
    executor.written(job)
    replacement = Entry.command(2, b"new")
    accept(
        executor,
        [
            Persist(number=3, hard_state=HardState(3), truncate_from=2, first=2, entries=(replacement,)),
            ReadEntries(request_id=7, first=1, last=2, limit_bytes=10_000),
        ],
    )
    job = write(executor)
    disk.run(job.operations)
    executor.written(job)
    read = executor.next_job()
    assert isinstance(read, ReadJob)
    assert read_extents(disk, read.binding, read.extents, 10**6)[1] == replacement
    executor.read(read)
    assert executor.next_job() is None


def test_reads_alternate_with_writes() -> None:
    executor, _ = machine(group_bytes=1)
    accept(executor, [persist(1, 1)])
    executor.written(write(executor))
    accept(executor, [ReadEntries(request_id=n, first=1, last=1, limit_bytes=10) for n in range(1, 4)])
    accept(executor, [persist(n, n) for n in range(2, 5)])
    kinds = []
    while (job := executor.next_job()) is not None:
        kinds.append(type(job))
        if isinstance(job, WriteJob):
            executor.written(job)
        else:
            assert isinstance(job, ReadJob)
            executor.read(job)
    assert kinds == [ReadJob, WriteJob] * 3


def test_sends_are_released_only_after_durable_persist() -> None:
    for seed in range(50):
        random = Random(seed)
        executor, _ = machine(group_bytes=200)
        durable = number = first = 0
        for _ in range(200):
            if random.random() < 0.5:
                number += 1
                first += 1
                after = random.randint(0, number)
                released = accept(executor, [persist(number, first), send(number, after)])
            elif isinstance(job := executor.next_job(), WriteJob):
                durable = job.number
                released = executor.written(job)
            else:
                released = []
                if isinstance(job, PreparationJob):
                    executor.prepared(job)
            assert all(effect.after <= durable for effect in released), f"seed {seed}"
