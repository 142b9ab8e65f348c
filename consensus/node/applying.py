"""Committed entries on their way to the state machine: in order, each once, at the state machine's own pace.

The owner task pushes; a task of its own calls the state machine and waits for it. A slow state machine therefore never
delays a heartbeat, and it cannot fill the memory either: beyond `queue_bytes` pushed entries are let go, and the task
reads them back from storage when their turn has come. Only the commit index is kept for them.
"""

from collections import deque
from collections.abc import Awaitable, Callable

import trio

from consensus.core.effects import Apply
from consensus.core.log import entry_bytes
from consensus.core.position import Entry, Index

StateMachine = Callable[[Index, tuple[Entry, ...]], Awaitable[None]]
"""Takes committed entries from the given index on, in order, each exactly once in a life of the process."""

Reader = Callable[[Index, Index, int], Awaitable[tuple[Entry, ...]]]
"""Reads committed entries [first, last] from storage, at most the given bytes, at least one."""


class Applying:
    """The queue between the core and the state machine."""

    def __init__(self, state_machine: StateMachine, queue_bytes: int) -> None:
        self._state_machine = state_machine
        self._queue_bytes = queue_bytes
        self._queue: deque[Apply] = deque()
        self._size_bytes = 0
        self._changed = trio.Event()
        self.commit: Index = 0
        self.applied: Index = 0
        self.reread = 0
        """Entries that were let go and read back."""

    def push(self, effect: Apply) -> None:
        """Entries are committed."""
        self.commit = effect.first + len(effect.entries) - 1
        size_bytes = sum(map(entry_bytes, effect.entries))
        if not self._queue or self._size_bytes + size_bytes <= self._queue_bytes:
            self._queue.append(effect)
            self._size_bytes += size_bytes
        self._wake()

    async def wait_commit(self, index: Index) -> Index:
        """Return the commit index when it has reached `index`."""
        while self.commit < index:
            await self._changed.wait()
        return self.commit

    async def wait_applied(self, index: Index) -> Index:
        """Return the applied index when the state machine has taken the entry at `index`."""
        while self.applied < index:
            await self._changed.wait()
        return self.applied

    async def run(self, read: Reader) -> None:
        """Feed the state machine for ever."""
        while True:
            await self.wait_commit(self.applied + 1)
            first = self.applied + 1
            if self._queue and self._queue[0].first == first:
                effect = self._queue.popleft()
                entries = effect.entries
                self._size_bytes -= sum(map(entry_bytes, entries))
            else:
                last = self._queue[0].first - 1 if self._queue else self.commit
                entries = await read(first, last, self._queue_bytes)
                self.reread += len(entries)
            if not entries:
                raise RuntimeError(f"entry {first} is committed, but storage does not have it")
            await self._state_machine(first, entries)
            self.applied += len(entries)
            self._wake()
            # A state machine that never waits must not keep the owner task from its heartbeats.
            await trio.lowlevel.checkpoint()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
