"""Schedules disk jobs for the core, and holds messages until their Persist is durable, without threads or files.

    persist, queue_read             wait here for their turn on the disk
    may_send(effect) ──▶ bool       a message that waits for a Persist is held here
    next_job()       ──▶ WriteJob | ReadJob | …      one at a time; the server passes it to the disk
    written(job)     ──▶ messages that waited for it; the server then steps the core with Persisted(job.number)

*Order.* A Send with `after=n` leaves when Persist n is durable. If it depends only on term and vote, it leaves when
these are durable, which may be earlier on a full disk. A Send with `after=0` leaves immediately: a leader's disk does
not delay its heartbeats. Applies, replies to clients and role changes do not wait, so the executor does not handle
them. The core limits pending proposals and unwritten received entries, and so the waiting Persists. The server refuses
new proposals while `backlog_bytes` is too high.

The order of groups, reads and snapshots, and the work during a full disk (`HardStateJob`), are in
docs/explanation/storage.md, 'The order of disk jobs'.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import assert_never

from msgspec.structs import replace

from consensus.core.effects import CheckSnapshot, Persist, ReadEntries, ReadSnapshot, Send, StoreChunk
from consensus.core.log import entry_bytes
from consensus.core.messages import (
    AppendReply,
    BeginQuorumEpochReply,
    EndQuorumEpochReply,
    Message,
    SnapshotReply,
    VoteReply,
)
from consensus.storage.disk import DiskOperation
from consensus.storage.jobs import HardStateJob, Job, PreparationJob, ReadJob, SnapshotWrite, StorageRead, WriteJob
from consensus.storage.planner import Storage, writes_hard_state


class Executor:
    """The queue of the disk: jobs, and messages that wait for them."""

    def __init__(
        self,
        storage: Storage,
        group_bytes: int = 4 * 1024 * 1024,
        check_state: Callable[[Iterator[bytes]], str | None] = lambda _: None,
    ) -> None:
        self._storage = storage
        storage.prepare_ahead()
        self._check_state = check_state
        self._group_bytes = group_bytes
        self._emitted = 0
        self._durable = 0
        self._waiting: deque[tuple[Persist, int]] = deque()
        self._reads: deque[tuple[StorageRead | SnapshotWrite, int]] = deque()
        self._delayed_sends: deque[Send] = deque()
        self._job: Job | None = None
        self._blocked: WriteJob | None = None
        self._blocked_rest: tuple[DiskOperation, ...] = ()
        self._hard_state_durable = 0
        self._hard_state_emitted = 0
        self._job_bytes = 0
        self._waiting_bytes = 0
        self._wrote_last = False
        self._read_last = False
        self.groups = 0
        self.persists = 0

    @property
    def backlog_bytes(self) -> int:
        """Bytes of entries that are not durable yet."""
        return self._waiting_bytes + self._job_bytes

    @property
    def is_hard_state_durable(self) -> bool:
        """Return True if the newest term and vote are durable."""
        return self._hard_state_emitted <= max(self._durable, self._hard_state_durable)

    def persist(self, effect: Persist) -> None:
        """Queue a Persist."""
        size = persist_bytes(effect)
        self._waiting.append((effect, size))
        self._emitted = effect.number
        if effect.hard_state is not None:
            self._hard_state_emitted = effect.number
        self._waiting_bytes += size

    def may_send(self, send: Send) -> bool:
        """Return True if the message may leave now; otherwise hold it (see *Order*)."""
        if self._may_leave(send):
            return True
        self._delayed_sends.append(send)
        return False

    def queue_read(self, request: StorageRead) -> None:
        """Queue a read, which begins when all earlier Persists are durable.

        While a full disk blocks a group, a read of durable entries may begin earlier.
        """
        self._reads.append((request, self._emitted))

    def next_job(self) -> Job | None:
        """Return the next job for the disk; None while a job is under way, or without work."""
        if self._job is not None:
            return None
        self._job = self._choose() if self._blocked is None else self._choose_while_blocked()
        return self._job

    def written(self, job: WriteJob) -> list[Send]:
        """Complete `job` and return the messages that waited for it. The core must get `Persisted(job.number)` next."""
        if job is self._blocked:
            self._blocked = None
        else:
            self._end(job)
        self._job_bytes = 0
        self._storage.done()
        self._durable = job.number
        return self._release()

    def blocked(self, job: WriteJob, resume_at: int) -> list[Send]:
        """Hold `job`, which waits for space and resumes at operation `resume_at`; other work continues."""
        if job is not self._blocked:
            self._end(job)
            self._blocked = job
        self._blocked_rest = job.operations[resume_at:]
        if not writes_hard_state(self._blocked_rest):
            self._hard_state_durable = max(self._hard_state_durable, job.number)
        return self._release()

    def hard_state_written(self, job: HardStateJob) -> list[Send]:
        """Complete `job` and return the messages that waited for it."""
        self._end(job)
        self._hard_state_durable = job.number
        return self._release()

    def _release(self) -> list[Send]:
        """Return the held messages that may leave now, in order."""
        released: list[Send] = []
        still_delayed: deque[Send] = deque()
        for send in self._delayed_sends:
            (released if self._may_leave(send) else still_delayed).append(send)
        self._delayed_sends = still_delayed
        return released

    def _may_leave(self, send: Send) -> bool:
        return send.after <= self._durable or (send.after <= self._hard_state_durable and _needs_no_log(send.message))

    def write_aside(self, job: SnapshotWrite) -> None:
        """Queue a job that no Persist depends on, in the queue of reads."""
        self._reads.append((job, self._emitted if job.settle else 0))

    def read(self, job: ReadJob | SnapshotWrite) -> None:
        """Complete `job`. The caller replies to its request next."""
        self._end(job)

    def _end(self, job: Job) -> None:
        if job is not self._job:
            raise RuntimeError("a disk job ended that is not under way")
        self._job = None

    def prepared(self, job: PreparationJob) -> None:
        """Complete `job` after its performance or abandonment."""
        self._end(job)
        self._storage.prepared(given_up=job.given_up)

    def _choose(self) -> Job | None:
        aside = self._choose_aside() if self._wrote_last or not self._waiting else None
        if aside is not None:
            self._wrote_last = False
            return aside
        if not self._waiting:
            return None
        self._wrote_last = True
        group: list[Persist] = []
        while self._waiting and (not group or self._may_join(group[-1], *self._waiting[0])):
            persist, size = self._waiting.popleft()
            group.append(persist)
            self._job_bytes += size
        self._waiting_bytes -= self._job_bytes
        self.groups += 1
        self.persists += len(group)
        return WriteJob(group[-1].number, tuple(self._storage.plan(group)))

    def _choose_aside(self) -> ReadJob | SnapshotWrite | PreparationJob | None:
        """Return a job from the queue of reads, or a step of the log's next segment; the two kinds alternate."""
        readable = bool(self._reads) and self._reads[0][1] <= self._durable
        if not readable or self._read_last:
            operations = self._storage.plan_preparation()
            if operations:
                self._read_last = False
                return PreparationJob(tuple(operations))
        self._read_last = readable
        return self._begin_read(self._reads.popleft()[0]) if readable else None

    def _choose_while_blocked(self) -> HardStateJob | ReadJob | None:
        """Return a write of term and vote, or a read of durable entries that no waiting Persist may remove.

        Such a job does not need free space on the disk.
        """
        unwritten = [each for each, _ in self._waiting if each.hard_state and each.number > self._hard_state_durable]
        if unwritten and unwritten[-1].hard_state is not None and not writes_hard_state(self._blocked_rest):
            return HardStateJob(self._emitted, tuple(self._storage.plan_hard_state(unwritten[-1].hard_state)))
        for position, (request, _) in enumerate(self._reads):
            durable_part = self._durable_part(request)
            if durable_part is not None:
                del self._reads[position]
                return ReadJob(durable_part, self._storage.binding, extents=tuple(self._storage.extents(durable_part)))
        return None

    def _durable_part(self, request: StorageRead | SnapshotWrite) -> ReadEntries | None:
        """Return the part of the read that no waiting Persist may remove; None without such a part."""
        if not isinstance(request, ReadEntries) or any(each.snapshot is not None for each, _ in self._waiting):
            return None
        cuts = [each.truncate_from - 1 for each, _ in self._waiting if each.truncate_from is not None]
        last = min(request.last, self._storage.durable, *cuts)
        return replace(request, last=last) if request.first <= last else None

    def _may_join(self, newest: Persist, persist: Persist, size: int) -> bool:
        """Return True if one more Persist fits into the group; each change of the snapshot has its own group."""
        alone = newest.snapshot is not None or persist.snapshot is not None
        return not alone and self._job_bytes + size <= self._group_bytes

    def _begin_read(self, request: StorageRead | SnapshotWrite) -> ReadJob | SnapshotWrite:
        storage = self._storage
        match request:
            case SnapshotWrite():
                return request
            case ReadEntries():
                return ReadJob(request, storage.binding, extents=tuple(storage.extents(request)))
            case ReadSnapshot():
                return ReadJob(request, storage.binding, chunk=storage.chunk_extent(request))
            case CheckSnapshot():
                return ReadJob(request, storage.binding, check_state=self._check_state, form=storage.snapshot_form)
            case _:
                assert_never(request)


def _needs_no_log(message: Message) -> bool:
    """Return True if the message depends only on term and vote, so that it does not wait for entries."""
    match message:
        case VoteReply() | AppendReply(success=False) | SnapshotReply(accepted=False):
            return True
        case BeginQuorumEpochReply() | EndQuorumEpochReply():
            return True
        case _:
            return False


def persist_bytes(persist: Persist) -> int:
    """Return the number of bytes that a Persist adds to the backlog of the disk."""
    size = len(persist.encoded) or sum(map(entry_bytes, persist.entries))
    return size + len(persist.snapshot.data) if isinstance(persist.snapshot, StoreChunk) else size
