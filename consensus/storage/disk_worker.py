"""The disk worker: performs one job at a time, and waits out a full disk.

Everything else that goes wrong ends it, and with it the server: after a failed sync nobody knows what the
disk holds. A job that met a full disk is resumed where `OutOfSpaceError` says, every `retry_ms`, until there is space.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

import trio

from consensus.server.executor import Job, ReadJob, SnapshotWrite, StorageReadResult, WriteJob
from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk import DiskOperation, DiskReader, RemoveFile


class ServerDisk(Protocol):
    """A disk that one does not block on: `ThreadedDisk`, or one of a test."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations from number `start` on; raises `OutOfSpaceError` or `OSError`."""

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Have a question answered from the disk; raises `StorageError` or `OSError`."""


class DiskWorker:
    """Give it a job by `submit`; it answers by `done(job, answer)`, and tells by `set_full` when the disk fills."""

    def __init__(
        self,
        disk: ServerDisk,
        done: Callable[[Job, StorageReadResult | None], None],
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
            answer: StorageReadResult | None = None
            match job:
                case WriteJob(operations=operations):
                    await self._write(operations)
                case ReadJob():
                    answer = await self._disk.ask(job.answer)
                case SnapshotWrite():
                    await self._write_aside(job)
                case _:
                    assert_never(job)
            self._done(job, answer)

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

    async def _write_aside(self, job: SnapshotWrite) -> None:
        """Nothing waits for this: what finds no space gives back what it took, and is told as given up."""
        try:
            await self._disk.perform_all(job.operations)
        except OutOfSpaceError:
            await self._disk.perform_all((RemoveFile(job.file),))
            job.given_up = True
