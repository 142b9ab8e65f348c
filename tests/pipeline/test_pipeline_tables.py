"""The pipeline reads a log through a control endpoint and keeps its tables exactly once."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from pipeline.log_client import FarmLogError
from pipeline.run import RunSettings, run_once
from pipeline.sinks import refresh
from pipeline.transforms import classified, quarantine
from tests.pipeline.farm_log_server import MadeUpLog, served, three_servers

pytestmark = [
    pytest.mark.spark,
    # pyspark's own sockets to the JVM are closed by its finalizers
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_the_source_yields_every_committed_entry_once_and_in_its_place(session: SparkSession, tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with served(log, tmp_path / "control.sock") as address:
        rows = session.read.format("farm").option("node", address).option("pageSize", "7").load().collect()
    assert [row["index"] for row in sorted(rows, key=lambda row: row["index"])] == list(range(1, log.commit_index + 1))
    assert rows[0]["kind"] == "configuration"


def test_router_health_tells_availability_and_restarts_by_window_of_log_time(
    session: SparkSession, tmp_path: Path
) -> None:
    with served(three_servers(minutes=3), tmp_path / "control.sock") as address:
        rows = run_once(session, RunSettings(tmp_path / "tables", {"node": address})).collect()
    by_key = {(row["window_start"].minute, row["server_id"]): row for row in rows}
    assert by_key[0, 1]["availability"] == 1.0
    assert (1, 3) not in by_key, "a server that said nothing in a window has no row there"
    assert by_key[2, 3]["availability"] == 1.0
    assert by_key[2, 3]["uptime_ms"] == 50_000
    assert by_key[0, 1]["window_start"].replace(tzinfo=UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert by_key[0, 2]["job_lag_p50_ms"] == 2.0
    assert by_key[0, 2]["healthy_share"] == 0.5
    assert by_key[0, 1]["healthy_share"] == 1.0


def test_a_second_run_reads_only_what_is_new_and_nothing_is_there_twice(session: SparkSession, tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    settings = RunSettings(tmp_path / "tables", {"node": str(tmp_path / "control.sock")})
    with served(log, tmp_path / "control.sock"):
        run_once(session, settings)
        log.tick(10_000)
        log.report(1, uptime=70_000)
        again = run_once(session, settings)
        assert session.read.parquet(str(settings.output / "reports")).count() == 6 * 3 + 1
        assert [row["reports"] for row in again.collect()] == [6, 6, 6, 1]


def test_a_batch_that_is_repeated_after_a_crash_changes_no_table(session: SparkSession, tmp_path: Path) -> None:
    # given a run whose last batch was written but, by a crash, not noted as done in the checkpoint
    settings = RunSettings(tmp_path / "tables", {"node": str(tmp_path / "control.sock")})
    with served(three_servers(minutes=2), tmp_path / "control.sock"):
        undisturbed = run_once(session, settings).collect()
        shutil.rmtree(settings.output / "checkpoint" / "commits")
        # when it runs again
        repeated = run_once(session, settings)
        # then every table is as it was
        assert repeated.collect() == undisturbed
        assertDataFrameEqual(refresh(session, settings.output, settings.window), repeated)


def test_another_farms_log_is_refused_by_a_checkpoint(session: SparkSession, tmp_path: Path) -> None:
    settings = RunSettings(tmp_path / "tables", {"node": str(tmp_path / "control.sock")})
    with served(three_servers(minutes=1), tmp_path / "control.sock"):
        run_once(session, settings)
    other = three_servers(minutes=2)
    other.cluster_id = "ff" * 16
    with served(other, tmp_path / "control.sock"), pytest.raises(FarmLogError, match="another output directory"):
        run_once(session, settings)


def test_a_log_compacted_past_the_checkpoint_fails_loudly(session: SparkSession, tmp_path: Path) -> None:
    settings = RunSettings(tmp_path / "tables", {"node": str(tmp_path / "control.sock")})
    log = three_servers(minutes=1)
    with served(log, tmp_path / "control.sock"):
        run_once(session, settings)
        compacted = MadeUpLog(first_index=log.commit_index + 50)
        compacted.report(1, uptime=1)
        log.first_index, log.entries = compacted.first_index, compacted.entries
        with pytest.raises(FarmLogError, match="compacted away"):
            run_once(session, settings)


def test_hostile_entries_are_quarantined_with_the_reason_and_stop_nothing(
    session: SparkSession, tmp_path: Path
) -> None:
    log = three_servers(minutes=1)
    log.add(value='{"admission": {"node": "0123456789abcdef", "name": "node-4"}}')
    log.add(value="not json at all")
    log.add(base64="//79")
    log.add(value='{"router": {"uptime": "a string"}, "id": 1, "date": 2}')
    log.add(value='{"unheard": "of"}')
    log.add(value='{"router": {"uptime": 5}}')
    log.add(value='{"id": 1, "date": 99999999999999999999999999, "router": {}}')
    log.add(value='{"padding": "' + "x" * 70_000 + '"}')
    with served(log, tmp_path / "control.sock") as address:
        entries = session.read.format("farm").option("node", address).load()
        reasons = [row["reason"] for row in quarantine(classified(entries)).orderBy("index").collect()]
        health = run_once(session, RunSettings(tmp_path / "tables", {"node": address})).collect()
    assert reasons[0] == "not the JSON that a server writes"
    assert reasons[1] == "not UTF-8"
    assert "larger than" in reasons[-1]
    assert len(reasons) == 7
    assert [row["reports"] for row in health] == [6, 6, 6]


def test_tables_whose_checkpoint_is_gone_are_not_mixed_with_new_ones(session: SparkSession, tmp_path: Path) -> None:
    settings = RunSettings(tmp_path / "tables", {"node": str(tmp_path / "control.sock")})
    with served(three_servers(minutes=1), tmp_path / "control.sock"):
        run_once(session, settings)
        shutil.rmtree(settings.output / "checkpoint")
        with pytest.raises(FarmLogError, match="no checkpoint"):
            run_once(session, settings)


def test_an_entry_too_old_for_the_node_to_tell_its_time_is_kept_and_in_no_window(
    session: SparkSession, tmp_path: Path
) -> None:
    log = three_servers(minutes=1)
    for entry in log.entries[:5]:
        entry["logTimeMs"] = None
    with served(log, tmp_path / "control.sock") as address:
        settings = RunSettings(tmp_path / "tables", {"node": address})
        health = run_once(session, settings).collect()
        assert session.read.parquet(str(settings.output / "reports")).count() == 6 * 3
    assert [row["reports"] for row in health] == [5, 5, 5]


def test_a_farm_without_reports_yet_gives_an_empty_table(session: SparkSession, tmp_path: Path) -> None:
    log = MadeUpLog()
    log.add("configuration", value="{}")
    with served(log, tmp_path / "control.sock") as address:
        assert run_once(session, RunSettings(tmp_path / "tables", {"node": address})).collect() == []


def test_a_node_that_does_not_answer_is_passed_over_for_the_next(session: SparkSession, tmp_path: Path) -> None:
    with served(three_servers(minutes=1), tmp_path / "control.sock") as address:
        nobody = str(tmp_path / "nobody.sock")
        assert run_once(session, RunSettings(tmp_path / "tables", {"node": f"{nobody},{address}"})).count() == 3
