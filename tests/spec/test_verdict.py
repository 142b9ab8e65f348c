"""The verdict: one true line for each state of a farm, and the precedence of verdicts."""

from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Struct
from msgspec.structs import fields, replace

from bridge.api.alarms import FOREIGN_KEY, SERVERS_DOWN
from bridge.api.farm_facts import ContactWatch
from bridge.api.verdict import EXIT_STATUS, MEANINGS, Concern, concerns_of
from bridge.api.view import (
    AlarmView,
    ConditionView,
    FarmView,
    MetaEntryView,
    OtherFarmView,
    Phase,
    PublishingView,
    RaftRole,
    Severity,
    StandingView,
    VerdictKind,
    VerdictView,
)
from bridge.core.formation.member import MemberStatus
from bridge.core.publishing.score import Inability
from tests.effort import each_case
from tests.operator_views import NOW_MS, farm_view, forming_view, judged, leaf

OTHER_MASTER = "other.b32.i2p"
OTHER = (OtherFarmView("10.77.0.3:7668", "77aa00ff77aa00ff"),)


def healthy(number: int = 1, servers: int = 3) -> FarmView:
    view = farm_view(number, servers=servers)
    members = tuple(replace(each, status=MemberStatus.ALIVE) for each in view.members)
    followers = tuple(replace(each, last_contact_ms=40, lag_entries=0) for each in view.raft.followers)
    raft = replace(view.raft, learners=(), followers=followers)
    gossip = replace(view.gossip, other_farms=())
    publishing = replace(
        view.publishing[0],
        entries=tuple(replace(each, healthy=True) for each in view.publishing[0].entries),
        standings=tuple(replace(each, inability=None) for each in view.publishing[0].standings),
    )
    return replace(view, members=members, raft=raft, gossip=gossip, publishing=(publishing,), alarms=())


def at(view: FarmView, after_ms: int, log_time_ms: int | None = None) -> FarmView:
    """Return the view as of a later moment; log time advances by the same interval, unless it is given."""
    node = replace(view.node, uptime_ms=60_000 + after_ms)
    now_ms = (view.raft.log_time_ms or 0) + after_ms if log_time_ms is None else log_time_ms
    return replace(view, node=node, raft=replace(view.raft, log_time_ms=now_ms))


def settled(view: FarmView) -> FarmView:
    """Return the view after its contradictions have lasted long enough to count."""
    watch = ContactWatch()
    for after_ms in (0, 30_000, 60_000):
        watch.observe(at(view, after_ms))
    return replace(view, raft=replace(view.raft, udp_blocked=watch.udp_blocked, not_reporting=watch.not_reporting))


def verdict(view: FarmView) -> VerdictView:
    """Return the verdict on a view whose contradictions have lasted."""
    return judged(settled(view)).verdict


def with_status(view: FarmView, **statuses: MemberStatus) -> FarmView:
    """Set the gossip status of members by name (`node_2`). At the leader, dead members also stop replying."""
    by_name = {name.replace("_", "-"): status for name, status in statuses.items()}
    members = tuple(replace(each, status=by_name.get(each.name, each.status)) for each in view.members)
    followers = tuple(
        replace(each, last_contact_ms=60_000) if by_name.get(str(each.name)) is MemberStatus.DEAD else each
        for each in view.raft.followers
    )
    return replace(view, members=members, raft=replace(view.raft, followers=followers))


def leaderless(view: FarmView, for_ms: int) -> FarmView:
    """Return a view without a known leader for `for_ms`."""
    raft = replace(view.raft, role=RaftRole.FOLLOWER, leader_id=None, leader_name=None, followers=())
    return replace(view, raft=replace(raft, leaderless_ms=for_ms))


def publishing_of(view: FarmView, **changes: Any) -> FarmView:
    return replace(view, publishing=(replace(view.publishing[0], **changes),))


def unable(view: FarmView, *reasons: Inability) -> FarmView:
    """Return a view without a server that can publish; the reasons are in order of names."""
    standings = tuple(
        StandingView(number, f"node-{number}", preferred=False, score=0, inability=reason.value)
        for number, reason in enumerate(reasons, 1)
    )
    return publishing_of(view, publisher_id=None, publisher_name=None, standings=standings)


@pytest.mark.parametrize(("servers", "text"), [(1, "none of 1"), (3, "1 of 3"), (5, "2 of 5")])
def test_verdict_healthy_reports_can_lose(servers: int, text: str) -> None:
    found = verdict(healthy(servers=servers))
    assert found.text.startswith(f"Healthy, can lose {text}")
    assert (found.kind, found.severity, found.ready) == (VerdictKind.HEALTHY, Severity.OK, True)


@pytest.mark.parametrize("number", [1, 2])
def test_dead_voter_named_by_leader_and_follower(number: int) -> None:
    found = verdict(with_status(healthy(number), node_3=MemberStatus.DEAD))
    assert found.text == "Degraded: node-3 down, can lose none"
    assert (found.severity, found.can_lose, found.ready) == (Severity.WARNING, 0, True)


@pytest.mark.parametrize(("dead", "pronoun"), [(("node_3",), "it"), (("node_3", "node_4"), "them")])
def test_advice_for_dead_servers_agrees_in_number(dead: Sequence[str], pronoun: str) -> None:
    found = verdict(with_status(healthy(servers=5), **dict.fromkeys(dead, MemberStatus.DEAD)))
    assert found.advice.startswith(f"start {pronoun} again (")
    assert f"(consensus) reach {pronoun};" in found.advice


@pytest.mark.parametrize("number", [1, 2])
def test_advice_for_evicted_server_is_replacement(number: int) -> None:
    view = with_status(healthy(number), node_3=MemberStatus.DEAD)
    voters = tuple(replace(each, evicted=each.raft_id == 3) for each in view.raft.voters)
    found = verdict(replace(view, raft=replace(view.raft, voters=voters)))
    assert found.text == "Degraded: node-3 evicted, can lose none"
    assert found.advice.startswith("to replace the evicted server, run `garlicfarm invite new`")
    assert "again" not in found.advice


@pytest.mark.parametrize(("expect", "lost"), [(5, "the evicted server, or a server"), (3, "the evicted server,")])
def test_advice_for_evicted_and_dead_server_adds_a_node_once(expect: int, lost: str) -> None:
    view = with_status(healthy(servers=5), node_3=MemberStatus.DEAD, node_4=MemberStatus.DEAD)
    voters = tuple(replace(each, evicted=each.raft_id == 3) for each in view.raft.voters)
    view = replace(view, raft=replace(view.raft, voters=voters), farm=replace(view.farm, expect=expect))
    advice = verdict(view).advice
    assert advice.count("`garlicfarm invite new`") == 1, advice
    assert f"to replace {lost}" in advice
    assert ("`garlicfarm servers remove node-4`" in advice) == (expect == 3)


def dead_in_gossip(view: FarmView, *names: str, for_ms: int = 60_000) -> FarmView:
    """Return a view of a working log after gossip marked these members dead `for_ms` ago."""
    members = tuple(
        replace(each, status=MemberStatus.DEAD, status_age_ms=for_ms) if each.name in names else each
        for each in view.members
    )
    reports = tuple(replace(each, age_ms=2_000, stale=False) for each in view.reports)
    return replace(view, members=members, reports=reports)


def alarms(view: FarmView) -> dict[str, Concern]:
    return {each.alarm.kind: each for each in concerns_of(settled(view)) if each.alarm is not None}


@each_case(
    ("number", "names"),
    [(1, ("node-2",)), (1, ("node-2", "node-3")), (2, ("node-1",)), (2, ("node-3",)), (2, ("node-1", "node-3"))],
)
def test_blocked_udp_is_alarm_at_leader_and_follower(number: int, names: tuple[str, ...]) -> None:
    view = dead_in_gossip(healthy(number), *names)
    found = alarms(view)
    assert found.keys() == {"udp-blocked"}
    assert all(name in found["udp-blocked"].text for name in (*names, f"node-{number}"))
    assert "open UDP port 760" in found["udp-blocked"].advice
    judgment = verdict(view)
    assert judgment.text == f"Degraded: UDP to {' and '.join(names)} is blocked, can lose 1 more"
    assert "UDP port" in judgment.advice


def test_local_farm_with_down_node_has_its_start_command() -> None:
    view = with_status(healthy(), node_2=MemberStatus.DEAD)
    view = replace(view, node=replace(view.node, state_directory=f"/my farm/{view.node.name}"))
    assert "again (`garlicfarm run --config '/my farm/node-2/node.toml'`), and" in verdict(view).advice
    others = tuple(replace(each, name="node-9" if each.raft_id == 2 else each.name) for each in view.raft.voters)
    for other in (
        replace(view, farm=replace(view.farm, demo=False)),
        replace(view, raft=replace(view.raft, voters=others)),
    ):
        assert "--config" not in verdict(other).advice


def test_follower_without_gossip_counts_no_server_down() -> None:
    view = dead_in_gossip(healthy(2), "node-1", "node-3")
    old = replace(view, reports=tuple(replace(each, age_ms=58_000) for each in view.reports))
    assert alarms(old).keys() == {"udp-blocked"}
    assert "node-3" not in alarms(old)["udp-blocked"].text


def test_leader_without_gossip_counts_unresponsive_follower() -> None:
    view = with_status(dead_in_gossip(healthy(), "node-2"), node_3=MemberStatus.DEAD)
    assert alarms(view).keys() == {"udp-blocked", "servers-down"}


@pytest.mark.parametrize("number", [1, 2])
def test_server_reached_only_by_raft_is_udp_blocked(number: int) -> None:
    view = healthy(number)
    view = replace(view, members=tuple(each for each in view.members if each.is_self))
    assert "udp-blocked" in alarms(view)


@pytest.mark.parametrize("number", [1, 2])
def test_ended_server_is_not_udp_blocked(number: int) -> None:
    ended = with_status(dead_in_gossip(healthy(number), "node-3"), node_3=MemberStatus.DEAD)
    ended = replace(ended, reports=tuple(replace(each, age_ms=62_000) for each in ended.reports))
    assert alarms(ended).keys() == {"servers-down"}


def test_servers_without_gossip_are_never_udp_blocked() -> None:
    view = dead_in_gossip(healthy(), "node-2")
    assert "udp-blocked" not in alarms(
        replace(view, members=tuple(replace(each, address=None) for each in view.members))
    )


@pytest.mark.parametrize("number", [1, 2])
def test_reachable_server_without_report_raises_alarm(number: int) -> None:
    view = healthy(number)
    view = replace(view, reports=tuple(replace(each, stale=each.raft_id == 3) for each in view.reports))
    found = alarms(view)
    assert found.keys() == {"reports-missing"}
    assert "node-3" in found["reports-missing"].text


@pytest.mark.parametrize("missing", ["gossip", "report"])
@pytest.mark.parametrize(("lasts_ms", "count"), [(9_000, 0), (10_000, 1)])
def test_contradiction_counts_after_ten_seconds(missing: str, lasts_ms: int, count: int) -> None:
    """Gossip and Raft contradict each other for a moment after the start of a server or a repair of its connection."""
    watch, view = ContactWatch(), healthy()

    def observe(view: FarmView, at_ms: int) -> int:
        watch.observe(at(view, at_ms))
        return len(watch.udp_blocked) + len(watch.not_reporting)

    contradicting = SOURCES[missing](view)
    assert observe(contradicting, 50_000) == 0
    assert observe(view, 55_000) == 0
    assert observe(contradicting, 60_000) == 0
    assert observe(contradicting, 60_000 + lasts_ms) == count
    assert observe(view, 71_000) == 0


def test_old_report_after_outage_is_not_contact() -> None:
    """After an outage log time may be earlier than the clocks, so an old report seems recent."""
    watch, view = ContactWatch(), dead_in_gossip(healthy(2), "node-3")
    for after_ms in (0, 10_000, 20_000):
        watch.observe(at(view, after_ms, log_time_ms=view.raft.log_time_ms))
    assert watch.udp_blocked == ()
    # Only a report from after the loss in gossip proves contact.
    for after_ms in (20_000, 30_000):
        watch.observe(at(view, after_ms))
    assert list(watch.udp_blocked) == [3]


def test_report_applied_on_return_of_leader_is_not_contact() -> None:
    """A restarted node applies the reports of its time off only with a leader: the server may have stopped since."""
    watch, view = ContactWatch(), dead_in_gossip(healthy(2), "node-3")
    found_ms = view.raft.log_time_ms
    assert found_ms is not None
    without_leader = replace(view, raft=replace(view.raft, leader_id=None), reports=())
    watch.observe(at(without_leader, 0, log_time_ms=found_ms - 60_000))
    for after_ms in (20_000, 30_000, 40_000):
        watch.observe(at(view, after_ms, log_time_ms=found_ms))
    assert watch.udp_blocked == ()


SOURCES: dict[str, Callable[[FarmView], FarmView]] = {
    "gossip": lambda view: dead_in_gossip(view, "node-3"),
    "raft": lambda view: replace(
        view,
        raft=replace(
            view.raft,
            followers=tuple(
                replace(each, last_contact_ms=60_000) if each.raft_id == 3 else each for each in view.raft.followers
            ),
        ),
    ),
    "report": lambda view: replace(
        view, reports=tuple(replace(each, stale=each.raft_id == 3, age_ms=90_000) for each in view.reports)
    ),
}


@each_case("missing", [*SOURCES, ("gossip", "raft"), ("raft", "report"), ("gossip", "report")])
def test_contradicting_sources_raise_alarm(missing: str | tuple[str, ...]) -> None:
    view = healthy()
    for each in (missing,) if isinstance(missing, str) else missing:
        view = SOURCES[each](view)
    found = alarms(view)
    assert found.keys() & {"udp-blocked", "servers-down", "reports-missing"}
    assert all("node-3" in each.text for each in found.values())


def test_farm_of_five_with_one_dead_can_lose_one_more() -> None:
    found = verdict(with_status(healthy(servers=5), node_5=MemberStatus.DEAD))
    assert found.text == "Degraded: node-5 down, can lose 1 more"


def test_server_not_answering_leader_counts_as_lost() -> None:
    view = healthy()
    followers = tuple(
        replace(each, last_contact_ms=3_001) if each.raft_id == 2 else each for each in view.raft.followers
    )
    found = verdict(replace(view, raft=replace(view.raft, followers=followers)))
    assert found.text == "Degraded: node-2 does not answer the leader, can lose none"


def test_server_answering_leader_is_up_despite_gossip() -> None:
    view = healthy()
    members = tuple(replace(each, status=MemberStatus.DEAD) if each.raft_id == 2 else each for each in view.members)
    assert verdict(replace(view, members=members)).can_lose == 1


def test_member_claiming_to_be_server_does_not_count() -> None:
    view = with_status(healthy(2), node_3=MemberStatus.DEAD)
    impostor = replace(
        view.members[2], node_id="ff" * 8, status=MemberStatus.ALIVE, server_role=type(view.members[2].server_role).NONE
    )
    assert verdict(replace(view, members=(*view.members, impostor))).text.startswith("Degraded: node-3 down")


def test_joint_configuration_counts_both_majorities() -> None:
    view = with_status(healthy(2, servers=5), node_5=MemberStatus.DEAD)
    joint = replace(view, raft=replace(view.raft, majorities=((1, 2, 3), (1, 4, 5))))
    assert verdict(joint).can_lose == 0


def test_sole_publisher_or_leaf_limits_can_lose() -> None:
    view = healthy()
    standings = tuple(
        replace(each, inability=None if each.raft_id == 2 else Inability.NO_KEY.value)
        for each in view.publishing[0].standings
    )
    found = verdict(publishing_of(view, standings=standings))
    assert found.text == "Healthy, can lose none of 3: only node-2 can publish"
    entries = tuple(replace(each, name="node-1") for each in view.publishing[0].entries)
    assert verdict(publishing_of(view, entries=entries)).text.endswith("only node-1 has a healthy leaf")
    two = tuple(replace(each, healthy=each.name != "node-3") for each in healthy(servers=5).publishing[0].entries)
    found = verdict(publishing_of(healthy(servers=5), entries=two[:3]))
    assert found.text.endswith("(only node-1 and node-2 have a healthy leaf)")


def test_election_is_outage_after_three_timeouts() -> None:
    view = healthy(2)
    assert verdict(leaderless(view, 200)).kind is VerdictKind.ELECTING
    assert verdict(leaderless(view, 200)).ready
    assert verdict(leaderless(view, 3_001)).kind is VerdictKind.NO_QUORUM


def test_verdict_no_quorum_immediate_without_majority() -> None:
    others_dead = with_status(healthy(2), node_1=MemberStatus.DEAD, node_3=MemberStatus.DEAD)
    found = verdict(leaderless(others_dead, 1))
    assert found.text == "No quorum: the last structure of node-2 is still valid; node-1 down, node-3 down"
    assert (found.severity, found.can_lose, found.ready) == (Severity.CRITICAL, 0, False)


def test_verdict_without_leader_does_not_advise_recover() -> None:
    """The leader may be unable to reach only this node, while the other servers have a quorum."""
    found = verdict(leaderless(healthy(2), 9_000))
    assert found.kind is VerdictKind.NO_QUORUM
    assert found.text.endswith("enough servers run, but this node does not find a leader")
    assert "garlicfarm status" in found.advice
    assert "recover" not in found.advice
    one_dead = with_status(healthy(2), node_1=MemberStatus.DEAD)
    assert verdict(leaderless(one_dead, 9_000)).advice == found.advice
    both_dead = with_status(one_dead, node_3=MemberStatus.DEAD)
    assert "garlicfarm recover" in verdict(leaderless(both_dead, 9_000)).advice


def test_verdict_no_quorum_names_single_publisher() -> None:
    others_dead = with_status(healthy(2), node_1=MemberStatus.DEAD, node_3=MemberStatus.DEAD)
    alone = publishing_of(leaderless(others_dead, 9_000), without_quorum=True, publisher_id=2, publisher_name="node-2")
    assert verdict(alone).text == "No quorum: publishing from node-2 alone; node-1 down, node-3 down"


def test_log_without_clock_entries_means_quorum_lost() -> None:
    view = healthy(2)
    assert verdict(replace(view, raft=replace(view.raft, stands_still=True))).kind is VerdictKind.NO_QUORUM


@each_case(
    ("reason", "text"),
    [
        (Inability.UNATTACHED, "no router attached"),
        (Inability.NO_KEY, "no server holds a signing key"),
        (Inability.OFF, "publishing is switched off"),
        (Inability.KEY_ENDS, "the signing keys have ended"),
        (Inability.STALE, "no server reports"),
        (Inability.CLOCK_OFF, "the clocks are off"),
    ],
)
def test_unable_servers_verdict_gives_reason(reason: Inability, text: str) -> None:
    never = publishing_of(
        unable(healthy(), reason, reason, reason), published_s=None, handed_over_s=None, seconds_to_expiry=None
    )
    assert verdict(never).text == f"Not published: {text}"
    holding = verdict(unable(healthy(), reason, reason, reason))
    assert holding.text == f"No server can publish the next structure: {text}"
    assert (holding.severity, holding.ready) == (Severity.CRITICAL, False)


def test_different_reasons_listed_per_server() -> None:
    found = verdict(unable(healthy(), Inability.NO_KEY, Inability.UNATTACHED, Inability.NO_KEY))
    assert "node-2: it does not have a router" in found.text
    assert "node-3: it does not have a valid signing key" in found.text


def test_ended_structure_is_not_published() -> None:
    found = verdict(publishing_of(healthy(), seconds_to_expiry=-1))
    assert found.text == "Not published: the last structure has ended, and node-2 has not published the next one"


def test_first_structure_due_is_warning() -> None:
    found = verdict(publishing_of(healthy(), published_s=None, handed_over_s=None, seconds_to_expiry=None))
    assert found.text == "Not published yet: node-2 will publish"
    assert (found.severity, found.ready) == (Severity.WARNING, False)


def test_master_with_problem_is_named() -> None:
    view = healthy()
    other = replace(view.publishing[0], master=OTHER_MASTER, seconds_to_expiry=-1)
    reports = tuple(replace(each, masters=(*each.masters, OTHER_MASTER)) for each in view.reports)
    view = replace(view, publishing=(view.publishing[0], other), reports=reports)
    assert verdict(view).text.endswith("(other.b32.i2p)")


def with_hostile_master(view: FarmView, *, own_masters: bool = True) -> FarmView:
    """Return a view whose last server is hostile: it alone reports a second master, whose structure has ended.

    Without `own_masters`, only node-1 reports the farm's master.
    """
    hostile = replace(
        view.publishing[0], master=OTHER_MASTER, seconds_to_expiry=-1, standings=view.publishing[0].standings[-1:]
    )
    masters = {1: view.reports[0].masters, len(view.reports): (OTHER_MASTER,)}
    reports = tuple(
        replace(each, masters=masters.get(each.raft_id, each.masters if own_masters else ())) for each in view.reports
    )
    return replace(view, publishing=(hostile, *view.publishing), reports=reports)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("own_masters", [True, False])
def test_master_of_one_other_server_is_not_the_verdict(number: int, *, own_masters: bool) -> None:
    found = verdict(with_hostile_master(healthy(number, servers=5), own_masters=own_masters))
    assert found.text == f"Degraded: another master ({OTHER_MASTER}) is not published, can lose 2 more"
    assert EXIT_STATUS[found.severity] == 3


def test_replaced_master_degrades_verdict_with_remedy() -> None:
    """Given a master that no server reports any more, then the advice describes both cases."""
    view = healthy(1)
    former = replace(view.publishing[0], master=OTHER_MASTER, seconds_to_expiry=-1, publisher_id=None, standings=())
    found = verdict(replace(view, publishing=(view.publishing[0], former)))
    assert found.text.startswith(f"Degraded: another master ({OTHER_MASTER}) is not published")
    assert found.advice.startswith(
        "start a node that has a signing key of this master; if you have replaced the master"
    )


@pytest.mark.parametrize("own_masters", [True, False])
def test_farm_master_is_verdict_next_to_hostile_master(*, own_masters: bool) -> None:
    ended = publishing_of(healthy(2, servers=5), seconds_to_expiry=-1)
    found = verdict(with_hostile_master(ended, own_masters=own_masters))
    assert found.text.startswith("Not published: the last structure has ended")
    assert OTHER_MASTER not in found.text


def failing(view: FarmView) -> tuple[StandingView, ...]:
    """Return the candidates; the router of the publisher refuses its structures."""
    each = view.publishing[0]
    return tuple(
        replace(one, failure="no session") if one.raft_id == each.publisher_id else one for one in each.standings
    )


def test_accepted_plan_without_hand_over_is_not_published() -> None:
    """If the router of the publisher refuses each structure, the log still accepts one plan after another."""
    view = healthy()
    found = verdict(publishing_of(view, handed_over_s=None, seconds_to_expiry=None, standings=failing(view)))
    assert (found.kind, found.severity) == (VerdictKind.NOT_PUBLISHED, Severity.CRITICAL)
    assert found.text == "Not published: the router of node-2 does not accept the structure"


def test_refusing_router_degrades_while_structure_is_valid() -> None:
    view = healthy()
    found = verdict(publishing_of(view, standings=failing(view)))
    assert found.text.startswith("Degraded: the router of node-2 does not accept the structure")
    assert "`garlicfarm farm` shows why the router did not accept the structure" in found.advice


def test_structure_not_found_by_look_ups_degrades() -> None:
    found = verdict(publishing_of(healthy(), seen=False))
    assert found.text.startswith("Degraded: no router of another node finds the structure of node-2")
    assert "check the router of the publisher" in found.advice


def test_farm_without_masters_is_not_published() -> None:
    assert verdict(replace(healthy(), publishing=())).text == "Not published: no server names a master"
    assert verdict(replace(healthy(), publishing=(), reports=())).text == "Not published: no server has reported yet"


def test_structure_without_healthy_leaf_is_not_healthy() -> None:
    entries = tuple(replace(each, healthy=False) for each in healthy().publishing[0].entries)
    found = verdict(publishing_of(healthy(), entries=entries))
    assert found.text == "Published, but no leaf is healthy: node-1, node-2 and node-3"


def test_unhealthy_leaf_listed_with_faults_and_advice() -> None:
    entries = healthy().publishing[0].entries
    unhealthy = replace(entries[0], healthy=False, faults=("leaseSet", "service"))
    found = verdict(publishing_of(healthy(), entries=(unhealthy, *entries[1:])))
    assert (
        "leaf of node-1 (its lease set is not found and its service does not answer the probe) unhealthy" in found.text
    )
    assert "that the leaf's server tunnel runs" in found.advice
    assert "start the service of the leaf" in found.advice


def test_faults_named_if_all_leaves_are_unhealthy() -> None:
    entries = healthy().publishing[0].entries
    unhealthy = tuple(replace(each, healthy=False, faults=("router",)) for each in entries)
    found = verdict(publishing_of(healthy(), entries=unhealthy))
    assert "no leaf is healthy: node-1 (no router answers)" in found.text
    assert "start the router" in found.advice


def test_publisher_with_refusing_router_is_named() -> None:
    [master] = healthy().publishing
    standings = tuple(
        replace(each, failure="no tunnels" if each.raft_id == master.publisher_id else UNSET)
        for each in master.standings
    )
    found = verdict(
        publishing_of(healthy(), published_s=None, handed_over_s=None, seconds_to_expiry=None, standings=standings)
    )
    assert found.text == f"Not published: the router of {master.publisher_name} does not accept the structure"
    assert "`garlicfarm farm`" in found.advice


def test_unhealthy_leaf_degrades_with_its_server_name() -> None:
    entries = healthy().publishing[0].entries
    found = verdict(publishing_of(healthy(), entries=(replace(entries[0], healthy=False), *entries[1:])))
    assert found.text == "Degraded: leaf of node-1 unhealthy, can lose 1 more"


def unlisted(**changes: Any) -> FarmView:
    """Return a view whose structure does not list the leaf of node-3, which is unhealthy."""
    view = healthy()
    failing = ConditionView("service", holds=False, last_error="Connection refused")
    *others, last = view.reports[:3]
    leaf_changes = {name: value for name, value in changes.items() if name == "excluded"}
    failed = replace(last.leaves[0], healthy=False, faults=("service",), conditions=(failing,), **leaf_changes)
    reported = replace(last, leaves=(failed,), stale=changes.get("stale", False))
    entries = tuple(each for each in view.publishing[0].entries if each.destination != failed.destination)
    return replace(publishing_of(view, entries=entries), reports=(*others, reported))


def test_unlisted_unhealthy_leaf_degrades_with_error() -> None:
    """A structure lists unhealthy leaves only if fewer than half are healthy."""
    found = verdict(unlisted())
    assert "leaf of node-3 (its service does not answer the probe) unhealthy" in found.text
    assert "start the service of the leaf" in found.advice
    assert "(last error of node-3: Connection refused)" in found.advice
    assert "unhealthy" not in verdict(unlisted(excluded=True)).text
    assert "unhealthy" not in verdict(unlisted(stale=True)).text


def test_severe_alarm_degrades() -> None:
    found = verdict(replace(healthy(), alarms=(AlarmView("router-unreachable", "it does not answer", "start it"),)))
    assert found.text == "Degraded: alarm router-unreachable at node-1, can lose 1 more"
    assert found.advice == "start it"


def test_advice_for_leaf_without_router_is_not_repeated() -> None:
    alarm = AlarmView("router-unreachable", "it does not answer", "the remedy of the alarm")
    entries = healthy().publishing[0].entries
    for fault, repeated in (("router", False), ("service", True)):
        view = publishing_of(healthy(), entries=(replace(entries[0], healthy=False, faults=(fault,)), *entries[1:]))
        found = verdict(replace(view, alarms=(alarm,)))
        assert ("the remedy of the alarm" in found.advice) is repeated


@pytest.mark.parametrize("kind", ["disk-full", "disk-unresponsive"])
def test_stalled_log_of_follower_without_disk_degrades(kind: str) -> None:
    view = replace(healthy(2), alarms=(AlarmView(kind, "the disk does not work", "repair it"),))
    still = replace(view, raft=replace(view.raft, stands_still=True))
    found = verdict(still)
    assert found.text == f"Degraded: alarm {kind} at node-2, can lose none"
    assert found.advice == "repair it"
    # If the node does not know a leader, or is the leader, the verdict is that the quorum is lost.
    for lost in (leaderless(still, 60_000), replace(still, raft=replace(still.raft, role=RaftRole.LEADER))):
        assert verdict(lost).text.startswith("No quorum")
        assert verdict(lost).text.endswith("the disk does not work")


def test_verdict_no_quorum_without_address_advises_network() -> None:
    lost = AlarmView("address-gone", "this machine has no longer the address 10.77.0.3", "bring the network up")
    view = replace(healthy(), alarms=(lost,))
    found = verdict(replace(view, raft=replace(view.raft, leader_id=None, leaderless_ms=60_000)))
    assert found.kind is VerdictKind.NO_QUORUM
    assert lost.text in found.text
    assert found.advice == lost.action


def test_verdict_before_creation_counts_missing_nodes() -> None:
    found = verdict(replace(forming_view(), gossip=healthy().gossip))
    assert found.text == "Waiting for 4 of 5 nodes"
    assert (found.can_lose, found.ready) == (None, False)


def test_formation_alarm_is_reason_for_waiting() -> None:
    alarm = AlarmView("formation", "two clusters", "keep one")
    found = verdict(replace(forming_view(), gossip=healthy().gossip, alarms=(alarm,)))
    assert found.text.endswith("see the alarm formation")
    assert found.advice == "keep one"


def test_foreign_key_reported_while_nodes_are_missing() -> None:
    waiting = replace(forming_view(), gossip=replace(healthy().gossip, other_farms=OTHER))
    found = verdict(waiting)
    assert found.text == (
        "Gossip arrives under another farm key from 10.77.0.3:7668 (label 77aa00ff77aa00ff); waiting for 4 of 5 nodes"
    )
    assert waiting.farm.label in found.advice


def test_foreign_key_names_few_of_many_senders() -> None:
    senders = tuple(OtherFarmView(f"10.77.0.{each}:7668", "77aa00ff77aa00ff") for each in range(3, 11))
    found = verdict(replace(forming_view(), gossip=replace(healthy().gossip, other_farms=senders)))
    assert (found.text.count("label"), "and 6 more; waiting" in found.text) == (2, True)


@pytest.mark.parametrize("servers", [1, 3])
def test_healthy_farm_ignores_other_farms(servers: int) -> None:
    view = healthy(servers=servers)
    with_other_farms = replace(view, gossip=replace(view.gossip, other_farms=OTHER))
    assert verdict(with_other_farms).kind is VerdictKind.HEALTHY
    assert [each.alarm for each in concerns_of(with_other_farms)] == [None]


def test_wrong_key_farm_of_one_is_reported_by_farm_without_it() -> None:
    """A node with a wrong key file of a farm of one is complete; the farm that misses the node raises the alarm."""
    alone = replace(healthy(servers=1), gossip=replace(healthy().gossip, other_farms=OTHER))
    waiting = replace(forming_view(), gossip=replace(healthy().gossip, other_farms=OTHER))
    assert [FOREIGN_KEY in {each.alarm for each in concerns_of(view)} for view in (alone, waiting)] == [False, True]


def test_foreign_key_is_alarm_when_server_is_down() -> None:
    view = with_status(healthy(2), node_3=MemberStatus.DEAD)
    found = concerns_of(replace(view, gossip=replace(view.gossip, other_farms=OTHER)))
    assert [each.kind for each in found] == [VerdictKind.DEGRADED, VerdictKind.FOREIGN_KEY]
    assert {each.alarm for each in found} == {SERVERS_DOWN, FOREIGN_KEY}


def test_node_with_only_foreign_gossip_has_wrong_key() -> None:
    others_dead = with_status(healthy(2), node_1=MemberStatus.DEAD, node_3=MemberStatus.DEAD)
    alone = leaderless(replace(others_dead, gossip=replace(others_dead.gossip, other_farms=OTHER)), 9_000)
    assert verdict(alone).kind is VerdictKind.FOREIGN_KEY


def test_removed_server_reports_removal_not_outage() -> None:
    view = leaderless(healthy(2), 90_000)
    voters = tuple(each for each in view.raft.voters if each.raft_id != 2)
    found = verdict(replace(view, raft=replace(view.raft, voters=voters), removed=(2,)))
    assert found.text == "Waiting: an operator has removed this node from the farm"


def test_stopping_node_reports_stopping_first() -> None:
    view = leaderless(healthy(), 90_000)
    assert verdict(replace(view, node=replace(view.node, phase=Phase.STOPPING))).kind is VerdictKind.STOPPING


def test_verdict_kinds_have_meanings_in_precedence_order() -> None:
    assert list(MEANINGS) == [kind for kind in VerdictKind if kind is not VerdictKind.UNKNOWN]
    assert EXIT_STATUS.keys() == set(Severity)
    assert len(set(EXIT_STATUS.values())) == 3


statuses = st.sampled_from(MemberStatus)


@given(
    dead=st.lists(statuses, min_size=3, max_size=3),
    leaderless_ms=st.one_of(st.none(), st.integers(0, 100_000)),
    still=st.booleans(),
    phase=st.sampled_from(Phase),
    seconds=st.one_of(st.none(), st.integers(-10, 900)),
    publisher=st.one_of(st.none(), st.integers(1, 3)),
    healthy_leaves=st.integers(0, 3),
    foreign=st.booleans(),
)
def test_verdict_is_first_concern_by_precedence(
    *,
    dead: list[MemberStatus],
    leaderless_ms: int | None,
    still: bool,
    phase: Phase,
    seconds: int | None,
    publisher: int | None,
    healthy_leaves: int,
    foreign: bool,
) -> None:
    view = healthy(1)
    view = with_status(view, **{f"node_{number}": status for number, status in enumerate(dead, 1) if number > 1})
    if leaderless_ms is not None:
        view = leaderless(view, leaderless_ms)
    entries = tuple(
        MetaEntryView(leaf(each), f"node-{each}", 1, NOW_MS // 1000 + 10, each <= healthy_leaves)
        for each in range(1, 4)
    )
    published: PublishingView = replace(
        view.publishing[0], publisher_id=publisher, seconds_to_expiry=seconds, entries=entries
    )
    view = replace(
        view,
        raft=replace(view.raft, stands_still=still),
        node=replace(view.node, phase=phase),
        publishing=(published,),
        gossip=replace(view.gossip, other_farms=OTHER if foreign else ()),
    )
    found, concerns = verdict(view), concerns_of(view)
    assert found.kind is concerns[0].kind
    order = list(MEANINGS)
    ranked = [order.index(each.kind) for each in concerns if each.alarm != FOREIGN_KEY]
    assert ranked == sorted(ranked)
    assert found.text
    assert "\n" not in found.text
    assert (found.kind is VerdictKind.HEALTHY) == (len(concerns) == 1 and found.severity is Severity.OK)


@pytest.mark.parametrize("phase", [Phase.OBSERVER, Phase.FOUNDED])
def test_node_of_created_farm_advises_to_wait_for_log(phase: Phase) -> None:
    waiting = replace(healthy(), node=replace(healthy().node, phase=phase))
    found = verdict(replace(waiting, raft=replace(waiting.raft, role=RaftRole.NONE)))
    assert found.kind is VerdictKind.WAITING
    assert found.advice.startswith("wait until this node has ")


def test_waiting_node_with_retired_key_advises_export() -> None:
    """With alarms of formation and of the key, the remedy of the key comes first: the node cannot read any message."""
    alarms = (AlarmView("formation", "waits", "found it"), AlarmView("key-retired", "old key", "export the key"))
    waiting = replace(healthy(), node=replace(healthy().node, phase=Phase.DISCOVERING), alarms=alarms)
    found = verdict(replace(waiting, raft=replace(waiting.raft, role=RaftRole.NONE)))
    assert found.text.endswith("see the alarm key-retired")
    assert found.advice == "export the key"


def test_waiting_node_refused_by_servers_advises_remedy() -> None:
    """After a restart, a removed node does not know its removal: it does not apply its log without a leader."""
    refused = AlarmView("refused-by-peers", "link to node-1: this node was removed", "restore it")
    waiting = replace(healthy(), node=replace(healthy().node, phase=Phase.OBSERVER), alarms=(refused,))
    found = verdict(replace(waiting, raft=replace(waiting.raft, role=RaftRole.NONE)))
    assert found.text == "Waiting for the farm to admit this node: see the alarm refused-by-peers"
    assert found.advice == "restore it"


@pytest.mark.parametrize("reasons", [(), (Inability.NO_KEY,), (Inability.NO_KEY, Inability.OFF)])
def test_verdict_with_able_server_lists_no_reasons(reasons: tuple[Inability, ...]) -> None:
    view = unable(healthy(), *reasons)
    able = StandingView(9, "node-9", preferred=False, score=0, inability=None)
    view = publishing_of(view, standings=(*view.publishing[0].standings, able))
    assert verdict(view).kind is not VerdictKind.NOT_PUBLISHED
    found = verdict(publishing_of(view, entries=(), published_s=None, handed_over_s=None, seconds_to_expiry=None))
    assert found.text == "Not published yet: the farm is about to choose a publisher"


def with_one_unknown(value: object) -> Iterator[object]:
    match value:
        case Struct():
            for field in fields(value):
                held = getattr(value, field.name)
                if field.type is not None and NoneType in get_args(field.type) and held is not None:
                    yield replace(value, **{field.name: None})
                yield from (replace(value, **{field.name: each}) for each in with_one_unknown(held))
        case tuple():
            for at, held in enumerate(value):
                yield from ((*value[:at], each, *value[at + 1 :]) for each in with_one_unknown(held))
        case _:
            pass


VIEWS = {
    "healthy": healthy(),
    "follower": healthy(2),
    "down": with_status(healthy(), node_3=MemberStatus.DEAD),
    "alone": with_status(leaderless(healthy(), 60_000), node_2=MemberStatus.DEAD, node_3=MemberStatus.DEAD),
    "electing": leaderless(healthy(2), 200),
    "unable": unable(healthy(), Inability.NO_KEY, Inability.OFF, Inability.UNATTACHED),
    "forming": forming_view(),
}


@each_case("name", VIEWS)
def test_verdict_with_unknown_value_never_prints_none(name: str) -> None:
    count = 0
    for view in with_one_unknown(VIEWS[name]):
        assert isinstance(view, FarmView)
        count += 1
        for concern in concerns_of(view):
            assert "None" not in f"{concern.text} {concern.advice}"
    assert count
