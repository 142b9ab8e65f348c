"""Committed entries per second and their latency, with client processes on the servers' machine.

An entry counts when its client has the acknowledgment, so this is the rate of commitment by a majority with fsync.
Client processes are started, connected and warmed up before the measurement; they all begin together. The report also
has the processor time of every server and of the clients: on a small machine it is the first limit.
"""

from statistics import mean

from benchmarks import client
from benchmarks.contenders import Scenario, Turn, drive
from benchmarks.farm import Farm
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.machine import Machine

ENTRY_BYTES = 256
SCENARIOS = (
    Scenario("1 client", clients=1, processes=1, connections=1),
    Scenario("64 clients in 2 processes on 2 connections", clients=64, processes=2, connections=2),
    Scenario("64 clients in 2 processes on 64 connections", clients=64, processes=2, connections=64),
)


async def measure(farm: Farm, job: Job) -> list[Figure]:
    """Measure all scenarios `job.runs` times in turn, so a busy moment of the machine does not affect only one."""
    found: dict[Scenario, list[Turn]] = {scenario: [] for scenario in SCENARIOS}
    for _ in range(job.runs):
        for scenario in SCENARIOS:
            found[scenario].append(await run(farm, scenario, job.seconds))
    return [figure for scenario in SCENARIOS for figure in _figures(scenario, found[scenario], job.machine)]


def _figures(scenario: Scenario, turns: list[Turn], machine: Machine) -> list[Figure]:
    group = f"{scenario.name}, {ENTRY_BYTES}-byte entries"
    rate = tuple(turn.rate.entries_per_s for turn in turns)
    middle = Figure(group, "", "", rate).median
    _, syncs_per_s, _ = machine.fdatasync_per_s
    _, blocking_us, _ = machine.blocking_round_trip_us
    _, trio_us, _ = machine.trio_round_trip_us
    p50 = Figure(group, "latency p50", "ms", tuple(turn.rate.p50_ms for turn in turns))
    in_syncs = p50.median / 1000 * syncs_per_s
    in_round_trips = p50.median * 1000 / blocking_us
    in_trio = p50.median * 1000 / trio_us
    beside = f"= {in_syncs:.1f} fdatasync, {in_round_trips:.0f} round trips ({in_trio:.0f} of trio's)"
    return [
        Figure(group, "committed entries", "/s", rate, f"= {middle / syncs_per_s:.2f} of the fdatasync rate"),
        Figure(group, p50.name, p50.unit, p50.values, beside),
        Figure(group, "latency p99", "ms", tuple(turn.rate.p99_ms for turn in turns)),
        Figure(group, "processor, leader", "cores", tuple(turn.shares[0] for turn in turns)),
        Figure(group, "processor, a follower", "cores", tuple(mean(turn.shares[1:]) for turn in turns)),
        Figure(group, "processor, all client processes", "cores", tuple(turn.rate.processor_share for turn in turns)),
    ]


async def run(farm: Farm, scenario: Scenario, seconds: float) -> Turn:
    """Measure one run; the leader is the first server."""
    await farm.settle()
    leader = await farm.leader()
    load, log = scenario.load(seconds, ENTRY_BYTES), farm.files.directory / "client.log"
    clients = [await client.start(farm.target(), load, log) for _ in range(scenario.processes)]
    return await drive(clients, [leader, *(each for each in farm.servers if each is not leader)], load)
