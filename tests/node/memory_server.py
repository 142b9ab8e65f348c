"""A server on a disk in memory, alone or with others over links in memory, for tests under a MockClock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.effects import Role
from consensus.core.features import GARLIC_FARM
from consensus.core.messages import Reply, Request
from consensus.core.model import COMMAND, Configuration, Entry, Server
from consensus.core.options import lan
from consensus.core.raft import Raft
from consensus.net.memory import MemoryNetwork
from consensus.server.event_loop import now_ms
from consensus.server.interfaces import ContentChecks, StateMachine, Transport, next_call
from consensus.server.options import ServerOptions
from consensus.server.parts import ServerParts
from consensus.server.pending_calls import CallbackResult
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.directory import OutOfSpaceError
from consensus.storage.disk import CreateFile, DiskOperation, DiskReader, SyncFile, WriteBytes
from consensus.storage.jobs import StorageReadResult
from consensus.storage.planner import Owner, StorageOptions, recover
from tests.node.crash_disk import CrashDisk
from tests.node.kept_entries import KeptEntries

ONE = 1
SMALL = StorageOptions(segment_bytes=256 * 1024)


@dataclass
class MemoryDisk(CrashDisk):
    """A disk that a test can make full or broken."""

    full: bool = False
    broken: bool = False
    full_for: str = ""
    """Suffix of files whose writes fail because the disk is full."""

    async def perform_all(self, operations: Sequence[DiskOperation], start: int = 0) -> None:
        """Perform operations after a delay, or fail."""
        await trio.sleep(0.002)
        writes = [operation.file for operation in operations if isinstance(operation, CreateFile | WriteBytes)]
        if self.full or (self.full_for and any(file.endswith(self.full_for) for file in writes)):
            raise OutOfSpaceError(start)
        if self.broken and any(isinstance(operation, SyncFile) for operation in operations):
            raise OSError(5, "Input/output error")
        self.run(operations[start:])

    def begin(self, operations: Sequence[DiskOperation], ended: Callable[[Exception | None], None]) -> None:
        """Perform operations after a delay, and pass the error or None to `ended`."""

        async def perform() -> None:
            error: Exception | None = None
            try:
                await self.perform_all(operations)
            except (OutOfSpaceError, OSError) as failure:
                error = failure
            ended(error)

        trio.lowlevel.spawn_system_task(perform)

    async def ask(self, question: Callable[[DiskReader], StorageReadResult]) -> StorageReadResult:
        """Read after a delay."""
        await trio.sleep(0.001)
        return question(self)


@dataclass
class Node:
    """One server with its disk, state machine and notices."""

    server: ConsensusServer
    disk: MemoryDisk
    machine: KeptEntries
    notices: list[Notice] = field(default_factory=list)

    @property
    def applied(self) -> list[Entry]:
        return self.machine.entries


def voters(count: int) -> Configuration:
    return Configuration(tuple(Server(n, f"tcp://127.0.0.1:{7000 + n}") for n in range(1, count + 1)))


def parts_around(
    transport: Transport,
    machine: StateMachine,
    observe: Callable[[Notice], None] = lambda _: None,
    options: ServerOptions | None = None,
    checks: ContentChecks | None = None,
) -> ServerParts:
    return ServerParts(
        path=Path(),
        server_id=ONE,
        configuration=voters(1),
        transport=transport,
        state_machine=machine,
        features=GARLIC_FARM,
        observe=observe,
        server_options=options or ServerOptions(),
        checks=checks or ContentChecks(),
    )


def build(
    server_id: int,
    network: MemoryNetwork,
    disk: MemoryDisk,
    count: int = 1,
    options: ServerOptions | None = None,
    configuration: Configuration | None = None,
    checks: ContentChecks | None = None,
    storage: StorageOptions = SMALL,
) -> Node:
    recovery = recover(disk, Owner(b"node-%03d" % server_id, 1, 1), bytes(16), storage)
    disk.run(recovery.operations)
    known = voters(count) if configuration is None else configuration
    checked = replace(lan(), check_invariants=True)
    core = Raft(server_id, known, recovery.hard_state, recovery.log, checked, GARLIC_FARM, Random(server_id), now_ms())
    machine, notices = KeptEntries(), list[Notice]()
    parts = parts_around(network.transport(server_id), machine, notices.append, options, checks)
    return Node(ConsensusServer(core, recovery.storage, disk, parts), disk, machine, notices)


async def request(node: Node, sender: int, sent: Request) -> Reply:
    """Return the server's reply to a peer's request.

    Like a transport, replace the correlation and restore it in the reply.
    """
    result = CallbackResult[Reply]()
    node.server.ask(sender, replace(sent, correlation=next_call()), result.give)
    reply = await result.wait()
    assert reply is not None
    return replace(reply, correlation=sent.correlation)


async def until(condition: Callable[[], bool], step_s: float = 0.01) -> None:
    """Wait until a condition is true; with a mock clock, advance simulated time."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - a condition on several objects has no single event
            await trio.sleep(step_s)


async def leader_alone(nursery: trio.Nursery, disk: MemoryDisk, options: ServerOptions | None = None) -> Node:
    node = build(ONE, MemoryNetwork(), disk, options=options)
    await nursery.start(node.server.run)
    await until(lambda: node.server.role.role is Role.LEADER)
    return node


def data(node: Node) -> list[bytes]:
    return [entry.data for entry in node.applied if entry.kind == COMMAND]
