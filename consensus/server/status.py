"""The reports of a server: notices of changes, and a description of one moment."""

from msgspec import Struct

from consensus.core.drops import CountedReason
from consensus.core.effects import ConfigurationChanged, RoleChanged
from consensus.core.model import Index, ServerId
from consensus.core.status import RaftDescription


class ShellDrop(CountedReason):
    """Messages and requests that do not reach Raft."""

    ANSWER_ARRIVING_QUEUE_FULL = (
        "answer_arriving_queue_full",
        "notices of arriving replies dropped because too many wait",
    )
    APPEND_NOT_SENT_QUEUE_FULL = "append_not_sent_queue_full", "notices of unsent appends dropped because too many wait"
    FETCH_REPLY_REJECTED_BY_STATE_MACHINE = (
        "fetch_reply_rejected_by_state_machine",
        "fetch replies whose entries the state machine rejects",
    )
    HANDSHAKE_QUEUE_FULL = "handshake_queue_full", "handshakes dropped because too many wait"
    PEER_ENDED_QUEUE_FULL = (
        "peer_ended_queue_full",
        "notices that a peer's process has ended, dropped because too many wait",
    )
    PROPOSAL_BUSY = "proposal_busy", "proposals refused because too many wait"
    REPLY_QUEUE_FULL = "reply_queue_full", "replies dropped because too many wait"
    REQUEST_BUSY = "request_busy", "requests refused because too many wait"


class DiskFull(Struct, frozen=True):
    """A notice of a change: if `full`, writes now fail because the disk is full; otherwise they succeed again."""

    full: bool


class ContentRejected(Struct, frozen=True):
    """A server sent entries or a snapshot that this server's state machine cannot apply; this server refused them."""

    sender: ServerId | None
    reason: str


Notice = RoleChanged | ConfigurationChanged | DiskFull | ContentRejected


class ServerDescription(Struct, frozen=True):
    """The core's description, and the figures of the shell (the server around the core).

    Counts begin at 0 with each `ConsensusServer`.
    """

    raft: RaftDescription
    applied: Index
    durable: Index
    hard_state_durable: bool
    """True if the term and the vote in `raft` are already on disk. `raft` may be ahead of the disk."""
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
    """Size of the log after the snapshot."""
    dropped: tuple[tuple[ShellDrop, int], ...]
