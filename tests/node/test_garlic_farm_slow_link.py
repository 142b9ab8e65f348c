"""A farm's Raft connections over links of 1 Mbit/s: a follower catches up while its leader keeps its term."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.effects import Outcome, Role
from consensus.core.features import GARLIC_FARM
from consensus.core.model import Configuration, Server, ServerId
from consensus.core.options import lan
from consensus.core.raft import Raft
from consensus.protocols.garlic_farm.node.connection import Cancel, call_server
from consensus.protocols.garlic_farm.node.connectors import Reached
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.metrics import Metrics
from consensus.server.event_loop import now_ms
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Owner, StorageOptions, recover
from tests.node.garlic_farm_stage import CHANNEL, Host, ScriptedHandler, Stage
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import MemoryDisk, parts_around
from tests.node.slow_link import MEGABIT_PER_S, Pipe, slow_pair

FAST = 100 * MEGABIT_PER_S
TIMEOUT_S = 600
STORAGE = StorageOptions(segment_bytes=16 * 1024 * 1024)


class ServedCore(ScriptedHandler):
    """Passes the requests of peers to a server."""

    def __init__(self, own_id: int, server: ConsensusServer) -> None:
        super().__init__(own_id)
        self._server = server

    def request(self, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> Cancel:
        return call_server(self._server, sender, request, on_reply)


@dataclass
class Member:
    """A running server."""

    server: ConsensusServer
    machine: KeptEntries
    host: Host
    metrics: Metrics
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


class SlowStage(Stage):
    """Hosts whose connections use pipes: one toward each server, shared by all of its connections."""

    def __init__(self, nursery: trio.Nursery, own_id: int, towards: dict[int, Pipe]) -> None:
        super().__init__(nursery)
        self._own_id = own_id
        self._towards = towards

    async def connect(self, address: PeerAddress) -> Reached:
        """Return a connection to the host at that port."""
        host = self.hosts.get(address.port)
        if host is None:
            raise OSError(111, "Connection refused")
        ours, theirs = slow_pair(self.nursery, self._towards[address.port], self._towards[self._own_id])
        self.nursery.start_soon(host.server.serve, theirs, f"10.0.0.{self._own_id}", CHANNEL)
        return Reached(ours, CHANNEL)


class Farm:
    """Three servers with the options of a local network."""

    def __init__(self, nursery: trio.Nursery, server_options: ServerOptions) -> None:
        self.members: dict[int, Member] = {}
        self.towards = {number: Pipe(FAST) for number in (1, 2, 3)}
        self.leaders: list[int] = []
        """Servers that became leaders, in order."""
        self._hosts: dict[int, Host] = {}
        self._disks = {number: MemoryDisk() for number in (1, 2, 3)}
        self._nursery = nursery
        self._server_options = server_options

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            await self._nursery.start(self._run, number)

    async def stop(self, number: int) -> None:
        member = self.members.pop(number)
        del self._hosts[number]
        member.scope.cancel()
        await member.ended.wait()

    async def leader(self) -> int:
        """Wait for a leader with a committed entry of its term, and return its number."""
        while True:
            for number, member in self.members.items():
                raft = member.server.describe().raft
                if raft.role is Role.LEADER and raft.commit_index == raft.last.index:
                    return number
            await trio.sleep(0.01)

    async def write(self, number: int, commands: list[bytes]) -> None:
        """Let the leader commit commands."""
        for command in commands:
            answer = await self.members[number].server.propose((command,))
            assert answer.outcome is Outcome.COMMITTED

    async def _run(self, number: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        disk, machine, incidents = self._disks[number], KeptEntries(), []  # type: ignore[var-annotated]
        recovery = recover(disk, Owner(b"node-%03d" % number, 1, 1), bytes(16), STORAGE)
        disk.run(recovery.operations)
        voters = Configuration(tuple(Server(each, f"tcp://127.0.0.1:{7000 + each}") for each in (1, 2, 3)))
        core_ = Raft(number, voters, recovery.hard_state, recovery.log, lan(), GARLIC_FARM, Random(number), now_ms())
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                stage = SlowStage(self._nursery, number, self.towards)
                stage.hosts = self._hosts
                metrics = Metrics(incidents.append)
                links = PeerLinks(stage.dialer(number), stage.resolve, metrics=metrics, random=Random(number))

                def observe(_notice: object) -> None:
                    if server.role.role is Role.LEADER and self.leaders[-1:] != [number]:
                        self.leaders.append(number)

                parts = parts_around(links, machine, observe, self._server_options)
                server = ConsensusServer(core_, recovery.storage, disk, parts)
                host = Host(number)
                host.handler = ServedCore(number, server)
                host.server._handler = host.handler
                self._hosts[number] = host
                self.members[number] = member = Member(server, machine, host, metrics, scope)
                await nursery.start(server.run)
                task_status.started()
                await trio.sleep_forever()
        member.ended.set()


@asynccontextmanager
async def farm(server_options: ServerOptions | None = None) -> AsyncIterator[Farm]:
    """Run three servers over fast links."""
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            made = Farm(nursery, server_options or ServerOptions())
            await made.start(1, 2, 3)
            yield made
            nursery.cancel_scope.cancel()


def in_memory(test: Callable[[], object]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["many-entries", "large-entries", "snapshot"])
def test_follower_over_one_megabit_link_catches_up(kind: str) -> None:
    """The follower lacks 5 MB, whose transfer takes 40 s; until then no server campaigns."""
    sizes = [100_000] * 50 if kind == "many-entries" else [1_000_000] * 5
    options = ServerOptions()
    if kind == "snapshot":
        options = replace(options, snapshot_log_bytes=2_500_000, retain_bytes=1)

    async def run() -> None:
        async with farm(options) as made:
            leader = await made.leader()
            follower = next(number for number in (1, 2, 3) if number != leader)
            await made.stop(follower)
            await made.write(leader, [bytes([n % 251]) * size for n, size in enumerate(sizes)])
            made.towards[follower].bytes_per_s = MEGABIT_PER_S
            await trio.sleep(3)
            await made.start(follower)
            began_s = trio.current_time()
            await made.members[follower].server.wait_applied(made.members[leader].server.commit_index)
            assert 38 < trio.current_time() - began_s < 95
            assert made.leaders == [leader]
            assert made.members[follower].machine.entries == made.members[leader].machine.entries

    in_memory(run)


def test_large_entry_commits_over_one_megabit() -> None:
    """Both followers have slow links."""

    async def run() -> None:
        async with farm() as made:
            leader = await made.leader()
            for number in {1, 2, 3} - {leader}:
                made.towards[number].bytes_per_s = MEGABIT_PER_S
            await made.write(leader, [bytes(1_000_000)] * 3)
            assert made.leaders == [leader]

    in_memory(run)
