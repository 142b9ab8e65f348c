"""Servers of another implementation, which supports the messages only: no TLS, no handshake, no signature.

    PlainDialer     a listed server ──▶ TCP, then messages immediately; any other ──▶ the ordinary dialer
    PlainListener   TCP from a listed address ──▶ the first message names a server of that address ──▶ connection
                                              └──▶ any other connection is closed, counted and reported

Such a connection is not protected. Any process that can send from a listed address is accepted as the server listed
there. Any router on the path can read and change the messages. Only tests use this module: a farm acts on proven
identities only. The module accepts addresses and not names, and each address must be listed.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

import trio

from consensus.net.receive_budget import BudgetOptions, ReceiveBudget
from consensus.protocols.garlic_farm.node.connection import ConnectionOptions, RequestHandler, ServerConnection
from consensus.protocols.garlic_farm.node.dialer import Dialed, Dials, PeerAddress
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.wire.codec import REQUEST_HEADER
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS, MessageLimits
from consensus.protocols.garlic_farm.wire.peers import ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_server import Upgraded

CONNECTIONS_MAX = 64
"""Maximum number of open plain connections.

A server holds one or two; a lost connection stays until its idle timeout.
"""
_FIRST_MESSAGE_S = 10.0
_DIAL_S = 5.0
_SOURCE = slice(1, 5)
"""Position of the sender in a request."""


@dataclass(frozen=True, slots=True)
class PlainPeers:
    """Servers of another implementation with their addresses; rejects a host that is not a single address."""

    addresses: Mapping[int, tuple[str, int]]

    def __post_init__(self) -> None:
        for host, _ in self.addresses.values():
            check_host(host)

    def address(self, server: int) -> PeerAddress | None:
        found = self.addresses.get(server)
        return None if found is None else PeerAddress(*found, None)

    def at(self, host: str) -> frozenset[int]:
        return frozenset(server for server, (listed, _) in self.addresses.items() if _same(listed, host))


def check_host(host: str) -> None:
    """Raise ValueError unless `host` is the address of one machine: the owner of a name can redirect it."""
    try:
        address = ip_address(host)
    except ValueError:
        raise ValueError(f"{host!r} is no IP address, and plain connections go to addresses only") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{host} stands for many addresses, and plain connections need one each")


def _same(listed: str, host: str) -> bool:
    return ip_address(listed) == ip_address(host)


class PlainDialer:
    """Connects to listed servers without TLS and handshake, and to other servers with `ordinary`."""

    def __init__(self, peers: PlainPeers, ordinary: Dials) -> None:
        self._peers = peers
        self._ordinary = ordinary

    async def dial(self, address: PeerAddress, expected: int | None = None) -> Dialed:
        """Return an open connection; raise `GarlicFarmError` with the cause on any failure."""
        if expected is None or self._peers.address(expected) != address:
            return await self._ordinary.dial(address, expected)
        try:
            with trio.move_on_after(_DIAL_S):
                stream = await trio.open_tcp_stream(address.host, address.port)
                return Dialed(stream, b"", Identity(None, expected), frozenset(), None)
        except OSError as error:
            raise GarlicFarmError(Fault.UNREACHABLE, f"{address} (plain) cannot be reached: {error}") from error
        raise GarlicFarmError(Fault.UNREACHABLE, f"{address} (plain) did not answer within {_DIAL_S:g} s")


class PlainListener:
    """Accepts connections from listed servers."""

    def __init__(
        self,
        peers: PlainPeers,
        handler: RequestHandler,
        identity: Callable[[], Identity],
        metrics: Metrics,
        *,
        connection: ConnectionOptions | None = None,
        limits: MessageLimits = DEFAULT_LIMITS,
        budget: BudgetOptions | None = None,
    ) -> None:
        self._peers = peers
        self._handler = handler
        self._identity = identity
        self._metrics = metrics
        self._connection = connection or ConnectionOptions()
        self._limits = limits
        self._budget = ReceiveBudget(budget)
        self._open = 0

    async def listen(self, host: str, port: int, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve `host` until canceled, and report the port. Raise ValueError unless `host` is one address."""
        check_host(host)
        listeners = await trio.open_tcp_listeners(port, host=host)
        bound_port = int(listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._accept, listeners)
            task_status.started(bound_port)

    async def _accept(self, stream: trio.SocketStream) -> None:
        self._open += 1
        source = "an unknown address"
        try:
            source = str(stream.socket.getpeername()[0])
            await self._serve(stream, source)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._metrics.count(ConnectionEvent.CONNECTIONS_BROKEN)
        except GarlicFarmError as error:
            self._metrics.incident(error.fault, source, f"plain connection from {source} closed: {error}")
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream, source: str) -> None:
        if self._open > CONNECTIONS_MAX:
            raise GarlicFarmError(Fault.BUSY, f"there are {CONNECTIONS_MAX} plain connections already")
        allowed = self._peers.at(source)
        if not allowed:
            text = "this address is not in the list of servers that are spoken to without a handshake"
            raise GarlicFarmError(Fault.PLAIN_REFUSED, text)
        head = await _first_head(stream.receive_some)
        if not head:
            return
        speaker = int.from_bytes(head[_SOURCE], "big", signed=True)
        if speaker and speaker not in allowed:
            text = f"it speaks as server {speaker}, which the list does not have at this address"
            raise GarlicFarmError(Fault.PLAIN_REFUSED, text)
        self._metrics.count(ConnectionEvent.CONNECTIONS_ESTABLISHED)
        await ServerConnection(
            stream,
            _upgraded(head, speaker),
            source,
            handler=self._handler,
            identity=self._identity,
            metrics=self._metrics,
            options=self._connection,
            limits=self._limits,
            budget=self._budget,
        ).run()


def _upgraded(head: bytes, speaker: int) -> Upgraded:
    """Return the result of the missing handshake. The id in the first message counts, because its address is listed."""
    peer = ProvenPeer(ConnectionRole.SERVER, b"", speaker) if speaker else None
    return Upgraded(b"", head, "", Identity(None, speaker or None), frozenset(), peer)


async def _first_head(receive: Callable[[int], Awaitable[bytes | bytearray]]) -> bytes:
    """Return the first bytes of a connection, at least the head of a request; return b"" if it closes earlier."""
    head = b""
    with trio.move_on_after(_FIRST_MESSAGE_S):
        while len(head) < REQUEST_HEADER.size:
            data = await receive(REQUEST_HEADER.size - len(head))
            if not data:
                return b""
            head += data
        return head
    raise GarlicFarmError(Fault.SILENT, f"no whole message came within {_FIRST_MESSAGE_S:g} s")
