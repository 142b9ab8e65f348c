"""The parts and options of one server.

This is a separate module because `server` and `opening`, which imports `server`, both use them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from consensus.core.effects import Effect
from consensus.core.features import Features, LeaderRecords
from consensus.core.model import Configuration, Index, ServerId
from consensus.core.options import Options, lan
from consensus.server.interfaces import ContentChecks, StateMachine, Transport
from consensus.server.options import ServerOptions
from consensus.server.status import Notice
from consensus.storage.disk_worker import ServerDisk
from consensus.storage.planner import Recovery, StorageOptions


def _ignore(_event: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Values and callbacks for `prepare_server`, `open_server` and `ConsensusServer`."""

    path: Path
    """The directory of the log, the vote and the snapshots of this server."""
    server_id: ServerId
    configuration: Configuration | Callable[[], Awaitable[Configuration]]
    """The members until the log has a configuration; empty for a server that will be added later.

    A function is called only if the recovered log does not name members. It may wait for other servers: servers that
    know each other from their logs start without it.
    """
    transport: Transport
    state_machine: StateMachine
    features: Features
    """Features of the protocol of `transport`; they choose the strategy of replication."""
    options: Options = field(default_factory=lan)
    server_options: ServerOptions = field(default_factory=ServerOptions)
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    cluster_id: str | None = None
    leader_records: LeaderRecords | None = None
    """Records of the protocol in the entries that a new leader appends."""
    node_id: bytes | None = None
    """The owner of the directory, 8 bytes; None: derived from `server_id`.

    The storage refuses another owner, a second process, and a copy of the directory in another place.
    """
    generation: int | None = None
    """A number that the caller stores elsewhere and increments before each start; None: the storage counts its starts.

    If the storage was last opened with a greater number, it is refused, because the caller's state is an older copy.
    """
    observe: Callable[[Notice], None] = _ignore
    """Called with each `Notice`: a change of role or configuration, a full disk, rejected content. It must not wait."""
    on_effects: Callable[[Sequence[Effect]], None] | None = None
    """Called with the effects of each step of the core, before they are carried out."""
    checks: ContentChecks = field(default_factory=ContentChecks)
    """Checks that may refuse the content of messages from other servers."""
    keep_from: Callable[[], Index] = lambda: 0
    """Returns the oldest entry worth keeping; older ones are deleted once a snapshot covers them."""
    snapshot_index: Callable[[], Index] | None = None
    """Returns the entry that `state_machine.snapshot()` covers; None: the newest applied one.

    After a restart the state machine receives the entries after that entry again. A snapshot is not taken if the stored
    one already ends at that entry.
    """
    random: Random = field(default_factory=Random)
    recovered: Callable[[Recovery], None] = _ignore
    """Called in the thread that has recovered the storage.

    If it raises an error, the directory is closed again.
    """
    disk_thread: bool = True
    """False: the disk is used in trio's thread.

    For tests with a `MockClock`: its time would advance while another thread works.
    """
    wrap_disk: Callable[[ServerDisk], ServerDisk] = lambda disk: disk
    """Wraps the server's disk, for measurements."""
