"""How this node's servers listen and connect, out of the settings: certificate, transport, users, handshake.

    settings ──▶ TlsConnector (pins, or an authority)  ──▶ dialer(identity, role) ──▶ links, client, introductions
            └──▶ I2pConnector (proxy)                  ──▶ listen: TLS, or plain on loopback for the router's tunnel

Every handshake proves this node's identity, by the directory that also judges the other side's (`farm_peers`).
Introductions are made in no server's name: they are signed themselves, and serve before there is a farm.

What is unusable is said at the start, in words, before anything listens.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import trio

from bridge.node.events.alarms import Alarms
from bridge.node.raft.users import Users, read_password
from bridge.node.security.certificates import watch_certificate
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.descriptors import descriptor_shares
from bridge.node.settings.timing import profile_of
from bridge.node.settings.transport import ProxySettings
from bridge.wire.log.proof import ends_like_proof
from consensus.net import AcceptOptions, NodeCertificate, load_or_create_certificate, operators_certificate
from consensus.protocols.garlic_farm import (
    Authenticator,
    Caller,
    ClientQuota,
    ConnectionRole,
    Connector,
    Credentials,
    Dialer,
    GarlicFarmServer,
    HttpProxy,
    I2pConnector,
    Identity,
    Metrics,
    NonceBook,
    PeerDirectory,
    ProvenPeer,
    RequestHandler,
    TlsConnector,
    authority_context,
)

PROVEN_ENTRY_US, OPAQUE_ENTRY_US = 500, 20
"""Processor time, twice what `python -m benchmarks identity-cost` and the state machine show for one."""


@dataclass(frozen=True, slots=True)
class HandshakeWords:
    """What a handshake says of this node beyond its identity, and what the other side's says of its own."""

    introduced: Callable[[Identity], Identity] = lambda identity: identity
    met: Callable[[Identity], None] = lambda _: None


class Connecting:
    """Made before anything else of the node; raises CertificateError, UsersError and DescriptorError."""

    def __init__(
        self, settings: NodeConfiguration, farm_keys: FarmKeys, metrics: Metrics, peers: PeerDirectory
    ) -> None:
        self.metrics = metrics
        self._peers = peers
        self._shares = descriptor_shares()
        self._i2p_name = settings.consensus.advertise.host
        self.users = Users(farm_keys, settings.transport.users)
        self._cluster = farm_keys.filed.cluster
        self._profile = profile_of(settings.consensus.timing)
        self._words = HandshakeWords()
        self._own_identity: Callable[[], Identity] = Identity
        self._server: GarlicFarmServer | None = None
        self.certificate: NodeCertificate | None = None
        """None where I2P encrypts."""
        transport = settings.transport
        self._signed = transport.certificate is not None
        if transport.proxy is not None:
            self._transport: Connector = I2pConnector(_proxy(transport.proxy), os.urandom)
        elif transport.ca_file is not None and transport.certificate is not None:
            self.certificate = operators_certificate(transport.certificate)
            self._transport = TlsConnector(authority_context(transport.ca_file))
        else:
            self.certificate = load_or_create_certificate(settings.state_dir)
            self._transport = TlsConnector()

    async def watch(self, alarms: Alarms) -> None:
        """Look after the files of users and the end of the certificate, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.users.watch, alarms)
            nursery.start_soon(partial(watch_certificate, self.certificate, alarms, signed=self._signed))

    @property
    def fingerprint(self) -> bytes | None:
        """Of the certificate that others may pin."""
        return None if self.certificate is None else self.certificate.fingerprint

    def introduce_by(self, words: HandshakeWords) -> Dialer:
        """From now on every handshake carries introductions; the dialer makes connections for nothing else."""
        self._words = words
        return self.dialer(lambda: Identity(self._own_identity().cluster_id), ConnectionRole.CLIENT)

    def dialer(self, identity: Callable[[], Identity], role: ConnectionRole) -> Dialer:
        """Connects in the name of `identity`, to say what `role` may say."""
        caller = Caller(
            self._cluster,
            self.users.credentials,
            lambda: self._introduced(identity()),
            os.urandom,
            self._peers,
            role,
            login=self.users.login,
        )
        return Dialer(
            caller,
            transport=self._transport,
            timeout_s=self._profile.dial_s,
            on_identity=self._met,
        )

    async def listen(
        self,
        nursery: trio.Nursery,
        address: tuple[str, int],
        handler: RequestHandler,
        identity: Callable[[], Identity],
    ) -> int:
        """Accept connections as long as the nursery lives, at this port; OSError if the address cannot be had."""
        self._own_identity = identity
        authenticator = Authenticator(
            self._cluster,
            self.users.password_of,
            NonceBook(os.urandom(32), os.urandom),
            identity,
            peers=self._peers,
            introduced=self._introduced,
        )
        server = self._server = GarlicFarmServer(
            authenticator,
            handler,
            self.metrics,
            connection_limits=replace(
                self._profile.connection_limits,
                handshakes_max=self._shares.raft_handshakes,
                established_max=self._shares.raft_established,
            ),
            accepting=AcceptOptions(
                strangers_max=self._shares.raft_strangers_waiting, known_max=self._shares.raft_known_waiting
            ),
            connection=self._profile.conversation,
            on_identity=self._met,
            quota=ClientQuota(_cost_us),
        )
        if self.certificate is None:
            port: int = await nursery.start(server.listen_plain, *address, self._i2p_name)
        else:
            port = await nursery.start(server.listen, *address, self.certificate)
        return port

    def end_connections(self) -> None:
        """Have everybody who is connected to this node show the credentials of now."""
        if self._server is not None:
            self._server.places.end_established()

    def end_refused(self, refused: Callable[[ProvenPeer], bool]) -> None:
        """End the connections of those who may not speak any more."""
        if self._server is not None:
            self._server.places.end_proven(refused)

    def _introduced(self, identity: Identity) -> Identity:
        return self._words.introduced(identity)

    def _met(self, peer: Identity) -> None:
        self._words.met(peer)


def _cost_us(entry: bytes) -> int:
    """What an entry costs each server: a signature is verified where it is waited for, and where it is applied."""
    return PROVEN_ENTRY_US if ends_like_proof(entry) else OPAQUE_ENTRY_US


def _proxy(settings: ProxySettings) -> HttpProxy:
    credentials = None
    if settings.user is not None and settings.password_file is not None:
        credentials = Credentials(settings.user, read_password(settings.password_file))
    return HttpProxy(settings.address.host, settings.address.port, settings.mode, credentials)
