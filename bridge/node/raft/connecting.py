"""Connections between servers, made from the settings: certificate, transport, users, handshake.

    settings ──▶ load_transport ──▶ TlsConnector (pins, or an authority) and certificate, or I2pConnector (proxy)
                                      ├──▶ dialer(identity, role): outgoing connections of links, client, introductions
                                      └──▶ listen: incoming connections, TLS; with I2P, plain from the router's tunnel

In every handshake, `farm_peers` signs for this node's identity, and checks the other side's identity. On a connection
for introductions, this node does not claim a Raft id and does not expect a certain Raft id of the server. Each
introduction has its own signature, so nodes can exchange introductions before the farm exists.

`load_transport` reads the settings and their files first. It reports unusable files before this node sends anything.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from errno import EADDRNOTAVAIL

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.node.events.alarms import AddressNotHereError, Alarms, NodeStopped
from bridge.node.raft.users import UserFiles, Users, read_files, read_password
from bridge.node.security.certificates import watch_certificate
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.descriptors import DescriptorShares, descriptor_shares
from bridge.node.settings.network import ProxySettings
from bridge.node.settings.timing import profile_of
from bridge.wire.log.proof import ends_like_proof
from consensus.net import (
    AcceptOptions,
    CertificateError,
    NodeCertificate,
    authority_context,
    load_or_create_certificate,
    operator_certificate,
)
from consensus.protocols import garlic_farm as protocol
from gossip import Address

PROVEN_ENTRY_US, OPAQUE_ENTRY_US = 500, 20
"""Processor time of an entry with a proof, and of an entry without one, in microseconds: twice the measured times."""


class HandshakeWords(Struct, frozen=True):
    """Functions for introductions in handshakes.

    `introduced` returns the given identity of this node with the introductions to send. `met` receives the identity of
    the other side, with its introductions.
    """

    introduced: Callable[[protocol.Identity], protocol.Identity] = lambda identity: identity
    met: Callable[[protocol.Identity], None] = lambda _: None


class Transport(Struct, frozen=True):
    """The transport between servers, read from the settings and their files once at the start."""

    connector: protocol.Connector
    certificate: NodeCertificate | None
    """The certificate of this node; None if I2P encrypts."""
    signed: bool
    """True if an authority that other servers accept has signed the certificate."""
    users: UserFiles
    shares: DescriptorShares

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint of the certificate that others may pin; None without a certificate."""
        return None if self.certificate is None else self.certificate.fingerprint


def load_transport(settings: NodeConfiguration) -> Transport:
    """Load the transport, before this node sends or opens anything.

    Raise CertificateError, KeyFileError or DescriptorError for unusable files and limits.
    """
    consensus = settings.consensus
    shares, users = descriptor_shares(), read_files(consensus.users_file, consensus.logins_file)
    if settings.proxy is not None:
        return Transport(
            protocol.I2pConnector(_proxy(settings.proxy), os.urandom), None, signed=False, users=users, shares=shares
        )
    if consensus.ca_file is not None and consensus.certificate is not None:
        try:
            connector = protocol.TlsConnector(authority_context(consensus.ca_file))
        except CertificateError as error:
            raise CertificateError(f"[consensus] ca_file: {error}") from error
        own = operator_certificate(consensus.certificate)
        return Transport(connector, own, signed=True, users=users, shares=shares)
    own = load_or_create_certificate(settings.state_dir)
    return Transport(protocol.TlsConnector(), own, signed=False, users=users, shares=shares)


@asynccontextmanager
async def bound_port(bind: Address) -> AsyncIterator[Sequence[trio.SocketListener]]:
    """Bind the Raft port before this node sends anything; raise NodeStopped if the address is unavailable.

    Raise AddressNotHereError if this machine does not have the address. A node that cannot listen must stop before
    gossip counts its start. Otherwise other members would detect a failure of this node.
    """
    try:
        listeners = await trio.open_tcp_listeners(bind.port, host=bind.host)
    except OSError as error:
        kind = AddressNotHereError if error.errno == EADDRNOTAVAIL else NodeStopped
        raise kind(
            f"consensus.bind = {bind.host}:{bind.port} cannot be opened ({error.strerror or error}): choose an"
            " address of this machine and a port that no other process uses",
        ) from error
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.socket.close()


class Connecting:
    """The connections between this node and other servers, in both directions. `listen` starts to accept them."""

    def __init__(
        self,
        settings: NodeConfiguration,
        transport: Transport,
        farm_keys: FarmKeys,
        peers: protocol.PeerDirectory,
        handler: protocol.RequestHandler,
        identity: Callable[[], protocol.Identity],
        metrics: protocol.Metrics,
        words: HandshakeWords,
    ) -> None:
        """Reply to other servers with `handler`, under the identity that `identity` returns."""
        self.transport = transport
        self._peers = peers
        self._identity = identity
        self._words = words
        self._i2p_name = settings.consensus.advertise.host
        self._users = Users(farm_keys, transport.users)
        self._cluster = farm_keys.filed.cluster
        profile, shares = profile_of(settings.consensus.timing), transport.shares
        self._dial_s = profile.dial_s
        authenticator = protocol.Authenticator(
            self._cluster,
            self._users.password_of,
            protocol.NonceBook(os.urandom(32), os.urandom),
            identity,
            peers=peers,
            introduced=words.introduced,
        )
        self._server = protocol.GarlicFarmServer(
            authenticator,
            handler,
            metrics,
            connection_limits=replace(
                profile.connection_limits,
                handshakes_max=shares.raft_handshakes,
                established_max=shares.raft_established,
            ),
            accepting=AcceptOptions(unknown_max=shares.raft_unknown_waiting, known_max=shares.raft_known_waiting),
            connection=profile.conversation,
            on_identity=words.met,
            quota=protocol.ClientQuota(_cost_us),
        )

    async def watch(self, alarms: Alarms) -> None:
        """Monitor the files of users and the dates of a signed certificate, until canceled."""
        transport = self.transport
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._users.watch, alarms)
            if transport.signed and transport.certificate is not None:
                nursery.start_soon(watch_certificate, transport.certificate, alarms)

    def introducer(self) -> protocol.Dialer:
        """Return a dialer for introductions only: this node does not claim a Raft id."""
        return self.dialer(lambda: protocol.Identity(self._identity().cluster_id), protocol.ConnectionRole.CLIENT)

    def client(self, cluster_id: str) -> protocol.Dialer:
        """Return a dialer that connects to servers of that cluster as a client."""
        return self.dialer(lambda: protocol.Identity(cluster_id), protocol.ConnectionRole.CLIENT)

    def dialer(self, identity: Callable[[], protocol.Identity], role: protocol.ConnectionRole) -> protocol.Dialer:
        """Return a dialer that connects under `identity` and sends only the messages of `role`."""
        caller = protocol.Initiator(
            self._cluster,
            self._users.credentials,
            lambda: self._words.introduced(identity()),
            os.urandom,
            self._peers,
            role,
            login=self._users.login,
        )
        return protocol.Dialer(
            caller, transport=self.transport.connector, timeout_s=self._dial_s, on_identity=self._words.met
        )

    async def listen(self, nursery: trio.Nursery, bind: Address, bound: Sequence[trio.SocketListener]) -> int:
        """Accept connections on the `bound_port` of `bind` while the nursery lives; return the port."""
        certificate, server = self.transport.certificate, self._server
        if certificate is None:
            return int(await nursery.start(server.listen_plain, bind.host, bind.port, self._i2p_name, bound))
        return int(await nursery.start(server.listen, bind.host, bind.port, certificate, bound))

    def end_connections(self) -> None:
        """End all incoming connections, so that every peer must prove the current credentials."""
        self._server.places.end_established()

    def end_refused(self, refused: Callable[[protocol.ProvenPeer], bool]) -> None:
        """End the connections of peers that `refused` selects."""
        self._server.places.end_proven(refused)


def _cost_us(entry: bytes) -> int:
    """Return the processor time of an entry at each server: a proof has a signature, which each server verifies."""
    return PROVEN_ENTRY_US if ends_like_proof(entry) else OPAQUE_ENTRY_US


def _proxy(settings: ProxySettings) -> protocol.HttpProxy:
    credentials = None
    if settings.user is not None and settings.password_file is not None:
        credentials = protocol.Credentials(settings.user, read_password(settings.password_file))
    return protocol.HttpProxy(settings.address.host, settings.address.port, settings.mode, credentials)
