"""The servers in one view: contradictions between gossip (UDP), Raft (TCP) and the log; the verdict's inputs.

    gossip                  Raft and the log                            conclusion
    dead, or not listed     answers the leader, is the leader, or has   UDP is blocked: `udp_blocked`
                            reported since gossip marked it dead
    alive                   does not answer the leader                  down for the quorum (`FarmFacts`)
    alive                   answers, and its last report is too old     its entries do not arrive: `not_reporting`

A process that has just ended matches the first row for a moment: gossip marks it dead while its last reply to Raft is
recent. After a start or a network outage, a server answers by Raft before gossip marks it alive and before its report
is in the log. So `ContactWatch` reports a contradiction only after `patience_ms`.

*Failed servers.* Gossip decides whether a server's process is up. On the leader, Raft contact decides whether the
server counts toward the majority. A server whose Raft port is blocked is alive in gossip, but does not count toward the
quorum. Only admitted identities count as servers, regardless of a member's metadata.

*Masters* (`_masters`). A hostile member may report any master. So only the masters of this node, and masters in the
reports of several servers, decide the kind of the verdict.

*Tolerated failures* (`can_lose`) depend on the signing keys as well as on the votes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from bridge.api.alarms import DISK_FULL, DISK_UNRESPONSIVE
from bridge.api.view import (
    FarmView,
    MemberView,
    NodeView,
    PublishingView,
    RaftRole,
    RaftView,
    ReportView,
    ServerRole,
    VoterView,
    counted_members,
)
from bridge.core.formation.member import MemberStatus
from bridge.core.membership.admission import server_label

UDP_PATIENCE_MS: Final = 10_000
"""Gossip needs about half of this time to mark a member dead or alive, and a new node to discover the others."""
REPORT_MARGIN_MS: Final = 5_000
"""A report counts as later than a server's death in gossip only if it is later by more than this margin.

A report is made before it is applied, and log time may then advance by a step.
"""
_SERVERS: Final = frozenset({ServerRole.VOTER, ServerRole.LEARNER})
PATIENCE_ELECTIONS = 3
"""Number of election timeouts without contact until a server counts as cut off from a majority.

The shortest election timeout counts. A server has contact if it knows a leader; a leader has contact with a follower
that replies. One timeout may pass normally, and another may follow a split vote.
"""
EVICTED = "evicted"
DISK_FAULTS = frozenset({DISK_FULL.kind, DISK_UNRESPONSIVE.kind})
A_PUBLISHER = "a server that can publish"
A_HEALTHY_LEAF = "a healthy leaf"
_VERBS: Mapping[str, tuple[str, str]] = {
    A_PUBLISHER: ("can publish", "can publish"),
    A_HEALTHY_LEAF: ("has a healthy leaf", "have a healthy leaf"),
}
"""The verbs after one name, and after several."""


class ContactWatch:
    """The contradictions that one node has seen in all of its views for `patience_ms`. `observe` takes each view."""

    def __init__(self) -> None:
        self._lost_ms: dict[int, int] = {}
        """Log time when gossip lost each server, or when this node found a leader again. Before, log time may lag."""
        self._had_leader = False
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
        """Yield the servers that Raft reaches now, or that by log time have reported since gossip lost them."""
        raft, log_time_ms, known = view.raft, view.raft.log_time_ms, server_members(view.members)
        if log_time_ms is None:
            return
        servers = {each.raft_id for each in (*raft.voters, *raft.learners)}
        lost = {each for each in servers if _silent_ms(known.get(each), view.node) is not None}
        # Without a leader, this node's log time is old. After the return of a leader, even reports from before a loss
        # may be later than that log time. So until then, each look sets the time of a loss again.
        since_ms = self._lost_ms if self._had_leader and raft.leader_id is not None else {}
        self._had_leader = raft.leader_id is not None
        self._lost_ms = {each: since_ms.get(each, log_time_ms) for each in lost}
        reported_ms = {each.raft_id: log_time_ms - each.age_ms for each in view.reports}
        for each in udp_blocked(view.node, raft, view.members, view.reports):
            if each in _answering(raft) or reported_ms.get(each, 0) > self._lost_ms[each] + REPORT_MARGIN_MS:
                yield each


def server_members(members: Iterable[MemberView]) -> dict[int, MemberView]:
    """Return the members that are servers of the group, by Raft id."""
    return {each.raft_id: each for each in members if each.raft_id is not None and each.server_role in _SERVERS}


def outdated_reports(view: FarmView) -> frozenset[int]:
    """Return the servers whose report is too old, or was sent before they died or left.

    A server that is dead only to gossip still reports.
    """
    up, down = set[int](), set[int]()
    for each in view.members:
        if each.raft_id is not None and each.server_role is not ServerRole.NONE:
            (down if each.status in {MemberStatus.DEAD, MemberStatus.LEFT} else up).add(each.raft_id)
    down -= {*up, *view.raft.udp_blocked}
    return frozenset(each.raft_id for each in view.reports if each.stale or each.raft_id in down)


def patience_ms(raft: RaftView) -> int:
    """Return the shortest duration of a reported contradiction: servers may follow a stopped leader for this time."""
    return max(UDP_PATIENCE_MS, 2 * raft.election_timeout_ms)


def udp_blocked(
    node: NodeView, raft: RaftView, members: Sequence[MemberView], reports: Sequence[ReportView]
) -> frozenset[int]:
    """Return the servers that are dead to gossip, and that answer by Raft or have reported since.

    The result is empty on a node that uses I2P instead of UDP.
    """
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
    """Return the servers that gossip marks alive and whose last report is too old, possibly this node itself.

    A leader omits followers that do not answer it.
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
    """Return the milliseconds since gossip marked a server dead.

    For a server unknown to gossip, return the uptime of this node; for any other server, None.
    """
    if member is None:
        return node.uptime_ms
    return member.status_age_ms if member.status is MemberStatus.DEAD else None


class FarmFacts:
    """Inputs of the rules, computed once from a view."""

    def __init__(self, view: FarmView) -> None:
        self.view = view
        raft = view.raft
        servers = {server.raft_id for server in (*raft.voters, *raft.learners)}
        self.is_server = raft.role is not RaftRole.NONE and view.node.raft_id in servers
        self.publishing, self.other_publishing = _masters(view)
        self._members = server_members(view.members)
        self._silent = self._silent_followers()
        self.udp_blocked = frozenset(raft.udp_blocked if self.is_server else ())
        self.not_reporting = frozenset(raft.not_reporting if self.is_server else ())
        self.others_alive = any(
            member.status in {MemberStatus.ALIVE, MemberStatus.SUSPECT}
            for member in counted_members(view)
            if not member.is_self
        )
        self.has_disk = not any(each.kind in DISK_FAULTS for each in view.alarms)
        self.down = self._down()
        self.margin = self._margin()
        self.can_lose, self.limit = self._losable()

    @property
    def down_text(self) -> str:
        """Return `node-2 down, node-3 left`."""
        return ", ".join(f"{name} {why}" for name, why in self.down.values())

    def names(self, raft_ids: AbstractSet[int]) -> str:
        """Return `node-2 and node-3`: the names of these servers."""
        servers = (*self.view.raft.voters, *self.view.raft.learners)
        return listed([name_of(each) for each in servers if each.raft_id in raft_ids])

    def _silent_followers(self) -> frozenset[int]:
        """Return the servers that do not answer the leader; empty on other nodes."""
        limit_ms = PATIENCE_ELECTIONS * self.view.raft.election_timeout_ms
        return frozenset(
            each.raft_id
            for each in self.view.raft.followers
            if each.last_contact_ms is not None and each.last_contact_ms > limit_ms > 0
        )

    def _down(self) -> dict[int, tuple[str, str]]:
        """Map the Raft id of each failed server to its name and the reason."""
        found: dict[int, tuple[str, str]] = {}
        raft = self.view.raft
        answering = {
            each.raft_id
            for each in raft.followers
            if each.last_contact_ms is not None and each.raft_id not in self._silent
        }
        # If this follower does not receive any UDP, its gossip does not show which servers are down.
        is_deaf = bool(self.udp_blocked) and not self.others_alive and raft.role is not RaftRole.LEADER
        for server in (*raft.voters, *raft.learners):
            if is_deaf and not server.evicted:
                continue
            if server.raft_id in {self.view.node.raft_id, raft.leader_id, *self.udp_blocked}:
                continue
            why = self._why_down(self._members.get(server.raft_id), server)
            if why is not None and server.raft_id not in answering:
                found[server.raft_id] = (name_of(server), why)
        return found

    def _why_down(self, member: MemberView | None, server: VoterView) -> str | None:
        if server.evicted:
            return EVICTED
        if member is None:
            return "not seen by gossip"
        match member.status:
            case MemberStatus.DEAD:
                return "down"
            case MemberStatus.LEFT:
                return "left"
            case MemberStatus.ALIVE | MemberStatus.SUSPECT:
                return "does not answer the leader" if server.raft_id in self._silent else None

    def _margin(self) -> int:
        """Return the number of running voters above a majority; negative without a majority."""
        raft = self.view.raft
        lost = self.down.keys() | (set() if self.has_disk else {self.view.node.raft_id})
        majorities: Sequence[Sequence[int]] = raft.majorities or ([each.raft_id for each in raft.voters],)
        return min(sum(each not in lost for each in voters) - (len(voters) // 2 + 1) for voters in majorities)

    def _losable(self) -> tuple[int, str]:
        """Return the number of servers that may fail, and the text of a limit other than the quorum, if any."""
        can_lose, limit = max(0, self.margin), ""
        for names, what in self.needed():
            if len(names) - 1 < can_lose:
                verb = _VERBS[what][len(names) > 1]
                can_lose, limit = max(0, len(names) - 1), f"only {listed(sorted(names))} {verb}" if names else ""
        return can_lose, limit

    def needed(self) -> Iterator[tuple[set[str], str]]:
        """For each master, yield the servers that can publish it, then the servers with a healthy leaf, by name.

        The farm needs at least one server in each set.
        """
        for each in self.publishing:
            publishers = {
                server_label(standing.raft_id, standing.name)
                for standing in each.standings
                if standing.inability is None and standing.raft_id not in self.down
            }
            yield publishers, A_PUBLISHER
            yield {entry.name or entry.destination for entry in each.entries if entry.healthy}, A_HEALTHY_LEAF

    @property
    def quorum_is_lost(self) -> bool:
        """Return True if nothing can be committed, as this node sees it.

        If this follower's disk does not work, its log does not advance even if the farm has a quorum.
        """
        raft = self.view.raft
        if raft.stands_still and (self.has_disk or raft.leader_id is None or raft.role is RaftRole.LEADER):
            return True
        if raft.leader_id is not None or raft.leaderless_ms is None:
            return False
        return self.margin < 0 or raft.leaderless_ms > PATIENCE_ELECTIONS * raft.election_timeout_ms


def name_of(server: VoterView) -> str:
    """Return the name of a server of the configuration."""
    return server_label(server.raft_id, server.name)


def _masters(view: FarmView) -> tuple[tuple[PublishingView, ...], tuple[PublishingView, ...]]:
    """Return the masters that decide the verdict, and the others.

    If this node lacks a master and each master has only one server, the masters of the server with the lowest Raft id
    decide. Ids are assigned in the order of admission, so a later member cannot displace these masters.
    """
    servers: dict[str, set[int]] = {each.master: set() for each in view.publishing}
    for report in view.reports:
        named = {*report.masters, *(leaf.master for leaf in report.leaves)}
        for master in servers.keys() & named:
            servers[master].add(report.raft_id)
    first = min((raft_id for found in servers.values() for raft_id in found), default=None)
    deciding = {each for each, found in servers.items() if view.node.raft_id in found or len(found) > 1}
    deciding = deciding or {each for each, found in servers.items() if first in found} or set(servers)
    return (
        tuple(each for each in view.publishing if each.master in deciding),
        tuple(each for each in view.publishing if each.master not in deciding),
    )


def listed(names: Sequence[str]) -> str:
    """Return `node-1, node-2 and node-3`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
