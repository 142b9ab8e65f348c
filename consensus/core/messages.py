"""Raft's messages as the core sees them, whatever wire carries them.

Every request carries `correlation`, a number that its sender chose; the reply repeats it. Wires without such a number
(Garlic Farm answers in connection order) translate it in their mapping. Every request that reaches a server is answered
exactly once, even a refused one: wires that answer in order would stall otherwise.

Both ways of replication use `RequestVote`. A leader that sends entries uses AppendEntries, InstallSnapshot and
TimeoutNow (Raft figures 2 and 13). A follower that fetches them uses Kafka's words (KIP-595, KIP-630):

    Kafka                                   core
    leader epoch                            term
    fetch offset, last fetched epoch        LogId: where the fetcher's log ends
    high watermark                          commit index
    DivergingEpoch (epoch, end offset)      LogId: the newest place where both logs may agree
    error code                              `RefusalReason`; None is success

With indexes from 1 the numbers are the same: an exclusive end offset equals the index of the last entry. Every reply to
a fetch names the sender's term and the leader it knows, so that a server that asked the wrong one learns which to ask.
The cluster id is None where it is not known yet, and then not compared.
"""

from dataclasses import dataclass, field
from enum import Enum

from consensus.core.model import Configuration, Entry, Index, LogId, Milliseconds, ServerId, Term


class RefusalReason(Enum):
    """Why a request was refused, in the core's own words; a protocol that tells the reason has its number for each.

    core                    Kafka's error code, which `protocols.kraft` puts in its place
    FOREIGN_CLUSTER         INCONSISTENT_CLUSTER_ID (104)
    STALE_TERM              FENCED_LEADER_EPOCH (74)
    NEWER_TERM              UNKNOWN_LEADER_EPOCH (75)
    NOT_LEADER              NOT_LEADER_OR_FOLLOWER (6)
    ANOTHER_LEADER          FENCED_LEADER_EPOCH (74)
    INCONSISTENT_VOTERS     INCONSISTENT_VOTER_SET (94)
    SNAPSHOT_UNKNOWN        SNAPSHOT_NOT_FOUND (98)
    OFFSET_OUT_OF_RANGE     POSITION_OUT_OF_RANGE (99)
    BUSY                    THROTTLING_QUOTA_EXCEEDED (89)
    IMPLAUSIBLE             INVALID_REQUEST (42)

    Garlic Farm has no word for a reason: its answers say accepted or not. ZeroMQ Raft has none either.
    """

    FOREIGN_CLUSTER = "foreign-cluster"
    """The two belong to different clusters."""
    STALE_TERM = "stale-term"
    """The request's term is older than the receiver's."""
    NEWER_TERM = "newer-term"
    """The request's term was newer than the receiver's."""
    NOT_LEADER = "not-leader"
    """Only a leader can answer this."""
    ANOTHER_LEADER = "another-leader"
    """The receiver knows another leader of this term than the sender."""
    INCONSISTENT_VOTERS = "inconsistent-voters"
    """The candidate is no voter that the receiver knows, or the receiver no successor that the request names."""
    SNAPSHOT_UNKNOWN = "snapshot-unknown"
    """The leader has another snapshot by now, or none."""
    OFFSET_OUT_OF_RANGE = "offset-out-of-range"
    """The snapshot ends before the byte that is asked for."""
    BUSY = "busy"
    """Too many chunks of the snapshot are being read already."""
    IMPLAUSIBLE = "implausible"
    """No correct server sends this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A replica asks its leader for what follows `position`, all of which it holds durably.

    The answer may wait for `max_wait_ms`, until there are entries, or a commit index above `commit`. It carries entries
    of at most `max_bytes`, but at least one if there is one. To a sign of life the answer comes immediately and without
    entries, and a fetch that waits goes on waiting.
    """

    term: Term
    replica: ServerId
    position: LogId
    commit: Index
    max_wait_ms: Milliseconds
    max_bytes: int
    correlation: int
    cluster_id: str | None = None
    is_sign_of_life: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReply:
    """Answer to a Fetch: the entries after its position, or one of three reasons why there are none.

    `diverging`: where the logs may still agree. `snapshot`: what stands for these entries, to be fetched instead.
    `leader` is the sender when `error` is None.
    """

    term: Term
    leader: ServerId | None
    commit: Index
    correlation: int
    entries: tuple[Entry, ...] = ()
    diverging: LogId | None = None
    snapshot: LogId | None = None
    error: RefusalReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshot:
    """A replica asks its leader for bytes of the snapshot of `snapshot`, from `offset` on (KIP-630)."""

    term: Term
    replica: ServerId
    snapshot: LogId
    offset: int
    max_bytes: int
    correlation: int
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotReply:
    """Answer to FetchSnapshot: at least one byte unless the snapshot ends at `offset`, or why not."""

    term: Term
    leader: ServerId | None
    snapshot: LogId
    offset: int
    correlation: int
    data: bytes = b""
    size_bytes: int = 0
    """Of the whole snapshot."""
    error: RefusalReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpoch:
    """A new leader tells the voters, again and again until each has answered or fetched."""

    term: Term
    leader: ServerId
    correlation: int
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochReply:
    """Answer to BeginQuorumEpoch."""

    term: Term
    leader: ServerId | None
    correlation: int
    error: RefusalReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpoch:
    """A leader resigns; the server with the most of its log stands first in `preferred` and campaigns at once."""

    term: Term
    leader: ServerId
    preferred: tuple[ServerId, ...]
    correlation: int
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochReply:
    """Answer to EndQuorumEpoch. The sender ignores it: it has resigned already."""

    term: Term
    leader: ServerId | None
    correlation: int
    error: RefusalReason | None = None


FetchRequest = Fetch | FetchSnapshot | BeginQuorumEpoch | EndQuorumEpoch
FetchAnswer = FetchReply | FetchSnapshotReply | BeginQuorumEpochReply | EndQuorumEpochReply
FetchMessage = FetchRequest | FetchAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVote:
    """RequestVote RPC (Raft figure 2); with `pre_vote` only a question, which changes no term or vote.

    With `transfer` the leader itself has asked for this election: voters answer although they still hear from it.
    """

    term: Term
    candidate: ServerId
    last: LogId
    correlation: int
    pre_vote: bool = False
    transfer: bool = False
    cluster_id: str | None = None
    """Where the protocol's vote carries it; None otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply:
    """Answer to a RequestVote. For a granted pre-vote `term` is the asked-for term."""

    term: Term
    granted: bool
    correlation: int
    pre_vote: bool = False
    error: RefusalReason | None = None
    """Why it could not be granted, whatever the candidate's log holds, where the protocol tells that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries:
    """AppendEntries RPC (Raft figure 2); with no entries it is a heartbeat."""

    term: Term
    leader: ServerId
    previous: LogId
    entries: tuple[Entry, ...]
    commit: Index
    correlation: int
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """The bytes of `entries`, where they are at hand (`entry_data`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply:
    """Answer to AppendEntries.

    Success: `next_index` is one beyond the last entry that is now known to equal the leader's, and durable.
    Failure: `next_index` is the follower's hint from where to try (Raft section 5.3, last paragraph but one).
    """

    term: Term
    success: bool
    next_index: Index
    correlation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """InstallSnapshot RPC (Raft section 7): a chunk of the leader's snapshot of everything up to `last`."""

    term: Term
    leader: ServerId
    last: LogId
    configuration: Configuration
    offset: int
    data: bytes
    done: bool
    """Nothing follows this chunk."""
    correlation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReply:
    """Answer to InstallSnapshot.

    Accepted: everything before `next_offset` is durable. Refused: nothing changed, and `next_offset` is the chunk that
    is wanted. `installed`: the sender holds everything up to the snapshot's last entry durably, and wants no more.
    """

    term: Term
    accepted: bool
    next_offset: int
    installed: bool
    correlation: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: campaign at once (`transfer`)."""

    term: Term
    leader: ServerId
    correlation: int


@dataclass(frozen=True, slots=True)
class TimeoutNowReply:
    """Answer to TimeoutNow: whether the campaign began. `term` is the term before it."""

    term: Term
    accepted: bool
    correlation: int


AppendRequest = AppendEntries | InstallSnapshot | TimeoutNow
AppendAnswer = AppendReply | SnapshotReply | TimeoutNowReply
Request = RequestVote | AppendRequest | FetchRequest
Reply = VoteReply | AppendAnswer | FetchAnswer
Message = Request | Reply
