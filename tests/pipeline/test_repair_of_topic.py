"""Repair of the tables of a Kafka topic from the topic itself, with a fake of Spark's connector."""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pipeline.cli.repair import repair as repair_command
from pipeline.gold.answers import answer_sql
from pipeline.repair.damage import examine
from pipeline.repair.record import stored_notes
from pipeline.repair.repairing import repair
from pipeline.run import claim_layout
from pipeline.serve.query import documents, stored_gaps
from pipeline.source.farms import OneFarm, Place
from pipeline.source.kafka import SERVERS, TopicRanges
from pipeline.source.log_client import FarmLogError
from pipeline.tables.batch_notes import Continuity
from pipeline.tables.delta import stored_rows
from pipeline.tables.specs import BASE_SPECS
from tests.effort import each_case
from tests.pipeline.farm_log_server import MadeUpLog, two_days
from tests.pipeline.made_tables import tables_of
from tests.pipeline.test_kafka_records import records

HIDDEN = {1, 4, 5, 6, 10}
"""Entries that the topic lacks: the first one, and some within each batch."""
BATCHES = ((1, 9), (10, 26))
ENTRIES = [each for each in two_days().entries if each["index"] not in HIDDEN]


def write(output: Path) -> None:
    """Write all batches like a run over the topic, with the offsets of Spark."""
    output.mkdir()
    claim_layout(output)
    for batch, (first, last) in enumerate(BATCHES):
        entries = [each for each in ENTRIES if first <= each["index"] <= last]
        tables_of(MadeUpLog(entries=entries), output, batch, continuity=Continuity.LATER)
        for directory, line in (("offsets", json.dumps({"farm-log": {"0": last}})), ("commits", "")):
            file = output / "checkpoint" / directory / str(batch)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"v1\n{{}}\n{line}\n")


@pytest.fixture(scope="module")
def of_topic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("topic") / "tables"
    write(output)
    return output


def topic(first: int = 0, end: int = 26, cluster: str = two_days().cluster_id) -> OneFarm:
    """Return a topic with the records at some offsets."""

    def reply(value: object) -> Any:
        return SimpleNamespace(isDone=lambda: True, get=lambda: value)

    def loaded(**options: str) -> Any:
        begin, stop = (json.loads(options[each])["farm-log"]["0"] for each in ("startingOffsets", "endingOffsets"))
        assert first <= begin <= stop <= end
        headers: list[dict[str, object]] = [{"key": "term", "value": b"1"}]
        found = [
            (each["index"] - 1, each["value"].encode(), each["logTimeMs"], headers)
            for each in ENTRIES
            if begin < each["index"] <= stop
        ]
        columns = SimpleNamespace(toArrow=lambda: pa.Table.from_batches([records(*found)] if found else [], SCHEMA))
        return SimpleNamespace(load=lambda: SimpleNamespace(selectExpr=lambda *_: columns))

    def offsets(requested: Mapping[Any, int]) -> Any:
        return SimpleNamespace(partitionResult=lambda each: reply(SimpleNamespace(offset=lambda: requested[each])))

    session = MagicMock()
    clients = session._jvm.org.apache.kafka.clients.admin
    clients.OffsetSpec.earliest.return_value, clients.OffsetSpec.latest.return_value = first, end
    admin = clients.AdminClient.create.return_value
    admin.describeCluster.return_value.clusterId.return_value = reply(cluster)
    admin.listOffsets.side_effect = offsets
    session.read.format.return_value.options.side_effect = loaded
    return OneFarm(Place(None, TopicRanges(session, {SERVERS: "a:1"})))


SCHEMA = records((0, b"", 0, [])).schema


def rows_in(output: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        name: stored_rows(output / name, spec.schema).sort_by("index").to_pylist() for name, spec in BASE_SPECS.items()
    }


@each_case(
    "damaged", ["reports", "ranges", "ranges/day=2026-01-01", "checkpoint", "checkpoint batches-log.json reports"]
)
def test_tables_of_topic_are_repaired_from_topic(damaged: str, of_topic: Path, tmp_path: Path) -> None:
    output = shutil.copytree(of_topic, tmp_path / "tables")
    for name in damaged.split():
        (output / name).unlink() if (output / name).is_file() else shutil.rmtree(output / name)
    assert stored_notes(output).of_topic
    found = examine(output)
    assert found
    repair(output, found, topic, lambda _: None)
    assert (rows_in(output), bool(examine(output))) == (rows_in(of_topic), False)
    assert not any(row["surplus_rows"] for row in documents(output, answer_sql("completeness")))


def test_stored_gaps_of_topic_of_earlier_version_are_empty(of_topic: Path, tmp_path: Path) -> None:
    output = shutil.copytree(of_topic, tmp_path / "tables")
    record = output / "batches-log.json"
    noted = json.loads(record.read_text())
    assert noted.pop("ofTopic")
    record.write_text(json.dumps(noted))
    assert stored_gaps(output) == ()


def test_part_without_records_is_read(of_topic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.repair.repairing.ENTRIES_AT_ONCE", 2)
    output = shutil.copytree(of_topic, tmp_path / "tables")
    shutil.rmtree(output / "clocks")
    repair(output, examine(output), topic, lambda _: None)
    assert rows_in(output) == rows_in(of_topic)


def test_lost_records_of_topic_are_recorded_as_gone(of_topic: Path, tmp_path: Path) -> None:
    output = shutil.copytree(of_topic, tmp_path / "tables")
    shutil.rmtree(output / "reports")
    lines: list[str] = []
    # when the lost records end in the middle of a batch
    repair(output, examine(output), partial(topic, first=12), lines.append)
    assert [each for each in lines if "gone" in each]
    assert rows_in(output)["reports"] == [row for row in rows_in(of_topic)["reports"] if row["index"] > 12]
    assert sum(row["gone"] for row in documents(output, answer_sql("completeness"))) == 12 - 1


@each_case("given, fault", [({"end": 20}, "up to 20 only"), ({"cluster": "ff" * 16}, "not among the farms that reply")])
def test_other_topic_is_refused(given: dict[str, Any], fault: str, of_topic: Path, tmp_path: Path) -> None:
    output = shutil.copytree(of_topic, tmp_path / "tables")
    shutil.rmtree(output / "reports")
    with pytest.raises(FarmLogError, match=fault):
        repair(output, examine(output), partial(topic, **given), lambda _: None)


def test_topic_is_refused_for_tables_of_nodes(tmp_path: Path) -> None:
    tables_of(two_days(), tmp_path / "tables")
    for options, text in ((["--kafka", "a:1"], "are not from a topic"), (["--conf", "spark.a=b"], "belong to --kafka")):
        result = CliRunner().invoke(repair_command, [*options, "--output", str(tmp_path / "tables")])
        assert (result.exit_code, text in result.output) == (2, True), result.output
