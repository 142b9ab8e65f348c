"""The control endpoint's server: HTTP/1.1 on a Unix socket that only the node's own user can open, and on TCP if told.

    accept ─▶ one task per connection: read one request whole ─▶ Routes.answer ─▶ send ─▶ next request (keep-alive)

The socket's mode (0600), its directory's (0700) and the kernel's word on who connects (this user or root) are the
access control. A TCP port is one more way in and is opened only on an operator's word:
then with TLS, and with a token in every request that says what its sender may do (`bridge.node.control_access`).
Clients of TCP have places of their own, so that strangers cannot keep the node's own user out. Everything is bounded:
connections at a time, bytes of a head and of a body, requests on one connection, and the time for a client to say
something, to finish what it began and to take its answer. Whoever breaks a bound loses the connection and is counted;
nobody else notices. Requests on one connection are answered strictly in order, and the next one is not read before the
last was answered, so that a client can never pile up work.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h11
import trio

from bridge.node.control_access import Access, RemoteAccess
from bridge.node.control_routes import Answer, ControlPort, Handler, Request, Routes, refusal
from bridge.node.control_socket import ControlSocketError, identity, listen, remove_if_ours
from bridge.node.local_trust import is_trusted_user, peer_user_id
from consensus.node.tls_stream import TlsStream

RECEIVE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """What one client, and all of them together, may take."""

    connections: int = 64
    remote_connections: int = 32
    requests_per_connection: int = 10_000
    head_bytes: int = 16 * 1024
    body_bytes: int = 256 * 1024
    idle_s: float = 120.0
    receive_s: float = 10.0
    send_s: float = 10.0
    linger_s: float = 1.0
    linger_bytes: int = 1024 * 1024


class TooLarge(Exception):  # noqa: N818 -- an answer (413), not a fault
    """A request's body is beyond the limit."""


class ControlServer:
    """Serves a `ControlPort` at `path` until cancelled."""

    def __init__(
        self,
        path: Path,
        port: ControlPort,
        limits: ControlLimits | None = None,
        remote: RemoteAccess | None = None,
        more: Mapping[str, tuple[str, Handler]] | None = None,
        user_of: Callable[[trio.socket.SocketType], int | None] = peer_user_id,
    ) -> None:
        """`more`: routes that other parts of the node answer. `user_of`: who is on the other side of a Unix socket."""
        self._user_of = user_of
        self.path = path
        self.remote_port: int | None = None
        """The TCP port, once there is one."""
        self._remote = remote
        self._routes = Routes(port, more)
        self._limits = limits or ControlLimits()
        self._connections = {"socket": 0, "remote": 0}
        self._counters = {
            "control_connections": 0,
            "control_connections_refused": 0,
            "control_connections_broken": 0,
            "control_unauthorized": 0,
        }

    @property
    def counters(self) -> dict[str, int]:
        """What happened here so far."""
        return {**self._counters, **self._routes.counters}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve. `task_status` is started once the socket answers; a `ControlSocketError` says why it cannot."""
        listening = listen(self.path)
        ours = identity(self.path)
        try:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            async with trio.open_nursery() as nursery:
                await nursery.start(trio.serve_listeners, self._serve, [listener])
                if self._remote is not None:
                    await self._listen_remote(nursery, self._remote)
                task_status.started()
        finally:
            remove_if_ours(self.path, ours)

    async def _listen_remote(self, nursery: trio.Nursery, remote: RemoteAccess) -> None:
        context = remote.certificate.server_context()

        async def accept(transport: trio.SocketStream) -> None:
            self._counters["control_connections"] += 1
            with self._counted("remote"):
                async with TlsStream(transport, context, server_side=True) as stream:
                    await self._guarded(stream, remote)

        try:
            listeners = await trio.open_tcp_listeners(remote.address.port, host=remote.address.host)
        except OSError as error:
            raise ControlSocketError(
                f"control.listen = {remote.address.host}:{remote.address.port} cannot be opened"
                f" ({error.strerror or error}): choose an address of this machine and a port that no other process uses"
            ) from error
        self.remote_port = int(listeners[0].socket.getsockname()[1])
        await nursery.start(trio.serve_listeners, accept, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._counters["control_connections"] += 1
        with self._counted("socket"):
            async with stream:
                if is_trusted_user(self._user_of(stream.socket)):
                    await self._guarded(stream, None)
                else:
                    self._counters["control_unauthorized"] += 1

    async def _guarded(self, stream: trio.abc.Stream, remote: RemoteAccess | None) -> None:
        places, most = ("socket", self._limits.connections)
        if remote is not None:
            places, most = ("remote", self._limits.remote_connections)
        try:
            if isinstance(stream, TlsStream):
                if self._connections[places] > 2 * most:
                    # As many again are told that it is full, which costs a handshake; the others are only closed.
                    self._counters["control_connections_refused"] += 1
                    return
                with trio.fail_after(self._limits.receive_s):
                    await stream.do_handshake()
            if self._connections[places] > most:
                self._counters["control_connections_refused"] += 1
                await self._refuse(stream, most)
            else:
                await self._converse(stream, remote)
        except (h11.ProtocolError, trio.BrokenResourceError, trio.TooSlowError):
            self._counters["control_connections_broken"] += 1

    @contextmanager
    def _counted(self, places: str) -> Iterator[None]:
        self._connections[places] += 1
        try:
            yield
        finally:
            self._connections[places] -= 1

    async def _refuse(self, stream: trio.abc.Stream, most: int) -> None:
        text = f"{most} connections are open already; try again"
        connection = h11.Connection(h11.SERVER)
        await self._send(stream, connection, refusal(503, "busy", text), closing=True)

    async def _converse(self, stream: trio.abc.Stream, remote: RemoteAccess | None) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        # Who has not shown a token yet may be anybody, and must not keep a place for as long as a known client may.
        patience_s = self._limits.idle_s if remote is None else self._limits.receive_s
        for remaining in range(self._limits.requests_per_connection, 0, -1):
            try:
                request = await self._read_request(stream, connection, remote, patience_s)
            except TooLarge:
                text = f"a body has at most {self._limits.body_bytes} bytes"
                await self._send(stream, connection, refusal(413, "too-large", text), closing=True)
                return
            except h11.RemoteProtocolError as error:
                answer = refusal(error.error_status_hint, "not-http", f"this is not HTTP/1.1: {error}")
                await self._send(stream, connection, answer, closing=True)
                raise
            if request is None:
                return
            if request.access is Access.NONE:
                self._counters["control_unauthorized"] += 1
                text = (
                    "show a token: 'Authorization: Bearer …' with what is in control.read.token or control.admin.token"
                )
                await self._send(stream, connection, refusal(401, "unauthorized", text), closing=True)
                return
            patience_s = self._limits.idle_s
            answer = await self._routes.answer(request)
            await self._send(stream, connection, answer, closing=remaining == 1, head_only=request.method == "HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _read_request(
        self, stream: trio.abc.Stream, connection: h11.Connection, remote: RemoteAccess | None, patience_s: float
    ) -> Request | None:
        """The next request, whole; None when the client has gone or kept silent."""
        head: h11.Request | None = None
        body = bytearray()
        with trio.move_on_after(patience_s) as patience:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if connection.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self._write(stream, _bytes(connection.send(go_on)))
                    connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
                    patience.deadline = min(patience.deadline, trio.current_time() + self._limits.receive_s)
                    continue
                match event:
                    case h11.Request():
                        head = event
                    case h11.Data():
                        body += event.data
                        if len(body) > self._limits.body_bytes:
                            raise TooLarge
                    case h11.EndOfMessage() if head is not None:
                        method, target = head.method.decode("ascii"), head.target.decode("latin-1")
                        return Request(method, target, bytes(body), _access(head, remote))
                    case _:
                        return None
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
        ]
        if closing:
            headers.append(("Connection", "close"))
        data = _bytes(connection.send(h11.Response(status_code=answer.status, headers=headers)))
        if not head_only:
            data += _bytes(connection.send(h11.Data(data=answer.body)))
        data += _bytes(connection.send(h11.EndOfMessage()))
        await self._write(stream, data)
        if closing:
            await self._linger(stream)

    async def _linger(self, stream: trio.abc.Stream) -> None:
        """Take in what the client still sends: closing over unread bytes would take the answer away from it."""
        if isinstance(stream, trio.SocketStream):
            await stream.send_eof()
        left = self._limits.linger_bytes
        with trio.move_on_after(self._limits.linger_s):
            while left > 0 and (data := await stream.receive_some(RECEIVE_BYTES)):
                left -= len(data)

    async def _write(self, stream: trio.abc.Stream, data: bytes) -> None:
        with trio.fail_after(self._limits.send_s):
            await stream.send_all(data)


def _access(head: h11.Request, remote: RemoteAccess | None) -> Access:
    """What the sender of a request may do: everything on the node's own socket, else what its token allows."""
    if remote is None:
        return Access.ADMIN
    shown = [value.decode("latin-1") for name, value in head.headers if name == b"authorization"]
    return remote.granted(shown[0]) if len(shown) == 1 else Access.NONE


def _bytes(data: bytes | None) -> bytes:
    return data or b""
