"""`detection` tells how soon losses were noticed, which of them were none, and what SWIM expects of our gossip."""

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
from tests.pipeline.made_tables import FARM, derived, knew
from tests.pipeline.test_answers import told
from tests.pipeline.test_trace_tables import Rows, event, made_of, report

TO_SUSPECT_MS, PERIOD_MS = 1_582, 30_000
"""e/(e-1) of a second; the reporting period."""


def detection(output: Path, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["name"]): row for row in told(output, "detection", *arguments)}


def trace_of(node: str, *restarts: float, until: float = 3_600) -> Rows:
    """A trace that begins at noon and ends an hour after; the node begins anew at these seconds."""
    begun = [event(node, 1, second, "node-started", pid=1) for second in (0, *restarts)]
    return [*begun, event(node, 9, until, "role", role="follower")]


def noticed(node: str, second: float, *, member: str = "c", dead: float | None = None, back: float | None) -> Rows:
    """An observer's notices of a member, at seconds after noon."""
    at = {"suspect": second, "dead": dead, "alive": back}
    return [
        event(node, 10 + int(when), when, f"member-{status}", member=member, id=member * 2)
        for status, when in at.items()
        if when is not None
    ]


def test_a_loss_is_timed_from_the_last_report_to_whichever_observer_noticed_it_first(tmp_path: Path) -> None:
    # given a server that reported last at 90 s, was down from then to 200 s, and was noticed by two
    events = [
        *trace_of("a"),
        *trace_of("b"),
        *trace_of("c", 200),
        event("c", 2, 1, "joined", raftId=3),
        *noticed("a", 93, dead=98, back=210),
        *noticed("b", 92, dead=99, back=211),
    ]
    knew(tmp_path, 0, {"farm": [{"period_ms": PERIOD_MS}]})
    made_of(tmp_path, events, [report(second, 3) for second in (0, 30, 60, 90, 220)])
    rows = detection(tmp_path)
    farm = rows["farm", FARM]
    assert (farm["suspicions"], farm["detections"], farm["unjudged"], farm["false_positive_rate"]) == (1, 1, 0, 0.0)
    assert [farm[f"{what}_median_ms"] for what in ("suspect", "dead", "suspicion")] == [2_000, 8_000, 7_000]
    assert (farm["suspect_expected_ms"], farm["uncertain_ms"]) == (TO_SUSPECT_MS, PERIOD_MS)
    assert (farm["suspicion_expected_min_ms"], farm["suspicion_expected_max_ms"]) == (4_000, 4_000), "of three members"
    assert farm["dead_expected_ms"] == TO_SUSPECT_MS + 4_000
    assert [rows["observer", node]["suspect_max_ms"] for node in "ab"] == [3_000, 2_000]
    assert rows["member", "c"]["dead_p99_ms"] == 8_000
    assert next(iter(rows)) == ("farm", FARM)


def test_a_member_that_comes_back_without_a_restart_was_suspected_falsely(tmp_path: Path) -> None:
    events = [
        *trace_of("c", 1_200),
        # given a suspicion and a death that were refuted, and one from around the restart of the member
        *noticed("a", 300, back=302),
        *noticed("a", 600, dead=605, back=607),
        *noticed("a", 1_195, back=1_203),
        # and one that is not over
        *noticed("a", 1_800, back=None),
    ]
    made_of(tmp_path, events, [])
    knew(tmp_path, 0, {"farm": [{"period_ms": PERIOD_MS}]})
    row = detection(tmp_path)["member", "c"]
    counted = ("suspicions", "detections", "false_suspicions", "false_deaths", "unjudged")
    assert [row[each] for each in counted] == [4, 1, 1, 1, 1]
    assert row["false_positive_rate"] == pytest.approx(2 / 3, abs=1e-6)
    assert row["suspect_median_ms"] is None, "no report of it, so it is not known when it was last alive"


def test_what_the_trace_of_a_member_does_not_tell_is_not_judged(tmp_path: Path) -> None:
    events = [
        # given no trace of `c`, one of `d` that ends too soon, and one of `e` of which events were lost by 2,000 s
        *noticed("a", 300, back=302),
        *trace_of("d", until=401),
        *noticed("a", 400, member="d", dead=403, back=410),
        *trace_of("e"),
        event("e", 3, 100, "role", role="leader"),
        event("e", 7, 2_000, "events-lost", lost=3),
        *noticed("a", 500, member="e", back=502),
        *noticed("a", 2_500, member="e", back=2_502),
    ]
    made_of(tmp_path, events, [])
    rows = detection(tmp_path)
    assert (rows["member", "c"]["unjudged"], rows["member", "c"]["false_positive_rate"]) == (1, None)
    assert (rows["member", "d"]["unjudged"], rows["member", "d"]["detections"]) == (1, 1), "it was called dead"
    # then only what lies after the gap is judged
    assert (rows["member", "e"]["unjudged"], rows["member", "e"]["false_suspicions"]) == (1, 1)
    assert rows["member", "e"]["uncertain_ms"] is None


def test_an_observer_that_hears_of_a_loss_long_after_did_not_detect_it(tmp_path: Path) -> None:
    events = [
        event("c", 2, 1, "joined", raftId=3),
        *noticed("a", 92, dead=98, back=None),
        # given an observer that starts an hour after
        *noticed("b", 3_700, dead=3_705, back=None),
    ]
    made_of(tmp_path, events, [report(second, 3) for second in (30, 60, 90)])
    rows = detection(tmp_path)
    assert (rows["member", "c"]["suspicions"], rows["member", "c"]["dead_max_ms"]) == (1, 8_000)
    assert (rows["observer", "b"]["detections"], rows["observer", "b"]["dead_max_ms"]) == (1, None)


def test_a_member_that_left_in_order_was_no_loss(tmp_path: Path) -> None:
    events = [*noticed("a", 300, back=None), event("a", 400, 301, "member-left", member="c", id="cc")]
    made_of(tmp_path, events, [])
    assert documents(tmp_path, answer_sql("detection")) == []


@pytest.mark.parametrize(("timing", "options"), [("lan", SwimOptions.lan()), ("local", SwimOptions.loopback())])
@pytest.mark.parametrize("members", [2, 3, 4, 7, 8, 9, 10, 11, 40, 1_000])
def test_the_suspicion_that_is_expected_is_that_of_our_gossip(
    tmp_path: Path, timing: str, options: SwimOptions, members: int
) -> None:
    # given a farm of so many members, of which one is suspect
    derived(tmp_path, "members", [{"member": f"m{number}"} for number in range(members)])
    derived(
        tmp_path,
        "detections",
        [{"observer": "m0", "member": "m1", "suspect_at": event("m0", 1, 0, "")["log_time"], "outcome": "suspect"}],
    )
    (row,) = (each for each in told(tmp_path, "detection", "--gossip-timing", timing) if each["kind"] == "farm")
    assert GOSSIP_TIMINGS[timing].probe_period_ms == options.probe_period_ms
    # then it lasts as long as one in that group that no member confirms, and one that all confirm
    accusers = [NodeId(bytes([number] * 16)) for number in range(1, 64)]
    suspicion = Suspicion(Incarnation(0, 0), accusers[0], members, options, 0)
    unconfirmed = suspicion.deadline
    for accuser in accusers:
        suspicion.confirm(accuser)
    assert (row["suspicion_expected_max_ms"], row["suspicion_expected_min_ms"]) == (unconfirmed, suspicion.deadline)
    assert row["suspect_expected_ms"] == pytest.approx(1.582 * options.probe_period_ms, abs=1)


def test_a_timing_of_another_query_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(query, ["slo", "--gossip-timing", "local", "--output", str(tmp_path)])
    assert (result.exit_code, "belongs to `detection`" in result.output) == (2, True)
