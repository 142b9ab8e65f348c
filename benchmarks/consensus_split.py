"""The processor time of an entry by kind of work, in the leader and in a follower.

Three bare servers get the loads of `consensus-throughput` with many clients and in batches. In each server, `TimeSplit`
divides the processor time of the process among kinds of work. It measures from the first submission after the warm-up
to the end of the clients. The times are divided by the number of entries that the log received.
"""

from collections import defaultdict
from typing import Any

from benchmarks.consensus_group import running_consensus_group
from benchmarks.consensus_throughput import ENTRY_BYTES, SCENARIOS
from benchmarks.contenders import Scenario, drive
from benchmarks.figures import Figure
from benchmarks.job import Job

LOADS = tuple(each for each in SCENARIOS if each.clients != 1)


async def measure(job: Job) -> list[Figure]:
    """Return the microseconds of each kind of work for an entry."""
    found: dict[Scenario, defaultdict[tuple[str, str], list[float]]] = {load: defaultdict(list) for load in LOADS}
    async with running_consensus_group(job.directory / "group", instrument="split") as group:
        for _ in range(job.runs):
            for scenario in LOADS:
                leader = await group.settle()
                started: list[Any] = []

                async def start(started: list[Any] = started) -> None:
                    started.append(await group.statuses())

                load = scenario.load(job.seconds, ENTRY_BYTES)
                await drive(await group.clients(load, scenario.processes), group.servers.values(), load, start)
                ended: Any = await group.statuses()
                entries = ended[leader]["commit"] - started[0][leader]["commit"]
                followers = [status["taken"] for number, status in ended.items() if number != leader]
                for role, taken in (("leader", [ended[leader]["taken"]]), ("a follower", followers)):
                    for kind in set().union(*taken):
                        spent_s = sum(each.get(kind, 0.0) for each in taken) / len(taken)
                        found[scenario][role, kind].append(spent_s / entries * 1e6)
    return [figure for scenario, times in found.items() for figure in _figures(scenario, times)]


def _figures(scenario: Scenario, times: dict[tuple[str, str], list[float]]) -> list[Figure]:
    figures = []
    for role in ("leader", "a follower"):
        group = f"consensus, {scenario.name}: processor time of the {role} for an entry".replace("the a ", "a ")
        rows = [Figure(group, kind, "us", tuple(each)) for (owner, kind), each in times.items() if owner == role]
        figures += sorted(rows, key=lambda row: -row.median)
        figures.append(Figure(group, "all", "us", tuple(map(sum, zip(*(row.values for row in rows), strict=False)))))
    return figures
