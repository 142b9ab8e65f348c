"""Committed entries on their way to the state machine: in order, each once since the start or the last restore.

Turns of the event loop push entries; a separate task calls the state machine and waits for it. The state machine gets
at most `APPLIED_AT_ONCE` entries at a time. The task yields if `YIELD_S` has passed after such a part. So a slow state
machine delays a heartbeat by at most this time and the time of one part. A yield costs more than a part of plain
entries. Pushed entries beyond `queue_bytes` are dropped unless the queue is empty, and the task reads them from storage
later. The queue stores only the commit index of dropped entries.

Between two groups of entries the same task *captures* the state machine for a snapshot. `snapshot()` returns
immediately, and its iterator yields the state of that moment even if later entries are applied. The task also
*restores* the state machine from a snapshot, at the start or when the leader sent one.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from heapq import heappop, heappush

import trio

from consensus.core.effects import Apply, Restore
from consensus.core.model import Entry, Index, SnapshotDescription
from consensus.server.callbacks import run_callback
from consensus.server.errors import ServerStoppedError
from consensus.server.interfaces import APPLIED_AT_ONCE, StateMachine

YIELD_S = 0.002
"""Time without a yield to other tasks, such as heartbeats, while parts of entries are applied."""

Reader = Callable[[Index, Index, int], Awaitable[tuple[Entry, ...]]]
"""Reads committed entries [first, last] from storage: at least one entry, up to the given number of bytes."""

StateReader = Callable[[SnapshotDescription], AsyncIterator[bytes]]
"""Reads back the state machine's bytes from a stored snapshot; raises `SnapshotReplacedError`."""


class SnapshotReplacedError(Exception):
    """The snapshot being read was replaced; the newer one must be restored."""


class Applying:
    """The queue between the core and the state machine."""

    def __init__(
        self, state_machine: StateMachine, queue_bytes: int, snapshot_index: Callable[[], Index] | None = None
    ) -> None:
        self._state_machine = state_machine
        self._snapshot_index = snapshot_index
        self._queue_bytes = queue_bytes
        self._queue: deque[Apply] = deque()
        self._size_bytes = 0
        self._changed = trio.Event()
        self._ended = False
        self._restore: SnapshotDescription | None = None
        self._watchers: list[tuple[Index, int, Callable[[], None]]] = []
        self._watched = 0
        self._captures: deque[trio.Event] = deque()
        self._captured: tuple[Index, Iterator[bytes] | AsyncIterator[bytes]] | None = None
        self.commit: Index = 0
        self.applied: Index = 0
        self.reread = 0
        """Number of entries that were not in the queue and were read from storage."""
        self.restores = 0

    def push(self, effect: Apply) -> None:
        """Queue committed entries. If the queue is full, drop them; the task reads them from storage later."""
        self.commit = effect.first + len(effect.entries) - 1
        if not self._queue or self._size_bytes + effect.size_bytes <= self._queue_bytes:
            self._queue.append(effect)
            self._size_bytes += effect.size_bytes
        self._wake()

    def push_restore(self, effect: Restore) -> None:
        """Queue a snapshot, which replaces all waiting entries and the state up to its last entry."""
        self._queue.clear()
        self._size_bytes = 0
        self._restore = effect.snapshot
        self.commit = effect.snapshot.last.index
        self._wake()

    async def wait_commit(self, index: Index) -> Index:
        """Return the commit index when it has reached `index`; raises `ServerStoppedError` if it will not."""
        while self.commit < index:
            await self._wait_change()
        return self.commit

    async def wait_applied(self, index: Index) -> Index:
        """Return the applied index when the state machine has applied the entry at `index`.

        Raises `ServerStoppedError` if the server stops before.
        """
        while self.applied < index:
            await self._wait_change()
        return self.applied

    def when_applied(self, index: Index, notify: Callable[[], None]) -> None:
        """Call `notify` once the state machine has applied the entry at `index`: immediately, or from its task."""
        if self.applied >= index:
            notify()
        else:
            self._watched += 1
            heappush(self._watchers, (index, self._watched, notify))

    async def capture(self) -> tuple[Index, Iterator[bytes] | AsyncIterator[bytes]]:
        """Wait until the state machine is captured; return the index of its last entry and its bytes.

        The index is `applied`, or `snapshot_index()` if lower. Only one caller at a time is permitted.
        """
        taken = trio.Event()
        self._captures.append(taken)
        self._wake()
        await taken.wait()
        captured, self._captured = self._captured, None
        if captured is None:
            raise RuntimeError("two callers captured the state machine concurrently")
        return captured

    def end(self) -> None:
        """Make `wait_commit` and `wait_applied` raise; `run` continues until canceled."""
        self._ended = True
        self._wake()

    async def run(self, read: Reader, read_state: StateReader) -> None:
        """Feed the state machine until canceled."""
        while True:
            while self._is_idle:
                await self._changed.wait()
            if self._restore is not None:
                await self._continue_from_snapshot(self._restore, read_state)
            elif self._captures:
                index = self.applied if self._snapshot_index is None else min(self.applied, self._snapshot_index())
                self._captured = (index, self._state_machine.snapshot())
                self._captures.popleft().set()
            else:
                await self._apply_next(read)
            self._wake()
            if not self._is_idle:
                # Yield here, so that a state machine that never waits does not delay the heartbeats of the owner task.
                await trio.lowlevel.checkpoint()

    @property
    def _is_idle(self) -> bool:
        return self.applied >= self.commit and self._restore is None and not self._captures

    async def _continue_from_snapshot(self, snapshot: SnapshotDescription, read_state: StateReader) -> None:
        self._restore = None
        try:
            async with aclosing(read_state(snapshot)) as state:  # type: ignore[type-var] # it is a generator
                await self._state_machine.restore(snapshot.last, state)
        except SnapshotReplacedError:
            if self._restore is None:
                raise
            return
        self.applied = snapshot.last.index
        self.restores += 1

    async def _apply_next(self, read: Reader) -> None:
        first = self.applied + 1
        if self._queue and self._queue[0].first == first:
            effect = self._queue.popleft()
            entries = effect.entries
            self._size_bytes -= effect.size_bytes
        else:
            last = self._queue[0].first - 1 if self._queue else self.commit
            entries = await read(first, last, self._queue_bytes)
            self.reread += len(entries)
        if not entries and self._restore is None:
            raise RuntimeError(f"entry {first} is committed, but storage does not have it")
        yields_s = trio.current_time() + YIELD_S
        for start in range(0, len(entries), APPLIED_AT_ONCE):
            if start and trio.current_time() >= yields_s:
                self._wake()
                await trio.lowlevel.checkpoint()
                yields_s = trio.current_time() + YIELD_S
            if self._restore is not None:
                return
            part = entries[start : start + APPLIED_AT_ONCE]
            await self._state_machine.apply(first + start, part)
            self.applied += len(part)

    async def _wait_change(self) -> None:
        if self._ended:
            raise ServerStoppedError("the server has stopped")
        await self._changed.wait()

    def _wake(self) -> None:
        while self._watchers and self._watchers[0][0] <= self.applied:
            run_callback(heappop(self._watchers)[2])
        self._changed.set()
        self._changed = trio.Event()
