"""Several queries in one run: they start one at a time, and a query with a lost start is started again.

A start is lost if Spark's Python worker does not connect in time. Pauses double between attempts. The clock of
these tests is a number.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipeline.source.log_client import FarmLogError
from pipeline.spark.failures import reason_of
from pipeline.spark.lost_starts import GIVE_UP_S, PAUSE_LONGEST_S, RetryPolicy
from pipeline.spark.side_by_side import QueryState, RunningQuery, SideBySide

LOST = "Query [id = 1] terminated with exception: Python worker failed to connect back."


@dataclass
class MadeUpQuery:
    """A query controlled by a test."""

    isActive: bool = True  # noqa: N815 - Spark's name
    lastProgress: Any = None  # noqa: N815 - Spark's name
    status: dict[str, Any] = field(
        default_factory=lambda: {"isTriggerActive": True, "message": "Getting offsets from it"}
    )
    failure: Exception | None = None
    error_at_stop: Exception | None = None

    def exception(self) -> Exception | None:
        return self.failure

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        del timeout
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False
        if self.error_at_stop is not None:
            raise self.error_at_stop

    def go_idle(self) -> None:
        """Enter the state without work."""
        self.status = {"isTriggerActive": False, "message": "Waiting for next trigger"}

    def die(self, reason: str) -> None:
        self.isActive, self.failure = False, RuntimeError(reason)


class TwoQueries:
    """Two concurrent queries, the list of all starts, and the operator's log lines."""

    def __init__(self, give_up_s: float | None = None) -> None:
        self.starts: list[tuple[str, MadeUpQuery]] = []
        self.log_lines: list[str] = []
        self.now_s = 0.0
        self.lost = 0
        specifications = [QueryState("first", self._begin("first")), QueryState("second", self._begin("second"))]
        self.side_by_side = SideBySide(
            specifications,
            RetryPolicy(notify=self.log_lines.append, count=self._count, give_up_s=give_up_s, clock=lambda: self.now_s),
        )

    def _count(self) -> None:
        self.lost += 1

    def lose_start(self) -> None:
        """Lose a start of the first query, and advance the clock by the longest pause."""
        next(query for name, query in reversed(self.starts) if name == "first").die(LOST)
        self.side_by_side.step()
        self.now_s += PAUSE_LONGEST_S
        self.side_by_side.step()

    def _begin(self, name: str) -> Any:
        def begin() -> RunningQuery:
            query = MadeUpQuery()
            self.starts.append((name, query))
            return query

        return begin

    def names(self) -> list[str]:
        return [name for name, _ in self.starts]


@pytest.fixture
def queries() -> TwoQueries:
    return TwoQueries()


def test_query_starts_after_previous_queries_are_idle(queries: TwoQueries) -> None:
    assert queries.side_by_side.step()
    assert queries.side_by_side.step()
    assert queries.names() == ["first"]
    queries.starts[0][1].go_idle()
    assert queries.side_by_side.step()
    assert queries.names() == ["first", "second"]


def test_query_starts_after_first_batch_of_busy_query(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    queries.starts[0][1].lastProgress = {"batchId": 0}
    queries.side_by_side.step()
    assert queries.names() == ["first", "second"]


def test_query_is_restarted_after_lost_start(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    queries.lose_start()
    assert queries.names() == ["first", "first"]
    assert "more than ten seconds to start" in queries.log_lines[0]


def test_start_failing_without_query_counts_as_lost() -> None:
    log_lines: list[str] = []
    outcomes: list[RuntimeError | MadeUpQuery] = [_py4j_error(LOST), MadeUpQuery()]

    def begin() -> RunningQuery:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    now_s = iter((0.0, 0.0, 0.0, PAUSE_LONGEST_S))
    retry_policy = RetryPolicy(notify=log_lines.append, count=lambda: None, clock=lambda: next(now_s))
    side_by_side = SideBySide([QueryState("it", begin)], retry_policy)
    side_by_side.step()
    side_by_side.step()
    assert (len(log_lines), outcomes) == (1, [])


def _py4j_error(text: str) -> Any:
    from py4j.protocol import Py4JError  # noqa: PLC0415 - at its only use

    return Py4JError(text)


def test_following_run_retries_lost_starts_without_limit(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    for _ in range(2_000):
        queries.lose_start()
    assert (queries.lost, len(queries.starts)) == (2_000, 2_001)


def test_pauses_between_lost_starts_double_up_to_one_minute(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    for _ in range(8):
        queries.lose_start()
    pauses = [re.findall(r"in (\d+) s", line)[0] for line in queries.log_lines]
    assert pauses == ["1", "2", "4", "8", "16", "32", "60", "60"]


def test_lost_start_is_not_repeated_before_its_pause_is_over(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    queries.starts[0][1].die(LOST)
    for now_s in (0.0, 0.9):
        queries.now_s = now_s
        assert queries.side_by_side.step()
    assert queries.names() == ["first"]


def test_finite_run_fails_after_one_hour_of_lost_starts() -> None:
    queries = TwoQueries(GIVE_UP_S)
    queries.side_by_side.step()
    while queries.now_s <= GIVE_UP_S:
        queries.lose_start()
    with pytest.raises(FarmLogError, match=r"for 60 minutes, .* Free some processor"):
        queries.lose_start()


def test_committed_batch_resets_lost_starts() -> None:
    queries = TwoQueries(GIVE_UP_S)
    queries.side_by_side.step()
    for _ in range(2):
        while queries.now_s <= GIVE_UP_S:
            queries.lose_start()
        next(query for name, query in reversed(queries.starts) if name == "first").lastProgress = {"batchId": 1}
        queries.side_by_side.step()
        queries.now_s = 0.0
    queries.lose_start()
    assert "in 1 s (lost starts in a row: 1)" in queries.log_lines[-1]


def test_other_failure_ends_all_queries(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    queries.starts[0][1].go_idle()
    queries.side_by_side.step()
    queries.starts[1][1].die("a page of frames\nFarmLogError: entries 1 to 5 were compacted away\nmore of them")
    with pytest.raises(FarmLogError, match=r"^entries 1 to 5 were compacted away$"):
        queries.side_by_side.step()
    queries.side_by_side.stop()
    assert not queries.starts[0][1].isActive


def test_run_ends_after_all_queries(queries: TwoQueries) -> None:
    queries.side_by_side.step()
    queries.starts[0][1].stop()
    assert queries.side_by_side.step()
    queries.starts[1][1].stop()
    assert not queries.side_by_side.step()


def test_failure_reason_has_cause_and_remedy_without_frames() -> None:
    report = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An\n"
        "Traceback (most recent call last):\n"
        '  File "pipeline/tables/names.py", line 32, in salt_of\n'
        "    os.open(aside)\n"
        "OSError: [Errno 28] No space left on device: 'tables/x'\n"
        "\n"
        "\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n"
    )
    assert reason_of(report).startswith("OSError: [Errno 28] No space left on device: 'tables/x'; free some space")
    wrapped = (
        "An error occurred while calling o1.parquet.\n\tat x\nCaused by: java.io.IOException: No space left on device"
    )
    assert reason_of(wrapped).startswith("java.io.IOException: No space left on device; free some space")
    colored = (
        "Generic error\n  \x1b[31m↳\x1b[0m Unable to copy\n   \x1b[31m↳\x1b[0m No space left on device (os error 28)\n"
    )
    assert reason_of(colored).startswith("No space left on device (os error 28); free some space")
    damaged = "py4j.Py4JError: x\npipeline.table_files.TableDamagedError: a.parquet is damaged: remove it\n\tat y"
    assert reason_of(damaged) == "a.parquet is damaged: remove it"
    assert reason_of("Could not parse Master URL: 'x'\n\tat somewhere") == "Could not parse Master URL: 'x'"
    called = "An error occurred while calling None.a.b.\n: a.SparkException: Could not parse Master URL: 'x'\n\tat y"
    assert reason_of(called) == "a.SparkException: Could not parse Master URL: 'x'"


class CapturedError(Exception):
    """An error of PySpark with the JVM's cause."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


def test_failure_reason_names_cause_in_kafka_client() -> None:
    failed = "org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient"
    cause = "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers"
    called = f"An error occurred while calling z:Admin.create.\n: {failed}\n\tat x\nCaused by: {cause}\n\t... 9 more"
    assert reason_of(called) == f"{failed}; caused by {cause}"
    query = CapturedError("[STREAM_FAILED] Query [id = 1] failed", CapturedError(failed, CapturedError(cause)))
    assert reason_of(query) == f"[STREAM_FAILED] Query [id = 1] failed; caused by {cause}"
    known = CapturedError(f"Job aborted: {cause}", CapturedError(cause))
    assert reason_of(known) == f"Job aborted: {cause}"


def test_queries_end_even_if_one_fails_to() -> None:
    kept = [MadeUpQuery(error_at_stop=ConnectionRefusedError("the JVM has ended")), MadeUpQuery()]
    retry_policy = RetryPolicy(notify=lambda _: None, count=lambda: None)
    queries = SideBySide([QueryState(str(each), MadeUpQuery, query=each) for each in kept], retry_policy)
    with pytest.raises(ConnectionRefusedError):
        queries.stop()
    assert [each.isActive for each in kept] == [False, False]
