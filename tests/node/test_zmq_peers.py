"""Three ØMQ Raft servers over real loopback sockets: they elect, commit, survive the leader, and send snapshots."""

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
PATIENCE_S = 30
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
class Life:
    """One server from its start to its end."""

    transport: PeerTransport
    machine: KeptEntries
    server: consensus.ConsensusServer
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


class Group:
    """Servers in directories of their own; each keeps its address when it is started again."""

    def __init__(self, path: Path, context: ZmqContext, nursery: trio.Nursery) -> None:
        self.lives: dict[str, Life] = {}
        self._path = path
        self._context = context
        self._nursery = nursery
        self._changed = trio.Event()
        self._urls: dict[str, str] = {}

    async def start(self, *names: str) -> None:
        """Open servers on what their directories hold."""
        transports = {name: self._transport(name) for name in names}
        for name in names:
            self.lives[name] = await self._nursery.start(self._live, name, transports[name])

    async def stop(self, name: str) -> None:
        """End a server, and wait until its directory is closed."""
        life = self.lives.pop(name)
        life.scope.cancel()
        await life.ended.wait()

    async def leader(self) -> str:
        """The server that leads all that run, as they know."""
        while True:
            for name, life in self.lives.items():
                followers = [each for each in self.lives.values() if each.server.role.leader == name]
                if life.server.role.role is consensus.Role.LEADER and len(followers) == len(self.lives):
                    return name
            await self._changed.wait()

    async def commit(self, *payloads: bytes) -> None:
        """Have updates committed, twice if the leader is lost meanwhile, and applied by all that run."""
        while True:
            server = self.lives[await self.leader()].server
            answer = await server.propose(tuple(HEAD + payload for payload in payloads))
            if answer.outcome is consensus.Outcome.COMMITTED:
                break
        assert answer.position is not None
        for life in self.lives.values():
            await life.server.wait_applied(answer.position.index)

    def payloads(self) -> set[tuple[bytes, ...]]:
        """What the state machines hold, without what was proposed twice: one element if all agree."""
        return {
            tuple(dict.fromkeys(e.data[len(HEAD) :] for e in life.machine.entries if e.kind == consensus.COMMAND))
            for life in self.lives.values()
        }

    def _configuration(self) -> consensus.Configuration:
        return consensus.Configuration(tuple(consensus.Server(name, url) for name, url in self._urls.items()))

    def _tell_members(self, name: str, identity: bytes, frames: list[bytes]) -> None:
        """Answer RequestConfig, which the receiver of a snapshot asks."""
        members = tuple(Peer(peer_id, url) for peer_id, url in self._urls.items())
        self.lives[name].transport.reply(
            identity, encode_reply(ConfigReply(request_id=frames[0], is_leader=False, leader=None, peers=members))
        )

    def _transport(self, name: str) -> PeerTransport:
        transport = PeerTransport(
            self._context,
            name,
            IDENT,
            self._urls.get(name, "tcp://127.0.0.1:*"),
            partial(self._tell_members, name),
            snapshot=lambda: self.lives[name].server.describe().raft.snapshot,
        )
        self._urls[name] = transport.bound_url
        return transport

    async def _live(
        self, name: str, transport: PeerTransport, task_status: trio.TaskStatus[Life] = trio.TASK_STATUS_IGNORED
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
                life = Life(transport, machine, server, scope)
                task_status.started(life)
                await trio.sleep_forever()
        life.ended.set()

    def _observe(self, notice: consensus.Notice) -> None:
        if isinstance(notice, consensus.RoleChanged):
            self._changed.set()
            self._changed = trio.Event()


@asynccontextmanager
async def grouped(path: Path) -> AsyncIterator[Group]:
    with zmq_context() as context:
        async with trio.open_nursery() as nursery:
            group = Group(path, context, nursery)
            with trio.fail_after(PATIENCE_S):
                await group.start("a", "b", "c")
                yield group
            nursery.cancel_scope.cancel()


async def test_three_servers_elect_a_leader_and_commit(tmp_path: Path) -> None:
    async with grouped(tmp_path) as group:
        await group.commit(b"first", b"second")
        await group.commit(b"third")
        assert group.payloads() == {(b"first", b"second", b"third")}


async def test_when_the_leader_stops_another_takes_over_and_the_old_one_follows_it(tmp_path: Path) -> None:
    async with grouped(tmp_path) as group:
        await group.commit(b"acknowledged")
        old = await group.leader()
        await group.stop(old)
        await group.commit(b"by the next leader")
        await group.start(old)
        await group.commit(b"by all three")
        assert group.payloads() == {(b"acknowledged", b"by the next leader", b"by all three")}


async def test_a_follower_that_lacks_what_is_compacted_gets_the_snapshot_in_chunks(tmp_path: Path) -> None:
    async with grouped(tmp_path) as group:
        # Given: a follower that stopped before a hundred updates, which the others have put into a snapshot
        await group.commit(b"before")
        leader = await group.leader()
        stopped = next(name for name in group.lives if name != leader)
        await group.stop(stopped)
        for number in range(10):
            await group.commit(*(b"%04d" % (10 * number + each) * 250 for each in range(10)))
        for life in group.lives.values():
            assert await life.server.take_snapshot() is not None
        # When: it comes back
        await group.start(stopped)
        await group.commit(b"after")
        # Then: it has the leader's snapshot, of ten chunks, and what follows
        assert group.lives[stopped].machine.restored
        (payloads,) = group.payloads()
        assert (payloads[0], len(payloads), payloads[-1]) == (b"before", 102, b"after")
