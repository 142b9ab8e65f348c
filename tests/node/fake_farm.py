"""A farm without I2P for the listeners of `garlicfarm connect`: a stream in memory leads to a service of the test."""

from collections.abc import Awaitable, Callable

import h11
import trio
from trio.testing import memory_stream_pair

ADDRESS = f"{'a' * 52}.b32.i2p"
OTHER_ADDRESS = f"{'b' * 52}.b32.i2p"
Service = Callable[[trio.abc.HalfCloseableStream], Awaitable[object]]


class FakeFarm:
    """A farm that runs `service` at the other end of each stream. `error` or `stream`, if set, replaces it."""

    def __init__(self, nursery: trio.Nursery, service: Service, address: str = ADDRESS) -> None:
        self.address = address
        self.error: Exception | None = None
        self.stream: trio.abc.HalfCloseableStream | None = None
        self.opened = 0
        self.quick: list[bool] = []
        """`is_quick` of each stream."""
        self._nursery = nursery
        self._service = service

    async def open_stream(self, *, is_quick: bool = False) -> trio.abc.HalfCloseableStream:
        """Return a stream to the farm; raise `error` if the test has set it."""
        self.quick.append(is_quick)
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.opened += 1
        if self.stream is not None:
            return self.stream
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._service, theirs)
        return ours


class FailingStream(trio.abc.HalfCloseableStream):
    """A stream that accepts bytes and fails with `error` after `delay_s`."""

    def __init__(self, error: Exception, delay_s: float = 0.01) -> None:
        self._error = error
        self._delay_s = delay_s

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        del data
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Raise the error after the delay."""
        del max_bytes
        await trio.sleep(self._delay_s)
        raise self._error

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class HttpService:
    """A service of one request per stream; it records the requests with their bodies."""

    def __init__(self, *parts: bytes) -> None:
        """Set the bytes that follow each request."""
        self.parts = parts or (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",)
        self.requests: list[h11.Request] = []
        self.bodies: list[bytes] = []
        self.ended = trio.Event()
        """Set when a client has ended its stream."""

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Read a request, send the response, and wait for the end of the stream."""
        http = h11.Connection(h11.SERVER)
        body = b""
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some(4096)))
            elif isinstance(event, h11.Request):
                self.requests.append(event)
            elif isinstance(event, h11.Data):
                body += event.data
        self.bodies.append(body)
        for part in self.parts:
            await stream.send_all(part)
        while await stream.receive_some(4096):
            pass
        self.ended.set()
