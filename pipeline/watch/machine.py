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

Silence yields a row by itself: `passed` is asked when the farm's log time, which the other servers' reports and the
leader's clock entries move on, is beyond it. The row carries the moment at which the silence was complete, not that of
the batch that noticed it. If the server reports again first, the same row is made then. So the rows depend on the log
alone, never on how it was cut into batches. When the whole farm is silent, log time stands still and nothing is silent;
the nodes' own alarm reports that.

`RouterWatch` is a value, and knows nothing of batches, tables or farms (`pipeline/watch/watching.py`).
"""

from dataclasses import dataclass, replace

SILENT_AFTER_PERIODS = 3
SILENT_AFTER_DEFAULT_MS = 90_000
DIGITS_MAX = 19
"""Digits of the number at the end of what names a submission."""
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
