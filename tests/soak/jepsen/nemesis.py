"""Begins and ends the faults of a schedule at the nodes, and restarts ended processes.

    schedule ──▶ begin: numbers ─▶ nodes, the leader first ──▶ … ──▶ end ──▶ heal: no fault is left

Faults overlap. So the state of each part of a node is derived from all its present faults. Its disk has the worst of
the disk faults, and its killed process starts again when the last fault that needs it stopped has ended.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import trio

from tests.soak.jepsen.disk import DiskFaults
from tests.soak.jepsen.network import Network
from tests.soak.jepsen.nodes import AFTER_DISK_FAULT_S, RESTART_S, NodeProcess
from tests.soak.jepsen.schedule import CLOCK_KINDS, PROCESS_KINDS, Fault, Kind, Schedule

_POLL_S: Final = 0.2
DISKS: Final = {
    Kind.SLOW_DISK: DiskFaults(),
    Kind.HANGING_DISK: DiskFaults(is_hanging=True),
    Kind.FULL_DISK: DiskFaults(is_full=True),
    Kind.FAILING_DISK: DiskFaults(is_failing=True),
}
NODE_KINDS: Final = CLOCK_KINDS | {Kind.PAUSE}


class Nemesis:
    """The present faults, and the findings about processes."""

    def __init__(
        self,
        nodes: Sequence[NodeProcess],
        network: Network,
        seed: int,
        record: Callable[[str], None],
        leader: Callable[[], int | None],
    ) -> None:
        """`leader` returns the number of the present leader; `record` adds a line to the story."""
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self._nodes = nodes
        self._network = network
        self._random = Random(seed)
        self._record = record
        self._leader = leader
        self._down: dict[int, set[int]] = {node.number: set() for node in nodes}
        self._disks: dict[int, dict[int, DiskFaults]] = {node.number: {} for node in nodes}

    async def play(self, schedule: Schedule) -> None:
        """Begin and end all faults at their times."""
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for fault in schedule.faults:
                await trio.sleep_until(began_s + fault.begin_s)
                nursery.start_soon(self._last, fault, began_s + fault.end_s)

    async def _last(self, fault: Fault, end_s: float) -> None:
        leader = await trio.to_thread.run_sync(self._leader)
        order = sorted(self._nodes, key=lambda node: (node.number != leader, node.number))
        victims = [order[target] for target in fault.targets]
        self._record(f"begin {fault} = {' '.join(node.name for node in victims)}, leader {leader}")
        self.counts[fault.kind.value] += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._begin, fault, victims)
            await trio.sleep_until(end_s)
            nursery.cancel_scope.cancel()
        await self._end(fault, victims)
        self._record(f"end   {fault}")

    async def _begin(self, fault: Fault, victims: list[NodeProcess]) -> None:
        if fault.kind in DISKS:
            faults = replace(DISKS[fault.kind], sync_delay_ms=int(fault.amount))
            for node in victims:
                self._disks[node.number][fault.number] = faults
                self._set_disk(node)
        elif fault.kind in PROCESS_KINDS:
            for node in victims:
                self._down[node.number].add(fault.number)
            for node in victims:
                await trio.to_thread.run_sync(self._stop, fault.kind, node)
        elif fault.kind in NODE_KINDS:
            for node in victims:
                _disturb(node, fault)
        else:
            self._begin_in_network(fault, [node.number for node in victims])

    def _begin_in_network(self, fault: Fault, numbers: list[int]) -> None:
        others = [node.number for node in self._nodes if node.number not in numbers]
        match fault.kind:
            case Kind.PARTITION | Kind.ONE_WAY:
                self._network.block(fault.number, numbers, others, both_ways=fault.kind is Kind.PARTITION)
            case Kind.UDP_ONLY:
                self._network.block_udp(fault.number, numbers)
            case Kind.DELAY:
                self._network.set_impairment(fault.number, numbers, fault.amount, 0.0)
            case Kind.LOSS:
                self._network.set_impairment(fault.number, numbers, 0.0, fault.amount)
            case _:
                raise ValueError(fault.kind)

    def _stop(self, kind: Kind, node: NodeProcess) -> None:
        match kind:
            case Kind.KILL:
                node.kill()
            case Kind.RESTART:
                node.pause(paused=False)
                self._record(f"{node.name} ended with {node.terminate()} after SIGTERM")
            case _:
                self._record(f"{node.name} lost {node.cut_power(self._random)}")

    async def _end(self, fault: Fault, victims: list[NodeProcess]) -> None:
        if fault.kind in PROCESS_KINDS:
            for node in victims:
                self._down[node.number].discard(fault.number)
                if not self._down[node.number]:
                    await trio.to_thread.run_sync(self._start, node)
        elif fault.kind in DISKS:
            for node in victims:
                self._disks[node.number].pop(fault.number, None)
                self._set_disk(node)
        elif fault.kind is Kind.PAUSE:
            for node in victims:
                node.pause(paused=False)
        elif fault.kind in CLOCK_KINDS:
            for node in victims:
                node.disk.set_clock(0.0)
        else:
            self._network.unblock(fault.number)
            self._network.clear_impairment(fault.number)

    def _start(self, node: NodeProcess) -> None:
        if not node.is_running:
            node.start()

    def _set_disk(self, node: NodeProcess) -> None:
        present = self._disks[node.number].values()
        node.disk.set(
            DiskFaults(
                max((each.sync_delay_ms for each in present), default=0),
                is_hanging=any(each.is_hanging for each in present),
                is_full=any(each.is_full for each in present),
                is_failing=any(each.is_failing for each in present),
                skips_syncs=node.disk.faults.skips_syncs,
            )
        )
        node.disk_fault_s = time.monotonic()

    async def supervise(self) -> None:
        """Start each process again a second after its end, as a supervisor does."""
        while True:
            await trio.sleep(_POLL_S)
            ended = [node for node in self._nodes if self._should_run(node)]
            for node in ended:
                self._judge_end(node)
            if ended:
                await trio.sleep(RESTART_S)
            for node in ended:
                if self._should_run(node):
                    node.start()

    def _should_run(self, node: NodeProcess) -> bool:
        """Return True if the process has ended without a fault that holds it down."""
        return node.is_wanted and not node.is_running and not self._down[node.number]

    def _judge_end(self, node: NodeProcess) -> None:
        code = None if node.process is None else node.process.returncode
        self._record(f"{node.name} ended with {code}")
        has_reason = self._disks[node.number] or time.monotonic() - node.disk_fault_s < AFTER_DISK_FAULT_S
        if not has_reason:
            self.findings.append(f"{node.name} ended with {code} without a disk fault:\n{node.tail()}")


def _disturb(node: NodeProcess, fault: Fault) -> None:
    match fault.kind:
        case Kind.CLOCK_JUMP:
            node.disk.set_clock(fault.amount)
        case Kind.CLOCK_RATE:
            node.disk.set_clock(0.0, fault.amount)
        case _:
            node.pause(paused=True)
