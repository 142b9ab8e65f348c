"""Raft's messages in the core, for all wires.

Every request carries `correlation`, a number that its sender chose; the reply repeats it. For wires without this
number, the mapping of the wire matches replies in another way (Garlic Farm: by their order on the connection). Every
request that reaches a server gets exactly one reply, even a refused one: wires that reply in order would stall
otherwise.

Both ways of replication use `RequestVote`. A leader that sends entries uses AppendEntries, InstallSnapshot and
TimeoutNow (Raft figures 2 and 13). A follower that fetches entries uses Kafka's names (KIP-595, KIP-630):

    Kafka                                   core
    leader epoch                            term
    fetch offset, last fetched epoch        LogId: the end of the fetcher's log
    high watermark                          commit index
    DivergingEpoch (epoch, end offset)      LogId: the last position that both logs may share
    error code                              `RefusalReason`; None is success

Kafka's offsets begin at 0 and the core's indexes at 1, so an exclusive end offset equals the index of the last entry.
Every reply to a fetch contains the sender's term, and the leader if the sender knows it. So a misdirected server finds
the leader. The receiver does not compare an unknown cluster id (None).
"""

from enum import Enum

from msgspec import Struct

from consensus.core.model import ComparedInPart, Configuration, Entry, Index, LogId, Milliseconds, ServerId, Term


class RefusalReason(Enum):
    """Reason for a refused request, in the core's terms; a protocol that sends reasons has a number for each of them.

        core                 Kafka's error code, which `protocols.kraft` substitutes
        FOREIGN_CLUSTER      INCONSISTENT_CLUSTER_ID (104)
        STALE_TERM           FENCED_LEADER_EPOCH (74)
        NEWER_TERM           UNKNOWN_LEADER_EPOCH (75)
        NOT_LEADER           NOT_LEADER_OR_FOLLOWER (6)
        ANOTHER_LEADER       FENCED_LEADER_EPOCH (74)
        INCONSISTENT_VOTERS  INCONSISTENT_VOTER_SET (94)
        SNAPSHOT_UNKNOWN     SNAPSHOT_NOT_FOUND (98)
        OFFSET_OUT_OF_RANGE  POSITION_OUT_OF_RANGE (99)
        BUSY                 THROTTLING_QUOTA_EXCEEDED (89)
        IMPLAUSIBLE          INVALID_REQUEST (42)

    Garlic Farm and ØMQ Raft do not send reasons: their replies only accept or refuse.
    """

    FOREIGN_CLUSTER = "foreign-cluster"
    """Sender and receiver belong to different clusters."""
    STALE_TERM = "stale-term"
    """The request's term is older than the receiver's."""
    NEWER_TERM = "newer-term"
    """The request's term was newer than the receiver's."""
    NOT_LEADER = "not-leader"
    """Only a leader can serve this request."""
    ANOTHER_LEADER = "another-leader"
    """The receiver has recorded a different leader of this term than the sender."""
    INCONSISTENT_VOTERS = "inconsistent-voters"
    """The candidate is not a voter of the receiver's configuration, or the request does not list the receiver as
    successor.
    """
    SNAPSHOT_UNKNOWN = "snapshot-unknown"
    """The leader has replaced its snapshot, or does not have one."""
    OFFSET_OUT_OF_RANGE = "offset-out-of-range"
    """The snapshot ends before the requested byte."""
    BUSY = "busy"
    """Too many chunks of the snapshot are being read already."""
    IMPLAUSIBLE = "implausible"
    """The request is invalid: correct servers do not send such requests."""


class Fetch(Struct, frozen=True, kw_only=True):
    """A replica's request for the entries after `position`; the replica holds all entries up to `position` durably.

    The reply may wait at most `max_wait_ms` for entries or for a commit index above `commit`. It carries entries of at
    most `max_bytes`, but at least one entry if available. The reply to a keep-alive (`is_keep_alive`) comes
    immediately and without entries, and an earlier waiting fetch continues to wait.
    """

    term: Term
    replica: ServerId
    position: LogId
    commit: Index
    max_wait_ms: Milliseconds
    max_bytes: int
    correlation: int
    cluster_id: str | None = None
    is_keep_alive: bool = False


class FetchReply(Struct, frozen=True, kw_only=True):
    """Reply to a Fetch: the entries after its position, if any; or a divergence, a snapshot or an error instead.

    `diverging`: the last position that both logs may share. `snapshot`: the snapshot that replaces these entries, to be
    fetched instead. Without an `error`, `leader` is the sender.
    """

    term: Term
    leader: ServerId | None
    commit: Index
    correlation: int
    entries: tuple[Entry, ...] = ()
    diverging: LogId | None = None
    snapshot: LogId | None = None
    error: RefusalReason | None = None


class FetchSnapshot(Struct, frozen=True, kw_only=True):
    """A replica's request for bytes of the leader's snapshot of `snapshot`, from `offset` on (KIP-630)."""

    term: Term
    replica: ServerId
    snapshot: LogId
    offset: int
    max_bytes: int
    correlation: int
    cluster_id: str | None = None


class FetchSnapshotReply(Struct, frozen=True, kw_only=True):
    """Reply to FetchSnapshot: at least one byte unless the snapshot ends at `offset`, or the reason for a refusal."""

    term: Term
    leader: ServerId | None
    snapshot: LogId
    offset: int
    correlation: int
    data: bytes = b""
    size_bytes: int = 0
    """Size of the whole snapshot."""
    error: RefusalReason | None = None


class BeginQuorumEpoch(Struct, frozen=True, kw_only=True):
    """A new leader's announcement to the voters, repeated until each has replied or fetched."""

    term: Term
    leader: ServerId
    correlation: int
    cluster_id: str | None = None


class BeginQuorumEpochReply(Struct, frozen=True, kw_only=True):
    """Reply to BeginQuorumEpoch."""

    term: Term
    leader: ServerId | None
    correlation: int
    error: RefusalReason | None = None


class EndQuorumEpoch(Struct, frozen=True, kw_only=True):
    """A leader's resignation. The first server in `preferred` is the chosen successor, or has the longest log."""

    term: Term
    leader: ServerId
    preferred: tuple[ServerId, ...]
    correlation: int
    cluster_id: str | None = None


class EndQuorumEpochReply(Struct, frozen=True, kw_only=True):
    """Reply to EndQuorumEpoch. The former leader ignores the reply, because it has resigned already."""

    term: Term
    leader: ServerId | None
    correlation: int
    error: RefusalReason | None = None


FetchRequest = Fetch | FetchSnapshot | BeginQuorumEpoch | EndQuorumEpoch
FetchAnswer = FetchReply | FetchSnapshotReply | BeginQuorumEpochReply | EndQuorumEpochReply
FetchMessage = FetchRequest | FetchAnswer


class RequestVote(Struct, frozen=True, kw_only=True):
    """RequestVote RPC (Raft figure 2); with `pre_vote` only a query, which does not change any term or vote.

    With `transfer` the leader itself requested this election: voters may grant it although they are in contact with
    that leader.
    """

    term: Term
    candidate: ServerId
    last: LogId
    correlation: int
    pre_vote: bool = False
    transfer: bool = False
    cluster_id: str | None = None
    """The sender's cluster id if the protocol's vote carries it; otherwise None."""


class VoteReply(Struct, frozen=True, kw_only=True):
    """Reply to a RequestVote. For a granted pre-vote `term` is the requested term."""

    term: Term
    granted: bool
    correlation: int
    pre_vote: bool = False
    error: RefusalReason | None = None
    """Reason for a denial by a rule that the protocol adds (`election.objection`)."""


class AppendEntries(ComparedInPart, frozen=True, kw_only=True):
    """AppendEntries RPC (Raft figure 2); without entries it is a heartbeat."""

    REPEATED = frozenset({"encoded"})

    term: Term
    leader: ServerId
    previous: LogId
    entries: tuple[Entry, ...]
    commit: Index
    correlation: int
    encoded: bytes = b""
    """The encoded bytes of `entries`, if already available (`entry_data`)."""


class AppendReply(Struct, frozen=True, kw_only=True):
    """Reply to AppendEntries.

    Success: `next_index` is one beyond the last durable entry that certainly equals the leader's. Failure:
    `next_index` is the follower's hint for the next append (Raft section 5.3, last paragraph but one).
    """

    term: Term
    success: bool
    next_index: Index
    correlation: int


class InstallSnapshot(Struct, frozen=True, kw_only=True):
    """InstallSnapshot RPC (Raft section 7): a chunk of the leader's snapshot, which covers the log up to `last`."""

    term: Term
    leader: ServerId
    last: LogId
    configuration: Configuration
    offset: int
    data: bytes
    done: bool
    """True for the last chunk."""
    correlation: int


class SnapshotReply(Struct, frozen=True, kw_only=True):
    """Reply to InstallSnapshot.

    Accepted: everything before `next_offset` is durable. Refused: `next_offset` is the offset of the expected chunk.
    `installed`: the sender holds everything up to the snapshot's last entry durably, and the transfer ends.
    """

    term: Term
    accepted: bool
    next_offset: int
    installed: bool
    correlation: int


class TimeoutNow(Struct, frozen=True):
    """The leader's request to campaign immediately (`transfer`)."""

    term: Term
    leader: ServerId
    correlation: int


class TimeoutNowReply(Struct, frozen=True):
    """Reply to TimeoutNow. `accepted` is True if the campaign began; `term` is the term before the campaign."""

    term: Term
    accepted: bool
    correlation: int


AppendRequest = AppendEntries | InstallSnapshot | TimeoutNow
AppendAnswer = AppendReply | SnapshotReply | TimeoutNowReply
Request = RequestVote | AppendRequest | FetchRequest
Reply = VoteReply | AppendAnswer | FetchAnswer
Message = Request | Reply
