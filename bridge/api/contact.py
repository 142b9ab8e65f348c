"""Disagreement of gossip (UDP) and Raft (TCP) about a server: one of the two ways between the nodes is blocked.

    gossip                  Raft and the log                            conclusion
    dead, or not received   answers the leader, is the leader, or has   UDP is blocked: `udp_blocked`
                            reported since gossip marked it dead
    alive                   does not answer the leader                  down for the quorum (`bridge.api.verdict`)
    alive                   answers, and its last report is too old     its entries do not arrive: `not_reporting`

A process that has just ended looks like the first row for a moment: gossip marks it dead within seconds, and its last
answer is not much older. So the verdict of gossip must be at least `patience_ms` old, while the answer is newer than an
election timeout. Without this comparison the verdict would follow one source after the other. It would advise operators
of a healthy farm to start its servers again.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from bridge.api.view import MemberView, NodeView, RaftRole, RaftView, ReportView, ServerRole
from bridge.core.formation.member import MemberStatus

UDP_PATIENCE_MS: Final = 10_000
"""Gossip needs about half of this to mark a member dead, and a new node to discover the others."""
REPORT_MARGIN_MS: Final = 5_000
"""A report was made before it was applied, and log time may make a step."""
_SERVERS: Final = frozenset({ServerRole.VOTER, ServerRole.LEARNER})


def server_members(members: Iterable[MemberView]) -> dict[int, MemberView]:
    """Return the members that are servers of the group, by Raft id."""
    return {each.raft_id: each for each in members if each.raft_id is not None and each.server_role in _SERVERS}


def patience_ms(raft: RaftView) -> int:
    """Return the least age of gossip's verdict: servers follow an ended leader until an election timeout is over."""
    return max(UDP_PATIENCE_MS, 2 * raft.election_timeout_ms)


def udp_blocked(
    node: NodeView, raft: RaftView, members: Sequence[MemberView], reports: Sequence[ReportView], for_ms: int
) -> frozenset[int]:
    """Return the servers that gossip has marked dead for `for_ms`, although they answer by Raft. Empty without UDP."""
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
        if silent_ms is None or silent_ms < for_ms:
            continue
        age_ms = reported_ms.get(server.raft_id)
        if server.raft_id in answering or (age_ms is not None and age_ms + REPORT_MARGIN_MS < silent_ms):
            found.add(server.raft_id)
    return frozenset(found)


def not_reporting(
    node: NodeView, raft: RaftView, members: Sequence[MemberView], reports: Sequence[ReportView]
) -> frozenset[int]:
    """Return the servers that gossip marks alive, that answer by Raft, and whose last report is too old."""
    alive = {
        raft_id
        for raft_id, each in server_members(members).items()
        if each.status is MemberStatus.ALIVE and raft_id != node.raft_id
    }
    answering = _answering(raft) if raft.role is RaftRole.LEADER else alive
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
