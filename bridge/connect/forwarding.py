"""The copy of bytes between a local program and a leaf, and the counters that all listeners share.

    program ──▶ at most BUFFER_BYTES ──▶ leaf         a slow reader stops the copy, and so the sender
            ◀── at most BUFFER_BYTES ◀──

The end of one direction is not the end of the other: a program may close its sending side and still read. Each end is
passed on to the other side, and the connection lasts until both directions have ended. SAM cannot carry the end of one
direction, so a leaf may not notice the end of the program's data (`FarmStream.send_eof`). When no byte has arrived for
`HALF_OPEN_S` in the remaining direction, the connection ends.

If the stream to the leaf fails, the program's connection is reset: an orderly end would look like the end of the data.
"""

import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from bridge.connect.errors import ConnectError
from consensus import CountedReason

BUFFER_BYTES: Final = 64 * 1024
HALF_OPEN_S: Final = 300.0
"""Seconds without a byte in the remaining direction, after the other one has ended."""
CONNECTIONS_MAX: Final = 256
"""Connections of local programs, all listeners together; the socket of the client has separate places."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: the kernel discards unsent bytes and sends a reset."""


class ListenerCount(CountedReason):
    """Counters of the listeners of `garlicfarm connect`."""

    CONNECTIONS = "connections", "Connections of local programs, to all listeners"
    CONNECTIONS_FAILED = (
        "connections_failed",
        "Connections and requests that did not reach a leaf, or whose leaf failed. `--status` has the last reason",
    )
    CONNECTIONS_REFUSED = (
        "connections_refused",
        "Connections above the limit, closed immediately. If it grows, a local program does not close its connections",
    )
    REQUESTS = "requests", "HTTP requests forwarded to a leaf, each of them once"
    REQUESTS_REJECTED = (
        "requests_rejected",
        "HTTP requests for other hosts, or against the rules of HTTP. They did not leave this machine",
    )
    TUNNELS = "tunnels", "Tunnels by CONNECT, including the tunnels of `garlicfarm connect --stdio`"


class StreamOpener(Protocol):
    """The part of a `Farm` that listeners use."""

    @property
    def address(self) -> str:
        """The address of the farm, `….b32.i2p`."""

    async def open_stream(self) -> trio.abc.HalfCloseableStream:
        """Return a stream to a leaf; raise `ConnectError`."""


@dataclass(slots=True)
class Listeners:
    """The common state of all listeners of one process."""

    places: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(CONNECTIONS_MAX))
    counters: Counter[ListenerCount] = field(default_factory=lambda: Counter(dict.fromkeys(ListenerCount, 0)))
    last_error: str | None = None
    """The last reason of a failed connection."""

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Take a place for a connection while the block lasts; yield False, and count it, if there is none."""
        self.counters[ListenerCount.CONNECTIONS] += 1
        borrower = object()
        try:
            self.places.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            self.counters[ListenerCount.CONNECTIONS_REFUSED] += 1
            yield False
            return
        try:
            yield True
        finally:
            self.places.release_on_behalf_of(borrower)

    def failed(self, reason: str) -> None:
        """Count a failed connection and store its reason."""
        self.counters[ListenerCount.CONNECTIONS_FAILED] += 1
        self.last_error = reason


async def forward(
    program: trio.abc.HalfCloseableStream, leaf: trio.abc.HalfCloseableStream, first: bytes = b""
) -> None:
    """Copy both directions until both have ended; `first` are bytes of the program that were read already.

    Return when the program has gone. Raise `trio.BrokenResourceError` when the stream to the leaf fails.
    """
    await _Copy(program, leaf).run(first)


def failure_text(error: Exception) -> str:
    """Return the reason of a failed connection: the text of a `ConnectError`, or a sentence about a broken stream."""
    return str(error) if isinstance(error, ConnectError) else "the connection to the leaf broke; connect again"


async def reset(program: trio.abc.Stream) -> None:
    """Close the connection of a program so that the program gets an error, not an end of the data."""
    if isinstance(program, trio.SocketStream):
        with suppress(OSError):
            program.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    await trio.aclose_forcefully(program)


class _Copy:
    def __init__(self, program: trio.abc.HalfCloseableStream, leaf: trio.abc.HalfCloseableStream) -> None:
        self._program = program
        self._leaf = leaf
        self._scope = trio.CancelScope()
        self._ended = 0
        self._failure: trio.BrokenResourceError | None = None

    async def run(self, first: bytes) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._to_leaf, first)
                nursery.start_soon(self._to_program)
        if self._failure is not None:
            raise self._failure

    async def _to_leaf(self, data: bytes) -> None:
        data = data or await self._read_program()
        while data:
            try:
                await self._leaf.send_all(data)
            except trio.BrokenResourceError:
                # The reply may be complete: reading from the leaf shows if the stream has failed.
                break
            self._transferred()
            data = await self._read_program()
        else:
            with suppress(trio.BrokenResourceError):
                await self._leaf.send_eof()
        self._end()

    async def _read_program(self) -> bytes:
        try:
            return bytes(await self._program.receive_some(BUFFER_BYTES))
        except trio.BrokenResourceError:
            self._stop(None)
            return b""

    async def _to_program(self) -> None:
        while True:
            try:
                data = await self._leaf.receive_some(BUFFER_BYTES)
            except trio.BrokenResourceError as error:
                self._stop(error)
                return
            try:
                if not data:
                    await self._program.send_eof()
                    self._end()
                    return
                await self._program.send_all(data)
            except trio.BrokenResourceError:
                self._stop(None)
                return
            self._transferred()

    def _stop(self, failure: trio.BrokenResourceError | None) -> None:
        if self._failure is None:
            self._failure = failure
        self._scope.cancel()

    def _transferred(self) -> None:
        if self._ended:
            self._scope.deadline = trio.current_time() + HALF_OPEN_S

    def _end(self) -> None:
        self._ended += 1
        self._transferred()
