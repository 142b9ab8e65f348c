"""What can happen to a `Swim`: the inputs of `step(event, now)`."""

from dataclasses import dataclass

from gossip.core.keyring import Keyring
from gossip.core.member import Address
from gossip.core.messages import Message, UserMessageId


@dataclass(frozen=True, slots=True)
class Received:
    """A message whose seal, signatures, token and auth the wire floor has already checked.

    `token_valid`: a JoinReq's token was minted by us for this address and is fresh, and its auth is right.
    """

    source: Address
    message: Message
    token_valid: bool = False
    boxed: bool = False
    """It came in a box for this node's identity: no gossip key was needed to read it."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A datagram of this farm came from `source` that none of our keys opens."""

    source: Address


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """`core.deadline` has come."""


@dataclass(frozen=True, slots=True)
class SeedsGiven:
    """Addresses to join through, from configuration or discovery; tried again for ever with backoff."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The application changed what this node says about itself; the incarnation number is raised."""

    metadata: bytes


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The operator wants this node to leave; it tells its peers and answers no joins from then on."""


@dataclass(frozen=True, slots=True)
class MaintenanceSwitched:
    """While `on`, this node ignores requests to join (it stays a member, and probes and answers as ever)."""

    on: bool


@dataclass(frozen=True, slots=True)
class UserEventRequested:
    """The application says something to everybody."""

    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class QueryRequested:
    """The application asks everybody; its answers and its end carry `ticket`."""

    ticket: int
    name: str
    body: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """The application answers a query that it heard."""

    query_id: UserMessageId
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyringChanged:
    """The operator changed the farm's keys."""

    chain: Keyring


Request = (
    DeadlineReached
    | SeedsGiven
    | MetadataChanged
    | LeaveRequested
    | MaintenanceSwitched
    | UserEventRequested
    | QueryRequested
    | AnswerGiven
    | KeyringChanged
    | Unreadable
)
Event = Received | Request
