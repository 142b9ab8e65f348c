"""The disk worker passes a group of writes to the disk immediately, and reports the group's end immediately.

It completes all started work before it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk import DiskOperation, DiskReader, SyncFile, WriteBytes
from consensus.storage.disk_worker import DiskWorker
from consensus.storage.jobs import Job, SnapshotWrite, StorageReadResult, WriteJob

GROUP = WriteJob(1, (SyncFile("log"),))
Ended = Callable[[Exception | None], None]


@dataclass
class PausedDisk:
    """A disk. Groups that `begin` starts stay in progress until a test ends them; `perform_all` does not wait."""

    started: list[Ended] = field(default_factory=list)
    performed: list[int] = field(default_factory=list)
    """Start indexes of the operations that the worker's task performed."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Complete the operations immediately."""
        del operations
        await trio.lowlevel.checkpoint()
        self.performed.append(start)

    def begin(self, operations: Sequence[DiskOperation], ended: Ended) -> None:
        """Record a started group."""
        del operations
        self.started.append(ended)

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Fail the test: a group of writes does not read."""
        raise AssertionError(f"a group of writes must not read: {question}")


class FullDisk(PausedDisk):
    """A disk that refuses each change."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Refuse the operations."""
        del operations
        await trio.lowlevel.checkpoint()
        raise OutOfSpaceError(start)


@dataclass
class Reports:
    """A worker with its recorded reports."""

    disk: PausedDisk = field(default_factory=PausedDisk)
    done: list[Job] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)
    unblocked: int = 0

    def __post_init__(self) -> None:
        """Make the worker, which retries after 50 ms."""
        self.worker = DiskWorker(self.disk, self._finish, lambda _, at: self.blocked.append(at), self._unblock, 50)
        self.finished = trio.Event()

    def _finish(self, job: Job, _: StorageReadResult | None) -> None:
        self.done.append(job)
        self.finished.set()

    def _unblock(self) -> None:
        self.unblocked += 1


def test_group_is_written_without_workers_task() -> None:
    reports = Reports()
    reports.worker.submit(GROUP)
    [ended] = reports.disk.started
    assert reports.done == []
    ended(None)
    assert reports.done == [GROUP]


async def test_group_without_space_resumes_at_failed_operation(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    reports = Reports()
    nursery.start_soon(reports.worker.run)
    # Given a group that does not fit on the disk
    reports.worker.submit(GROUP)
    reports.disk.started.pop()(OutOfSpaceError(3))
    await trio.testing.wait_all_tasks_blocked()
    assert (reports.blocked, reports.done, reports.unblocked) == ([3], [], 0)
    # When the worker retries
    began_s = trio.current_time()
    await reports.finished.wait()
    # Then it resumes at the failed operation, and reports the end
    assert (reports.disk.performed, reports.done, reports.unblocked) == ([3], [GROUP], 1)
    assert trio.current_time() - began_s >= 0.05


async def test_full_disk_that_refuses_removal_does_not_end_worker(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A file system at its quota, such as ZFS, may refuse even the removal of a file."""
    reports = Reports(FullDisk())
    job = SnapshotWrite((WriteBytes("taken", 0, b"state"),), "taken")
    nursery.start_soon(reports.worker.run)
    reports.worker.submit(job)
    await reports.finished.wait()
    assert (reports.done, job.given_up) == ([job], True)


async def test_disk_error_ends_worker() -> None:
    reports = Reports()
    reports.worker.submit(GROUP)
    reports.disk.started.pop()(OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        await reports.worker.run()
    assert reports.done == []


async def test_started_writes_end_before_worker_ends() -> None:
    """After the worker has ended, the log is complete, so the storage may be closed."""
    reports = Reports()
    ends: list[str] = []

    async def run() -> None:
        try:
            await reports.worker.run()
        finally:
            ends.append("the worker")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        reports.worker.submit(GROUP)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert ends == []
            reports.disk.started.pop()(None)
    assert (reports.done, ends) == ([GROUP], ["the worker"])
