"""Takes snapshots: when the log has grown enough, when the last one is old, or on request.

    due ──▶ capture the state machine ──▶ core: TakeSnapshot ──▶ chunks to the disk, in its turns
                                                            └──▶ core: SnapshotTaken ──▶ a shorter log

The owner task never waits. The state machine returns an iterator over the state of one moment. Its bytes go to the disk
in chunks, each after the previous one is written. So a snapshot of any size costs one chunk of memory, and the disk's
writes for the log continue between chunks.

*Time.* As the paper recommends (section 7), a snapshot is taken when the log has a fixed size, well above the size of a
snapshot. With little traffic a snapshot is taken by age, so that a replay after a restart is short. While a follower
receives the snapshot, a new one would restart the transfer: it is postponed until the log has four times the fixed
size.

*Kept log.* A snapshot replaces entries. The last ones before its end remain, at most `retain_bytes`, for followers with
a short lag and for readers of the log. `keep_from` may keep fewer entries, such as by age. A reader cannot prevent the
removal of entries.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from math import inf

import trio

from consensus.core.effects import TakeSnapshot
from consensus.core.events import SnapshotTaken, SnapshotWanted
from consensus.core.model import Index, SnapshotDescription
from consensus.core.replication.progress import ProgressState
from consensus.core.status import RaftDescription
from consensus.server.applying import Applying
from consensus.server.errors import ServerStoppedError
from consensus.server.event_loop import now_ms, sleep_to_tick
from consensus.server.options import ServerOptions
from consensus.server.pending_calls import CallbackResult
from consensus.storage.disk import DiskOperation, RemoveFile
from consensus.storage.jobs import SnapshotWrite
from consensus.storage.planner import Storage
from consensus.storage.snapshots import CHUNK_BYTES, SnapshotWriter

_PATIENCE = 4


class Snapshotting:
    """The snapshots of one server.

    `step` steps the core and carries out its effects. `write_aside` queues a disk job that no Persist waits for;
    `written` is called afterwards. `describe` returns the state of the core.
    """

    def __init__(
        self,
        storage: Storage,
        applying: Applying,
        options: ServerOptions,
        keep_from: Callable[[], Index],
        step: Callable[[SnapshotWanted | SnapshotTaken], None],
        write_aside: Callable[[SnapshotWrite], None],
        describe: Callable[[], RaftDescription],
    ) -> None:
        self._step = step
        self._write_aside = write_aside
        self._describe = describe
        self._storage = storage
        self._applying = applying
        self._options = options
        self._keep_from = keep_from
        self._one_at_a_time = trio.Lock()
        self._life = trio.CancelScope()
        self._ended = False
        self._granted: TakeSnapshot | None = None
        self._side: tuple[SnapshotWrite, CallbackResult[SnapshotWrite]] | None = None
        self._taken_ms = now_ms()
        self.taken = 0
        self.given_up = 0

    async def run(self) -> None:
        """Take snapshots when they are due, until canceled."""
        try:
            while True:
                await sleep_to_tick(self._options.snapshot_check_ms / 1000)
                if self._is_due():
                    await self.take()
                elif not self._feeds_a_follower():
                    await self._until_grown_or_old()
        except ServerStoppedError:
            return  # the owner of the core raises the error

    async def _until_grown_or_old(self) -> None:
        """Wait until the state machine has applied another entry, or until the last snapshot is old."""
        left_ms = self._taken_ms + self._options.snapshot_age_ms - now_ms()
        with trio.move_on_after(left_ms / 1000 if left_ms > 0 else inf):
            await self._applying.wait_applied(self._applying.applied + 1)

    async def take(self) -> SnapshotDescription | None:
        """Store a snapshot now; return None without new entries, without space, or if it became outdated."""
        async with self._one_at_a_time:
            if not self._ended:
                with trio.CancelScope() as self._life:
                    return await self._take()
        raise ServerStoppedError("the server has stopped")

    def end(self) -> None:
        """Stop taking snapshots."""
        self._ended = True
        self._life.cancel()

    async def _take(self) -> SnapshotDescription | None:
        index, state = await self._applying.capture()
        self._granted = None
        self._step(SnapshotWanted(index))
        granted = self._granted
        if granted is None:
            return None
        self._taken_ms = now_ms()
        writer = SnapshotWriter(granted.last, granted.configuration, self._storage.snapshot_form)
        operations, pending = writer.plan_begin(), bytearray()
        async with aclosing(_chunks_of(state)) as chunks:
            async for chunk in chunks:
                pending += chunk
                if len(pending) >= CHUNK_BYTES:
                    if not await self._write(writer, operations + writer.plan(bytes(pending))):
                        return None
                    operations = []
                    pending.clear()
        if not await self._write(writer, operations + writer.plan(bytes(pending)) + writer.plan_end()):
            return None
        return await self._finish(writer)

    def granted(self, effect: TakeSnapshot) -> None:
        """Process the core's approval, which has the last entry and the configuration of the snapshot."""
        self._granted = effect

    def written(self, job: SnapshotWrite) -> None:
        """Complete a disk job; ignore a job of a canceled snapshot."""
        if self._side is not None and self._side[0] is job:
            self._side[1].give(job)

    def _is_due(self) -> bool:
        covered = self._storage.snapshot.last.index if self._storage.snapshot is not None else 0
        if self._applying.applied <= covered:
            return False
        limit = self._options.snapshot_log_bytes * (_PATIENCE if self._feeds_a_follower() else 1)
        old = now_ms() - self._taken_ms >= self._options.snapshot_age_ms
        return self._storage.log_bytes >= limit or (old and not self._feeds_a_follower())

    async def _finish(self, writer: SnapshotWriter) -> SnapshotDescription | None:
        snapshot = writer.description
        first_kept = max(self._storage.first_within(snapshot.last.index, self._options.retain_bytes), self._keep_from())
        before = self._storage.snapshot
        self._step(SnapshotTaken(snapshot, first_kept))
        # If a Persist makes this file the stored snapshot, it precedes this job in the queue.
        await self._write(writer, [], settle=True)
        if self._storage.snapshot is before or self._storage.snapshot != snapshot:
            await self._write(writer, [RemoveFile(writer.file)])
            return None
        self.taken += 1
        return snapshot

    async def _write(self, writer: SnapshotWriter, operations: list[DiskOperation], *, settle: bool = False) -> bool:
        job = SnapshotWrite(tuple(operations), writer.file, settle=settle)
        result = CallbackResult[SnapshotWrite]()
        self._side = job, result
        self._write_aside(job)
        done = await result.wait()
        self._side = None
        if done is None or done.given_up:
            self.given_up += 1
            return False
        return True

    def _feeds_a_follower(self) -> bool:
        return any(follower.state is ProgressState.SNAPSHOT for follower in self._describe().followers)


async def _chunks_of(state: Iterator[bytes] | AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(state, AsyncIterator):
        async for chunk in state:
            yield chunk
    else:
        for chunk in state:
            yield chunk
            await trio.lowlevel.checkpoint()
