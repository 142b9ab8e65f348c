"""The query `detection`: times from a loss to its detection, false suspicions, and the times expected from SWIM.

Traces and reports of made-up nodes give known times. The expected suspicion times are compared with `Suspicion` of our
gossip.
"""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gossip import NodeId, SwimOptions
from gossip.core.member import Incarnation
from gossip.core.updates import Suspicion
from pipeline.cli.queries import query
from pipeline.gold.answers import GOSSIP_TIMINGS, answer_sql
from pipeline.serve.query import documents
from tests.pipeline.made_tables import FARM, write_current_state, write_derived
from tests.pipeline.test_answers import query_rows
from tests.pipeline.test_trace_tables import Rows, event, report, write_and_derive

TO_SUSPECT_MS, PERIOD_MS = 1_582, 30_000
"""The expected time to a suspicion, e/(e-1) seconds, and the reporting period."""


def detection(output: Path, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["name"]): row for row in query_rows(output, "detection", *arguments)}


def trace_of(node: str, *restarts: float, until: float = 3_600) -> Rows:
    """Return a trace from noon to `until` seconds later. The node starts at noon and at `restarts`, in seconds."""
    starts = [event(node, 1, at, "node-started", generation=number) for number, at in enumerate((0, *restarts), 1)]
    return [*starts, event(node, 9, until, "role", role="follower")]


def observed(node: str, second: float, *, member: str = "c", dead: float | None = None, back: float | None) -> Rows:
    """Return an observer's events about a member, at seconds after noon."""
    at = {"suspect": second, "dead": dead, "alive": back}
    return [
        event(node, 10 + int(when), when, f"member-{status}", member=member, id=member * 2)
        for status, when in at.items()
        if when is not None
    ]


def test_detection_time_starts_at_last_report(tmp_path: Path) -> None:
    # given a server that last reported at 90 s, was down until 200 s, and was suspected by two observers
    events = [
        *trace_of("a"),
        *trace_of("b"),
        *trace_of("c", 200),
        event("c", 2, 1, "joined", raftId=3),
        *observed("a", 93, dead=98, back=210),
        *observed("b", 92, dead=99, back=211),
    ]
    write_current_state(tmp_path, 0, {"farm": [{"period_ms": PERIOD_MS}]})
    write_and_derive(tmp_path, events, [report(second, 3) for second in (0, 30, 60, 90, 220)])
    rows = detection(tmp_path)
    farm = rows["farm", FARM]
    assert (farm["suspicions"], farm["detections"], farm["unjudged"], farm["false_positive_rate"]) == (1, 1, 0, 0.0)
    assert [farm[f"{interval}_median_ms"] for interval in ("suspect", "dead", "suspicion")] == [2_000, 8_000, 7_000]
    assert (farm["suspect_expected_ms"], farm["uncertain_ms"]) == (TO_SUSPECT_MS, PERIOD_MS)
    assert (farm["suspicion_expected_min_ms"], farm["suspicion_expected_max_ms"]) == (4_000, 4_000), "of three members"
    assert farm["dead_expected_ms"] == TO_SUSPECT_MS + 4_000
    assert [rows["observer", node]["suspect_max_ms"] for node in "ab"] == [3_000, 2_000]
    assert rows["member", "c"]["dead_p99_ms"] == 8_000
    assert next(iter(rows)) == ("farm", FARM)


def test_member_alive_without_restart_is_false_suspicion(tmp_path: Path) -> None:
    events = [
        *trace_of("c", 1_200),
        # given a refuted suspicion soon after the first start, a later one, and a refuted death
        *observed("a", 42, back=43),
        *observed("a", 300, back=302),
        *observed("a", 600, dead=605, back=607),
        # and a suspicion around a restart of the member
        *observed("a", 1_195, back=1_203),
        # and an open suspicion
        *observed("a", 1_800, back=None),
    ]
    write_and_derive(tmp_path, events, [])
    write_current_state(tmp_path, 0, {"farm": [{"period_ms": PERIOD_MS}]})
    row = detection(tmp_path)["member", "c"]
    counted = ("suspicions", "detections", "false_suspicions", "false_deaths", "unjudged")
    assert [row[each] for each in counted] == [5, 1, 2, 1, 1]
    assert row["false_positive_rate"] == pytest.approx(3 / 4, abs=1e-6)
    assert row["suspect_median_ms"] is None, "without reports, the time of the last contact is unknown"


def test_suspicion_without_member_trace_is_unjudged(tmp_path: Path) -> None:
    events = [
        # given no trace of `c`, a short trace of `d`, and a trace of `e` that lost events before 2,000 s
        *observed("a", 300, back=302),
        *trace_of("d", until=401),
        *observed("a", 400, member="d", dead=403, back=410),
        *trace_of("e"),
        event("e", 3, 100, "role", role="leader"),
        event("e", 7, 2_000, "events-lost", lost=3),
        *observed("a", 500, member="e", back=502),
        *observed("a", 2_500, member="e", back=2_502),
    ]
    write_and_derive(tmp_path, events, [])
    rows = detection(tmp_path)
    assert (rows["member", "c"]["unjudged"], rows["member", "c"]["false_positive_rate"]) == (1, None)
    assert (rows["member", "d"]["unjudged"], rows["member", "d"]["detections"]) == (1, 1), "it was marked dead"
    # then only suspicions after the gap are judged
    assert (rows["member", "e"]["unjudged"], rows["member", "e"]["false_suspicions"]) == (1, 1)
    assert rows["member", "e"]["uncertain_ms"] is None


def test_observer_started_after_loss_lacks_detection_time(tmp_path: Path) -> None:
    events = [
        event("c", 2, 1, "joined", raftId=3),
        *observed("a", 92, dead=98, back=None),
        # given an observer that starts an hour after the loss
        *observed("b", 3_700, dead=3_705, back=None),
    ]
    write_and_derive(tmp_path, events, [report(second, 3) for second in (30, 60, 90)])
    rows = detection(tmp_path)
    assert (rows["member", "c"]["suspicions"], rows["member", "c"]["dead_max_ms"]) == (1, 8_000)
    assert (rows["observer", "b"]["detections"], rows["observer", "b"]["dead_max_ms"]) == (1, None)


def test_departed_member_does_not_count_as_loss(tmp_path: Path) -> None:
    events = [*observed("a", 300, back=None), event("a", 400, 301, "member-left", member="c", id="cc")]
    write_and_derive(tmp_path, events, [])
    assert documents(tmp_path, answer_sql("detection")) == []


@pytest.mark.parametrize(("timing", "options"), [("lan", SwimOptions.lan()), ("local", SwimOptions.loopback())])
def test_expected_suspicion_time_equals_gossip_timers(tmp_path: Path, timing: str, options: SwimOptions) -> None:
    # given farms of different sizes, each with one suspect member
    farms = {f"{members:032x}": members for members in (2, 3, 4, 7, 8, 9, 10, 11, 40, 1_000)}
    members = [{"farm": farm, "member": f"m{number}"} for farm, count in farms.items() for number in range(count)]
    write_derived(tmp_path, "members", members)
    suspicion = {"observer": "m0", "member": "m1", "suspect_at": event("m0", 1, 0, "")["log_time"]}
    write_derived(tmp_path, "detections", [{**suspicion, "farm": farm, "outcome": "suspect"} for farm in farms])
    rows = query_rows(tmp_path, "detection", "--gossip-timing", timing)
    found = {each["farm"]: each for each in rows if each["kind"] == "farm"}
    assert found.keys() == farms.keys()
    assert GOSSIP_TIMINGS[timing].probe_period_ms == options.probe_period_ms
    accusers = [NodeId(bytes([number] * 16)) for number in range(1, 64)]
    for farm, row in found.items():
        # then the limits are the timeout without a confirmation, and the timeout with all confirmations
        timer = Suspicion(Incarnation(0, 0), accusers[0], farms[farm], options, 0)
        unconfirmed = timer.deadline
        for accuser in accusers:
            timer.confirm(accuser)
        assert (row["suspicion_expected_max_ms"], row["suspicion_expected_min_ms"]) == (unconfirmed, timer.deadline)
        assert row["suspect_expected_ms"] == pytest.approx(1.582 * options.probe_period_ms, abs=1)


def test_gossip_timing_of_another_query_is_rejected(tmp_path: Path) -> None:
    result = CliRunner().invoke(query, ["slo", "--gossip-timing", "local", "--output", str(tmp_path)])
    assert (result.exit_code, "belongs to `detection`" in result.output) == (2, True)
