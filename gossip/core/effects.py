"""What a `Swim` wants done: the outputs of `step(event, now)`, carried out by the agent in order."""

from dataclasses import dataclass
from enum import Enum

from gossip.core.keyring import Keyring
from gossip.core.member import Address, NodeId, NodeInfo, Status
from gossip.core.messages import Message, Query, UserEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Send a datagram. Dropping it is allowed: the protocol retries by itself.

    `recipient` is the node that it is for, none where that is whoever lives at the address: the seal binds it.
    """

    target: Address
    message: Message
    recipient: NodeId | None
    boxed_for: bytes = b""
    """The recipient's credential, if it can read none of our keys: keyring updates is then boxed for its identity."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Broadcast presence on the LAN, if the agent has a broadcast address."""

    message: Message


@dataclass(frozen=True, slots=True)
class OfferToken:
    """Answer a JoinReq that has no valid token with a JoinNak that carries one (the wire floor mints it)."""

    target: Address
    applicant: NodeId
    generation: int
    """The applicant's, for the nak."""


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The status, metadata or incarnation of a member changed in this node's view (never sent for this node itself)."""

    info: NodeInfo
    status: Status
    previous: Status | None


@dataclass(frozen=True, slots=True)
class AdoptGeneration:
    """Somebody heard a higher generation of ourselves: make `generation` durable before anything else is sent."""

    generation: int


@dataclass(frozen=True, slots=True)
class UserEventReceived:
    """An application elsewhere said something to everybody. Told once."""

    user_event: UserEvent


@dataclass(frozen=True, slots=True)
class QueryReceived:
    """An application elsewhere asks; AnswerGiven answers. Told once."""

    query: Query


@dataclass(frozen=True, slots=True)
class QueryAnswered:
    """A member answered our query `ticket`; each member does so once."""

    ticket: int
    responder: NodeId
    body: bytes


@dataclass(frozen=True, slots=True)
class QueryEnded:
    """Our query `ticket` takes no answers any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseKeyring:
    """Seal and open with these keys from now on, and keep them: a restart must not bring old ones back."""

    chain: Keyring


@dataclass(frozen=True, slots=True)
class KeyOffered:
    """A member at `source` refuses this node's key, and gave what the application there has to say to it."""

    source: Address
    offer: bytes


@dataclass(frozen=True, slots=True)
class KeyringUpdateRefused:
    """Somebody told keys whom the application does not let (`GroupSettings.may_tell_keys`). Not every time is told."""

    teller: NodeId
    source: Address


class AlarmKind(Enum):
    """Conditions that an operator must see."""

    IDENTITY_CONFLICT = "identity-conflict"
    """A live node uses our identity: this node stops."""
    ROLLED_BACK = "rolled-back"
    """A later life of our identity was heard of, in its own words: what this node keeps is older than that."""
    ISOLATED = "isolated"
    """No peer answers and every seed is silent."""
    KEY_RETIRED = "key-retired"
    """The group refuses this node's key: it was rotated out while the node was away."""
    KEYRING_NOT_STORED = "keyring-not-stored"
    """New keys are in use and could not be stored: after a restart this node would come with old ones."""
    GENERATION_NOT_STORED = "generation-not-stored"
    """This node must begin a later life and cannot store its number: it is mute until it can."""
    ADMIT_FAILED = "admit-failed"
    """The application's `admit` raised, or returned what is no answer: the joiner was refused."""
    FOREIGN_VERSION = "foreign-version"
    """Another node of the group speaks another version of the protocol: neither hears the other."""


def rolled_back(node_id: NodeId, heard: int, own: int) -> "Alarm":
    """A node has signed words of its own, from its own address, of a generation that it knows nothing of."""
    return Alarm(
        AlarmKind.ROLLED_BACK,
        f"this node's identity {node_id.hex()} was heard from here in its generation {heard}, and this is generation"
        f" {own}: the state directory was brought back from an older copy",
    )


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that an operator must see, in words."""

    kind: AlarmKind
    text: str
    over: bool = False
    """The condition has passed by itself."""


LocalEffect = (
    Announce
    | OfferToken
    | MembershipChanged
    | AdoptGeneration
    | Alarm
    | UserEventReceived
    | QueryReceived
    | QueryAnswered
    | QueryEnded
    | UseKeyring
    | KeyOffered
)
Effect = Send | LocalEffect
