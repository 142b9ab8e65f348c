"""The state machine of a simulated server: a store of numbers behind the table of sessions that is shipped.

`DedupStateMachine` does not wait for anything here, so it is driven to its end at once, without an event loop.

A checksum is chained over every entry that was taken, and travels in snapshots. By it the judge knows whether a state,
lived through or restored, is that of the committed log, without carrying the log along.
"""

import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

import trio

from consensus.core.effects import Apply, ReadSnapshot, Restore, TakeSnapshot
from consensus.core.events import SnapshotRead, SnapshotTaken
from consensus.core.model import Entry, EntryKind, Index, LogId, SnapshotDescription, Term
from consensus.sessions.dedup_state_machine import DedupStateMachine
from consensus.sessions.table import SessionLimits
from consensus.storage.jobs import SnapshotWrite
from consensus.storage.snapshot_form import SnapshotForm
from consensus.storage.snapshots import SnapshotWriter

OWN_READ = -1
_EVERYTHING = 2**40
_CHUNK_BYTES = 600
_HEAD = struct.Struct(">QI")
_PAIR = struct.Struct(">IQ")
_WRITE = struct.Struct(">4sIQQ")
_RESULT = struct.Struct(">Q")


def write_command(key: int, value: int, attempt: int) -> bytes:
    """Set `key` to `value` and say what it was. The attempt makes the bytes of each proposal its own."""
    return _WRITE.pack(b"swap", key, value, attempt)


def decode_result(result: bytes) -> int:
    """The value before."""
    return int(_RESULT.unpack(result)[0])


def chained(chain: int, entry: Entry) -> int:
    """The checksum of a log that goes on with `entry`."""
    return crc32(entry.data, chain ^ entry.term)


@dataclass(slots=True)
class Store:
    """What the service keeps: numbers by number. `on_executed` is told of each execution."""

    on_executed: Callable[[Index, int], None]
    values: dict[int, int] = field(default_factory=dict)

    async def execute(self, index: Index, command: bytes) -> bytes:
        """Carry out a write; anything else has no effect."""
        if not command.startswith(b"swap"):
            return b""
        _, key, value, _ = _WRITE.unpack(command)
        self.on_executed(index, value)
        before = self.values.get(key, 0)
        self.values[key] = value
        return _RESULT.pack(before)


class StateMachine:
    """What one life holds. `on_applied`, `on_executed` and `on_restored` tell the judge."""

    def __init__(
        self,
        limits: SessionLimits,
        on_applied: Callable[[Apply], None],
        on_executed: Callable[[Index, int], None],
        on_restored: Callable[[SnapshotDescription, int], None],
        form: SnapshotForm,
        head_bytes: int,
    ) -> None:
        """Commands begin with `head_bytes` that are the protocol's."""
        self._form = form
        self._head_bytes = head_bytes
        self._on_applied = on_applied
        self._on_restored = on_restored
        self._store = Store(on_executed)
        self.machine = DedupStateMachine(
            self._store.execute, limits, self._own_part, self._restore_own_part, clock_s=lambda: 0.0
        )
        self.applied: Index = 0
        self.term: Term = 0
        """Of the entry that was applied last."""
        self.chain = 0
        self.covered: Index = 0
        self.restoring: SnapshotDescription | None = None
        self.jobs: deque[SnapshotWrite] = deque()
        self.writer: SnapshotWriter | None = None
        self._captured = b""
        self._waiting: deque[Apply] = deque()
        self._askers: list[tuple[Index, int, Callable[[], None]]] = []
        self._asked = 0

    def apply(self, effect: Apply) -> None:
        """Entries are committed."""
        if self.restoring is not None:
            self._waiting.append(effect)
            return
        self._on_applied(effect)
        finish(self.machine.apply(effect.first, tuple(map(self._command_of, effect.entries))))
        self._took(effect)
        for entry in effect.entries:
            self.chain = chained(self.chain, entry)
        self.applied += len(effect.entries)
        self.term = effect.entries[-1].term
        self._answer()

    def _command_of(self, entry: Entry) -> Entry:
        """The entry as the service has it."""
        is_headed = self._head_bytes and entry.kind == EntryKind.COMMAND
        return replace(entry, data=entry.data[self._head_bytes :]) if is_headed else entry

    def _took(self, effect: Apply) -> None:
        """For what a protocol keeps beside the store."""

    def when_applied(self, index: Index, action: Callable[[], None]) -> None:
        """Do something as soon as the entry at `index` is taken."""
        self._asked += 1
        heappush(self._askers, (index, self._asked, action))
        self._answer()

    def value_of(self, key: int) -> int:
        """What a reader sees now."""
        return self._store.values.get(key, 0)

    def begin_restore(self, effect: Restore) -> ReadSnapshot:
        """Begin anew: what is to be read first."""
        self.restoring = effect.snapshot
        self._waiting.clear()
        return ReadSnapshot(request_id=OWN_READ, last=effect.snapshot.last, offset=0, limit_bytes=_EVERYTHING)

    def restore(self, answer: SnapshotRead) -> None:
        """What was read; nothing if a newer snapshot took its place."""
        snapshot = self.restoring
        if snapshot is None or answer.last != snapshot.last:
            return
        assert answer.data is not None, f"the snapshot of {snapshot.last} is gone"
        image = self._form.reading(snapshot.last, snapshot.configuration)
        data = b"".join(image.feed(answer.data))
        assert image.finish() == snapshot
        self._restore_state(snapshot, data)
        self.restoring, self.covered, self.term = None, snapshot.last.index, snapshot.last.term
        self._on_restored(snapshot, self.chain)
        while self._waiting and self.restoring is None:
            self.apply(self._waiting.popleft())
        self._answer()

    @property
    def captured_index(self) -> Index:
        """Of which entry a snapshot would be now."""
        return self.applied

    def capture(self) -> Index:
        """Keep the state of this moment for a snapshot."""
        index = self.captured_index
        self._captured = self._state()
        return index

    def _state(self) -> bytes:
        """What a snapshot holds, as the state machine has it."""
        return b"".join(self.machine.snapshot())

    def _blocks(self, data: bytes) -> list[bytes]:
        """How a snapshot is written, bit by bit."""
        return [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)]

    def _restore_state(self, snapshot: SnapshotDescription, data: bytes) -> None:
        """Begin anew from what a snapshot holds."""
        finish(self.machine.restore(snapshot.last, stream(data)))

    def begin_snapshot(self, effect: TakeSnapshot) -> None:
        """Plan all writes of what was captured."""
        writer = self.writer = SnapshotWriter(effect.last, effect.configuration, self._form)
        plans = [writer.plan_begin()]
        plans += [writer.plan(block) for block in self._blocks(self._captured)]
        plans.append(writer.plan_end())
        self.jobs = deque(SnapshotWrite(tuple(plan), writer.file) for plan in plans)

    def give_up_snapshot(self) -> None:
        """There was no space for it."""
        self.writer = None
        self.jobs.clear()

    def end_snapshot(self, kept_behind: Index) -> SnapshotTaken:
        """All is written."""
        assert self.writer is not None
        snapshot, self.writer = self.writer.description, None
        self.covered = snapshot.last.index
        return SnapshotTaken(snapshot, snapshot.last.index + 1 - kept_behind)

    def _answer(self) -> None:
        while self._askers and self._askers[0][0] <= self.applied and self.restoring is None:
            heappop(self._askers)[2]()

    def _own_part(self) -> Iterator[bytes]:
        yield _HEAD.pack(self.applied, self.chain)
        for pair in sorted(self._store.values.items()):
            yield _PAIR.pack(*pair)

    async def _restore_own_part(self, _last: LogId, state: AsyncIterator[bytes]) -> None:
        data = b"".join([chunk async for chunk in state])
        self.applied, self.chain = _HEAD.unpack_from(data)
        self._store.values = dict(_PAIR.iter_unpack(data[_HEAD.size :]))


async def stream(data: bytes) -> AsyncIterator[bytes]:
    """The bytes of a snapshot, as a state machine gets them."""
    yield data


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run to its end what waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the state machine waits for something, but there is nothing here to wait for")


def finish_in_turns(work: Coroutine[Any, Any, None]) -> None:
    """Run to its end what gives other tasks a turn now and then."""

    async def run() -> None:
        await work

    trio.run(run)
