"""The control endpoint's server: HTTP/1.1 on a Unix socket that only the node's own user can open.

    accept ─▶ one task per connection: read one request whole ─▶ Routes.answer ─▶ send ─▶ next request (keep-alive)

The socket's mode (0600) is the access control; a TCP port would need keys and would be one more way in. Everything is
bounded: connections at a time, bytes of a head and of a body, requests on one connection, and the time for a client to
say something, to finish what it began and to take its answer. Whoever breaks a bound loses the connection and is
counted; nobody else notices. Requests on one connection are answered strictly in order, and the next one is not read
before the last was answered, so that a client can never pile up work.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h11
import trio

from bridge.node.control_routes import Answer, ControlPort, Request, Routes, refusal
from bridge.node.control_socket import identity, listen, remove_if_ours

RECEIVE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """What one client, and all of them together, may take."""

    connections: int = 64
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

    def __init__(self, path: Path, port: ControlPort, limits: ControlLimits | None = None) -> None:
        self.path = path
        self._routes = Routes(port)
        self._limits = limits or ControlLimits()
        self._connections = 0
        self._counters = {"control_connections": 0, "control_connections_refused": 0, "control_connections_broken": 0}

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
                task_status.started()
        finally:
            remove_if_ours(self.path, ours)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._counters["control_connections"] += 1
        with self._counted():
            async with stream:
                await self._guarded(stream)

    async def _guarded(self, stream: trio.SocketStream) -> None:
        try:
            if self._connections > self._limits.connections:
                self._counters["control_connections_refused"] += 1
                await self._refuse(stream)
            else:
                await self._converse(stream)
        except (h11.ProtocolError, trio.BrokenResourceError, trio.TooSlowError):
            self._counters["control_connections_broken"] += 1

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1

    async def _refuse(self, stream: trio.SocketStream) -> None:
        text = f"{self._limits.connections} connections are open already; try again"
        connection = h11.Connection(h11.SERVER)
        await self._send(stream, connection, refusal(503, "busy", text), closing=True)

    async def _converse(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        for remaining in range(self._limits.requests_per_connection, 0, -1):
            try:
                request = await self._read_request(stream, connection)
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
            answer = await self._routes.answer(request)
            await self._send(stream, connection, answer, closing=remaining == 1, head_only=request.method == "HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _read_request(self, stream: trio.SocketStream, connection: h11.Connection) -> Request | None:
        """The next request, whole; None when the client has gone or kept silent."""
        head: h11.Request | None = None
        body = bytearray()
        with trio.move_on_after(self._limits.idle_s) as patience:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if connection.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self._write(stream, _bytes(connection.send(go_on)))
                    connection.receive_data(await stream.receive_some(RECEIVE_BYTES))
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
                        return Request(head.method.decode("ascii"), head.target.decode("latin-1"), bytes(body))
                    case _:
                        return None
        return None

    async def _send(
        self,
        stream: trio.SocketStream,
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

    async def _linger(self, stream: trio.SocketStream) -> None:
        """Take in what the client still sends: closing over unread bytes would take the answer away from it."""
        await stream.send_eof()
        left = self._limits.linger_bytes
        with trio.move_on_after(self._limits.linger_s):
            while left > 0 and (data := await stream.receive_some(RECEIVE_BYTES)):
                left -= len(data)

    async def _write(self, stream: trio.SocketStream, data: bytes) -> None:
        with trio.fail_after(self._limits.send_s):
            await stream.send_all(data)


def _bytes(data: bytes | None) -> bytes:
    return data or b""
