"""Three ØMQ Raft servers on loopback sockets: they elect a leader, commit, continue without it and send snapshots."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import trio

import consensus
from consensus.core.features import ZMQ_RAFT
from consensus.core.options import Options
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport
from consensus.protocols.zmq_raft.sockets import ZmqContext, zmq_context
from consensus.protocols.zmq_raft.wire.codec import encode_reply
from consensus.protocols.zmq_raft.wire.messages import ConfigReply, Peer
from consensus.storage.snapshot_form import PLAIN
from tests.node.kept_entries import KeptEntries

IDENT = b"cluster"
TIMEOUT_S = 30
OPTIONS = Options(
    election_timeout_min_ms=200,
    election_timeout_max_ms=300,
    heartbeat_ms=70,
    retry_ms=140,
    in_flight=1,
    snapshot_chunk_bytes=10_000,
)
HEAD = b"request-id-0"


@dataclass
class Run:
    """One server from its start to its end."""

    transport: PeerTransport
    machine: KeptEntries
    server: consensus.ConsensusServer
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


class Group:
    """Servers in separate directories; each keeps its address over restarts."""

    def __init__(self, path: Path, context: ZmqContext, nursery: trio.Nursery) -> None:
        self.runs: dict[str, Run] = {}
        self._path = path
        self._context = context
        self._nursery = nursery
        self._changed = trio.Event()
        self._urls: dict[str, str] = {}

    async def start(self, *names: str) -> None:
        transports = {name: self._transport(name) for name in names}
        for name in names:
            self.runs[name] = await self._nursery.start(self._run, name, transports[name])

    async def stop(self, name: str) -> None:
        """End a server, and wait until its directory is closed."""
        run = self.runs.pop(name)
        run.scope.cancel()
        await run.ended.wait()

    async def leader(self) -> str:
        """Wait for a server that all running servers follow, and return its name."""
        while True:
            for name, run in self.runs.items():
                followers = [each for each in self.runs.values() if each.server.role.leader == name]
                if run.server.role.role is consensus.Role.LEADER and len(followers) == len(self.runs):
                    return name
            await self._changed.wait()

    async def commit(self, *payloads: bytes) -> None:
        """Commit updates, again if the leader is lost, and wait until all running servers have applied them."""
        while True:
            server = self.runs[await self.leader()].server
            answer = await server.propose(tuple(HEAD + payload for payload in payloads))
            if answer.outcome is consensus.Outcome.COMMITTED:
                break
        assert answer.position is not None
        for run in self.runs.values():
            await run.server.wait_applied(answer.position.index)

    def payloads(self) -> set[tuple[bytes, ...]]:
        """Return the distinct contents of the state machines, without repeated updates: one element if all agree."""
        return {
            tuple(dict.fromkeys(e.data[len(HEAD) :] for e in run.machine.entries if e.kind == consensus.COMMAND))
            for run in self.runs.values()
        }

    def _configuration(self) -> consensus.Configuration:
        return consensus.Configuration(tuple(consensus.Server(name, url) for name, url in self._urls.items()))

    def _return_members(self, name: str, identity: bytes, frames: list[bytes]) -> None:
        """Answer the RequestConfig of a snapshot's receiver."""
        members = tuple(Peer(peer_id, url) for peer_id, url in self._urls.items())
        self.runs[name].transport.reply(
            identity, encode_reply(ConfigReply(request_id=frames[0], is_leader=False, leader=None, peers=members))
        )

    def _transport(self, name: str) -> PeerTransport:
        transport = PeerTransport(
            self._context,
            name,
            IDENT,
            self._urls.get(name, "tcp://127.0.0.1:*"),
            partial(self._return_members, name),
            snapshot=lambda: self.runs[name].server.describe().raft.snapshot,
        )
        self._urls[name] = transport.bound_url
        return transport

    async def _run(
        self, name: str, transport: PeerTransport, task_status: trio.TaskStatus[Run] = trio.TASK_STATUS_IGNORED
    ) -> None:
        machine, configuration = KeptEntries(), self._configuration()
        transport.members(configuration.servers)
        with trio.CancelScope() as scope:
            async with consensus.open_server(
                consensus.ServerParts(
                    path=self._path / name,
                    server_id=name,
                    configuration=configuration,
                    transport=transport,
                    state_machine=machine,
                    features=ZMQ_RAFT,
                    options=OPTIONS,
                    server_options=consensus.ServerOptions(retain_bytes=0),
                    storage_options=consensus.StorageOptions(
                        segment_bytes=64 * 1024, tail_entries=8, snapshot_form=PLAIN
                    ),
                    observe=self._observe,
                    random=Random(name),
                    disk_thread=False,
                )
            ) as server:
                run = Run(transport, machine, server, scope)
                task_status.started(run)
                await trio.sleep_forever()
        run.ended.set()

    def _observe(self, notice: consensus.Notice) -> None:
        if isinstance(notice, consensus.RoleChanged):
            self._changed.set()
            self._changed = trio.Event()


@asynccontextmanager
async def running_group(path: Path) -> AsyncIterator[Group]:
    with zmq_context() as context:
        async with trio.open_nursery() as nursery:
            group = Group(path, context, nursery)
            with trio.fail_after(TIMEOUT_S):
                await group.start("a", "b", "c")
                yield group
            nursery.cancel_scope.cancel()


async def test_group_elects_leader_and_commits(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.commit(b"first", b"second")
        await group.commit(b"third")
        assert group.payloads() == {(b"first", b"second", b"third")}


async def test_restarted_leader_follows_its_successor(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.commit(b"acknowledged")
        old = await group.leader()
        await group.stop(old)
        await group.commit(b"by the next leader")
        await group.start(old)
        await group.commit(b"by all three")
        assert group.payloads() == {(b"acknowledged", b"by the next leader", b"by all three")}


async def test_follower_that_lacks_compacted_entries_gets_snapshot(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        # Given: a follower that stopped before a hundred updates, which the others have in a snapshot
        await group.commit(b"before")
        leader = await group.leader()
        follower = next(name for name in group.runs if name != leader)
        await group.stop(follower)
        for number in range(10):
            await group.commit(*(b"%04d" % (10 * number + each) * 250 for each in range(10)))
        for run in group.runs.values():
            assert await run.server.take_snapshot() is not None
        # When: it restarts
        await group.start(follower)
        await group.commit(b"after")
        # Then: it has the leader's snapshot, of more than ten chunks, and the following entries
        assert group.runs[follower].machine.restored
        (payloads,) = group.payloads()
        assert (payloads[0], len(payloads), payloads[-1]) == (b"before", 102, b"after")
