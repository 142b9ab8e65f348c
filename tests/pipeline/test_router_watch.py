"""`RouterWatch`, the state machine of one router: sessions, and health with hysteresis."""

from msgspec.structs import replace

from pipeline.watch.machine import HEALTHY, SILENT, UNHEALTHY, ReportFacts, RouterWatch, Rules, Transition

RULES = Rules(silent_after_ms=90_000)
GOOD = ReportFacts(index=1, at_ms=0, attached=True, uptime_ms=0, job_lag_ms=1.0, destinations=2, healthy_destinations=2)
BAD = replace(GOOD, healthy_destinations=0)


def reports(kinds: list[ReportFacts], period_ms: int = 30_000) -> list[ReportFacts]:
    """Return reports in log order, one per period, of a router that does not restart."""
    return [
        replace(kind, index=10 * number, at_ms=number * period_ms, uptime_ms=number * period_ms)
        for number, kind in enumerate(kinds, 1)
    ]


def transitions(seen: list[ReportFacts], until_ms: int | None = None) -> list[Transition]:
    watch, changes = RouterWatch(), []
    for each in seen:
        watch, found = watch.after_report(each, RULES)
        changes += found
    if until_ms is not None:
        changes += watch.after_silence_until(until_ms, RULES)[1]
    return changes


def test_third_bad_report_makes_router_unhealthy() -> None:
    assert [change.state for change in transitions(reports([GOOD, BAD, BAD, GOOD, BAD, BAD, GOOD]))] == [HEALTHY]
    changes = transitions(reports([GOOD, BAD, BAD, BAD]))
    assert [(change.state, change.index) for change in changes] == [(HEALTHY, 10), (UNHEALTHY, 40)]
    assert changes[-1].reason == "0 of 2 destinations healthy"


def test_third_good_report_makes_router_healthy() -> None:
    changes = transitions(reports([GOOD, BAD, BAD, BAD, GOOD, GOOD, BAD, GOOD, GOOD, GOOD]))
    assert [(change.state, change.index) for change in changes[1:]] == [(UNHEALTHY, 40), (HEALTHY, 100)]


def test_lag_between_limits_does_not_count() -> None:
    lagging = replace(GOOD, job_lag_ms=700.0)
    changes = transitions(reports([GOOD, BAD, BAD, lagging, BAD, GOOD, lagging, GOOD, lagging, GOOD]))
    assert [(change.state, change.index) for change in changes[1:]] == [(UNHEALTHY, 50), (HEALTHY, 100)]


def test_restart_and_return_start_new_sessions() -> None:
    seen = reports([GOOD, GOOD, GOOD, GOOD])
    seen[2] = replace(seen[2], uptime_ms=5)
    seen[3] = replace(seen[3], at_ms=600_000)
    changes = transitions(seen)
    assert [change.reason for change in changes] == [
        "first report",
        "router restarted",
        "no report for 90000 ms",
        "reports again",
    ]
    assert [change.session_started_ms for change in changes] == [30_000, 90_000, 90_000, 600_000]
    assert changes[2].session_reports == 1


def test_timeout_dates_transition_and_is_reported_once() -> None:
    by_timer = transitions(reports([GOOD]), until_ms=10_000_000)
    by_return = transitions([*reports([GOOD]), replace(GOOD, index=99, at_ms=9_000_000)])
    assert by_timer[1] == by_return[1]
    assert (by_timer[1].at_ms, by_timer[1].index, by_timer[1].state) == (120_000, None, SILENT)
    watch = RouterWatch().after_report(reports([GOOD])[0], RULES)[0].after_silence_until(120_000, RULES)[0]
    assert watch.after_silence_until(10_000_000, RULES) == (watch, [])


def test_repeated_report_counts_once() -> None:
    seen = reports([GOOD, BAD, BAD])
    assert transitions([*seen, seen[-1], seen[-1]]) == transitions(seen)


def test_resubmitted_report_counts_once_after_newer_report() -> None:
    seen = [replace(each, request=f"node-1-7-{number}") for number, each in enumerate(reports([GOOD, BAD, BAD]), 1)]
    again = [replace(each, index=each.index + 1) for each in seen]
    late = replace(seen[1], index=99, at_ms=100_000)
    assert transitions([seen[0], seen[1], again[1], seen[2], again[2], late]) == transitions(seen)
    # An invalid request id, or the id of another generation of the node, is not a repetition.
    for other in ("node-1-9-1", "once", "x-1-" + "9" * 5_000, ""):
        assert len(transitions([*seen, replace(BAD, index=99, at_ms=100_000, uptime_ms=None, request=other)])) == 2


def test_restart_is_detected_after_reports_without_uptime() -> None:
    seen = reports([GOOD, GOOD, GOOD, GOOD])
    seen[1], seen[2] = replace(seen[1], uptime_ms=None), replace(seen[2], uptime_ms=None)
    seen[3] = replace(seen[3], uptime_ms=5)
    assert [change.reason for change in transitions(seen)] == ["first report", "router restarted"]
