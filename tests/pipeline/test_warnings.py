"""The query `warnings`: routers that differ from their own usual values for some time.

Usual values come from the same hour of other days, or from the hours before. Made-up windows have 5 % noise.
"""

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
from tests.pipeline.made_tables import write_derived

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SLOT = timedelta(minutes=10)
DAY_SLOTS = 144
SEED = 7

Signal = Callable[[int], float | None]


def flat(_: int) -> float:
    return 20.0


def season(slot: int) -> float:
    """Return a load whose daily maximum is five times its minimum."""
    return 30.0 + 20.0 * math.sin(2 * math.pi * slot / DAY_SLOTS)


def health_rows(
    slots: int, lag: Signal = flat, tunnels: Signal = flat, round_trip: Signal = flat, **others: Any
) -> list[dict[str, Any]]:
    """Return windows of ten minutes of one router, with noise of 5 %."""
    random = Random(SEED)
    rows = []
    for slot in range(slots):
        values = {"job_lag_p50_ms": lag(slot), "participating_tunnels": tunnels(slot), "fetch_p50_ms": round_trip(slot)}
        noisy = {name: None if value is None else value * random.uniform(0.95, 1.05) for name, value in values.items()}
        at = EPOCH + slot * SLOT
        rows.append({"window_start": at, "window_end": at + SLOT, "server_id": 4, **noisy, **others})
    return rows


def warnings_of(
    output: Path, slots: int, lag: Signal = flat, tunnels: Signal = flat, **others: Any
) -> list[dict[str, Any]]:
    write_derived(output, "router_health", health_rows(slots, lag, tunnels, **others))
    return documents(output, answer_sql("warnings"))


def rising_from(slot_of_rise: int, usual: Signal = flat, factor: float = 4.0) -> Signal:
    return lambda slot: (usual(slot) or 0.0) * (factor if slot >= slot_of_rise else 1.0)


def test_lag_above_same_hour_of_other_days_is_warned_of(tmp_path: Path) -> None:
    # given five days with a season, and four slots with four times the lag
    slots = 5 * DAY_SLOTS
    (row,) = warnings_of(tmp_path, slots, lag=rising_from(slots - 4, season))
    usual = season(slots - 3)
    assert (row["server_id"], row["signal"], row["baseline"], row["lasting"]) == (4, "lag", "days", True)
    assert row["since"] == EPOCH + (slots - 4) * SLOT
    assert row["warned_at"] == EPOCH + (slots - 1) * SLOT, "at the end of the third slot"
    assert 0.8 * usual < row["usual"] < 1.2 * usual
    assert 3 * row["usual"] < row["seen"] < 5 * row["usual"]
    assert row["score"] >= 5


def test_fewer_tunnels_cause_warning_but_more_do_not(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    (row,) = warnings_of(tmp_path / "fewer", slots, tunnels=rising_from(slots - 3, lambda _: 100.0, 0.2))
    assert (row["signal"], row["usual"] > row["seen"]) == ("tunnels", True)
    assert warnings_of(tmp_path / "more", slots, tunnels=rising_from(slots - 3, lambda _: 100.0, 5.0)) == []


def test_slow_lookups_cause_warning(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    (row,) = warnings_of(tmp_path, slots, round_trip=rising_from(slots - 3, lambda _: 400.0, 3.0))
    assert (row["signal"], row["seen"] > 1000) == ("round-trip", True)


def test_daily_season_does_not_cause_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, 5 * DAY_SLOTS, lag=season, tunnels=season) == []


def test_warning_needs_three_of_four_slots(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS

    def spikes(*places: int) -> Signal:
        return lambda slot: 500.0 if slot - slots in places else 20.0

    assert warnings_of(tmp_path / "one", slots, lag=spikes(-40)) == []
    assert warnings_of(tmp_path / "two", slots, lag=spikes(-4, -3, -20, -19)) == []
    (row,) = warnings_of(tmp_path / "three", slots, lag=spikes(-4, -3, -1))
    assert row["since"] == EPOCH + (slots - 4) * SLOT


def test_short_history_is_compared_with_earlier_hours(tmp_path: Path) -> None:
    (row,) = warnings_of(tmp_path, 50, lag=rising_from(47))
    assert (row["signal"], row["baseline"]) == ("lag", "hours")


def test_history_below_two_hours_is_explained(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, 12, lag=rising_from(6)) == []
    result = CliRunner().invoke(query, ["warnings", "--output", str(tmp_path)])
    assert (result.exit_code, result.stderr.startswith("No rows: no router has unusual values")) == (0, True)


def test_small_absolute_change_does_not_cause_warning(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    # given a lag that rises from 0.2 ms to three times as much, and a loss of 3 tunnels
    few = rising_from(slots - 6, lambda _: 0.2, 3.0), rising_from(slots - 6, lambda _: 3.0, 0.0)
    assert warnings_of(tmp_path, slots, *few) == []


def test_router_in_first_hour_is_not_judged(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    assert warnings_of(tmp_path, slots, lag=rising_from(slots - 6), uptime_ms=59 * 60_000) == []


def test_router_without_figures_is_not_judged(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS
    assert warnings_of(tmp_path / "never", slots, lag=lambda _: None, tunnels=lambda _: None) == []

    def value_until_last_hour(slot: int) -> float | None:
        return 20.0 if slot < slots - 6 else None

    assert warnings_of(tmp_path / "no more", slots, lag=value_until_last_hour, tunnels=value_until_last_hour) == []


def test_ended_warning_is_listed_after_active_ones(tmp_path: Path) -> None:
    slots = 5 * DAY_SLOTS

    def lag(slot: int) -> float:
        return 900.0 if slots - 40 <= slot < slots - 30 else 20.0

    over, *_ = warnings_of(tmp_path / "over", slots, lag=lag)
    assert (over["lasting"], over["since"]) == (False, EPOCH + (slots - 40) * SLOT)
    assert EPOCH + (slots - 30) * SLOT <= over["until"] <= EPOCH + (slots - 28) * SLOT
    rows = warnings_of(tmp_path / "both", slots, lag=lag, tunnels=rising_from(slots - 4, lambda _: 100.0, 0.3))
    assert [(row["signal"], row["lasting"]) for row in rows] == [("tunnels", True), ("lag", False)]
    assert rows[1]["score"] > rows[0]["score"]
