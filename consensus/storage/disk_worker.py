"""The disk worker: performs one job at a time, and retries on a full disk.

A full disk blocks a *group* of Persists (`WriteJob`). Every `retry_ms`, the worker resumes the group at the place in
`OutOfSpaceError`, until there is space. Between two tries the worker performs other jobs of the executor: votes and
reads. On a full disk, a job that no other work depends on is abandoned. Any other error ends the worker, and with it
the server: after a failed sync the content of the disk is unknown.

*Groups* are on the critical path of each entry, on the leader and on followers. So `submit` passes a group to the disk
directly. The disk reports its end within this call, or in a later turn of the event loop. The worker's task retries
blocked groups, and performs all other jobs.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, assert_never

import trio
from msgspec import Struct

from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk import STOP_SECONDS, DiskHangsError, DiskOperation, DiskReader, RemoveFile
from consensus.storage.jobs import (
    HardStateJob,
    Job,
    PreparationJob,
    ReadJob,
    SnapshotWrite,
    StorageReadResult,
    WriteJob,
)


class ServerDisk(Protocol):
    """A disk whose methods do not block the event loop: `ThreadedDisk`, or a disk of a test."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Carry out operations from number `start` on; raises `OutOfSpaceError` or `OSError`."""

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """Carry out operations; `ended` gets the error, or None, within this call or in a later turn of the loop."""

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Return the result of `question`, which reads the disk; raises `StorageError` or `OSError`."""


class _Blocked(Struct, frozen=True):
    """A group that waits for space, its place to resume, and the time of the next try (by the clock of trio)."""

    job: WriteJob
    resume_at: int
    retry_at_s: float


class _Failed(Struct, frozen=True):
    """A group that the disk has not carried out, and the error."""

    job: WriteJob
    error: Exception


class DiskWorker:
    """The worker of one disk: it takes each job from `submit`, and calls `done(job, answer)` after it.

    It calls `blocked(job, resume_at)` if a group does not find space, and `unblocked` when the whole group is written.
    """

    def __init__(
        self,
        disk: ServerDisk,
        done: Callable[[Job, StorageReadResult | None], None],
        blocked: Callable[[WriteJob, int], None],
        unblocked: Callable[[], None],
        retry_ms: int,
    ) -> None:
        self._disk = disk
        self._done = done
        self._report_blocked = blocked
        self._report_unblocked = unblocked
        self._retry_ms = retry_ms
        self._jobs, self._jobs_to_do = trio.open_memory_channel[Job | _Failed](1)
        self._blocked: _Blocked | None = None
        self._is_writing = False
        """True while the disk performs a group that `submit` has passed to it directly."""
        self._written = trio.Event()

    def submit(self, job: Job) -> None:
        """Begin a job; the previous one must be done, or blocked."""
        if isinstance(job, WriteJob) and self._blocked is None:
            self._is_writing = True
            self._disk.begin(job.operations, partial(self._ended, job))
        else:
            self._jobs.send_nowait(job)

    async def run(self) -> None:
        """Perform jobs until canceled, or until the disk fails; finish a write under way.

        Raises `DiskHangsError` if that takes longer than `STOP_SECONDS`.
        """
        try:
            await self._work()
        finally:
            with trio.move_on_after(STOP_SECONDS, shield=True):
                while self._is_writing:
                    self._written = trio.Event()
                    await self._written.wait()
            if self._is_writing:
                raise DiskHangsError

    def _ended(self, job: WriteJob, error: Exception | None) -> None:
        self._is_writing = False
        self._written.set()
        if error is None:
            self._done(job, None)
        else:
            self._jobs.send_nowait(_Failed(job, error))

    async def _work(self) -> None:
        while True:
            job = await self._next_job()
            answer: StorageReadResult | None = None
            match job:
                case WriteJob():
                    if not await self._write(job):
                        continue
                case HardStateJob(operations=operations):
                    await self._overwrite(operations)
                case ReadJob():
                    answer = await self._disk.ask(job.answer)
                case SnapshotWrite() | PreparationJob():
                    await self._write_aside(job)
                case _Failed():
                    self._fail(job)
                    continue
                case _:
                    assert_never(job)
            self._done(job, answer)
            del job, answer  # They hold the bytes of a read, or a megabyte of zeros, until the next job.

    async def _next_job(self) -> Job | _Failed:
        """Return the submitted job, or the blocked group at its next try."""
        if self._blocked is None:
            return await self._jobs_to_do.receive()
        with trio.move_on_at(self._blocked.retry_at_s):
            return await self._jobs_to_do.receive()
        return self._blocked.job

    async def _write(self, job: WriteJob) -> bool:
        """Perform a group, or its remaining part; return False if the disk is full."""
        before, self._blocked = self._blocked, None
        try:
            await self._disk.perform_all(job.operations, 0 if before is None else before.resume_at)
        except OutOfSpaceError as error:
            self._block(job, error)
            return False
        self._report_unblocked()
        return True

    def _fail(self, failed: _Failed) -> None:
        if not isinstance(failed.error, OutOfSpaceError):
            raise failed.error
        self._block(failed.job, failed.error)

    def _block(self, job: WriteJob, error: OutOfSpaceError) -> None:
        self._blocked = _Blocked(job, error.resume_at, trio.current_time() + self._retry_ms / 1000)
        self._report_blocked(job, error.resume_at)

    async def _overwrite(self, operations: Sequence[DiskOperation]) -> None:
        """Perform operations that overwrite bytes; only some file systems need space for them."""
        start = 0
        while True:
            try:
                await self._disk.perform_all(operations, start)
            except OutOfSpaceError as error:
                start = error.resume_at
                await trio.sleep(self._retry_ms / 1000)
            else:
                return

    async def _write_aside(self, job: SnapshotWrite | PreparationJob) -> None:
        """Perform a job that no other work depends on; on a full disk remove its file and mark it as abandoned.

        A file system at its quota may refuse the removal. Then the next use of this file, or the next start, removes
        the content.
        """
        try:
            await self._disk.perform_all(job.operations)
        except OutOfSpaceError:
            with suppress(OutOfSpaceError):
                await self._disk.perform_all((RemoveFile(job.file),))
            job.given_up = True
