"""Warnings are of routers that depart from their own usual and go on doing so, and of nothing else."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from pipeline.cli.queries import query
from pipeline.gold.answers import answer_sql
from pipeline.serve.query import documents
from tests.pipeline.made_tables import derived

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SLOT = timedelta(minutes=10)
DAY_SLOTS = 144
SEED = 7

Signal = Callable[[int], float | None]


def flat(_: int) -> float:
    return 20.0


def season(slot: int) -> float:
    """Five times as much in the evening as in the morning."""
    return 30.0 + 20.0 * math.sin(2 * math.pi * slot / DAY_SLOTS)


def health_rows(
    slots: int, lag: Signal = flat, tunnels: Signal = flat, round_trip: Signal = flat, **others: Any
) -> list[dict[str, Any]]:
    """So many windows of ten minutes of one router, whose values are noisy by a few percent."""
    random = Random(SEED)
    rows = []
    for slot in range(slots):
        told = {
            "job_lag_p50_ms": lag(slot),
            "participating_tunnels": tunnels(slot),
            "fetch_p50_ms": round_trip(slot),
        }
        noisy = {name: None if value is None else value * random.uniform(0.95, 1.05) for name, value in told.items()}
        at = EPOCH + slot * SLOT
        rows.append({"window_start": at, "window_end": at + SLOT, "server_id": 4, **noisy, **others})
    return rows


def warned(output: Path, slots: int, lag: Signal = flat, tunnels: Signal = flat, **others: Any) -> list[dict[str, Any]]:
    """What is warned of at the end of these windows."""
    derived(output, "router_health", health_rows(slots, lag, tunnels, **others))
    return documents(output, answer_sql("warnings"))


def rising_from(slot_of_rise: int, usual: Signal = flat, factor: float = 4.0) -> Signal:
    return lambda slot: (usual(slot) or 0.0) * (factor if slot >= slot_of_rise else 1.0)


def test_a_lag_that_stays_above_the_same_hour_of_other_days_is_warned_of_with_both_values(tmp_path: Path) -> None:
    # given five days of a season, and four slots of four times the lag
    slots = 5 * DAY_SLOTS
    (row,) = warned(tmp_path, slots, lag=rising_from(slots - 4, season))
    usual = season(slots - 3)
    assert (row["server_id"], row["signal"], row["baseline"], row["lasting"]) == (4, "lag", "days", True)
    assert row["since"] == EPOCH + (slots - 4) * SLOT
    assert row["warned_at"] == EPOCH + (slots - 1) * SLOT, "at the end of the third slot"
    assert 0.8 * usual < row["usual"] < 1.2 * usual
    assert 3 * row["usual"] < row["seen"] < 5 * row["usual"]
    assert row["score"] >= 5


def test_fewer_tunnels_are_worse_and_more_are_not(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    (row,) = warned(tmp_path / "fewer", slots, tunnels=rising_from(slots - 3, lambda _: 100.0, 0.2))
    assert (row["signal"], row["usual"] > row["seen"]) == ("tunnels", True)
    assert warned(tmp_path / "more", slots, tunnels=rising_from(slots - 3, lambda _: 100.0, 5.0)) == []


def test_a_router_that_takes_longer_than_usual_to_find_others_is_warned_of(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    (row,) = warned(tmp_path, slots, round_trip=rising_from(slots - 3, lambda _: 400.0, 3.0))
    assert (row["signal"], row["seen"] > 1000) == ("round-trip", True)


def test_what_follows_the_hour_of_day_is_usual(tmp_path: Path) -> None:
    assert warned(tmp_path, 5 * DAY_SLOTS, lag=season, tunnels=season) == []


def test_a_spike_is_no_warning_and_three_slots_of_four_are_one(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS

    def spikes(*places: int) -> Signal:
        return lambda slot: 500.0 if slot - slots in places else 20.0

    assert warned(tmp_path / "one", slots, lag=spikes(-40)) == []
    assert warned(tmp_path / "two", slots, lag=spikes(-4, -3, -20, -19)) == []
    (row,) = warned(tmp_path / "three", slots, lag=spikes(-4, -3, -1))
    assert row["since"] == EPOCH + (slots - 4) * SLOT


def test_with_less_than_three_days_the_hours_before_are_compared(tmp_path: Path) -> None:
    (row,) = warned(tmp_path, 50, lag=rising_from(47))
    assert (row["signal"], row["baseline"]) == ("lag", "hours")


def test_with_less_than_two_hours_nothing_is_told_and_why(tmp_path: Path) -> None:
    assert warned(tmp_path, 12, lag=rising_from(6)) == []
    result = CliRunner().invoke(query, ["warnings", "--output", str(tmp_path)])
    assert (result.exit_code, result.stderr.startswith("No rows: no router departs from its own usual")) == (0, True)


def test_a_constant_signal_that_moves_a_little_is_not_warned_of(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    # given a lag of 0.2 ms that becomes three times as much, and 3 tunnels that are lost
    few = rising_from(slots - 6, lambda _: 0.2, 3.0), rising_from(slots - 6, lambda _: 3.0, 0.0)
    assert warned(tmp_path, slots, *few) == []


def test_a_router_in_its_first_hour_is_warming_up(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    assert warned(tmp_path, slots, lag=rising_from(slots - 6), uptime_ms=59 * 60_000) == []


def test_what_a_router_does_not_tell_is_not_judged(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    assert warned(tmp_path / "never", slots, lag=lambda _: None, tunnels=lambda _: None) == []

    def until_lately(slot: int) -> float | None:
        return 20.0 if slot < slots - 6 else None

    assert warned(tmp_path / "no more", slots, lag=until_lately, tunnels=until_lately) == []


def test_a_warning_that_is_over_is_told_behind_those_that_last(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS

    def lag(slot: int) -> float:
        return 900.0 if slots - 40 <= slot < slots - 30 else 20.0

    over, *_ = warned(tmp_path / "over", slots, lag=lag)
    assert (over["lasting"], over["since"]) == (False, EPOCH + (slots - 40) * SLOT)
    assert EPOCH + (slots - 30) * SLOT <= over["until"] <= EPOCH + (slots - 28) * SLOT
    rows = warned(tmp_path / "both", slots, lag=lag, tunnels=rising_from(slots - 4, lambda _: 100.0, 0.3))
    assert [(row["signal"], row["lasting"]) for row in rows] == [("tunnels", True), ("lag", False)]
    assert rows[1]["score"] > rows[0]["score"]
