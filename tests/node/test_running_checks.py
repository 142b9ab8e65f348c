"""What `doctor` says about a node that runs."""

import pytest
from msgspec.structs import replace

from bridge.api.outputs import Check, CheckResult
from bridge.api.view import AlarmView, FarmView, Phase
from bridge.core.formation.member import MemberStatus
from bridge.node.doctor.running_checks import checks_of
from tests.operator_views import farm_view, judged


def healthy(number: int = 2) -> FarmView:
    """A farm in which every node is well."""
    view = farm_view(number)
    members = tuple(replace(member, status=MemberStatus.ALIVE) for member in view.members)
    raft = replace(view.raft, log_time_ms=view.taken_at_ms - 400, learners=())
    entries = tuple(replace(entry, healthy=True) for entry in view.publishing[0].entries)
    publishing = (replace(view.publishing[0], entries=entries),)
    return judged(replace(view, members=members, raft=raft, publishing=publishing, alarms=()))


def found(view: FarmView) -> dict[str, Check]:
    """The checks by name; a check that is not ok says what to do."""
    checks = {check.name: check for check in checks_of(view)}
    assert all(check.action for check in checks.values() if check.result is not CheckResult.OK)
    return checks


def test_evicted_member_is_not_missed() -> None:
    view = healthy()
    other = next(member for member in view.members if not member.is_self)
    gone = replace(other, status=MemberStatus.DEAD, evicted=True)
    members = tuple(gone if member is other else member for member in view.members)
    assert found(replace(view, members=members))["members"].result is CheckResult.OK


def test_a_node_of_a_healthy_farm_is_all_right() -> None:
    checks = found(healthy())
    assert checks.keys() == {"node", "verdict", "log time", "members"}
    assert {check.result for check in checks.values()} == {CheckResult.OK}


def test_voter_at_an_old_level_is_named() -> None:
    view = healthy()
    levels = {"node-2": 5, "node-3": 4}
    members = tuple(replace(each, level=levels.get(each.name, 5)) for each in view.members)
    check = found(replace(view, farm=replace(view.farm, level=4), members=members))["feature level"]
    assert (check.result, check.text) == (CheckResult.OK, "4; node-3 announces no higher one")
    assert "help upgrade" in check.action


@pytest.mark.parametrize(
    ("ahead_ms", "result", "words"),
    [
        (4_900, CheckResult.OK, "4.9 s ahead of"),
        (-5_100, CheckResult.WARNING, "5.1 s behind"),
        (30_100, CheckResult.PROBLEM, "cannot publish"),
    ],
)
def test_the_clock_is_compared_with_log_time(ahead_ms: int, result: CheckResult, words: str) -> None:
    view = healthy()
    check = found(replace(view, raft=replace(view.raft, log_time_ms=view.taken_at_ms - ahead_ms)))["log time"]
    assert check.result is result
    assert words in check.text


def test_a_farm_without_a_leader_is_a_problem() -> None:
    view = healthy()
    raft = replace(view.raft, leader_id=None, leader_name=None, leaderless_ms=3_001)
    check = found(judged(replace(view, raft=raft)))["verdict"]
    assert check.result is CheckResult.PROBLEM
    assert "No quorum" in check.text


def test_a_server_that_is_not_reached_is_named_with_its_address() -> None:
    view = healthy()
    gone = next(member for member in view.members if not member.is_self)
    members = tuple(replace(member, status=MemberStatus.DEAD) if member is gone else member for member in view.members)
    check = found(replace(view, members=members))["members"]
    assert check.result is CheckResult.WARNING
    assert gone.name in check.text
    assert str(gone.endpoint or gone.address) in check.text


def test_each_alarm_is_told_with_what_to_do_and_one_that_stops_the_work_is_a_problem() -> None:
    alarms = (AlarmView("no-quorum", "nothing is committed", "start them"), AlarmView("clock", "off", "NTP"))
    checks = found(replace(healthy(), alarms=alarms))
    assert (checks["alarm no-quorum"].result, checks["alarm clock"].result) == (
        CheckResult.PROBLEM,
        CheckResult.WARNING,
    )
    assert checks["alarm no-quorum"].action == "start them"


def test_a_node_that_still_looks_for_a_farm_is_not_blamed_for_having_none() -> None:
    view = healthy()
    checks = found(replace(view, node=replace(view.node, phase=Phase.DISCOVERING)))
    assert checks.keys() == {"node", "verdict"}
