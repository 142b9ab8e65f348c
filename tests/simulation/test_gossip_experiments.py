"""The experiments in small: the same code as `python -m tests.simulation gossip-experiments`, in seconds.

Bounds that a small sample could miss by chance are widened by three times its standard error, never by more.
"""

from math import log2
from statistics import fmean, median, stdev

import pytest

from tests.simulation.gossip_experiments.command import main
from tests.simulation.gossip_experiments.detection import EXPECTED_PERIODS, first_detections, quiet_load
from tests.simulation.gossip_experiments.dissemination import AT_HALF_LOSS, WITHOUT_LOSS, mass_crash, without_a_crash
from tests.simulation.gossip_experiments.figures import mean_of, median_of, none_of, ratio_of, table
from tests.simulation.gossip_experiments.lifeguard import (
    COARSE,
    COUNTS,
    DURATIONS_MS,
    PARTS,
    Cell,
    grid,
    interval_run,
    threshold_run,
)

SEED = 1


@pytest.mark.parametrize(("size", "samples"), [(50, 120), (120, 40)])
def test_the_first_detection_takes_e_over_e_minus_1_periods_whatever_the_size(size: int, samples: int) -> None:
    found = first_detections(size, samples, SEED)
    assert all(periods == round(periods) >= 1 for periods in found.periods), "periods are aligned"
    error = stdev(found.periods) / len(found.periods) ** 0.5
    assert fmean(found.periods) == pytest.approx(EXPECTED_PERIODS, abs=0.03 * EXPECTED_PERIODS + 3 * error)


@pytest.mark.parametrize("size", [50, 150])
def test_a_quiet_group_sends_at_most_2_1_probe_messages_per_member_and_period(size: int) -> None:
    load = quiet_load(size, 5, SEED)
    assert 1.9 <= load.probe_messages <= 2.1


@pytest.mark.parametrize(
    ("size", "loss", "bound"), [(50, 0.0, WITHOUT_LOSS), (100, 0.0, WITHOUT_LOSS), (50, 0.5, AT_HALF_LOSS)]
)
def test_the_deaths_of_a_tenth_at_once_are_known_to_everyone_in_time(size: int, loss: float, bound: int) -> None:
    crash = mass_crash(size, loss, SEED)
    assert crash.slowest is not None
    assert crash.slowest <= bound * log2(size)
    if loss == 0:
        assert crash.false_deaths == 0


def test_nobody_is_buried_alive_at_5_percent_loss() -> None:
    steady = without_a_crash(100, 150, 0.05, SEED)
    assert steady.deaths == 0


def test_under_heavier_loss_the_same_group_has_suspicions_so_the_count_of_deaths_can_fail() -> None:
    steady = without_a_crash(20, 40, 0.3, SEED)
    assert steady.accusations > 0


def test_lifeguard_keeps_healthy_members_from_being_declared_dead_where_plain_swim_does_not() -> None:
    cell = Cell(count=6, duration_ms=16_384, interval_ms=1_024)
    figures = {
        name: interval_run(cell, PARTS[name], SEED, size=32, length_ms=34_000)
        for name in ("plain SWIM", "Lifeguard", "as shipped")
    }
    assert figures["plain SWIM"].at_healthy >= 200
    for name in ("Lifeguard", "as shipped"):
        assert figures[name].at_healthy <= 0.03 * figures["plain SWIM"].at_healthy


def test_lifeguard_detects_true_failures_as_fast_as_plain_swim() -> None:
    medians = {
        name: median(threshold_run(4, 32_768, PARTS[name], SEED, size=48).first_s)
        for name in ("plain SWIM", "Lifeguard")
    }
    assert medians["Lifeguard"] == pytest.approx(medians["plain SWIM"], rel=0.1)


def test_the_grid_is_the_papers_and_the_coarse_one_a_part_of_it() -> None:
    cells = list(grid())
    assert len(cells) == len(set(cells)) == 9 * 6 * 8
    assert set(COARSE) < set(cells)
    assert {cell.duration_ms for cell in COARSE} == set(DURATIONS_MS)
    assert {cell.count for cell in COARSE} < set(COUNTS)


def test_the_parts_differ_from_plain_swim_by_one_part_each() -> None:
    plain, *alone = [PARTS[name] for name in ("plain SWIM", "local health", "shrinking suspicion", "buddy notice")]
    assert len({plain, *alone}) == 4
    assert PARTS["Lifeguard"].plain_swim() == plain


def test_means_medians_and_ratios_have_intervals_that_hold_them() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    for figure, value in ((mean_of(values), 22.0), (median_of(values), 3.0), (ratio_of([1, 2, 3], [10, 20, 30]), 0.1)):
        assert figure.value == pytest.approx(value)
        assert figure.low <= figure.value <= figure.high


def test_a_ratio_of_runs_that_disagree_has_a_wide_interval() -> None:
    agreeing = ratio_of([10, 10, 10, 10], [100, 100, 100, 100])
    disagreeing = ratio_of([0, 0, 0, 40], [100, 100, 100, 100])
    assert agreeing.high - agreeing.low < 1e-9
    assert disagreeing.low == 0
    assert disagreeing.high > 0.15


def test_nothing_in_a_small_sample_may_still_be_something() -> None:
    assert none_of(100).high == pytest.approx(0.03)
    assert none_of(1_000).high == pytest.approx(0.003)
    assert none_of(2).high == 1.0


def test_a_table_is_markdown() -> None:
    assert table(["a", "bc"], [["1", "2"]]) == "| a | bc |\n| - | -- |\n| 1 | 2  |"


def test_the_command_prints_a_table_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--sizes", "20,30", "--seed", "7"]) == 0
    printed = capsys.readouterr().out
    assert "| 20 | 2.000" in printed
    assert "seed 7" in printed


def test_the_command_names_its_experiments_when_it_does_not_know_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing-like-it"])
    assert "mass-crash" in capsys.readouterr().err
