"""Committed entries per second and their latency: the bare group, the bare pipe and etcd, in turns.

Each scenario runs on all contenders before the next scenario, and this repeats `runs` times. So a busy moment of the
machine does not affect only one contender. Ratios use rates of one round, seconds apart; the report shows the median of
the rounds with the extremes.
"""

from benchmarks.contenders import ETCD, OURS, PIPE, Contender, Scenario, Turn, all_contenders, drive
from benchmarks.figures import Figure
from benchmarks.job import Job
from benchmarks.load import Load
from benchmarks.machine import Machine

ENTRY_BYTES = 256

SCENARIOS = (
    Scenario("1 client", clients=1, processes=1, connections=1),
    Scenario("64 clients", clients=64, processes=2, connections=8),
    Scenario("256 clients", clients=256, processes=2, connections=8),
    Scenario("8 clients, 100 entries a submission", clients=8, processes=2, connections=8, batch=100),
)

Found = dict[str, list[Turn]]


LOWEST_RATES = {(ETCD, 64): 1.3, (ETCD, 256): 1.6, (PIPE, 64): 0.4, (PIPE, 256): 0.4, (PIPE, 8): 0.4}
"""The lowest acceptable ratio to the rate of a contender, by contender and number of clients."""
HIGHEST_P50S = {ETCD: 1.0, PIPE: 1.5}
"""The highest acceptable ratio of the p50 of one client."""


async def measure(job: Job) -> list[Figure]:
    """Return the figures of all scenarios."""
    found: dict[Scenario, Found] = {scenario: {} for scenario in SCENARIOS}
    async with all_contenders(job.directory) as contenders:
        for _ in range(job.runs):
            for scenario in SCENARIOS:
                await _round(contenders, scenario, scenario.load(job.seconds, ENTRY_BYTES), found[scenario])
    return [figure for scenario in SCENARIOS for figure in figures(scenario, found[scenario], job.machine)]


async def _round(contenders: dict[str, Contender], scenario: Scenario, load: Load, found: Found) -> None:
    for name, contender in contenders.items():
        # For etcd, a transaction of several entries would be one entry of its log.
        if name != ETCD or scenario.batch == 1:
            clients = await contender.clients(load, scenario.processes)
            found.setdefault(name, []).append(await drive(clients, contender.servers.values(), load))


def figures(scenario: Scenario, found: Found, machine: Machine) -> list[Figure]:
    """Return the figures of one scenario."""
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
            Figure(group, f"{name}: processor, servers", "cores", tuple(sum(turn.shares) for turn in turns)),
            Figure(group, f"{name}: processor, clients", "cores", tuple(turn.rate.processor_share for turn in turns)),
            Figure(
                group,
                f"{name}: processor for an entry, servers",
                "us",
                tuple(turn.entry_us for turn in turns),
                "all servers together",
            ),
        ]
    return rows + _ratios(group, scenario, found)


def _ratios(group: str, scenario: Scenario, found: Found) -> list[Figure]:
    rows = []
    for other in (ETCD, PIPE):
        pairs = [(own.rate, rate.rate) for own, rate in zip(found[OURS], found.get(other, []), strict=False)]
        if not pairs:
            continue
        if scenario.clients == 1:
            p50s = tuple(own.p50_ms / rate.p50_ms for own, rate in pairs)
            goal = HIGHEST_P50S[other]
            note = f"goal at most {goal:g}: {sum(value <= goal for value in p50s)} of {len(p50s)} reach it"
            rows.append(Figure(group, f"garlicfarm's p50 / {other}'s", "times", p50s, note))
        times = tuple(own.entries_per_s / rate.entries_per_s for own, rate in pairs)
        note = _reached(times, LOWEST_RATES.get((other, scenario.clients)))
        rows.append(Figure(group, f"garlicfarm's rate / {other}'s", "times", times, note))
    return rows


def _reached(values: tuple[float, ...], goal: float | None) -> str:
    if goal is None:
        return ""
    return f"goal at least {goal:g}: {sum(value >= goal for value in values)} of {len(values)} reach it"
