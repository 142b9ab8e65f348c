"""What a server tells about itself: notices of what has changed, and a description of one moment."""

from dataclasses import dataclass

from consensus.core.effects import ConfigurationChanged, RoleChanged
from consensus.core.model import Index, ServerId
from consensus.core.status import RaftDescription


@dataclass(frozen=True, slots=True)
class DiskFull:
    """An alarm: writes fail for want of space since now (`full`), or work again."""

    full: bool


@dataclass(frozen=True, slots=True)
class ContentRejected:
    """A server sent entries or a snapshot that this server's state machine cannot take; nothing of it was stored."""

    sender: ServerId | None
    reason: str


Notice = RoleChanged | ConfigurationChanged | DiskFull | ContentRejected


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The core's description, and what only the shell knows. Counts are since the process began."""

    raft: RaftDescription
    applied: Index
    durable: Index
    hard_state_durable: bool
    """Whether term and vote are on the disk as `raft` tells them, which does not wait for it."""
    segments: int
    backlog_bytes: int
    disk_full: bool
    proposals_in_flight: int
    requests_in_flight: int
    groups: int
    persists: int
    entries_reread: int
    snapshots_taken: int
    snapshots_given_up: int
    restores: int
    log_bytes: int
    """Of the log that the snapshot does not cover."""
    dropped: tuple[tuple[str, int], ...]
