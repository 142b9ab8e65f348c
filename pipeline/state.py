"""Sessions of routers and their health with hysteresis: a state machine for each server, with timers on log time.

                        3 bad reports in a row
            ┌─ healthy ─────────────────────────▶ unhealthy ─┐
    first   │          ◀─────────────────────────            │  no report for `silent_after_ms`
    report ─┤            3 good reports in a row             ├────────────▶ silent
            └────────────────────────────────────────────────┘                 │
                 ▲                            the next report: a new session   │
                 └─────────────────────────────────────────────────────────────┘

A report is *bad* when its router is not attached, fewer than half of its destinations are healthy, or its job lag is
above `lag_bad_ms`; *good* when none of this holds and the lag is below `lag_good_ms`. Between the two lags it is
neither and counts for neither, so a lag at the limit does not flap. A session lasts from a server's first report to its
silence or its router's restart (an uptime below the last one told). At its beginning the first report alone decides
whether the server is healthy. Each change is one row of the table `transitions`.

A report that is in the log again, because its sender got no answer, is seen once: `request` numbers the reports of a
sender, and one that is not above the last counts for nothing.

Silence yields a row by itself: a timer fires when the watermark, which the other servers' reports and the leader's
clock entries move on, has passed. The row carries the moment at which the silence was complete, not that of the batch
that noticed it. If the server reports again before the timer fires, the same row is made then. So the rows depend on
the log alone, never on how it was cut into batches, and a repeated batch gives the same rows. When the whole farm is
silent, log time stands still and no timer fires; the nodes' own alarm reports that.

`RouterWatch` is the machine itself, plain Python. `WatchProcessor` keeps one for each server in Spark's state store.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.schemas import TRANSITIONS

SILENT_AFTER_PERIODS = 3
SILENT_AFTER_DEFAULT_MS = 90_000
WATERMARK = "1 second"
"""Rows of the same log time as the last batch's must not count as late. Log time never goes back: a second is ample."""
REQUEST_MAX, DIGITS_MAX = 128, 19
"""Characters of what names a submission, and digits of the number at its end."""
HEALTHY, UNHEALTHY, SILENT, UNKNOWN = "healthy", "unhealthy", "silent", ""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a report is bad, and how many make a difference."""

    silent_after_ms: int = SILENT_AFTER_DEFAULT_MS
    worse_after: int = 3
    better_after: int = 3
    lag_bad_ms: float = 1_000.0
    lag_good_ms: float = 500.0
    healthy_share: float = 0.5


@dataclass(frozen=True, slots=True)
class SeenReport:
    """The parts of a report that matter here."""

    index: int
    at_ms: int
    attached: bool
    uptime_ms: int | None
    job_lag_ms: float | None
    destinations: int
    healthy_destinations: int
    request: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a server's state; `index` is None if silence caused it."""

    at_ms: int
    index: int | None
    previous: str
    state: str
    reason: str
    session_started_ms: int
    session_reports: int
    uptime_ms: int | None


@dataclass(frozen=True, slots=True)
class RouterWatch:
    """A server as its reports so far show it. Times are log time; -1 stands for an unknown uptime."""

    state: str = UNKNOWN
    last_ms: int = 0
    last_index: int = 0
    uptime_ms: int = -1
    bad_in_a_row: int = 0
    good_in_a_row: int = 0
    session_started_ms: int = 0
    session_reports: int = 0
    request: str = ""

    def saw(self, seen: SeenReport, rules: Rules) -> tuple["RouterWatch", list[Transition]]:
        """The watch after one more report, and what has changed by it."""
        if self.state and (seen.index <= self.last_index or _repeats(seen.request, self.request)):
            return self, []
        watch, changes = self.passed(seen.at_ms, rules)
        watch, begun = _begin(watch, seen)
        verdict = _verdict(seen, rules)
        watch = replace(
            watch,
            last_ms=seen.at_ms,
            last_index=seen.index,
            # A router that restarts cannot be asked for a while: compare with the uptime that it reported before.
            uptime_ms=watch.uptime_ms if seen.uptime_ms is None else seen.uptime_ms,
            bad_in_a_row=watch.bad_in_a_row + 1 if verdict is False else 0 if verdict else watch.bad_in_a_row,
            good_in_a_row=watch.good_in_a_row + 1 if verdict else 0 if verdict is False else watch.good_in_a_row,
            session_reports=watch.session_reports + 1,
            request=seen.request,
        )
        if begun:
            before = watch.state
            watch = replace(watch, state=UNHEALTHY if verdict is False else HEALTHY)
            return watch, [*changes, _change(watch, before, begun, seen.at_ms, seen.index)]
        if watch.state == HEALTHY and watch.bad_in_a_row >= rules.worse_after:
            watch = replace(watch, state=UNHEALTHY)
            return watch, [*changes, _change(watch, HEALTHY, _complaint(seen, rules), seen.at_ms, seen.index)]
        if watch.state == UNHEALTHY and watch.good_in_a_row >= rules.better_after:
            watch = replace(watch, state=HEALTHY)
            return watch, [*changes, _change(watch, UNHEALTHY, "recovered", seen.at_ms, seen.index)]
        return watch, changes

    def passed(self, until_ms: int, rules: Rules) -> tuple["RouterWatch", list[Transition]]:
        """The watch when log time has reached `until_ms` without another report."""
        silent_at_ms = self.silent_at_ms(rules)
        if silent_at_ms is None or until_ms < silent_at_ms:
            return self, []
        silent = replace(self, state=SILENT, bad_in_a_row=0, good_in_a_row=0)
        reason = f"no report for {rules.silent_after_ms} ms"
        return silent, [_change(silent, self.state, reason, silent_at_ms, None)]

    def silent_at_ms(self, rules: Rules) -> int | None:
        """When it will count as silent if nothing comes; None if it does so already."""
        return self.last_ms + rules.silent_after_ms if self.state in {HEALTHY, UNHEALTHY} else None


def _begin(watch: RouterWatch, seen: SeenReport) -> tuple[RouterWatch, str]:
    """The watch at the beginning of a new session, and why it begins; or as it was, and an empty text."""
    if watch.state == UNKNOWN:
        reason = "first report"
    elif watch.state == SILENT:
        reason = "reports again"
    elif seen.uptime_ms is not None and 0 <= seen.uptime_ms < watch.uptime_ms:
        reason = "router restarted"
    else:
        return watch, ""
    fresh = replace(watch, bad_in_a_row=0, good_in_a_row=0, session_started_ms=seen.at_ms, session_reports=0)
    return fresh, reason


def _repeats(request: str, last: str) -> bool:
    """Whether it is the last one once more, or one from before it: `CLIENT-BORN-SEQUENCE` of the same client."""
    (sender, _, number), (last_sender, _, last_number) = request.rpartition("-"), last.rpartition("-")
    if not sender or sender != last_sender:
        return False
    if not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS_MAX for each in (number, last_number)):
        return False
    return int(number) <= int(last_number)


def _change(watch: RouterWatch, previous: str, reason: str, at_ms: int, index: int | None) -> Transition:
    uptime_ms = None if watch.uptime_ms < 0 else watch.uptime_ms
    return Transition(
        at_ms, index, previous, watch.state, reason, watch.session_started_ms, watch.session_reports, uptime_ms
    )


def _complaint(seen: SeenReport, rules: Rules) -> str:
    """Why a report is bad; empty if it is not."""
    if not seen.attached:
        return "no router attached"
    if seen.destinations and seen.healthy_destinations < rules.healthy_share * seen.destinations:
        return f"{seen.healthy_destinations} of {seen.destinations} destinations healthy"
    if seen.job_lag_ms is not None and seen.job_lag_ms > rules.lag_bad_ms:
        return f"job lag above {rules.lag_bad_ms:.0f} ms"
    return ""


def _verdict(seen: SeenReport, rules: Rules) -> bool | None:
    """Good, bad, or neither (None)."""
    if _complaint(seen, rules):
        return False
    return None if seen.job_lag_ms is not None and seen.job_lag_ms >= rules.lag_good_ms else True


_STATE_TYPES = {str: StringType(), int: LongType()}
STATE = StructType([StructField(field.name, _STATE_TYPES[field.type]) for field in fields(RouterWatch)])  # type: ignore[index]  # a class


class WatchProcessor(StatefulProcessor):
    """A `RouterWatch` for each server in Spark's state store, with its silence as an event-time timer."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._handle: StatefulProcessorHandle
        self._watch: ValueState

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark hands over the state store."""
        self._handle = handle
        self._watch = handle.getValueState("watch", STATE)

    # Names and parameters below are Spark's.
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """Reports of one server."""
        del timerValues
        watch, before = self._load()
        changes: list[Transition] = []
        for seen in sorted((seen for batch in rows for seen in _seen_reports(batch)), key=lambda seen: seen.index):
            watch, found = watch.saw(seen, self._rules)
            changes += found
        self._keep(watch, before)
        if changes:
            yield _rows(int(key[0]), changes)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """Log time has passed the moment of silence."""
        del expiredTimerInfo
        watch, silent_at_ms = self._load()
        watch, changes = watch.passed(int(timerValues.getCurrentWatermarkInMs()), self._rules)
        if changes:
            self._watch.update(astuple(watch))
            yield _rows(int(key[0]), changes)
        elif silent_at_ms is not None:
            # It was set when a shorter silence counted. Without another timer nothing would report this silence.
            self._handle.registerTimer(silent_at_ms)

    def close(self) -> None:
        """Nothing is held open."""

    def _load(self) -> tuple[RouterWatch, int | None]:
        if not self._watch.exists():
            return RouterWatch(), None
        stored = self._watch.get()
        watch = RouterWatch(*stored) if stored is not None else RouterWatch()
        return watch, watch.silent_at_ms(self._rules)

    def _keep(self, watch: RouterWatch, timer_before: int | None) -> None:
        timer = watch.silent_at_ms(self._rules)
        self._watch.update(astuple(watch))
        if timer == timer_before:
            return
        if timer_before is not None:
            self._handle.deleteTimer(timer_before)
        if timer is not None:
            self._handle.registerTimer(timer)


def seen_reports(entries: DataFrame) -> DataFrame:
    """What the watch needs of the rows of the source `farm`: reports.

    The condition names `log_time`, so that the optimizer does not push it below the watermark: clock entries, which it
    drops, must move the watermark on.
    """
    report = f.col("report")
    is_report = f.when(f.col("log_time").isNotNull(), f.col("entry") == "report").otherwise(False)  # noqa: FBT003
    return entries.where(is_report).select(
        "server_id",
        # pandas uses the name `index` for something else.
        f.col("index").alias("place"),
        "log_time",
        *(report[each].alias(each) for each in ("attached", "uptime_ms", "job_lag_ms")),
        *(report[each].alias(each) for each in ("destinations", "healthy_destinations")),
        f.when(f.length("request") <= REQUEST_MAX, f.col("request")).otherwise("").alias("request"),
    )


def transitions(seen: DataFrame, rules: Rules) -> DataFrame:
    """The stream of changes out of the stream of seen_reports (columns: `pipeline.schemas.TRANSITIONS`).

    It must carry a watermark on `log_time` that all entries move on, not the reports alone.
    """
    return seen.groupBy("server_id").transformWithStateInPandas(
        statefulProcessor=WatchProcessor(rules),
        outputStructType=TRANSITIONS,
        outputMode="Append",
        timeMode="EventTime",
    )


def _seen_reports(batch: pd.DataFrame) -> Iterator[SeenReport]:
    row: Any
    for row in batch.itertuples(index=False):
        yield SeenReport(
            index=int(row.place),
            at_ms=_milliseconds(row.log_time),
            attached=bool(row.attached),
            uptime_ms=None if pd.isna(row.uptime_ms) else int(row.uptime_ms),
            job_lag_ms=None if pd.isna(row.job_lag_ms) else float(row.job_lag_ms),
            destinations=int(row.destinations),
            healthy_destinations=int(row.healthy_destinations),
            request=str(row.request),
        )


def _milliseconds(moment: Any) -> int:
    return int(pd.Timestamp(moment).value // 1_000_000)


def _rows(server_id: int, changes: list[Transition]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "server_id": pd.array([server_id] * len(changes), "Int64"),
            "at": [_moment(change.at_ms) for change in changes],
            "index": pd.array([change.index for change in changes], "Int64"),
            "previous": [change.previous for change in changes],
            "state": [change.state for change in changes],
            "reason": [change.reason for change in changes],
            "session_started_at": [_moment(change.session_started_ms) for change in changes],
            "session_reports": pd.array([change.session_reports for change in changes], "Int64"),
            "uptime_ms": pd.array([change.uptime_ms for change in changes], "Int64"),
        }
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
