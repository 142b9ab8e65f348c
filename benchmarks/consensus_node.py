"""One server of the bare consensus group: storage, core, TLS transport, and a state machine that only counts.

    python -m benchmarks.consensus_node SPECIFICATION      (JSON: the fields of `Specification`)

A farm's node also gossips, reports and publishes; this process only replicates, so its cost is the cost of consensus.
It prints one line with its port and its certificate's fingerprint. It reads one line with its peers and prints "ready".
For each further line that it reads, it prints its status. It ends when its standard input closes, so it cannot outlive
the benchmark.
"""

import dataclasses
import gc
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from benchmarks.child import READY
from benchmarks.hop_marks import HopMarks
from benchmarks.time_split import TimeSplit
from consensus import (
    GARLIC_FARM,
    Configuration,
    ConsensusServer,
    Entry,
    Index,
    LogId,
    Notice,
    Reply,
    Request,
    Role,
    Server,
    ServerId,
    ServerParts,
    integer_id,
    lan,
    prepare_server,
)
from consensus.net import load_or_create_certificate
from consensus.protocols.garlic_farm import (
    Authenticator,
    Cancel,
    ClientRequests,
    ConnectionRole,
    Credentials,
    Dialer,
    GarlicFarmServer,
    Identity,
    Initiator,
    ListedPeers,
    Metrics,
    NonceBook,
    PeerAddress,
    PeerLinks,
    call_server,
)

CLUSTER = "benchmark"
USER = "benchmark"
LISTENS = "127.0.0.1"
INSTRUMENTS: dict[str, Callable[[], HopMarks | TimeSplit | None]] = {
    "": lambda: None,
    "hops": HopMarks,
    "split": TimeSplit,
}


@dataclass(frozen=True, slots=True)
class Specification:
    """The specification of one server of a group, whose servers have the ids from 1 to `servers`."""

    server_id: int
    servers: int
    directory: str
    password: str
    port: int = 0
    instrument: str = ""
    """The measurement: `hops` for the time of each hop of an entry, `split` for processor time by kind of work."""
    hosted: int = 1
    """Number of servers in this process, with consecutive ids and a subdirectory each."""
    follows: bool = False
    """True if the servers connect only to server 1."""
    election_timeout_ms: int = 1_000
    """The shortest election timeout; the longest is twice as long."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement of one server at its start, for the other servers."""

    server_id: int
    port: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Status:
    """The status that a server prints for a line on its standard input."""

    leads: bool
    leader: int
    term: int
    last: int
    """The index of its last entry."""
    commit: int
    applied: int


class CountingMachine:
    """A state machine that only counts entries."""

    def __init__(self) -> None:
        self.entries = 0

    async def apply(self, _first: Index, entries: tuple[Entry, ...]) -> None:
        """Count committed entries."""
        self.entries += len(entries)

    def snapshot(self) -> Iterator[bytes]:
        """Return their number as a snapshot."""
        return iter((b"%d" % self.entries,))

    async def restore(self, _last: LogId, state: AsyncIterator[bytes]) -> None:
        """Restore their number from a snapshot."""
        self.entries = int(b"".join([chunk async for chunk in state]))


class Gateway(ClientRequests):
    """The handlers of the listener, for peers as well."""

    def request(self, sender: ServerId, request: Request, on_reply: Callable[[Reply | None], None]) -> Cancel:
        """Handle a request of a peer."""
        return call_server(self._server, sender, request, on_reply)


class LinksToLeader(PeerLinks):
    """Links of a server that connects only to server 1. Links to all others would spend its time on failed dials."""

    def connect(self, peers: Collection[ServerId]) -> None:
        """Keep a connection to server 1, if it is among these peers."""
        super().connect({1} & set(peers))


def main() -> None:
    """Run as `python -m benchmarks.consensus_node`, with the specification as the only argument."""
    logging.basicConfig(level=logging.WARNING)
    trio.run(_run, Specification(**json.loads(sys.argv[1])))


def _identity_key(server_id: int) -> Ed25519PrivateKey:
    """Return keys shared by all servers of a benchmark; they do not protect anything."""
    return Ed25519PrivateKey.from_private_bytes(sha256(b"benchmark %d" % server_id).digest())


class _Node:
    """One server; `open` binds it, `run` starts it when it has the addresses of the others."""

    def __init__(self, specification: Specification) -> None:
        server_id, path = specification.server_id, Path(specification.directory)
        self.specification = specification
        self.certificate = load_or_create_certificate(path)
        self.peers: dict[ServerId, PeerAddress] = {}
        self.metrics = Metrics()
        identity = Identity(CLUSTER, server_id)
        credentials = Credentials(USER, specification.password)
        numbers = range(1, specification.servers + 1)
        keys = {number: _identity_key(number) for number in numbers}
        group = ListedPeers(
            keys[server_id], {number: key.public_key().public_bytes_raw() for number, key in keys.items()}
        )
        self.authenticator = Authenticator(
            CLUSTER,
            {USER: specification.password}.get,
            NonceBook(os.urandom(32), os.urandom),
            lambda: identity,
            peers=group,
        )
        initiator = Initiator(
            CLUSTER, lambda: (credentials,), lambda: identity, os.urandom, group, ConnectionRole.SERVER
        )
        links = LinksToLeader if specification.follows else PeerLinks
        self.parts = ServerParts(
            path=path / "raft",
            server_id=server_id,
            configuration=Configuration(tuple(Server(each, f"tcp://{LISTENS}:{each}") for each in numbers)),
            transport=links(Dialer(initiator), self.peers.get, metrics=self.metrics, random=Random()),
            state_machine=CountingMachine(),
            features=GARLIC_FARM,
            options=replace(
                lan(),
                election_timeout_min_ms=specification.election_timeout_ms,
                election_timeout_max_ms=2 * specification.election_timeout_ms,
            ),
            node_id=server_id.to_bytes(8, "big"),
            generation=_generation(path),
            observe=_observe,
        )

    async def open(self, stack: AsyncExitStack, nursery: trio.Nursery) -> Announcement:
        self._server = await stack.enter_async_context(prepare_server(self.parts))
        gateway = Gateway(self._server, self.specification.server_id)
        listener = GarlicFarmServer(self.authenticator, gateway, self.metrics)
        port = await nursery.start(listener.listen, LISTENS, self.specification.port, self.certificate)
        return Announcement(self.specification.server_id, port, self.certificate.fingerprint.hex())

    async def run(self, announced: list[Announcement], nursery: trio.Nursery) -> ConsensusServer:
        """Start the server; `announced` are all servers."""
        for each in announced[:1] if self.specification.follows else announced:
            self.peers[each.server_id] = PeerAddress(LISTENS, each.port, bytes.fromhex(each.fingerprint))
        await nursery.start(self._server.run)
        return self._server


async def _run(specification: Specification) -> None:
    # The parts of a server keep methods of each other, so the methods are replaced first.
    instrument = INSTRUMENTS[specification.instrument]()
    nodes = [_Node(each) for each in _hosted(specification)]
    # As in `garlicfarm run`: full collections of garbage leave out the objects of modules.
    gc.freeze()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for node in nodes:
            print(json.dumps(asdict(await node.open(stack, nursery))), flush=True)
        line = await trio.to_thread.run_sync(sys.stdin.readline)
        announced = [Announcement(**each) for each in json.loads(line)]
        server, *_ = [await node.run(announced, nursery) for node in nodes]
        print(READY, flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            status = asdict(_status(server)) | ({} if instrument is None else {"taken": instrument.take()})
            print(json.dumps(status), flush=True)
        nursery.cancel_scope.cancel()


def _hosted(specification: Specification) -> list[Specification]:
    if specification.hosted == 1:
        return [specification]
    found = []
    for number in range(specification.server_id, specification.server_id + specification.hosted):
        directory = Path(specification.directory, str(number))
        directory.mkdir(mode=0o700)
        found.append(dataclasses.replace(specification, server_id=number, directory=str(directory)))
    return found


def _status(server: ConsensusServer) -> Status:
    found = server.describe()
    raft = found.raft
    return Status(
        raft.role is Role.LEADER,
        integer_id(raft.leader or 0),
        raft.term,
        raft.last.index,
        server.commit_index,
        found.applied,
    )


def _observe(_notice: Notice) -> None:
    """Ignore notices."""


def _generation(path: Path) -> int:
    """Return the next generation: the storage refuses an earlier one."""
    file = path / "generation"
    generation = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(generation))
    return generation


if __name__ == "__main__":
    main()
