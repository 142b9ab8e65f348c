"""Committed entries per second and their latency, with client processes on the servers' machine.

An entry counts when its client has the acknowledgment, so this is the rate of commitment by a majority with fsync.
Client processes are started, connected and warmed up before the measurement; they all begin together. The report also
has the processor time of every server and of the clients: on a small machine it is the first limit.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import trio

from benchmarks.client import specification
from benchmarks.farm import BenchmarkError, Farm
from benchmarks.figures import Figure
from benchmarks.load import GO, READY, Load, Rate, Result
from benchmarks.machine import Machine

ENTRY_BYTES = 256
FAILURES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Scenario:
    """The numbers of clients, and of their processes and connections altogether."""

    name: str
    clients: int
    processes: int
    connections: int

    def load(self, seconds: float) -> Load:
        """Return the load of each client process."""
        return Load(self.clients // self.processes, self.connections // self.processes, seconds, ENTRY_BYTES)

    def describe(self) -> str:
        """Return the name in the report."""
        if self.clients == 1:
            return "1 client"
        return f"{self.clients} clients in {self.processes} processes on {self.connections} connections"


SCENARIOS = (
    Scenario("1 client", clients=1, processes=1, connections=1),
    Scenario("64 clients", clients=64, processes=2, connections=2),
    Scenario("64 clients, a connection each", clients=64, processes=2, connections=64),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one scenario."""

    entries_per_s: float
    p50_ms: float
    p99_ms: float
    leader_share: float
    """Processor time of the leader during the run, as a share of one processor."""
    follower_share: float
    clients_share: float


async def measure(farm: Farm, machine: Machine, runs: int, seconds: float) -> list[Figure]:
    """Measure all scenarios `runs` times in turn, so a busy moment of the machine does not affect only one."""
    found: dict[Scenario, list[Run]] = {scenario: [] for scenario in SCENARIOS}
    for _ in range(runs):
        for scenario in SCENARIOS:
            found[scenario].append(await run(farm, scenario, seconds))
    return [figure for scenario in SCENARIOS for figure in _figures(scenario, found[scenario], machine)]


def _figures(scenario: Scenario, runs: list[Run], machine: Machine) -> list[Figure]:
    group = f"{scenario.describe()}, {ENTRY_BYTES}-byte entries"
    rate = tuple(each.entries_per_s for each in runs)
    middle = Figure(group, "", "", rate).median
    _, syncs_per_s, _ = machine.fdatasync_per_s
    _, blocking_us, _ = machine.blocking_round_trip_us
    _, trio_us, _ = machine.trio_round_trip_us
    p50 = Figure(group, "latency p50", "ms", tuple(each.p50_ms for each in runs))
    in_syncs = p50.median / 1000 * syncs_per_s
    in_round_trips = p50.median * 1000 / blocking_us
    in_trio = p50.median * 1000 / trio_us
    beside = f"= {in_syncs:.1f} fdatasync, {in_round_trips:.0f} round trips ({in_trio:.0f} of trio's)"
    return [
        Figure(group, "committed entries", "/s", rate, f"= {middle / syncs_per_s:.2f} of the fdatasync rate"),
        Figure(group, p50.name, p50.unit, p50.values, beside),
        Figure(group, "latency p99", "ms", tuple(each.p99_ms for each in runs)),
        Figure(group, "processor, leader", "cores", tuple(each.leader_share for each in runs)),
        Figure(group, "processor, a follower", "cores", tuple(each.follower_share for each in runs)),
        Figure(group, "processor, all client processes", "cores", tuple(each.clients_share for each in runs)),
    ]


async def run(farm: Farm, scenario: Scenario, seconds: float) -> Run:
    """Measure one run."""
    await farm.settle()
    leader = await farm.leader()
    line = specification(farm.target(), scenario.load(seconds)).encode()
    processes = [await _start() for _ in range(scenario.processes)]
    try:
        results, used = await _drive(farm, processes, line, seconds)
    finally:
        # An interrupted run also ends each of them.
        with trio.CancelScope(shield=True):
            for process in processes:
                process.kill()
                await process.wait()
                await _close(process)
    failures: Counter[str] = Counter()
    for result in results:
        failures.update(result.failures)
    if failures:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in failures.most_common(FAILURES_SHOWN))
        raise BenchmarkError(f"{scenario.name}: {sum(failures.values())} submissions were not committed: {reasons}")
    rate = Rate.of(results, 1)
    elapsed_s = max(result.elapsed_s for result in results)
    followers = [share for server, share in used.items() if server != leader.node.name]
    return Run(
        entries_per_s=rate.entries_per_s,
        p50_ms=rate.p50_ms,
        p99_ms=rate.p99_ms,
        leader_share=used[leader.node.name] / elapsed_s,
        follower_share=sum(followers) / len(followers) / elapsed_s,
        clients_share=rate.processor_share,
    )


async def _start() -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", "benchmarks.client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


async def _drive(
    farm: Farm, processes: list[trio.Process], line: bytes, seconds: float
) -> tuple[list[Result], dict[str, float]]:
    with trio.fail_after(30 + seconds * 3):
        for process in processes:
            await _send_line(process, line)
        for process in processes:
            if await _receive_line(process) != READY:
                raise BenchmarkError("a client process could not warm up")
        before = {server.node.name: server.processor_seconds() for server in farm.servers}
        for process in processes:
            await _send_line(process, f"{GO}\n".encode())
        answers = [await _receive_line(process) for process in processes]
        used = {server.node.name: server.processor_seconds() - before[server.node.name] for server in farm.servers}
    return [Result(**json.loads(answer)) for answer in answers], used


async def _send_line(process: trio.Process, line: bytes) -> None:
    if process.stdin is None:
        raise BenchmarkError("a client process lacks a standard input")
    await process.stdin.send_all(line)


async def _receive_line(process: trio.Process) -> str:
    if process.stdout is None:
        raise BenchmarkError("a client process lacks a standard output")
    line = bytearray()
    while not line.endswith(b"\n"):
        data = await process.stdout.receive_some()
        if not data:
            raise BenchmarkError(f"a client process ended early: {bytes(line[:200])!r}")
        line += data
    return line.decode().strip()


async def _close(process: trio.Process) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()
