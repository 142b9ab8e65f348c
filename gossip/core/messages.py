"""The eight messages of the RFC, one dataclass each, and what rides on pings.

    joining    JoinReq -> JoinNak (a token to come back with) -> JoinReq with token and auth -> JoinAck | JoinRedirect
    leaving    Leave
    gossip     PingRequest -> PingResponse, relayed while `ttl` lasts; `payload` rides on both
    presence   Broadcast

`seq` pairs a response with its request, as in the RFC's example. A relayed request carries `requester`, the address to
which the target answers directly; `relayed` tells a helper's copy from a direct ping. In a response `source_id` is the
requester of the ping and `target_id` the node that answers, as the RFC defines them.
"""

from dataclasses import dataclass, field

from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status


@dataclass(frozen=True, slots=True)
class AliveUpdate:
    """A member is alive, in its own signed words."""

    info: NodeInfo


@dataclass(frozen=True, slots=True)
class VerdictUpdate:
    """Somebody's verdict (suspect, dead) about a member, or the word (left) that the member said itself.

    `accuser` is the node whose verdict it is: independent confirmations shorten a suspicion. For LEFT it is the member.
    """

    node_id: NodeId
    incarnation: Incarnation
    status: Status
    accuser: NodeId


Update = AliveUpdate | VerdictUpdate


@dataclass(frozen=True, slots=True)
class Payload:
    """Gossip that rides on a ping or its answer: news, the sender's room for peers, and a sample of members it knows.

    `capacity` and `peer_count` steer redirects; `sample` is anti-entropy (the RFC's example puts it in ping replies).
    """

    updates: tuple[Update, ...] = ()
    capacity: int = 0
    peer_count: int = 0
    sample: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinReq:
    """Asks to become a peer of the receiver. First without `token`, then with the token that the nak carried.

    `peer_count` is how many peers the source has. A receiver in a full overlay splits one of its links only for a
    source that can use both ends; without that figure two members with one vacancy each would split links for ever.
    """

    source: NodeInfo
    token: bytes = b""
    auth: bytes = b""
    peer_count: int = 0


@dataclass(frozen=True, slots=True)
class JoinNak:
    """Refuses a join. `domain` names the space of `code`; `etag` is a short text or, for TOKEN_EXPECTED, the token."""

    domain: str
    code: int
    etag: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinRedirect:
    """Would have accepted, but cannot now (at capacity): try `addresses` instead."""

    addresses: tuple[Address, ...]
    domain: str
    code: int
    etag: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinAck:
    """Welcome: the sender is now a peer of `description`; `sample` is some of the members that it knows."""

    description: NodeInfo
    sample: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """The source leaves of its own will."""

    source: NodeInfo


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Is `target_id` there? With `ttl` above 0 a receiver that is not the target may pass it on."""

    source_id: NodeId
    source_incarnation: Incarnation
    target_id: NodeId
    target_incarnation: Incarnation
    seq: int
    ttl: int
    requester: Address | None = None
    payload: Payload = field(default_factory=Payload)


@dataclass(frozen=True, slots=True)
class PingResponse:
    """`target_id` answers, or (with `nack`) a helper says that its own ping of the target was not answered in time."""

    source_id: NodeId
    target_id: NodeId
    target_incarnation: Incarnation
    seq: int
    ttl: int
    nack: bool = False
    payload: Payload = field(default_factory=Payload)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Announces that a node is present and can be used as a seed. Presence only, never admission."""

    source: NodeInfo


Message = JoinReq | JoinNak | JoinRedirect | JoinAck | Leave | PingRequest | PingResponse | Broadcast
