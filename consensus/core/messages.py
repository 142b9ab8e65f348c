"""Raft's messages as the core sees them, whatever wire carries them.

Every request carries `correlation`, a number that its sender chose; the reply repeats it. Wires that lack the word
(Garlic Farm answers in connection order) translate it in their mapping. Every request that reaches a server is answered
exactly once, even a refused one: wires that answer in order would stall otherwise.
"""

from dataclasses import dataclass

from consensus.core.model import Configuration, Entry, Index, LogId, ServerId, Term
from consensus.core.pull_messages import PullError, PullReply, PullRequest


@dataclass(frozen=True, slots=True)
class RequestVote:
    """RequestVote RPC (Raft figure 2); with `pre_vote` only a question, which changes nobody's term or vote.

    With `transfer` the leader itself has asked for this election: voters listen although they hear from it.
    """

    term: Term
    candidate: ServerId
    last: LogId
    correlation: int
    pre_vote: bool = False
    transfer: bool = False
    cluster_id: str | None = None
    """Where the protocol's vote carries it (`pull_messages`)."""


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to a RequestVote. For a granted pre-vote `term` is the asked-for term."""

    term: Term
    granted: bool
    correlation: int
    pre_vote: bool = False
    error: PullError | None = None
    """Why it could not be granted, whatever the candidate's log holds, where the protocol tells that."""


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """AppendEntries RPC (Raft figure 2); with no entries it is a heartbeat."""

    term: Term
    leader: ServerId
    previous: LogId
    entries: tuple[Entry, ...]
    commit: Index
    correlation: int


@dataclass(frozen=True, slots=True)
class AppendReply:
    """Answer to AppendEntries.

    Success: `next_index` is one beyond the last entry that is now known to equal the leader's, and durable.
    Failure: `next_index` is the follower's hint from where to try (Raft section 5.3, last paragraph but one).
    """

    term: Term
    success: bool
    next_index: Index
    correlation: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """InstallSnapshot RPC (Raft section 7): a piece of the leader's snapshot of everything up to `last`."""

    term: Term
    leader: ServerId
    last: LogId
    configuration: Configuration
    offset: int
    data: bytes
    done: bool
    """Nothing follows this piece."""
    correlation: int


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """Answer to InstallSnapshot.

    Accepted: everything before `next_offset` is durable. Refused: nothing changed, and `next_offset` is the piece that
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


PushRequest = AppendEntries | InstallSnapshot | TimeoutNow
PushReply = AppendReply | SnapshotReply | TimeoutNowReply
Request = RequestVote | PushRequest | PullRequest
Reply = VoteReply | PushReply | PullReply
Message = Request | Reply
