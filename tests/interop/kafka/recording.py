"""A proxy in front of a Kafka server that forwards all bytes and records the frames.

    clients, peers ──TCP──▶ the advertised port: RecordingProxy ──TCP──▶ the server's port
                                    │
                                    └─ 4 bytes of length │ frame ─▶ RecordedFrame(API, version, direction, bytes)

A response does not name its request, so each connection stores the requests without a response. Kafka replies in the
order of the requests, and the correlation id confirms the order. A request without a response (Produce without
acknowledgment) would break the order; it raises an error instead of a wrong recording.

The proxy also simulates failures of the network: `cut` ends all connections of the server. `hold` also ends each new
connection immediately, until `release`, so that the server's peers observe a partition.
"""

import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

LOOPBACK: Final = "127.0.0.1"
PIECE_BYTES: Final = 65_536
KEPT_FRAMES: Final = 50_000
_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEAD: Final = struct.Struct(">hhi")


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One request to a server or one of its responses, without the four bytes of its length."""

    moment_s: float
    server: str
    connection: int
    is_request: bool
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes

    @property
    def direction(self) -> str:
        """The word for the direction in a file of vectors."""
        return "request" if self.is_request else "response"


class FrameReader:
    """Splits one direction of a connection into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Add bytes; yield the frames that they complete."""
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield frame


@dataclass(slots=True)
class _Connection:
    """The requests of one connection without a response: API, version, correlation id."""

    number: int
    waiting: deque[tuple[int, int, int]] = field(default_factory=deque)


class RecordingProxy:
    """A proxy in front of one server. `run` serves until it is canceled."""

    def __init__(self, server: str, port: int, target_port: int, frames: deque[RecordedFrame]) -> None:
        self.server = server
        self._port = port
        self._target_port = target_port
        self._frames = frames
        self._connections = 0
        self._open: set[trio.CancelScope] = set()
        self._holding = False

    def cut(self) -> None:
        """End every connection; new ones are served."""
        for scope in list(self._open):
            scope.cancel()

    def hold(self) -> None:
        """End every connection, and each new one immediately, until `release`."""
        self._holding = True
        self.cut()

    def release(self) -> None:
        """Serve new connections again."""
        self._holding = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, and forward all bytes."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(self._port, host=LOOPBACK)
            task_status.started()
            await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)

    async def _serve(self, near: trio.SocketStream) -> None:
        self._connections += 1
        connection = _Connection(self._connections)
        async with near:
            if self._holding:
                return
            with suppress(OSError), trio.CancelScope() as scope:
                self._open.add(scope)
                try:
                    far = await trio.open_tcp_stream(LOOPBACK, self._target_port)
                    async with far, trio.open_nursery() as nursery:
                        nursery.start_soon(self._pass_requests, near, far, connection, scope)
                        nursery.start_soon(self._pass_responses, far, near, connection, scope)
                finally:
                    self._open.discard(scope)

    async def _pass_requests(
        self, near: trio.SocketStream, far: trio.SocketStream, connection: _Connection, scope: trio.CancelScope
    ) -> None:
        reader = FrameReader()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await near.receive_some(PIECE_BYTES):
                for frame in reader.feed(data):
                    api_key, api_version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
                    connection.waiting.append((api_key, api_version, correlation_id))
                    self._keep(connection, api_key, api_version, correlation_id, frame, is_request=True)
                await far.send_all(data)
        scope.cancel()

    async def _pass_responses(
        self, far: trio.SocketStream, near: trio.SocketStream, connection: _Connection, scope: trio.CancelScope
    ) -> None:
        reader = FrameReader()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await far.receive_some(PIECE_BYTES):
                for frame in reader.feed(data):
                    api_key, api_version, correlation_id = connection.waiting.popleft()
                    (answered,) = _LENGTH.unpack_from(frame)
                    if answered != correlation_id:
                        raise RuntimeError(
                            f"{self.server} replies to {answered}, expected {correlation_id} ({api_key})"
                        )
                    self._keep(connection, api_key, api_version, correlation_id, frame, is_request=False)
                await near.send_all(data)
        scope.cancel()

    def _keep(
        self,
        connection: _Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        frame: bytes,
        *,
        is_request: bool,
    ) -> None:
        self._frames.append(
            RecordedFrame(
                time.time(), self.server, connection.number, is_request, api_key, api_version, correlation_id, frame
            )
        )


class Recorder:
    """The last frames of all servers with a proxy started by `serve`."""

    def __init__(self) -> None:
        self.frames: deque[RecordedFrame] = deque(maxlen=KEPT_FRAMES)
        self.proxies: dict[str, RecordingProxy] = {}

    async def serve(
        self,
        server: str,
        port: int,
        target_port: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a proxy for one server until canceled: listen at `port`, forward to `target_port`."""
        proxy = self.proxies[server] = RecordingProxy(server, port, target_port, self.frames)
        await proxy.run(task_status=task_status)
