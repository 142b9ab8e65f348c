"""Unmodified programs read a farm's log: kcat, librdkafka, Spark's Kafka source.

Tests that read records compare them with the entries from the node's control endpoint. The pipeline reads the same rows
from the topic and from this endpoint. Without librdkafka's package, this file is not collected. The other tests are
skipped if their program is missing.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from bridge.api.log import EntryKind, LogEntryView
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from tests.end_to_end.farm import START_BOUND_S, Node
from tests.end_to_end.test_kafka_listener import lone_farm
from tests.interop.kafka.kafka_farm import HIDDEN, TOPIC
from tests.interop.kafka.tool_jvm import BUILD, missing
from tests.spark import COMMAND_BOUND_S

pytestmark = pytest.mark.interop

READERS = BUILD / "readers"
NOTES = 50
BOUND_S = 120.0
needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is missing")
needs_readers = pytest.mark.skipif(
    missing() is not None or not READERS.is_dir(), reason="the jars are missing; `make interop-kafka` downloads them"
)


@contextmanager
def node_with(directory: Path, settings: str) -> Iterator[tuple[Node, str]]:
    """Run a node with a listener and some notes in its log; yield it and the address of the listener."""
    made, listen = lone_farm(directory, settings)
    with made:
        (node,) = made.nodes
        node.start()
        made.wait_until(lambda: node.view().farm.level == SUPPORTED_LEVEL, START_BOUND_S, "the level is raised")
        for number in range(NOTES):
            node.submit({"note": number})
        yield node, listen


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    with node_with(tmp_path_factory.mktemp("readers"), "groups = true\n") as found:
        yield found


def records(node: Node) -> dict[int, LogEntryView]:
    """Return the entries that Kafka clients see as records, keyed by offset (index - 1)."""
    return {
        index - 1: entry
        for index, entry in node.entries().items()
        if entry.kind is EntryKind.APPLICATION and HIDDEN.search(entry.data) is None
    }


def run(*command: str | Path, bound_s: float = BOUND_S) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=bound_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kcat
def test_kcat_lists_topic_and_prints_log(farm: tuple[Node, str]) -> None:
    node, listen = farm
    assert f'topic "{TOPIC}" with 1 partitions' in run("kcat", "-b", listen, "-L")
    expected = records(node)
    printed = run("kcat", "-b", listen, "-C", "-t", TOPIC, "-o", "beginning", "-e", "-q", "-f", "%o %T %h %s\n")
    found = [line.split(" ", 3) for line in printed.splitlines()]
    read = {int(offset): (int(at_ms), headers, value) for offset, at_ms, headers, value in found}
    assert len(read) == len(found)
    assert (
        read.items()
        >= {
            offset: (-1 if entry.log_time_ms is None else entry.log_time_ms, f"term={entry.term}", entry.data.decode())
            for offset, entry in expected.items()
        }.items()
    )


def test_librdkafka_lists_all_topics_and_one_named_topic(farm: tuple[Node, str]) -> None:
    _, listen = farm
    admin = AdminClient({"bootstrap.servers": listen})
    for name in (None, TOPIC):
        found = admin.list_topics(name, timeout=BOUND_S) if name else admin.list_topics(timeout=BOUND_S)
        assert {each: len(topic.partitions) for each, topic in found.topics.items()} == {TOPIC: 1}


@needs_readers
def test_spark_kafka_source_reads_and_follows_log(farm: tuple[Node, str], tmp_path: Path) -> None:
    node, listen = farm
    expected = records(node)
    assert spark(listen).items() >= {offset: row(entry) for offset, entry in expected.items()}.items()

    first = spark(listen, checkpoint=str(tmp_path / "checkpoint"))
    assert first.items() >= {offset: row(entry) for offset, entry in expected.items()}.items()
    node.submit({"note": "between two runs"})
    second = spark(listen, checkpoint=str(tmp_path / "checkpoint"))
    assert first.keys().isdisjoint(second)
    now = records(node)
    assert first | second == {offset: row(now[offset]) for offset in sorted(now) if offset <= max(second)}
    assert any("between two runs" in value for value, _, _ in second.values())


def jars() -> list[str]:
    return [str(jar) for jar in READERS.glob("*.jar") if not jar.name.startswith("connect-")]


def spark_job(module: str, job: str) -> Any:
    """Run a module of this folder with Spark; return the JSON value on its last line."""
    printed = run(sys.executable, "-m", f"tests.interop.kafka.{module}", job, bound_s=COMMAND_BOUND_S)
    return json.loads(printed.splitlines()[-1])


def spark(listen: str, **more: str) -> dict[int, tuple[str, int, Any]]:
    """Return the records that Spark reads, by offset."""
    job = json.dumps({"address": listen, "topic": TOPIC, "jars": jars(), **more})
    rows = spark_job("spark_reader", job)
    read = {offset: (value, at_ms, headers) for offset, value, at_ms, headers in rows}
    assert len(read) == len(rows)
    return read


def row(entry: LogEntryView) -> tuple[str, int, Any]:
    """Return an entry as Spark shows its record."""
    return entry.data.decode(), -1 if entry.log_time_ms is None else entry.log_time_ms, [["term", str(entry.term)]]


@needs_readers
def test_pipeline_rows_of_topic_and_control_endpoint_are_equal(farm: tuple[Node, str]) -> None:
    node, listen = farm
    expected = {offset + 1 for offset in records(node)}
    job = json.dumps({"address": listen, "node": str(node.socket), "jars": jars()})
    found = spark_job("pipeline_reader", job)
    kafka, ours = ({row["index"]: row for row in found[name]} for name in ("kafka", "farm"))
    assert kafka.keys() >= expected
    # The sources are read in turn while the log grows, so the later read may have newer rows. Only rows in both are
    # compared.
    both = [index for index in kafka if index in ours]
    assert len(both) >= len(expected)
    assert [kafka[index] for index in both] == [ours[index] for index in both]
    print(f"{len(ours)} entries: {found['seconds']} s")
