"""Disagreement of gossip (UDP) and Raft (TCP) about a server: one of the two ways between the nodes is blocked.

    gossip                  Raft and the log                            conclusion
    dead, or not received   answers the leader, is the leader, or has   UDP is blocked: `udp_blocked`
                            reported since gossip marked it dead
    alive                   does not answer the leader                  down for the quorum (`bridge.api.verdict`)
    alive                   answers, and its last report is too old     its entries do not arrive: `not_reporting`

A process that has just ended looks like the first row for a moment: gossip marks it dead within seconds, and its last
answer is not much older. After a start, or after a repair of its connection, a server answers by Raft before gossip
marks it alive and before its report is in the log. So `ContactWatch` reports a contradiction after `patience_ms`.
Without this comparison the verdict would follow one source after the other. It would advise operators of a healthy farm
to start its servers again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bridge.api.view import FarmView, MemberView, NodeView, RaftRole, RaftView, ReportView, ServerRole
from bridge.core.formation.member import MemberStatus

UDP_PATIENCE_MS: Final = 10_000
"""Gossip needs about half of this to mark a member dead or alive, and a new node to discover the others."""
REPORT_MARGIN_MS: Final = 5_000
"""A report was made before it was applied, and log time may make a step."""
_SERVERS: Final = frozenset({ServerRole.VOTER, ServerRole.LEARNER})


class ContactWatch:
    """The contradictions that one node has seen in all of its views for `patience_ms`. `observe` takes each view."""

    def __init__(self) -> None:
        self._lost_ms: dict[int, int] = {}
        """Log time when gossip lost each server. After an outage log time may lag."""
        self._since_ms: dict[tuple[str, int], int] = {}
        self.udp_blocked: tuple[int, ...] = ()
        self.not_reporting: tuple[int, ...] = ()

    def observe(self, view: FarmView) -> None:
        """Compare the sources of a view."""
        now_ms = view.node.uptime_ms
        found = {("udp", each) for each in self._udp_blocked(view)}
        found |= {("report", each) for each in not_reporting(view.node, view.raft, view.members, view.reports)}
        self._since_ms = {each: self._since_ms.get(each, now_ms) for each in found}
        lasting = [each for each, since_ms in self._since_ms.items() if now_ms - since_ms >= patience_ms(view.raft)]
        self.udp_blocked = tuple(sorted(raft_id for kind, raft_id in lasting if kind == "udp"))
        self.not_reporting = tuple(sorted(raft_id for kind, raft_id in lasting if kind == "report"))

    def _udp_blocked(self, view: FarmView) -> Iterator[int]:
        """Yield the servers that Raft reaches now, or that have reported since gossip lost them by log time."""
        raft, log_time_ms, known = view.raft, view.raft.log_time_ms, server_members(view.members)
        if log_time_ms is None:
            return
        servers = {each.raft_id for each in (*raft.voters, *raft.learners)}
        lost = {each for each in servers if _silent_ms(known.get(each), view.node) is not None}
        self._lost_ms = {each: self._lost_ms.get(each, log_time_ms) for each in lost}
        heard_ms = {each.raft_id: log_time_ms - each.age_ms for each in view.reports}
        for each in udp_blocked(view.node, raft, view.members, view.reports):
            if each in _answering(raft) or heard_ms.get(each, 0) > self._lost_ms[each] + REPORT_MARGIN_MS:
                yield each


def server_members(members: Iterable[MemberView]) -> dict[int, MemberView]:
    """Return the members that are servers of the group, by Raft id."""
    return {each.raft_id: each for each in members if each.raft_id is not None and each.server_role in _SERVERS}


def patience_ms(raft: RaftView) -> int:
    """Return the shortest contradiction that counts: servers follow an ended leader for an election timeout."""
    return max(UDP_PATIENCE_MS, 2 * raft.election_timeout_ms)


def udp_blocked(
    node: NodeView, raft: RaftView, members: Sequence[MemberView], reports: Sequence[ReportView]
) -> frozenset[int]:
    """Return the servers that gossip has marked dead, although they answer by Raft. Empty without UDP."""
    own = next((each for each in members if each.is_self), None)
    if own is None or own.address is None or raft.role is RaftRole.NONE:
        return frozenset()
    known, answering = server_members(members), _answering(raft)
    reported_ms = {each.raft_id: each.age_ms for each in reports if not each.stale}
    found = set()
    for server in (*raft.voters, *raft.learners):
        if server.raft_id == node.raft_id or server.evicted:
            continue
        silent_ms = _silent_ms(known.get(server.raft_id), node)
        if silent_ms is None:
            continue
        age_ms = reported_ms.get(server.raft_id)
        if server.raft_id in answering or (age_ms is not None and age_ms + REPORT_MARGIN_MS < silent_ms):
            found.add(server.raft_id)
    return frozenset(found)


def not_reporting(
    node: NodeView, raft: RaftView, members: Sequence[MemberView], reports: Sequence[ReportView]
) -> frozenset[int]:
    """Return the servers that gossip marks alive, that answer by Raft, and whose last report is too old.

    This node itself is one of them if its own report is too old.
    """
    alive = {raft_id for raft_id, each in server_members(members).items() if each.status is MemberStatus.ALIVE}
    answering = {*_answering(raft), node.raft_id} if raft.role is RaftRole.LEADER else alive
    configured = {each.raft_id for each in (*raft.voters, *raft.learners) if not each.evicted}
    return frozenset(each.raft_id for each in reports if each.stale and each.raft_id in alive & answering & configured)


def _answering(raft: RaftView) -> frozenset[int]:
    """Return the servers that answer this node: for a leader its followers, for a follower its leader."""
    recent = {
        each.raft_id
        for each in raft.followers
        if each.last_contact_ms is not None and each.last_contact_ms <= raft.election_timeout_ms
    }
    return frozenset(recent if raft.leader_id is None else {*recent, raft.leader_id})


def _silent_ms(member: MemberView | None, node: NodeView) -> int | None:
    """Return the milliseconds since gossip marked a server dead; for an unknown one the uptime, otherwise None."""
    if member is None:
        return node.uptime_ms
    return member.status_age_ms if member.status is MemberStatus.DEAD else None
