"""Accepting Garlic Farm connections: limits, TLS, handshake, and then the connection itself.

    accept ─▶ handshake (few at a time, seconds) ─▶ 404 / 401: close │ 101: established (many, for any time)

An unfinished handshake uses memory for an unknown peer. Until its first byte, a connection uses as little memory as
possible (`accepting`). The number and the duration of handshakes are limited. At the limit, the source with the most
handshakes loses its oldest one. A real peer needs only milliseconds, so its handshake succeeds even in a flood of
half-open connections. If new connections were refused instead, a slow flood would exclude every peer. Sources with a
recent proof of a server's identity keep a quarter of the handshakes.

The other end of an established connection knows the password. Established connections are limited in total and per
source; at the limit the newest is refused. A quarter of the places is reserved for proven servers, and each server has
a few of them. The proven identity is stored in `PendingConnection.proven` before the connection takes a place.

A server that the directory knows only by another member's signature does not have its own places. All servers of one
signer together have the places and bytes of one server. Beyond these places, and for processor time, they count as
clients.
"""

import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import assert_never

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from consensus.net.accepting import AcceptOptions, AcceptQueue, CloseReason, Handle, KnownSources
from consensus.net.receive_budget import BudgetOptions, ReceiveBudget
from consensus.net.tls import NodeCertificate
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node.client_quota import ClientQuota
from consensus.protocols.garlic_farm.node.connection import ConnectionOptions, RequestHandler, ServerConnection
from consensus.protocols.garlic_farm.node.connectors import is_loopback
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import Claim, ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import i2p_channel, tls_channel
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator, RefusedUpgrade, Upgraded, UpgradeServer
from consensus.server.event_loop import now_ms

_READ_BYTES = 16 * 1024
I2P_ROUTER = "the I2P router"
"""The source of all connections that come through a server tunnel."""
_CLOSE_S = 1.0
_VOUCHED = b"vouched by "


class ConnectionLimits(Struct, frozen=True):
    """Limits for connections, and the time for a handshake."""

    handshake_s: float = 5.0
    handshakes_max: int = 128
    established_max: int = 1024
    established_per_source_max: int = 256
    established_per_member_max: int = 8
    """A server has connections for its log, for heartbeats and for submissions; each may exist twice for a moment.
    """


class PendingConnection(Struct, eq=False):
    """One connection, from accept to close."""

    source: str
    is_known: bool = False
    """True if a server has recently proven its identity from this source."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    proven: ProvenPeer | None = None
    """The peer's identity after the handshake; None before it, and for a peer that has shown the password only."""
    voucher: bytes | None = None
    """The identity against whose limit an established connection counts; None if the peer has its own limit."""
    account: bytes | None = None
    """The member whose place the connection uses; None if it uses a place of its source."""


class ConnectionPlaces:
    """The limits of handshakes and established connections, and the choice of the connection to close at a limit."""

    def __init__(
        self,
        options: ConnectionLimits,
        metrics: Metrics,
        known: KnownSources | None = None,
        voucher_of: Callable[[Claim], bytes | None] = lambda _: None,
    ) -> None:
        """Make places; `voucher_of` is the method of `PeerDirectory`."""
        self._options = options
        self._voucher_of = voucher_of
        self._metrics = metrics
        self._known = known or KnownSources()
        self._members: Counter[bytes] = Counter()
        self._handshakes: dict[PendingConnection, None] = {}
        self._established: set[PendingConnection] = set()
        self._per_source: Counter[str] = Counter()

    def arrive(self, source: str) -> PendingConnection:
        """Begin the handshake of a new connection; at the limit, close another connection."""
        pending = PendingConnection(source, source in self._known)
        most = self._options.handshakes_max
        unknown = [each for each in self._handshakes if not each.is_known]
        if not pending.is_known and len(unknown) >= _share_of_unknown(most):
            self._give_way(unknown)
        elif len(self._handshakes) >= most:
            self._give_way(unknown or list(self._handshakes))
        self._handshakes[pending] = None
        return pending

    def _give_way(self, crowd: list[PendingConnection]) -> None:
        crowding, number = Counter(pending.source for pending in crowd).most_common(1)[0]
        oldest = next(pending for pending in crowd if pending.source == crowding)
        del self._handshakes[oldest]
        oldest.scope.cancel()
        text = f"{len(self._handshakes) + 1} concurrent handshakes, {number} from {crowding}: its oldest was closed"
        self._metrics.incident(Fault.BUSY, crowding, text)

    def establish(self, pending: PendingConnection) -> bool:
        """Give a place to a completed handshake; return False if none is left."""
        most = self._options.established_max
        pending.voucher = self._voucher_in(pending)
        member = _account(pending)
        if pending.voucher is not None and not self._has_place(member):
            member = None
        if member is None:
            others = len(self._established) - self._members.total()
            full = others >= _share_of_unknown(most)
            full |= self._per_source[pending.source] >= self._options.established_per_source_max
        else:
            full = not self._has_place(member)
        if full or len(self._established) >= most:
            text = f"{pending.source} or all sources together have too many connections; a new one was closed"
            self._metrics.incident(Fault.BUSY, pending.source, text)
            return False
        self._handshakes.pop(pending, None)
        self._established.add(pending)
        self._count(pending, member)
        # All connections through the router have the source `I2P_ROUTER`. If this source counted as known, every
        # unknown peer would count as known.
        if member is not None and pending.voucher is None and pending.source != I2P_ROUTER:
            self._known.add(pending.source)
        return True

    def leave(self, pending: PendingConnection) -> None:
        """Release the place of a closed connection."""
        self._handshakes.pop(pending, None)
        if pending in self._established:
            self._established.discard(pending)
            self._discount(pending)

    def end_established(self) -> None:
        """Close every connection that carries messages. Permitted peers connect again."""
        for pending in self._established:
            pending.scope.cancel()

    def end_proven(self, refused: Callable[[ProvenPeer], bool]) -> None:
        """Close the connections of peers that `refused` refuses."""
        for pending in self._established:
            if pending.proven is not None and refused(pending.proven):
                pending.scope.cancel()
        self._recount()

    def _recount(self) -> None:
        """Give servers that are now in the directory their own places."""
        for pending in self._established:
            if pending.voucher is not None and self._voucher_in(pending) is None:
                pending.voucher = None
                member = _account(pending)
                if self._has_place(member):
                    self._discount(pending)
                    self._count(pending, member)

    def _voucher_in(self, pending: PendingConnection) -> bytes | None:
        proven = pending.proven
        return None if proven is None or not proven.is_member else self._voucher_of(proven)

    def _has_place(self, member: bytes | None) -> bool:
        return member is not None and self._members[member] < self._options.established_per_member_max

    def _count(self, pending: PendingConnection, member: bytes | None) -> None:
        pending.account = member
        if member is None:
            self._per_source[pending.source] += 1
        else:
            self._members[member] += 1

    def _discount(self, pending: PendingConnection) -> None:
        if pending.account is None:
            self._per_source -= Counter((pending.source,))
        else:
            self._members -= Counter((pending.account,))


def _share_of_unknown(places: int) -> int:
    """Return three quarters of the places; the rest is reserved for proven servers."""
    return max(1, places - places // 4)


def _account(pending: PendingConnection) -> bytes | None:
    """Return the account of a member, in any role, or of all servers of one signer; None for any other peer."""
    proven = pending.proven
    if proven is None or not proven.is_member:
        return None
    return proven.public_key if pending.voucher is None else _VOUCHED + pending.voucher


Securer = Callable[[trio.abc.Stream], Awaitable[trio.abc.Stream]]


class GarlicFarmServer:
    """Serves the Garlic Farm protocol to peers and clients."""

    def __init__(
        self,
        authenticator: Authenticator,
        handler: RequestHandler,
        metrics: Metrics,
        *,
        connection_limits: ConnectionLimits | None = None,
        connection: ConnectionOptions | None = None,
        on_identity: Callable[[Identity], None] = lambda _: None,
        accepting: AcceptOptions | None = None,
        budget: BudgetOptions | None = None,
        quota: ClientQuota | None = None,
    ) -> None:
        """Make a listener; `on_identity` gets each admitted peer's identity claims; `quota` limits all clients."""
        self._quota = quota
        self._accepting = accepting or AcceptOptions()
        self._budget = ReceiveBudget(budget)
        self._known = KnownSources()
        self._on_identity = on_identity
        self._authenticator = authenticator
        self._handler = handler
        self._metrics = metrics
        self._connection_limits = connection_limits or ConnectionLimits()
        self._connection_options = connection or ConnectionOptions()
        voucher_of = authenticator.peers.voucher_of
        self.places = ConnectionPlaces(self._connection_limits, metrics, self._known, voucher_of)

    async def listen(
        self,
        host: str,
        port: int,
        certificate: NodeCertificate,
        bound: Sequence[trio.SocketListener] = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve TLS on `host` until canceled; reports the bound port, for a `port` of 0.

        `bound` are open listeners, used in place of `host` and `port`, and closed at the end.
        """
        context = await trio.to_thread.run_sync(certificate.server_context)
        channel = tls_channel(certificate.fingerprint)

        async def accept(transport: trio.SocketStream, source: str) -> None:
            stream = TlsStream(transport, context, server_side=True)

            async def secure(_: trio.abc.Stream) -> trio.abc.Stream:
                await stream.do_handshake()
                return stream

            await self.serve(transport, source, channel, secure)

        listeners = bound or await trio.open_tcp_listeners(port, host=host)
        await self._accept(listeners, accept, self._accepting, task_status)

    async def listen_plain(
        self,
        host: str,
        port: int,
        name: str,
        bound: Sequence[trio.SocketListener] = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve an I2P router's server tunnel, which connects to `host` on loopback with decrypted streams.

        `name` is the tunnel's name within I2P; peers prove that they connected to it. `bound` are open listeners.
        """
        if not is_loopback(host):
            raise GarlicFarmError(
                Fault.PLAIN_REFUSED,
                f"{host} is not a loopback address, and a server without TLS may listen on loopback only",
            )

        async def accept(transport: trio.SocketStream, _: str) -> None:
            # For the kernel, all connections come from the router.
            await self.serve(transport, I2P_ROUTER, i2p_channel(name))

        # The peer at the far end of the router may be slow: its first byte may take the time of a handshake.
        options = replace(
            self._accepting,
            unknown_per_source_max=self._accepting.unknown_max,
            waiting_s=self._connection_limits.handshake_s,
        )
        listeners = bound or await trio.open_tcp_listeners(port, host=host)
        await self._accept(listeners, accept, options, task_status)

    async def _accept(
        self,
        listeners: Sequence[trio.SocketListener],
        accept: Handle,
        options: AcceptOptions,
        started: trio.TaskStatus[int],
    ) -> None:
        bound_port = int(listeners[0].socket.getsockname()[1])
        queue = AcceptQueue(
            options, self._known, lambda: self._metrics.count(ConnectionEvent.CONNECTIONS_ACCEPTED), self._dropped
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(queue.serve, listeners, accept)
            started.started(bound_port)

    def _dropped(self, source: str, why: CloseReason) -> None:
        match why:
            case CloseReason.CROWDED | CloseReason.EXHAUSTED:
                fault = Fault.BUSY
            case CloseReason.SILENT:
                fault = Fault.SILENT
            case CloseReason.GONE:
                fault = Fault.REFUSED_UPGRADE
            case _:
                assert_never(why)
        self._metrics.incident(fault, source, f"a connection from {source} was closed: {why.value}")

    async def serve(self, transport: trio.abc.Stream, source: str, channel: str, secure: Securer | None = None) -> None:
        """Serve one connection, to its end. Without `secure` the stream must already be private.

        Proofs are bound to `channel` (`consensus.protocols.garlic_farm.wire.proof`).
        """
        pending = self.places.arrive(source)
        try:
            with pending.scope:
                await self._serve(transport, pending, channel, secure)
        finally:
            self.places.leave(pending)
            await trio.aclose_forcefully(transport)

    async def _serve(
        self, transport: trio.abc.Stream, pending: PendingConnection, channel: str, secure: Securer | None
    ) -> None:
        upgraded, stream = None, transport
        try:
            with trio.move_on_after(self._connection_limits.handshake_s) as patience:
                if secure is not None:
                    stream = await secure(transport)
                upgraded = await self._handshake(stream, pending.source, channel)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            reason = error.__cause__ or "the connection broke"
            # The peer has sent a TLS alert: it refused our certificate.
            alerted = isinstance(reason, ssl.SSLError) and "ALERT" in (reason.reason or "")
            fault = Fault.DISTRUSTED if alerted else Fault.REFUSED_UPGRADE
            self._metrics.incident(fault, pending.source, f"handshake with {pending.source}: {reason}")
            return
        if patience.cancelled_caught:
            text = f"{pending.source} did not complete a handshake within {self._connection_limits.handshake_s:g} s"
            self._metrics.incident(Fault.SILENT, pending.source, text)
        if upgraded is None:
            return
        pending.proven = upgraded.proven
        if not self.places.establish(pending):
            return
        await self._serve_upgraded(stream, pending, upgraded)

    async def _handshake(self, stream: trio.abc.Stream, source: str, channel: str) -> Upgraded | None:
        upgrade = UpgradeServer(self._authenticator, channel)
        verdict, has_received = None, False
        while verdict is None:
            data = bytes(await stream.receive_some(_READ_BYTES))
            if not data and not has_received and isinstance(stream, TlsStream):
                text = (
                    f"{source} closed the connection after TLS without sending anything: it may not accept this node's"
                    " certificate; if it is a server of the farm, its alarms show the reason"
                )
                self._metrics.incident(Fault.DISTRUSTED, source, text)
                return None
            has_received = True
            verdict = upgrade.receive(data, now_ms())
        if isinstance(verdict, RefusedUpgrade):
            if verdict.fault is None:
                self._metrics.count(ConnectionEvent.CHALLENGES)
            else:
                self._metrics.incident(verdict.fault, source, f"handshake with {source} refused: {verdict.text}")
            if verdict.response:
                await stream.send_all(verdict.response)
                await _close_gracefully(stream)
            return None
        await stream.send_all(verdict.response)
        return verdict

    async def _serve_upgraded(self, stream: trio.abc.Stream, pending: PendingConnection, upgraded: Upgraded) -> None:
        source = pending.source
        self._metrics.count(ConnectionEvent.CONNECTIONS_ESTABLISHED)
        self._on_identity(upgraded.peer)
        if isinstance(stream, TlsStream):
            self._metrics.connected(source)
        await ServerConnection(
            stream,
            upgraded,
            source,
            handler=self._handler,
            identity=self._authenticator.identity,
            metrics=self._metrics,
            options=self._connection_options,
            budget=self._budget,
            quota=self._quota,
            voucher=pending.voucher,
        ).run()


async def _close_gracefully(stream: trio.abc.Stream) -> None:
    """Close so that the response arrives: TLS sends close_notify. Does not wait for the peer."""
    with trio.move_on_after(_CLOSE_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.aclose()
