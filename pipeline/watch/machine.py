"""Router sessions and router health, with hysteresis: a state machine for each server, with timers on log time.

                        3 bad reports in a row
            ┌─ healthy ─────────────────────────▶ unhealthy ─┐
    first   │          ◀─────────────────────────            │  no report for `silent_after_ms`
    report ─┤            3 good reports in a row             ├──────────▶ `silent`
            └────────────────────────────────────────────────┘                 │
                 ▲                            the next report: a new session   │
                 └─────────────────────────────────────────────────────────────┘

Each change is one row of the table `transitions`. docs/reference/pipeline-tables.md describes bad and good reports,
sessions, repeated reports and missing reports. `RouterWatch` is an immutable value, independent of batches, tables and
farms (`pipeline/watch/watching.py`).

If reports stop, a row is written although no report arrives: the watch calls `after_silence_until` once the farm's log
time is past the limit. The row contains the time of the limit, not the time of the batch that detected it. If the
server's next report arrives before that call, the report produces the same row. So the rows depend only on the log, not
on its division into batches.
"""

from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from pipeline.decode.entries import repeats

SILENT_AFTER_PERIODS = 3
SILENT_AFTER_DEFAULT_MS = 90_000
HEALTHY, UNHEALTHY, SILENT, UNKNOWN = "healthy", "unhealthy", "silent", ""
_WITHOUT_LIMIT = (SILENT, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Rules:
    """The definition of a bad report, and the numbers of reports that change the state."""

    silent_after_ms: int = SILENT_AFTER_DEFAULT_MS
    worse_after: int = 3
    better_after: int = 3
    lag_bad_ms: float = 1_000.0
    lag_good_ms: float = 500.0
    healthy_share: float = 0.5


PRESENT_RULES = Rules()


class ReportFacts(Struct, frozen=True, gc=False):
    """The relevant parts of a report."""

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
    """One change of a server's state.

    `index`: the report that caused it. For missing reports, `after_index` is the last report instead.
    """

    at_ms: int
    index: int | None
    previous: str
    state: str
    reason: str
    session_started_ms: int
    session_reports: int
    uptime_ms: int | None
    after_index: int | None = None


class RouterWatch(Struct, frozen=True, gc=False):
    """A server's state according to its reports so far. Times are log time; -1 is an unknown uptime."""

    state: str = UNKNOWN
    last_ms: int = 0
    last_index: int = 0
    uptime_ms: int = -1
    bad_in_a_row: int = 0
    good_in_a_row: int = 0
    session_started_ms: int = 0
    session_reports: int = 0
    request: str = ""

    def after_report(self, seen: ReportFacts, rules: Rules) -> tuple["RouterWatch", list[Transition]]:
        """Return the watch after one more report, and the resulting transitions."""
        if self.state and (seen.index <= self.last_index or repeats(seen.request, self.request)):
            return self, []
        watch, changes = self.after_silence_until(seen.at_ms, rules)
        watch, begun = _begin(watch, seen)
        verdict = _verdict(seen, rules)
        watch = replace(
            watch,
            last_ms=seen.at_ms,
            last_index=seen.index,
            # A router that restarts does not reply for a while: compare the next uptime with the last reported one.
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

    def after_silence_until(self, until_ms: int, rules: Rules) -> tuple["RouterWatch", list[Transition]]:
        """Return the watch after no report until log time `until_ms`, and the resulting transitions."""
        silent_at_ms = self.last_ms + rules.silent_after_ms
        if until_ms < silent_at_ms or self.state in _WITHOUT_LIMIT:
            return self, []
        silent = replace(self, state=SILENT, bad_in_a_row=0, good_in_a_row=0)
        reason = f"no report for {rules.silent_after_ms} ms"
        return silent, [_change(silent, self.state, reason, silent_at_ms, None)]

    def turned_back(self, by_ms: int) -> "RouterWatch":
        """Return the watch with the same ages, after log time was set back by so much."""
        return replace(self, last_ms=self.last_ms - by_ms, session_started_ms=self.session_started_ms - by_ms)


def _begin(watch: RouterWatch, seen: ReportFacts) -> tuple[RouterWatch, str]:
    """Return the watch at the start of a new session and its reason, or the unchanged watch and an empty string."""
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


def _change(watch: RouterWatch, previous: str, reason: str, at_ms: int, index: int | None) -> Transition:
    return Transition(
        at_ms,
        index,
        previous,
        watch.state,
        reason,
        watch.session_started_ms,
        watch.session_reports,
        None if watch.uptime_ms < 0 else watch.uptime_ms,
        watch.last_index if index is None else None,
    )


def _complaint(seen: ReportFacts, rules: Rules) -> str:
    """Return the reason for a bad report; empty for any other."""
    if not seen.attached:
        return "no router attached"
    if seen.destinations and seen.healthy_destinations < rules.healthy_share * seen.destinations:
        return f"{seen.healthy_destinations} of {seen.destinations} destinations healthy"
    if seen.job_lag_ms is not None and seen.job_lag_ms > rules.lag_bad_ms:
        return f"job lag above {rules.lag_bad_ms:.0f} ms"
    return ""


def _verdict(seen: ReportFacts, rules: Rules) -> bool | None:
    """Return True for a good report, False for a bad one, otherwise None."""
    if _complaint(seen, rules):
        return False
    return None if seen.job_lag_ms is not None and seen.job_lag_ms >= rules.lag_good_ms else True
