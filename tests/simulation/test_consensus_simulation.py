"""Simulated histories in the test run: a few hundred short ones, every planted bug, and repeatability."""

from collections import Counter

import pytest

from consensus.core.invariants import InvariantBrokenError
from tests.simulation.consensus.checker import ViolationError
from tests.simulation.consensus.command import main
from tests.simulation.consensus.history import CORES, run_history
from tests.simulation.consensus.mutants import MUTANTS, Mutant
from tests.simulation.consensus.pull_mutants import PULL_MUTANTS

SEEDS_FOR_MUTANTS = 300
"""Each planted bug is found within these; most within ten."""


@pytest.mark.parametrize("strategy", CORES)
@pytest.mark.parametrize("block", range(5))
def test_no_invariant_breaks_and_every_world_recovers_after_healing(block: int, strategy: str) -> None:
    totals: Counter[str] = Counter()
    for seed in range(10_000 + block * 20, 10_000 + (block + 1) * 20):
        report = run_history(seed, 1_000, CORES[strategy])
        totals.update(
            elections=report.elections,
            crashes=report.crashes,
            commits=report.commits,
            acknowledged=report.acknowledged,
            changes=report.changes,
            lost=report.lost,
        )
    # The faults did happen, and work was done all the same.
    assert min(totals[what] for what in ("elections", "crashes", "commits", "acknowledged", "lost")) > 20, totals
    assert totals["changes"] > 0, totals


@pytest.mark.parametrize("mutant", [*MUTANTS, *PULL_MUTANTS], ids=lambda mutant: mutant.name)
def test_every_planted_bug_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        for seed in range(mutant.first_seed, SEEDS_FOR_MUTANTS):
            try:
                run_history(seed, make_core=CORES[mutant.strategy])
            except (ViolationError, InvariantBrokenError):
                return
    pytest.fail(f"{mutant.name} ({mutant.story}) survived {SEEDS_FOR_MUTANTS} histories: the simulator is blind to it")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_seed_gives_the_same_trace_byte_for_byte(seed: int) -> None:
    first: list[str] = []
    second: list[str] = []
    one = run_history(seed, steps=600, show=first.append)
    other = run_history(seed, steps=600, show=second.append)
    assert first == second
    assert one == other


def test_another_seed_gives_another_trace() -> None:
    assert run_history(1, steps=300).trace_digest != run_history(2, steps=300).trace_digest


def test_a_violation_names_the_line_that_shows_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consensus", "--seeds", "50", "--mutant", "vote-twice"]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("again: python -m tests.simulation consensus --seed ")
    arguments = line.split("tests.simulation ")[1].removesuffix(" --trace").split()
    assert main(arguments) == 1


def test_a_long_run_prints_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--steps", "300"]) == 0
    assert capsys.readouterr().out.startswith("3 histories, ")
