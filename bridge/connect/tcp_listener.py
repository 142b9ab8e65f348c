"""A TCP port of this machine that leads to a farm: `garlicfarm connect LINK --listen 127.0.0.1:8080`.

    accept ─▶ a place ─▶ open_stream ─▶ forward ─▶ end, or a reset with the reason in the status

The listener copies bytes, so HTTP with keep-alive, TLS and SSH work without special rules. A place is one of
`CONNECTIONS_MAX`; a connection above this number is reset. While the client chooses a leaf, the program waits, and its
data stays in the kernel's buffer. Nothing is sent twice: after its first byte a connection stays with its leaf.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from bridge.connect.errors import ConnectError
from bridge.connect.forwarding import Listeners, StreamOpener, failure_text, forward, reset
from gossip import Address
from gossip.node import endpoint

LOG = logging.getLogger(__name__)


class ListenError(Exception):
    """A listener cannot be opened; the text has the address, the reason and the remedy."""


class TcpForwarder:
    """Forwards each connection to the farm."""

    def __init__(self, farm: StreamOpener, listeners: Listeners) -> None:
        self._farm = farm
        self._listeners = listeners

    async def serve(self, program: trio.SocketStream) -> None:
        """Forward one connection until it ends."""
        with self._listeners.place() as has_place:
            if not has_place:
                await reset(program)
                return
            try:
                async with await self._farm.open_stream() as leaf:
                    await forward(program, leaf)
            except (ConnectError, trio.BrokenResourceError) as error:
                self._listeners.failed(failure_text(error))
                await reset(program)
            finally:
                await program.aclose()


async def serve_port(
    address: Address,
    serve: Callable[[trio.SocketStream], Awaitable[object]],
    *,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve connections to a numeric address until canceled; report the address when started. Raise `ListenError`."""
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        raise ListenError(
            f"{endpoint(address)} cannot be opened ({error.strerror or error}): name an address of this"
            " machine and a port that no other program uses"
        ) from error
    task_status.started(Address(address.host, int(listeners[0].socket.getsockname()[1])))
    await serve_connections(listeners, serve)


async def serve_connections(
    listeners: Sequence[trio.SocketListener], serve: Callable[[trio.SocketStream], Awaitable[object]]
) -> None:
    """Serve until canceled. A fault of the program in one connection is logged, and the others continue."""

    async def guarded(program: trio.SocketStream) -> None:
        try:
            await serve(program)
        except Exception:
            LOG.exception("a fault of the program ended one connection; please report these lines")
            await trio.aclose_forcefully(program)

    await trio.serve_listeners(guarded, list(listeners))
