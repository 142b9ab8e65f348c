"""Tables by window are kept by day: what is new makes its own days anew, and the whole equals one made at once."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline import daily
from pipeline.daily import DAY_MS, Span, day_files, last_rows, midnight_ms, steps
from pipeline.tables.lake import Lake
from pipeline.transforms.windows import window_ms
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, entries_of

pytestmark = [
    pytest.mark.spark,
    # pyspark's own sockets to the JVM are closed by its finalizers
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MINUTE_MS = 60_000
BEFORE_MIDNIGHT_MS = EPOCH_MS + DAY_MS - 5 * MINUTE_MS
FIRST, SECOND, FIFTH = "2026-01-01.parquet", "2026-01-02.parquet", "2026-01-05.parquet"
WINDOW = "1 minute"
(DATA_QUALITY,) = (table for table in daily.OTHERS if table.name == "data_quality")


def periods(log: MadeUpLog, count: int, *servers: int, uptime_ms: int) -> None:
    """So many reporting periods of a minute in which these servers report."""
    for period in range(count):
        log.tick(MINUTE_MS)
        for server in servers:
            log.report(server, uptime=uptime_ms + period * MINUTE_MS, jobLag=float(server))


def over_days() -> tuple[MadeUpLog, list[int]]:
    """A log from before midnight to the fifth day, and after which entries the tables are read.

    Server 2 falls silent on the first day and comes back restarted on the fifth; a report of server 1 is submitted
    twice, on both sides of midnight; one entry is refused.
    """
    log, ends = MadeUpLog(log_time_ms=BEFORE_MIDNIGHT_MS), []
    periods(log, 3, 1, 2, uptime_ms=10 * MINUTE_MS)
    ends.append(log.commit_index)
    log.report(1, uptime=13 * MINUTE_MS)
    log.entries[-1]["value"] = log.entries[-1]["value"].replace('{"cluster"', '{"request": "node-0-1", "cluster"', 1)
    repeated = log.entries[-1]["value"]
    periods(log, 6, 1, uptime_ms=13 * MINUTE_MS)
    log.add(value=repeated)
    log.add(value="no JSON")
    ends.append(log.commit_index)
    log.log_time_ms += 3 * DAY_MS
    periods(log, 3, 1, 2, uptime_ms=0)
    ends.append(log.commit_index)
    return log, ends


def write(session: SparkSession, log: MadeUpLog, after: int, through: int, batch: int, output: Path) -> None:
    """One batch of history, and the tables brought up to it."""
    entries = entries_of(session, MadeUpLog(entries=log.entries[after:through]))
    Lake(output, window_ms(WINDOW)).write_batch(entries, batch)
    for table in (daily.ROUTER_HEALTH, DATA_QUALITY):
        daily.bring_up_to_date(session, output, table, WINDOW)


def rows_of(output: Path, name: str) -> list[dict[str, Any]]:
    """A daily table's rows, in the order of day and file."""
    return [row for _, file in day_files(output / name) for row in pq.read_table(file).to_pylist()]


def files_of(output: Path, name: str) -> dict[str, int]:
    """The files of a daily table; the number changes when a file is made anew."""
    return {file.name: file.stat().st_ino for _, file in day_files(output / name)}


@pytest.fixture(scope="module")
def grown(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, int]]]:
    """Tables that were brought up three times, and which files they had each time."""
    (log, ends), output = over_days(), tmp_path_factory.mktemp("grown")
    files = []
    for batch, (after, through) in enumerate(zip([0, *ends], ends, strict=False)):
        write(session, log, after, through, batch, output)
        files.append(files_of(output, "router_health"))
    return output, files


@pytest.fixture(scope="module")
def at_once(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of the same log, made once."""
    (log, ends), output = over_days(), tmp_path_factory.mktemp("once")
    write(session, log, 0, ends[-1], 0, output)
    return output


@pytest.mark.parametrize("table", ["router_health", "data_quality"])
def test_a_table_that_grew_day_by_day_equals_one_that_was_made_at_once(
    grown: tuple[Path, list[dict[str, int]]], at_once: Path, table: str
) -> None:
    assert rows_of(grown[0], table) == rows_of(at_once, table)
    assert rows_of(at_once, table)


def test_a_day_that_is_over_is_not_made_again(grown: tuple[Path, list[dict[str, int]]]) -> None:
    first, second, third = grown[1]
    assert list(first) == [FIRST]
    assert list(second) == [FIRST, SECOND]
    assert list(third) == [FIRST, SECOND, FIFTH]
    assert third[FIRST] == second[FIRST] != first[FIRST]


def test_a_router_that_comes_back_restarted_after_days_of_silence_is_seen_to_have_restarted(
    grown: tuple[Path, list[dict[str, int]]],
) -> None:
    resets = [(row["server_id"], row["window_start"]) for row in rows_of(grown[0], "router_health") if row["restarted"]]
    fifth = datetime(2026, 1, 5, 0, 5, tzinfo=UTC)
    assert resets == [(1, fifth), (2, fifth)]


def test_a_submission_that_comes_again_behind_midnight_is_counted_once(
    grown: tuple[Path, list[dict[str, int]]],
) -> None:
    quality = rows_of(grown[0], "data_quality")
    assert sum(row["duplicates"] for row in quality) == 1
    assert sum(row["reports"] for row in quality) == sum(row["reports"] for row in rows_of(grown[0], "router_health"))
    assert [(row["server_id"], row["refused"]) for row in quality if row["refused"]] == [(None, 1)]


def test_after_a_crash_between_the_files_and_the_note_the_same_days_are_made_again(
    session: SparkSession, at_once: Path
) -> None:
    before = rows_of(at_once, "router_health")
    (at_once / "router_health" / daily.NOTE).unlink()
    (at_once / "router_health" / daily.ASIDE).mkdir()
    daily.bring_up_to_date(session, at_once, daily.ROUTER_HEALTH, WINDOW)
    assert rows_of(at_once, "router_health") == before


def test_windows_of_another_width_make_the_table_anew_from_its_oldest_day(session: SparkSession, at_once: Path) -> None:
    daily.bring_up_to_date(session, at_once, daily.ROUTER_HEALTH, "7minutes")
    rows = rows_of(at_once, "router_health")
    assert {row["window_end"] - row["window_start"] for row in rows} == {
        rows[0]["window_end"] - rows[0]["window_start"]
    }
    assert sum(row["reports"] for row in rows) == 3 * 2 + 1 + 6 + 3 * 2
    daily.bring_up_to_date(session, at_once, daily.ROUTER_HEALTH, WINDOW)


def test_the_last_rows_are_told_without_a_query(grown: tuple[Path, list[dict[str, int]]]) -> None:
    rows = rows_of(grown[0], "router_health")
    assert rows == sorted(rows, key=lambda row: (row["window_start"], row["server_id"]))
    assert last_rows(grown[0], 8) == rows[-8:]
    assert last_rows(grown[0], 1_000) == rows


def test_much_history_is_made_in_portions_of_days_and_little_at_once() -> None:
    often = Span(rows=400 * daily.ROWS_AT_A_TIME // 100, oldest_ms=EPOCH_MS, youngest_ms=EPOCH_MS + 8 * DAY_MS - 1)
    made = steps({"reports": often, "quarantine": None}, None, WINDOW)
    assert [(step.first.day, step.end.day) for step in made] == [(1, 3), (3, 5), (5, 7), (7, 9)]
    rare = Span(rows=100, oldest_ms=EPOCH_MS, youngest_ms=EPOCH_MS + 3_000 * DAY_MS)
    assert len(steps({"reports": rare}, None, WINDOW)) == 1
    assert steps({"reports": None}, None, WINDOW) == []


def test_a_window_that_reaches_across_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    just_after = midnight_ms(date(2026, 1, 2)) + 1_000
    assert daily.day_of(just_after, "1 minute") == date(2026, 1, 2)
    assert daily.day_of(just_after, "7 minutes") == date(2026, 1, 1)


@pytest.mark.parametrize("text", ["", "minute", "0 minutes", "-1 hour", "1 month", "1 minute 30", "9999999 days"])
def test_what_is_no_width_of_a_window_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="no width of a window"):
        window_ms(text)


def test_a_window_of_centuries_which_would_end_in_a_year_that_cannot_be_shown_is_refused() -> None:
    assert window_ms("366 days") == 366 * DAY_MS
    with pytest.raises(ValueError, match="wider than a year"):
        window_ms("999999 weeks")
