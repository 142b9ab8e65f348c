"""Small versions of the experiments: the same code as `python -m tests.simulation gossip-experiments`, in seconds.

If a small sample could miss a bound by chance, its test widens the bound by three standard errors of the sample.
"""

from functools import partial
from math import log2
from pathlib import Path
from random import Random
from statistics import fmean, median, stdev

import pytest

from tests.effort import IS_SOAK, few_of
from tests.simulation.gossip_experiments.command import main
from tests.simulation.gossip_experiments.detection import EXPECTED_PERIODS, first_detections, quiet_load
from tests.simulation.gossip_experiments.dissemination import AT_HALF_LOSS, WITHOUT_LOSS, mass_crash, without_a_crash
from tests.simulation.gossip_experiments.figures import (
    correlation_of_neighbors,
    mean_of,
    median_of,
    none_of,
    quantile,
    ratio_of,
    table,
)
from tests.simulation.gossip_experiments.finished_runs import FinishedRuns
from tests.simulation.gossip_experiments.lifeguard import (
    COUNTS,
    DURATIONS_MS,
    INTERVALS_MS,
    PARTS,
    Cell,
    FalsePositives,
    grid,
    interval_run,
    sampled,
    seed_of,
    threshold_run,
)

SEED = 1


@pytest.mark.parametrize(
    ("size", "samples"), few_of({"small": (30, 40), "many": (50, 120), "large": (120, 40)}, "small")
)
def test_first_detection_takes_expected_periods(size: int, samples: int) -> None:
    found = first_detections(size, samples, SEED)
    assert all(periods == round(periods) >= 1 for periods in found.periods), "a detection takes whole periods"
    error = stdev(found.periods) / len(found.periods) ** 0.5
    assert fmean(found.periods) == pytest.approx(EXPECTED_PERIODS, abs=0.03 * EXPECTED_PERIODS + 3 * error)


@pytest.mark.parametrize("size", [50, pytest.param(150, marks=pytest.mark.soak)])
def test_idle_member_sends_two_probe_messages_per_period(size: int) -> None:
    load = quiet_load(size, 5, SEED)
    assert 1.9 <= load.probe_messages <= 2.1


@pytest.mark.parametrize(
    ("size", "loss", "bound"),
    few_of(
        {
            "small": (50, 0.0, WITHOUT_LOSS),
            "large": (100, 0.0, WITHOUT_LOSS),
            "few lossy": (30, 0.5, AT_HALF_LOSS),
            "lossy": (50, 0.5, AT_HALF_LOSS),
        },
        *("small", "few lossy"),
    ),
)
def test_mass_crash_is_known_within_bound(size: int, loss: float, bound: int) -> None:
    crash = mass_crash(size, loss, SEED)
    assert crash.slowest is not None
    assert crash.slowest <= bound * log2(size)
    assert crash.missing == 0
    if loss == 0:
        assert crash.false_deaths == 0


def test_mass_crash_at_99_percent_loss_reports_missed_crashes(capsys: pytest.CaptureFixture[str]) -> None:
    incomplete = mass_crash(20, 0.99, SEED)
    assert incomplete.slowest is None
    assert 0 < incomplete.missing <= 2 * 18
    assert main(["mass-crash", "--sizes", "20", "--losses", "0.99", "--seed", str(SEED)]) == 0
    assert f"missed: {incomplete.missing} of 36 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "periods"), [(30, 60), pytest.param(100, 150, marks=pytest.mark.soak)], ids=["small", "large"]
)
def test_running_members_at_5_percent_loss_are_not_declared_dead(size: int, periods: int) -> None:
    steady = without_a_crash(size, periods, 0.05, SEED)
    assert steady.deaths == 0


def test_group_at_30_percent_loss_has_suspicions() -> None:
    steady = without_a_crash(20, 40, 0.3, SEED)
    assert steady.accusations > 0


@pytest.mark.search
def test_lifeguard_has_fewer_false_positives_than_swim() -> None:
    variants = ("Lifeguard", "as shipped") if IS_SOAK else ("as shipped",)
    cell = Cell(count=6, duration_ms=16_384, interval_ms=1_024)
    figures = {
        name: interval_run(cell, PARTS[name], SEED, size=32, length_ms=18_000) for name in ("plain SWIM", *variants)
    }
    assert figures["plain SWIM"].at_healthy >= 100
    for name in variants:
        assert figures[name].at_healthy <= 0.03 * figures["plain SWIM"].at_healthy


@pytest.mark.search
def test_lifeguard_detects_failures_as_fast_as_swim() -> None:
    medians = {
        name: median(threshold_run(4, 32_768, PARTS[name], SEED, size=48 if IS_SOAK else 32).first_s)
        for name in ("plain SWIM", "Lifeguard")
    }
    assert medians["Lifeguard"] == pytest.approx(medians["plain SWIM"], rel=0.1)


def test_grid_has_each_count_with_each_duration() -> None:
    cells = grid()
    assert len(cells) == len(set(cells)) == 9 * 6 * 8
    for intervals in (1, 2, 5):
        some = grid(intervals)
        assert some == cells[: 54 * intervals]
        for count in COUNTS:
            for duration_ms in DURATIONS_MS:
                here = [cell for cell in some if (cell.count, cell.duration_ms) == (count, duration_ms)]
                assert len(here) == intervals


def test_smallest_grid_has_all_intervals_for_each_duration() -> None:
    for duration_ms in DURATIONS_MS:
        assert {cell.interval_ms for cell in grid(1) if cell.duration_ms == duration_ms} == set(INTERVALS_MS)


def test_sampled_cells_are_in_grid_with_unique_seeds() -> None:
    assert len(sampled()) == 3
    assert set(sampled()) < set(grid(1))
    seeds = [seed_of(cell, 3) for cell in grid()]
    assert len(set(seeds)) == len(seeds)


def test_parts_are_distinct_variants_of_swim() -> None:
    plain, *alone = [PARTS[name] for name in ("plain SWIM", "local health", "shrinking suspicion", "buddy notice")]
    assert len({plain, *alone}) == 4
    assert PARTS["Lifeguard"].plain_swim() == plain


def test_figures_are_within_their_intervals() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    for figure, value in ((mean_of(values), 22.0), (median_of(values), 3.0), (ratio_of([1, 2, 3], [10, 20, 30]), 0.1)):
        assert figure.value == pytest.approx(value)
        assert figure.low <= figure.value <= figure.high


def test_correlation_of_independent_values_is_near_zero() -> None:
    random = Random(SEED)
    independent = [[random.random() for _ in range(1_000)] for _ in range(4)]
    assert abs(correlation_of_neighbors(independent)) < 0.05
    assert correlation_of_neighbors([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]) > 0.4
    assert correlation_of_neighbors([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]]) < -0.4


def test_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 100.0, 198.0, 200.0]


def test_stored_run_is_repeated_only_if_its_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    played = []

    def play(count: int) -> FalsePositives:
        played.append(count)
        return FalsePositives(count, 2, 3, 4)

    for _ in range(2):
        finished = FinishedRuns(path)
        found = [finished.once(FalsePositives, {"run": "a", "count": count}, partial(play, count)) for count in (1, 2)]
        assert [each.everywhere for each in found] == [1, 2]
    assert played == [1, 2]

    path.write_text(path.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    finished = FinishedRuns(path)
    assert finished.once(FalsePositives, {"count": 2, "run": "a"}, partial(play, 2)) == FalsePositives(2, 2, 3, 4)
    assert played == [1, 2, 2]
    assert FinishedRuns(path).once(FalsePositives, {"run": "a", "count": 2}, partial(play, 9)).everywhere == 2


def test_ratio_of_different_runs_has_wide_interval() -> None:
    agreeing = ratio_of([10, 10, 10, 10], [100, 100, 100, 100])
    disagreeing = ratio_of([0, 0, 0, 40], [100, 100, 100, 100])
    assert agreeing.high - agreeing.low < 1e-9
    assert disagreeing.low == 0
    assert disagreeing.high > 0.15


def test_interval_of_zero_events_shrinks_with_sample() -> None:
    assert none_of(100).high == pytest.approx(0.03)
    assert none_of(1_000).high == pytest.approx(0.003)
    assert none_of(2).high == 1.0


def test_table_is_markdown() -> None:
    assert table(["a", "bc"], [["1", "2"]]) == "| a | bc |\n| - | -- |\n| 1 | 2  |"


def test_command_prints_table_with_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--sizes", "20,30", "--seed", "7"]) == 0
    printed = capsys.readouterr().out
    assert "| 20 | 2.000" in printed
    assert "seed 7" in printed


def test_command_prints_stored_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["detection", "--sizes", "12", "--samples", "3", "--finished", str(tmp_path / "runs")]
    printed = []
    for _ in range(2):
        assert main(arguments) == 0
        printed.append(capsys.readouterr().out.partition(" s of processor time")[0].rpartition("\n")[0])
    assert printed[0] == printed[1]
    assert len((tmp_path / "runs").read_text(encoding="utf-8").splitlines()) == 1


def test_command_unknown_experiment_lists_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing-like-it"])
    assert "mass-crash" in capsys.readouterr().err
