"""Feedback after each batch: the rows it reads, the conditions of a submission, and failures.

The first part reads entries of a made-up log, most of them hostile. The second part replaces the log and the farm, and
passes rows directly.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import pyarrow as pa
import pytest

from pipeline.decode.entries import UNSIGNED
from pipeline.feedback.farms import Reach
from pipeline.feedback.rows import recent
from pipeline.feedback.submitting import Feedback, NotSubmittedError, Submitted
from pipeline.feedback.weighing import ClockRow, FactorsRow, ReportRow, Row, Weighing
from pipeline.source.log_client import FarmLogError
from pipeline.tables.recent import recent_rows
from tests.pipeline.farm_log_server import EPOCH_MS, MadeUpLog, address, arrow_entries_of, destination, with_proof

PERIOD_MS = 30_000
LEAVES = {1: destination("one"), 2: destination("two"), 3: destination("three")}


def slow_farm(periods: int, slow_from: int) -> MadeUpLog:
    """Return the log of three servers. The third one has a job lag of 800 ms from period `slow_from` on."""
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
    """A fake farm: it accepts a submission, rejects it, or cannot be reached."""

    newest_ms: int | None
    fails: str = ""
    refuses: str = ""
    first: int = 1
    out: frozenset[int] = frozenset()
    accepted: list[Mapping[str, object]] = field(default_factory=list)

    def oldest(self) -> int:
        """Return the index of the oldest entry."""
        return self.first

    def log_time_ms(self) -> int | None:
        return self.newest_ms

    def removed(self) -> frozenset[int]:
        return self.out

    def submit(self, entry: Mapping[str, object]) -> Submitted:
        """Accept the entry, or fail."""
        if self.fails:
            raise NotSubmittedError(self.fails)
        self.accepted.append(entry)
        return Submitted(4711, self.refuses)


@dataclass(frozen=True)
class OneReach:
    """One access for all farms."""

    reach: Reach

    def of(self, _cluster: str, _name: str | None) -> Reach:
        return self.reach


def test_recent_rows_skip_old_and_hostile_entries() -> None:
    log = slow_farm(periods=60, slow_from=58)
    report = {"cluster": "farm", "date": log.log_time_ms, "id": 3, "router": {"jobLag": 800.0}, "request": "03-1-0-6"}
    log.add(value=json.dumps({**report, "destinations": [{"destination": destination("three"), "healthy": True}]}))
    # an invalid request id
    log.add(value=json.dumps({**report, "request": "once"}))
    leaf = address("three")
    log.add(value=json.dumps({"factors": {"throughIndex": 7, "formula": "x", "factors": {leaf: 1.5}}}))
    last = log.commit_index
    # Factors that the farm ignores are ignored here too.
    log.add(value=json.dumps({"factors": {"throughIndex": 7, "formula": "x", "factors": {leaf: None}}}))
    log.add(value='{"factors": {"throughIndex": 7, "formula": "x", "factors": {"no-hash": 1.5}}}')
    log.add(value='{"factors": {"throughIndex": 7, "formula": "x", "factors": {"abc": 1.5, "def": "much"}}}')
    log.add(value='{"factors": {"throughIndex": 7, "formula": "x", "factors": {"abc": NaN}}}')
    log.add(value='{"factors": "none"}')
    log.add(value='{"router": {"jobLag": "slow"}, "id": 1, "destinations": [{"destination": 5}, null, 7]}')
    log.add(value='{"router": {}, "id": "one"}')
    log.add(value='{"cluster": "farm", "id": 3, "router": {"jobLag": 1.0}}')
    for figure in ("NaN", "Infinity", "-1", "1e300"):
        log.add(value=json.dumps(report).replace("800.0", figure))
    log.add(value=json.dumps({**report, "clock": {"time": 1}}))
    log.add(value="not json")
    log.add(base64="//79")
    rows = recent(arrow_entries_of(log))
    # Twenty minutes contain forty periods, and both ends count.
    assert sum(isinstance(row, ClockRow) for row in rows) == 41
    assert [row.index for row in rows] == sorted(row.index for row in rows)
    assert rows[-3:-1] == [
        ReportRow(last - 2, log.log_time_ms, 3, 800.0, ((leaf, True),), "03-1-0-6"),
        ReportRow(last - 1, log.log_time_ms, 3, 800.0, (), None),
    ]
    assert rows[-1] == FactorsRow(last, log.log_time_ms, 7, {leaf: 1.5})
    assert [row for row in rows if isinstance(row, FactorsRow)] == rows[-1:]


def test_recent_rows_follow_correction_of_log_time() -> None:
    entries = arrow_entries_of(slow_farm(periods=60, slow_from=58))
    late = entries.num_rows // 6
    column = entries.schema.get_field_index("log_time")
    times = entries.column("log_time").to_pylist()
    moved = [each + timedelta(days=40 if at < late else 0) for at, each in enumerate(times)]
    log_time = entries.schema.field("log_time")
    corrected = entries.set_column(column, log_time, pa.array(moved, log_time.type))
    parts = [recent_rows(each) for each in (corrected.slice(0, late + 1), corrected.slice(late + 1))]
    assert recent(pa.concat_tables(parts)) == recent(corrected) == recent(entries)


def test_large_entries_reduce_rows_per_task(monkeypatch: pytest.MonkeyPatch) -> None:
    log = slow_farm(periods=3, slow_from=3)
    large = with_proof(json.dumps({"clock": {"time": log.log_time_ms, "id": 1}, "padding": "x" * 10_000}))
    log.add(value=large)
    monkeypatch.setattr("pipeline.tables.recent.COLLECTED_MAX_BYTES", 5 * len(large))
    rows = recent(arrow_entries_of(log))
    assert [row.index for row in rows] == [*range(log.commit_index - 4, log.commit_index + 1)]


def test_unsigned_entries_are_quarantined() -> None:
    log = slow_farm(periods=1, slow_from=1)
    counted = log.commit_index
    report = json.dumps({"cluster": "farm", "date": log.log_time_ms, "id": 1, "router": {"jobLag": 8.0}})
    log.add(value=report, proven=False)
    log.add(value=with_proof(report)[:-1] + ',"more":1}')
    log.add(value=with_proof(report) + "\n")
    log.add(value=json.dumps({"users": "own"}), proven=False)
    rows = arrow_entries_of(log).to_pylist()
    assert all(row["reason"] is None for row in rows[:counted])
    assert [row["reason"] for row in rows[counted:]] == [UNSIGNED] * 3 + ["a JSON object of an unknown kind"]


def test_report_for_several_masters_is_read() -> None:
    log = MadeUpLog()
    log.tick(0)
    body = {"cluster": "farm", "date": log.log_time_ms, "id": 3, "router": {"jobLag": 8.0}}
    masters = (destination("a"), destination("b"))
    meta = [{"destination": each, "publishConfig": "auto", "canSignUntil": 2**32 - 1} for each in masters]
    leaves = [{"destination": destination("one"), "healthy": True}]
    log.add(value=json.dumps({**body, "meta": meta, "destinations": leaves}))
    assert recent(arrow_entries_of(log))[1:] == [
        ReportRow(2, log.log_time_ms, 3, 8.0, ((address("one"), True),)),
    ]


# -- rows without Spark ------------------------------------------------------------------------------------------------


@pytest.fixture
def _rows_as_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.feedback.submitting.recent", lambda rows: rows)


def rows_of_slow_farm(periods: int, slow_from: int) -> list[Row]:
    """Return the recent rows of `slow_farm`."""
    rows: list[Row] = []
    for period in range(periods):
        now_ms = EPOCH_MS + period * PERIOD_MS
        rows.append(ClockRow(len(rows) + 1, now_ms, PERIOD_MS))
        for server, leaf in LEAVES.items():
            lag_ms = 800.0 if server == 3 and period >= slow_from else 5.0
            rows.append(ReportRow(len(rows) + 1, now_ms, server, lag_ms, ((leaf, True),)))
    return rows


@dataclass
class RowsByRange:
    """A fake log: reading a range returns its rows, or fails."""

    rows: list[Row]
    failing: int = 0

    def __call__(self, options: Mapping[str, str]) -> list[Row]:
        if self.failing:
            self.failing -= 1
            raise FarmLogError("no node of the farm answers")
        return [row for row in self.rows if int(options["start"]) <= row.index <= int(options["end"])]


def batch(rows: list[Row]) -> pa.Table:
    return cast("pa.Table", rows)


def feedback_of(rows: list[Row], listener: Listener, log_lines: list[str], failing: int = 0) -> Feedback:
    """Return feedback that reads `rows` as the log before its first batch."""
    return Feedback(RowsByRange(rows, failing), {}, listener, log_lines.append)


@pytest.mark.usefixtures("_rows_as_batches")
def test_backlog_does_not_submit_factors() -> None:
    rows, log_lines = rows_of_slow_farm(6, 3), list[str]()
    listener = Listener(rows[-1].log_time_ms + 121_000)
    feedback = feedback_of(rows, listener, log_lines)
    feedback.after_batch(batch(rows))
    assert feedback.weighing.propose() is not None
    assert (listener.accepted, log_lines) == ([], [])


@pytest.mark.usefixtures("_rows_as_batches")
def test_reports_of_removed_server_do_not_cause_submission() -> None:
    rows, log_lines = rows_of_slow_farm(6, 3), list[str]()
    listener = Listener(rows[-1].log_time_ms, out=frozenset({3}))
    feedback = feedback_of(rows, listener, log_lines)
    feedback.after_batch(batch(rows))
    assert feedback.weighing.propose() is not None
    assert (listener.accepted, log_lines) == ([], [])
    # A server admitted again counts with all of its known reports.
    listener.out = frozenset()
    feedback.after_batch(batch(rows))
    assert len(listener.accepted) == 1


@pytest.mark.usefixtures("_rows_as_batches")
def test_failed_read_of_history_is_repeated_with_next_batch() -> None:
    rows, log_lines = rows_of_slow_farm(8, 5), list[str]()
    listener = Listener(rows[-1].log_time_ms)
    feedback = feedback_of(rows, listener, log_lines, failing=1)
    # when the entries before the first batch cannot be read
    feedback.after_batch(batch(rows[20:28]))
    assert (feedback.failed, listener.accepted) == (1, [])
    assert log_lines == ["factors not submitted: no node of the farm answers"]
    # then the next batch reads all of them
    feedback.after_batch(batch(rows[28:]))
    undisturbed = Weighing()
    for row in rows:
        undisturbed.observe(row)
    assert feedback.weighing.wanted() == undisturbed.wanted()
    assert feedback.accepted == len(listener.accepted) == 1


@pytest.mark.usefixtures("_rows_as_batches")
def test_invalid_factors_entry_fails_only_its_batch() -> None:
    rows, log_lines = rows_of_slow_farm(7, 5), list[str]()
    listener = Listener(rows[-1].log_time_ms)
    feedback = feedback_of(rows, listener, log_lines)
    invalid = cast("float", None)
    feedback.after_batch(batch([*rows[:24], FactorsRow(25, rows[23].log_time_ms, 7, {"leaf": invalid})]))
    assert feedback.failed == len(log_lines) == 1
    assert log_lines[0].startswith("factors not submitted because of a bug in the pipeline: TypeError(")
    feedback.after_batch(batch(rows[25:]))
    assert feedback.accepted == len(listener.accepted) == 1


@pytest.mark.parametrize(
    ("fails", "refuses", "line", "counts"),
    [
        ("node-1: busy", "", "factors not submitted: node-1: busy", (0, 0, 1)),
        ("", "one from up to 19 was accepted", "did not accept: one from up to 19 was accepted", (0, 1, 0)),
        ("", "", "are entry 4711", (1, 0, 0)),
    ],
)
@pytest.mark.usefixtures("_rows_as_batches")
def test_submission_outcome_is_logged(fails: str, refuses: str, line: str, counts: tuple[int, int, int]) -> None:
    rows, log_lines = rows_of_slow_farm(6, 3), list[str]()
    feedback = feedback_of(rows, Listener(rows[-1].log_time_ms, fails, refuses), log_lines)
    feedback.after_batch(batch(rows))
    assert len(log_lines) == 1
    assert log_lines[0].endswith(line)
    assert (feedback.accepted, feedback.refused, feedback.failed) == counts
