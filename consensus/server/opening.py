"""Opens a server: storage in a directory, recovery, core, and the running server around them, as one context manager.

    ServerParts ──▶ lock, read, check, repair ──▶ recovered state ──▶ Raft ──▶ ConsensusServer, running ──▶ closed again

The order matters: nothing is sent before recovery has made its findings durable, and the lock is released only after
the server has stopped.

A server sends its first notice as soon as it runs. An owner whose callbacks need the server itself, or parts that are
made of it, opens it by `prepare_server`: the server exists, and `ConsensusServer.run` starts it when all parts exist.
`docs/explanation/consensus.md` has an example.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random

import trio

from consensus.core.effects import Effect
from consensus.core.features import Features, LeaderRecords
from consensus.core.model import Configuration, Index, ServerId
from consensus.core.options import Options, lan
from consensus.core.raft import Raft
from consensus.server.block_nursery import block_nursery
from consensus.server.event_loop import now_ms
from consensus.server.interfaces import ContentChecks, StateMachine, Transport
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.directory import Directory, InlineDisk, ThreadedDisk, open_directory
from consensus.storage.disk_worker import ServerDisk
from consensus.storage.planner import Recovery, StorageOptions

_NODE_ID_BYTES = 8


def _ignore(_event: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The parts and options of one server."""

    path: Path
    """The directory of the log, the vote and the snapshots of this server."""
    server_id: ServerId
    configuration: Configuration | Callable[[], Awaitable[Configuration]]
    """The members while the log names none; empty for a server that will be added later.

    A function is called only if the recovered log names no members. It may wait for other servers: servers that know
    each other from their logs start without it.
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

    A storage that was opened with a later number is refused: the caller's state was restored from an older copy.
    """
    observe: Callable[[Notice], None] = _ignore
    """Called with each role change, change of the configuration and alarm; it must not wait."""
    on_effects: Callable[[Sequence[Effect]], None] | None = None
    """Called with the effects of each step of the core, before they are carried out."""
    checks: ContentChecks = field(default_factory=ContentChecks)
    """Checks that may refuse the content of messages from other servers."""
    keep_from: Callable[[], Index] = lambda: 0
    """Returns the first entry behind a snapshot that is still of use."""
    snapshot_index: Callable[[], Index] | None = None
    """Returns the entry that `state_machine.snapshot()` covers; None: the newest applied one.

    After a restart the state machine receives the entries after it again. No snapshot is taken if that entry is already
    the last of the stored snapshot.
    """
    random: Random = field(default_factory=Random)
    recovered: Callable[[Recovery], None] = _ignore
    """Called in the thread that has recovered the storage. A `StorageError` of it closes the directory again."""
    disk_thread: bool = True
    """False: the disk is used in trio's thread. For tests with a `MockClock`, whose time would continue otherwise."""
    wrap_disk: Callable[[ServerDisk], ServerDisk] = lambda disk: disk
    """Returns the disk that the server uses, made of the one that is opened: for measurements."""


@asynccontextmanager
async def prepare_server(parts: ServerParts) -> AsyncIterator[ConsensusServer]:
    """Open the directory and recover a server, which does not run yet; the block must start its `run`.

    Raises `StorageError`, with the remedy, if the directory cannot be used.
    """
    if parts.disk_thread:
        directory, recovery = await trio.to_thread.run_sync(_open_storage, parts)
    else:
        directory, recovery = _open_storage(parts)
    disk = ThreadedDisk(directory) if parts.disk_thread else InlineDisk(directory)
    try:
        configuration = parts.configuration
        if not isinstance(configuration, Configuration):
            configuration = Configuration(()) if recovery.log.names_configuration else await configuration()
        core = Raft(
            parts.server_id,
            configuration,
            recovery.hard_state,
            recovery.log,
            parts.options,
            parts.features,
            parts.random,
            now_ms(),
            parts.cluster_id,
            parts.leader_records,
        )
        yield ConsensusServer(
            core,
            recovery.storage,
            parts.wrap_disk(disk),
            parts.transport,
            parts.state_machine,
            parts.observe,
            parts.server_options,
            parts.keep_from,
            parts.checks,
            parts.snapshot_index,
            parts.on_effects,
        )
    finally:
        await disk.aclose()


@asynccontextmanager
async def open_server(parts: ServerParts) -> AsyncIterator[ConsensusServer]:
    """Run one server of a Raft group, with the state in its directory, while the block lasts.

    Raises `StorageError`, with the remedy, if the directory cannot be used. An error of the disk, of the state machine
    or of the core ends the server and leaves the block as itself (`block_nursery`).
    """
    async with prepare_server(parts) as server, block_nursery() as nursery:
        await nursery.start(server.run)
        yield server


def _open_storage(parts: ServerParts) -> tuple[Directory, Recovery]:
    owner = parts.node_id or sha256(repr(parts.server_id).encode()).digest()[:_NODE_ID_BYTES]
    directory, recovery = open_directory(parts.path, owner, parts.generation, parts.storage_options)
    try:
        parts.recovered(recovery)
    except BaseException:
        directory.close()
        raise
    return directory, recovery
