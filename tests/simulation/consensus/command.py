"""Long runs from the command line: many seeds with counts, one seed with its trace, or every planted bug.

    `python -m tests.simulation consensus --strategy fetch --seeds 10000 --jobs 2`
    `python -m tests.simulation consensus --seed 4711 --trace`
    `python -m tests.simulation consensus --kind 'figure 8' --seeds 100`
    `python -m tests.simulation consensus-mutants`

A run of at least `MARKED_SEEDS` histories of all kinds also fails if one of the coverage marks of its strategy never
appeared. Any run fails if rot has made an election impossible in at least two histories, and in more than one history
of 200. A world loses only servers that the others can do without, so this must be rare.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context

from consensus.core.invariants import InvariantBrokenError
from consensus.storage.disk import StorageError
from tests.simulation.consensus.all_mutants import ALL_MUTANTS
from tests.simulation.consensus.checker import StandstillError, ViolationError
from tests.simulation.consensus.history import FULL, SHORT, Report, run_history
from tests.simulation.consensus.marks import DEMANDED, NO_ELECTION_LEFT
from tests.simulation.consensus.mutants import Mutant
from tests.simulation.consensus.profile import STRATEGIES, Kind

MARKED_SEEDS = 2_000
MUTANT_SEEDS = 1_000
EXCUSED_AT_MOST_ONE_IN = 200
FINDINGS = (ViolationError, InvariantBrokenError, StorageError)
"""Errors that reveal a planted bug; any other error is a fault of the simulator."""
_PROGRESS_EVERY = 500
_BLOCK = 20
_MUTANTS = {mutant.name: mutant for mutant in ALL_MUTANTS}


@dataclass(frozen=True, slots=True)
class Failure:
    """A history that violated a rule."""

    seed: int
    text: str


def main(arguments: Sequence[str]) -> int:
    """Run histories; return 0 if every invariant held, else 1 after printing the command that repeats the violation."""
    options = _parse(arguments)
    # Run all strategies, even after a failure.
    return max([_play(options, strategy) for strategy in options.strategies])


def _play(options: argparse.Namespace, strategy: str) -> int:
    if options.seed is not None:
        results: Iterator[Report | Failure] = iter(
            [
                _try(
                    options.seed,
                    strategy,
                    options.mutant,
                    options.kind,
                    short=options.short,
                    trace=options.trace,
                )
            ]
        )
    else:
        results = _run_all(options, strategy)
    counts: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    began = time.monotonic()
    for result in results:
        if isinstance(result, Failure):
            _print(f"{strategy}: {_summary(counts, marks, time.monotonic() - began)}")
            _print(f"seed {result.seed}: {result.text}")
            planted = f" --mutant {options.mutant}" if options.mutant else ""
            short = " --short" if options.short else ""
            world = f" --kind '{options.kind.value}'" if options.kind else ""
            again = f"--strategy {strategy} --seed {result.seed}{short}{world}{planted} --trace"
            _print(f"again: python -m tests.simulation consensus {again}")
            return 1
        counts += result.counts
        marks += result.marks
        if counts["histories"] % _PROGRESS_EVERY == 0:
            _print(f"{counts['histories']} {strategy} histories, {time.monotonic() - began:.0f} s")
    _print(f"{strategy}: {_summary(counts, marks, time.monotonic() - began)}")
    missing = [mark for mark in DEMANDED[strategy] if not marks[mark]]
    if missing and counts["histories"] >= MARKED_SEEDS and options.kind is None:
        _print(f"marks without a count in any history: {'; '.join(missing)}")
        return 1
    if marks[NO_ELECTION_LEFT] * EXCUSED_AT_MOST_ONE_IN > max(counts["histories"], EXCUSED_AT_MOST_ONE_IN):
        _print(f"too often, {marks[NO_ELECTION_LEFT]} times: {NO_ELECTION_LEFT}")
        return 1
    return 0


def main_mutants(arguments: Sequence[str]) -> int:
    """Search for every planted bug; return 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation consensus-mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of planted bugs (default: all)")
    parser.add_argument(
        "--seeds", type=int, default=MUTANT_SEEDS, help=f"maximum number of seeds (default {MUTANT_SEEDS})"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in _MUTANTS:
            parser.error(f"unknown planted bug {name!r}; available: {', '.join(_MUTANTS)}")
    survivors = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        mutants = [_MUTANTS[name] for name in options.names] or list(ALL_MUTANTS)
        found = pool.map(_find, [mutant.name for mutant in mutants], [options.seeds] * len(mutants))
        for mutant, (seed, text) in zip(mutants, found, strict=True):
            _print(f"{mutant.name:40} {mutant.strategy:6} {'SURVIVED' if seed is None else seed:>8}  {text[:100]}")
            survivors += [mutant.name] if seed is None else []
    _print(f"{len(mutants) - len(survivors)} of {len(mutants)} planted bugs found")
    return 1 if survivors else 0


def find_mutant(mutant: Mutant, first: int, seeds: int) -> tuple[int | None, str]:
    """Return the first seed whose history shows the planted bug, and the error."""
    with mutant.planted():
        for seed in range(first, first + seeds):
            try:
                run_history(seed, strategy=STRATEGIES[mutant.strategy], kind=mutant.kind)
            except StandstillError as error:
                if mutant.stalls:
                    return seed, f"{type(error).__name__}: {error}"
            except FINDINGS as error:
                return seed, f"{type(error).__name__}: {error}"
    return None, ""


def _find(name: str, seeds: int) -> tuple[int | None, str]:
    return find_mutant(_MUTANTS[name], 0, seeds)


def _run_all(options: argparse.Namespace, strategy: str) -> Iterator[Report | Failure]:
    """Run blocks of seeds; yield the results in the order of the seeds."""
    last = options.first + options.seeds
    blocks = [range(first, min(first + _BLOCK, last)) for first in range(options.first, last, _BLOCK)]
    rest = [[value] * len(blocks) for value in (strategy, options.mutant, options.kind, options.short)]
    if options.jobs == 1:
        for block in blocks:
            yield from _run_block(block, strategy, options.mutant, options.kind, options.short)
        return
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for results in pool.map(_run_block, blocks, *rest):
            for result in results:
                if isinstance(result, Failure):
                    pool.shutdown(wait=False, cancel_futures=True)
                yield result


def _run_block(
    seeds: Sequence[int],
    strategy: str,
    mutant: str | None,
    kind: Kind | None,
    short: bool,  # noqa: FBT001 - passed on by position
) -> list[Report | Failure]:
    results: list[Report | Failure] = []
    for seed in seeds:
        results.append(_try(seed, strategy, mutant, kind, short=short, trace=False))
        if isinstance(results[-1], Failure):
            break
    return results


def _try(
    seed: int, strategy: str, mutant: str | None, kind: Kind | None, *, short: bool, trace: bool
) -> Report | Failure:
    planted = _MUTANTS[mutant] if mutant is not None else None
    with planted.planted() if planted is not None else nullcontext():
        try:
            return run_history(
                seed,
                SHORT if short else FULL,
                STRATEGIES[strategy],
                _print if trace else None,
                kind or (planted.kind if planted is not None else None),
            )
        except Exception as error:  # noqa: BLE001 - any error is the result of the history
            return Failure(seed, f"{type(error).__name__}: {error}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", nargs="?", choices=["consensus"], default="consensus")
    parser.add_argument("--seeds", type=int, default=500, help="number of histories (default 500)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="run only the history of this seed")
    parser.add_argument("--short", action="store_true", help="histories of a third of the length")
    parser.add_argument("--mutant", choices=list(_MUTANTS), help="plant this bug")
    parser.add_argument(
        "--strategy",
        dest="strategies",
        action="append",
        choices=list(STRATEGIES),
        help="replication: a leader, fetching followers, a leader of ØMQ Raft, or the followers of a KRaft "
        "quorum (default: all strategies)",
    )
    parser.add_argument("--kind", type=Kind, choices=list(Kind), help="only worlds of this kind (default: all kinds)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--trace", action="store_true", help="print every event and its effects (with --seed)")
    options = parser.parse_args(arguments)
    planted = _MUTANTS.get(options.mutant)
    options.strategies = options.strategies or ([planted.strategy] if planted is not None else list(STRATEGIES))
    return options


def _summary(counts: Counter[str], marks: Counter[str], seconds: float) -> str:
    lines = [f"{counts['histories']} histories in {seconds:.1f} s"]
    lines += [f"  {number:>12,} {what}" for what, number in counts.items() if what != "histories"]
    lines += ["paths that ran:", *(f"  {marks[mark]:>12,} {mark}" for mark in sorted(marks))]
    return "\n".join(lines)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
