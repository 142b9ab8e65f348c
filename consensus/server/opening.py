"""Opens a server: storage in a directory, recovery, core, and the running server around them, as one context manager.

    directory ──▶ lock, read, check, repair ──▶ what was stored ──▶ Raft ──▶ ConsensusServer, running ──▶ closed again

The order matters: nothing is sent before recovery has made durable what it found, and the lock is given up only when
the server has stopped.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
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
from consensus.storage.directory import InlineDisk, ThreadedDisk, open_directory
from consensus.storage.planner import StorageOptions

_NODE_ID_BYTES = 8


def _ignore(_notice: Notice) -> None:
    """Report nothing."""


@asynccontextmanager
async def open_server(
    path: Path,
    server_id: ServerId,
    configuration: Configuration | Callable[[], Awaitable[Configuration]],
    transport: Transport,
    state_machine: StateMachine,
    *,
    features: Features,
    options: Options | None = None,
    server_options: ServerOptions | None = None,
    storage_options: StorageOptions | None = None,
    cluster_id: str | None = None,
    leader_records: LeaderRecords | None = None,
    node_id: bytes | None = None,
    generation: int | None = None,
    observe: Callable[[Notice], None] = _ignore,
    checks: ContentChecks | None = None,
    keep_from: Callable[[], Index] = lambda: 0,
    snapshot_index: Callable[[], Index] | None = None,
    random: Random | None = None,
    disk_thread: bool = True,
    on_effects: Callable[[Sequence[Effect]], None] | None = None,
) -> AsyncIterator[ConsensusServer]:
    """Run one server of a Raft group while the block lasts, with what the directory `path` holds of it.

    Three servers in one process, over a network in memory:

        import trio
        from pathlib import Path
        from tempfile import TemporaryDirectory
        from consensus import COMMAND, Configuration, Role, Server, local, open_server
        from consensus.net import MEMORY, MemoryNetwork

        GROUP = Configuration(tuple(Server(number, f"memory:{number}") for number in (1, 2, 3)))

        class Words:
            words = ()

            async def apply(self, first, entries):
                self.words += tuple(entry.data for entry in entries if entry.kind == COMMAND)

            def snapshot(self):
                return iter((b" ".join(self.words),))

            async def restore(self, last, state):
                self.words = tuple(b"".join([chunk async for chunk in state]).split())

        async def serve(path, number, network, servers):
            transport = network.transport(number)
            async with open_server(
                path / str(number), number, GROUP, transport, Words(), features=MEMORY, options=local()
            ) as server:
                servers.append(server)
                await trio.sleep_forever()

        async def main(path):
            network, servers = MemoryNetwork(), []
            async with trio.open_nursery() as nursery:
                for number in (1, 2, 3):
                    nursery.start_soon(serve, path, number, network, servers)
                while not any(server.role.role is Role.LEADER for server in servers):
                    await trio.sleep(0.01)
                leader = next(server for server in servers if server.role.role is Role.LEADER)
                print((await leader.propose((b"hello",))).outcome)
                nursery.cancel_scope.cancel()

        with TemporaryDirectory() as directory:
            trio.run(main, Path(directory))

    `configuration` counts as long as the log has none; a server that is to be added later starts with an empty one. A
    function is asked for it only if the log that was found has none: it may ask other servers, which must not keep
    servers from starting that know each other from their logs.
    `features` are those of the protocol that `transport` speaks; they choose the strategy of replication. `options` are
    the core's times and limits (`lan` by default); the other two are those of the server and of its storage.
    `leader_records` are what the protocol has in the entries that a new leader makes by itself.

    *Identity.* The directory belongs to one server: it is refused to another `node_id` (8 bytes, by default made of
    `server_id`), to a second process, and as a copy in another place. `generation` is a number that the caller keeps
    elsewhere and raises before each start; a storage that a later one has opened is refused, since the caller's state
    was put back to an older one. None: the storage counts by itself.

    `observe` hears role changes, changes of the configuration and alarms, and must return at once. `checks` may refuse
    what other servers send; `keep_from` tells the first entry that is still of use behind a snapshot. `snapshot_index`
    tells of which entry `state_machine.snapshot()` is, if not of the newest: the state machine is given the entries
    behind it again after a restart, and a snapshot of one that stands there already is not taken. With
    `disk_thread=False` the disk is used in trio's own thread: for tests with a `MockClock`, whose time would run while
    another thread works. `on_effects` is called with the effects of each step.

    Raises `StorageError` with what to do, if the directory cannot be used. An error of the disk, of the state machine
    or of the core ends the server and leaves the block as itself (`block_nursery`).
    """
    owner = node_id or sha256(repr(server_id).encode()).digest()[:_NODE_ID_BYTES]
    opening = (path, owner, generation, storage_options or StorageOptions())
    if disk_thread:
        directory, recovery = await trio.to_thread.run_sync(open_directory, *opening)
    else:
        directory, recovery = open_directory(*opening)
    disk = ThreadedDisk(directory) if disk_thread else InlineDisk(directory)
    try:
        told = configuration
        if not isinstance(told, Configuration):
            told = Configuration(()) if recovery.log.names_configuration else await told()
        core = Raft(
            server_id,
            told,
            recovery.hard_state,
            recovery.log,
            options or lan(),
            features,
            random or Random(),
            now_ms(),
            cluster_id,
            leader_records,
        )
        server = ConsensusServer(
            core,
            recovery.storage,
            disk,
            transport,
            state_machine,
            observe,
            server_options,
            keep_from,
            checks,
            snapshot_index,
            on_effects,
        )
        async with block_nursery() as nursery:
            await nursery.start(server.run)
            yield server
    finally:
        await disk.aclose()
