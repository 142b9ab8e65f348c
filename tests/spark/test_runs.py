"""A run of the pipeline reads a log through a control endpoint and writes each row of its tables exactly once."""

import json
import shutil
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline.cli import options
from pipeline.cli.commands import run
from pipeline.cli.options import Engine
from pipeline.floodfills import SPEC, closest_floodfills, keep, routing_key
from pipeline.run import RunSettings, prepare, run_once
from pipeline.schemas import ENTRIES
from pipeline.serve.metrics import RunMetrics
from pipeline.source.farm import FarmDataSource
from pipeline.source.log_client import FarmLogError
from pipeline.tables.delta import stored_rows
from pipeline.tables.specs import BASE_SPECS
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, three_servers
from tests.pipeline.made_tables import gold_rows
from tests.pipeline.test_pipeline_tables import history
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


Ran = tuple[MadeUpLog, Path]


@pytest.fixture(scope="module")
def first_run(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return the log of a minute of a farm and the tables of a completed run."""
    place, log = tmp_path_factory.mktemp("run"), three_servers(minutes=1)
    with serve_log(log, place / "control.sock") as address:
        run_once(session, RunSettings(place / "tables", {"node": address}))
    return log, place / "tables"


@pytest.fixture
def ran(first_run: Ran, tmp_path: Path) -> Ran:
    """Return a copy of the first run that a test may change."""
    log, output = first_run
    shutil.copytree(output, tmp_path / "tables")
    return MadeUpLog(entries=[*log.entries], log_time_ms=log.log_time_ms), tmp_path / "tables"


def test_batch_repeated_after_crash_does_not_change_rows(session: SparkSession, ran: Ran, tmp_path: Path) -> None:
    # Given a run whose last batch was written, but not recorded in the checkpoint because of a crash
    log, output = ran
    undisturbed = history(output, "reports")
    shutil.rmtree(output / "checkpoint" / "commits")
    # When it runs again with more entries to read
    log.tick(10_000)
    log.report(1, uptime=70_000)
    metrics = RunMetrics()
    with serve_log(log, tmp_path / "control.sock") as address:
        run_once(session, RunSettings(output, {"node": address}, metrics=metrics))
    # Then each report is stored once, and all entries of both batches are counted
    assert f"garlicfarm_pipeline_entries_total {log.commit_index}.0" in metrics.exposition().decode()
    assert stored_rows(output / "reports", BASE_SPECS["reports"].schema).num_rows == 6 * 3 + 1
    assert [row for row in history(output, "reports") if row["index"] < log.commit_index] == (undisturbed)
    assert [row["reports"] for row in gold_rows(output, "router_health")] == [6, 6, 6, 1]


def test_command_continues_run_with_spark(
    session: SparkSession, ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclosed(*_: object, **__: object) -> Any:
        return nullcontext(session)

    monkeypatch.setattr(options, "Engine", partial(Engine, open_spark=unclosed))
    log, output = ran
    log.tick(10_000)
    with serve_log(log, tmp_path / "control.sock") as address:
        arguments = ["--once", "--json", "--no-events", "--no-watch", "--engine", "spark", "--output", str(output)]
        ended = CliRunner().invoke(run, [*arguments, "--node", address])
    assert ended.exit_code == 0, ended.output
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["server_id"] for row in rows} == {1, 2, 3}
    assert len([*(output / "checkpoint" / "commits").glob("[0-9]*")]) == 2


def test_log_of_another_farm_is_refused_by_checkpoint(ran: Ran, tmp_path: Path) -> None:
    log, output = ran
    (noted,) = (output / "checkpoint" / "offsets").glob("[0-9]*")
    offset = json.loads(noted.read_text().splitlines()[-1])
    stream = FarmDataSource({"node": str(tmp_path / "control.sock")}).streamReader(ENTRIES)
    with serve_log(log, tmp_path / "control.sock"):
        assert stream.latestOffset(offset, ReadAllAvailable()) == offset
    log.cluster_id = "ff" * 16
    with serve_log(log, tmp_path / "control.sock"), pytest.raises(FarmLogError, match="another output directory"):
        stream.latestOffset(offset, ReadAllAvailable())


@pytest.mark.soak
def test_log_compacted_past_checkpoint_raises(session: SparkSession, ran: Ran, tmp_path: Path) -> None:
    log, output = ran
    compacted = MadeUpLog(first_index=log.commit_index + 50)
    compacted.report(1, uptime=1)
    with (
        serve_log(compacted, tmp_path / "control.sock") as address,
        pytest.raises(FarmLogError, match="compacted away"),
    ):
        run_once(session, RunSettings(output, {"node": address}))


def test_tables_without_checkpoint_are_refused(ran: Ran) -> None:
    _, output = ran
    prepare(output)
    shutil.rmtree(output / "checkpoint")
    with pytest.raises(FarmLogError, match="without their checkpoint"):
        prepare(output)


@pytest.mark.soak
def test_distributed_floodfill_join_is_exact(session: SparkSession, tmp_path: Path) -> None:
    random = Random(5)
    routers = [random.randbytes(32).hex() for _ in range(300)]
    destinations = [random.randbytes(32).hex() for _ in range(20)]
    today = date(2026, 3, 1)
    found = closest_floodfills(
        session.createDataFrame([(each,) for each in [*destinations, "no hash"]], "destination STRING"),
        session.createDataFrame([(each.upper(),) for each in routers], "router STRING"),
        today,
        count=3,
    )
    # Written twice: the second write replaces the first
    keep(tmp_path, found)
    keep(tmp_path, found)
    assert (tmp_path / SPEC.name).stat().st_mode & 0o777 == 0o700, "it reveals the names of pseudonyms"
    rows = stored_rows(tmp_path / SPEC.name, SPEC.schema).to_pylist()
    assert len(rows) == 20 * 3 * 3
    for row in rows:
        key = int.from_bytes(routing_key(bytes.fromhex(row["destination"]), row["day"]))
        nearest = sorted((key ^ int(router, 16), router) for router in routers)
        assert row["router"] == nearest[row["rank"] - 1][1]
    assert {row["day"] for row in rows} == {date(2026, 2, 28), today, date(2026, 3, 2)}
