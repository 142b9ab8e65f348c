"""Connections of a server that supports the messages only, such as `RawOffsetServer`: no TLS, handshake or signature.

Only tests use this module: a farm acts on proven identities only.
"""

from collections.abc import Container

import trio

from consensus.protocols.garlic_farm.node.connection import ConnectionOptions, RequestHandler, ServerConnection
from consensus.protocols.garlic_farm.node.dialer import Dialed, Dials, PeerAddress
from consensus.protocols.garlic_farm.node.metrics import Metrics
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_server import Upgraded


class PlainDialer:
    """Connects to the `plain` servers without TLS and handshake, and to other servers with `ordinary`."""

    def __init__(self, plain: Container[int], ordinary: Dials) -> None:
        self._plain = plain
        self._ordinary = ordinary

    async def dial(self, address: PeerAddress, expected: int | None = None) -> Dialed:
        """Return an open connection; raise `GarlicFarmError` with the cause on any failure."""
        if expected not in self._plain:
            return await self._ordinary.dial(address, expected)
        try:
            stream = await trio.open_tcp_stream(address.host, address.port)
        except OSError as error:
            raise GarlicFarmError(Fault.UNREACHABLE, f"{address} (plain) cannot be reached: {error}") from error
        return Dialed(stream, b"", Identity(None, expected), frozenset(), None)


async def serve_plain(
    peer: int,
    handler: RequestHandler,
    server_id: int,
    metrics: Metrics,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the connections of the plain server `peer` on loopback until canceled; report the port."""
    proven = ProvenPeer(ConnectionRole.SERVER, peer.to_bytes(32), peer)

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await ServerConnection(
                stream,
                Upgraded(b"", b"", "", Identity(None, peer), frozenset(), proven),
                "127.0.0.1",
                handler=handler,
                identity=lambda: Identity("loopback", server_id),
                metrics=metrics,
                options=ConnectionOptions(),
            ).run()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(int(listeners[0].socket.getsockname()[1]))
    await trio.serve_listeners(serve, listeners)
