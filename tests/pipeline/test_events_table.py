"""The table `events` is merged and grows old as the others do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.schemas import EVENTS, HISTORY
from pipeline.sinks import write_events
from pipeline.table_files import arrow_schema, live_files, reading

pytestmark = [
    pytest.mark.spark,
    # pyspark's own sockets to the JVM are closed by its finalizers
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = arrow_schema(HISTORY["events"])


def event(minute: int) -> dict[str, Any]:
    moment = NOON + timedelta(minutes=minute)
    said = '{"member": "node-2", "id": "22"}'
    told = {"node": "node-1", "cursor": minute + 1, "time_ms": int(moment.timestamp() * 1000), "log_time": moment}
    return {**told, "clock_offset_ms": 0, "kind": "member-suspect", "data": said}


def wrote(table: Path, batch: int) -> None:
    directory = table / f"batch_id={batch}"
    directory.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([event(batch)], SCHEMA), directory / "part-0.parquet")
    (directory / "_SUCCESS").touch()


def minutes(output: Path) -> list[int]:
    return [
        cursor - 1 for file in live_files(output / "events") for cursor in pq.read_table(file)["cursor"].to_pylist()
    ]


def test_events_are_merged_when_no_query_reads_them_and_dropped_when_they_are_old(
    session: SparkSession, tmp_path: Path
) -> None:
    nothing = session.createDataFrame([], EVENTS)
    for batch in range(32):
        wrote(tmp_path / "events", batch)
    # given a thread that makes tables of what it listed
    with reading():
        listed = live_files(tmp_path / "events")
        write_events(nothing, 32, tmp_path, keep_ms=600_000)
        assert all(file.exists() for file in listed)
    # when no query does any more
    write_events(nothing, 33, tmp_path, keep_ms=600_000)
    assert len(live_files(tmp_path / "events")) < 32
    assert minutes(tmp_path) == list(range(32))
    # then, much later, what is older than is kept goes
    for batch in range(34, 70):
        wrote(tmp_path / "events", batch)
    write_events(nothing, 70, tmp_path, keep_ms=600_000)
    assert min(minutes(tmp_path)) == 34
