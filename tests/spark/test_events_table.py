"""The table `events` contains each batch of events once, partitioned by the day of log time."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.lake import EventsTable
from pipeline.schemas import EVENTS
from pipeline.tables.delta import stored_rows
from pipeline.tables.specs import EVENTS_SPEC
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_repeated_batch_of_events_is_stored_once(session: SparkSession, tmp_path: Path) -> None:
    batch_rows = [
        ("aa", "node-1", cursor, 1_000 * cursor, moment, 0, "founded", "{}")
        for cursor, moment in ((1, NOON), (2, None))
    ]
    for batch in (0, 0):
        EventsTable(tmp_path).write_batch(session.createDataFrame(batch_rows, EVENTS), batch)
    EventsTable(tmp_path).write_batch(session.createDataFrame([], EVENTS), 1)
    rows = stored_rows(tmp_path / "events", EVENTS_SPEC.schema).sort_by("cursor").to_pylist()
    assert [(row["cursor"], row["log_time"], row["day"], row["batch_id"]) for row in rows] == [
        (1, NOON, NOON.date(), 0),
        (2, None, None, 0),
    ]
