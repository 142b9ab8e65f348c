"""The query `warnings`: routers that differ from their own usual values for some time.

Usual values come from the same hour of other days, or from the hours before. Made-up windows have 5 % noise.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query
from pipeline.gold.answers import answer_sql
from pipeline.serve.query import documents
from tests.pipeline.made_tables import write_derived

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SLOT = timedelta(minutes=10)
DAY_SLOTS = 144
SLOTS = 5 * DAY_SLOTS
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


def rising_from(slot_of_rise: int, usual: Signal = flat, factor: float = 4.0) -> Signal:
    return lambda slot: (usual(slot) or 0.0) * (factor if slot >= slot_of_rise else 1.0)


def hundred(_: int) -> float:
    return 100.0


def spikes(*places: int) -> Signal:
    """Return a lag with a high value in these slots, counted from the end."""
    return lambda slot: 500.0 if slot - SLOTS in places else 20.0


def until_last_hour(slot: int) -> float | None:
    return 20.0 if slot < SLOTS - 6 else None


def high_until(slot: int) -> float:
    return 900.0 if SLOTS - 40 <= slot < SLOTS - 30 else 20.0


STORIES = {
    # five days with a season, and four slots with four times the lag
    "lag": health_rows(SLOTS, rising_from(SLOTS - 4, season)),
    "fewer tunnels": health_rows(SLOTS, tunnels=rising_from(SLOTS - 3, hundred, 0.2)),
    "slow lookups": health_rows(SLOTS, round_trip=rising_from(SLOTS - 3, lambda _: 400.0, 3.0)),
    "three spikes": health_rows(SLOTS, spikes(-4, -3, -1)),
    "short history": health_rows(50, rising_from(47)),
    "ended": health_rows(SLOTS, high_until),
    "ended and active": health_rows(SLOTS, high_until, rising_from(SLOTS - 4, hundred, 0.3)),
}
USUAL = {
    "more tunnels": health_rows(SLOTS, tunnels=rising_from(SLOTS - 3, hundred, 5.0)),
    "daily season": health_rows(SLOTS, season, season),
    "one spike": health_rows(SLOTS, spikes(-40)),
    "two of four slots": health_rows(SLOTS, spikes(-4, -3, -20, -19)),
    "history below two hours": health_rows(12, rising_from(6)),
    # a lag that rises from 0.2 ms to three times as much, and a loss of 3 tunnels
    "small absolute change": health_rows(
        SLOTS, rising_from(SLOTS - 6, lambda _: 0.2, 3.0), rising_from(SLOTS - 6, lambda _: 3.0, 0.0)
    ),
    "first hour": health_rows(SLOTS, rising_from(SLOTS - 6), uptime_ms=59 * 60_000),
    "never a figure": health_rows(SLOTS, lambda _: None, lambda _: None),
    "no more figures": health_rows(SLOTS, until_last_hour, until_last_hour),
}
Warned = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> Warned:
    """Return the warnings of each story; each story is a farm with one router."""
    output, stories = tmp_path_factory.mktemp("stories"), STORIES | USUAL
    farms = {f"{number:032x}": name for number, name in enumerate(stories)}
    write_derived(
        output, "router_health", [row | {"farm": farm} for farm, name in farms.items() for row in stories[name]]
    )
    found: Warned = {name: [] for name in stories}
    for row in documents(output, answer_sql("warnings")):
        found[farms[row["farm"]]].append(row)
    return found


def test_lag_above_same_hour_of_other_days_is_warned_of(warned: Warned) -> None:
    (row,) = warned["lag"]
    usual = season(SLOTS - 3)
    assert (row["server_id"], row["signal"], row["baseline"], row["lasting"]) == (4, "lag", "days", True)
    assert row["since"] == EPOCH + (SLOTS - 4) * SLOT
    assert row["warned_at"] == EPOCH + (SLOTS - 1) * SLOT, "at the end of the third slot"
    assert 0.8 * usual < row["usual"] < 1.2 * usual
    assert 3 * row["usual"] < row["seen"] < 5 * row["usual"]
    assert row["score"] >= 5


def test_fewer_tunnels_and_slow_lookups_cause_warnings(warned: Warned) -> None:
    (fewer,), (slow,) = warned["fewer tunnels"], warned["slow lookups"]
    assert (fewer["signal"], fewer["usual"] > fewer["seen"]) == ("tunnels", True)
    assert (slow["signal"], slow["seen"] > 1000) == ("round-trip", True)


def test_three_of_four_slots_cause_warning(warned: Warned) -> None:
    (row,) = warned["three spikes"]
    assert row["since"] == EPOCH + (SLOTS - 4) * SLOT


def test_short_history_is_compared_with_earlier_hours(warned: Warned) -> None:
    (row,) = warned["short history"]
    assert (row["signal"], row["baseline"]) == ("lag", "hours")


@pytest.mark.parametrize("story", USUAL)
def test_usual_values_do_not_cause_warning(story: str, warned: Warned) -> None:
    assert warned[story] == []


def test_history_below_two_hours_is_explained(tmp_path: Path) -> None:
    write_derived(tmp_path, "router_health", USUAL["history below two hours"])
    result = CliRunner().invoke(query, ["warnings", "--output", str(tmp_path)])
    assert (result.exit_code, result.stderr.startswith("No rows: no router has unusual values")) == (0, True)


def test_ended_warning_is_listed_after_active_ones(warned: Warned) -> None:
    over, *_ = warned["ended"]
    assert (over["lasting"], over["since"]) == (False, EPOCH + (SLOTS - 40) * SLOT)
    assert EPOCH + (SLOTS - 30) * SLOT <= over["until"] <= EPOCH + (SLOTS - 28) * SLOT
    rows = warned["ended and active"]
    assert [(row["signal"], row["lasting"]) for row in rows] == [("tunnels", True), ("lag", False)]
    assert rows[1]["score"] > rows[0]["score"]
