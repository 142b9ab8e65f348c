"""Sessions and health with hysteresis: the machine by itself, and inside Spark's processor without a JVM."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from pipeline.state import HEALTHY, SILENT, UNHEALTHY, RouterWatch, Rules, SeenReport, Transition, WatchProcessor

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


def _frame(seen: list[SeenReport]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "server_id": [7 for _ in seen],
            "place": [each.index for each in seen],
            "log_time": pd.to_datetime([each.at_ms for each in seen], unit="ms", utc=True),
            "attached": [each.attached for each in seen],
            "uptime_ms": pd.array([each.uptime_ms for each in seen], "Int64"),
            "job_lag_ms": [each.job_lag_ms for each in seen],
            "destinations": [each.destinations for each in seen],
            "healthy_destinations": [each.healthy_destinations for each in seen],
            "request": [each.request for each in seen],
        }
    )


def _milliseconds(moment: Any) -> int:
    return round(pd.Timestamp(moment).timestamp() * 1000)


def simulated(processor: WatchProcessor) -> TwsTester:
    return TwsTester(
        processor, timeMode="EventTime", eventTimeExtractor=lambda row: int(row["log_time"].value // 1_000_000)
    )


def test_silence_is_told_however_the_reporting_period_changed_meanwhile() -> None:
    # given a server that says nothing more, and a period that becomes longer before it counts as silent
    processor = WatchProcessor(Rules(silent_after_ms=6_000))
    tester = simulated(processor)
    tester.testInPandas(7, _frame(told([GOOD])))
    processor._rules = Rules(silent_after_ms=90_000)
    assert not len(tester.setWatermark(119_000))
    silent: Any = tester.setWatermark(130_000)
    assert [(row.state, row.reason) for row in silent.itertuples()] == [(SILENT, "no report for 90000 ms")]
    assert [_milliseconds(moment) for moment in silent["at"]] == [120_000]
    # and one that becomes shorter, also if log time passes both at once
    tester.testInPandas(8, _frame([replace(GOOD, at_ms=131_000)]))
    processor._rules = Rules(silent_after_ms=6_000)
    silent = tester.setWatermark(300_000)
    assert [(row.server_id, row.reason) for row in silent.itertuples()] == [(8, "no report for 6000 ms")]
    assert [_milliseconds(moment) for moment in silent["at"]] == [137_000]


@pytest.mark.parametrize("seed", range(5))
def test_rows_depend_on_the_log_alone_and_not_on_how_it_was_cut_into_batches(seed: int) -> None:
    random = Random(seed)
    at_ms, uptime_ms, seen = 0, 0, []
    for index in range(1, 120):
        step = random.choice((30_000, 30_000, 30_000, 60_000, 400_000))
        at_ms, uptime_ms = at_ms + step, 0 if random.random() < 0.1 else uptime_ms + step
        kind = random.choice((GOOD, BAD, replace(GOOD, job_lag_ms=700.0)))
        seen.append(replace(kind, index=index, at_ms=at_ms, uptime_ms=uptime_ms))
    end_ms = at_ms + 1_000_000
    expected = [(change.at_ms, change.state, change.reason) for change in watched(seen, end_ms)]

    def cut(places: list[int]) -> list[tuple[int, str, str]]:
        tester = simulated(WatchProcessor(RULES))
        frames: list[Any] = []
        for start, stop in pairwise([0, *places, len(seen)]):
            if start == stop:
                continue
            frames.append(tester.testInPandas(7, _frame(seen[start:stop])))
            frames.append(tester.setWatermark(seen[stop - 1].at_ms - 1_000))
        frames.append(tester.setWatermark(end_ms))
        rows = pd.concat([frame for frame in frames if len(frame)])
        moments = (pd.to_datetime(rows["at"], utc=True).astype("int64") // 1_000_000).tolist()
        return list(zip(moments, rows["state"], rows["reason"], strict=True))

    assert cut([]) == expected
    assert cut(list(range(1, len(seen)))) == expected
    assert cut(sorted(random.sample(range(1, len(seen)), 10))) == expected, f"seed {seed}"
