"""Feedback behind the batches: what is looked at, when something is submitted, and what becomes of failures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bridge.core.hashes import hash_of
from pipeline.feedback import Feedback, NodeSubmission, NotSubmittedError
from pipeline.feedback_rows import recent
from pipeline.log_client import NO_CREDENTIALS
from pipeline.run import RunSettings, run_once
from pipeline.weighing import ClockRow, FactorsRow, ReportRow
from tests.pipeline.farm_log_server import MadeUpLog, entries_of, served

pytestmark = pytest.mark.spark

PERIOD_MS = 30_000
LEAVES = {1: "AAAA", 2: "AAAB", 3: "AAAC"}


def slow_farm(periods: int, slow_from: int) -> MadeUpLog:
    """Three servers; the third lags from some period on."""
    log = MadeUpLog()
    log.add("configuration", value='{"servers":[]}')
    for period in range(periods):
        log.tick(0 if period == 0 else PERIOD_MS)
        for server, leaf in LEAVES.items():
            lag = 800.0 if server == 3 and period >= slow_from else 5.0
            body = {"cluster": "farm", "date": log.log_time_ms, "id": server, "router": {"jobLag": lag}}
            log.add(value=json.dumps({**body, "destinations": [{"destination": leaf, "healthy": True}]}))
    return log


@dataclass
class Listener:
    """In place of a farm: takes what is submitted, or refuses it."""

    newest_ms: int | None
    refuses: str = ""
    first: int = 1
    taken: list[Mapping[str, object]] = field(default_factory=list)

    def oldest(self) -> int:
        """Everything is there, unless told otherwise."""
        return self.first

    def log_time_ms(self) -> int | None:
        """As told."""
        return self.newest_ms

    def submit(self, entry: Mapping[str, object]) -> int:
        """Take it, or refuse it."""
        if self.refuses:
            raise NotSubmittedError(self.refuses)
        self.taken.append(entry)
        return 4711


def test_of_a_batch_the_recent_rows_are_looked_at_and_hostile_ones_passed_over(session: SparkSession) -> None:
    log = slow_farm(periods=60, slow_from=58)
    log.add(value='{"factors": {"throughIndex": 7, "formula": "x", "factors": {"abc": 1.5, "def": "much"}}}')
    log.add(value='{"factors": "none"}')
    log.add(value='{"router": {"jobLag": "slow"}, "id": 1, "destinations": [{"destination": 5}, null, 7]}')
    log.add(value='{"router": {}, "id": "one"}')
    log.add(value="not json")
    log.add(base64="//79")
    rows = recent(entries_of(session, log))
    # twenty minutes are forty periods, and both ends count
    assert sum(isinstance(row, ClockRow) for row in rows) == 41
    assert [row.index for row in rows] == sorted(row.index for row in rows)
    newest = [row for row in rows if isinstance(row, ReportRow) and row.server_id == 3][-1]
    assert (newest.job_lag_ms, newest.leaves) == (800.0, ((hash_of("AAAC"), True),))
    assert not [row for row in rows if isinstance(row, FactorsRow) and row.factors.get("def")]


def test_a_lagging_router_is_told_to_the_farm_once_and_with_what_was_read_before_a_restart(
    session: SparkSession, tmp_path: Path
) -> None:
    told: list[str] = []
    log = slow_farm(periods=6, slow_from=5)
    listener = Listener(log.log_time_ms)
    with served(log, tmp_path / "control.sock") as address:
        source = {"node": address, "start": "19"}
        feedback = Feedback(session, source, listener, told.append)
        settings = RunSettings(tmp_path / "tables", source, judge=feedback.after_batch)
        # given a batch of one single period, before which the driver looks back; when it is read
        run_once(session, settings)
        # then one entry says what the whole history says
        body = listener.taken[0]["factors"]
        assert isinstance(body, dict)
        assert body["throughIndex"] == log.commit_index
        assert body["formula"] == "strain-1"
        assert body["factors"] == {hash_of("AAAC"): pytest.approx(1.477, abs=0.01)}
        assert told == [f"factors of 1 leaves, made from the log up to {log.commit_index}, are entry 4711"]
    # and the next batch, a period later, repeats nothing
    log.tick(PERIOD_MS)
    listener.newest_ms = log.log_time_ms
    feedback.after_batch(entries_of(session, log))
    assert len(listener.taken) == feedback.submitted == 1


def test_a_backlog_is_nobodys_business_now(session: SparkSession) -> None:
    log = slow_farm(periods=6, slow_from=3)
    listener = Listener(log.log_time_ms + 121_000, first=2)
    feedback = Feedback(session, {}, listener, lambda _: None)
    feedback.after_batch(entries_of(session, log))
    assert feedback.weighing.propose() is not None
    assert listener.taken == []


def test_a_farm_that_refuses_is_told_of_and_stops_no_batch(session: SparkSession) -> None:
    told: list[str] = []
    log = slow_farm(periods=6, slow_from=3)
    listener = Listener(log.log_time_ms, refuses="node-1: busy", first=2)
    feedback = Feedback(session, {}, listener, told.append)
    feedback.after_batch(entries_of(session, log))
    assert told == ["factors not submitted: node-1: busy"]
    assert (feedback.submitted, feedback.failed) == (0, 1)


def test_no_node_that_answers_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    submission = NodeSubmission((str(tmp_path / "nobody.sock"), str(tmp_path / "neither.sock")), NO_CREDENTIALS)
    with pytest.raises(NotSubmittedError, match=r"nobody\.sock.*neither\.sock"):
        submission.submit({"factors": {}})
