"""The control endpoint's server: HTTP/1.1 on a Unix socket for the node's own user, and optionally on TCP.

    accept ─▶ one task per connection: read one complete request ─▶ Routes.answer ─▶ send ─▶ next request (keep-alive)

The socket has mode 0600, and its directory mode 0700. The kernel reports the client's user id, which must be this user
or root. A TCP port is opened only if it is configured. It uses TLS, and the token in a request grants the rights
(`bridge.node.control.access`). Connections on TCP have a separate limit, so that they cannot exclude the node's own
user. Clients with a token have separate places there (`bridge.node.control.places`). Without a token only the head of a
request is read.

Everything is bounded. Byte limits apply to a head, a body and all bodies. Other limits apply to connections, requests
on one connection, and the time for each step of a request. A client that exceeds a limit loses its connection. Requests
on one connection are served strictly in order: the server reads a request only after the reply to the previous one.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h11
import trio
from msgspec import Struct

from bridge.api.control_routes import Access
from bridge.node.control.access import RemoteAccess
from bridge.node.control.places import Place, RemotePlaces
from bridge.node.control.routes import Answer, ControlEvent, Handlers, Request, Routes, new_counters, refusal
from bridge.node.security.control_socket import ControlSocketError, listen, remove_if_ours
from bridge.node.security.local_trust import is_trusted_user, peer_user_id
from consensus import run_task
from consensus.net import AcceptOptions, AcceptQueue, CloseReason, TlsStream, time_for

RECEIVE_BYTES = 16 * 1024
LOG = logging.getLogger(__name__)

CLOSE_S = 1.0
"""Seconds that a stopping server waits for the removal of the socket's file."""
_READING = frozenset({b"GET", b"HEAD"})


class ControlLimits(Struct, frozen=True):
    """Limits for one client and for all of them together."""

    connections: int = 64
    remote_connections: int = 64
    """TCP connections with a token."""
    remote_unproven: int = 64
    """TCP connections without a token so far."""
    requests_per_connection: int = 10_000
    head_bytes: int = 16 * 1024
    body_bytes: int = 256 * 1024
    streams: int = 16
    """Continuous replies at a time."""
    bodies_bytes: int = 8 * 1024 * 1024
    """Bytes of all bodies that are being received or handled."""
    idle_s: float = 120.0
    receive_s: float = 10.0
    unproven_s: float = 5.0
    """Seconds on TCP for TLS and the head of the first request, which contains the token."""
    send_s: float = 10.0
    linger_s: float = 1.0
    linger_bytes: int = 1024 * 1024


class TooLarge(Exception):  # noqa: N818 -- an answer (413), not a fault
    """A request's body is beyond the limit."""


class Full(Exception):  # noqa: N818 -- an answer (503), not a fault
    """A limit for connections or for the bytes of requests is reached; the text names it."""


class _Client(Struct, frozen=True):
    """A client connected by TCP, and the tokens for comparison."""

    remote: RemoteAccess
    place: Place
    address: str


class ControlServer:
    """The server of the handlers at `path`; `run` it until canceled."""

    def __init__(
        self,
        path: Path,
        handlers: Handlers,
        limits: ControlLimits | None = None,
        remote: RemoteAccess | None = None,
        counters: Counter[ControlEvent] | None = None,
        user_of: Callable[[trio.socket.SocketType], int | None] = peer_user_id,
    ) -> None:
        """Set the parts; `counters` come from `new_counters`, `user_of` returns the user of a Unix connection."""
        self._user_of = user_of
        self.path = path
        self.remote_port: int | None = None
        """The TCP port; None before it is open."""
        self._remote = remote
        self.counters = new_counters() if counters is None else counters
        self._routes = Routes(handlers, self.counters)
        self._limits = limits or ControlLimits()
        self._local_connections = 0
        self._streams = 0
        self._places = RemotePlaces(self._limits.remote_unproven, self._limits.remote_connections, self._count_refused)
        self._bodies_bytes = 0

    def _count_refused(self) -> None:
        self.counters[ControlEvent.CONNECTIONS_REFUSED] += 1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve. `task_status` is started when the socket accepts; raise `ControlSocketError` on failure."""
        listening, socket_id = await trio.to_thread.run_sync(listen, self.path)
        try:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            async with trio.open_nursery() as nursery:
                await nursery.start(trio.serve_listeners, lambda stream: run_task(self._serve, stream), [listener])
                if self._remote is not None:
                    await self._listen_remote(nursery, self._remote)
                task_status.started()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await trio.to_thread.run_sync(remove_if_ours, self.path, socket_id, abandon_on_cancel=True)

    async def _listen_remote(self, nursery: trio.Nursery, remote: RemoteAccess) -> None:
        async def accept(transport: trio.SocketStream, address: str) -> None:
            place = self._places.arrive(address)
            try:
                with place.scope:
                    async with TlsStream(transport, remote.context, server_side=True) as stream:
                        await self._guarded(stream, _Client(remote, place, address))
            finally:
                self._places.leave(place)
                await trio.aclose_forcefully(transport)

        def arrived() -> None:
            self.counters[ControlEvent.CONNECTIONS] += 1

        def dropped(_address: str, _why: CloseReason) -> None:
            self.counters[ControlEvent.CONNECTIONS_REFUSED] += 1

        try:
            listeners = await trio.open_tcp_listeners(remote.address.port, host=remote.address.host)
        except OSError as error:
            raise ControlSocketError(
                f"control.listen = {remote.address.host}:{remote.address.port} cannot be opened"
                f" ({error.strerror or error}): choose an address of this machine and a port that no other process uses"
            ) from error
        self.remote_port = int(listeners[0].socket.getsockname()[1])
        queue = AcceptQueue(
            AcceptOptions(
                unknown_max=self._limits.remote_unproven,
                unknown_per_source_max=max(1, self._limits.remote_unproven // 2),
                known_max=max(1, self._limits.remote_unproven // 2),
                waiting_s=self._limits.unproven_s,
            ),
            self._places.known,
            arrived,
            dropped,
        )
        await nursery.start(queue.serve, listeners, accept)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.counters[ControlEvent.CONNECTIONS] += 1
        with self._counted():
            async with stream:
                if is_trusted_user(self._user_of(stream.socket)):
                    await self._guarded(stream, None)
                else:
                    self.counters[ControlEvent.UNAUTHORIZED] += 1

    async def _guarded(self, stream: trio.abc.Stream, client: _Client | None) -> None:
        try:
            if isinstance(stream, TlsStream):
                with trio.fail_after(self._unproven_s):
                    await stream.do_handshake()
            if client is None and self._local_connections > self._limits.connections:
                self.counters[ControlEvent.CONNECTIONS_REFUSED] += 1
                await self._refuse(stream, f"{self._limits.connections} connections are open already; try again")
            else:
                await self._converse(stream, client)
        except (h11.ProtocolError, trio.BrokenResourceError, trio.TooSlowError):
            self.counters[ControlEvent.CONNECTIONS_BROKEN] += 1

    @property
    def _unproven_s(self) -> float:
        return min(self._limits.unproven_s, self._limits.receive_s)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._local_connections += 1
        try:
            yield
        finally:
            self._local_connections -= 1

    async def _refuse(self, stream: trio.abc.Stream, text: str, connection: h11.Connection | None = None) -> None:
        exchange = connection or h11.Connection(h11.SERVER)
        await self._send(stream, exchange, refusal(503, "busy", text), closing=True)

    async def _converse(self, stream: trio.abc.Stream, client: _Client | None) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        # A client without a valid token loses its place earlier than a client with a token.
        timeout_s = self._limits.idle_s if client is None else self._unproven_s
        for remaining in range(self._limits.requests_per_connection, 0, -1):
            with self._body() as body:
                try:
                    request = await self._read_request(stream, connection, client, timeout_s, body)
                except TooLarge:
                    self.counters[ControlEvent.REFUSED] += 1
                    text = f"a body has at most {self._limits.body_bytes} bytes"
                    await self._send(stream, connection, refusal(413, "too-large", text), closing=True)
                    return
                except Full as full:
                    self.counters[ControlEvent.CONNECTIONS_REFUSED] += 1
                    await self._refuse(stream, str(full), connection)
                    return
                except h11.RemoteProtocolError as error:
                    answer = refusal(error.error_status_hint, "not-http", f"this is not HTTP/1.1: {error}")
                    await self._send(stream, connection, answer, closing=True)
                    raise
                if request is None:
                    return
                if request.access is Access.NONE:
                    await self._refuse_unauthorized(stream, connection)
                    return
                timeout_s = self._limits.idle_s
                answer = await self._routes.answer(request)
            if answer.next_part is not None:
                await self._stream(stream, connection, answer.content_type, answer.next_part)
                return
            # A client that reads the node's health without a token loses its place after the reply.
            closing = remaining == 1 or (client is not None and not client.place.authenticated)
            await self._send(stream, connection, answer, closing=closing, head_only=request.method == "HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _refuse_unauthorized(self, stream: trio.abc.Stream, connection: h11.Connection) -> None:
        self.counters[ControlEvent.UNAUTHORIZED] += 1
        text = "send a token: 'Authorization: Bearer …' with the content of control.read.token or control.admin.token"
        await self._send(stream, connection, refusal(401, "unauthorized", text), closing=True)

    @contextmanager
    def _body(self) -> Iterator[bytearray]:
        """Yield the buffer for the body of one request.

        Its bytes count for the limit of all bodies until the handler returns.
        """
        body = bytearray()
        try:
            yield body
        finally:
            self._bodies_bytes -= len(body)

    def _take(self, body: bytearray, data: bytes) -> None:
        body += data
        self._bodies_bytes += len(data)
        if len(body) > self._limits.body_bytes:
            raise TooLarge
        if self._bodies_bytes > self._limits.bodies_bytes:
            raise Full(f"requests of {self._limits.bodies_bytes} bytes are being answered; try again")

    def _admitted(self, head: h11.Request, client: _Client | None) -> Access:
        """Return the rights of a request's sender: all on the node's own socket, else the token's rights."""
        if client is None:
            return Access.ADMIN
        shown = [value.decode("latin-1") for name, value in head.headers if name == b"authorization"]
        access = client.remote.granted(shown[0]) if len(shown) == 1 else Access.NONE
        if access is Access.NONE and head.method in _READING and head.target in client.remote.open_targets:
            return Access.READ
        if access is not Access.NONE and not self._places.authenticate(client.place, client.address):
            raise Full(f"{self._limits.remote_connections} connections are open already; try again")
        return access

    async def _read_request(
        self,
        stream: trio.abc.Stream,
        connection: h11.Connection,
        client: _Client | None,
        timeout_s: float,
        body: bytearray,
    ) -> Request | None:
        """Return the next complete request, its body also in `body`; None if no request begins in time.

        For a request without rights, read only the head. Raise TooSlowError for an incomplete request.
        """
        head: h11.Request | None = None
        access = Access.NONE
        with trio.move_on_after(timeout_s) as waiting:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if connection.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self._write(stream, _bytes(connection.send(go_on)))
                    connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
                    waiting.deadline = min(waiting.deadline, trio.current_time() + self._limits.receive_s)
                    continue
                match event:
                    case h11.Request():
                        head, access = event, self._admitted(event, client)
                        if access is Access.NONE:
                            return Request("", "", b"", access)
                    case h11.Data():
                        self._take(body, event.data)
                    case h11.EndOfMessage() if head is not None:
                        method, target = head.method.decode("ascii"), head.target.decode("latin-1")
                        return Request(method, target, bytes(body), access)
                    case _:
                        return None
        if head is not None or connection.trailing_data[0]:
            raise trio.TooSlowError
        return None

    async def _send(
        self,
        stream: trio.abc.Stream,
        connection: h11.Connection,
        answer: Answer,
        *,
        closing: bool,
        head_only: bool = False,
    ) -> None:
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            *answer.headers,
        ]
        if closing:
            headers.append(("Connection", "close"))
        data = _bytes(connection.send(h11.Response(status_code=answer.status, headers=headers)))
        if not head_only:
            await self._write(stream, data)
            # Head and body are sent separately, so that a view of ten thousand members is not copied.
            data = _bytes(connection.send(h11.Data(data=answer.body)))
        await self._write(stream, data + _bytes(connection.send(h11.EndOfMessage())))
        if closing:
            await self._linger(stream)

    async def _stream(
        self,
        stream: trio.abc.Stream,
        connection: h11.Connection,
        content_type: str,
        next_part: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Send part after part until the client closes, sends data, or accepts no more."""
        if self._streams >= self._limits.streams:
            self.counters[ControlEvent.CONNECTIONS_REFUSED] += 1
            await self._refuse(stream, f"{self._limits.streams} streams are open already; try again", connection)
            return
        self._streams += 1
        try:
            headers = [("Content-Type", content_type), ("Cache-Control", "no-store"), ("Connection", "close")]
            await self._write(stream, _bytes(connection.send(h11.Response(status_code=200, headers=headers))))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_gone, stream, nursery.cancel_scope)
                nursery.start_soon(self._send_parts, stream, connection, next_part, nursery.cancel_scope)
        finally:
            self._streams -= 1

    async def _until_gone(self, stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(RECEIVE_BYTES)
        scope.cancel()

    async def _send_parts(
        self,
        stream: trio.abc.Stream,
        connection: h11.Connection,
        next_part: Callable[[], Awaitable[bytes]],
        scope: trio.CancelScope,
    ) -> None:
        try:
            while True:
                part = await next_part()
                await self._write(stream, _bytes(connection.send(h11.Data(data=part))))
        except (trio.BrokenResourceError, trio.TooSlowError):
            self.counters[ControlEvent.CONNECTIONS_BROKEN] += 1
        except Exception:
            self.counters[ControlEvent.INTERNAL_ERRORS] += 1
            LOG.exception("the control endpoint failed in the midst of a stream")
        scope.cancel()

    async def _linger(self, stream: trio.abc.Stream) -> None:
        """Read the client's remaining data: closing with unread bytes would discard the reply."""
        if isinstance(stream, trio.SocketStream):
            await stream.send_eof()
        left = self._limits.linger_bytes
        with trio.move_on_after(self._limits.linger_s):
            while left > 0 and (data := await stream.receive_some(RECEIVE_BYTES)):
                left -= len(data)

    async def _write(self, stream: trio.abc.Stream, data: bytes) -> None:
        with trio.fail_after(self._limits.send_s + time_for(len(data))):
            await stream.send_all(data)


def _bytes(data: bytes | None) -> bytes:
    return data or b""
