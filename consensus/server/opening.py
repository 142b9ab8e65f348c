"""Opens a server: storage in a directory, recovery, core, and the running server around them, as one context manager.

    ServerParts ──▶ lock, read, check, repair ──▶ recovered state ──▶ Raft ──▶ ConsensusServer, running ──▶ closed again

The order matters: nothing is sent before recovery has made its findings durable, and the lock is released only after
the server has stopped.

A server sends its first notice as soon as it runs. If callbacks need the server itself, or parts that depend on the
server, its owner uses `prepare_server`. Then the server exists first, and `ConsensusServer.run` starts it when all
parts exist. `docs/explanation/consensus.md` has an example of `open_server`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

import trio

from consensus.core.model import Configuration
from consensus.core.raft import Raft
from consensus.server.block_nursery import block_nursery
from consensus.server.event_loop import now_ms
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from consensus.storage.directory import Directory, InlineDisk, ThreadedDisk, open_directory
from consensus.storage.planner import Recovery

_NODE_ID_BYTES = 8


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
        yield ConsensusServer(core, recovery.storage, parts.wrap_disk(disk), parts)
    finally:
        await disk.aclose()


@asynccontextmanager
async def open_server(parts: ServerParts) -> AsyncIterator[ConsensusServer]:
    """Run one server of a Raft group, with the state in its directory, while the block lasts.

    Raises `StorageError`, with the remedy, if the directory cannot be used. An error of the disk, of the state machine
    or of the core ends the server, and the block raises it without a group (`block_nursery`).
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
