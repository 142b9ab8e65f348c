"""The watch over batches: transitions of servers, for any division into batches and after any crash."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pipeline.lake import PERIODS_MS
from pipeline.tables import farm_files
from pipeline.tables.current import CurrentState, read
from pipeline.tables.delta import stored_rows
from pipeline.tables.specs import LOG, TRANSITIONS_SPEC
from pipeline.watch import watching as module
from pipeline.watch.watching import STATE_SPEC, Watching
from tests.effort import over_seeds

FARM, OTHER = "a" * 32, "b" * 32
REPORT = {
    "entry": "report",
    "attached": True,
    "uptime_ms": 0,
    "job_lag_ms": 1.0,
    "destinations": 2,
    "healthy_destinations": 2,
    "request": "",
}
Row = dict[str, Any]


def clock(index: int, at_ms: int, period_ms: int | None = 10_000, farm: str = FARM) -> Row:
    row = {**dict.fromkeys(REPORT, None), "farm": farm, "index": index, "at_ms": at_ms}
    return {**row, "entry": "clock", "server_id": 1, "period_ms": period_ms}


def report(index: int, at_ms: int, server_id: int, farm: str = FARM, **figures: Any) -> Row:
    row = {**REPORT, "farm": farm, "index": index, "at_ms": at_ms, "server_id": server_id, "period_ms": None}
    return {**row, "uptime_ms": at_ms, **figures}


def rows_of_stopping_server(periods: int, farm: str = FARM) -> list[Row]:
    """Return periods of 10 s. Server 2 does not report after the sixth."""
    rows: list[Row] = []
    for at_ms in range(10_000, 10_000 * (periods + 1), 10_000):
        rows.append(clock(len(rows) + 1, at_ms, farm=farm))
        rows.append(report(len(rows) + 1, at_ms, 1, farm))
        if at_ms <= 60_000:
            rows.append(report(len(rows) + 1, at_ms, 2, farm))
    return rows


def table(rows: Iterable[Row]) -> pa.Table | None:
    listed = list(rows)
    return pa.Table.from_pylist(listed) if listed else None


def watch_batch(output: Path, batch: int, rows: Iterable[Row]) -> list[Row]:
    watching = Watching(output, PERIODS_MS)
    changes = watching.changes(LOG, batch, table(rows))
    watching.transitions.append(LOG, batch, changes if changes.num_rows else None)
    CurrentState(output).take(LOG, batch, "watched", changes)
    watching.keep(LOG, batch)
    return list(changes.to_pylist())


def transitions(output: Path) -> list[tuple[Any, ...]]:
    rows = stored_rows(output / "transitions", TRANSITIONS_SPEC.schema)
    # The timeout of a server may end at the time of its next report.
    in_order = sorted(rows.to_pylist(), key=lambda row: (row["farm"], row["server_id"], row["at"], row["index"] or 0))
    return [(row["server_id"], row["at"], row["previous"], row["state"], row["reason"]) for row in in_order]


def test_report_timeout_dates_transition(tmp_path: Path) -> None:
    watch_batch(tmp_path, 0, rows_of_stopping_server(24))
    assert [(server, before, state) for server, _, before, state, _ in transitions(tmp_path)] == [
        (1, "", "healthy"),
        (2, "", "healthy"),
        (2, "healthy", "silent"),
    ]
    assert transitions(tmp_path)[-1][1] == datetime.fromtimestamp(90, UTC)


@pytest.mark.parametrize("first_batch", [9, 18, 19])
def test_watch_detects_missing_reports_after_time_correction(tmp_path: Path, first_batch: int) -> None:
    rows = rows_of_stopping_server(12)
    for row in rows[:18]:
        row["at_ms"] += 40 * 86_400_000
    watch_batch(tmp_path, 0, rows[:first_batch])
    watch_batch(tmp_path, 1, rows[first_batch:])
    silent = [(server, at) for server, at, before, state, _ in transitions(tmp_path) if state == "silent"]
    # The watch does not know how much of the period with the correction has passed.
    assert silent == [(2, datetime.fromtimestamp(100, UTC))]
    assert [(row["server_id"], row["state"]) for row in read(tmp_path, "watched")] == [(1, "healthy"), (2, "silent")]


def test_repeated_batch_after_crash_has_same_rows(tmp_path: Path) -> None:
    rows = rows_of_stopping_server(24)
    watch_batch(tmp_path / "once", 0, rows[:20])
    watch_batch(tmp_path / "once", 1, rows[20:])
    # given a crash after the changes and before the state
    place = tmp_path / "crashed"
    watch_batch(place, 0, rows[:20])
    watching = Watching(place, PERIODS_MS)
    watching.transitions.append(LOG, 1, watching.changes(LOG, 1, table(rows[20:])))
    # when the batch is repeated, and repeated again after its state was stored
    watch_batch(place, 1, rows[20:])
    assert watch_batch(place, 1, rows[20:]) == []
    assert transitions(place) == transitions(tmp_path / "once")
    states = [stored_rows(each / "watch_state", STATE_SPEC.schema) for each in (place, tmp_path / "once")]
    assert states[0] == states[1]


def test_farm_is_watched_by_its_own_log_time(tmp_path: Path) -> None:
    watch_batch(tmp_path, 0, [*rows_of_stopping_server(24), *rows_of_stopping_server(6, OTHER)])
    rows = stored_rows(tmp_path / "transitions", TRANSITIONS_SPEC.schema).to_pylist()
    states = [(row["farm"], row["state"]) for row in rows]
    assert states.count((FARM, "silent")) == 1
    assert states.count((OTHER, "silent")) == 0


def test_timeout_follows_change_of_reporting_period(tmp_path: Path) -> None:
    rows = [
        clock(1, 1_000),
        report(2, 1_000, 1),
        report(3, 1_000, 2),
        # 30 s are over for both servers when the period becomes longer
        clock(4, 31_000, 60_000),
        report(5, 32_000, 1),
        # less than three new periods are over
        clock(6, 150_000, 60_000),
        # and an invalid period is ignored
        clock(7, 160_000, 1),
    ]
    assert [(row["server_id"], row["state"], row["reason"]) for row in watch_batch(tmp_path, 0, rows)] == [
        (1, "healthy", "first report"),
        (2, "healthy", "first report"),
        (1, "silent", "no report for 30000 ms"),
        (2, "silent", "no report for 30000 ms"),
        (1, "healthy", "reports again"),
    ]


def test_watch_after_gap_starts_again(tmp_path: Path) -> None:
    watch_batch(tmp_path, 0, rows_of_stopping_server(3))
    found = watch_batch(tmp_path, 7, [clock(90, 900_000), report(91, 900_000, 1)])
    assert [(row["server_id"], row["reason"]) for row in found] == [(1, "first report")]


@over_seeds(3, quick=1)
def test_rows_do_not_depend_on_division_into_batches(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    at_ms, rows = 0, list[Row]()
    for index in range(1, 120):
        at_ms += random.choice((0, 10_000, 10_000, 20_000, 400_000))
        farm = random.choice((FARM, FARM, OTHER, "c" * 32))
        if random.random() < 0.3:
            rows.append(clock(index, at_ms, random.choice((10_000, 10_000, 30_000, None)), farm))
        else:
            figures = random.choice(({}, {"healthy_destinations": 0}, {"job_lag_ms": 700.0}, {"uptime_ms": 0}))
            rows.append(report(index, at_ms, random.randint(1, 3), farm, **figures))

    def cut(name: str, places: list[int]) -> list[tuple[Any, ...]]:
        watching = Watching(tmp_path / name, PERIODS_MS)
        for batch, (start, stop) in enumerate(pairwise([0, *places, len(rows)])):
            changes = watching.changes(LOG, batch, table(rows[start:stop]))
            watching.transitions.append(LOG, batch, changes if changes.num_rows else None)
            watching.keep(LOG, batch)
        return transitions(tmp_path / name)

    whole = cut("once", [])
    assert len(whole) > 20
    # With these limits, each file has the state of one farm, and the watch reads one farm at a time.
    monkeypatch.setattr(farm_files, "FILE_ROWS", 1)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
    assert cut("each", list(range(1, len(rows), 9))) == whole
    assert cut("some", sorted(random.sample(range(1, len(rows)), 10))) == whole, f"seed {seed}"
