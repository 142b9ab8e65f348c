"""The eight messages of the RFC (docs/explanation/gossip.md) and two more, and the payload of pings.

    joining    JoinReq -> JoinNak (with a token) -> JoinReq with token and auth -> JoinAck | JoinRedirect
    leaving    Leave
    gossip     PingRequest -> PingResponse, relayed while `ttl` lasts; both carry a `payload`
    presence   Broadcast
    added      QueryReply (a reply to an application's query), KeyringUpdate (the farm's keyring)

`seq` pairs a response with its request, as in the RFC's example. A relayed ping carries `requester`, the address to
which the target answers directly. In a response, `source_id` is the node that began the ping, and `target_id` the
answering node, as the RFC defines them.

Replies to a join, and messages that end or begin a link, carry the generation of their receiver
(`receiver_generation`). So a recorded message cannot be replayed to the same node after its restart.

*Refusals.* The RFC gives an error a `domain`, which names the space of its `code`, and an `etag`. All codes here are in
one domain. The number of TOKEN_EXPECTED is from the RFC's example session; the other codes have the next numbers.

*Drops.* The core counts messages without effect by `DropReason`.
"""

from enum import IntEnum, StrEnum
from typing import Final, Self

from msgspec import Struct

from gossip.core.keyring import Keyring
from gossip.core.member import NODE_ID_BYTES, Address, Incarnation, NodeId, NodeInfo, Status

UNKNOWN_NODE: Final = NodeId(bytes(NODE_ID_BYTES))
NAME_LIMIT_CHARACTERS: Final = 32
BODY_LIMIT_BYTES: Final = 512
QUERY_TIMEOUT_LIMIT_MS: Final = 600_000
DOMAIN: Final = "swimjoin"
"""The space of the codes below (8 characters, as the RFC lays it out)."""


class RefusalCode(IntEnum):
    """The reason for a refusal, which determines the joiner's next step."""

    TOKEN_EXPECTED = 7115
    """The etag is a token: send the JoinReq again with it."""
    AT_CAPACITY = 7116
    """The receiver is full. A JoinRedirect names members with room; if none is known, a JoinNak is sent."""
    LINK_REJECTED = 7117
    """The receiver treats the sender as its peer, but the sender does not: a link must be symmetrical."""
    EDGE_SPLIT = 7118
    """Sent to a peer whose link ends: join the node at the address of the JoinRedirect instead."""
    KEY_RETIRED = 7119
    """The JoinReq was sealed with a retired key: get the current farm key."""
    POLICY_FAILED = 7120
    """The check of joiners by the receiver's application failed: repair it there."""


class AliveUpdate(Struct, frozen=True, gc=False):
    """A member is alive, by its own signed description."""

    info: NodeInfo


class VerdictUpdate(Struct, frozen=True, gc=False):
    """A node's verdict (suspect, dead) about a member, or the departure (left) that the member itself announced.

    `accuser` is the author of the verdict: independent confirmations shorten a suspicion. For LEFT it is the member,
    and `proof` is the member's signature over its departure in this incarnation. The wire makes and checks the proof; a
    core receives only proved departures.
    """

    node_id: NodeId
    incarnation: Incarnation
    status: Status
    accuser: NodeId
    proof: bytes = b""


Update = AliveUpdate | VerdictUpdate


class UserMessageId(Struct, frozen=True, order=True, gc=False):
    """The name of a user message: the Lamport time of sending, the origin, and the origin's generation."""

    time: int
    origin: NodeId
    generation: int


class UserEvent(Struct, frozen=True, gc=False):
    """An application's message to every member. The RFC's Broadcast is another message: it only announces presence."""

    message_id: UserMessageId
    name: str
    body: bytes


class Query(Struct, frozen=True, gc=False):
    """An application's query to every member; replies go to `address`, within `timeout_ms` of receiving it."""

    message_id: UserMessageId
    name: str
    body: bytes
    address: Address
    timeout_ms: int


UserMessage = UserEvent | Query


class Payload(Struct, frozen=True, gc=False):
    """The payload of a ping or its ack: updates, the sender's room for peers, and a sample of its known members.

    `capacity` and `peer_count` steer redirects; `sample` is anti-entropy (the RFC's example puts it in ping replies).
    `user_messages` come from applications. `keys_digest` names the sender's keyring (empty: datagrams in clear).
    """

    updates: tuple[Update, ...] = ()
    capacity: int = 0
    peer_count: int = 0
    sample: tuple[NodeInfo, ...] = ()
    user_messages: tuple[UserMessage, ...] = ()
    keys_digest: bytes = b""


class JoinReq(Struct, frozen=True, gc=False):
    """A request to become a peer of the receiver. The first has an empty `token`, the next one the JoinNak's token.

    `peer_count` is the number of peers of the source. A receiver in a full overlay splits one of its links only for a
    source that can use both ends. Without this count, two members with one vacancy each would split links endlessly.
    `clock` is the Lamport time of the user messages at the source; a receiver that has just started adopts it.
    """

    source: NodeInfo
    token: bytes = b""
    auth: bytes = b""
    peer_count: int = 0
    clock: int = 0


class JoinNak(Struct, frozen=True, gc=False):
    """Refuses a join or a link. `etag` depends on `code`: a token, the proof of a link, or an application's offer."""

    domain: str
    code: int
    etag: bytes = b""
    receiver_generation: int = 0


class JoinRedirect(Struct, frozen=True, gc=False):
    """Sends a joiner at a full node, or a peer whose link ends, to `addresses`."""

    addresses: tuple[Address, ...]
    domain: str
    code: int
    etag: bytes = b""
    receiver_generation: int = 0


class JoinAck(Struct, frozen=True, gc=False):
    """Accepts a join: the receiver is now a peer of `description`; `sample` lists some members that the sender knows.

    `clock` is the Lamport time of the user messages: the newcomer ignores earlier messages.
    """

    description: NodeInfo
    sample: tuple[NodeInfo, ...] = ()
    clock: int = 0
    receiver_generation: int = 0


class Leave(Struct, frozen=True, gc=False):
    """The source leaves. Its credential is the proof of that departure, and covers nothing else."""

    source: NodeInfo


class PingRequest(Struct, frozen=True, gc=False):
    """Probes `target_id`. With `ttl` above 0 a receiver that is not the target may relay it."""

    source_id: NodeId
    source_incarnation: Incarnation
    target_id: NodeId
    target_incarnation: Incarnation
    seq: int
    ttl: int
    requester: Address | None = None
    payload: Payload = Payload()


class PingResponse(Struct, frozen=True, gc=False):
    """The ack of `target_id`; or, with `nack`, a helper's report that the target did not ack its ping in time.

    `proof`: if two instances use one id, the instance that acks a ping proves that it holds the identity's key. The
    wire makes and checks the proof; a core receives only responses with a valid one.
    """

    source_id: NodeId
    target_id: NodeId
    target_incarnation: Incarnation
    seq: int
    ttl: int
    nack: bool = False
    payload: Payload = Payload()
    proof: bytes = b""


class Broadcast(Struct, frozen=True, gc=False):
    """Announces that a node runs and can be used as a seed. It does not admit the node."""

    source: NodeInfo


class QueryReply(Struct, frozen=True, gc=False):
    """A member's reply to a query, straight to the querying node."""

    query_id: UserMessageId
    responder: NodeId
    body: bytes


class KeyringUpdate(Struct, frozen=True, gc=False):
    """The keyring of `sender`, signed by it. Always sealed, or boxed for one identity.

    `credential` is the sender's public key and signature; the wire makes and checks it. An update does not need a date,
    because a second merge of the same keyring does not change anything.
    """

    keyring: Keyring
    sender: NodeId = UNKNOWN_NODE
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
    FORMER_LIFE = "former-life", "answers to join requests that this node sent before its restart"
    KEYRING_WOULD_SPLIT = (
        "keyring-would-split",
        "keyrings without a common key: this node could not read the other members any more",
    )
    LEAVING = "leaving", "joins at this node while it leaves"
    MAINTENANCE = "maintenance", "joins at this node while it is in maintenance"
    NOT_THE_TARGET = "not-the-target", "messages for another member"
    OTHER_ERA = "other-era", "keyrings of another era of the group's keys"
    OWN_MESSAGE = "own-message", "messages of this node that it receives itself"
    QUERIES_FULL = "queries-full", "queries of this node above the limit of open queries"
    RATE_LIMITED = "rate-limited", "messages above the limit of their sender"
    RELAY_REPEATED = "relay-repeated", "probes that this node has relayed before"
    RELAY_TABLE_FULL = "relay-table-full", "probes above the limit of relayed probes"
    SEEDS_FULL = "seeds-full", "addresses of members above the limit of addresses to try"
    STALE_JOIN = "stale-join", "joins at this node with an outdated description of the joiner"
    UNKNOWN_SUBJECT = "unknown-subject", "verdicts on an unknown member"
    UNMATCHED_RESPONSE = "unmatched-response", "responses without a pending probe, or too late"
    UNSOLICITED = "unsolicited", "answers without a pending request"
    USER_MESSAGE_BEFORE_JOIN = "user-message-before-join", "user events received before this node has joined"
