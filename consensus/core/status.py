"""The description of a replica: plain data for the view, the control endpoint and the tests."""

from msgspec import Struct

from consensus.core.drops import Drop
from consensus.core.effects import Role
from consensus.core.features import Extensions
from consensus.core.model import Configuration, Index, LogId, Milliseconds, ServerId, SnapshotDescription, Term
from consensus.core.replication.progress import ProgressState


class FollowerProgress(Struct, frozen=True):
    """One follower as its leader sees it.

    `contact_ms` is the time since its last reply in this term; None without such a reply. `caught_up_ms` is the time
    since the follower last held the leader's whole log; None if never in this term.
    """

    server_id: ServerId
    match: Index
    next: Index
    in_flight: int
    contact_ms: Milliseconds | None
    state: ProgressState
    caught_up_ms: Milliseconds | None


class NewcomerProgress(Struct, frozen=True):
    """A new server that catches up in rounds.

    The present round ends at the leader's index `goal`.
    """

    server_id: ServerId
    round_number: int
    match: Index
    goal: Index
    caught_up: bool


class ChangeProgress(Struct, frozen=True):
    """A change of the configuration under way.

    `newcomers` lists the servers that still catch up. It is empty once the leader has appended the first configuration
    of the change.
    """

    change_id: int
    target: Configuration
    newcomers: tuple[NewcomerProgress, ...]


class SoftState(Struct, frozen=True):
    """The values that a protocol reads for every message, such as role, term and leader.

    It is cheaper to make than a `RaftDescription`.
    """

    role: Role
    term: Term
    leader: ServerId | None
    last: LogId
    log_start: LogId
    commit_index: Index
    configuration: Configuration


class RaftDescription(Struct, frozen=True):
    """One replica at one moment. `followers` is empty unless it leads; `dropped` counts ignored messages by reason."""

    server_id: ServerId
    role: Role
    term: Term
    voted_for: ServerId | None
    leader: ServerId | None
    last: LogId
    durable_index: Index
    commit_index: Index
    applied_index: Index
    pending_proposals: int
    followers: tuple[FollowerProgress, ...]
    configuration: Configuration
    change: ChangeProgress | None
    """On the leader only: the change of the configuration that a caller waits for."""
    log_start: LogId
    """The log begins after this place."""
    snapshot: SnapshotDescription | None
    disk_full: bool
    pending_reads: int
    transfer_target: ServerId | None
    """The target of a transfer of leadership under way."""
    extensions: tuple[tuple[ServerId, Extensions], ...]
    """The optional features of each peer (pre-vote, transfer, …), as announced in its handshake."""
    dropped: tuple[tuple[Drop, int], ...]
