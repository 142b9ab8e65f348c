"""Another node of the farm: what gossip says of it, and what it says of itself in its signed metadata.

    NodeId, status   by gossip, or by introductions where there is no gossip
    metadata         signed by the node: its own word, which is not binding (two nodes may give one name)
    public key       of its identity: the NodeId is its hash

What the log says of an identity is another thing (`bridge.core.membership.admission.Admitted`), and goes before.
"""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

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
    """It is never a founder or a voter."""
    ELIGIBLE = 1
    """It can be a founder, or become a voter."""
    VOTER = 2


@dataclass(frozen=True, slots=True)
class NodeMetadata:
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


@dataclass(frozen=True, slots=True)
class FarmMember:
    """One node. A suspect still counts as reachable: suspicion is not a verdict."""

    node_id: bytes
    status: MemberStatus
    metadata: NodeMetadata
    credential: bytes = b""
    """Its identity's public key, and a signature. Like `signed`, it is the very object that gossip keeps."""
    signed: bytes = field(default=b"", repr=False)
    """The bytes that the metadata was decoded from."""
    equivocates: bool = False
    """It signed two different descriptions of one incarnation, so it shows different nodes different things."""

    @property
    def name(self) -> str:
        """The name that it gives itself; names are free to choose and prove nothing."""
        return self.metadata.name

    @property
    def key(self) -> bytes | None:
        """Its identity's public key, if it is known."""
        return self.credential[:PUBLIC_KEY_BYTES] or None

    @property
    def notice(self) -> FormationNotice:
        """What it says of formation."""
        return self.metadata.notice

    @property
    def reachable(self) -> bool:
        """Gossip has not given it up."""
        return self.status in {MemberStatus.ALIVE, MemberStatus.SUSPECT}

    @property
    def serves(self) -> bool:
        """It says that its Raft server runs."""
        return self.metadata.raft_id is not None

    @property
    def eligible(self) -> bool:
        """It can be a founder and a voter."""
        return self.metadata.role is not RoleHint.OBSERVER
