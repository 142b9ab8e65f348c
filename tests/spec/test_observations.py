"""The states and figures that a node takes from its view, and the perspectives of nodes."""

from typing import Any

from msgspec.structs import replace

from bridge.api.farm_facts import outdated_reports
from bridge.api.observations.history import EXCLUDED, NOT_REPORTED, figures, history_answer, observed
from bridge.api.observations.perspectives import PerspectivesAnswer, disagreements, extract, perspective
from bridge.api.view import AlarmView, FarmView, ServerRole, Severity
from bridge.core.formation.member import MemberStatus
from bridge.core.history.records import LEAVES_MAX, NODES_MAX, ROWS_MAX, Row, RowKind, SeriesKind, State
from bridge.core.history.timeline import Span, Timeline
from tests.operator_views import MASTER, NOW_MS, farm_view
from tests.spec.test_verdict import healthy, leaderless, with_status

VIEW = farm_view(1)


def state_of(view: FarmView, kind: RowKind, name: str | None = None) -> State | None:
    found = {(row.kind, row.name): state for row, state in observed(view).items()}
    return found.get((kind, name))


def test_observed_rows_cover_the_farm() -> None:
    kinds = [row.kind for row in observed(VIEW)]
    assert list(dict.fromkeys(kinds)) == [
        RowKind.VERDICT,
        RowKind.LEADER,
        RowKind.PUBLISHER,
        RowKind.ALARM,
        RowKind.NODE,
        RowKind.LEAF,
    ]
    assert state_of(VIEW, RowKind.LEADER) == State("node-1", 0)
    assert state_of(VIEW, RowKind.PUBLISHER, MASTER) is not None
    assert state_of(VIEW, RowKind.NODE, "node-5") == State("dead", 2)


def test_observed_farm_without_leader_is_critical() -> None:
    assert state_of(leaderless(healthy(2), 3_001), RowKind.LEADER) == State("", 2)


def test_observed_before_founding_lacks_leader_row() -> None:
    view = replace(VIEW, raft=replace(VIEW.raft, voters=(), leader_id=None, leader_name=None))
    assert state_of(view, RowKind.LEADER) is None


def test_observed_alarm_text_omits_running_figures() -> None:
    alarms = [AlarmView("clock", f"the clock differs by {each} ms", "set it") for each in (213, 4_711)]
    first, second = (observed(replace(VIEW, alarms=(each,))) for each in alarms)
    assert first == second


def test_observed_leaf_states_follow_report() -> None:
    report = VIEW.reports[0]
    leaf = report.leaves[0]

    def state(**changes: Any) -> State:
        leaves = (replace(leaf, **{key: each for key, each in changes.items() if key != "stale"}),)
        reports = (replace(report, leaves=leaves, stale=bool(changes.get("stale"))),)
        found = observed(replace(VIEW, reports=reports))
        return next(each for row, each in found.items() if row.kind is RowKind.LEAF)

    assert state(healthy=True, excluded=False) == State("healthy", 0)
    assert state(healthy=True, excluded=True) == State(EXCLUDED, 1)
    assert state(healthy=False, faults=("service",)) == State("its service does not answer the probe", 2)
    assert state(healthy=True, stale=True) == State(NOT_REPORTED, 2)


def test_observed_leaf_of_dead_member_counts_as_not_reported() -> None:
    states = [state for row, state in observed(VIEW).items() if row.kind is RowKind.LEAF]
    assert states[3:] == [State("healthy", 0), State(NOT_REPORTED, 2)]
    left = observed(with_status(VIEW, node_3=MemberStatus.LEFT))
    assert list(left.values()).count(State(NOT_REPORTED, 2)) == 2
    blocked = observed(replace(VIEW, raft=replace(VIEW.raft, udp_blocked=(5,))))
    assert State(NOT_REPORTED, 2) not in blocked.values()
    impostor = replace(VIEW.members[0], node_id="ff" * 8, status=MemberStatus.DEAD)
    assert outdated_reports(replace(VIEW, members=(impostor, *VIEW.members, impostor))) == {5}


def test_observed_rows_are_bounded() -> None:
    members = tuple(replace(VIEW.members[0], name=f"n{each}", is_self=False) for each in range(500))
    leaves = tuple(replace(VIEW.reports[0].leaves[0], destination=f"{each}.b32.i2p") for each in range(500))
    view = replace(VIEW, members=members, reports=(replace(VIEW.reports[0], leaves=leaves),))
    rows = observed(view)
    assert len(rows) <= ROWS_MAX
    assert sum(row.kind is RowKind.NODE for row in rows) == NODES_MAX
    assert sum(row.kind is RowKind.LEAF for row in rows) == LEAVES_MAX
    assert len(dict(figures(view))) <= 2 * NODES_MAX


def test_observed_member_of_unknown_name_is_left_out() -> None:
    """The name arrives a moment later: a row of the NodeId would stay in the timeline for a day."""
    first, second, *others = VIEW.members
    view = replace(VIEW, members=(first, replace(second, name=second.node_id), *others))
    assert {row.name for row in observed(VIEW)} - {row.name for row in observed(view)} == {second.name}
    assert not any(row.name == second.node_id for row in (*observed(view), *dict(figures(view))))


def test_observed_second_member_of_one_name_is_left_out() -> None:
    impostor = replace(VIEW.members[1], name="node-1", status=MemberStatus.DEAD, node_id="ff" * 8)
    view = replace(VIEW, members=(*VIEW.members, impostor))
    assert state_of(view, RowKind.NODE, "node-1") == State("alive", 0)


def test_second_member_of_one_name_does_not_change_figures() -> None:
    impostor = replace(VIEW.members[1], name="node-2", rtt_ms=9_999.0, is_self=False, server_role=ServerRole.NONE)
    view = replace(VIEW, members=(*VIEW.members, impostor))
    assert list(figures(view)) == list(figures(VIEW))


def test_figures_have_round_trips_and_lags() -> None:
    found = dict(figures(VIEW))
    kinds = {row.kind for row in found}
    assert kinds == {SeriesKind.ROUND_TRIP, SeriesKind.FOLLOWER_LAG}


def test_history_answer_names_units_and_severities() -> None:
    row, series = Row(RowKind.NODE, "oslo"), Row(SeriesKind.FOLLOWER_LAG, "oslo")
    timeline = Timeline(1, 9, 4, ((row, (Span(2, 3, State("dead", 2)),)),), ((series, (1.0, None)),), 5, 6)
    answer = history_answer("kyoto", timeline)
    assert answer.rows[0].spans[0].severity is Severity.CRITICAL
    assert answer.series[0].unit == "entries"
    assert (answer.node, answer.spans_left_out, answer.rows_left_out) == ("kyoto", 5, 6)


def perspectives(*views: FarmView) -> PerspectivesAnswer:
    """Return the perspectives of nodes with these views; the first one is queried."""
    own = extract(views[0])
    nodes = [
        perspective(own, (view.node.node_id, view.node.name), extract(view).short, 0, answered=True) for view in views
    ]
    return PerspectivesAnswer(NOW_MS, tuple(nodes))


def test_perspectives_of_new_farm_have_names_of_members() -> None:
    """The log has the names of founders only some seconds after the creation."""
    voters = tuple(replace(each, name=None) for each in VIEW.raft.voters)
    unnamed = replace(VIEW, raft=replace(VIEW.raft, voters=voters, learners=()))
    [found] = perspectives(unnamed).nodes
    assert found.leader == "node-1"
    assert sorted(found.members) == sorted(each.name for each in VIEW.members)


def test_equal_perspectives_do_not_differ() -> None:
    assert list(disagreements(perspectives(farm_view(1), farm_view(2)))) == []


def test_perspectives_report_each_difference() -> None:
    cut_off = with_status(farm_view(2), node_1=MemberStatus.DEAD)
    cut_off = replace(cut_off, raft=replace(cut_off.raft, leader_id=None, leader_name=None))
    assert list(disagreements(perspectives(farm_view(1), cut_off))) == [
        "the leader is node-1 for node-1; unknown for node-2",
        "node-1 is alive for node-1; dead for node-2",
    ]


def test_perspective_without_reply_lacks_facts() -> None:
    found = perspective(extract(VIEW), ("ab", "node-9"), None, None, answered=False)
    assert (found.answered, found.verdict, found.term) == (False, None, None)
