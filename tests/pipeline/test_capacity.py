"""The query `capacity`: forecasts of a load with a known trend, and the capacity without the largest router."""

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query
from pipeline.gold.answers import answer_sql
from pipeline.serve.query import documents
from pipeline.serve.report import make_report
from tests.pipeline.made_tables import write_current_state, write_derived

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LIMIT_BYTES_PER_S = 1_000_000


def hours(days: float) -> Iterator[tuple[float, dict[str, Any]]]:
    for hour in range(round(days * 24)):
        start = BEGIN + hour * HOUR
        yield hour / 24, {"window_start": start, "window_end": start + HOUR}


def rows_of_a_router(server: int, days: float, cpu: Callable[[float], float | None]) -> list[dict[str, Any]]:
    """Return the hourly rows of a router with the processor load `cpu(day)`."""
    return [{**window, "server_id": server, "cpu_percent": cpu(day)} for day, window in hours(days)]


def swing(day: float) -> float:
    """Return the periodic daily change of the load, which is not a trend."""
    return 10 * math.sin(2 * math.pi * day)


def capacity_rows(output: Path) -> list[dict[str, Any]]:
    rows = documents(output, answer_sql("capacity"))
    assert [row["days_left"] for row in rows] == sorted(
        (row["days_left"] for row in rows), key=lambda days: math.inf if days is None else days
    ), "sorted by days left"
    return rows


def test_forecast_follows_trend_despite_daily_swing(tmp_path: Path) -> None:
    random = Random(5)

    def busy(day: float) -> float:
        # A tenth of the hours has an outage or a burst.
        disturbed = random.choice((0.0, 100.0)) if random.random() < 0.1 else 30 + 2 * day + swing(day)
        return disturbed + random.uniform(-1, 1)

    write_derived(tmp_path, "router_health", rows_of_a_router(1, 20, busy))
    (row,) = (row for row in capacity_rows(tmp_path) if row["kind"] == "router" and row["resource"] == "cpu")
    assert (row["days"], row["trend"]) == (20, pytest.approx(0.02, abs=0.004))
    assert row["trend_low"] < row["trend"] < row["trend_high"]
    assert row["days_left"] == pytest.approx(row["headroom"] / row["trend"], abs=0.1)
    assert row["days_left_soonest"] < row["days_left"] < row["days_left_latest"]


def test_days_left_without_rise_and_at_limit(tmp_path: Path) -> None:
    routers = {
        1: lambda day: 40 + swing(day),
        2: lambda day: 90 - 3 * day,
        3: lambda _: 100.0,
        # router 4 reaches its limit after more than a year
        4: lambda day: 40 + 0.05 * day,
    }
    write_derived(
        tmp_path, "router_health", [row for server in routers for row in rows_of_a_router(server, 8, routers[server])]
    )
    rows = {row["name"]: row for row in capacity_rows(tmp_path) if row["kind"] == "router"}
    assert {name: row["days_left"] for name, row in rows.items()} == {"1": None, "2": None, "3": 0.0, "4": None}
    assert (rows["2"]["trend"], rows["4"]["trend"]) == (-0.03, 0.0005)


def test_trend_requires_three_days(tmp_path: Path) -> None:
    write_derived(tmp_path, "router_health", rows_of_a_router(1, 2, lambda day: 10 + 20 * day))
    row = capacity_rows(tmp_path)[0]
    assert (row["days"], row["trend"], row["trend_high"], row["days_left_soonest"]) == (2, None, None, None)
    assert row["load"] == pytest.approx(0.1 + 0.2 * (2 - 2.5 / 24), abs=1e-6), "the mean of the last four hours"


def test_absent_router_is_excluded_from_farm_capacity(tmp_path: Path) -> None:
    absent = [row for row in rows_of_a_router(3, 5, lambda _: 50.0) if row["window_end"] <= BEGIN + timedelta(days=3)]
    write_derived(
        tmp_path,
        "router_health",
        [*rows_of_a_router(1, 5, lambda _: 60.0), *rows_of_a_router(2, 5, lambda _: 30.0), *absent],
    )
    rows = {(row["kind"], row["resource"], row["name"][:1]): row for row in capacity_rows(tmp_path)}
    assert set(rows) == {("router", "cpu", "1"), ("router", "cpu", "2"), ("farm", "router cpu", "f")}
    farm = rows["farm", "router cpu", "f"]
    assert (farm["load"], farm["headroom_n1"]) == (0.45, pytest.approx(0.1)), (
        "one processor with the load of 60 and 30 percent"
    )
    assert rows["router", "cpu", "1"]["headroom_n1"] is None


def test_headroom_without_largest_router_uses_reported_limits(tmp_path: Path) -> None:
    routers = {1: (3 * LIMIT_BYTES_PER_S, 900_000.0), 2: (LIMIT_BYTES_PER_S, 300_000.0), 3: (LIMIT_BYTES_PER_S, 0.0)}
    serving = {"d-shared": (1, 2), "d-alone": (3,)}
    write_derived(
        tmp_path,
        "router_health",
        [
            {**window, "server_id": server, "bandwidth_bytes_per_s": load}
            for server, (_, load) in routers.items()
            for _, window in hours(4)
        ],
    )
    write_derived(
        tmp_path,
        "destination_health",
        [
            {**window, "destination": name, "server_id": server, "connections": 30.0 + 10 * day}
            for name, servers in serving.items()
            for server in servers
            for day, window in hours(4)
        ],
    )
    write_current_state(
        tmp_path,
        0,
        {
            "routers": [
                {"index": 1, "server_id": server, "configured_bandwidth_bytes_per_s": limit}
                for server, (limit, _) in routers.items()
            ],
            "destinations": [
                {"index": 1, "server_id": server, "destination": "d-shared", "configured_connections": 100}
                for server in (1, 2)
            ],
        },
    )
    rows = {(row["name"], row["resource"]): row for row in capacity_rows(tmp_path) if row["kind"] == "destination"}
    assert {name for name, _ in rows} == {"d-shared"}, (
        "a destination with one router has no rows besides those of the router"
    )
    shared = rows["d-shared", "router bandwidth"]
    assert (shared["load"], shared["headroom_n1"]) == (0.3, pytest.approx(-0.2)), "1.2 MB/s on a router for 1 MB/s"
    connections = rows["d-shared", "connections"]
    assert (connections["trend"], connections["days_left"]) == (pytest.approx(0.1), pytest.approx(3.1, abs=0.1))


def test_query_without_figures_explains_missing_rows(tmp_path: Path) -> None:
    write_derived(tmp_path, "router_health", [{**window, "server_id": 1, "reports": 1} for _, window in hours(1)])
    write_derived(
        tmp_path, "destination_health", [{**window, "server_id": 1, "destination": "d"} for _, window in hours(1)]
    )
    write_current_state(
        tmp_path, 0, {"routers": [{"index": 1, "server_id": 1}], "destinations": [{"index": 1, "server_id": 1}]}
    )
    result = CliRunner().invoke(query, ["capacity", "--output", str(tmp_path)])
    assert (result.exit_code, "No rows: no report has processor" in result.stderr) == (0, True)


def test_impossible_figures_are_clamped(tmp_path: Path) -> None:
    def hostile(day: float) -> float:
        return (-1e9, 1e9, 0.0, 1e-9)[round(day * 24) % 4]

    write_derived(tmp_path, "router_health", rows_of_a_router(1, 4, hostile))
    result = CliRunner().invoke(query, ["capacity", "--output", str(tmp_path), "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(row["kind"], row["load"], row["days_left"]) for row in rows} == {("router", 2.5, 0.0), ("farm", 2.5, 0.0)}


def test_report_lists_scarcest_limits_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.serve.charts._drawn", lambda _: "")
    routers: dict[int, Callable[[float], float]] = {
        1: lambda _: 30.0,
        2: lambda day: 20 + 3 * day + swing(day),
        3: lambda _: 100.0,
        4: lambda _: 85.0,
        5: lambda day: 30 + day + swing(day),
    }
    write_derived(
        tmp_path, "router_health", [row for server in routers for row in rows_of_a_router(server, 20, routers[server])]
    )
    page = make_report(tmp_path, BEGIN + timedelta(days=20), show_destinations=False)
    section = next(each for each in page.split("<section>") if "<h2>Capacity" in each)
    rows = re.findall(r"<tr class=(bad|warn)><td [^>]*>([^<]*)</td><td [^>]*>([^<]*)</td>", section)
    assert [(kind, subject, " ".join(forecast.split()[:3])) for kind, subject, forecast in rows] == [
        ("bad", "server 3", "now"),
        ("bad", "server 2", "in 4 d"),
        ("warn", "the farm", "in 34 d"),
        ("warn", "server 5", "in 41 d"),
        ("warn", "server 4", "nearly"),
    ]
    assert "5 of 6 limits shown, the scarcest." in section
