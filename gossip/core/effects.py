"""What a `Swim` wants done: the outputs of `step(event, now)`, carried out by the agent in order."""

from dataclasses import dataclass
from enum import Enum

from gossip.core.member import Address, NodeId, NodeInfo, Status
from gossip.core.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a datagram. Dropping it is allowed: the protocol retries by itself."""

    target: Address
    message: Message


@dataclass(frozen=True, slots=True)
class Announce:
    """Broadcast presence on the LAN, if the agent has a broadcast address."""

    message: Message


@dataclass(frozen=True, slots=True)
class OfferToken:
    """Answer a JoinReq that has no valid token with a JoinNak that carries one (the wire floor mints it)."""

    target: Address
    applicant: NodeId


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


class AlarmKind(Enum):
    """Conditions that an operator must see."""

    TWIN = "twin"
    """A live node uses our identity: this node stops."""
    ISOLATED = "isolated"
    """No peer answers and every seed is silent."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that an operator must see, in words."""

    kind: AlarmKind
    text: str


Effect = Send | Announce | OfferToken | MembershipChanged | AdoptGeneration | Alarm
