"""The sources `farm` and `farm_events`, read by Spark."""

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from pipeline.source.farm import FarmStreamReader
from pipeline.tables.tasks import read_in_tasks
from tests.pipeline.farm_log_server import entries_of, serve_log, three_servers
from tests.pipeline.test_traces import a_node_with_five_events
from tests.pipeline.test_wanted import HALF, all_rows
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


def test_source_yields_each_committed_entry_once_in_order(session: SparkSession, tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with serve_log(log, tmp_path / "control.sock") as address:
        nodes = f"{tmp_path / 'absent.sock'},{address}"
        rows = session.read.format("farm").option("node", nodes).option("pageSize", "7").load().collect()
    rows.sort(key=lambda row: row["index"])
    assert [row["index"] for row in rows] == list(range(1, log.commit_index + 1))
    assert rows == entries_of(session, log).collect()


def test_stream_of_events_continues_after_crash(session: SparkSession, tmp_path: Path) -> None:
    one, two = a_node_with_five_events(), a_node_with_five_events()
    with serve_log(one, tmp_path / "one.sock") as first, serve_log(two, tmp_path / "two.sock") as second:
        absent = str(tmp_path / "absent.sock")
        for _ in range(2):
            stream = session.readStream.format("farm_events").option("node", f"{first},{absent},{second}").load()
            writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start(str(tmp_path / "events"))
            query.awaitTermination()
            # Given a crash that left the batch without its commit record, and one more event
            shutil.rmtree(tmp_path / "checkpoint" / "commits")
            two.add_event("leader-elected", term=2)
    rows = session.read.parquet(str(tmp_path / "events")).collect()
    assert sorted(row["cursor"] for row in rows) == sorted([1, 2, 3, 4, 5] * 2 + [6])
    assert json.loads(next(row["data"] for row in rows if row["cursor"] == 6)) == {"term": 2}


def test_filters_are_pushed_to_source(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        with serve_log(three_servers(minutes=1), tmp_path / "control.sock") as node:
            rows = session.read.format("farm").option("node", node).option("pushFilters", "true").load()
            early = "log_time < '2026-01-01 00:00:30'"
            chosen = rows.where(f"index > 3 and entry = 'report' and server_id in (1, 2) and {early}")
            assert [row["index"] for row in chosen.orderBy("index").collect()] == [
                row["index"]
                for row in all_rows(node)
                if row["index"] > 3 and row["entry"] == "report" and row["server_id"] != 3 and row["log_time"] < HALF
            ]
            plan = chosen._jdf.queryExecution().executedPlan().toString()
            assert "+- Filter" not in plan, plan
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_job_with_tag_is_canceled_alone(session: SparkSession, tmp_path: Path) -> None:
    class WaitingReader:
        """Waits for bytes in the named pipe of a task."""

        def read(self, pipe: Path) -> Iterator[bytes]:
            yield pipe.read_bytes()

    ours, another = pipes = [tmp_path / name for name in ("ours", "another")]
    for each in pipes:
        os.mkfifo(each)
    reader, job_tags = cast("FarmStreamReader", WaitingReader()), ("tag", "another-tag")
    with ThreadPoolExecutor(2) as threads:
        jobs = [
            threads.submit(read_in_tasks, session, tag, reader, [cast("InputPartition", pipe)])
            for tag, pipe in zip(job_tags, pipes, strict=True)
        ]
        # A pipe opens when its task has opened it too.
        with ours.open("wb"), another.open("wb") as unaffected:
            session.sparkContext.cancelJobsWithTag("tag")
            with pytest.raises(Py4JJavaError, match="cancelled"):
                jobs[0].result()
            unaffected.write(b"rows")
        assert jobs[1].result() == [b"rows"]
