"""Real servers on loopback with TLS, Garlic Farm and logs on disk; each can be killed and restarted.

Servers 1 to `founders` create the cluster. Other servers start with an empty log and no list of servers, and are added
by requests.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import trio
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.effects import Role, RoleChanged
from consensus.core.features import GARLIC_FARM
from consensus.core.model import Configuration, Entry, EntryKind, Index, LogId, Server, ServerId, integer_id
from consensus.core.options import Options
from consensus.core.raft import Raft
from consensus.net.tls import load_or_create_certificate
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.client_requests import ClientRequests
from consensus.protocols.garlic_farm.node.connection import Cancel, call_server
from consensus.protocols.garlic_farm.node.connectors import Connector
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.joining import Joining
from consensus.protocols.garlic_farm.node.links import LinkOptions, PeerLinks
from consensus.protocols.garlic_farm.node.listener import GarlicFarmServer
from consensus.protocols.garlic_farm.node.membership import MemberRequests, Members
from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.nonces import NonceBook
from consensus.protocols.garlic_farm.wire.peers import ListedPeers
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import EXTENSION_SETS, Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator
from consensus.server.event_loop import now_ms
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.sessions.dedup_state_machine import DedupStateMachine
from consensus.sessions.table import DEFAULT_LIMITS, SessionLimits
from consensus.storage.directory import ThreadedDisk, open_directory
from consensus.storage.planner import StorageOptions
from tests.node.garlic_farm_stage import CREDENTIALS, SERVER_KEYS, key_of, peers_of
from tests.node.memory_server import parts_around
from tests.node.plain_peers import PlainDialer, serve_plain

PATIENT = Options(
    election_timeout_min_ms=300,
    election_timeout_max_ms=600,
    heartbeat_ms=50,
    retry_ms=150,
    snapshot_chunk_bytes=64 * 1024,
)
CALM = replace(PATIENT, election_timeout_min_ms=4_000, election_timeout_max_ms=6_000)
"""Options for an `eager` group whose tests must not depend on elections.

With the long timeouts a leader keeps its role on a busy machine.
"""
LINKS = LinkOptions(unsent_lifetime_s=5.0, vote_lifetime_s=5.0)
"""Options for a busy machine, where requests must wait longer than usual for the first connection."""
SMALL = StorageOptions(segment_bytes=256 * 1024)
NOTHING_BEHIND = ServerOptions(retain_bytes=1)
"""Options that delete all segments before a snapshot."""


async def until(holds: Callable[[], bool]) -> None:
    """Poll until a condition without an event is true; the limit of the whole test ends the wait."""
    while not holds():  # noqa: ASYNC110 - the condition has no event
        await trio.sleep(0.01)


class Service:
    """The replicated state: a list of commands. Subclasses may add state."""

    def __init__(self) -> None:
        self.executed: list[bytes] = []

    async def execute(self, _index: int, command: bytes) -> bytes:
        self.executed.append(command)
        return b"%d" % len(self.executed)

    def snapshot(self) -> Iterator[bytes]:
        """Return an empty snapshot: the session table already contains the results of requests."""
        return iter(())

    async def restore(self, _last: LogId, state: AsyncIterator[bytes]) -> None:
        async for _ in state:
            raise AssertionError("this snapshot must be empty")


@dataclass
class Run:
    """One run of one server."""

    server: ConsensusServer
    machine: DedupStateMachine
    service: Service
    members: Members
    links: PeerLinks
    metrics: Metrics
    scope: trio.CancelScope
    ended: trio.Event

    @property
    def executed(self) -> list[bytes]:
        """Return the executed commands in order."""
        return self.service.executed


class Machine(DedupStateMachine):
    """A state machine that records the indexes of configurations, because the wire format contains them."""

    configurations: tuple[Index, ...] = ()

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        found = (index for index, entry in enumerate(entries, first) if entry.kind == EntryKind.CONFIGURATION)
        self.configurations += tuple(found)
        await super().apply(first, entries)

    def configuration_before(self, index: Index) -> Index:
        """Return the last configuration index below `index`, or 0 without one since the last snapshot."""
        return max((each for each in self.configurations if each < index), default=0)


class Gateway(ClientRequests):
    """The request handlers of a listener."""

    def __init__(self, server: ConsensusServer, server_id: int, machine: DedupStateMachine, members: Members) -> None:
        super().__init__(server, server_id, machine)
        self._server = server
        self._members = members

    def membership_request(
        self, request: wire.MembershipRequest, on_reply: Callable[[wire.Reply | None], None]
    ) -> Cancel:
        """Handle a request to add or remove a server."""
        return self._members.membership_request(request, on_reply)

    def request(self, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> Cancel:
        """Handle a peer's request."""
        return call_server(self._server, sender, request, on_reply)


class LoopbackGroup:
    """A group of servers. Each change of role sets `_changed`."""

    def __init__(
        self,
        directory: Path,
        nursery: trio.Nursery,
        limits: SessionLimits = DEFAULT_LIMITS,
        make_service: Callable[[], Service] = Service,
        options: Options = PATIENT,
        founders: int = 3,
        transport: Connector | None = None,
        *,
        eager: bool = False,
    ) -> None:
        """Set the options of the group.

        `transport` opens all connections in place of TLS. `eager`: the last started founder campaigns immediately, so
        that a group with long timeouts soon has a leader.
        """
        self._transport = transport
        self._eager = eager
        self._options = options
        self._directory = directory
        self._limits = limits
        self._make_service = make_service
        self.plain: dict[int, PeerAddress] = {}
        """Addresses of servers without TLS and handshake."""
        self.plain_ports: dict[tuple[int, int], int] = {}
        """Ports by server and plain server; a server listens for the members of `plain` at its start."""
        self.incidents: list[Incident] = []
        self._nursery = nursery
        self._ports: dict[int, int] = {}
        self._generation = 0
        self._changed = trio.Event()
        self.ids = tuple(number for number in range(1, founders + 1))
        self.runs: dict[int, Run] = {}

    async def start(self, server_id: int) -> Run:
        """Start a run from the data on disk."""
        self._generation += 1
        return await self._nursery.start(self._live, server_id, self._generation)  # type: ignore[no-any-return]  # trio's

    async def kill(self, server_id: int) -> None:
        """End a run at any point; its connections break."""
        run = self.runs.pop(server_id)
        run.scope.cancel()
        await run.ended.wait()

    async def leader(self) -> int:
        while True:
            changed = self._changed
            for server_id, run in self.runs.items():
                if run.server.role.role is Role.LEADER:
                    return server_id
            await changed.wait()

    def endpoint(self, server_id: int) -> str:
        """Return the endpoint of a server in a configuration. It contains the id, so it is the same in every run."""
        return f"tcp://127.0.0.1:{server_id}"

    def may_add(self, server: Server) -> PeerAddress | str:
        """Return the address of a listening server, or an error text."""
        return self.resolve(integer_id(server.server_id)) or "no server listens under this id"

    def may_remove(self, _server: ServerId, _configuration: Configuration) -> str | None:
        """Return None: every server may be removed."""
        return None

    def resolve(self, server_id: int) -> PeerAddress | None:
        """Return the address of a server, or None if it has never listened."""
        if server_id in self.plain:
            return self.plain[server_id]
        port = self._ports.get(server_id)
        if port is None:
            return None
        certificate = load_or_create_certificate(self._directory / str(server_id))
        return PeerAddress("127.0.0.1", port, certificate.fingerprint)

    def client(
        self, offered: tuple[str, ...] = tuple(EXTENSION_SETS), server_id: int | None = None
    ) -> GarlicFarmClient:
        """Return a client that offers these extensions and has the addresses of all founders.

        `server_id`: the client acts for this server.
        """
        return GarlicFarmClient(self._dialer(server_id, offered), self.resolve, self.ids, random=Random(5))

    def _dialer(self, server_id: int | None, offered: tuple[str, ...] = tuple(EXTENSION_SETS)) -> Dialer:
        identity, random = Identity("loopback", server_id), Random(server_id or 9)
        caller = Initiator(
            "farm",
            lambda: (CREDENTIALS,),
            lambda: identity,
            random.randbytes,
            peers_of(server_id),
            ConnectionRole.SERVER,
            offered=offered,
        )
        return Dialer(caller, transport=self._transport)

    async def _live(
        self, server_id: int, generation: int, task_status: trio.TaskStatus[Run] = trio.TASK_STATUS_IGNORED
    ) -> None:
        home = self._directory / str(server_id)
        home.mkdir(exist_ok=True)
        directory, recovery = open_directory(home / "raft", server_id.to_bytes(8, "big"), generation, SMALL)
        disk = ThreadedDisk(directory)
        ended = trio.Event()
        try:
            founders = tuple(Server(each, self.endpoint(each)) for each in self.ids) if server_id in self.ids else ()
            seed, metrics = Random(generation), Metrics(self.incidents.append)
            first = Configuration(founders)
            campaigns = self._eager and generation == len(self.ids)
            waits_since = now_ms() - (self._options.election_timeout_max_ms if campaigns else 0)
            raft = Raft(
                server_id, first, recovery.hard_state, recovery.log, self._options, GARLIC_FARM, seed, waits_since
            )
            service = self._make_service()
            machine = Machine(service.execute, self._limits, service.snapshot, service.restore)
            links = PeerLinks(
                PlainDialer(self.plain, self._dialer(server_id)),
                self.resolve,
                metrics=metrics,
                random=seed,
                options=LINKS,
                configuration_before=machine.configuration_before,
            )
            parts = parts_around(links, machine, self._observe, NOTHING_BEHIND)
            server = ConsensusServer(raft, recovery.storage, disk, parts)
            requests = MemberRequests(server, server_id, links, self, metrics)
            members = Members(Joining(server, server_id), requests)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(server.run)
                    await nursery.start(requests.run)
                    await self._listen(nursery, server_id, Gateway(server, server_id, machine, members), metrics)
                    run = Run(server, machine, service, members, links, metrics, scope, ended)
                    self.runs[server_id] = run
                    task_status.started(run)
        finally:
            disk.close()
            ended.set()

    async def _listen(self, nursery: trio.Nursery, server_id: int, gateway: Gateway, metrics: Metrics) -> None:
        authenticator = Authenticator(
            "farm",
            {CREDENTIALS.user: CREDENTIALS.password}.get,
            NonceBook(b"secret", Random(server_id).randbytes),
            lambda: Identity("loopback", server_id),
            peers=ListedPeers(key_of(server_id), SERVER_KEYS),
        )
        listener = GarlicFarmServer(authenticator, gateway, metrics)
        certificate = load_or_create_certificate(self._directory / str(server_id))
        port = self._ports.get(server_id, 0)
        self._ports[server_id] = await nursery.start(listener.listen, "127.0.0.1", port, certificate)
        for plain in self.plain:
            self.plain_ports[server_id, plain] = await nursery.start(serve_plain, plain, gateway, server_id, metrics)

    def _observe(self, notice: Notice) -> None:
        if isinstance(notice, RoleChanged):
            self._changed.set()
            self._changed = trio.Event()
