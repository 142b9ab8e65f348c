"""What a `Raft` wants done: the outputs of `step(event, now)`, carried out by the executor in order.

Durability is explicit. `Persist` effects are numbered from 1 in each process and complete in order; adjacent ones may
be merged into one fsync. An effect with `after=n` must not happen before Persist n is durable; `after=0` waits for
nothing. Completion comes back as the event `Persisted(n)`.
"""

from dataclasses import dataclass
from enum import Enum

from consensus.core.messages import Message
from consensus.core.position import Ballot, Entry, Index, LogPosition, ServerId, Term


@dataclass(frozen=True, slots=True)
class Persist:
    """Make durable, in order: `ballot`; a log that ends before `truncate_from`; `entries` from index `first` on.

    What is None or empty is left as it is.
    """

    number: int
    ballot: Ballot | None = None
    truncate_from: Index | None = None
    first: Index = 0
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to another server once Persist `after` is durable. Never blocks; a full queue drops."""

    recipient: ServerId
    message: Message
    after: int = 0


@dataclass(frozen=True, slots=True)
class Apply:
    """Entries from index `first` on are committed: hand them to the state machine, in order, each exactly once."""

    first: Index
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read entries [first, last] from storage (at most `limit_bytes`, at least one) and answer with `EntriesRead`."""

    request_id: int
    first: Index
    last: Index
    limit_bytes: int


class Outcome(Enum):
    """How a proposal ended. Acknowledged only if committed, refused only if it never can be; otherwise unknown."""

    COMMITTED = "committed"
    NOT_LEADER = "not-leader"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resolve:
    """The answer to one `Proposed`. `position` is that of its last entry when committed; `leader` is who leads now."""

    proposal_id: int
    outcome: Outcome
    position: LogPosition | None = None
    leader: ServerId | None = None


class Role(Enum):
    """What a server is at the moment (Raft section 5.1)."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """For the trace, the view and whoever must act on leadership: role, term or known leader changed."""

    role: Role
    term: Term
    leader: ServerId | None


Effect = Persist | Send | Apply | ReadEntries | Resolve | RoleChanged
