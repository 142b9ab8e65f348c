"""The inputs of a `Swim`: the events of `step(event, now)`."""

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


class Unreadable(Struct, frozen=True):
    """A datagram of this farm came from `source`, and no key of this node opens it."""

    source: Address
    is_retired: bool = False
    """True if the datagram is sealed with a key that the group has retired."""


class DeadlineReached(Struct, frozen=True):
    """The time in `Swim.deadline` has been reached."""


class SeedsGiven(Struct, frozen=True):
    """Addresses to join through, from configuration or discovery; retried without end, with backoff."""

    addresses: tuple[Address, ...]
    former: tuple[Address, ...] = ()
    """Former addresses of a name: tried a few more times and then dropped."""


class MetadataChanged(Struct, frozen=True):
    """The application changed this node's metadata; the incarnation number is raised."""

    metadata: bytes


class LeaveRequested(Struct, frozen=True):
    """The operator requested that this node leave. The node notifies its peers and ignores joins from then on."""


class MaintenanceSwitched(Struct, frozen=True):
    """While `on`, this node ignores requests to join (it remains a member that probes and replies)."""

    on: bool


class UserEventRequested(Struct, frozen=True):
    """The application sends a user event to every member."""

    name: str
    body: bytes


class QueryRequested(Struct, frozen=True):
    """The application sends a query to every member; the replies and the end of the query carry `ticket`."""

    ticket: int
    name: str
    body: bytes
    timeout_ms: int


class AnswerGiven(Struct, frozen=True):
    """The application replies to a query that it received."""

    query_id: UserMessageId
    body: bytes


class KeyringChanged(Struct, frozen=True):
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
