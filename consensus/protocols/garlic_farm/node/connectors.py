"""Connections to servers: TLS on networks, or a local HTTP proxy into I2P.

    TlsConnector    TCP ─▶ TLS 1.3, the certificate pinned, or signed by an authority that the operator names
    I2pConnector    TCP to the proxy ─▶ CONNECT, or the absolute URI of each request ─▶ I2P, which encrypts

I2P encrypts a connection, and a `.b32.i2p` name is the hash of the server's key, so TLS is not needed there. On other
networks, with only the Digest handshake, an observer could read and forge every message. So each connector refuses the
other connector's addresses before it sends data or looks up a name. A query for a name that ends in `.i2p` would reveal
the use of I2P to a public DNS server.

The connection to a proxy is not encrypted, and the proof of the handshake does not cover later messages. An attacker on
the path could change them, so the proxy must have a loopback address.
"""

import re
import ssl
from collections.abc import Callable
from hashlib import sha256
from ipaddress import ip_address
from typing import Protocol

import trio
from msgspec import Struct

from consensus.core.model import endpoint_text
from consensus.net.tls import UntrustedCertificateError, secured, secured_by_authority
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.proof import i2p_channel, tls_channel
from consensus.protocols.garlic_farm.wire.proxy import (
    ConnectClient,
    ProxyAuthentication,
    ProxyMode,
    RetryConnect,
    TunnelOpen,
    Via,
)

_READ_BYTES = 4096
_CONNECT_ATTEMPTS = 3
_NAME_CHARACTERS_MAX = 253
_I2P_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,65}[a-z0-9])?\.)+i2p")


class PeerAddress(Struct, frozen=True):
    """Address of a server, and the SHA-256 of the certificate that it must show, if the connector checks it."""

    host: str
    port: int
    fingerprint: bytes | None

    def __str__(self) -> str:
        return endpoint_text(self.host, self.port)


def is_i2p_name(host: str) -> bool:
    """Return True if `host` is a name within I2P, such as `example.i2p` or 52 characters and `.b32.i2p`."""
    return len(host) <= _NAME_CHARACTERS_MAX and _I2P_NAME.fullmatch(host.lower()) is not None


def is_loopback(host: str) -> bool:
    """Return True if `host` is an address of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Reached(Struct, frozen=True):
    """A stream that only the dialed server can read, and the channel that binds a proof to this stream (`proof`)."""

    stream: trio.abc.Stream
    channel: str


class Connector(Protocol):
    """A way to connect to servers."""

    async def connect(self, address: PeerAddress) -> Reached:
        """Return a stream to the server, or to the proxy that leads there."""

    def via(self, address: PeerAddress) -> Via | None:
        """Return the data that a request must carry for a proxy; None if the stream leads to the server itself."""


class TlsConnector:
    """Connections with TLS. Certificates are checked by `authority` if there is one, else by their fingerprints."""

    def __init__(self, authority: ssl.SSLContext | None = None) -> None:
        self._authority = authority

    async def connect(self, address: PeerAddress) -> Reached:
        """Connect by TCP and TLS. The channel is the certificate that the server has shown."""
        if is_i2p_name(address.host):
            raise GarlicFarmError(
                Fault.PLAIN_REFUSED,
                f'{address} is a name within I2P, and this node speaks TLS on networks: set transport = "i2p" here, '
                "or have that server announce an address of a network",
            )
        if self._authority is None and address.fingerprint is None:
            raise GarlicFarmError(
                Fault.WRONG_CERTIFICATE,
                f"the server at {address} has announced no certificate, and no [consensus] ca_file names an authority",
            )
        transport = await trio.open_tcp_stream(address.host, address.port)
        try:
            if self._authority is not None:
                stream = await secured_by_authority(transport, self._authority, address.host)
            else:
                stream = await secured(transport, address.fingerprint or b"")
        except UntrustedCertificateError as error:
            await trio.aclose_forcefully(transport)
            raise GarlicFarmError(Fault.WRONG_CERTIFICATE, str(error)) from error
        except BaseException:
            await trio.aclose_forcefully(transport)
            raise
        return Reached(stream, tls_channel(sha256(stream.peer_certificate() or b"").digest()))

    def via(self, _: PeerAddress) -> Via | None:
        """Return None: the stream leads to the server itself."""
        return None


class HttpProxy(Struct, frozen=True):
    """An HTTP proxy into I2P."""

    host: str
    port: int
    mode: ProxyMode = ProxyMode.ABSOLUTE_URI
    credentials: Credentials | None = None


class I2pConnector:
    """Connections to names within I2P, through an HTTP proxy."""

    def __init__(self, proxy: HttpProxy, random_bytes: Callable[[int], bytes]) -> None:
        self._proxy = proxy
        self._authentication = ProxyAuthentication(proxy.credentials, random_bytes)

    async def connect(self, address: PeerAddress) -> Reached:
        """Connect to the proxy, and in the mode `connect` through it. The channel is the dialed name."""
        self._check(address)
        if not is_loopback(self._proxy.host):
            raise GarlicFarmError(
                Fault.PLAIN_REFUSED,
                f"the proxy {self._proxy.host}:{self._proxy.port} is not on a loopback address: the connection to it"
                " is not encrypted, and a machine between could change data after the handshake; use a proxy on this"
                " machine",
            )
        for _ in range(_CONNECT_ATTEMPTS):
            stream = await self._reach()
            try:
                if self._proxy.mode is ProxyMode.ABSOLUTE_URI or await self._tunnel(stream, address):
                    return Reached(stream, i2p_channel(address.host))
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            await trio.aclose_forcefully(stream)
        text = f"the proxy requested authentication {_CONNECT_ATTEMPTS} times in a row and accepted none"
        raise GarlicFarmError(Fault.PROXY_REFUSED, text)

    def via(self, address: PeerAddress) -> Via | None:
        """Return the destination for each request in the mode `absolute-uri`."""
        if self._proxy.mode is ProxyMode.CONNECT:
            return None
        return Via(str(address), self._authentication)

    def _check(self, address: PeerAddress) -> None:
        if not is_i2p_name(address.host):
            raise GarlicFarmError(
                Fault.PLAIN_REFUSED,
                f'{address} is not a name within I2P, and with transport = "i2p" only I2P encrypts: '
                "that server must advertise its `….b32.i2p` name",
            )

    async def _reach(self) -> trio.SocketStream:
        proxy = self._proxy
        try:
            return await trio.open_tcp_stream(proxy.host, proxy.port)
        except OSError as error:
            text = f"the proxy at {proxy.host}:{proxy.port} does not answer: is the router's HTTP proxy running there?"
            raise GarlicFarmError(Fault.UNREACHABLE, text) from error

    async def _tunnel(self, stream: trio.SocketStream, address: PeerAddress) -> bool:
        client = ConnectClient(str(address), self._authentication)
        await stream.send_all(client.request())
        outcome: TunnelOpen | RetryConnect | None = None
        while outcome is None:
            outcome = client.receive(bytes(await stream.receive_some(_READ_BYTES)))
        return isinstance(outcome, TunnelOpen)
