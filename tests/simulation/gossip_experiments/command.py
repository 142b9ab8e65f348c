"""The experiments from the command line: `python -m tests.simulation gossip-experiments [NAME ...]`.

    detection    first detection in periods, N = 50 ... 1,000
    load         probe messages per member and period of an idle group
    mass-crash   a tenth of the group crashes together: time until every member knows, without loss and at 50 %
    steadiness   100 members at 5 % loss for 1,000 periods: suspicions and deaths, all of them false
    latency      Lifeguard's threshold experiment, each part separately
    parts        Lifeguard's interval experiment on three cells, each part separately
    lifeguard    Lifeguard's interval experiment, plain SWIM compared with all parts, over the grid

Figures go to the standard output as Markdown tables, progress to the standard error. --seed determines all results.
With --finished FILE each run is stored when it ends. The same command then resumes after an interruption. When all runs
are stored, it prints its tables immediately.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.simulation.gossip_experiments import lifeguard_reports, swim_reports
from tests.simulation.gossip_experiments.finished_runs import FinishedRuns
from tests.simulation.gossip_experiments.lifeguard import INTERVALS_MS
from tests.simulation.gossip_experiments.setting import Setting

EXPERIMENTS: dict[str, Callable[[Setting], str]] = {
    "detection": swim_reports.detection,
    "load": swim_reports.load,
    "mass-crash": swim_reports.crash,
    "steadiness": swim_reports.steadiness,
    "latency": lifeguard_reports.latency,
    "parts": lifeguard_reports.parts,
    "lifeguard": lifeguard_reports.lifeguard,
}
_COLLECT_AFTER = 200_000
"""Number of objects between two garbage collections; a group is a million long-lived objects without cycles."""


def main(arguments: Sequence[str]) -> int:
    """Run the named experiments, or all of them."""
    names, setting = _parse(arguments)
    usual = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *usual[1:])
    try:
        for name in names:
            began = time.process_time()
            sys.stdout.write(f"\n## {name}\n\n{EXPERIMENTS[name](setting)}\n\n")
            sys.stdout.write(f"{time.process_time() - began:.0f} s of processor time, seed {setting.seed}\n")
            sys.stdout.flush()
    finally:
        gc.set_threshold(*usual)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[list[str], Setting]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation gossip-experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Setting()
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiment (default all)")
    parser.add_argument("--seed", type=int, default=usual.seed, help="the first random seed (%(default)s)")
    parser.add_argument("--sizes", type=_numbers, default=usual.sizes, help="N, with commas (50,100,200,500,1000)")
    parser.add_argument("--losses", type=_shares, default=usual.losses, help="of mass-crash, with commas (0,0.5)")
    parser.add_argument("--samples", type=_positive, default=usual.samples, help="crashes per size (%(default)s)")
    parser.add_argument(
        "--repetitions", type=_positive, default=usual.repetitions, help="runs of each size or count (%(default)s)"
    )
    parser.add_argument(
        "--intervals",
        type=_positive,
        default=usual.intervals,
        choices=range(1, len(INTERVALS_MS) + 1),
        metavar="N",
        help="intervals for each count and duration of Lifeguard's grid (%(default)s); 8 are all 432 cells, many hours",
    )
    parser.add_argument("--cells", type=_positive, help="number of cells (default all)")
    parser.add_argument(
        "--finished", type=Path, metavar="FILE", help="store finished runs, and resume from stored ones"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in EXPERIMENTS:
            parser.error(f"unknown experiment {name!r}; available: {' '.join(EXPERIMENTS)}")
    setting = Setting(
        seed=options.seed,
        sizes=options.sizes,
        losses=options.losses,
        samples=options.samples,
        repetitions=options.repetitions,
        intervals=options.intervals,
        cells=options.cells,
        finished=FinishedRuns(options.finished),
    )
    return options.names or list(EXPERIMENTS), setting


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _shares(text: str) -> tuple[float, ...]:
    losses = tuple(float(part) for part in text.split(","))
    if not all(0 <= loss < 1 for loss in losses):
        raise argparse.ArgumentTypeError(f"{text}: a loss is from 0 to below 1")
    return losses


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number
