"""Replicas of a KRaft quorum in one process, over loopback, with JSON in place of record batches."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from consensus.core.effects import Role
from consensus.core.features import KRAFT_STATIC
from consensus.core.messages import Reply, Request
from consensus.core.model import Configuration, Entry, EntryKind, Index, LogId, ReplicaKey, Server, ServerId
from consensus.core.options import local
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions, open_listener
from consensus.protocols.kafka.wire.limits import KafkaWireError, Topic
from consensus.protocols.kraft.replica.peer_transport import KraftTransport
from consensus.protocols.kraft.replica.quorum_service import QuorumService
from consensus.protocols.kraft.wire.mapping import Answering
from consensus.server.errors import ServerBusyError
from consensus.server.opening import open_server
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from tests.node.kept_entries import KeptEntries
from tests.node.recorded_receiver import RecordedReceiver

LOOPBACK = "127.0.0.1"


def write_entries(first: Index, entries: tuple[Entry, ...]) -> bytes:
    """Return entries as JSON, in place of record batches."""
    return json.dumps([first, [[entry.term, entry.kind.value, entry.data.hex()] for entry in entries]]).encode()


def read_entries(data: bytes, position: LogId) -> tuple[Entry, ...]:
    """Return the entries of `write_entries`; raise `KafkaWireError` if they do not follow `position`."""
    if not data:
        return ()
    first, entries = json.loads(data)
    if first != position.index + 1:
        raise KafkaWireError(f"entries from {first} on, after {position.index}")
    return tuple(Entry(term, EntryKind(kind), bytes.fromhex(data)) for term, kind, data in entries)


@dataclass
class KnownReplicas:
    """`Names` of replicas without directories."""

    own: ReplicaKey
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)

    def topic(self) -> Topic:
        """Return Kafka's topic."""
        return Topic()

    def local(self) -> ReplicaKey:
        return self.own

    def replica_key(self, replica_id: int, directory: bytes) -> ReplicaKey:
        return ReplicaKey(replica_id, directory)

    def voter_key(self, voter_id: int) -> ReplicaKey | None:
        """Return the key of a voter: every replica with an address votes."""
        return ReplicaKey(voter_id) if voter_id in self.addresses else None

    def endpoint(self, replica: ReplicaKey) -> tuple[str, int] | None:
        return self.addresses.get(replica.id)

    def listeners(self) -> tuple[tuple[str, str, int], ...]:
        return (("CONTROLLER", *self.addresses.get(self.own.id, (LOOPBACK, 1))),)


class ScriptedReceiver(RecordedReceiver):
    """A `Receiver` that keeps requests until the test answers them, or answers immediately with `answer`."""

    def __init__(self, answer: Callable[[Request], Reply | None] | None = None) -> None:
        super().__init__()
        self.requests: list[tuple[ServerId, Request, Callable[[Reply | None], None]]] = []
        self.forgotten: list[int] = []
        self.busy = False
        self._answer = answer
        self._changed = trio.Event()

    def ask(self, sender: ServerId, request: Request, on_reply: Callable[[Reply | None], None]) -> None:
        """Keep a request, and answer it if `answer` is set."""
        if self.busy:
            raise ServerBusyError("busy")
        self.requests.append((sender, request, on_reply))
        self._changed.set()
        self._changed = trio.Event()
        if self._answer is not None:
            on_reply(self._answer(request))

    def forget(self, number: int) -> None:
        """Record the number of a dropped request."""
        self.forgotten.append(number)

    async def wait_requests(self, count: int) -> list[Request]:
        while len(self.requests) < count:
            await self._changed.wait()
        return [request for _, request, _ in self.requests]


def service(receiver: RecordedReceiver | ConsensusServer, names: KnownReplicas) -> QuorumService:
    return QuorumService(receiver, names, write_entries, lambda: Answering(leader=None))


@dataclass
class Replica:
    """A running voter."""

    server: ConsensusServer
    transport: KraftTransport
    listener: KafkaListener
    machine: KeptEntries


@asynccontextmanager
async def voter(
    path: Path, number: int, names: list[KnownReplicas], cluster_id: str | None = None
) -> AsyncIterator[Replica]:
    """Run one voter of `names` on its own directory, and give all replicas its address."""
    name = names[number - 1]
    voters = Configuration(tuple(Server(each.own, f"replica:{each.own.id}") for each in names))
    transport, machine = KraftTransport(name, read_entries), KeptEntries()
    async with (
        open_server(
            ServerParts(
                path=path / str(number),
                server_id=name.own,
                configuration=voters,
                transport=transport,
                state_machine=machine,
                features=KRAFT_STATIC,
                options=local(),
                cluster_id=cluster_id,
            )
        ) as server,
        open_listener((service(server, name),), ListenerOptions(name="CONTROLLER")) as listener,
    ):
        for each in names:
            each.addresses[number] = LOOPBACK, listener.port
        yield Replica(server, transport, listener, machine)


def replica_names(count: int) -> list[KnownReplicas]:
    return [KnownReplicas(ReplicaKey(number)) for number in range(1, count + 1)]


@asynccontextmanager
async def quorum(path: Path, count: int = 3) -> AsyncIterator[list[Replica]]:
    """Run a quorum of `count` voters."""
    names = replica_names(count)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(voter(path, number, names)) for number in range(1, count + 1)]


async def leader_of(replicas: list[Replica]) -> Replica:
    while True:
        for replica in replicas:
            if replica.server.role.role is Role.LEADER:
                return replica
        await trio.sleep(0.01)
