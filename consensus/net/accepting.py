"""Accept connections such that a flood from unknown sources costs little and does not delay the farm's own servers.

    kernel ─accept─▶ idle ───first byte─▶ readable ─turn─▶ handled
                       │                    │
                       └── closed if it waits too long, or is the oldest of too many, of its source or of all

A connection gets a task, a TLS session and a signature only after its first byte and when its turn has come. Until then
it costs one descriptor. So this process empties the kernel's queue even in a flood, and servers of the farm do not wait
in that queue.

A source is known if a server has recently proven its identity from there. Connections of known and of unknown sources
wait in separate queues, with separate limits. Connections of known sources are handled as soon as they are readable.
Connections of unknown sources are handled at a limited rate. Sources take turns. Within a source, the connection that
became readable last is handled first: in a flood, the senders have already abandoned the oldest ones. A /64 of IPv6 is
one source.

When `accept` lacks a descriptor or memory, the oldest connection of an unknown source is closed. Accepting continues a
moment later.
"""

import errno
import ipaddress
import selectors
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final

import trio
from msgspec import Struct

from consensus.server.callbacks import run_task

_ACCEPT_AT_ONCE: Final = 256
_BEGIN_AT_ONCE: Final = 8
"""Handshakes that begin before other tasks run: a few milliseconds of signatures."""
_PAUSE_S: Final = 0.05
_KNOWN_FOR_S: Final = 3600.0
_KNOWN_MAX: Final = 1024
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_IPV6_SOURCE_BITS: Final = 64


class AcceptOptions(Struct, frozen=True):
    """Limits of connections that wait for their first byte or turn, and of the rate of unknown new ones."""

    unknown_max: int = 256
    unknown_per_source_max: int = 64
    known_max: int = 128
    waiting_s: float = 5.0
    starts_per_s: float = 200.0
    """Handshakes from unknown sources per second. Each costs about a millisecond, so together they use a fifth of a
    processor."""


def source_of(address: str) -> str:
    """Return the source of an address: IPv4, the /64 of IPv6, or the text of any other address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), _IPV6_SOURCE_BITS), strict=False))


class KnownSources:
    """Source addresses of servers that have recently proven their identity."""

    def __init__(self) -> None:
        self._proven_at: OrderedDict[str, float] = OrderedDict()

    def add(self, address: str) -> None:
        """Add the address of a server that has proven its identity."""
        source = source_of(address)
        self._proven_at[source] = trio.current_time()
        self._proven_at.move_to_end(source)
        if len(self._proven_at) > _KNOWN_MAX:
            self._proven_at.popitem(last=False)

    def __contains__(self, address: object) -> bool:
        """Return True if a server has proven its identity from the source of this address within the last hour."""
        proven_at = self._proven_at.get(source_of(str(address)))
        return proven_at is not None and trio.current_time() - proven_at < _KNOWN_FOR_S


class _PendingStream(Struct, eq=False):
    connection: socket.socket
    address: str
    source: str
    since_s: float
    readable: bool = False


class _Places:
    """The waiting connections of one class, the oldest first."""

    def __init__(self, pending_max: int, per_source_max: int) -> None:
        self._pending_max = pending_max
        self._per_source_max = per_source_max
        self.all: dict[_PendingStream, None] = {}
        self._by_source: dict[str, dict[_PendingStream, None]] = {}
        self._readable: OrderedDict[str, list[_PendingStream]] = OrderedDict()

    def add(self, pending: _PendingStream) -> _PendingStream | None:
        """Add a connection; return the connection to close instead, if there are too many."""
        of_source = self._by_source.setdefault(pending.source, {})
        of_source[pending] = None
        self.all[pending] = None
        if len(of_source) > self._per_source_max:
            return next(iter(of_source))
        return next(iter(self.all)) if len(self.all) > self._pending_max else None

    def discard(self, pending: _PendingStream) -> None:
        self.all.pop(pending, None)
        of_source = self._by_source.get(pending.source, {})
        of_source.pop(pending, None)
        if not of_source:
            self._by_source.pop(pending.source, None)
        readable = self._readable.get(pending.source)
        if readable and pending in readable:
            readable.remove(pending)
            if not readable:
                del self._readable[pending.source]

    def mark_readable(self, pending: _PendingStream) -> None:
        pending.readable = True
        self._readable.setdefault(pending.source, []).append(pending)

    def next(self) -> _PendingStream | None:
        """Take the next source; remove and return its connection that became readable last."""
        if not self._readable:
            return None
        source, readable = next(iter(self._readable.items()))
        pending = readable[-1]
        self._readable.move_to_end(source)
        self.discard(pending)
        return pending

    def older_than(self, moment_s: float) -> list[_PendingStream]:
        old = []
        for pending in self.all:
            if pending.since_s > moment_s:
                break
            old.append(pending)
        return old


class CloseReason(Enum):
    """Reason for closing a connection before it was handled."""

    CROWDED = "too many connections wait for their turn"
    SILENT = "it sent nothing in time, or did not get a turn in time"
    GONE = "it closed the connection without sending anything"
    EXHAUSTED = "too few file descriptors (ulimit -n), or too little memory for connections"


Handle = Callable[[trio.SocketStream, str], Awaitable[None]]
"""Serves a connection and closes it, also after an error. The error is logged, and ends only this connection."""


class AcceptQueue:
    """The connections between the kernel and the handlers of one listening server."""

    def __init__(
        self,
        options: AcceptOptions | None = None,
        known: KnownSources | None = None,
        arrived: Callable[[], None] = lambda: None,
        dropped: Callable[[str, CloseReason], None] = lambda *_: None,
    ) -> None:
        """Call `arrived` for each connection, and `dropped` for each connection closed for a `CloseReason`."""
        self.known = known or KnownSources()
        self.options = options or AcceptOptions()
        self._arrived = arrived
        self._dropped = dropped
        self._unknown = _Places(self.options.unknown_max, self.options.unknown_per_source_max)
        self._members = _Places(self.options.known_max, self.options.known_max)
        self._selector = selectors.DefaultSelector()
        self._changed = trio.Event()
        self._some_wait = trio.Event()
        self._allowance = self.options.starts_per_s
        self._allowance_at_s = 0.0

    @property
    def waiting(self) -> int:
        """Return the number of connections that wait to be handled."""
        return len(self._unknown.all) + len(self._members.all)

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        handle: Handle,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept from `listeners`, which this call takes over; handle each connection in a task, until canceled."""
        listening = [socket.socket(fileno=each.socket.detach()) for each in listeners]
        try:
            async with trio.open_nursery() as nursery:
                for each in listening:
                    each.setblocking(False)  # noqa: FBT003 -- the standard library's own signature
                    nursery.start_soon(self._accept, each)
                nursery.start_soon(self._listen)
                nursery.start_soon(self._expire)
                nursery.start_soon(self._begin, nursery, handle)
                task_status.started()
        finally:
            for each in listening:
                each.close()
            for places in (self._unknown, self._members):
                for pending in list(places.all):
                    pending.connection.close()
                    places.discard(pending)
            self._selector.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await trio.lowlevel.wait_readable(listening)
            if not self._accept_some(listening):
                # Descriptors become free with a delay, and the kernel queues new connections.
                await trio.sleep(_PAUSE_S)

    def _accept_some(self, listening: socket.socket) -> bool:
        """Accept connections of the kernel's queue, up to a limit; return False without a descriptor or memory."""
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, address = listening.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._drop_oldest()
                    return False
                continue  # The connection broke before it was accepted.
            self._arrive(connection, str(address[0]))
        return True

    def _arrive(self, connection: socket.socket, address: str) -> None:
        pending = _PendingStream(connection, address, source_of(address), trio.current_time())
        self._some_wait.set()
        self._arrived()
        places = self._places(pending)
        try:
            self._selector.register(connection, selectors.EVENT_READ, pending)
        except (OSError, ValueError):
            connection.close()
            self._dropped(address, CloseReason.EXHAUSTED)
            return
        oldest = places.add(pending)
        if oldest is not None:
            self._drop(oldest, CloseReason.CROWDED)

    def _places(self, pending: _PendingStream) -> _Places:
        if pending in self._members.all:
            return self._members
        if pending in self._unknown.all:
            return self._unknown
        return self._members if pending.address in self.known else self._unknown

    def _drop_oldest(self) -> None:
        for pending in self._unknown.all:
            self._drop(pending, CloseReason.EXHAUSTED)
            return

    def _drop(self, pending: _PendingStream, reason: CloseReason) -> None:
        self._places(pending).discard(pending)
        if not pending.readable:
            self._selector.unregister(pending.connection)
        pending.connection.close()
        self._dropped(pending.address, reason)

    async def _listen(self) -> None:
        """Mark connections that have sent something, or were closed by the peer, as readable."""
        while True:
            await trio.lowlevel.wait_readable(self._selector.fileno())
            for key, _ in self._selector.select(0):
                self._on_readable(key.data)
            self._changed.set()

    def _on_readable(self, pending: _PendingStream) -> None:
        self._selector.unregister(pending.connection)
        self._places(pending).mark_readable(pending)
        with suppress(OSError):
            if pending.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
        self._drop(pending, CloseReason.GONE)

    async def _begin(self, nursery: trio.Nursery, handle: Handle) -> None:
        while True:
            self._changed = trio.Event()
            started_count = 0
            while started_count < _BEGIN_AT_ONCE and (pending := self._next()) is not None:
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(pending.connection))
                nursery.start_soon(run_task, handle, stream, pending.address)
                started_count += 1
            if started_count:
                await trio.lowlevel.checkpoint()
                continue
            with trio.move_on_after(_PAUSE_S if self._unknown.all else float("inf")):
                await self._changed.wait()

    def _next(self) -> _PendingStream | None:
        pending = self._members.next()
        if pending is not None:
            return pending
        now_s, rate = trio.current_time(), self.options.starts_per_s
        self._allowance = min(rate, self._allowance + (now_s - self._allowance_at_s) * rate)
        self._allowance_at_s = now_s
        if self._allowance < 1 or (pending := self._unknown.next()) is None:
            return None
        self._allowance -= 1
        return pending

    async def _expire(self) -> None:
        while True:
            if not self.waiting:
                # The loop does not poll: usually no connection waits, and each needless wake-up costs an idle node
                # processor time.
                self._some_wait = trio.Event()
                await self._some_wait.wait()
            await trio.sleep(self.options.waiting_s / 10)
            oldest_s = trio.current_time() - self.options.waiting_s
            for places in (self._unknown, self._members):
                for pending in places.older_than(oldest_s):
                    self._drop(pending, CloseReason.SILENT)
