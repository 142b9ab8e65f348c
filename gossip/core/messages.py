"""The eight messages of the RFC and two more, one dataclass each, and what rides on pings.

    joining    JoinReq -> JoinNak (a token to come back with) -> JoinReq with token and auth -> JoinAck | JoinRedirect
    leaving    Leave
    gossip     PingRequest -> PingResponse, relayed while `ttl` lasts; `payload` rides on both
    presence   Broadcast
    ours       QueryReply (an answer to an application's query), KeyringUpdate (the farm's keyring)

`seq` pairs a response with its request, as in the RFC's example. A relayed ping carries `requester`, the address to
which the target answers directly. In a response, `source_id` is the requester of the ping and `target_id` the node that
answers, as the RFC defines them.

Answers to a join, and messages that end or begin a link, name the generation of the receiver that they are for
(`receiver_generation`): a recording of them is worth nothing to the same node after a restart.

*Refusals.* The RFC gives an error a `domain`, which names the space of its `code`, and an `etag`. All codes here live
in one domain. The number of TOKEN_EXPECTED is the one of the RFC's example session; the others follow it.

*Drops.* The core counts messages without effect by `DropReason`.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Self

from gossip.core.keyring import Keyring
from gossip.core.member import NODE_ID_BYTES, Address, Incarnation, NodeId, NodeInfo, Status

UNKNOWN_NODE: Final = NodeId(bytes(NODE_ID_BYTES))
NAME_LIMIT_CHARACTERS: Final = 32
BODY_LIMIT_BYTES: Final = 512
QUERY_TIMEOUT_LIMIT_MS: Final = 600_000
DOMAIN: Final = "swimjoin"
"""The space of the codes below (8 characters, as the RFC lays it out)."""


class RefusalCode(IntEnum):
    """What the sender of a JoinReq should do next."""

    TOKEN_EXPECTED = 7115
    """The etag is a token: send the JoinReq again with it."""
    AT_CAPACITY = 7116
    """No room here; a JoinRedirect names members with room, a JoinNak knows of none."""
    LINK_REJECTED = 7117
    """Answers a direct ping of a node that is no peer of the sender: a link is symmetrical or gone."""
    EDGE_SPLIT = 7118
    """Told to a peer whose link is given to a newcomer: go to the newcomer at the address of the JoinRedirect."""
    KEY_RETIRED = 7119
    """The JoinReq was sealed with a retired key: get the current farm key."""
    POLICY_FAILED = 7120
    """The receiver's application has a say about joiners, and its check failed: that is to be mended over there."""


@dataclass(frozen=True, slots=True)
class AliveUpdate:
    """A member is alive, as it says and signs itself."""

    info: NodeInfo


@dataclass(frozen=True, slots=True)
class VerdictUpdate:
    """A node's verdict (suspect, dead) about a member, or the leaving (left) that the member announced itself.

    `accuser` is the node whose verdict it is: independent confirmations shorten a suspicion. For LEFT it is the member,
    and `proof` is its signature over leaving in this incarnation, which travels with the update: no node believes it
    without. The wire makes and checks it; a core receives only proved departures.
    """

    node_id: NodeId
    incarnation: Incarnation
    status: Status
    accuser: NodeId
    proof: bytes = b""


Update = AliveUpdate | VerdictUpdate


@dataclass(frozen=True, slots=True, order=True)
class UserMessageId:
    """Names a user message: the Lamport time at which its origin sent it, and in which generation of the origin."""

    time: int
    origin: NodeId
    generation: int


@dataclass(frozen=True, slots=True)
class UserEvent:
    """What an application sends to every member (the RFC's Broadcast is presence)."""

    message_id: UserMessageId
    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Query:
    """What an application asks every member; answers go straight to `address`, within `timeout_ms` of receiving it."""

    message_id: UserMessageId
    name: str
    body: bytes
    address: Address
    timeout_ms: int


UserMessage = UserEvent | Query


@dataclass(frozen=True, slots=True)
class Payload:
    """What rides on a ping or its ack: updates, the sender's room for peers, and a sample of the members it knows.

    `capacity` and `peer_count` steer redirects; `sample` is anti-entropy (the RFC's example puts it in ping replies).
    `user_messages` are what applications send. `keys_digest` names the sender's keyring (empty: datagrams in clear).
    """

    updates: tuple[Update, ...] = ()
    capacity: int = 0
    peer_count: int = 0
    sample: tuple[NodeInfo, ...] = ()
    user_messages: tuple[UserMessage, ...] = ()
    keys_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinReq:
    """Asks to become a peer of the receiver. First without `token`, then with the token that the nak carried.

    `peer_count` is how many peers the source has. A receiver in a full overlay splits one of its links only for a
    source that can use both ends; without that figure two members with one vacancy each would split links for ever.
    `clock` is the Lamport time of the user messages that the source knows; a receiver that has just started takes it
    over.
    """

    source: NodeInfo
    token: bytes = b""
    auth: bytes = b""
    peer_count: int = 0
    clock: int = 0


@dataclass(frozen=True, slots=True)
class JoinNak:
    """Refuses a join. `domain` names the space of `code`; `etag` is a short text or, for TOKEN_EXPECTED, the token."""

    domain: str
    code: int
    etag: bytes = b""
    receiver_generation: int = 0


@dataclass(frozen=True, slots=True)
class JoinRedirect:
    """The receiver is at capacity: the joiner is to try `addresses` instead."""

    addresses: tuple[Address, ...]
    domain: str
    code: int
    etag: bytes = b""
    receiver_generation: int = 0


@dataclass(frozen=True, slots=True)
class JoinAck:
    """Accepts a join: the receiver is now a peer of `description`; `sample` is some of the members that it knows.

    `clock` is the Lamport time of the user messages: what was sent before is not for the newcomer.
    """

    description: NodeInfo
    sample: tuple[NodeInfo, ...] = ()
    clock: int = 0
    receiver_generation: int = 0


@dataclass(frozen=True, slots=True)
class Leave:
    """The source leaves. Its credential is the proof of that departure, and covers nothing else."""

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
    """The ack of `target_id`; or, with `nack`, a helper says that the target did not answer its ping in time.

    `proof`: a node that answers a ping of its own id (an identity conflict) proves that it holds the identity's key.
    The wire makes and checks it; a core receives only proved ones.
    """

    source_id: NodeId
    target_id: NodeId
    target_incarnation: Incarnation
    seq: int
    ttl: int
    nack: bool = False
    payload: Payload = field(default_factory=Payload)
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Announces that a node runs and can be used as a seed. It admits no node."""

    source: NodeInfo


@dataclass(frozen=True, slots=True)
class QueryReply:
    """A member's answer to a query, straight to the asker."""

    query_id: UserMessageId
    responder: NodeId
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyringUpdate:
    """The farm's gossip keys as `teller` knows them, signed by it. Always sealed, or boxed for one identity.

    `credential` is the teller's public key and signature; the wire makes and checks it. An old update needs no date: a
    keyring that was merged once changes nothing when it is merged again.
    """

    keyring: Keyring
    teller: NodeId = UNKNOWN_NODE
    credential: bytes = b""


Message = (
    JoinReq
    | JoinNak
    | JoinRedirect
    | JoinAck
    | Leave
    | PingRequest
    | PingResponse
    | Broadcast
    | QueryReply
    | KeyringUpdate
)


class CountedDrop(StrEnum):
    """A reason with a counter: the identifier for operators, and a plural noun phrase with its meaning."""

    meaning: str

    def __new__(cls, identifier: str, meaning: str) -> Self:
        """Take the identifier as value and store the meaning with it."""
        member = str.__new__(cls, identifier)
        member._value_, member.meaning = identifier, meaning
        return member


class DropReason(CountedDrop):
    """Messages, and parts of messages, without effect."""

    ANSWER_REPEATED = "answer-repeated", "second answers of one member to a query"
    ANSWER_TOO_LATE = "answer-too-late", "answers of this node to a query that has ended"
    BAD_DESCRIPTION = "bad-description", "implausible descriptions of a member"
    BAD_KEYRING = "bad-keyring", "keyrings that break the rules of the protocol"
    BAD_USER_MESSAGE = "bad-user-message", "user events and queries outside the limits"
    BAD_VERDICT = "bad-verdict", "verdicts on a member that the protocol does not allow"
    CONTRADICTED_VERDICT = (
        "contradicted-verdict",
        "verdicts that a member is suspect or dead, although it answers this node",
    )
    DIRECTORY_FULL = "directory-full", "joins at this node while its list of members is full"
    FORGED_LEFT = "forged-left", "reports that a member has left, without its signature"
    FORMER_LIFE = "former-life", "answers to this node before its restart"
    KEYRING_WOULD_SPLIT = (
        "keyring-would-split",
        "keyrings without a common key: this node could not read the other members any more",
    )
    LEAVING = "leaving", "joins at this node while it leaves"
    MAINTENANCE = "maintenance", "joins at this node in maintenance"
    NOT_THE_TARGET = "not-the-target", "messages for another member"
    OTHER_ERA = "other-era", "keyrings of another era of the group's keys"
    OWN_MESSAGE = "own-message", "messages of this node that it receives itself"
    QUERIES_FULL = "queries-full", "queries of this node above the limit of open queries"
    RATE_LIMITED = "rate-limited", "messages above the limit of their sender"
    RELAY_REPEATED = "relay-repeated", "probes that this node has relayed before"
    RELAY_TABLE_FULL = "relay-table-full", "probes above the limit of relayed probes"
    SEEDS_FULL = "seeds-full", "addresses of members above the limit of addresses to try"
    STALE_JOIN = "stale-join", "joins of a node with a newer description at this node"
    UNKNOWN_SUBJECT = "unknown-subject", "verdicts on an unknown member"
    UNMATCHED_RESPONSE = "unmatched-response", "responses without a pending probe, or too late"
    UNSOLICITED = "unsolicited", "answers without a pending request"
    USER_MESSAGE_BEFORE_JOIN = "user-message-before-join", "user events received before this node has joined"
