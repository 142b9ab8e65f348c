"""The inputs of a `Swim`: the events of `step(event, now)`."""

from dataclasses import dataclass

from msgspec import Struct

from gossip.core.keyring import Keyring
from gossip.core.member import Address
from gossip.core.messages import Message, UserMessageId


class Received(Struct, frozen=True, gc=False):
    """A message whose seal, signatures, token and auth the wire has already checked.

    `token_valid`: this node minted the JoinReq's token for this address, it is fresh, and the auth is right.
    """

    source: Address
    message: Message
    token_valid: bool = False
    boxed: bool = False
    """True if the message came in a box for this node's identity, so a gossip key was not needed to read it."""
    size_bytes: int = 0
    """The size of the datagram: all replies to an unproved address together are not larger."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A datagram of this farm came from `source`, and no key of this node opens it."""

    source: Address
    is_retired: bool = False
    """The group has removed its key."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time in `Swim.deadline` has been reached."""


@dataclass(frozen=True, slots=True)
class SeedsGiven:
    """Addresses to join through, from configuration or discovery; retried without end, with backoff."""

    addresses: tuple[Address, ...]
    former: tuple[Address, ...] = ()
    """Former addresses of a name: tried a few more times and then dropped."""


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The application changed this node's metadata; the incarnation number is raised."""

    metadata: bytes


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The operator requested that this node leave. The node notifies its peers and ignores joins from then on."""


@dataclass(frozen=True, slots=True)
class MaintenanceSwitched:
    """While `on`, this node ignores requests to join (it remains a member that probes and replies)."""

    on: bool


@dataclass(frozen=True, slots=True)
class UserEventRequested:
    """The application sends a user event to every member."""

    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class QueryRequested:
    """The application sends a query to every member; the replies and the end of the query carry `ticket`."""

    ticket: int
    name: str
    body: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """The application replies to a query that it received."""

    query_id: UserMessageId
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyringChanged:
    """The operator changed the farm's keys."""

    keyring: Keyring


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
