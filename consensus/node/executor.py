"""Carries out a core's effects in the order that durability demands: a planner, without threads or files.

    accept(effects) ──▶ effects to carry out now        what waits for a Persist is held
    next_job()      ──▶ WriteJob | ReadJob | None       one at a time; the shell performs it on the disk
    written(job)    ──▶ Sends that waited for it; the shell then steps the core with Persisted(job.number)

*Group commit.* While one write is under way, Persists gather; the next job carries them all, with one sync. Nobody
waits for a timer: at low load a group is one Persist, at high load it grows until the disk keeps up. A group is bounded
(`group_bytes`), so that a burst does not delay its own first acknowledgement.

*Order.* A Send with `after=n` leaves when Persist n is durable, never before; those that waited leave in the order in
which they were emitted. A Send with `after=0` leaves at once: a leader's heartbeats and appends are not held up by its
own disk. Applies, answers to clients and role changes wait for nothing; the core emits them when they are true.

*Reads* and writes take turns, so that a follower that must be fed from disk neither starves commits nor is starved. A
read sees every Persist that was emitted before it: while one of those waits, the disk may still hold the entries that
it is going to truncate, which were never committed.

Bounds: what waits is what the core has emitted and not yet seen durable, and the core bounds that by its window; the
server refuses new proposals while `backlog_bytes` is above its limit.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from consensus.core.effects import (
    Announcement,
    Answer,
    Apply,
    ChangeResolved,
    CheckSnapshot,
    ConfigurationChanged,
    Effect,
    Halt,
    Persist,
    ReadEntries,
    ReadReady,
    ReadRefused,
    ReadSnapshot,
    Resolve,
    Restore,
    RoleChanged,
    Send,
    TakeSnapshot,
    TransferEnded,
)
from consensus.core.log import entry_bytes
from consensus.node.disk import DiskOperation
from consensus.node.journal import Extent
from consensus.node.storage import Storage
from consensus.wire.record import Binding

Released = Send | Apply | Answer | Announcement | Halt


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Perform `operations` in order; then every Persist up to `number` is durable."""

    number: int
    operations: tuple[DiskOperation, ...]


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Read `extents` (`storage.read_extents`) and answer `request`. No extents: the range does not exist."""

    request: ReadEntries
    binding: Binding
    extents: tuple[Extent, ...]


Job = WriteJob | ReadJob


class Executor:
    """Holds what waits for the disk."""

    def __init__(self, storage: Storage, group_bytes: int = 4 * 1024 * 1024) -> None:
        self._storage = storage
        self._group_bytes = group_bytes
        self._emitted = 0
        self._durable = 0
        self._waiting: deque[tuple[Persist, int]] = deque()
        self._reads: deque[tuple[ReadEntries, int]] = deque()
        self._held: deque[Send] = deque()
        self._job: Job | None = None
        self._job_bytes = 0
        self._waiting_bytes = 0
        self._wrote_last = False
        self.groups = 0
        self.persists = 0

    @property
    def backlog_bytes(self) -> int:
        """Bytes of entries that are not durable yet."""
        return self._waiting_bytes + self._job_bytes

    @property
    def reads_waiting(self) -> int:
        """Reads that have not begun."""
        return len(self._reads)

    def accept(self, effects: Sequence[Effect]) -> list[Released]:
        """Take a core's effects; returns those that may happen now, in order."""
        released: list[Released] = []
        for effect in effects:
            match effect:
                case Persist():
                    size = sum(map(entry_bytes, effect.entries))
                    self._waiting.append((effect, size))
                    self._emitted = effect.number
                    self._waiting_bytes += size
                case Send(after=after):
                    if after <= self._durable:
                        released.append(effect)
                    else:
                        self._held.append(effect)
                case ReadEntries():
                    self._reads.append((effect, self._emitted))
                case Apply() | Resolve() | ReadReady() | ReadRefused() | TransferEnded() | ChangeResolved():
                    released.append(effect)
                case RoleChanged() | ConfigurationChanged() | Halt():
                    released.append(effect)
                case TakeSnapshot() | ReadSnapshot() | CheckSnapshot() | Restore():
                    raise RuntimeError("no snapshot was asked for")
                case _:
                    assert_never(effect)
        return released

    def next_job(self) -> Job | None:
        """The next thing to do on the disk; None while one is under way, or if there is nothing."""
        if self._job is None:
            self._job = self._choose()
        else:
            return None
        return self._job

    def written(self, job: WriteJob) -> list[Released]:
        """`job` was performed: everything it carries is durable. Step the core with `Persisted(job.number)` next."""
        self._end(job)
        self._job_bytes = 0
        self._storage.done()
        self._durable = job.number
        released: list[Released] = []
        still_held: deque[Send] = deque()
        for send in self._held:
            (released if send.after <= self._durable else still_held).append(send)
        self._held = still_held
        return released

    def read(self, job: ReadJob) -> None:
        """`job` was performed. Answer its request next."""
        self._end(job)

    def _end(self, job: Job) -> None:
        if job is not self._job:
            raise RuntimeError("a disk job ended that is not under way")
        self._job = None

    def _choose(self) -> Job | None:
        readable = bool(self._reads) and self._reads[0][1] <= self._durable
        if readable and (self._wrote_last or not self._waiting):
            self._wrote_last = False
            request, _ = self._reads.popleft()
            return ReadJob(request, self._storage.binding, tuple(self._storage.extents(request)))
        if not self._waiting:
            return None
        self._wrote_last = True
        group: list[Persist] = []
        while self._waiting and (not group or self._job_bytes + self._waiting[0][1] <= self._group_bytes):
            persist, size = self._waiting.popleft()
            group.append(persist)
            self._job_bytes += size
        self._waiting_bytes -= self._job_bytes
        self.groups += 1
        self.persists += len(group)
        return WriteJob(group[-1].number, tuple(self._storage.plan(group)))
