"""How a replica describes itself: plain data for the view, the control endpoint and the tests."""

from dataclasses import dataclass

from consensus.core.drops import Drop
from consensus.core.effects import Role
from consensus.core.features import Extensions
from consensus.core.model import Configuration, Index, LogId, Milliseconds, ServerId, SnapshotDescription, Term
from consensus.core.replication.progress import ProgressState


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """One follower as its leader sees it. `contact_ms` is how long ago it answered; None: not yet in this term.

    `caught_up_ms` is how long ago it last held all that the leader had; None: never in this term.
    """

    server_id: ServerId
    match: Index
    next: Index
    in_flight: int
    contact_ms: Milliseconds | None
    state: ProgressState
    caught_up_ms: Milliseconds | None


@dataclass(frozen=True, slots=True)
class NewcomerProgress:
    """A new server that catches up: in which round it is, and where that ends."""

    server_id: ServerId
    round_number: int
    match: Index
    goal: Index
    caught_up: bool


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """A change of the configuration under way. `newcomers` is empty once they vote."""

    change_id: int
    target: Configuration
    newcomers: tuple[NewcomerProgress, ...]


@dataclass(frozen=True, slots=True)
class SoftState:
    """The role, term and leader for replies: cheap, compared with a `RaftDescription`."""

    role: Role
    term: Term
    leader: ServerId | None
    last: LogId
    log_start: LogId
    commit_index: Index
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class RaftDescription:
    """One replica at one moment. `followers` is empty unless it leads; `dropped` counts what was ignored, by reason."""

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
    """The change of the configuration that a caller waits for, on its leader."""
    log_start: LogId
    """The log begins after this place."""
    snapshot: SnapshotDescription | None
    disk_full: bool
    pending_reads: int
    transfer_target: ServerId | None
    """The server to which leadership is being handed."""
    extensions: tuple[tuple[ServerId, Extensions], ...]
    """What the handshakes settled: what each peer understands beyond the protocol."""
    dropped: tuple[tuple[Drop, int], ...]
