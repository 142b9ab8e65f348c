"""Derived tables by window have what batches touched, equal to those made at once, by DuckDB as by Spark."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.gold import refreshing
from pipeline.gold.tables import GOLD, SPECS, WINDOWS_SPEC, Gold, last_rows
from pipeline.gold.traces import TRACED
from pipeline.tables.delta import Table, stored_files, stored_rows
from pipeline.tables.names import SALT_FILE
from pipeline.tables.specs import LOG
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, arrow_entries_of
from tests.pipeline.generated_log import generated_log
from tests.pipeline.made_tables import gold_rows, tables_of, tables_of_entries

MINUTE_MS = 60_000
HALF_HOUR_MS = 30 * MINUTE_MS
DAY_MS = 86_400_000
BEFORE_MIDNIGHT_MS = EPOCH_MS + DAY_MS - 5 * MINUTE_MS
EXPECTED = Path(__file__).with_name("gold_expected.json")
SALT = "5d13504732b6b611a652612268b15e9ed505706d78ca0486cc9233f0a8cdbf4f"
Rows = dict[str, list[dict[str, Any]]]


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


def parts(log: MadeUpLog, ends: list[int]) -> list[MadeUpLog]:
    """The log, cut behind these entries."""
    return [MadeUpLog(entries=log.entries[begin:end]) for begin, end in zip([0, *ends], [*ends, None], strict=True)]


def opened(output: Path, window_ms: int) -> Gold:
    """Tables of a directory whose pseudonyms are those of `EXPECTED`."""
    output.mkdir(exist_ok=True)
    (output / SALT_FILE).write_text(SALT, encoding="utf-8")
    return Gold(output, window_ms)


def all_rows(output: Path) -> Rows:
    return {name: gold_rows(output, name) for name in SPECS}


def grown(output: Path, log: MadeUpLog, ends: list[int], window_ms: int, session: SparkSession | None = None) -> Rows:
    """Tables that took the log in parts."""
    gold = opened(output, window_ms)
    for batch, part in enumerate(parts(log, ends)):
        tables_of(part, output, batch, gold=gold)
        gold.refresh(batch, session)
    return all_rows(output)


def at_once(output: Path, log: MadeUpLog, window_ms: int) -> Rows:
    return grown(output, log, [], window_ms)


@pytest.fixture(scope="module")
def of_days(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """All tables of the log of days, made of one batch."""
    log, _ = over_days()
    return at_once(tmp_path_factory.mktemp("days"), log, MINUTE_MS)


@pytest.fixture(scope="module")
def grown_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of tables that took the log of days in parts; tests only read it."""
    output = tmp_path_factory.mktemp("grown")
    grown(output, *over_days(), MINUTE_MS)
    return output


def test_tables_have_the_rows_that_the_formulas_gave_before_they_were_sql(tmp_path: Path) -> None:
    found = at_once(tmp_path, generated_log(6, 0.25, 7), HALF_HOUR_MS)
    expected: Rows = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name, rows in expected.items():
        assert len(found[name]) == len(rows)
        for row, wanted in zip(found[name], rows, strict=True):
            for column, value in wanted.items():
                told = row[column].isoformat() if isinstance(row[column], datetime) else row[column]
                # Shares are whole millionths, percentages whole thousandths; offsets were cut to milliseconds.
                if isinstance(value, float):
                    assert told == pytest.approx(value, rel=1e-4), (name, column)
                elif column == "clock_offset_ms" and value is not None:
                    assert abs(told - value) <= 1
                else:
                    assert told == value, (name, column)


def test_tables_from_batches_equal_tables_from_one_batch(of_days: Rows, grown_days: Path, tmp_path: Path) -> None:
    assert all_rows(grown_days) == of_days
    assert {name for name, rows in of_days.items() if not rows} == {"publishers", *TRACED}, "no server published"
    log = generated_log(3, 0.1, 3)
    expected = at_once(tmp_path / "once", log, HALF_HOUR_MS)
    assert grown(tmp_path / "grown", log, [*range(50, log.commit_index, 299)], HALF_HOUR_MS) == expected


def test_tables_from_portions_of_one_row_equal_tables_from_one_read(
    of_days: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, ends = over_days()
    monkeypatch.setattr(refreshing, "PORTION_ROWS", 1)
    assert at_once(tmp_path / "portions", log, MINUTE_MS) == of_days
    # A router that was away is recognized also when the tables grow.
    assert grown(tmp_path / "grown", log, ends, MINUTE_MS) == of_days


def test_tables_from_portions_of_many_rows_equal_tables_from_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = generated_log(3, 0.3, 3)
    expected = at_once(tmp_path / "once", log, HALF_HOUR_MS)
    monkeypatch.setattr(refreshing, "PORTION_ROWS", 400)
    assert at_once(tmp_path / "portions", log, HALF_HOUR_MS) == expected


def test_router_restarted_after_days_of_silence_has_a_restart(grown_days: Path) -> None:
    rows = gold_rows(grown_days, "router_health")
    resets = [(row["server_id"], row["window_start"]) for row in rows if row["restarted"]]
    fifth = datetime(2026, 1, 5, 0, 5, tzinfo=UTC)
    assert resets == [(1, fifth), (2, fifth)]


def test_submission_repeated_after_midnight_counts_once(grown_days: Path) -> None:
    quality = gold_rows(grown_days, "data_quality")
    assert sum(row["duplicates"] for row in quality) == 1
    assert sum(row["reports"] for row in quality) == sum(
        row["reports"] for row in gold_rows(grown_days, "router_health")
    )
    assert [(row["server_id"], row["refused"]) for row in quality if row["refused"]] == [(None, 1)]


def test_files_of_windows_that_no_batch_touched_stay(tmp_path: Path) -> None:
    log, ends = over_days()
    tables, gold = {name: Table(tmp_path, table.spec) for name, table in GOLD.items()}, Gold(tmp_path, MINUTE_MS)
    files = []
    for batch, part in enumerate(parts(log, ends)):
        tables_of(part, tmp_path, batch, gold=gold)
        gold.refresh(batch)
        files.append({each.path for each in tables["router_health"].files() if each.day == datetime(2026, 1, 1).date()})  # noqa: DTZ001
    assert files[0] != files[1] == files[2]


def test_next_run_completes_the_tables_of_a_killed_run(of_days: Rows, tmp_path: Path) -> None:
    # given batches that were written and noted, and a run that was killed before it made tables of them
    log, ends = over_days()
    output = tmp_path / "killed"
    first, *others = parts(log, ends)
    gold = opened(output, MINUTE_MS)
    tables_of(first, output, 0, gold=gold)
    gold.refresh(0)
    for batch, part in enumerate(others, 1):
        tables_of(part, output, batch, gold=Gold(output, MINUTE_MS))
    # when the last batch is repeated, as a run does that is not sure of it
    again = Gold(output, MINUTE_MS)
    tables_of(others[-1], output, len(others), gold=again)
    again.refresh(again.noted_through(LOG))
    assert all_rows(output) == of_days
    # then what is noted does not grow
    following = log.entries[-1] | {"index": log.entries[-1]["index"] + 1}
    tables_of(MadeUpLog(entries=[following]), output, len(others) + 1, gold=again)
    assert stored_rows(output / WINDOWS_SPEC.name, WINDOWS_SPEC.schema).num_rows == 1


def test_files_of_what_was_noted_before_are_swept_like_those_of_all_tables(tmp_path: Path) -> None:
    # given a run that noted windows, and files that were given up longer ago than they can be read by version
    place = tmp_path / WINDOWS_SPEC.name
    first, *others = parts(*over_days())
    tables_of(first, tmp_path, 0, gold=Gold(tmp_path, MINUTE_MS))
    (begun,) = place.glob("*.parquet")
    tables_of(others[0], tmp_path, 1, gold=Gold(tmp_path, MINUTE_MS))
    orphan = place / "part-0.parquet"
    orphan.write_bytes(begun.read_bytes())
    os.utime(orphan, (0, 0))
    # when the next run begins with a batch
    tables_of(others[1], tmp_path, 2, gold=Gold(tmp_path, MINUTE_MS))
    # then those are gone, and what counts is there
    assert not orphan.exists()
    assert stored_rows(place, WINDOWS_SPEC.schema).num_rows > 0


def test_windows_of_another_width_make_the_tables_anew_out_of_all_history(tmp_path: Path) -> None:
    log, ends = over_days()
    grown(tmp_path, log, ends, MINUTE_MS)
    wider = Gold(tmp_path, 7 * MINUTE_MS)
    wider.refresh(wider.noted_through(LOG))
    rows = gold_rows(tmp_path, "router_health")
    assert {row["window_end"] - row["window_start"] for row in rows} == {timedelta(minutes=7)}
    assert sum(row["reports"] for row in rows) == 3 * 2 + 1 + 6 + 3 * 2
    # and so does a table that is gone
    narrow = opened(tmp_path / "once", 7 * MINUTE_MS)
    tables_of(log, tmp_path / "once", 0, gold=narrow)
    narrow.refresh(0)
    assert all_rows(tmp_path) == all_rows(tmp_path / "once")


def test_last_rows_are_in_order(grown_days: Path) -> None:
    rows = gold_rows(grown_days, "router_health")
    assert last_rows(grown_days, 8) == rows[-8:]
    assert last_rows(grown_days, 1_000) == rows


def test_two_farms_have_leaders_and_publishers_of_their_own(tmp_path: Path) -> None:
    logs = [generated_log(3, 0.1, seed) for seed in (1, 2)]
    logs[1].cluster_id = "ff" * 16
    gold = opened(tmp_path / "both", HALF_HOUR_MS)
    for batch, log in enumerate(logs):
        tables_of(log, tmp_path / "both", batch, gold=gold)
        gold.refresh(batch)
    both = all_rows(tmp_path / "both")
    for log in logs:
        alone = opened(tmp_path / log.cluster_id, HALF_HOUR_MS)
        tables_of(log, tmp_path / log.cluster_id, 0, gold=alone)
        alone.refresh(0)
        for name, rows in all_rows(tmp_path / log.cluster_id).items():
            assert [row for row in both[name] if row["farm"] == log.cluster_id] == rows


def test_a_farm_that_is_days_behind_has_no_file_written_anew_of_the_days_between(tmp_path: Path) -> None:
    # given a farm of several days, of which there is a file each
    ahead, behind = MadeUpLog(log_time_ms=EPOCH_MS), MadeUpLog(log_time_ms=EPOCH_MS, cluster_id="ff" * 16)
    for _ in range(4):
        periods(ahead, 3, 1, 2, uptime_ms=0)
        ahead.log_time_ms += DAY_MS
    gold = opened(tmp_path, MINUTE_MS)
    tables_of(ahead, tmp_path, 0, gold=gold)
    gold.refresh(0)
    before = {name: {each.path: each.day for each in stored_files(tmp_path / name)} for name in GOLD}
    # when a batch has news of it, and another farm's of the first day
    periods(ahead, 3, 1, 2, uptime_ms=0)
    periods(behind, 3, 1, uptime_ms=0)
    news = MadeUpLog(entries=ahead.entries[-9:])
    entries = pa.concat_tables([arrow_entries_of(news), arrow_entries_of(behind)])
    tables_of_entries(entries, tmp_path, 1, gold=gold)
    gold.refresh(1)
    # then the days that it says nothing of keep their files
    for name, files in before.items():
        days = sorted({day for day in files.values() if day is not None})
        kept = {path for path, day in files.items() if day in days[1:-1]}
        assert len(kept) == 2
        assert kept <= {each.path for each in stored_files(tmp_path / name)}, name
        assert {row["farm"] for row in gold_rows(tmp_path, name)} == {ahead.cluster_id, behind.cluster_id}
