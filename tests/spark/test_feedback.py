"""Feedback after the batches of a run executed by Spark."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.feedback.farms import FarmsFeedback, Reach
from pipeline.run import RunSettings, await_end, prepare, start_query
from tests.pipeline.farm_log_server import address, arrow_entries_of, serve_log
from tests.pipeline.test_feedback import PERIOD_MS, Listener, OneReach, slow_farm
from tests.spark import JVM_SOCKETS

pytestmark = JVM_SOCKETS


@pytest.mark.soak
def test_lagging_router_is_submitted_once_across_restart(session: SparkSession, tmp_path: Path) -> None:
    messages: list[str] = []
    log = slow_farm(periods=6, slow_from=5)
    listener = Listener(log.log_time_ms)
    with serve_log(log, tmp_path / "control.sock") as node:
        source = {"node": node, "start": "19"}
        judge = FarmsFeedback(OneReach(Reach(listener, source)), messages.append)
        settings = RunSettings(tmp_path / "tables", source, judge=judge.after_batch)
        # Given a batch of a single period, so the driver also reads earlier history. When it is read
        prepare(settings.output)
        await_end(session, settings, lambda: start_query(session, settings, available_now=True))
        judge.finish()
        # Then one entry has the result of the whole history
        body = listener.accepted[0]["factors"]
        assert isinstance(body, dict)
        assert body["throughIndex"] == log.commit_index
        assert body["formula"] == "strain-1"
        assert body["factors"] == {address("three"): pytest.approx(1.477, abs=0.01)}
        assert messages == [f"factors (leaves: 1), made from the log up to {log.commit_index}, are entry 4711"]
    # And the next batch, a period later, does not submit anything
    log.tick(PERIOD_MS)
    listener.newest_ms = log.log_time_ms
    judge.after_batch(arrow_entries_of(log))
    judge.finish()
    assert len(listener.accepted) == len(messages) == 1
