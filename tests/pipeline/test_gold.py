"""Derived tables by window: an update changes only the windows of a batch, and equals a complete derivation.

`gold_expected.json` has the rows of an earlier implementation, with Spark. In the log of days, one server stops
reporting, a submission is repeated, and an entry is refused.
"""

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.gold import refreshing
from pipeline.gold.tables import GOLD, SPECS, WINDOWS_SPEC, Gold, last_rows
from pipeline.gold.traces import TRACED
from pipeline.tables import farm_files
from pipeline.tables.delta import StoredFile, Table, stored_files, stored_rows
from pipeline.tables.files import read_file
from pipeline.tables.names import SALT_FILE
from pipeline.tables.specs import LOG
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, arrow_entries_of
from tests.pipeline.generated_log import generated_log
from tests.pipeline.made_tables import gold_rows, lake_at, tables_of, tables_of_entries, write_derived, write_entries

MINUTE_MS = 60_000
HALF_HOUR_MS = 30 * MINUTE_MS
DAY_MS = 86_400_000
BEFORE_MIDNIGHT_MS = EPOCH_MS + DAY_MS - 5 * MINUTE_MS
EXPECTED = Path(__file__).with_name("gold_expected.json")
SALT = "5d13504732b6b611a652612268b15e9ed505706d78ca0486cc9233f0a8cdbf4f"
Rows = dict[str, list[dict[str, Any]]]


def add_periods(log: MadeUpLog, count: int, *servers: int, uptime_ms: int) -> None:
    """Add reporting periods of a minute with a report of each server."""
    for period in range(count):
        log.tick(MINUTE_MS)
        for server in servers:
            log.report(server, uptime=uptime_ms + period * MINUTE_MS, jobLag=float(server))


def over_days() -> tuple[MadeUpLog, list[int]]:
    """Return a log from before midnight to the fifth day, and the last entry of each part.

    Server 2 stops reporting on the first day and restarts on the fifth. A report of server 1 is submitted twice,
    before and after midnight. One entry is refused.
    """
    log, ends = MadeUpLog(log_time_ms=BEFORE_MIDNIGHT_MS), []
    add_periods(log, 3, 1, 2, uptime_ms=10 * MINUTE_MS)
    ends.append(log.commit_index)
    log.report(1, uptime=13 * MINUTE_MS)
    log.entries[-1]["value"] = log.entries[-1]["value"].replace('{"cluster"', '{"request": "node-0-1", "cluster"', 1)
    repeated = log.entries[-1]["value"]
    add_periods(log, 6, 1, uptime_ms=13 * MINUTE_MS)
    log.add(value=repeated)
    log.add(value="no JSON")
    ends.append(log.commit_index)
    log.log_time_ms += 3 * DAY_MS
    add_periods(log, 3, 1, 2, uptime_ms=0)
    ends.append(log.commit_index)
    return log, ends


def parts(log: MadeUpLog, ends: list[int]) -> list[MadeUpLog]:
    """Divide the log after the entries `ends`."""
    spans = zip([0, *ends], [*ends, None], strict=True)
    return [MadeUpLog(log.cluster_id, entries=log.entries[begin:end]) for begin, end in spans]


def open_gold(output: Path, window_ms: int) -> Gold:
    """Open the tables of a directory with the pseudonyms of `EXPECTED`."""
    output.mkdir(exist_ok=True)
    (output / SALT_FILE).write_text(SALT, encoding="utf-8")
    return Gold(output, window_ms)


def all_rows(output: Path) -> Rows:
    return {name: gold_rows(output, name) for name in SPECS}


def derive_in_parts(
    output: Path, log: MadeUpLog, ends: list[int], window_ms: int, session: SparkSession | None = None
) -> Rows:
    gold = open_gold(output, window_ms)
    lake = lake_at(output, gold)
    for batch, part in enumerate(parts(log, ends)):
        write_entries(lake, arrow_entries_of(part), batch)
        gold.refresh(batch, session)
    return all_rows(output)


def derive_whole(output: Path, log: MadeUpLog, window_ms: int) -> Rows:
    return derive_in_parts(output, log, [], window_ms)


@pytest.fixture(scope="module")
def of_days(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return all tables of the log of days, derived from one batch."""
    log, _ = over_days()
    return derive_whole(tmp_path_factory.mktemp("days"), log, MINUTE_MS)


@pytest.fixture(scope="module")
def of_generated(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return all tables of the log `generated`, derived from one batch."""
    return derive_whole(tmp_path_factory.mktemp("generated"), generated(), HALF_HOUR_MS)


def generated() -> MadeUpLog:
    return generated_log(3, 0.2, 3)


@pytest.fixture(scope="module")
def grown_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of tables derived from parts of the log of days. Tests only read it."""
    output = tmp_path_factory.mktemp("grown")
    derive_in_parts(output, *over_days(), MINUTE_MS)
    return output


@pytest.fixture(scope="module")
def in_wide_windows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return all tables of the log of days in windows of seven minutes, derived from one batch."""
    return derive_whole(tmp_path_factory.mktemp("wide"), over_days()[0], 7 * MINUTE_MS)


def test_tables_equal_rows_of_earlier_implementation(tmp_path: Path) -> None:
    found = derive_whole(tmp_path, generated_log(6, 0.25, 7), HALF_HOUR_MS)
    expected: Rows = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name, rows in expected.items():
        assert len(found[name]) == len(rows)
        for row, expected_row in zip(found[name], rows, strict=True):
            for column, value in expected_row.items():
                actual = row[column].isoformat() if isinstance(row[column], datetime) else row[column]
                # Today shares are rounded to millionths, percentages to thousandths. The old offsets are truncated.
                if isinstance(value, float):
                    assert actual == pytest.approx(value, rel=1e-4), (name, column)
                elif column == "clock_offset_ms" and value is not None:
                    assert abs(actual - value) <= 1
                else:
                    assert actual == value, (name, column)


def test_tables_from_batches_equal_tables_from_one_batch(of_days: Rows, grown_days: Path) -> None:
    assert all_rows(grown_days) == of_days
    assert {name for name, rows in of_days.items() if not rows} == {"publishers", *TRACED}, (
        "the log does not contain publications"
    )


@pytest.mark.parametrize("is_grown", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_tables_from_one_row_portions_equal_one_read(
    of_days: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_grown: bool
) -> None:
    log, ends = over_days()
    monkeypatch.setattr(refreshing, "PORTION_ROWS", 1)
    # An incremental derivation also detects the restart of a router after days without reports.
    assert derive_in_parts(tmp_path, log, ends if is_grown else [], MINUTE_MS) == of_days


@pytest.mark.soak
def test_tables_from_large_portions_equal_one_read(
    of_generated: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refreshing, "PORTION_ROWS", 100)
    assert derive_whole(tmp_path, generated(), HALF_HOUR_MS) == of_generated


def test_restart_after_days_without_reports_is_detected(grown_days: Path) -> None:
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


def test_files_of_unchanged_windows_are_kept(grown_days: Path) -> None:
    table = DeltaTable(grown_days / "router_health")
    files = []
    for version in range(1, 4):
        table.load_as_version(version)
        files.append({each for each in table.file_uris() if "day=2026-01-01" in each})
    assert files[0] != files[1] == files[2]


def test_next_run_completes_tables_of_killed_run(of_days: Rows, tmp_path: Path) -> None:
    # given batches with recorded windows, and a run killed before the derivation
    log, ends = over_days()
    output = tmp_path / "killed"
    first, *others = parts(log, ends)
    gold = open_gold(output, MINUTE_MS)
    tables_of(first, output, 0, gold=gold)
    gold.refresh(0)
    for batch, part in enumerate(others, 1):
        tables_of(part, output, batch, gold=Gold(output, MINUTE_MS))
    # when the next run repeats the last batch, because it may be incomplete
    again = Gold(output, MINUTE_MS)
    tables_of(others[-1], output, len(others), gold=again)
    again.refresh(again.noted_through(LOG))
    assert all_rows(output) == of_days
    # then the record does not grow
    following = log.entries[-1] | {"index": log.entries[-1]["index"] + 1}
    tables_of(MadeUpLog(entries=[following]), output, len(others) + 1, gold=again)
    assert stored_rows(output / WINDOWS_SPEC.name, WINDOWS_SPEC.schema).num_rows == 1


def test_unused_files_of_window_records_are_swept(tmp_path: Path) -> None:
    # given a run that recorded windows, and a file that became unused long ago
    place = tmp_path / WINDOWS_SPEC.name
    first, *others = parts(*over_days())
    tables_of(first, tmp_path, 0, gold=Gold(tmp_path, MINUTE_MS))
    (recorded,) = place.glob("*.parquet")
    tables_of(others[0], tmp_path, 1, gold=Gold(tmp_path, MINUTE_MS))
    orphan = place / "part-0.parquet"
    orphan.write_bytes(recorded.read_bytes())
    os.utime(orphan, (0, 0))
    # when the next run starts with a batch
    tables_of(others[1], tmp_path, 2, gold=Gold(tmp_path, MINUTE_MS))
    # then the unused file is deleted, and the current records are kept
    assert not orphan.exists()
    assert stored_rows(place, WINDOWS_SPEC.schema).num_rows > 0


def test_refresh_reads_only_files_of_new_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If farms take turns, most files contain only windows that all tables already have."""
    monkeypatch.setattr(farm_files, "FILE_ROWS", 4)
    gold, rows, read = Gold(tmp_path, MINUTE_MS), Table.rows, list[int]()

    def counted(table: Table, files: Iterable[StoredFile] | None = None) -> pa.Table:
        found = rows(table, files)
        if table.spec is WINDOWS_SPEC:
            assert not gold._lock.locked(), "the next batch waits"
            read.append(found.num_rows)
        return found

    for batch, farms in enumerate((range(8), [5], [6])):
        of_farms = [{"farm": f"{each:032x}", "window_start": datetime(2026, 1, 1, tzinfo=UTC)} for each in farms]
        gold.note(LOG, batch, pa.Table.from_pylist(of_farms, pa.schema(list(WINDOWS_SPEC.schema)[:2])))
        assert gold.noted_windows == len(farms)
        with monkeypatch.context() as patched:
            patched.setattr(Table, "rows", counted)
            gold.refresh(batch)
    assert read == [4, 4, 4, 4]


def test_new_window_width_derives_tables_from_all_history(
    grown_days: Path, in_wide_windows: Rows, tmp_path: Path
) -> None:
    copytree(grown_days, tmp_path, dirs_exist_ok=True)
    wider = Gold(tmp_path, 7 * MINUTE_MS)
    wider.refresh(wider.noted_through(LOG))
    rows = gold_rows(tmp_path, "router_health")
    assert {row["window_end"] - row["window_start"] for row in rows} == {timedelta(minutes=7)}
    assert sum(row["reports"] for row in rows) == 3 * 2 + 1 + 6 + 3 * 2
    # A derivation into a new directory has the same rows.
    assert all_rows(tmp_path) == in_wide_windows
    # The width of the first run is new as well.
    Gold(tmp_path, MINUTE_MS).refresh(wider.noted_through(LOG))
    assert gold_rows(tmp_path, "router_health") == gold_rows(grown_days, "router_health")


def test_new_window_width_replaces_recorded_windows(in_wide_windows: Rows, tmp_path: Path) -> None:
    log, ends = over_days()
    first, *others = parts(log, ends)
    gold = open_gold(tmp_path, MINUTE_MS)
    tables_of(first, tmp_path, 0, gold=gold)
    gold.refresh(0)
    wider = Gold(tmp_path, 7 * MINUTE_MS)
    recorded = stored_rows(tmp_path / WINDOWS_SPEC.name, WINDOWS_SPEC.schema).column("window_start")
    assert {start.timestamp() % (7 * 60) for start in recorded.to_pylist()} == {0}
    for batch, part in enumerate(others, 1):
        tables_of(part, tmp_path, batch, gold=wider)
    wider.refresh(len(others))
    assert all_rows(tmp_path) == in_wide_windows


def test_last_rows_are_in_order(grown_days: Path) -> None:
    rows = gold_rows(grown_days, "router_health")
    assert last_rows(grown_days, 8) == rows[-8:]
    assert last_rows(grown_days, 1_000) == rows


def test_last_rows_read_only_newest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noon, read = datetime(2026, 1, 1, 12, tzinfo=UTC), list[str]()
    for batch in range(4):
        start = noon + batch * timedelta(minutes=1)
        rows = [{"window_start": start, "server_id": server} for server in (2, 1)]
        write_derived(tmp_path, "router_health", rows, batch)

    def counted(root: Path, path: str, *more: Any) -> pa.Table:
        read.append(path)
        return read_file(root, path, *more)

    monkeypatch.setattr("pipeline.gold.tables.read_file", counted)
    found = [(row["window_start"].minute, row["server_id"]) for row in last_rows(tmp_path, 3)]
    assert (found, len(read)) == ([(2, 2), (3, 1), (3, 2)], 2)


@pytest.mark.soak
def test_farms_in_batches_have_rows_of_each_farm_alone(tmp_path: Path) -> None:
    first, other = generated(), generated_log(3, 0.1, 2)
    other.cluster_id = "ff" * 16
    gold = open_gold(tmp_path / "both", HALF_HOUR_MS)
    for batch, log in enumerate((*parts(first, [50, 649]), other)):
        tables_of(log, tmp_path / "both", batch, gold=gold)
        gold.refresh(batch)
    both = all_rows(tmp_path / "both")
    for log in (first, other):
        alone = derive_whole(tmp_path / log.cluster_id, log, HALF_HOUR_MS)
        assert {name: [row for row in both[name] if row["farm"] == log.cluster_id] for name in both} == alone
        assert len(alone["router_health"]) > 2


def test_late_farm_does_not_rewrite_files_of_other_days(tmp_path: Path) -> None:
    # given a farm with several days, one file per day
    ahead, behind = MadeUpLog(log_time_ms=EPOCH_MS), MadeUpLog(log_time_ms=EPOCH_MS, cluster_id="ff" * 16)
    for _ in range(4):
        add_periods(ahead, 3, 1, 2, uptime_ms=0)
        ahead.log_time_ms += DAY_MS
    gold = open_gold(tmp_path, MINUTE_MS)
    tables_of(ahead, tmp_path, 0, gold=gold)
    gold.refresh(0)
    before = {name: {each.path: each.day for each in stored_files(tmp_path / name)} for name in GOLD}
    # when a batch has new entries of this farm, and entries of another farm on the first day
    add_periods(ahead, 3, 1, 2, uptime_ms=0)
    add_periods(behind, 3, 1, uptime_ms=0)
    added = MadeUpLog(entries=ahead.entries[-9:])
    entries = pa.concat_tables([arrow_entries_of(added), arrow_entries_of(behind)])
    tables_of_entries(entries, tmp_path, 1, gold=gold)
    gold.refresh(1)
    # then the days without new entries keep their files
    for name, files in before.items():
        days = sorted({day for day in files.values() if day is not None})
        unchanged = {path for path, day in files.items() if day in days[1:-1]}
        assert len(unchanged) == 2
        assert unchanged <= {each.path for each in stored_files(tmp_path / name)}, name
        assert {row["farm"] for row in gold_rows(tmp_path, name)} == {ahead.cluster_id, behind.cluster_id}
