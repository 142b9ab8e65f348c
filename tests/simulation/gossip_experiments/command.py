"""The experiments from the command line: `python -m tests.simulation gossip-experiments [NAME ...]`.

    detection    first detection in periods, N = 50 ... 1,000
    load         probe messages per member and period of a quiet group
    mass-crash   a tenth of the group crashes at once: until everyone knows, without loss and at 50 %
    steadiness   100 members at 5 % loss for 1,000 periods: suspicions and deaths, of which none is right
    latency      Lifeguard's threshold experiment, the parts one at a time
    parts        Lifeguard's interval experiment on a few cells, the parts one at a time
    lifeguard    Lifeguard's interval experiment, plain SWIM against the whole, over the grid

Figures go to the standard output as Markdown tables, progress to the standard error. Everything follows from --seed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import log2

from tests.simulation.gossip_experiments.detection import EXPECTED_PERIODS, first_detections, quiet_load
from tests.simulation.gossip_experiments.dissemination import (
    AT_HALF_LOSS,
    WITHOUT_LOSS,
    MassCrash,
    mass_crash,
    without_a_crash,
)
from tests.simulation.gossip_experiments.figures import Figure, mean_of, median_of, none_of, ratio_of, table
from tests.simulation.gossip_experiments.lifeguard import (
    COARSE,
    PARTS,
    SAMPLED,
    Cell,
    FalsePositives,
    grid,
    interval_run,
    threshold_run,
)

Progress = Callable[[float], None]


def main(arguments: Sequence[str]) -> int:
    """Run the named experiments, or all of them."""
    options = _parse(arguments)
    for name in options.names or list(EXPERIMENTS):
        began = time.process_time()
        sys.stdout.write(f"\n## {name}\n\n{EXPERIMENTS[name](options)}\n\n")
        sys.stdout.write(f"{time.process_time() - began:.0f} s of processor time, seed {options.seed}\n")
        sys.stdout.flush()
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation gossip-experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default all)")
    parser.add_argument("--seed", type=int, default=1, help="the first random seed (default 1)")
    parser.add_argument("--sizes", type=_numbers, default=(50, 100, 200, 500, 1_000), help="N, with commas")
    parser.add_argument("--samples", type=int, default=2_000, help="crashes per size (default 2000)")
    parser.add_argument("--repetitions", type=int, default=1, help="runs of each cell or size (default 1)")
    parser.add_argument("--full", action="store_true", help="all 432 cells of the paper's grid (many hours)")
    parser.add_argument("--cells", type=int, help="only the first so many cells")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in EXPERIMENTS:
            parser.error(f"there is no experiment {name!r}; there are: {' '.join(EXPERIMENTS)}")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _shown(what: str) -> Progress:
    """Progress on one line of the standard error, or nothing where nobody looks."""
    began = time.monotonic()

    def show(done: float) -> None:
        if sys.stderr.isatty():
            seconds = time.monotonic() - began
            left = seconds / done * (1 - done) if done > 0 else 0
            filled = "#" * round(30 * done)
            sys.stderr.write(f"\r{what:<34} [{filled:<30}] {done:4.0%}  {left:5.0f} s left ")
            sys.stderr.write("\r" + " " * 90 + "\r" if done >= 1 else "")
            sys.stderr.flush()

    return show


def _detection(options: argparse.Namespace) -> str:
    rows = []
    pooled: list[float] = []
    for size in options.sizes:
        found = first_detections(size, options.samples, options.seed, _shown(f"detection, {size} members"))
        rows.append(_detection_row(str(size), found.periods))
        pooled += found.periods
    rows.append(_detection_row("all", pooled))
    head = ["N", "crashes", "mean periods to the first detection", f"away from e/(e-1) = {EXPECTED_PERIODS:.3f}"]
    return table(head, rows)


def _detection_row(size: str, periods: Sequence[float]) -> list[str]:
    mean = mean_of(periods)
    away = Figure(*(bound / EXPECTED_PERIODS * 100 - 100 for bound in _bounds(mean)))
    return [size, str(len(periods)), mean.text(), away.text("+.1f", " %")]


def _bounds(figure: Figure) -> tuple[float, float, float]:
    return figure.value, figure.low, figure.high


def _load(options: argparse.Namespace) -> str:
    loads = [quiet_load(size, 10, options.seed) for size in options.sizes]
    head = ["N", "probe messages per member and period", "all messages"]
    return table(head, [[str(load.size), f"{load.probe_messages:.3f}", f"{load.all_messages:.3f}"] for load in loads])


def _mass_crash(options: argparse.Namespace) -> str:
    rows = []
    for loss, bound in ((0.0, WITHOUT_LOSS), (0.5, AT_HALF_LOSS)):
        for size in options.sizes:
            runs = [
                mass_crash(size, loss, seed, progress=_shown(f"mass crash, {size} members, {loss:.0%} loss"))
                for seed in range(options.seed, options.seed + options.repetitions)
            ]
            rows.append(_mass_crash_row(runs, bound))
    head = ["N", "loss", "crashed", "slowest known to all, periods", "in log2 N", "bound", "false deaths", "messages"]
    return table(head, rows) + "\n\nmessages: per survivor and period from the crash until the last was known to all"


def _mass_crash_row(runs: Sequence[MassCrash], bound: int) -> list[str]:
    size = runs[0].size
    slowest = None if any(run.slowest is None for run in runs) else max(run.slowest or 0 for run in runs)
    return [
        str(size),
        f"{runs[0].loss:.0%}",
        str(sum(len(run.known_everywhere) for run in runs)),
        f"{slowest:.1f}" if slowest is not None else "not within the bound",
        f"{slowest / log2(size):.2f}" if slowest is not None else "-",
        f"{bound} log2 N = {bound * log2(size):.0f}",
        str(sum(run.false_deaths for run in runs)),
        f"{sum(run.messages_per_member_and_period for run in runs) / len(runs):.1f}",
    ]


def _steadiness(options: argparse.Namespace) -> str:
    runs = [
        without_a_crash(100, 1_000, 0.05, seed, _shown("100 members, 5 % loss, 1,000 periods"))
        for seed in range(options.seed, options.seed + options.repetitions)
    ]
    head = ["members", "periods", "loss", "false suspicions", "held by members in all", "false deaths"]
    rows = [
        [str(r.size), str(r.periods), f"{r.loss:.0%}", str(r.accusations), str(r.suspicions), str(r.deaths)]
        for r in runs
    ]
    return table(head, rows)


def _latency(options: argparse.Namespace) -> str:
    cases = [
        (count, seed) for seed in range(options.seed, options.seed + 3 * options.repetitions) for count in (4, 8, 16)
    ]
    rows = []
    baseline: Figure | None = None
    for name, tuning in PARTS.items():
        show = _shown(f"latency, {name}")
        first: list[float] = []
        everyone: list[float] = []
        missed = 0
        for number, (count, seed) in enumerate(cases, start=1):
            run = threshold_run(count, 32_768, tuning, seed)
            first += run.first_s
            everyone += run.all_s
            missed += run.missed
            show(number / len(cases))
        figure = median_of(first)
        baseline = baseline or figure
        rows.append(
            [
                name,
                str(len(first)),
                figure.text(".2f", " s"),
                f"{figure.value / baseline.value * 100 - 100:+.1f} %",
                median_of(everyone).text(".2f", " s"),
                str(missed),
            ]
        )
    return table(["", "failures", "median first detection", "against plain", "median known to all", "missed"], rows)


def _cells(options: argparse.Namespace, default: Sequence[Cell]) -> Iterator[tuple[Cell, int]]:
    cells = list(grid()) if options.full else list(default)
    for repetition in range(options.repetitions):
        for number, cell in enumerate(cells[: options.cells]):
            yield cell, options.seed + repetition * len(cells) + number


def _parts(options: argparse.Namespace) -> str:
    cells = list(_cells(options, SAMPLED))
    runs = {name: _interval_runs(cells, name, _shown(f"false positives, {name}")) for name in PARTS}
    plain = runs["plain SWIM"]
    rows = []
    for name, own in runs.items():
        rows.append(
            [
                name,
                str(sum(run.everywhere for run in own)),
                str(sum(run.at_healthy for run in own)),
                _share(own, plain, at_healthy=False),
                _share(own, plain, at_healthy=True),
                f"{sum(run.messages for run in own) / sum(run.messages for run in plain):.2f}",
            ]
        )
    named = ", ".join(f"C={cell.count} D={cell.duration_ms} I={cell.interval_ms}" for cell, _ in cells)
    return table(["", "FP", "FP-", "FP of plain", "FP- of plain", "messages of plain"], rows) + f"\n\ncells: {named}"


def _interval_runs(cells: Sequence[tuple[Cell, int]], name: str, show: Progress) -> list[FalsePositives]:
    runs = []
    for number, (cell, seed) in enumerate(cells, start=1):
        runs.append(interval_run(cell, PARTS[name], seed))
        show(number / len(cells))
    return runs


def _share(own: Sequence[FalsePositives], plain: Sequence[FalsePositives], *, at_healthy: bool) -> str:
    counts = [run.at_healthy if at_healthy else run.everywhere for run in own]
    baselines = [run.at_healthy if at_healthy else run.everywhere for run in plain]
    if sum(baselines) == 0:
        return "nothing to compare with"
    share = ratio_of(counts, baselines) if sum(counts) > 0 else none_of(sum(run.victims for run in plain))
    return Figure(100 * share.value, 100 * share.low, 100 * share.high).text(".2f", " %")


def _lifeguard(options: argparse.Namespace) -> str:
    cells = list(_cells(options, COARSE))
    plain: list[FalsePositives] = []
    whole: list[FalsePositives] = []
    show = _shown("Lifeguard's grid")
    rows = []
    for number, (cell, seed) in enumerate(cells, start=1):
        plain.append(interval_run(cell, PARTS["plain SWIM"], seed))
        whole.append(interval_run(cell, PARTS["Lifeguard"], seed))
        show(number / len(cells))
        rows.append(
            [str(figure) for figure in (cell.count, cell.duration_ms, cell.interval_ms)]
            + [str(run.at_healthy) for run in (plain[-1], whole[-1])]
            + [str(run.everywhere) for run in (plain[-1], whole[-1])]
        )
    rows.append(
        ["all", "", ""]
        + [str(sum(run.at_healthy for run in runs)) for runs in (plain, whole)]
        + [str(sum(run.everywhere for run in runs)) for runs in (plain, whole)]
    )
    head = ["C", "D ms", "I ms", "FP- plain", "FP- Lifeguard", "FP plain", "FP Lifeguard"]
    return (
        f"{table(head, rows)}\n\nFP- of plain SWIM's: {_share(whole, plain, at_healthy=True)}; "
        f"FP of plain SWIM's: {_share(whole, plain, at_healthy=False)} (95 %, resampled by cells)"
    )


EXPERIMENTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "detection": _detection,
    "load": _load,
    "mass-crash": _mass_crash,
    "steadiness": _steadiness,
    "latency": _latency,
    "parts": _parts,
    "lifeguard": _lifeguard,
}
