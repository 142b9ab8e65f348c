"""A derived table has the windows that batches touched, equal to one made at once, by DuckDB as by Spark."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.gold import refreshing
from pipeline.gold.refreshing import GoldTable, Touched, refresh
from pipeline.tables.delta import Table, TableSpec, stored_rows
from pipeline.tables.lake import LOG
from pipeline.tables.tasks import WINDOWS
from tests.pipeline.farm_log_server import MadeUpLog, three_servers
from tests.pipeline.made_tables import tables_of

MINUTE_MS = 60_000
SCHEMA = pa.schema(
    [
        ("farm", pa.string()),
        ("window_start", pa.timestamp("us", tz="UTC")),
        ("server_id", pa.int64()),
        ("reports", pa.int64()),
        ("uptime_ms", pa.int64()),
        ("last_ms", pa.int64()),
        ("day", pa.date32()),
    ]
)
SQL = """
SELECT t.farm, t.window_start, r.server_id, count(*) AS reports, max(r.uptime_ms) AS uptime_ms,
  max(unix_millis(r.log_time)) AS last_ms
FROM touched t JOIN reports r ON r.farm = t.farm AND r.log_time >= t.window_start AND r.log_time < t.window_end
GROUP BY t.farm, t.window_start, r.server_id
"""
GOLD = GoldTable(TableSpec("made", SCHEMA, ("farm", "window_start", "server_id")), SQL, ("reports",))


def brought_up(output: Path, log: MadeUpLog, batch: int, session: SparkSession | None = None) -> bool:
    """A batch into the base tables and into the derived one."""
    outcome = tables_of(log, output, batch)
    table = Table(output, GOLD.spec)
    return refresh(output, table, GOLD, Touched(outcome.rows[WINDOWS], MINUTE_MS), LOG, batch, session)


def parts(log: MadeUpLog, *ends: int) -> list[MadeUpLog]:
    """The log, cut behind these entries."""
    return [MadeUpLog(entries=log.entries[begin:end]) for begin, end in zip((0, *ends), (*ends, None), strict=True)]


def rows_of(output: Path) -> list[dict[str, Any]]:
    rows = stored_rows(output / "made", SCHEMA)
    return list(rows.sort_by([(each, "ascending") for each in GOLD.spec.sorted_by]).to_pylist())


def test_a_table_that_grew_by_batches_equals_one_made_at_once_and_a_repeated_batch_changes_nothing(
    tmp_path: Path,
) -> None:
    log = three_servers(minutes=3)
    brought_up(tmp_path / "once", log, 0)
    for batch, part in enumerate(parts(log, 7, 20, 33)):
        assert brought_up(tmp_path / "grown", part, batch)
        assert not brought_up(tmp_path / "grown", part, batch)
    expected = rows_of(tmp_path / "once")
    assert rows_of(tmp_path / "grown") == expected
    assert len({row["window_start"] for row in expected}) == 3
    assert sum(row["reports"] for row in expected) > 30
    assert {row["day"] for row in expected} == {datetime(2026, 1, 1, tzinfo=UTC).date()}


def test_windows_that_no_batch_touched_keep_their_files(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    brought_up(tmp_path, log, 0)
    before = {each.path for each in Table(tmp_path, GOLD.spec).files()}
    log.log_time_ms += timedelta(minutes=5) // timedelta(milliseconds=1)
    log.report(1, uptime=1)
    brought_up(tmp_path, MadeUpLog(entries=log.entries[-1:]), 1)
    assert before < {each.path for each in Table(tmp_path, GOLD.spec).files()}


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_spark_makes_the_same_rows_of_the_same_text(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = three_servers(minutes=3)
    for batch, part in enumerate(parts(log, 20)):
        brought_up(tmp_path / "duckdb", part, batch)
    monkeypatch.setattr(refreshing, "FEW_ROWS", 0)
    for batch, part in enumerate(parts(log, 20)):
        brought_up(tmp_path / "spark", part, batch, session)
    assert rows_of(tmp_path / "spark") == rows_of(tmp_path / "duckdb")
