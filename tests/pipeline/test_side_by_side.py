"""Queries begin one after the other, and one whose start was lost begins again."""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipeline.source.log_client import FarmLogError
from pipeline.spark.failures import reason_of
from pipeline.spark.lost_starts import GIVE_UP_S, PAUSE_LONGEST_S, Patience
from pipeline.spark.side_by_side import Kept, RunningQuery, SideBySide

LOST = "Query [id = 1] terminated with exception: Python worker failed to connect back."


@dataclass
class MadeUpQuery:
    """A query that does what a test says."""

    isActive: bool = True  # noqa: N815 - Spark's name
    lastProgress: Any = None  # noqa: N815 - Spark's name
    status: dict[str, Any] = field(
        default_factory=lambda: {"isTriggerActive": True, "message": "Getting offsets from it"}
    )
    failure: Exception | None = None

    def exception(self) -> Exception | None:
        """What it died of."""
        return self.failure

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        """Never waits."""
        del timeout
        return not self.isActive

    def stop(self) -> None:
        """Ends it."""
        self.isActive = False

    def rest(self) -> None:
        """It has nothing to do."""
        self.status = {"isTriggerActive": False, "message": "Waiting for next trigger"}

    def die(self, reason: str) -> None:
        """It ends for this reason."""
        self.isActive, self.failure = False, RuntimeError(reason)


class Told:
    """Two queries beside each other, what was begun, and what the operator heard."""

    def __init__(self, give_up_s: float | None = None) -> None:
        self.begun: list[tuple[str, MadeUpQuery]] = []
        self.heard: list[str] = []
        self.now_s = 0.0
        self.lost = 0
        kept = [Kept("first", self._begin("first")), Kept("second", self._begin("second"))]
        self.side_by_side = SideBySide(
            kept,
            Patience(notify=self.heard.append, count=self._count, give_up_s=give_up_s, clock=lambda: self.now_s),
        )

    def _count(self) -> None:
        self.lost += 1

    def lose_start(self) -> None:
        """The first query misses Spark's limit; the time of the longest pause passes."""
        next(query for name, query in reversed(self.begun) if name == "first").die(LOST)
        self.side_by_side.step()
        self.now_s += PAUSE_LONGEST_S
        self.side_by_side.step()

    def _begin(self, name: str) -> Any:
        def begin() -> RunningQuery:
            query = MadeUpQuery()
            self.begun.append((name, query))
            return query

        return begin

    def names(self) -> list[str]:
        """Of all that were begun, in order."""
        return [name for name, _ in self.begun]


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_query_begins_when_those_before_it_have_come_to_rest(told: Told) -> None:
    assert told.side_by_side.step()
    assert told.side_by_side.step()
    assert told.names() == ["first"]
    told.begun[0][1].rest()
    assert told.side_by_side.step()
    assert told.names() == ["first", "second"]


def test_a_query_that_always_has_work_lets_the_next_one_begin_behind_its_first_batch(told: Told) -> None:
    told.side_by_side.step()
    told.begun[0][1].lastProgress = {"batchId": 0}
    told.side_by_side.step()
    assert told.names() == ["first", "second"]


def test_a_query_that_died_of_a_lost_start_begins_again_and_the_operator_hears_of_it(told: Told) -> None:
    told.side_by_side.step()
    told.lose_start()
    assert told.names() == ["first", "first"]
    assert "more than ten seconds to start" in told.heard[0]


def test_a_start_that_fails_before_there_is_a_query_counts_as_well() -> None:
    heard: list[str] = []
    outcomes: list[RuntimeError | MadeUpQuery] = [_refused(LOST), MadeUpQuery()]

    def begin() -> RunningQuery:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    now_s = iter((0.0, 0.0, 0.0, PAUSE_LONGEST_S))
    patience = Patience(notify=heard.append, count=lambda: None, clock=lambda: next(now_s))
    side_by_side = SideBySide([Kept("it", begin)], patience)
    side_by_side.step()
    side_by_side.step()
    assert (len(heard), outcomes) == (1, [])


def _refused(text: str) -> Any:
    from py4j.protocol import Py4JError  # noqa: PLC0415 - beside its only use

    return Py4JError(text)


def test_follower_never_gives_up_after_lost_starts(told: Told) -> None:
    told.side_by_side.step()
    for _ in range(2_000):
        told.lose_start()
    assert (told.lost, len(told.begun)) == (2_000, 2_001)


def test_pauses_between_lost_starts_double_up_to_a_minute(told: Told) -> None:
    told.side_by_side.step()
    for _ in range(8):
        told.lose_start()
    pauses = [re.findall(r"in (\d+) s", line)[0] for line in told.heard]
    assert pauses == ["1", "2", "4", "8", "16", "32", "60", "60"]


def test_lost_start_is_not_repeated_before_its_pause_is_over(told: Told) -> None:
    told.side_by_side.step()
    told.begun[0][1].die(LOST)
    for now_s in (0.0, 0.9):
        told.now_s = now_s
        assert told.side_by_side.step()
    assert told.names() == ["first"]


def test_run_with_an_end_gives_up_after_an_hour_of_lost_starts() -> None:
    told = Told(GIVE_UP_S)
    told.side_by_side.step()
    while told.now_s <= GIVE_UP_S:
        told.lose_start()
    with pytest.raises(FarmLogError, match=r"for 60 minutes, .* Free some processor"):
        told.lose_start()


def test_committed_batch_ends_a_row_of_lost_starts() -> None:
    told = Told(GIVE_UP_S)
    told.side_by_side.step()
    for _ in range(2):
        while told.now_s <= GIVE_UP_S:
            told.lose_start()
        next(query for name, query in reversed(told.begun) if name == "first").lastProgress = {"batchId": 1}
        told.side_by_side.step()
        told.now_s = 0.0
    told.lose_start()
    assert "in 1 s (lost starts in a row: 1)" in told.heard[-1]


def test_any_other_death_is_the_end_of_all_with_the_farms_own_words(told: Told) -> None:
    told.side_by_side.step()
    told.begun[0][1].rest()
    told.side_by_side.step()
    told.begun[1][1].die("a page of frames\nFarmLogError: entries 1 to 5 were compacted away\nmore of them")
    with pytest.raises(FarmLogError, match=r"^entries 1 to 5 were compacted away$"):
        told.side_by_side.step()
    told.side_by_side.stop()
    assert not told.begun[0][1].isActive


def test_all_have_come_to_their_end_when_each_has(told: Told) -> None:
    told.side_by_side.step()
    told.begun[0][1].stop()
    assert told.side_by_side.step()
    told.begun[1][1].stop()
    assert not told.side_by_side.step()


def test_an_operator_reads_the_cause_and_what_to_do_and_no_frames() -> None:
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
    damaged = "py4j.Py4JError: x\npipeline.table_files.TableDamagedError: a.parquet is damaged: remove it\n\tat y"
    assert reason_of(damaged) == "a.parquet is damaged: remove it"
    assert reason_of("Could not parse Master URL: 'x'\n\tat somewhere") == "Could not parse Master URL: 'x'"
    called = "An error occurred while calling None.a.b.\n: a.SparkException: Could not parse Master URL: 'x'\n\tat y"
    assert reason_of(called) == "a.SparkException: Could not parse Master URL: 'x'"
