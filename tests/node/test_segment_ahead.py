"""Preparation of the log's next segment: its file, the spare, is filled with zeros before it is needed.

Therefore a group of entries that begins a new segment does not also write the zeros.
"""

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from consensus.core.effects import Persist, ReadEntries
from consensus.core.model import Entry
from consensus.server.executor import Executor
from consensus.storage.directory import Directory, OutOfSpaceError, open_directory
from consensus.storage.disk import CreateFile, DiskOperation, RemoveFile, SyncFile, WriteBytes
from consensus.storage.jobs import PreparationJob, ReadJob, WriteJob
from consensus.storage.journal import SMALL_SEGMENT_BYTES, SPARE, STEP_BYTES
from consensus.storage.planner import Owner, StorageOptions, recover
from consensus.storage.records import SEGMENT_HEADER_BYTES
from consensus.storage.verification import verify_storage
from tests.effort import over_seeds
from tests.node.crash_disk import CrashDisk
from tests.node.memory_server import MemoryDisk, leader_alone

SEGMENT_BYTES = 4 * 1024 * 1024
OPTIONS = StorageOptions(segment_bytes=SEGMENT_BYTES, tail_entries=10)
NODE = Owner(b"node-one", 1, 1)
ENTRY_BYTES = 3_000


def written_bytes(operations: tuple[DiskOperation, ...]) -> int:
    """Return the number of bytes that a job writes, including zeros."""
    return sum(
        operation.size_bytes if isinstance(operation, CreateFile) else len(operation.data)
        for operation in operations
        if isinstance(operation, CreateFile | WriteBytes)
    )


class Log:
    """A log that grows by entries of the same size, on a disk in memory."""

    def __init__(self, options: StorageOptions = OPTIONS) -> None:
        self.disk = CrashDisk()
        recovery = recover(self.disk, NODE, bytes(16), options)
        self.disk.run(recovery.operations)
        self.storage = recovery.storage
        self.executor = Executor(recovery.storage, 64 * 1024)
        self.groups: list[WriteJob] = []
        self.steps: list[PreparationJob] = []
        self.number = 0

    def append(self, count: int) -> None:
        """Queue entries for the disk, one Persist each."""
        for _ in range(count):
            self.number += 1
            entry = Entry.command(1, bytes([1]) * ENTRY_BYTES)
            self.executor.persist(
                Persist(number=self.number, hard_state=None, truncate_from=None, first=self.number, entries=(entry,))
            )

    def work(self, jobs: int = 1_000_000) -> None:
        """Run the next jobs of the disk."""
        for _ in range(jobs):
            job = self.executor.next_job()
            match job:
                case None:
                    return
                case WriteJob():
                    self.disk.run(job.operations)
                    self.executor.written(job)
                    self.groups.append(job)
                case PreparationJob():
                    self.disk.run(job.operations)
                    self.executor.prepared(job)
                    self.steps.append(job)
                case ReadJob():
                    job.answer(self.disk)
                    self.executor.read(job)
                case _:
                    raise AssertionError(job)

    def excess_bytes(self) -> int:
        """Return the largest number of bytes that a group wrote beyond its entries."""
        entries = 0
        most = 0
        for group in self.groups:
            most = max(most, written_bytes(group.operations) - (group.number - entries) * (ENTRY_BYTES + 100))
            entries = group.number
        return most


def test_group_crossing_boundary_does_not_write_zeros() -> None:
    log = Log()
    log.work()
    for _ in range(400):
        log.append(10)
        log.work()
    assert log.storage.segment_count >= 3
    assert log.excess_bytes() <= SEGMENT_HEADER_BYTES
    assert max(written_bytes(step.operations) for step in log.steps) == STEP_BYTES


def test_segment_is_ready_under_load_with_reads() -> None:
    log = Log()
    log.work()
    # Given that a group and a read are always waiting
    for _ in range(1_000):
        log.append(4)
        log.executor.queue_read(ReadEntries(request_id=log.number, first=1, last=1, limit_bytes=10))
        log.work(2)
    assert log.executor._reads
    assert log.storage.segment_count >= 3
    assert log.excess_bytes() <= SEGMENT_HEADER_BYTES
    assert max(written_bytes(step.operations) for step in log.steps) <= STEP_BYTES


def test_segment_preparation_takes_few_steps_per_append() -> None:
    log = Log()
    log.work()
    log.append(10)
    log.work()
    assert log.storage.segment_count == 1
    before = len(log.steps)
    log.append(100)
    log.work()
    assert len(log.steps) - before <= 100 * (ENTRY_BYTES + 100) * 2 // STEP_BYTES + 1


def test_incomplete_spare_is_adopted() -> None:
    early = Log()
    early.work(jobs=6)
    early.append(1)
    early.work(jobs=2)
    assert written_bytes(early.groups[0].operations) < SEGMENT_HEADER_BYTES + ENTRY_BYTES + 100
    first = Log()
    first.append(1)
    first.work(jobs=2)
    assert written_bytes(first.groups[0].operations) < SMALL_SEGMENT_BYTES + SEGMENT_HEADER_BYTES + ENTRY_BYTES + 100


@over_seeds(20)
def test_half_prepared_segment_is_removed_after_crash(seed: int) -> None:
    random, log = Random(seed), Log()
    durable = 0
    for _ in range(random.randint(1, 60)):
        log.append(random.randint(0, 60))
        log.work(jobs=random.randint(0, 12))
    durable = log.groups[-1].number if log.groups else 0
    job = log.executor.next_job()
    if isinstance(job, WriteJob | PreparationJob):
        log.disk.run(job.operations[: random.randint(0, len(job.operations))])
    disk = log.disk.crash(random)
    again = recover(disk, NODE, bytes(16), OPTIONS)
    assert again.log.last.index >= durable, f"seed {seed}"
    assert (SPARE in disk.files()) == (RemoveFile(SPARE) in again.operations), f"seed {seed}"
    disk.run(again.operations)
    assert SPARE not in disk.files()


def test_abandoned_preparation_is_retried_after_more_entries() -> None:
    log = Log()
    log.work()
    log.append(10)
    log.work()
    log.append(100)
    log.work(jobs=1)
    job = log.executor.next_job()
    while not isinstance(job, PreparationJob):
        assert isinstance(job, WriteJob)
        log.disk.run(job.operations)
        log.executor.written(job)
        job = log.executor.next_job()
    log.disk.run([RemoveFile(job.file)])
    job.given_up = True
    log.executor.prepared(job)
    steps = len(log.steps)
    log.append(1)
    log.work()
    assert len(log.steps) == steps
    log.append(SEGMENT_BYTES // 16 // ENTRY_BYTES + 1)
    log.work()
    assert len(log.steps) > steps


async def test_append_across_boundary_does_not_wait_for_zeros(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:

    class Counting(MemoryDisk):
        def run(self, operations: Sequence[DiskOperation]) -> None:
            groups.append(tuple(operations))
            super().run(operations)

    groups: list[tuple[DiskOperation, ...]] = []
    disk = Counting()
    node = await leader_alone(nursery, disk)
    segments = node.server.describe().segments
    for _ in range(120):
        groups.clear()
        await node.server.propose((bytes([1]) * 9_000,))
        steps = [each for each in groups if all(_is_of_spare(operation) for operation in each)]
        others = sum(written_bytes(each) for each in groups if each not in steps)
        assert others <= 9_000 + 200 + SEGMENT_HEADER_BYTES
    assert node.server.describe().segments >= segments + 3


def _is_of_spare(operation: DiskOperation) -> bool:
    """Return True if the operation belongs to a preparation step."""
    return isinstance(operation, CreateFile | WriteBytes | SyncFile) and operation.file == SPARE


def test_spare_is_renamed_to_segment_on_real_disk(tmp_path: Path) -> None:
    disk, recovery = open_directory(tmp_path / "raft", b"node-one", 1, StorageOptions(segment_bytes=64 * 1024))
    executor = Executor(recovery.storage)
    for number in range(1, 60):
        executor.persist(
            Persist(
                number=number,
                hard_state=None,
                truncate_from=None,
                first=number,
                entries=(Entry.command(1, b"x" * ENTRY_BYTES),),
            )
        )
        while (job := executor.next_job()) is not None:
            assert isinstance(job, WriteJob | PreparationJob)
            disk.perform_all(job.operations)
            if isinstance(job, WriteJob):
                executor.written(job)
            else:
                executor.prepared(job)
    disk.perform_all(recovery.storage.plan_close())
    disk.close()
    assert (tmp_path / "raft" / SPARE).exists()
    assert recovery.storage.segment_count == 3
    assert verify_storage(tmp_path / "raft").repairs == []
    disk, again = open_directory(tmp_path / "raft", b"node-one", 2, StorageOptions(segment_bytes=64 * 1024))
    disk.close()
    assert again.log.last.index == 59
    assert not (tmp_path / "raft" / SPARE).exists()


def test_preparation_on_full_disk_raises_out_of_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, recovery = open_directory(tmp_path / "raft", b"node-one", 1, StorageOptions(segment_bytes=64 * 1024))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    operations = recovery.storage.plan_preparation()
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OutOfSpaceError):
        disk.perform_all(operations)
    assert not (tmp_path / "raft" / SPARE).exists()
    assert isinstance(disk, Directory)
    disk.close()
