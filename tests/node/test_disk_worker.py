"""The disk worker: a group goes to the disk at once, its end is told at once, and nothing that has begun is left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk import DiskOperation, DiskReader, SyncFile
from consensus.storage.disk_worker import DiskWorker
from consensus.storage.jobs import Job, StorageReadResult, WriteJob

GROUP = WriteJob(1, (SyncFile("log"),))
Ended = Callable[[Exception | None], None]


@dataclass
class HeldDisk:
    """A disk that has begun a group until a test ends it."""

    begun: list[Ended] = field(default_factory=list)
    performed: list[int] = field(default_factory=list)
    """From which operation on the worker's task has carried out what is left of a group."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Done at once."""
        del operations
        await trio.lowlevel.checkpoint()
        self.performed.append(start)

    def begin(self, operations: Sequence[DiskOperation], ended: Ended) -> None:
        """Begun."""
        del operations
        self.begun.append(ended)

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Fails the test: a group of writes asks the disk nothing."""
        raise AssertionError(f"the disk is asked {question}")


@dataclass
class Told:
    """A worker, and what it tells."""

    disk: HeldDisk = field(default_factory=HeldDisk)
    done: list[Job] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)
    unblocked: int = 0

    def __post_init__(self) -> None:
        """Make the worker, which tries again after 50 ms."""
        self.worker = DiskWorker(self.disk, self._finish, lambda _, at: self.blocked.append(at), self._unblock, 50)
        self.finished = trio.Event()

    def _finish(self, job: Job, _: StorageReadResult | None) -> None:
        self.done.append(job)
        self.finished.set()

    def _unblock(self) -> None:
        self.unblocked += 1


def test_a_group_goes_to_the_disk_and_its_end_is_told_without_a_task() -> None:
    told = Told()
    told.worker.submit(GROUP)
    [ended] = told.disk.begun
    assert told.done == []
    ended(None)
    assert told.done == [GROUP]


async def test_a_group_without_space_is_taken_up_where_it_stopped(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    told = Told()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.worker.run)
        # Given a group that the disk has no space for
        told.worker.submit(GROUP)
        told.disk.begun.pop()(OutOfSpaceError(3))
        await trio.testing.wait_all_tasks_blocked()
        assert (told.blocked, told.done, told.unblocked) == ([3], [], 0)
        # When it is tried again
        began_s = trio.current_time()
        await told.finished.wait()
        # Then it goes on from there, and is told as done
        assert (told.disk.performed, told.done, told.unblocked) == ([3], [GROUP], 1)
        assert trio.current_time() - began_s >= 0.05
        nursery.cancel_scope.cancel()


async def test_an_error_of_the_disk_ends_the_worker() -> None:
    told = Told()
    told.worker.submit(GROUP)
    told.disk.begun.pop()(OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        await told.worker.run()
    assert told.done == []


async def test_what_the_disk_has_begun_is_finished_and_told_before_the_worker_ends() -> None:
    """After that the storage may be closed, and the log is known to be whole."""
    told = Told()
    ends: list[str] = []

    async def run() -> None:
        try:
            await told.worker.run()
        finally:
            ends.append("the worker")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        told.worker.submit(GROUP)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert ends == []
            told.disk.begun.pop()(None)
    assert (told.done, ends) == ([GROUP], ["the worker"])
