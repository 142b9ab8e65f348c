"""`garlicfarm pipeline run --kafka` reads a farm's topic, from a moment on and during a recovery of the farm."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.serve.query import QueryError, documents
from tests.end_to_end.farm import START_BOUND_S, call, wait_until
from tests.interop.kafka.test_readers import jars, needs_readers, node_with, records
from tests.processes import child
from tests.spark import COMMAND_BOUND_S, QUICK_JVM

pytestmark = [pytest.mark.interop, needs_readers, pytest.mark.timeout(3_900)]

QUICK_START = f"spark.driver.extraJavaOptions={QUICK_JVM}"
PAUSE_S = 90
"""Pause between two batches. The recovery must fit into it, because a task without a broker would end the run."""


def command(name: str, listen: str, output: Path, *options: str) -> list[str]:
    """Return a command of the pipeline over the topic."""
    of_spark = ("--conf", f"spark.jars={','.join(jars())}", "--conf", QUICK_START, "--master", "local[1]")
    of_topic = ("--kafka", listen, "--output", str(output), *of_spark, *options)
    return [sys.executable, "-m", "bridge.cli.main", "pipeline", name, *of_topic]


def ended(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_BOUND_S, check=False)


def once(listen: str, output: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the pipeline once over the topic, and return the ended process."""
    return ended(command("run", listen, output, "--once", "--no-events", *options))


def read_entries(output: Path) -> list[dict[str, Any]]:
    """Return the farms in the tables, with the first and the last entry; none before the first batch."""
    try:
        return documents(
            output,
            "SELECT farm, min(first_index) AS first, max(last_index) AS last FROM ranges"
            " WHERE name = 'log' GROUP BY farm",
        )
    except QueryError:
        return []


def test_starting_timestamp_selects_entries_from_that_log_time(tmp_path: Path) -> None:
    (tmp_path / "farm").mkdir()
    with node_with(tmp_path / "farm", "") as (node, listen):

        def has_two_times() -> bool:
            return len({each.log_time_ms for each in records(node).values()} - {None}) > 1

        wait_until(has_two_times, START_BOUND_S, "the log has two times")
        times_ms = {offset: each.log_time_ms for offset, each in records(node).items() if each.log_time_ms is not None}
        since_ms = max(times_ms.values())
        expected = {offset + 1 for offset, at_ms in times_ms.items() if at_ms >= since_ms}
        done = once(listen, tmp_path / "tables", "--kafka-option", f"startingTimestamp={since_ms}")
        assert done.returncode == 0, done.stderr
        (found,) = read_entries(tmp_path / "tables")
        assert found["first"] == min(expected)
        assert found["last"] >= max(expected)


def test_recovery_of_farm_ends_run_over_its_topic(tmp_path: Path) -> None:
    (tmp_path / "farm").mkdir()
    output = tmp_path / "tables"
    with node_with(tmp_path / "farm", "") as (node, listen):
        with (
            (tmp_path / "problem.txt").open("w") as problem,
            child(
                command("run", listen, output, "--no-events", "--trigger", str(PAUSE_S)),
                stdout=subprocess.DEVNULL,
                stderr=problem,
            ) as run,
        ):
            wait_until(lambda: bool(read_entries(output)), COMMAND_BOUND_S, "the run has written a batch")
            cluster = node.view().farm.cluster_id
            node.stop()
            recovery = json.loads(call("recover", "--from", node.directory, "--yes", "--json").stdout)
            node.start()
            wait_until(
                lambda: node.view().farm.cluster_id == recovery["newClusterId"], START_BOUND_S, "the new cluster runs"
            )
            run.wait(PAUSE_S + COMMAND_BOUND_S)
        text = (tmp_path / "problem.txt").read_text()
        assert (run.returncode, f"the topic belongs to {recovery['newClusterId']}" in text) == (1, True), text
        (found,) = read_entries(output)
        assert (found["farm"], found["last"] <= recovery["lastIndex"]) == (cluster, True)
        again = once(listen, output)
        assert (again.returncode, "garlicfarm recover" in again.stderr) == (1, True), again.stderr


def test_lost_rows_are_repaired_from_topic(tmp_path: Path) -> None:
    (tmp_path / "farm").mkdir()
    output, sql = tmp_path / "tables", "SELECT * FROM quarantine ORDER BY index"
    with node_with(tmp_path / "farm", "") as (_, listen):
        done = once(listen, output)
        assert done.returncode == 0, done.stderr
        rows = documents(output, sql)
        assert rows
        shutil.rmtree(output / "quarantine")
        repaired = ended(command("repair", listen, output))
        assert (repaired.returncode, "were read again" in repaired.stdout) == (0, True), repaired.stderr
        assert documents(output, sql) == rows
        assert once(listen, output).returncode == 0
