"""The tables of Lifeguard's experiments: plain SWIM compared with all parts over the grid, and each part separately."""

from collections.abc import Sequence

from tests.simulation.gossip_experiments.figures import Figure, median_of, none_of, quantile, ratio_of, table
from tests.simulation.gossip_experiments.lifeguard import (
    COUNTS,
    DURATIONS_MS,
    PARTS,
    Cell,
    FalsePositives,
    Latencies,
    grid,
    interval_run,
    sampled,
    seed_of,
    threshold_run,
)
from tests.simulation.gossip_experiments.setting import Setting

_PLAIN, _WHOLE = "plain SWIM", "Lifeguard"


def latency(setting: Setting) -> str:
    """Run the threshold experiment with each of the parts."""
    cases = [(seed, count) for seed in range(setting.seed, setting.seed + setting.repetitions) for count in COUNTS]
    rows = []
    baseline: Figure | None = None
    for name in PARTS:
        show = setting.progress(f"latency, {name}")
        runs = []
        for seed, count in cases:
            runs.append(_threshold(setting, name, count, seed))
            show(len(runs) / len(cases))
        first = [time for run in runs for time in run.first_s]
        everyone = [time for run in runs for time in run.all_s]
        figure = median_of(first)
        baseline = baseline or figure
        rows.append(
            [
                name,
                str(len(first)),
                figure.text(".2f", " s"),
                f"{figure.value / baseline.value * 100 - 100:+.1f} %",
                f"{quantile(first, 0.99):.2f} s",
                median_of(everyone).text(".2f", " s"),
                f"{quantile(everyone, 0.99):.2f} s",
                str(sum(run.missed for run in runs)),
            ]
        )
    head = [
        "",
        "failures",
        "first detection, median",
        "against plain",
        "99 %",
        "known to all, median",
        "99 %",
        "missed",
    ]
    return table(head, rows)


def _threshold(setting: Setting, part: str, count: int, seed: int) -> Latencies:
    duration_ms = max(DURATIONS_MS)
    run = {"run": "threshold_run", "part": part, "count": count, "duration_ms": duration_ms, "seed": seed}
    return setting.finished.once(Latencies, run, lambda: threshold_run(count, duration_ms, PARTS[part], seed))


def _interval(setting: Setting, part: str, cell: Cell) -> FalsePositives:
    seed = seed_of(cell, setting.seed)
    place = [cell.count, cell.duration_ms, cell.interval_ms]
    run = {"run": "interval_run", "part": part, "cell": place, "seed": seed}
    return setting.finished.once(FalsePositives, run, lambda: interval_run(cell, PARTS[part], seed))


def parts(setting: Setting) -> str:
    """Run the interval experiment with each of the parts, on some cells."""
    cells = sampled()[: setting.cells]
    runs: dict[str, list[FalsePositives]] = {}
    for name in PARTS:
        show = setting.progress(f"false positives, {name}")
        runs[name] = []
        for cell in cells:
            runs[name].append(_interval(setting, name, cell))
            show(len(runs[name]) / len(cells))
    plain = runs[_PLAIN]
    rows = [
        [
            name,
            f"{sum(run.everywhere for run in own):,}",
            f"{sum(run.at_healthy for run in own):,}",
            _share(own, plain, at_healthy=False),
            _share(own, plain, at_healthy=True),
            f"{sum(run.messages for run in own) / sum(run.messages for run in plain):.2f}",
        ]
        for name, own in runs.items()
    ]
    named = ", ".join(f"{cell.count}/{cell.duration_ms}/{cell.interval_ms}" for cell in cells)
    head = ["", "FP", "FP-", "FP of plain", "FP- of plain", "messages of plain"]
    return f"{table(head, rows)}\n\ncells (C/D/I): {named}"


def _share(own: Sequence[FalsePositives], plain: Sequence[FalsePositives], *, at_healthy: bool) -> str:
    counts = [run.at_healthy if at_healthy else run.everywhere for run in own]
    baselines = [run.at_healthy if at_healthy else run.everywhere for run in plain]
    if sum(baselines) == 0:
        return "nothing to compare with"
    share = ratio_of(counts, baselines) if sum(counts) > 0 else none_of(sum(run.victims for run in plain))
    return Figure(100 * share.value, 100 * share.low, 100 * share.high).text(".2f", " %")


def lifeguard(setting: Setting) -> str:
    """Run the interval experiment over the grid."""
    cells = grid(setting.intervals)[: setting.cells]
    show = setting.progress("Lifeguard's grid")
    pairs: dict[Cell, tuple[FalsePositives, FalsePositives]] = {}
    for cell in cells:
        pairs[cell] = (_interval(setting, _PLAIN, cell), _interval(setting, _WHOLE, cell))
        show(len(pairs) / len(cells))
    plain, whole = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
    paragraphs = []
    for at_healthy, title in ((True, "FP-, at healthy members"), (False, "FP, at all members")):
        totals = [sum(run.at_healthy if at_healthy else run.everywhere for run in runs) for runs in (plain, whole)]
        paragraphs += [
            f"{title}: plain SWIM / Lifeguard",
            _matrix(pairs, at_healthy=at_healthy),
            f"all: {totals[0]:,} / {totals[1]:,}; {_share(whole, plain, at_healthy=at_healthy)} (95 %)",
        ]
    return "\n\n".join(paragraphs)


def _matrix(pairs: dict[Cell, tuple[FalsePositives, FalsePositives]], *, at_healthy: bool) -> str:
    """Return a table of durations and counts; cells that differ only in their interval are added up."""
    rows = []
    for duration_ms in reversed(DURATIONS_MS):
        row = [f"{duration_ms:,}"]
        for count in COUNTS:
            here = [pair for cell, pair in pairs.items() if (cell.count, cell.duration_ms) == (count, duration_ms)]
            sums = [
                sum(run.at_healthy if at_healthy else run.everywhere for run in runs)
                for runs in zip(*here, strict=True)
            ]
            row.append(" / ".join(f"{each:,}" for each in sums) or "not run")
        rows.append(row)
    return table(["D ms", *(f"C={count}" for count in COUNTS)], rows)
