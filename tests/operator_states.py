"""Made-up views of a farm of three nodes, in states that cost much time with real processes.

The real rules give the verdict and its alarm (`bridge.api.verdict`); only the facts are made up. Used for pictures.
"""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from bridge.api.alarms import ALARMS, by_gravity
from bridge.api.verdict import concerns_of
from bridge.api.view import (
    AlarmView,
    ConditionView,
    FarmView,
    LeafView,
    OtherFarmView,
    RaftRole,
    ServerRole,
    WeightsView,
)
from bridge.api.words import SERVER_FAULT
from bridge.core.formation.member import MemberStatus
from bridge.core.log.records import LeafFault
from bridge.core.publishing.score import Inability
from tests.operator_views import farm_view, forming_view, judged, leaf

SERVERS: Final = 3
CHANGED_MS: Final = 192_000
"""Age of the states."""
UPTIME_MS: Final = 17 * 3_600_000
CHOICES: Final = {
    2: "its score 880 is kept: the best of 3 is 890, of node-1; a change needs a lead of 100 points",
    3: "not chosen: its score 870 is below the 880 of node-2",
}
NO_ROUTER: Final = Inability.UNATTACHED.value
ROUTER_ERROR: Final = "127.0.0.1:7654: connection refused"


@dataclass(frozen=True, slots=True)
class State:
    """One state, as one node sees it."""

    caption: str
    view: FarmView
    silent: tuple[int, ...] = ()
    """Numbers of the nodes that do not answer this node."""


def healthy(*, leader: int = 1) -> FarmView:
    view = farm_view(leader=leader, servers=SERVERS)
    raft = replace(
        view.raft,
        learners=(),
        waits=(),
        links=tuple(replace(each, connected=True) for each in view.raft.links),
        followers=tuple(replace(each, lag_entries=0, last_contact_ms=40) for each in view.raft.followers),
    )
    publishing = tuple(
        replace(
            each,
            entries=tuple(replace(entry, healthy=True) for entry in each.entries),
            reason=CHOICES[2],
            standings=tuple(
                replace(one, inability=None, choice=CHOICES.get(one.raft_id, one.choice)) for one in each.standings
            ),
        )
        for each in view.publishing
    )
    gossip = replace(view.gossip, other_farms=())
    reports = tuple(
        replace(
            each,
            attached=True,
            leaves=tuple(
                replace(one, conditions=tuple(map(_in_this_run, one.conditions or ()))) for one in each.leaves
            ),
        )
        for each in view.reports
    )
    return judged(
        replace(
            view,
            node=replace(view.node, uptime_ms=UPTIME_MS),
            gossip=gossip,
            raft=raft,
            publishing=publishing,
            reports=reports,
            weights=WeightsView(),
            alarms=(),
            events=(),
        )
    )


def _in_this_run(condition: ConditionView) -> ConditionView:
    return replace(condition, since_ms=min(UPTIME_MS, condition.since_ms or 0))


def states() -> dict[str, State]:
    return {
        "partition": State("A node alone on its side of a partition", with_alarms(_cut_off()), silent=(2, 3)),
        "no-router": State("A node whose router does not answer", with_alarms(_without_router(), "router-unreachable")),
        "foreign-key": State("A new node with the key file of another farm", with_alarms(_with_foreign_key())),
        "full-disk": State("A node with a full disk", with_alarms(healthy(leader=2), "disk-full")),
    }


def moved_to(view: FarmView, now_ms: int) -> FarmView:
    """Return the view with the times that screens show, as if it were taken at `now_ms`."""
    later_ms = now_ms - view.taken_at_ms
    log_time_ms = None if view.raft.log_time_ms is None else view.raft.log_time_ms + later_ms
    publishing = tuple(
        replace(
            each,
            handed_over_s=None if each.handed_over_s is None else each.handed_over_s + later_ms // 1000,
            entries=tuple(replace(one, end_s=one.end_s + later_ms // 1000) for one in each.entries),
        )
        for each in view.publishing
    )
    raft = replace(view.raft, log_time_ms=log_time_ms)
    return replace(view, taken_at_ms=now_ms, raft=raft, publishing=publishing)


def with_alarms(view: FarmView, *kinds: str) -> FarmView:
    """Return the view with its verdict, the alarms of its concerns, and alarms of these kinds."""
    shown = judged(view)
    found = [
        AlarmView(each.alarm.kind, each.text, each.advice)
        for each in concerns_of(shown)
        if each.alarm is not None and each.alarm.kind not in kinds
    ]
    found += [AlarmView(kind, ALARMS[kind].happened, ALARMS[kind].remedy) for kind in kinds]
    return judged(replace(shown, alarms=by_gravity(found)))


def _cut_off() -> FarmView:
    view = healthy()
    missed_s = CHANGED_MS // 1_000 + 20
    members = tuple(
        each if each.is_self else replace(each, status=MemberStatus.DEAD, rtt_ms=None, status_age_ms=CHANGED_MS - 1_000)
        for each in view.members
    )
    raft = replace(
        view.raft,
        role=RaftRole.CANDIDATE,
        leader_id=None,
        leader_name=None,
        leader_endpoint=None,
        leaderless_ms=CHANGED_MS + 2_900,
        stands_still=True,
        followers=(),
        links=tuple(replace(each, connected=False) for each in view.raft.links),
    )
    reports = tuple(
        each if each.raft_id == 1 else replace(each, stale=True, age_ms=CHANGED_MS + 21_000, score=None)
        for each in view.reports
    )
    publishing = tuple(
        replace(
            each,
            seconds_to_expiry=(each.seconds_to_expiry or 0) - missed_s,
            handed_over_s=(each.handed_over_s or 0) - missed_s,
            entries=tuple(
                one if one.name == "node-1" else replace(one, healthy=False, faults=(SERVER_FAULT,))
                for one in (replace(entry, end_s=entry.end_s - missed_s) for entry in each.entries)
            ),
        )
        for each in view.publishing
    )
    return replace(view, members=members, raft=raft, reports=reports, publishing=publishing)


def _without_router() -> FarmView:
    view = healthy()
    failed = (
        ConditionView("router", holds=False, since_ms=CHANGED_MS, last_error=ROUTER_ERROR, failures=2),
        ConditionView("service", holds=True, since_ms=UPTIME_MS, failures=0),
    )
    faults = (LeafFault.ROUTER.value,)
    broken = LeafView(leaf(1), None, healthy=False, load=0, excluded=False, faults=faults, conditions=failed)
    reports = tuple(
        replace(each, attached=False, healthy_destinations=0, leaves=(broken,)) if each.raft_id == 1 else each
        for each in view.reports
    )
    without_first = {2: "its score 880 is the best of 2", 3: CHOICES[3]}
    publishing = tuple(
        replace(
            each,
            entries=tuple(
                replace(one, healthy=False, faults=faults) if one.name == "node-1" else one for one in each.entries
            ),
            reason=without_first[2],
            standings=tuple(
                replace(one, inability=NO_ROUTER, choice=f"cannot publish: {NO_ROUTER}", standby=False)
                if one.raft_id == 1
                else replace(one, choice=without_first[one.raft_id])
                for one in each.standings
            ),
        )
        for each in view.publishing
    )
    return replace(view, reports=reports, publishing=publishing)


def _with_foreign_key() -> FarmView:
    view = forming_view()
    members = tuple(replace(each, raft_id=None, server_role=ServerRole.NONE) for each in view.members)
    senders = tuple(OtherFarmView(f"192.168.7.{each}:7668", "77aa00ff77aa00ff") for each in (5, 6))
    gossip = replace(view.gossip, other_farms=senders)
    return replace(view, gossip=gossip, members=members, weights=WeightsView())
