"""Plain replicated logs of ØMQ Raft over links in memory, on disk, for tests under a MockClock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import trio

from consensus.core.effects import Role, RoleChanged
from consensus.core.features import ZMQ_RAFT
from consensus.core.model import COMMAND, Configuration, Entry, Index, Milliseconds, Server
from consensus.core.options import Options
from consensus.net.memory import MemoryNetwork
from consensus.protocols.zmq_raft.endpoint.broadcast import BroadcastStateMachine
from consensus.protocols.zmq_raft.peer.executed_requests import ExecutedRequests, request_id_of
from consensus.protocols.zmq_raft.peer.replicated_log import LogOptions, ReplicatedLog
from consensus.protocols.zmq_raft.wire.codec import decode_broadcast
from consensus.protocols.zmq_raft.wire.messages import (
    ChangeReply,
    ChangeRequest,
    MalformedPeers,
    Peer,
    StateBroadcast,
    UpdateReply,
    UpdateRequest,
)
from consensus.protocols.zmq_raft.wire.request_ids import make_request_id
from consensus.protocols.zmq_raft.wire.request_table import RequestTable
from consensus.server.opening import open_server
from consensus.server.options import ServerOptions
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.planner import StorageOptions
from consensus.storage.snapshot_form import PLAIN
from tests.node.memory_server import until

IDENT = b"cluster"
UNIX_S = 1_700_000_000
OPTIONS = Options(election_timeout_min_ms=200, election_timeout_max_ms=300, heartbeat_ms=70, retry_ms=140, in_flight=1)


def request_id(counter: int, age_s: int = 0) -> bytes:
    """Return the id of a request made `age_s` before the run began."""
    return make_request_id(UNIX_S - age_s, b"mac", 1, counter)


def peer(number: int) -> Peer:
    return Peer(str(number), f"tcp://127.0.0.1:{8000 + number}")


@dataclass
class Node:
    """A running peer of a group."""

    server: ConsensusServer
    machine: ExecutedRequests
    log: ReplicatedLog
    scope: trio.CancelScope
    ended: trio.Event
    broadcasts: list[StateBroadcast]
    """Broadcasts that its PUB socket sent."""

    @property
    def leads(self) -> bool:
        """Return True if this peer is the leader in its own view."""
        return self.server.role.role is Role.LEADER

    def update(self, counter: int, data: bytes = b"x", age_s: int = 0) -> list[UpdateReply]:
        answers: list[UpdateReply] = []
        self.log.update(UpdateRequest(request_id(counter, age_s), b"", data), None, answers.append)
        return answers

    def change(self, counter: int, peers: Iterable[Peer] | MalformedPeers, age_s: int = 0) -> list[ChangeReply]:
        """Request other members, and return the list that receives the replies."""
        answers: list[ChangeReply] = []
        members = peers if isinstance(peers, MalformedPeers) else tuple(peers)
        self.log.change(ChangeRequest(request_id(counter, age_s), b"", members), answers.append)
        return answers

    async def entries(self, first: Index = 1) -> list[Entry]:
        return list(await self.server.read(first, 10_000, 1 << 24))

    async def updates(self) -> list[tuple[bytes, bytes]]:
        return [(request_id_of(e), e.data[12:]) for e in await self.entries() if e.kind == COMMAND]


@dataclass
class Group:
    """Servers in a directory, started and stopped by name."""

    path: Path
    nursery: trio.Nursery
    network: MemoryNetwork = field(default_factory=lambda: MemoryNetwork(delay_s=0.01))
    nodes: dict[str, Node] = field(default_factory=dict)
    table_limit: int = 262_144
    options: LogOptions = field(default_factory=LogOptions)
    times: Options = OPTIONS
    clock_ahead_s: int = 0
    """Offset of the clocks of all servers from the time of the run, in seconds."""

    def now_ms(self) -> Milliseconds:
        return (UNIX_S + self.clock_ahead_s) * 1000 + round(trio.current_time() * 1000)

    async def start(self, *numbers: int, founders: int = 3) -> None:
        for number in numbers:
            self.nodes[str(number)] = await self.nursery.start(self._serve, str(number), founders)

    async def stop(self, *nodes: Node) -> None:
        """Stop servers; unsent messages are lost."""
        for node in nodes:
            node.scope.cancel()
            await node.ended.wait()
            del self.nodes[next(name for name, each in self.nodes.items() if each is node)]

    async def leader(self) -> Node:
        """Wait for a leader, and return the leader with the highest term."""
        await until(lambda: any(node.leads for node in self.nodes.values()))
        return max((node for node in self.nodes.values() if node.leads), key=lambda node: node.server.role.term)

    async def _serve(self, peer_id: str, founders: int, *, task_status: trio.TaskStatus[Node]) -> None:
        machine = ExecutedRequests(RequestTable(self.table_limit), self.now_ms, self.options.window)
        logs: list[ReplicatedLog] = []
        broadcasts: list[BroadcastStateMachine] = []
        sent: list[StateBroadcast] = []

        def send(frames: Sequence[bytes]) -> bool:
            sent.append(decode_broadcast(frames))
            return True

        def observe(notice: Notice) -> None:
            if isinstance(notice, RoleChanged):
                for log in logs:
                    log.role_changed(notice)
                for broadcast in broadcasts:
                    broadcast.role_changed(notice)

        ended = trio.Event()
        known = Configuration(tuple(Server(str(n), peer(n).url) for n in range(1, founders + 1)))
        with trio.CancelScope() as scope:
            async with (
                open_server(
                    ServerParts(
                        path=self.path / peer_id,
                        server_id=peer_id,
                        configuration=known,
                        transport=self.network.transport(peer_id),
                        state_machine=machine,
                        features=ZMQ_RAFT,
                        options=self.times,
                        server_options=ServerOptions(
                            snapshot_log_bytes=1 << 60, snapshot_age_ms=1 << 60, retain_bytes=0
                        ),
                        storage_options=StorageOptions(segment_bytes=64 * 1024, snapshot_form=PLAIN),
                        observe=observe,
                        snapshot_index=machine.snapshot_index,
                        random=Random(int(peer_id)),
                        disk_thread=False,
                    )
                ) as server,
                trio.open_nursery() as nursery,
            ):
                logs.append(ReplicatedLog(server, machine, self.now_ms, options=self.options))
                broadcasts.append(BroadcastStateMachine(send, IDENT, machine, server.role))
                await nursery.start(logs[0].run)
                await nursery.start(broadcasts[0].run)
                task_status.started(Node(server, machine, logs[0], scope, ended, sent))
                await trio.sleep_forever()
        ended.set()
