"""The farm as each of its nodes sees it.

    FarmView of each node ──▶ ShortView ──▶ its reply to a query by gossip ──▶ PerspectivesAnswer ──▶ disagreements

After a partition, or with a one-way firewall, two nodes have different views. Together, the views of all nodes show
which node is cut off.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct

from bridge.api.json import Document, Record
from bridge.api.observations.history import recorded_members
from bridge.api.view import FarmView, ServerRole, Severity
from bridge.core.formation.member import MemberStatus
from bridge.core.membership.admission import server_label
from bridge.wire.membership.short_view import MASTER_LETTERS, SERVERS_LISTED_MAX, ShortView


class NodePerspective(Record, frozen=True):
    """The farm as one node sees it; null for facts of a node that never replied."""

    name: str
    """Name of the node."""
    node_id: str
    """NodeId of the node."""
    answered: bool
    """True if it replied to the last query."""
    age_ms: int | None = None
    """Milliseconds since its last reply."""
    verdict: str | None = None
    """Kind of its verdict."""
    severity: Severity | None = None
    """Severity of its verdict."""
    leader: str | None = None
    """Name of the leader; null if it does not know one."""
    term: int | None = None
    """Term of the node."""
    commit_index: int | None = None
    """Last committed entry that it knows."""
    members: Mapping[str, MemberStatus] = {}
    """Status of each server in its gossip, by name; a server that does not fit into its reply is missing."""
    publishers: Mapping[str, str | None] = {}
    """Name of the publisher by address of the master; null without one."""


class PerspectivesAnswer(Document, frozen=True):
    """The farm as each node sees it, by a query over gossip."""

    taken_at_ms: int
    """Time of the last query by the node's clock."""
    nodes: tuple[NodePerspective, ...]
    """This node and the servers, then other members, in order of their names; at most 64."""


class Extract(Struct, frozen=True):
    """This node's short view for others, and the names for their replies."""

    short: ShortView
    members: tuple[tuple[str, str], ...]
    """NodeId in hexadecimal and name."""
    names: Mapping[int, str]
    """Names of the servers by Raft id."""
    masters: Mapping[str, str]
    """Addresses of the masters by their first letters."""


_SEVERITIES: Final = {each.value: each for each in Severity}


def extract(view: FarmView) -> Extract:
    """Return the short view of this node, and the names for others'."""
    servers = [
        each
        for each in recorded_members(view)
        if each.raft_id is not None and each.server_role in {ServerRole.VOTER, ServerRole.LEARNER}
    ]
    # The log has the names of a new farm's servers only seconds after its creation.
    names = {each.raft_id: each.name for each in servers if each.raft_id is not None}
    names |= {each.raft_id: each.name for each in (*view.raft.voters, *view.raft.learners) if each.name is not None}
    short = ShortView(
        verdict=view.verdict.kind.value,
        severity=view.verdict.severity.value,
        term=view.raft.term,
        commit_index=view.raft.commit_index,
        leader=view.raft.leader_id,
        statuses={
            each.raft_id: each.status for each in islice(servers, SERVERS_LISTED_MAX) if each.raft_id is not None
        },
        publishers={each.master[:MASTER_LETTERS]: each.publisher_id for each in view.publishing},
    )
    return Extract(
        short=short,
        members=tuple((each.node_id, each.name) for each in recorded_members(view)),
        names=names,
        masters={each.master[:MASTER_LETTERS]: each.master for each in view.publishing},
    )


def perspective(
    own: Extract, member: tuple[str, str], seen: ShortView | None, age_ms: int | None, *, answered: bool
) -> NodePerspective:
    """Return the perspective of a member; `seen` is its last reply, `own` gives the names."""
    node_id, name = member
    if seen is None:
        return NodePerspective(name, node_id, answered=False)

    def label(server: int | None) -> str | None:
        return None if server is None else server_label(server, own.names.get(server))

    return NodePerspective(
        name=name,
        node_id=node_id,
        answered=answered,
        age_ms=age_ms,
        verdict=seen.verdict,
        severity=_SEVERITIES.get(seen.severity, Severity.WARNING),
        leader=label(seen.leader),
        term=seen.term,
        commit_index=seen.commit_index,
        members={label(server) or "": status for server, status in sorted(seen.statuses.items())},
        publishers={own.masters.get(master, f"{master}…"): label(each) for master, each in seen.publishers.items()},
    )


def disagreements(answer: PerspectivesAnswer) -> Iterator[str]:
    """Yield a sentence for each fact about which the replying nodes disagree."""
    replying = [each for each in answer.nodes if each.answered]
    yield from _differing("the leader is", {each.name: each.leader or "unknown" for each in replying})
    for server in dict.fromkeys(name for each in replying for name in each.members):
        seen = {each.name: each.members[server].value for each in replying if server in each.members}
        yield from _differing(f"{server} is", seen)
    for master in dict.fromkeys(name for each in replying for name in each.publishers):
        seen = {each.name: each.publishers[master] or "none" for each in replying if master in each.publishers}
        yield from _differing(f"the publisher of {master} is", seen)


def _differing(subject: str, seen: Mapping[str, str]) -> Iterator[str]:
    values = dict.fromkeys(seen.values())
    if len(values) > 1:
        parts = (f"{value} for {', '.join(name for name, each in seen.items() if each == value)}" for value in values)
        yield f"{subject} {'; '.join(parts)}"
