"""The experiments in small: the same code as `python -m tests.simulation gossip-experiments`, in seconds.

Bounds that a small sample could miss by chance are widened by three times its standard error, never by more.
"""

from functools import partial
from math import log2
from pathlib import Path
from random import Random
from statistics import fmean, median, stdev

import pytest

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
    assert crash.missing == 0
    if loss == 0:
        assert crash.false_deaths == 0


def test_a_crash_that_not_all_members_learned_of_says_how_many_did_not(capsys: pytest.CaptureFixture[str]) -> None:
    deaf = mass_crash(20, 0.99, SEED)
    assert deaf.slowest is None
    assert 0 < deaf.missing <= 2 * 18
    assert main(["mass-crash", "--sizes", "20", "--losses", "0.99", "--seed", str(SEED)]) == 0
    assert f"missed: {deaf.missing} of 36 unheard" in capsys.readouterr().out


def test_no_living_member_is_declared_dead_at_5_percent_loss() -> None:
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


def test_the_grid_is_the_papers_and_a_part_of_it_has_each_count_with_each_duration() -> None:
    cells = grid()
    assert len(cells) == len(set(cells)) == 9 * 6 * 8
    for intervals in (1, 2, 5):
        some = grid(intervals)
        assert some == cells[: 54 * intervals]
        for count in COUNTS:
            for duration_ms in DURATIONS_MS:
                here = [cell for cell in some if (cell.count, cell.duration_ms) == (count, duration_ms)]
                assert len(here) == intervals


def test_with_one_interval_for_each_cell_every_duration_meets_all_of_them() -> None:
    for duration_ms in DURATIONS_MS:
        assert {cell.interval_ms for cell in grid(1) if cell.duration_ms == duration_ms} == set(INTERVALS_MS)


def test_the_cells_for_the_parts_are_of_the_grid_and_each_cell_has_a_seed_of_its_own() -> None:
    assert len(sampled()) == 3
    assert set(sampled()) < set(grid(1))
    seeds = [seed_of(cell, 3) for cell in grid()]
    assert len(set(seeds)) == len(seeds)


def test_the_parts_differ_from_plain_swim_by_one_part_each() -> None:
    plain, *alone = [PARTS[name] for name in ("plain SWIM", "local health", "shrinking suspicion", "buddy notice")]
    assert len({plain, *alone}) == 4
    assert PARTS["Lifeguard"].plain_swim() == plain


def test_means_medians_and_ratios_have_intervals_that_hold_them() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    for figure, value in ((mean_of(values), 22.0), (median_of(values), 3.0), (ratio_of([1, 2, 3], [10, 20, 30]), 0.1)):
        assert figure.value == pytest.approx(value)
        assert figure.low <= figure.value <= figure.high


def test_independent_values_have_next_to_no_correlation_with_their_neighbors() -> None:
    random = Random(SEED)
    independent = [[random.random() for _ in range(1_000)] for _ in range(4)]
    assert abs(correlation_of_neighbors(independent)) < 0.05
    assert correlation_of_neighbors([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]) > 0.4
    assert correlation_of_neighbors([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]]) < -0.4


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 100.0, 198.0, 200.0]


def test_a_finished_run_is_not_played_again_and_a_line_cut_off_is(tmp_path: Path) -> None:
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


def test_the_command_prints_finished_runs_without_playing_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["detection", "--sizes", "12", "--samples", "3", "--finished", str(tmp_path / "runs")]
    printed = []
    for _ in range(2):
        assert main(arguments) == 0
        printed.append(capsys.readouterr().out.partition(" s of processor time")[0].rpartition("\n")[0])
    assert printed[0] == printed[1]
    assert len((tmp_path / "runs").read_text(encoding="utf-8").splitlines()) == 1


def test_the_command_names_its_experiments_when_it_does_not_know_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing-like-it"])
    assert "mass-crash" in capsys.readouterr().err
