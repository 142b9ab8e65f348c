"""Long runs from the command line: many seeds with counts, or one seed again with its trace."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from tests.simulation.consensus.client_mutants import CLIENT_MUTANTS
from tests.simulation.consensus.history import CORES, DEFAULT_STEPS, Report, run_history
from tests.simulation.consensus.mutants import MUTANTS
from tests.simulation.consensus.pull_mutants import PULL_MUTANTS

_PROGRESS_EVERY = 100
_ALL_MUTANTS = (*MUTANTS, *PULL_MUTANTS, *CLIENT_MUTANTS)


def main(arguments: Sequence[str]) -> int:
    """Run histories; 0 if every invariant held, 1 with the line that shows the violation again."""
    options = _parse(arguments)
    mutants = {mutant.name: mutant for mutant in _ALL_MUTANTS}
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    show = _say if options.trace else None
    reports: list[Report] = []
    began = time.monotonic()
    with mutants[options.mutant].planted() if options.mutant else nullcontext():
        for seed in seeds:
            try:
                reports.append(run_history(seed, options.steps, CORES[options.strategy], show))
            except Exception as error:  # noqa: BLE001 - whatever breaks a history is its result
                _say(_summary(reports, time.monotonic() - began))
                _say(f"seed {seed}: {type(error).__name__}: {error}")
                planted = f" --mutant {options.mutant}" if options.mutant else ""
                strategy = f" --strategy {options.strategy}" if options.strategy != "push" else ""
                again = f"--seed {seed} --steps {options.steps}{strategy}{planted} --trace"
                _say(f"again: python -m tests.simulation consensus {again}")
                return 1
            if len(reports) % _PROGRESS_EVERY == 0:
                _say(_summary(reports, time.monotonic() - began))
    _say(_summary(reports, time.monotonic() - began))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("subject", nargs="?", choices=["consensus"], default="consensus")
    parser.add_argument("--seeds", type=int, default=500, help="how many histories (default 500)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="only this history")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help=f"of trouble (default {DEFAULT_STEPS})")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in _ALL_MUTANTS], help="with this bug planted")
    parser.add_argument("--strategy", choices=list(CORES), default="push", help="who moves the entries (default push)")
    parser.add_argument("--trace", action="store_true", help="print every event and its effects")
    return parser.parse_args(arguments)


def _summary(reports: Sequence[Report], seconds: float) -> str:
    return (
        f"{len(reports)} histories, {sum(report.steps for report in reports)} steps: "
        f"{sum(report.elections for report in reports)} elections, "
        f"{sum(report.crashes for report in reports)} crashes, "
        f"{sum(report.commits for report in reports)} commits, "
        f"{sum(report.acknowledged for report in reports)} proposals acknowledged, "
        f"{sum(report.changes for report in reports)} changes of the configuration, "
        f"{sum(report.snapshots for report in reports)} snapshots, "
        f"{sum(report.restores for report in reports)} restores, "
        f"{sum(report.reads for report in reports)} reads, "
        f"{sum(report.transfers for report in reports)} transfers, "
        f"{sum(report.lost for report in reports)} messages lost; {seconds:.1f} s"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
