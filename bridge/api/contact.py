"""Where gossip (UDP) and Raft (TCP) disagree about a server: one of the two ways between the nodes is blocked.

    gossip                  Raft and the log                            what it is
    dead, or not received   answers the leader, is the leader, or has   UDP is blocked: `udp_blocked`
                            reported since gossip gave it up
    alive                   does not answer the leader                  down for the quorum (`bridge.api.verdict`)
    alive                   answers, and has not reported lately        its entries do not arrive: `not_reporting`

A process that has just ended looks like the first row for a moment: gossip gives it up within seconds, and its last
answer is not much older. So the verdict of gossip must have stood for `patience_ms`, while the answer is newer than an
election timeout. Without this comparison the verdict follows one source after the other, and advises operators of a
healthy farm to start its servers again.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from bridge.api.view import MemberView, NodeView, RaftRole, RaftView, ReportView, ServerRole
from bridge.core.formation.member import MemberStatus

UDP_PATIENCE_MS: Final = 10_000
"""Gossip takes about half of it to give a member up, and a node that starts to hear of the others."""
REPORT_MARGIN_MS: Final = 5_000
"""A report was made before it was applied, and log time may make a step."""
_SERVERS: Final = frozenset({ServerRole.VOTER, ServerRole.LEARNER})


def server_members(members: Iterable[MemberView]) -> dict[int, MemberView]:
    """The members that are servers of the group, by Raft id."""
    return {each.raft_id: each for each in members if each.raft_id is not None and each.server_role in _SERVERS}


def patience_ms(raft: RaftView) -> int:
    """How long gossip's verdict must have stood: a leader that ended is followed until an election timeout is over."""
    return max(UDP_PATIENCE_MS, 2 * raft.election_timeout_ms)


def udp_blocked(
    node: NodeView, raft: RaftView, members: Sequence[MemberView], reports: Sequence[ReportView], for_ms: int
) -> frozenset[int]:
    """The servers that gossip has given up for `for_ms`, although they answer by Raft. Empty where there is no UDP."""
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
    """The servers that gossip holds for alive, that Raft does not miss, and whose last report is too old."""
    alive = {
        raft_id
        for raft_id, each in server_members(members).items()
        if each.status is MemberStatus.ALIVE and raft_id != node.raft_id
    }
    answering = _answering(raft) if raft.role is RaftRole.LEADER else alive
    configured = {each.raft_id for each in (*raft.voters, *raft.learners) if not each.evicted}
    return frozenset(each.raft_id for each in reports if each.stale and each.raft_id in alive & answering & configured)


def _answering(raft: RaftView) -> frozenset[int]:
    """The servers whose answers this node has: as the leader those of its followers, as a follower its leader."""
    recent = {
        each.raft_id
        for each in raft.followers
        if each.last_contact_ms is not None and each.last_contact_ms <= raft.election_timeout_ms
    }
    return frozenset(recent if raft.leader_id is None else {*recent, raft.leader_id})


def _silent_ms(member: MemberView | None, node: NodeView) -> int | None:
    """For how long gossip has given a server up; None if it has not."""
    if member is None:
        return node.uptime_ms
    return member.status_age_ms if member.status is MemberStatus.DEAD else None
