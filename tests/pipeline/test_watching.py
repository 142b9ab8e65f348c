"""The stateful query over a log: a server's silence and return become rows, batch by batch or all at once."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline import current_state
from pipeline.run import RunSettings, await_end, prepare, start_watch
from pipeline.schemas import TRANSITIONS
from pipeline.watching import write_transitions
from tests.pipeline.farm_log_server import MadeUpLog, served

pytestmark = [
    pytest.mark.spark,
    # pyspark's own sockets to the JVM are closed by its finalizers
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def a_silent_server(minutes: int) -> MadeUpLog:
    """Periods of 10 s; server 2 says nothing after the first minute."""
    log = MadeUpLog()
    for period in range(minutes * 6):
        log.log_time_ms += 10_000
        log.add(value=json.dumps({"clock": {"time": log.log_time_ms, "id": 1, "period": 10_000}}))
        log.report(1, uptime=period * 10_000)
        if period < 6:
            log.report(2, uptime=period * 10_000)
    return log


def states_of(session: SparkSession, output: Path) -> list[tuple[Any, ...]]:
    rows = session.read.parquet(str(output / "transitions")).orderBy("server_id", "at").collect()
    return [(row["server_id"], row["previous"], row["state"]) for row in rows]


def test_silence_alone_yields_a_row_and_the_current_state_shows_it(session: SparkSession, tmp_path: Path) -> None:
    log = a_silent_server(minutes=4)
    with served(log, tmp_path / "control.sock") as address:
        settings = RunSettings(tmp_path / "tables", {"node": address})
        prepare(settings.output)
        current_state.update(settings.output, {"farm": [{"farm": 1, "index": 1, "period_ms": 10_000}]})
        await_end(session, settings, lambda: start_watch(session, settings, available_now=True))
    assert states_of(session, tmp_path / "tables") == [
        (1, "", "healthy"),
        (2, "", "healthy"),
        (2, "healthy", "silent"),
    ]
    watched = {row["server_id"]: row["state"] for row in current_state.read(tmp_path / "tables", "watched")}
    assert watched == {1: "healthy", 2: "silent"}


def test_a_batch_in_which_nothing_changed_leaves_no_directory_unless_it_has_one(
    session: SparkSession, tmp_path: Path
) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    nothing = session.createDataFrame([], TRANSITIONS)
    write_transitions(nothing, 0, tmp_path)
    assert not (tmp_path / "transitions").exists()
    # given a batch that was interrupted, and then comes to something else because the rules have changed meanwhile
    write_transitions(
        session.createDataFrame([(5, at, 70, "", "healthy", "first report", at, 1, 0)], TRANSITIONS), 1, tmp_path
    )
    assert len(states_of(session, tmp_path)) == 1
    write_transitions(nothing, 1, tmp_path)
    assert states_of(session, tmp_path) == []


def test_of_a_silence_and_a_return_at_the_same_moment_the_return_is_what_is_known(
    session: SparkSession, tmp_path: Path
) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [(5, at, 70, "silent", "healthy", "reports again", at, 1, 0)]
    rows += [(5, at, None, "healthy", "silent", "no report", at, 3, 0)]
    for batch, each in enumerate((rows, rows[::-1])):
        write_transitions(session.createDataFrame(each, TRANSITIONS), batch, tmp_path)
        assert [row["state"] for row in current_state.read(tmp_path, "watched")] == ["healthy"]
