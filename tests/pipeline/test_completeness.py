"""The query `completeness`: gaps, repeated entries, and lost rows, for tables with a known fault."""

import json
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.queries import query, report
from pipeline.cli.what_if import what_if
from pipeline.gold.answers import answer_sql
from pipeline.lake import Lake
from pipeline.serve.gaps import GAPS_SQL
from pipeline.serve.query import QueryError, documents
from pipeline.tables import upkeep
from pipeline.tables.batch_notes import Continuity
from pipeline.tables.delta import Table
from pipeline.tables.files import TableDamagedError
from pipeline.tables.specs import RANGES_SPEC
from tests.effort import each_case
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, two_days
from tests.pipeline.made_tables import lake_at, write_entries

DAY_MS = 86_400_000
FIRST_DAY, SECOND_DAY = date(2026, 1, 1), date(2026, 1, 2)


def part(log: MadeUpLog, first: int, last: int) -> MadeUpLog:
    """Return the entries from index `first` to `last`, including both."""
    return MadeUpLog(entries=log.entries[first - 1 : last])


def write(output: Path, *parts: MadeUpLog, begin: int = 0, **options: Any) -> None:
    lake = lake_at(output, **options)
    for batch, each in enumerate(parts, begin):
        write_entries(lake, arrow_entries_of(each), batch)


def completeness(output: Path) -> dict[date | None, dict[str, Any]]:
    return {row["day"]: row for row in documents(output, answer_sql("completeness"))}


def test_tables_of_undisturbed_batches_are_complete(tmp_path: Path) -> None:
    log = two_days()
    write(tmp_path, part(log, 1, 7), part(log, 8, 15), part(log, 16, 26))
    rows = completeness(tmp_path)
    assert [*rows] == [SECOND_DAY, FIRST_DAY]
    assert [(row["first_index"], row["last_index"], row["entries"]) for row in rows.values()] == [
        (14, 26, 13),
        (1, 13, 13),
    ]
    assert all(row["complete"] for row in rows.values())
    assert [row["quarantined"] for row in rows.values()] == [1, 0]


def test_repeated_batch_is_counted_once(tmp_path: Path) -> None:
    log = two_days()
    write(tmp_path, part(log, 1, 7), part(log, 8, 26))
    write(tmp_path, part(log, 8, 26), begin=1)
    assert [row["entries"] for row in completeness(tmp_path).values()] == [13, 13]
    assert all(row["complete"] for row in completeness(tmp_path).values())


@pytest.mark.parametrize(("ends", "unread", "repeated"), [((7, 10), 2, 0), ((7, 5), 0, 3)])
def test_batches_with_gap_or_overlap_are_incomplete(
    ends: tuple[int, int], unread: int, repeated: int, tmp_path: Path
) -> None:
    log, (last, begin) = two_days(), ends
    write(tmp_path, part(log, 1, last))
    write(tmp_path, part(log, begin, 26), begin=1, continuity=Continuity.UNKNOWN)
    first_day = completeness(tmp_path)[FIRST_DAY]
    assert (first_day["unread"], first_day["repeated"], first_day["complete"]) == (unread, repeated, False)


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two directories: the tables of the first nine entries, and of all entries."""
    log, made = two_days(), tmp_path_factory.mktemp("completeness")
    write(made / "before", part(log, 1, 9))
    shutil.copytree(made / "before", made / "after")
    write(made / "after", part(log, 10, 13), part(log, 14, 26), begin=1)
    assert [row["missing_rows"] for row in completeness(made / "after").values()] == [0, 0]
    return made / "before", made / "after"


def restored(after: Path, before: Path, table: str, directory: Path) -> Path:
    """Return a copy of `after` with one table of `before`; the table is removed if `before` lacks it."""
    output = shutil.copytree(after, directory / "tables")
    shutil.rmtree(output / table)
    if (before / table).exists():
        shutil.copytree(before / table, output / table)
    return output


@pytest.mark.parametrize(("table", "missing"), [("reports", 3), ("clocks", 1), ("destination_reports", 6)])
def test_rows_of_restored_table_are_missing(
    table: str, missing: int, before_and_after: tuple[Path, Path], tmp_path: Path
) -> None:
    before, after = before_and_after
    output = restored(after, before, table, tmp_path)
    rows = completeness(output)
    assert (rows[FIRST_DAY]["missing_rows"], rows[FIRST_DAY]["complete"]) == (missing, False)
    assert rows[SECOND_DAY]["missing_rows"] > missing


@pytest.mark.parametrize("sql", [answer_sql("completeness"), GAPS_SQL], ids=["completeness", "gaps"])
def test_restored_ranges_are_refused(sql: str, before_and_after: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = before_and_after
    output = restored(after, before, "ranges", tmp_path)
    with pytest.raises(QueryError, match=r"ranges ends with batch 0 and had batch 2 before.*pipeline repair"):
        documents(output, sql)


@each_case(
    "command, options, table, is_removed",
    [
        (query, ("SELECT count(*) FROM reports",), "reports", False),
        (query, ("SELECT count(*) FROM clocks",), "clocks", True),
        (query, ("farms",), "current_farm", False),
        (query, ("factor-steps",), "reports", False),
        (report, ("--html", os.devnull), "destination_reports", False),
        (report, ("--html", os.devnull), "reports", True),
        (what_if, ("--gain", "4"), "reports", False),
    ],
)
def test_answer_from_older_table_is_refused(
    command: click.Command,
    options: tuple[str, ...],
    table: str,
    before_and_after: tuple[Path, Path],
    tmp_path: Path,
    *,
    is_removed: bool,
) -> None:
    before, after = before_and_after
    output = restored(after, tmp_path if is_removed else before, table, tmp_path)
    result = CliRunner().invoke(command, [*options, "--output", str(output)])
    end = "is missing or empty" if is_removed else "ends with batch 0"
    assert result.exit_code == 1
    assert f"{table} {end} and had batch 2 before" in result.output
    assert f"run `garlicfarm pipeline repair --output {output}`" in result.output


def test_tables_with_older_record_are_refused(before_and_after: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = before_and_after
    output = restored(after, before, "reports", tmp_path)
    record = output / "batches-log.json"
    shutil.copy(before / record.name, record)
    for sql in ("SELECT count(*) FROM reports", "completeness"):
        result = CliRunner().invoke(query, [sql, "--output", str(output)])
        assert (result.exit_code, f"{record} does not belong to the tables: it " in result.output) == (1, True)
    with pytest.raises(TableDamagedError, match=r"does not belong to the tables: it .*`.* repair --output "):
        lake_at(output)


def test_lost_counts_show_surplus_rows(tmp_path: Path) -> None:
    log = two_days()
    write(tmp_path, part(log, 1, 9), part(log, 10, 13))
    table = Table(tmp_path, RANGES_SPEC)
    (last,) = (each for each in table.files() if each.batch == 1)
    table.rewrite([last], RANGES_SPEC.schema.empty_table())
    row = completeness(tmp_path)[FIRST_DAY]
    assert (row["surplus_rows"], row["complete"]) == (3 + 1 + 6, False)


def test_days_before_the_drop_of_old_rows_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LOOK_BATCHES", 1)
    log = two_days()
    write(tmp_path, *(part(log, first, first + 4) for first in (1, 6, 11, 16, 21)), keep_ms=DAY_MS)
    rows = completeness(tmp_path)
    assert rows[FIRST_DAY]["missing_rows"] is rows[FIRST_DAY]["surplus_rows"] is None
    assert (rows[SECOND_DAY]["missing_rows"], rows[SECOND_DAY]["surplus_rows"]) == (0, 0)
    assert all(row["complete"] for row in rows.values())


def test_rows_of_an_earlier_version_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given tables of a version without counts
    log = two_days()
    write(tmp_path, part(log, 1, 9))
    shutil.rmtree(tmp_path / "ranges")
    notes = tmp_path / "batches-log.json"
    noted = json.loads(notes.read_text())
    del noted["tables"]["ranges"]
    notes.write_text(json.dumps(noted))

    # when the next version is killed in its first batch, and repeats it
    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "_append_ranges", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, part(log, 10, 13), begin=1)
    write(tmp_path, part(log, 10, 13), part(log, 14, 26), begin=1)
    # then
    rows = completeness(tmp_path)
    assert (rows[FIRST_DAY]["missing_rows"], rows[FIRST_DAY]["unread"], rows[FIRST_DAY]["repeated"]) == (None, 0, 0)
    assert (rows[SECOND_DAY]["missing_rows"], rows[SECOND_DAY]["complete"]) == (0, True)
