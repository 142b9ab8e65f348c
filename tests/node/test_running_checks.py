"""The checks of `doctor` for a running node."""

import pytest
from msgspec.structs import replace

from bridge.api.outputs import Check, CheckResult
from bridge.api.view import AlarmView, ConditionView, FarmView, Phase
from bridge.core.formation.member import MemberStatus
from bridge.core.log.records import LeafFault
from bridge.node.doctor.running_checks import checks_of
from tests.operator_views import farm_view, judged


def healthy(number: int = 2) -> FarmView:
    view = farm_view(number)
    members = tuple(replace(member, status=MemberStatus.ALIVE) for member in view.members)
    raft = replace(view.raft, log_time_ms=view.taken_at_ms - 400, learners=())
    entries = tuple(replace(entry, healthy=True) for entry in view.publishing[0].entries)
    publishing = (replace(view.publishing[0], entries=entries),)
    return judged(replace(view, members=members, raft=raft, publishing=publishing, alarms=()))


def found(view: FarmView) -> dict[str, Check]:
    """Return the checks by name; each check other than OK must have an action."""
    checks = {check.name: check for check in checks_of(view)}
    assert all(check.action for check in checks.values() if check.result is not CheckResult.OK)
    return checks


def test_members_check_ignores_evicted_member() -> None:
    view = healthy()
    other = next(member for member in view.members if not member.is_self)
    dead = replace(other, status=MemberStatus.DEAD, evicted=True)
    members = tuple(dead if member is other else member for member in view.members)
    assert found(replace(view, members=members))["members"].result is CheckResult.OK


def test_node_of_healthy_farm_is_ok() -> None:
    checks = found(healthy())
    assert checks.keys() == {
        "node",
        "verdict",
        "log time",
        "members",
        "publishing of wkq7xjh3…",
        "leaf leaf2abc… reported",
    }
    assert {check.result for check in checks.values()} == {CheckResult.OK}


@pytest.mark.parametrize(
    ("inability", "choice", "result", "action"),
    [
        (None, "not chosen: its score 870 is below the 880 of node-2", CheckResult.OK, ""),
        (
            "it does not have a valid signing key",
            "cannot publish: it does not have a valid signing key",
            CheckResult.WARNING,
            "keys master",
        ),
        (
            "its last report is stale",
            "cannot publish: its last report is stale",
            CheckResult.WARNING,
            "garlicfarm status",
        ),
    ],
)
def test_publishing_check_has_choice_score_and_action(
    inability: str | None, choice: str, result: CheckResult, action: str
) -> None:
    view = healthy()
    each = view.publishing[0]
    standings = tuple(
        replace(one, inability=inability, choice=choice) if one.raft_id == view.node.raft_id else one
        for one in each.standings
    )
    check = found(replace(view, publishing=(replace(each, standings=standings),)))[f"publishing of {each.master[:8]}…"]
    assert check.result is result
    assert check.text.startswith(f"{choice}; score ")
    assert action in check.action


def test_reported_leaf_without_router_has_own_remedy() -> None:
    """The output may lack the line `router`, or the router may have started after the report."""
    view = healthy()
    lost = ConditionView(LeafFault.ROUTER.value, holds=False, since_ms=5_000, failures=1, last_error="refused")
    reports = tuple(
        replace(each, leaves=tuple(replace(leaf, healthy=False, conditions=(lost,)) for leaf in each.leaves))
        for each in view.reports
    )
    check = found(replace(view, reports=reports))["leaf leaf2abc… reported"]
    assert (check.result, check.cause) == (CheckResult.PROBLEM, "router")
    assert check.action.startswith("wait a minute if the router has just started")
    alarm = AlarmView("router-unreachable", "it does not answer", "start it")
    checks = found(replace(view, reports=reports, alarms=(alarm,)))
    assert checks["alarm router-unreachable"].cause == "router"
    assert checks["leaf leaf2abc… reported"].cause == "alarm router-unreachable"


def test_voter_at_old_level_is_named() -> None:
    view = healthy()
    levels = {"node-2": 5, "node-3": 4}
    members = tuple(replace(each, level=levels.get(each.name, 5)) for each in view.members)
    check = found(replace(view, farm=replace(view.farm, level=4), members=members))["feature level"]
    assert (check.result, check.text) == (CheckResult.OK, "4; node-3 does not announce a higher level")
    assert "help upgrade" in check.action


@pytest.mark.parametrize(
    ("ahead_ms", "result", "message"),
    [
        (4_900, CheckResult.OK, "4.9 s ahead of"),
        (-5_100, CheckResult.WARNING, "5.1 s behind"),
        (30_100, CheckResult.PROBLEM, "cannot publish"),
    ],
)
def test_clock_is_compared_with_log_time(ahead_ms: int, result: CheckResult, message: str) -> None:
    view = healthy()
    check = found(replace(view, raft=replace(view.raft, log_time_ms=view.taken_at_ms - ahead_ms)))["log time"]
    assert check.result is result
    assert message in check.text


def test_farm_without_leader_is_a_problem() -> None:
    view = healthy()
    raft = replace(view.raft, leader_id=None, leader_name=None, leaderless_ms=3_001)
    alarm = AlarmView("no-quorum", "nothing is committed", "start them")
    checks = found(replace(judged(replace(view, raft=raft)), alarms=(alarm,)))
    assert checks["verdict"].result is CheckResult.PROBLEM
    assert "No quorum" in checks["verdict"].text
    assert checks["alarm no-quorum"].cause == "verdict"


def test_unreachable_server_is_named_with_address() -> None:
    view = healthy()
    dead = next(member for member in view.members if not member.is_self)
    members = tuple(replace(member, status=MemberStatus.DEAD) if member is dead else member for member in view.members)
    check = found(replace(view, members=members))["members"]
    assert check.result is CheckResult.WARNING
    assert dead.name in check.text
    assert str(dead.endpoint or dead.address) in check.text


def test_alarm_check_has_action_and_severity() -> None:
    alarms = (AlarmView("no-quorum", "nothing is committed", "start them"), AlarmView("clock", "off", "NTP"))
    checks = found(replace(healthy(), alarms=alarms))
    assert (checks["alarm no-quorum"].result, checks["alarm clock"].result) == (
        CheckResult.PROBLEM,
        CheckResult.WARNING,
    )
    assert checks["alarm no-quorum"].action == "start them"


def test_discovering_node_is_not_checked_for_farm() -> None:
    view = healthy()
    checks = found(replace(view, node=replace(view.node, phase=Phase.DISCOVERING)))
    assert checks.keys() == {"node", "verdict"}
