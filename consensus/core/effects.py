"""Effects: the outputs of `step(event, now)`, which the executor carries out in order.

Durability is explicit. `Persist` effects are numbered from 1 in each process and complete in order. One fsync may cover
several adjacent Persists. An effect with `after=n` must not happen before Persist n is durable; `after=0` waits for
nothing. The event `Persisted(n)` reports completion.
"""

from enum import Enum

from msgspec import Struct

from consensus.core.messages import Message
from consensus.core.model import (
    ComparedInPart,
    Configuration,
    Entry,
    HardState,
    Index,
    LogId,
    Server,
    ServerId,
    SnapshotDescription,
    Term,
)


class StoreChunk(Struct, frozen=True):
    """Store a received chunk of the leader's snapshot of `last`; a chunk at offset 0 discards all earlier ones."""

    last: LogId
    offset: int
    data: bytes


class Install(Struct, frozen=True):
    """Turn the stored and checked chunks into the snapshot, and discard the log.

    The new log begins after the snapshot.
    """

    snapshot: SnapshotDescription


class Compact(Struct, frozen=True):
    """Replace the stored snapshot with the snapshot from `TakeSnapshot`; entries before `first_kept` may be deleted."""

    snapshot: SnapshotDescription
    first_kept: Index


SnapshotChange = StoreChunk | Install | Compact


class Persist(ComparedInPart, frozen=True, kw_only=True):
    """Make durable, in order: `hard_state`, the truncation from `truncate_from` on, and `entries` from `first` on.

    `snapshot` is a change of the stored snapshot; a Persist with such a change does not set `truncate_from` or
    `entries`. A field without a value (None or empty) leaves the stored state unchanged.
    """

    REPEATED = frozenset({"encoded"})

    number: int
    hard_state: HardState | None = None
    truncate_from: Index | None = None
    first: Index = 0
    entries: tuple[Entry, ...] = ()
    snapshot: SnapshotChange | None = None
    encoded: bytes = b""
    """The encoded bytes of `entries`, if already available (`entry_data`)."""


class Send(Struct, frozen=True):
    """Send a message once Persist `after` is durable.

    Sending never blocks. If the queue is full, this message or an older one is dropped.
    """

    recipient: ServerId
    message: Message
    after: int = 0


class Apply(ComparedInPart, frozen=True):
    """Entries from index `first` on are committed: hand them to the state machine, in order."""

    REPEATED = frozenset({"size_bytes"})

    first: Index
    entries: tuple[Entry, ...]
    size_bytes: int = 0
    """The size of the entries, by `log.entry_bytes`."""


class ReadEntries(Struct, frozen=True, kw_only=True):
    """Read entries [first, last] from storage, at least one, up to `limit_bytes`; reply with `EntriesRead`."""

    request_id: int
    first: Index
    last: Index
    limit_bytes: int


class TakeSnapshot(Struct, frozen=True):
    """Write a snapshot of the state machine after `last`, with `configuration`; reply with `SnapshotTaken`."""

    last: LogId
    configuration: Configuration


class ReadSnapshot(Struct, frozen=True, kw_only=True):
    """Read a chunk of the stored snapshot of `last` (at most `limit_bytes`) and reply with `SnapshotRead`."""

    request_id: int
    last: LogId
    offset: int
    limit_bytes: int


class CheckSnapshot(Struct, frozen=True):
    """Read back all received chunks of the snapshot of `last`, check them, and reply with `SnapshotChecked`.

    `configuration` comes from the leader's message. It is used if the snapshot itself does not contain a configuration.
    """

    request_id: int
    last: LogId
    configuration: Configuration


class Restore(Struct, frozen=True):
    """Reset the state machine to the stored snapshot, before it takes any later entry."""

    snapshot: SnapshotDescription


class Outcome(Enum):
    """Outcome of a proposal: committed, refused (the proposal can never commit), or unknown."""

    COMMITTED = "committed"
    NOT_LEADER = "not-leader"
    BUSY = "busy"
    UNKNOWN = "unknown"


class ProposalResolved(Struct, frozen=True, kw_only=True, gc=False):
    """The reply to one `Proposed`.

    `position` is the place of its last entry if committed; `leader` is the current leader.
    """

    proposal_id: int
    outcome: Outcome
    position: LogId | None = None
    leader: ServerId | None = None


class ProposalAccepted(Struct, frozen=True):
    """The commands of a `Proposed` are in the leader's log, the last of them at `position`, but not yet committed.

    Protocols whose clients wait without repeating the request report this to the client (ØMQ Raft: "accepted").
    `ProposalResolved` still reports the outcome.
    """

    proposal_id: int
    position: LogId


class ChangeRefusal(Enum):
    """Reason for refusing a change of the configuration; nothing was appended, and a later request may succeed."""

    NOT_LEADER = "not-leader"
    NO_COMMIT_IN_TERM = "no-commit-in-term"
    """The leader has not committed an entry of its term yet: a change by an earlier leader may be unfinished."""
    BUSY = "busy"
    CHANGE_UNDER_WAY = "change-under-way"
    NO_VOTERS = "no-voters"
    SERVER_TWICE = "server-twice"
    """The target is joint, or lists a server twice, or as a voter and as a learner."""
    IMPOSSIBLE_ID = "impossible-id"
    """The target names an id that no server can have, or an id of another type than the group's ids."""
    TOO_MANY_SERVERS = "too-many-servers"
    MORE_THAN_ONE_SERVER = "more-than-one-server"
    """The protocol, or a server that lacks joint consensus, permits only one added or removed voter at a time."""
    NO_LEARNERS = "no-learners"
    """The protocol, or a server that lacks the extension, cannot name learners."""
    CATCH_UP_TOO_SLOW = "catch-up-too-slow"
    """The last permitted round took longer than `PolicyTimes.catch_up_round_ms`."""
    CATCH_UP_STALLED = "catch-up-stalled"
    """A new server does not reply, or does not make progress."""
    NEW_SERVER_IN_LATER_TERM = "new-server-in-later-term"
    """A new server has seen a later term than the leader's, so it is not new: it must begin with an empty directory."""
    LEADERSHIP_LOST = "leadership-lost"
    """The leader stepped down before anything was appended."""


class ChangeOutcome(Enum):
    """Outcome of a change of the configuration; unknown if leadership was lost after one of its steps was appended."""

    COMMITTED = "committed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class ConfigurationResolved(Struct, frozen=True, kw_only=True):
    """The reply to one `ChangeConfiguration`: the reason for a refusal, or the committed position."""

    change_id: int
    outcome: ChangeOutcome
    refusal: ChangeRefusal | None = None
    position: LogId | None = None
    leader: ServerId | None = None


class ConfigurationChanged(Struct, frozen=True):
    """The current members and the servers about to join, for the view and the transports, which need addresses."""

    configuration: Configuration
    newcomers: tuple[Server, ...] = ()


class ReadReady(Struct, frozen=True):
    """The read sees every write acknowledged before it began, once the state machine has taken the entry at `index`."""

    read_id: int
    index: Index


class ReadRefusal(Enum):
    """Reason why this server refuses a read at present."""

    NOT_LEADER = "not-leader"
    BUSY = "busy"


class ReadRefused(Struct, frozen=True):
    """This server does not serve the read; `leader` is the server to try next, if known."""

    read_id: int
    reason: ReadRefusal
    leader: ServerId | None


class TransferOutcome(Enum):
    """Outcome of a transfer of leadership."""

    DONE = "done"
    ELSEWHERE = "elsewhere"
    """Leadership went to another server than the target."""
    UNKNOWN = "unknown"
    """This server is not the leader any more, and the new leader is not known yet."""
    TIMED_OUT = "timed-out"
    """The target did not catch up or take over within the maximum election timeout; this server still leads."""
    DECLINED = "declined"
    """The target refused to campaign; this server still leads."""
    NOT_LEADER = "not-leader"
    ANOTHER_UNDER_WAY = "another-under-way"
    TO_ITSELF = "to-itself"
    NOT_A_VOTER = "not-a-voter"
    NO_VOTER = "no-voter"
    """No other voter can become leader."""


class TransferEnded(Struct, frozen=True):
    """The reply to one `TransferLeadership`; `leader` is the present leader, if known."""

    transfer_id: int
    outcome: TransferOutcome
    leader: ServerId | None


class Role(Enum):
    """Current role of a server (Raft section 5.1)."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RoleChanged(Struct, frozen=True):
    """A change of role, term or known leader, for the trace, the view and other code that depends on leadership."""

    role: Role
    term: Term
    leader: ServerId | None


class Halt(Struct, frozen=True):
    """This server must stop: end the process and report `reason` to the operator."""

    reason: str


SnapshotEffect = TakeSnapshot | ReadSnapshot | CheckSnapshot | Restore
Announcement = RoleChanged | ConfigurationChanged
Answer = ProposalAccepted | ProposalResolved | ConfigurationResolved | ReadReady | ReadRefused | TransferEnded
Effect = Persist | Send | Apply | ReadEntries | Answer | Announcement | Halt | SnapshotEffect
