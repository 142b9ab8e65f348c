"""What a `Swim` says about itself to operators: plain data, computed once for every surface."""

from collections.abc import Mapping
from dataclasses import dataclass

from gossip.core.member import Incarnation, NodeId, NodeInfo, Status
from gossip.core.membership import Membership


@dataclass(frozen=True, slots=True)
class Member:
    """One other member, as this node sees it. `since_ms` is when it got its present status (this core's clock)."""

    info: NodeInfo
    status: Status
    incarnation: Incarnation
    is_peer: bool
    since_ms: int
    round_trip_ms: int | None
    peer_count: int | None

    @property
    def node_id(self) -> NodeId:
        """Whose description it is."""
        return self.info.node_id

    @property
    def metadata(self) -> bytes:
        """What the member's application says."""
        return self.info.metadata


def described(membership: Membership) -> tuple[Member, ...]:
    """Every member of a directory."""
    return tuple(
        Member(
            entry.info,
            entry.status,
            entry.incarnation,
            membership.is_peer(entry.node_id),
            entry.since_ms,
            entry.round_trip_ms,
            entry.peer_count,
        )
        for entry in membership.entries()
    )


@dataclass(frozen=True, slots=True)
class Description:
    """This node, the members that it knows, and its counters."""

    self_info: NodeInfo
    members: tuple[Member, ...]
    peer_count: int
    health_score: int
    leaving: bool
    in_maintenance: bool
    halted: bool
    joins_in_flight: int
    seed_count: int
    sent: Mapping[str, int]
    received: Mapping[str, int]
    dropped: Mapping[str, int]
