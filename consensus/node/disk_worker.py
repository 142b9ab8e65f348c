"""The disk worker: performs one job at a time, and waits out a full disk.

Everything else that goes wrong ends it, and with it the server: after a failed sync nobody knows what the
disk holds. A job that met a full disk is resumed where `OutOfSpaceError` says, every `retry_ms`, until there is space.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

import trio

from consensus.core.position import Entry
from consensus.node.directory import OutOfSpaceError
from consensus.node.disk import DiskOperation
from consensus.node.executor import Job, ReadJob, WriteJob
from consensus.node.journal import Extent
from consensus.wire.record import Binding


class ServerDisk(Protocol):
    """A disk that one does not block on: `ThreadedDisk`, or one of a test."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations from number `start` on; raises `OutOfSpaceError` or `OSError`."""

    async def read_extents(self, binding: Binding, extents: Sequence[Extent]) -> tuple[Entry, ...]:
        """Read and check entries; raises `StorageError` or `OSError`."""


class DiskWorker:
    """Give it a job by `submit`; it answers by `done(job, entries)`, and tells by `set_full` when the disk fills."""

    def __init__(
        self,
        disk: ServerDisk,
        done: Callable[[Job, tuple[Entry, ...]], None],
        set_full: Callable[[bool], None],
        retry_ms: int,
    ) -> None:
        self._disk = disk
        self._done = done
        self._set_full = set_full
        self._retry_ms = retry_ms
        self._jobs, self._jobs_to_do = trio.open_memory_channel[Job](1)

    def submit(self, job: Job) -> None:
        """Begin a job; the one before must be done."""
        self._jobs.send_nowait(job)

    async def run(self) -> None:
        """Work until cancelled, or until the disk fails."""
        async for job in self._jobs_to_do:
            entries: tuple[Entry, ...] = ()
            match job:
                case WriteJob(operations=operations):
                    await self._write(operations)
                case ReadJob(binding=binding, extents=extents):
                    if extents:
                        entries = await self._disk.read_extents(binding, extents)
                case _:
                    assert_never(job)
            self._done(job, entries)

    async def _write(self, operations: Sequence[DiskOperation]) -> None:
        start = 0
        while True:
            try:
                await self._disk.perform_all(operations, start)
            except OutOfSpaceError as error:
                start = error.resume_at
                self._set_full(True)  # noqa: FBT003 - the one fact that this callback carries
                await trio.sleep(self._retry_ms / 1000)
            else:
                self._set_full(False)  # noqa: FBT003 - the one fact that this callback carries
                return
