"""The state machine of a simulated server: a store of numbers with the production session table.

`DedupStateMachine` does not wait for anything here, so it runs to its end without an event loop. A checksum is chained
over every applied entry, and is part of snapshots. The judge compares it with the committed log, for a restored state
and for one built from entries, without a copy of the log.
"""

import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

import trio
from msgspec.structs import replace

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
    """Return a command that sets `key` to `value` and returns the previous value; `attempt` makes its bytes unique."""
    return _WRITE.pack(b"swap", key, value, attempt)


def decode_result(result: bytes) -> int:
    return int(_RESULT.unpack(result)[0])


def chained(chain: int, entry: Entry) -> int:
    """Return the checksum of a log extended by `entry`."""
    return crc32(entry.data, chain ^ entry.term)


@dataclass(slots=True)
class Store:
    """The state of the service: a number for each key. `on_executed` is called for each execution."""

    on_executed: Callable[[Index, int], None]
    values: dict[int, int] = field(default_factory=dict)

    async def execute(self, index: Index, command: bytes) -> bytes:
        """Execute a write; ignore other commands."""
        if not command.startswith(b"swap"):
            return b""
        _, key, value, _ = _WRITE.unpack(command)
        self.on_executed(index, value)
        before = self.values.get(key, 0)
        self.values[key] = value
        return _RESULT.pack(before)


class StateMachine:
    """The state machine of one run. `on_applied`, `on_executed` and `on_restored` report to the judge."""

    def __init__(
        self,
        limits: SessionLimits,
        on_applied: Callable[[Apply], None],
        on_executed: Callable[[Index, int], None],
        on_restored: Callable[[SnapshotDescription, int], None],
        form: SnapshotForm,
        head_bytes: int,
    ) -> None:
        """Create the state machine; commands begin with `head_bytes` bytes of the protocol."""
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
        """Term of the last applied entry."""
        self.chain = 0
        self.covered: Index = 0
        self.restoring: SnapshotDescription | None = None
        self.jobs: deque[SnapshotWrite] = deque()
        self.writer: SnapshotWriter | None = None
        self._captured = b""
        self._waiting: deque[Apply] = deque()
        self._callbacks: list[tuple[Index, int, Callable[[], None]]] = []
        self._callback_number = 0

    def apply(self, effect: Apply) -> None:
        """Apply committed entries."""
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
        is_headed = self._head_bytes and entry.kind == EntryKind.COMMAND
        return replace(entry, data=entry.data[self._head_bytes :]) if is_headed else entry

    def _took(self, effect: Apply) -> None:
        """Process applied entries that a protocol keeps in addition to the store."""

    def when_applied(self, index: Index, action: Callable[[], None]) -> None:
        self._callback_number += 1
        heappush(self._callbacks, (index, self._callback_number, action))
        self._answer()

    def value_of(self, key: int) -> int:
        return self._store.values.get(key, 0)

    def begin_restore(self, effect: Restore) -> ReadSnapshot:
        """Begin to restore a snapshot; return the first read."""
        self.restoring = effect.snapshot
        self._waiting.clear()
        return ReadSnapshot(request_id=OWN_READ, last=effect.snapshot.last, offset=0, limit_bytes=_EVERYTHING)

    def restore(self, answer: SnapshotRead) -> None:
        """Restore the read snapshot, unless a newer snapshot has replaced it."""
        snapshot = self.restoring
        if snapshot is None or answer.last != snapshot.last:
            return
        assert answer.data is not None, f"the snapshot of {snapshot.last} is missing"
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
        """Return the index of a snapshot taken now."""
        return self.applied

    def capture(self) -> Index:
        """Keep the current state for a snapshot."""
        index = self.captured_index
        self._captured = self._state()
        return index

    def _state(self) -> bytes:
        return b"".join(self.machine.snapshot())

    def _blocks(self, data: bytes) -> list[bytes]:
        return [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)]

    def _restore_state(self, snapshot: SnapshotDescription, data: bytes) -> None:
        finish(self.machine.restore(snapshot.last, stream(data)))

    def begin_snapshot(self, effect: TakeSnapshot) -> None:
        """Plan all writes of the captured state."""
        writer = self.writer = SnapshotWriter(effect.last, effect.configuration, self._form)
        plans = [writer.plan_begin()]
        plans += [writer.plan(block) for block in self._blocks(self._captured)]
        plans.append(writer.plan_end())
        self.jobs = deque(SnapshotWrite(tuple(plan), writer.file) for plan in plans)

    def give_up_snapshot(self) -> None:
        """Cancel the snapshot because the disk is full."""
        self.writer = None
        self.jobs.clear()

    def end_snapshot(self, kept_behind: Index) -> SnapshotTaken:
        """Complete the snapshot after its last write."""
        assert self.writer is not None
        snapshot, self.writer = self.writer.description, None
        self.covered = snapshot.last.index
        return SnapshotTaken(snapshot, snapshot.last.index + 1 - kept_behind)

    def _answer(self) -> None:
        while self._callbacks and self._callbacks[0][0] <= self.applied and self.restoring is None:
            heappop(self._callbacks)[2]()

    def _own_part(self) -> Iterator[bytes]:
        yield _HEAD.pack(self.applied, self.chain)
        for pair in sorted(self._store.values.items()):
            yield _PAIR.pack(*pair)

    async def _restore_own_part(self, _last: LogId, state: AsyncIterator[bytes]) -> None:
        data = b"".join([chunk async for chunk in state])
        self.applied, self.chain = _HEAD.unpack_from(data)
        self._store.values = dict(_PAIR.iter_unpack(data[_HEAD.size :]))


async def stream(data: bytes) -> AsyncIterator[bytes]:
    """Yield the bytes of a snapshot, as passed to a state machine."""
    yield data


def finish(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the state machine waits for something, but there is nothing here to wait for")


def finish_in_turns(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that occasionally yields to other tasks to its end."""

    async def run() -> None:
        await work

    trio.run(run)
