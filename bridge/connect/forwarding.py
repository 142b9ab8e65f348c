"""The copy of bytes between a local program and a leaf, and the counters that all listeners share.

    program ──▶ at most BUFFER_BYTES ──▶ leaf         a slow reader stops the copy, and so the sender
            ◀── at most BUFFER_BYTES ◀──

The end of one direction is not the end of the other: a program may close its sending side and still read. Each end is
passed on to the other side, and the connection lasts until both directions have ended. SAM cannot carry the end of one
direction, so a leaf may not notice that a program has closed its connection (`FarmStream.send_eof`). A connection with
one open direction ends after `HALF_OPEN_S` without a byte. It ends after only `ANSWERED_S` if the program did not send
a byte after the leaf's last byte.

If the stream to the leaf fails, the program's connection is reset: an orderly end would look like the end of the data.
"""

import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import trio

from bridge.connect.errors import ConnectError
from consensus import CountedReason

BUFFER_BYTES: Final = 64 * 1024
HALF_OPEN_S: Final = 300.0
"""Seconds without a byte before a connection with one open direction ends. Each forwarded byte restarts them."""
ANSWERED_S: Final = 30.0
"""The limit instead of `HALF_OPEN_S` if the program did not send a byte after the leaf's last byte.

It is shorter, because most programs close both directions together.
"""
CONNECTIONS_MAX: Final = 256
"""Connections of local programs to all ports together."""
SOCKET_CONNECTIONS_MAX: Final = 64
"""Connections to the client's own socket. They have separate places, so that the status is always available."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: the kernel discards unsent bytes and sends a reset."""


class ListenerCount(CountedReason):
    """Counters of the listeners of `garlicfarm connect`."""

    CONNECTIONS = "connections", "Connections of local programs to the ports of the client"
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
    """The methods of a `FarmClient` that listeners use."""

    @property
    def address(self) -> str:
        """The address of the farm, `….b32.i2p`."""

    async def open_stream(self, *, is_quick: bool = False) -> trio.abc.HalfCloseableStream:
        """Return a stream to a leaf, with short timeouts if `is_quick`; raise `ConnectError`."""


class Listeners:
    """The common state of all listeners of one process."""

    def __init__(self) -> None:
        self.places = trio.CapacityLimiter(CONNECTIONS_MAX)
        self.socket_places = trio.CapacityLimiter(SOCKET_CONNECTIONS_MAX)
        self.counters: Counter[ListenerCount] = Counter(dict.fromkeys(ListenerCount, 0))
        self.last_error: str | None = None
        """The last reason of a failed connection."""

    @property
    def open_connections(self) -> int:
        """The number of open connections of local programs."""
        return self.places.borrowed_tokens

    @contextmanager
    def place(self, *, own_socket: bool = False) -> Iterator[bool]:
        """Take a place for a connection while the block lasts; yield False if all places are taken."""
        places = self.socket_places if own_socket else self.places
        self.counters[ListenerCount.CONNECTIONS] += not own_socket
        borrower = object()
        try:
            places.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            self.counters[ListenerCount.CONNECTIONS_REFUSED] += 1
            yield False
            return
        try:
            yield True
        finally:
            places.release_on_behalf_of(borrower)

    def failed(self, reason: str) -> None:
        """Count a failed connection and store its reason."""
        self.counters[ListenerCount.CONNECTIONS_FAILED] += 1
        self.last_error = reason


async def forward(
    program: trio.abc.HalfCloseableStream,
    leaf: trio.abc.HalfCloseableStream,
    first: bytes = b"",
    *,
    until_leaf_ends: bool = False,
) -> None:
    """Copy both directions until both have ended; `first` are bytes of the program that were read already.

    Return early when the program's connection breaks, or after the time limit of a connection with one open direction.
    With `until_leaf_ends`, also return when the leaf has ended its direction. Raise `trio.BrokenResourceError` when the
    stream to the leaf fails.
    """
    await _Copy(program, leaf, until_leaf_ends=until_leaf_ends).run(first)


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
    def __init__(
        self, program: trio.abc.HalfCloseableStream, leaf: trio.abc.HalfCloseableStream, *, until_leaf_ends: bool
    ) -> None:
        self._program = program
        self._until_leaf_ends = until_leaf_ends
        self._leaf = leaf
        self._scope = trio.CancelScope()
        self._has_ended = False
        self._is_answered = True
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
            self._is_answered = False
            self._extend()
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
                    if self._until_leaf_ends:
                        self._stop(None)
                    return
                await self._program.send_all(data)
            except trio.BrokenResourceError:
                self._stop(None)
                return
            self._is_answered = True
            self._extend()

    def _stop(self, failure: trio.BrokenResourceError | None) -> None:
        if self._failure is None:
            self._failure = failure
        self._scope.cancel()

    def _extend(self) -> None:
        if self._has_ended:
            self._scope.deadline = trio.current_time() + (ANSWERED_S if self._is_answered else HALF_OPEN_S)

    def _end(self) -> None:
        self._has_ended = True
        self._extend()
