"""Another node of the farm: gossip's facts about it, and its own signed metadata.

    NodeId, status   by gossip, or by introductions without gossip
    metadata         signed by the node: a claim, which is not binding (two nodes may give one name)
    public key       of its identity: the NodeId is its hash

The log's facts about an identity are separate, and have precedence (`bridge.core.membership.admission.Admitted`).
"""

from enum import Enum, IntEnum

from msgspec import Struct, field

from bridge.core.formation.founding import PUBLIC_KEY_BYTES, FormationNotice


class MemberStatus(Enum):
    """A node's state, as this node sees it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


class RoleHint(IntEnum):
    """A node's role in Raft as it declares it; the configuration in the log decides."""

    OBSERVER = 0
    """Never a founder or a voter."""
    ELIGIBLE = 1
    """Can be a founder, or become a voter."""
    VOTER = 2


class NodeMetadata(Struct, frozen=True, gc=False):
    """One node's own description for the farm."""

    cluster: str
    name: str
    """The node's name."""
    role: RoleHint
    raft_id: int | None = None
    endpoint: str | None = None
    """The address of its Raft server: `tcp://host:port`."""
    fingerprint: bytes | None = None
    """SHA-256 of its TLS certificate; peers pin it."""
    feature_level: int = 1
    notice: FormationNotice = field(default_factory=FormationNotice)
    admissions: tuple[tuple[bytes, int], ...] = ()
    """Node id and Raft id of admitted nodes whose Raft servers do not run yet."""


class FarmMember(Struct, frozen=True, gc=False):
    """One node. A suspect still counts as reachable: it may refute the suspicion."""

    node_id: bytes
    status: MemberStatus
    metadata: NodeMetadata
    credential: bytes = b""
    """The public key of its identity, and a signature.

    Like `signed`, this is the object that gossip keeps, not a copy.
    """
    signed: bytes = b""
    """The bytes that the metadata was decoded from."""
    equivocates: bool = False
    """True if two different signed descriptions of one incarnation exist, so that other nodes see different facts."""

    @property
    def name(self) -> str:
        """The name that it gives itself; names are free to choose and prove nothing."""
        return self.metadata.name

    @property
    def key(self) -> bytes | None:
        """Public key of the member's identity, if it is known."""
        return self.credential[:PUBLIC_KEY_BYTES] or None

    @property
    def notice(self) -> FormationNotice:
        """Notice of formation of the member."""
        return self.metadata.notice

    @property
    def reachable(self) -> bool:
        """True if gossip has marked it neither dead nor left."""
        return self.status in {MemberStatus.ALIVE, MemberStatus.SUSPECT}

    @property
    def serves(self) -> bool:
        """True if its metadata announces a running Raft server."""
        return self.metadata.raft_id is not None

    @property
    def eligible(self) -> bool:
        """True if it can be a founder and a voter."""
        return self.metadata.role is not RoleHint.OBSERVER
