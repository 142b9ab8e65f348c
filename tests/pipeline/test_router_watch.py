"""Sessions and health with hysteresis: the machine by itself."""

from dataclasses import replace

from pipeline.watch.machine import HEALTHY, SILENT, UNHEALTHY, RouterWatch, Rules, SeenReport, Transition

RULES = Rules(silent_after_ms=90_000)
GOOD = SeenReport(index=1, at_ms=0, attached=True, uptime_ms=0, job_lag_ms=1.0, destinations=2, healthy_destinations=2)
BAD = replace(GOOD, healthy_destinations=0)


def told(kinds: list[SeenReport], period_ms: int = 30_000) -> list[SeenReport]:
    """Reports in the order of a log, one a period, of a router that runs on."""
    return [
        replace(kind, index=10 * number, at_ms=number * period_ms, uptime_ms=number * period_ms)
        for number, kind in enumerate(kinds, 1)
    ]


def watched(seen: list[SeenReport], until_ms: int | None = None) -> list[Transition]:
    watch, changes = RouterWatch(), []
    for each in seen:
        watch, found = watch.saw(each, RULES)
        changes += found
    if until_ms is not None:
        changes += watch.passed(until_ms, RULES)[1]
    return changes


def test_two_bad_reports_change_nothing_and_three_do() -> None:
    assert [change.state for change in watched(told([GOOD, BAD, BAD, GOOD, BAD, BAD, GOOD]))] == [HEALTHY]
    changes = watched(told([GOOD, BAD, BAD, BAD]))
    assert [(change.state, change.index) for change in changes] == [(HEALTHY, 10), (UNHEALTHY, 40)]
    assert changes[-1].reason == "0 of 2 destinations healthy"


def test_three_good_reports_in_a_row_bring_it_back() -> None:
    changes = watched(told([GOOD, BAD, BAD, BAD, GOOD, GOOD, BAD, GOOD, GOOD, GOOD]))
    assert [(change.state, change.index) for change in changes[1:]] == [(UNHEALTHY, 40), (HEALTHY, 100)]


def test_a_lag_between_the_limits_counts_for_neither_side() -> None:
    lagging = replace(GOOD, job_lag_ms=700.0)
    changes = watched(told([GOOD, BAD, BAD, lagging, BAD, GOOD, lagging, GOOD, lagging, GOOD]))
    assert [(change.state, change.index) for change in changes[1:]] == [(UNHEALTHY, 50), (HEALTHY, 100)]


def test_a_restart_and_a_return_begin_new_sessions() -> None:
    seen = told([GOOD, GOOD, GOOD, GOOD])
    seen[2] = replace(seen[2], uptime_ms=5)
    seen[3] = replace(seen[3], at_ms=600_000)
    changes = watched(seen)
    assert [change.reason for change in changes] == [
        "first report",
        "router restarted",
        "no report for 90000 ms",
        "reports again",
    ]
    assert [change.session_started_ms for change in changes] == [30_000, 90_000, 90_000, 600_000]
    assert changes[2].session_reports == 1


def test_silence_is_dated_when_it_was_complete_and_reported_once() -> None:
    by_timer = watched(told([GOOD]), until_ms=10_000_000)
    by_return = watched([*told([GOOD]), replace(GOOD, index=99, at_ms=9_000_000)])
    assert by_timer[1] == by_return[1]
    assert (by_timer[1].at_ms, by_timer[1].index, by_timer[1].state) == (120_000, None, SILENT)
    watch = RouterWatch().saw(told([GOOD])[0], RULES)[0].passed(120_000, RULES)[0]
    assert watch.passed(10_000_000, RULES) == (watch, [])


def test_a_report_that_comes_twice_counts_once() -> None:
    seen = told([GOOD, BAD, BAD])
    assert watched([*seen, seen[-1], seen[-1]]) == watched(seen)


def test_a_report_submitted_again_counts_once_also_behind_a_newer_one() -> None:
    seen = [replace(each, request=f"node-1-7-{number}") for number, each in enumerate(told([GOOD, BAD, BAD]), 1)]
    again = [replace(each, index=each.index + 1) for each in seen]
    late = replace(seen[1], index=99, at_ms=100_000)
    assert watched([seen[0], seen[1], again[1], seen[2], again[2], late]) == watched(seen)
    # what names no submission, or is of another life of the node, repeats nothing
    for other in ("node-1-9-1", "once", "x-1-" + "9" * 5_000, ""):
        assert len(watched([*seen, replace(BAD, index=99, at_ms=100_000, uptime_ms=None, request=other)])) == 2


def test_a_restart_is_noticed_behind_reports_that_tell_no_uptime() -> None:
    seen = told([GOOD, GOOD, GOOD, GOOD])
    seen[1], seen[2] = replace(seen[1], uptime_ms=None), replace(seen[2], uptime_ms=None)
    seen[3] = replace(seen[3], uptime_ms=5)
    assert [change.reason for change in watched(seen)] == ["first report", "router restarted"]
