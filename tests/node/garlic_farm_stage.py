"""A stage for Garlic Farm tests: servers with scripted handlers, connected by memory streams.

Each server knows the identities of servers 1 to 99. A server's private key is derived from its id.
"""

import errno
import os
from collections.abc import Awaitable, Callable
from hashlib import sha256
from random import Random

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import memory_stream_pair

from consensus.core import messages as core
from consensus.core.model import ServerId
from consensus.net.receive_budget import BudgetOptions
from consensus.protocols.garlic_farm.node.client_quota import ClientQuota
from consensus.protocols.garlic_farm.node.connection import Cancel, ClientAnswer, ConnectionOptions
from consensus.protocols.garlic_farm.node.connectors import Reached
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.listener import ConnectionLimits, GarlicFarmServer
from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.limits import UNKNOWN_SERVER
from consensus.protocols.garlic_farm.wire.nonces import NonceBook
from consensus.protocols.garlic_farm.wire.peers import ListedPeers
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole, tls_channel
from consensus.protocols.garlic_farm.wire.proxy import Via
from consensus.protocols.garlic_farm.wire.upgrade import EXTENSION_SETS, Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator

PASSWORD = "correct horse"  # noqa: S105 - the test's own
CREDENTIALS = Credentials("router", PASSWORD)
ALICE, BOB, CAROL = 1, 2, 3
CHANNEL = tls_channel(sha256(b"memory").digest())
"""Channel of every connection on the stage."""


def key_of(server_id: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(b"server %d" % server_id).digest())


SERVER_KEYS = {number: key_of(number).public_key().public_bytes_raw() for number in range(1, 100)}


def peers_of(server_id: int | None) -> ListedPeers | None:
    """Return the directory of a server; None for a client, which uses only the password."""
    return None if server_id is None else ListedPeers(key_of(server_id), SERVER_KEYS)


class ScriptedHandler:
    """A handler with scripted replies. By default it grants votes, accepts appends, and `leader` leads."""

    def __init__(self, own_id: int) -> None:
        self.own_id = own_id
        self.leader: int | None = own_id
        self.term = 1
        self.log: list[bytes] = []
        self.refused = 0
        """Number of refused membership requests."""
        self.requests: list[tuple[ServerId, core.Request]] = []
        self.commands_of_clients: list[tuple[bytes, ...]] = []
        self.delay_s: Callable[[core.Request], float] = lambda _: 0
        self.client_answer: Callable[[tuple[bytes, ...]], ClientAnswer | None] = self._append

    def request(self, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> Cancel:
        self.requests.append((sender, request))

        async def answer() -> None:
            on_reply(await self._reply(request))

        return _in_the_background(answer)

    def client_request(self, commands: tuple[bytes, ...], on_reply: Callable[[ClientAnswer | None], None]) -> Cancel:
        self.commands_of_clients.append(commands)

        async def answer() -> None:
            await trio.lowlevel.checkpoint()
            on_reply(self.client_answer(commands))

        return _in_the_background(answer)

    def read_index(self, on_reply: Callable[[ClientAnswer | None], None]) -> Cancel:
        """Send the end of the log if this server leads."""
        return self.client_request((), on_reply)

    def membership_request(
        self, request: wire.MembershipRequest, on_reply: Callable[[wire.Reply | None], None]
    ) -> Cancel:
        """Refuse the request: the scripted server's members do not change."""
        self.refused += 1
        is_from_client = isinstance(request, wire.AddServerRequest | wire.RemoveServerRequest)
        destination = self.leader or UNKNOWN_SERVER if is_from_client else request.source
        on_reply(
            wire.ANSWERS[type(request)](
                source=self.own_id, destination=destination, term=self.term, next_index=0, accepted=False
            )
        )
        return _do_nothing

    async def _reply(self, request: core.Request) -> core.Reply:
        await trio.sleep(self.delay_s(request))
        if isinstance(request, core.RequestVote):
            return core.VoteReply(
                term=request.term, granted=True, correlation=request.correlation, pre_vote=request.pre_vote
            )
        if isinstance(request, core.InstallSnapshot):
            return core.SnapshotReply(
                term=request.term,
                accepted=True,
                next_offset=request.offset + len(request.data),
                installed=request.done,
                correlation=request.correlation,
            )
        if isinstance(request, core.TimeoutNow):
            return core.TimeoutNowReply(request.term, accepted=True, correlation=request.correlation)
        assert isinstance(request, core.AppendEntries)
        next_index = request.previous.index + len(request.entries) + 1
        return core.AppendReply(term=request.term, success=True, next_index=next_index, correlation=request.correlation)

    def _append(self, commands: tuple[bytes, ...]) -> ClientAnswer:
        if self.leader != self.own_id:
            return ClientAnswer(accepted=False, leader=self.leader, next_index=0, term=self.term)
        self.log += commands
        return ClientAnswer(accepted=True, leader=self.own_id, next_index=len(self.log) + 1, term=self.term)


def _in_the_background(answer: Callable[[], Awaitable[None]]) -> Cancel:
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await answer()

    trio.lowlevel.spawn_system_task(run)
    return scope.cancel


def _do_nothing() -> None:
    """Do nothing, because the reply is already sent."""


class Host:
    """One server of the stage."""

    def __init__(
        self,
        own_id: int,
        *,
        cluster: str = "farm",
        identity: Identity | None = None,
        connection_limits: ConnectionLimits | None = None,
        connection: ConnectionOptions | None = None,
        budget: BudgetOptions | None = None,
        quota: ClientQuota | None = None,
    ) -> None:
        self.incidents: list[Incident] = []
        self.incident_reported = trio.Event()
        """Event set by the first incident."""
        self.metrics = Metrics(self._record_incident)
        self.handler = ScriptedHandler(own_id)
        self.identity = identity or Identity("cluster-a", own_id)
        self.passwords = {CREDENTIALS.user: CREDENTIALS.password}
        self.authenticator = Authenticator(
            cluster,
            lambda user: self.passwords.get(user),  # noqa: PLW0108 - a test may replace the dictionary
            NonceBook(b"secret", Random(own_id).randbytes),
            lambda: self.identity,
            peers=ListedPeers(key_of(own_id), SERVER_KEYS),
        )
        self.server = GarlicFarmServer(
            self.authenticator,
            self.handler,
            self.metrics,
            connection_limits=connection_limits,
            connection=connection,
            budget=budget,
            quota=quota,
        )

    def _record_incident(self, incident: Incident) -> None:
        self.incidents.append(incident)
        self.incident_reported.set()

    @property
    def faults(self) -> set[Fault]:
        """Return the kinds of incidents so far."""
        return {incident.fault for incident in self.incidents}


class Stage:
    """Hosts by port. A connection to a port without a host is refused."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.hosts: dict[int, Host] = {}
        self.refusal = errno.ECONNREFUSED
        """Error of a connection to a port without a host."""
        self.connections = 0
        self.live: list[trio.abc.Stream] = []
        self.theirs: list[trio.abc.Stream] = []

    def add(self, host: Host) -> Host:
        """Let `host` listen on the port that equals its id."""
        self.hosts[host.handler.own_id] = host
        return host

    def via(self, _: PeerAddress) -> Via | None:
        """Return None, because connections are direct."""
        return None

    async def connect(self, address: PeerAddress) -> Reached:
        """Return a memory stream to the host at that port."""
        host = self.hosts.get(address.port)
        if host is None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        ours, theirs = memory_stream_pair()
        self.connections += 1
        self.live.append(ours)
        self.theirs.append(theirs)
        self.nursery.start_soon(host.server.serve, theirs, "10.0.0.9", CHANNEL)
        return Reached(ours, CHANNEL)

    def resolve(self, server: int) -> PeerAddress:
        """Return an address for every id, even without a host."""
        return PeerAddress("memory", server, bytes(32))

    def dialer(
        self,
        own_id: int | None,
        *,
        password: str = PASSWORD,
        cluster: str = "farm",
        cluster_id: str | None = "cluster-a",
        offered: tuple[str, ...] = tuple(EXTENSION_SETS),
        role: ConnectionRole = ConnectionRole.SERVER,
    ) -> Dialer:
        caller = Initiator(
            cluster,
            lambda: (Credentials(CREDENTIALS.user, password),),
            lambda: Identity(cluster_id, own_id),
            Random(7).randbytes,
            peers_of(own_id),
            role,
            offered=offered,
        )
        return Dialer(caller, transport=self)

    def dialer_with(self, own_id: int, credentials: Callable[[], tuple[Credentials, ...]]) -> Dialer:
        """Return a dialer that connects with the credentials current at that time."""
        identity = Identity("cluster-a", own_id)
        caller = Initiator(
            "farm", credentials, lambda: identity, Random(7).randbytes, peers_of(own_id), ConnectionRole.SERVER
        )
        return Dialer(caller, transport=self)


async def expect_fault(dialer: Dialer, address: PeerAddress, called: int | None = None) -> GarlicFarmError:
    with pytest.raises(GarlicFarmError) as raised:
        await dialer.dial(address, called)
    return raised.value
