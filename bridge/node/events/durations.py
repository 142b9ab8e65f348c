"""Histograms of durations on this node, which `/metrics` shows.

    commit      an entry of this node, from its submission here to its commitment, through any leader
    disk        a group of writes with its sync          the leader's acknowledgments wait for it
    apply       committed entries through the farm's state machine, a batch at a time
    request     a request of Raft to another server, until its reply
    probe       the round trip of gossip to each peer, sampled
    detection   from the first suspicion of a member until it is declared dead
    take_over   from the loss of a leader until the next one is known

The last two take seconds instead of milliseconds, so they have other bounds. Wrappers around the disk and the state
machine measure `disk` and `apply` (`open_replica`), so these times include waits for threads and for the event loop.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import trio
from msgspec import Struct, field

from consensus import Entry, Histogram, Index, LogId, StateMachine
from consensus.storage import DiskOperation, DiskReader, ServerDisk, StorageReadResult

SLOW_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
TEXTS: Final = {
    "commit": (
        "Seconds from the submission of an entry at this node until it is committed. It grows with slow disks and"
        " networks of a majority; compare it with `garlicfarm_disk_seconds`."
    ),
    "disk": (
        "Seconds to write a group of entries and to sync it. Above 0.1 the disk delays every commit: move `state_dir`"
        " to a faster one."
    ),
    "apply": (
        "Seconds to apply a batch of committed entries to the state machine. It grows with the processor's load and"
        " with batches after a restart."
    ),
    "request": (
        "Seconds from a Raft request to another server until its reply. Above the election timeout leaders change"
        " without need: check the network, or raise `consensus.timing`."
    ),
    "probe": (
        "Seconds of a round trip of gossip to each peer, sampled every 10 seconds. Above a second members are"
        " suspected without being dead."
    ),
    "detection": (
        "Seconds from the first suspicion of a member until it is declared dead: the longer part of the time to"
        " detect a dead node."
    ),
    "take_over": (
        "Seconds from the loss of a leader until this node knows the next one. Nothing is committed until then;"
        " investigate each election."
    ),
}


def _slow() -> Histogram:
    return Histogram(SLOW_BOUNDS_S)


class Durations(Struct, frozen=True):
    """One histogram for each duration."""

    request: Histogram
    commit: Histogram = field(default_factory=Histogram)
    disk: Histogram = field(default_factory=Histogram)
    apply: Histogram = field(default_factory=Histogram)
    probe: Histogram = field(default_factory=Histogram)
    detection: Histogram = field(default_factory=_slow)
    take_over: Histogram = field(default_factory=_slow)

    def items(self) -> Iterator[tuple[str, Histogram]]:
        """Yield name and histogram, in the order of `TEXTS`."""
        for name in TEXTS:
            histogram: Histogram = getattr(self, name)
            yield name, histogram


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
