"""A disk and a state machine whose work is timed; they do nothing else than those behind them.

The server knows neither: it is given these in their place (`open_replica`). So what is measured is what the server
waits for, threads and turns of the event loop included.

A module of its own: what measures is kept apart from what is measured.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import trio

from consensus import Entry, Histogram, Index, LogId, StateMachine
from consensus.storage import DiskOperation, DiskReader, ServerDisk, StorageReadResult


class MeasuredDisk:
    """A `ServerDisk`."""

    def __init__(self, disk: ServerDisk, durations: Histogram) -> None:
        self._disk = disk
        self._durations = durations

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """See `ServerDisk.perform_all`."""
        began_s = trio.current_time()
        await self._disk.perform_all(operations, start)
        self._durations.observe(trio.current_time() - began_s)

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """See `ServerDisk.begin`."""
        began_s = trio.current_time()

        def timed(error: Exception | None) -> None:
            if error is None:
                self._durations.observe(trio.current_time() - began_s)
            ended(error)

        self._disk.begin(operations, timed)

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """See `ServerDisk.ask`."""
        return await self._disk.ask(question)


class MeasuredStateMachine:
    """A `StateMachine`."""

    def __init__(self, machine: StateMachine, durations: Histogram) -> None:
        self._machine = machine
        self._durations = durations

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """See `StateMachine.apply`."""
        began_s = trio.current_time()
        await self._machine.apply(first, entries)
        self._durations.observe(trio.current_time() - began_s)

    def snapshot(self) -> Iterator[bytes] | AsyncIterator[bytes]:
        """See `StateMachine.snapshot`."""
        return self._machine.snapshot()

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """See `StateMachine.restore`."""
        await self._machine.restore(last, state)
