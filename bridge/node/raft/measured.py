"""Wrappers that measure the time of a disk and of a state machine.

The server does not distinguish them from the wrapped objects (`open_replica`). So the measured times include waits for
threads and for the event loop.

A module of its own, so that the measured code does not contain measurements.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import trio

from consensus import Entry, Histogram, Index, LogId, StateMachine
from consensus.storage import DiskOperation, DiskReader, ServerDisk, StorageReadResult


class MeasuredDisk:
    """A `ServerDisk` that measures the disk operations of another one."""

    def __init__(self, disk: ServerDisk, durations: Histogram) -> None:
        self._disk = disk
        self._durations = durations

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Delegate to `ServerDisk.perform_all` and measure it."""
        began_s = trio.current_time()
        await self._disk.perform_all(operations, start)
        self._durations.observe(trio.current_time() - began_s)

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """Delegate to `ServerDisk.begin` and measure the time until success."""
        began_s = trio.current_time()

        def timed(error: Exception | None) -> None:
            if error is None:
                self._durations.observe(trio.current_time() - began_s)
            ended(error)

        self._disk.begin(operations, timed)

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Delegate to `ServerDisk.ask`."""
        return await self._disk.ask(question)


class MeasuredStateMachine:
    """A `StateMachine` that measures `apply` of another one."""

    def __init__(self, machine: StateMachine, durations: Histogram) -> None:
        self._machine = machine
        self._durations = durations

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Delegate to `StateMachine.apply` and measure it."""
        began_s = trio.current_time()
        await self._machine.apply(first, entries)
        self._durations.observe(trio.current_time() - began_s)

    def snapshot(self) -> Iterator[bytes] | AsyncIterator[bytes]:
        """Delegate to `StateMachine.snapshot`."""
        return self._machine.snapshot()

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Delegate to `StateMachine.restore`."""
        await self._machine.restore(last, state)
