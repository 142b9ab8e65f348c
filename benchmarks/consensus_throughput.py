"""Committed entries per second and their latency: our bare group, etcd, PySyncObj and a bare pipe, in turns.

Each scenario goes round all contenders before the next, and all of it `runs` times, so that a busy moment of the
machine does not hit one alone. Ratios are of rates measured within one round, seconds apart; the median of the rounds
is shown with the extremes.
"""

from pathlib import Path

from benchmarks.contenders import Contender, Scenario, Turn, all_contenders
from benchmarks.figures import Figure
from benchmarks.machine import Machine

ENTRY_BYTES = 256
TIMES_ETCD_GOAL = 2.0
SHARE_OF_PIPE_GOAL = 0.5
OURS, ETCD, PIPE = "garlicfarm", "etcd", "bare pipe"

SCENARIOS = (
    Scenario("1 client", clients=1, processes=1, connections=1),
    Scenario("64 clients", clients=64, processes=2, connections=8),
    Scenario("256 clients", clients=256, processes=2, connections=8),
    Scenario("8 clients, 100 entries a submission", clients=8, processes=2, connections=8, batch=100),
)

Found = dict[str, list[Turn]]


async def measure(directory: Path, machine: Machine, runs: int, seconds: float) -> tuple[list[Figure], list[str]]:
    """The figures, and why a contender is missing."""
    found: dict[Scenario, Found] = {scenario: {} for scenario in SCENARIOS}
    async with all_contenders(directory) as (contenders, missing):
        for _ in range(runs):
            for scenario in SCENARIOS:
                await _round(contenders, scenario, seconds, found[scenario])
    return [figure for scenario in SCENARIOS for figure in figures(scenario, found[scenario], machine)], missing


async def _round(contenders: list[Contender], scenario: Scenario, seconds: float, found: Found) -> None:
    for contender in contenders:
        if contender.fits(scenario):
            turn = await contender.turn(scenario, scenario.load(seconds, ENTRY_BYTES))
            found.setdefault(contender.name, []).append(turn)


def figures(scenario: Scenario, found: Found, machine: Machine) -> list[Figure]:
    """What is shown of one scenario."""
    where = f"{scenario.processes} processes on {scenario.connections} connections"
    group = f"consensus, {scenario.name}{'' if scenario.clients == 1 else f' in {where}'}, {ENTRY_BYTES}-byte entries"
    _, syncs_per_s, _ = machine.fdatasync_per_s
    rows = []
    for name, turns in found.items():
        rates = tuple(turn.rate.entries_per_s for turn in turns)
        rate = Figure(group, f"{name}: entries", "/s", rates)
        rows += [
            Figure(group, rate.name, rate.unit, rates, f"= {rate.median / syncs_per_s:.2f} of the fdatasync rate"),
            Figure(group, f"{name}: latency p50", "ms", tuple(turn.rate.p50_ms for turn in turns)),
            Figure(group, f"{name}: latency p99", "ms", tuple(turn.rate.p99_ms for turn in turns)),
            Figure(group, f"{name}: processor, servers", "cores", tuple(turn.servers_share for turn in turns)),
            Figure(group, f"{name}: processor, clients", "cores", tuple(turn.rate.processor_share for turn in turns)),
        ]
    return rows + _ratios(group, scenario, found)


def _ratios(group: str, scenario: Scenario, found: Found) -> list[Figure]:
    rows = []
    if ETCD in found:
        times = _paired(found, ETCD)
        if scenario.clients == 1:
            slower = tuple(
                ours.rate.p50_ms / theirs.rate.p50_ms for ours, theirs in zip(found[OURS], found[ETCD], strict=True)
            )
            goal = f"goal at most 1: {sum(each <= 1 for each in slower)} of {len(slower)} within"
            rows.append(Figure(group, "our p50 in etcd's", "times", slower, goal))
        else:
            within = sum(each >= TIMES_ETCD_GOAL for each in times)
            goal = f"goal {TIMES_ETCD_GOAL:g}: {within} of {len(times)} reach it"
            rows.append(Figure(group, "our entries in etcd's", "times", times, goal))
    share = _paired(found, PIPE)
    goal = ""
    if scenario.batch > 1:
        goal = (
            f"goal {SHARE_OF_PIPE_GOAL:g}: {sum(each >= SHARE_OF_PIPE_GOAL for each in share)} of {len(share)} reach it"
        )
    return [*rows, Figure(group, "our entries in the bare pipe's", "times", share, goal)]


def _paired(found: Found, name: str) -> tuple[float, ...]:
    return tuple(
        ours.rate.entries_per_s / theirs.rate.entries_per_s
        for ours, theirs in zip(found[OURS], found[name], strict=True)
    )
