"""The watch over batches: silence and return become rows, whatever the batches are and whatever is repeated."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pipeline.lake import PERIODS_MS
from pipeline.tables.delta import stored_rows
from pipeline.tables.specs import LOG, TRANSITIONS_SPEC
from pipeline.watch.watching import STATE_SPEC, Watching

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


def report(index: int, at_ms: int, server_id: int, farm: str = FARM, **said: Any) -> Row:
    row = {**REPORT, "farm": farm, "index": index, "at_ms": at_ms, "server_id": server_id, "period_ms": None}
    return {**row, "uptime_ms": at_ms, **said}


def a_silent_server(periods: int, farm: str = FARM) -> list[Row]:
    """Periods of 10 s; server 2 says nothing after the sixth."""
    rows: list[Row] = []
    for at_ms in range(10_000, 10_000 * (periods + 1), 10_000):
        rows.append(clock(len(rows) + 1, at_ms, farm=farm))
        rows.append(report(len(rows) + 1, at_ms, 1, farm))
        if at_ms <= 60_000:
            rows.append(report(len(rows) + 1, at_ms, 2, farm))
    return rows


def table(rows: Iterable[Row]) -> pa.Table | None:
    told = list(rows)
    return pa.Table.from_pylist(told) if told else None


def watched(output: Path, batch: int, rows: Iterable[Row]) -> list[Row]:
    """One batch by a run that has just begun."""
    watching = Watching(output, PERIODS_MS)
    changes = watching.changes(LOG, batch, table(rows))
    watching.transitions.append(LOG, batch, changes if changes.num_rows else None)
    watching.keep(LOG, batch)
    return list(changes.to_pylist())


def told(output: Path) -> list[tuple[Any, ...]]:
    rows = stored_rows(output / "transitions", TRANSITIONS_SPEC.schema)
    # A silence may be complete at the moment of the report that ends it.
    in_order = sorted(rows.to_pylist(), key=lambda row: (row["farm"], row["server_id"], row["at"], row["index"] or 0))
    return [(row["server_id"], row["at"], row["previous"], row["state"], row["reason"]) for row in in_order]


def test_silence_alone_yields_a_row_with_the_moment_at_which_it_was_complete(tmp_path: Path) -> None:
    watched(tmp_path, 0, a_silent_server(24))
    assert [(server, before, state) for server, _, before, state, _ in told(tmp_path)] == [
        (1, "", "healthy"),
        (2, "", "healthy"),
        (2, "healthy", "silent"),
    ]
    assert told(tmp_path)[-1][1] == datetime.fromtimestamp(90, UTC)


def test_a_batch_that_is_repeated_gives_the_same_rows_whichever_of_its_writes_a_crash_left(tmp_path: Path) -> None:
    rows = a_silent_server(24)
    watched(tmp_path / "once", 0, rows[:20])
    watched(tmp_path / "once", 1, rows[20:])
    # given a crash behind the changes and before the state
    place = tmp_path / "crashed"
    watched(place, 0, rows[:20])
    watching = Watching(place, PERIODS_MS)
    watching.transitions.append(LOG, 1, watching.changes(LOG, 1, table(rows[20:])))
    # when the batch comes again, and again behind its state
    watched(place, 1, rows[20:])
    assert watched(place, 1, rows[20:]) == []
    assert told(place) == told(tmp_path / "once")
    states = [stored_rows(each / "watch_state", STATE_SPEC.schema) for each in (place, tmp_path / "once")]
    assert states[0] == states[1]


def test_farms_are_watched_by_their_own_log_time(tmp_path: Path) -> None:
    watched(tmp_path, 0, [*a_silent_server(24), *a_silent_server(6, OTHER)])
    rows = stored_rows(tmp_path / "transitions", TRANSITIONS_SPEC.schema).to_pylist()
    states = [(row["farm"], row["state"]) for row in rows]
    assert states.count((FARM, "silent")) == 1
    assert states.count((OTHER, "silent")) == 0


def test_a_period_that_changes_is_told_by_the_old_one_before_and_by_the_new_one_after(tmp_path: Path) -> None:
    rows = [
        clock(1, 1_000),
        report(2, 1_000, 1),
        report(3, 1_000, 2),
        # 30 s are over for both when the period becomes longer
        clock(4, 31_000, 60_000),
        report(5, 32_000, 1),
        # of the new period less than three are over
        clock(6, 150_000, 60_000),
        # and what the farm does not take changes nothing
        clock(7, 160_000, 1),
    ]
    assert [(row["server_id"], row["state"], row["reason"]) for row in watched(tmp_path, 0, rows)] == [
        (1, "healthy", "first report"),
        (2, "healthy", "first report"),
        (1, "silent", "no report for 30000 ms"),
        (2, "silent", "no report for 30000 ms"),
        (1, "healthy", "reports again"),
    ]


def test_a_run_after_one_that_did_not_watch_begins_anew(tmp_path: Path) -> None:
    watched(tmp_path, 0, a_silent_server(3))
    found = watched(tmp_path, 7, [clock(90, 900_000), report(91, 900_000, 1)])
    assert [(row["server_id"], row["reason"]) for row in found] == [(1, "first report")]


@pytest.mark.parametrize("seed", range(3))
def test_rows_depend_on_the_log_alone_and_not_on_how_it_was_cut_into_batches(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    at_ms, rows = 0, list[Row]()
    for index in range(1, 120):
        at_ms += random.choice((0, 10_000, 10_000, 20_000, 400_000))
        if random.random() < 0.3:
            rows.append(clock(index, at_ms, random.choice((10_000, 10_000, 30_000, None))))
        else:
            said = random.choice(({}, {"healthy_destinations": 0}, {"job_lag_ms": 700.0}, {"uptime_ms": 0}))
            rows.append(report(index, at_ms, random.randint(1, 3), **said))

    def cut(name: str, places: list[int]) -> list[tuple[Any, ...]]:
        watching = Watching(tmp_path / name, PERIODS_MS)
        for batch, (start, stop) in enumerate(pairwise([0, *places, len(rows)])):
            changes = watching.changes(LOG, batch, table(rows[start:stop]))
            watching.transitions.append(LOG, batch, changes if changes.num_rows else None)
        return told(tmp_path / name)

    at_once = cut("once", [])
    assert len(at_once) > 20
    assert cut("each", list(range(1, len(rows), 3))) == at_once
    assert cut("some", sorted(random.sample(range(1, len(rows)), 10))) == at_once, f"seed {seed}"
