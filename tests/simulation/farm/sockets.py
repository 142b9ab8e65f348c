"""Sockets of streams in memory: trio's, and the standard library's for `AcceptQueue`.

    trio.socket.socket   ──▶ SocketFactory ──▶ StreamSocket      trio's own `open_tcp_stream`, `SocketStream`, listeners
    AcceptQueue          ──▶ PlainSocket, Selector               in place of `socket` and `selectors`
    DirectStream         ──▶ read, write by descriptor number    in place of `os`

Descriptors begin at a million, far above the descriptors of the process.
"""

import errno
import os
import selectors
import socket as stdlib_socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final, cast

import trio

from bridge.node.inviting import inviting
from consensus.net import accepting, direct_stream
from tests.simulation.farm.host import current_host
from tests.simulation.farm.streams import End, Listening, MemoryStreams, Waiter, failure

FIRST_DESCRIPTOR: Final = 1_000_000


class Descriptors:
    """The open descriptors of the world, by number."""

    def __init__(self) -> None:
        self.open: dict[int, Listening | End | Selector] = {}
        self._next = FIRST_DESCRIPTOR

    def add(self, thing: "Listening | End | Selector") -> int:
        self._next += 1
        self.open[self._next] = thing
        return self._next


class StreamSocket(trio.socket.SocketType):
    """trio's socket of a stream in memory."""

    def __init__(self, world: "Sockets", end: End | None = None, descriptor: int = -1) -> None:
        self._world = world
        self._own: tuple[str, int] = ("", 0)
        self._thing: End | Listening | None = end
        self._descriptor = descriptor
        self._is_abortive = False
        self._is_shut = False

    @property
    def family(self) -> stdlib_socket.AddressFamily:
        return stdlib_socket.AF_INET

    @property
    def type(self) -> stdlib_socket.SocketKind:
        """The type: a stream."""
        return stdlib_socket.SOCK_STREAM

    @property
    def proto(self) -> int:
        """The protocol: the default."""
        return 0

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802 - trio's name
        """Return True after FIN."""
        return self._is_shut

    def __repr__(self) -> str:
        return f"<StreamSocket {self._descriptor}>"

    def fileno(self) -> int:
        """Return the descriptor; -1 after the close."""
        return self._descriptor

    def detach(self) -> int:
        """Return the descriptor, which stays open, and detach it."""
        found, self._descriptor = self._descriptor, -1
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            self._world.close(self._descriptor, abortive=self._is_abortive)
            self._descriptor = -1

    async def bind(self, address: Any) -> None:
        await trio.lowlevel.checkpoint()
        self._own = str(address[0]), int(address[1])

    def listen(self, backlog: int | None = None) -> None:
        host = current_host.get()
        assert host is not None
        self._thing = self._world.streams.listen(host, self._own, backlog or 128)
        self._own = self._thing.own
        self._descriptor = self._world.descriptors.add(self._thing)

    async def connect(self, address: Any) -> None:
        host = current_host.get()
        assert host is not None
        self._thing = await self._world.streams.connect(host, (str(address[0]), int(address[1])))
        self._descriptor = self._world.descriptors.add(self._thing)

    async def accept(self) -> tuple[trio.socket.SocketType, Any]:
        """Return the next connection and its address."""
        listening = self._thing
        while isinstance(listening, Listening):
            await self.wait_readable()
            if self._descriptor < 0:
                raise failure(errno.EBADF)
            try:
                end = listening.accept()
            except BlockingIOError:
                continue
            return StreamSocket(self._world, end, self._world.descriptors.add(end)), end.other
        raise failure(errno.EINVAL)

    async def wait_readable(self) -> None:
        """Wait until a read returns immediately."""
        await wait_readable(self._checked())

    async def wait_writable(self) -> None:
        """Wait until a write takes bytes."""
        await wait_writable(self._checked())

    def is_readable(self) -> bool:
        return self._checked().is_readable

    async def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            end = self._end()
            try:
                data = end.read(bufsize, peek=bool(flags & stdlib_socket.MSG_PEEK))
            except BlockingIOError:
                await wait_readable(end)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return data

    async def send(self, data: Any, flags: int = 0, /) -> int:  # noqa: ARG002 - trio's parameter
        """Send bytes; return their number."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            end = self._end()
            try:
                sent = end.write(data)
            except BlockingIOError:
                await wait_writable(end)
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return sent

    def shutdown(self, how: int) -> None:
        """Send FIN."""
        if how in (stdlib_socket.SHUT_WR, stdlib_socket.SHUT_RDWR):
            self._is_shut = True
            self._end().end()

    def getsockname(self) -> Any:
        return self._thing.own if self._thing is not None else self._own

    def getpeername(self) -> Any:
        """Return the other side's address."""
        return self._end().other

    def getsockopt(self, level: int, optname: int, buflen: int | None = None) -> Any:  # noqa: ARG002 - trio's parameters
        """Return 1 for SO_ACCEPTCONN if the socket listens; other options are 0."""
        if optname == stdlib_socket.SO_ACCEPTCONN:
            return int(isinstance(self._thing, Listening))
        return 0

    def setsockopt(self, level: int, optname: int, value: Any, optlen: int | None = None) -> None:  # noqa: ARG002 - trio's parameters
        """Record an abortive close; other options do not apply in memory."""
        if level == stdlib_socket.SOL_SOCKET and optname == stdlib_socket.SO_LINGER:
            self._is_abortive = True

    def _checked(self) -> "End | Listening":
        if self._descriptor < 0 or self._thing is None:
            raise failure(errno.EBADF)
        return self._thing

    def _end(self) -> End:
        found = self._checked()
        assert isinstance(found, End)
        return found


class PlainSocket:
    """The standard library's socket of a descriptor, with the methods that `AcceptQueue` calls."""

    def __init__(self, world: "Sockets", descriptor: int) -> None:
        self._world = world
        self._thing = world.descriptors.open[descriptor]
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor; -1 after the close."""
        return self._descriptor

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - the standard library's signature
        """Do nothing: a socket in memory never blocks."""

    def accept(self) -> tuple["PlainSocket", Any]:
        """Return the next connection and its address."""
        assert isinstance(self._thing, Listening)
        end = self._thing.accept()
        return PlainSocket(self._world, self._world.descriptors.add(end)), end.other

    def recv(self, limit: int, flags: int = 0) -> bytes:
        assert isinstance(self._thing, End)
        return self._thing.read(limit, peek=bool(flags & stdlib_socket.MSG_PEEK))

    def close(self) -> None:
        if self._descriptor >= 0:
            self._world.close(self._descriptor)
            self._descriptor = -1

    def in_trio(self) -> StreamSocket:
        """Return trio's socket of the same descriptor."""
        assert isinstance(self._thing, End)
        return StreamSocket(self._world, self._thing, self._descriptor)


class Selector:
    """A selector of sockets in memory."""

    def __init__(self, world: "Sockets") -> None:
        self.readable = Waiter()
        self._world = world
        self._registered: dict[PlainSocket, object] = {}
        self._descriptor = world.descriptors.add(self)

    @property
    def is_readable(self) -> bool:
        return any(each._thing.is_readable for each in self._registered)

    def fileno(self) -> int:
        return self._descriptor

    def register(self, thing: PlainSocket, _events: int, data: object) -> None:
        self._registered[thing] = data
        end = thing._thing
        assert isinstance(end, End)
        end.on_readable = self.readable.wake
        if end.is_readable:
            self.readable.wake()

    def unregister(self, thing: PlainSocket) -> None:
        del self._registered[thing]
        assert isinstance(thing._thing, End)
        thing._thing.on_readable = None

    def select(self, _timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        return [
            (selectors.SelectorKey(each, each.fileno(), selectors.EVENT_READ, data), selectors.EVENT_READ)
            for each, data in self._registered.items()
            if each._thing.is_readable
        ]

    def close(self) -> None:
        self._world.descriptors.open.pop(self._descriptor, None)
        self.readable.wake()


async def wait_readable(thing: "End | Listening | Selector") -> None:
    """Wait until `thing` is readable; raise ClosedResourceError if this side closes it."""
    if thing.is_readable:
        await trio.lowlevel.checkpoint()
        return
    while not thing.is_readable:
        await thing.readable.wait()
    if not isinstance(thing, Selector) and thing.is_closed:
        raise trio.ClosedResourceError("another task closed this socket")


async def wait_writable(thing: "End | Listening") -> None:
    """Wait until `thing` is writable; raise ClosedResourceError if this side closes it."""
    assert isinstance(thing, End)
    if thing.is_writable:
        await trio.lowlevel.checkpoint()
        return
    while not thing.is_writable:
        await thing.writable.wait()
    if thing.is_closed:
        raise trio.ClosedResourceError("another task closed this socket")


class Sockets:
    """The sockets of a world; `interposed` puts them in the place of the operating system's."""

    def __init__(self, streams: MemoryStreams) -> None:
        self.streams = streams
        self.descriptors = Descriptors()

    def close(self, descriptor: int, *, abortive: bool = False) -> None:
        thing = self.descriptors.open.pop(descriptor, None)
        if isinstance(thing, End):
            thing.close(abortive=abortive)
        elif isinstance(thing, Listening):
            thing.close()

    def socket(
        self, family: int = stdlib_socket.AF_INET, kind: int = stdlib_socket.SOCK_STREAM, proto: int = 0
    ) -> trio.socket.SocketType:
        """Return a socket for trio: of a stream in memory, or the operating system's (Unix sockets)."""
        if family in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6) and kind == stdlib_socket.SOCK_STREAM:
            return StreamSocket(self)
        return trio.socket.from_stdlib_socket(stdlib_socket.socket(family, kind, proto))


class FreePort(nullcontext["FreePort"]):
    """A socket that only looks for a free port: on a simulated machine each port is free."""

    def __init__(self) -> None:
        super().__init__(self)
        self._name: tuple[str, int] = ("", 0)

    def setsockopt(self, *_: int) -> None:
        """Take an option."""

    def bind(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class _Module:
    def __init__(self, module: object, **replaced: object) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


@contextmanager
def interposed_sockets(sockets: Sockets, replace: Callable[[object, str, object], None]) -> Iterator[None]:
    """Put the sockets of the world in place of the operating system's. `replace` sets an attribute until the end."""
    opened, from_stdlib = sockets.descriptors.open, trio.socket.from_stdlib_socket

    def plain(*arguments: Any, **named: Any) -> Any:
        descriptor = named.get("fileno", -1)
        return PlainSocket(sockets, descriptor) if descriptor in opened else stdlib_socket.socket(*arguments, **named)

    def in_trio(given: Any) -> Any:
        return given.in_trio() if isinstance(given, PlainSocket) else from_stdlib(given)

    def read(descriptor: int, limit: int) -> bytes:
        if descriptor < FIRST_DESCRIPTOR:
            return os.read(descriptor, limit)
        return cast("End", opened[descriptor]).read(limit)

    def write(descriptor: int, data: Any) -> int:
        if descriptor < FIRST_DESCRIPTOR:
            return os.write(descriptor, data)
        return cast("End", opened[descriptor]).write(data)

    replace(inviting, "socket", _Module(stdlib_socket, socket=lambda *_: FreePort()))
    replace(accepting, "socket", _Module(stdlib_socket, socket=plain))
    replace(accepting, "selectors", _Module(selectors, DefaultSelector=lambda: Selector(sockets)))
    replace(direct_stream, "os", _Module(os, read=read, write=write))
    replace(trio.socket, "from_stdlib_socket", in_trio)
    replace(trio.lowlevel, "wait_readable", _waiting(opened, wait_readable, trio.lowlevel.wait_readable))
    replace(trio.lowlevel, "wait_writable", _waiting(opened, wait_writable, trio.lowlevel.wait_writable))
    before = trio.socket.set_custom_socket_factory(cast("trio.abc.SocketFactory", sockets))
    try:
        yield
    finally:
        trio.socket.set_custom_socket_factory(before)


def _waiting(
    opened: Mapping[int, object], memory: Callable[[Any], Awaitable[None]], kernel: Callable[[Any], Awaitable[None]]
) -> Callable[[Any], Awaitable[None]]:
    async def wait(given: Any) -> None:
        descriptor = given if isinstance(given, int) else given.fileno()
        if descriptor < FIRST_DESCRIPTOR:
            await kernel(given)
        elif descriptor in opened:
            await memory(opened[descriptor])
        else:
            raise trio.ClosedResourceError("this descriptor is closed")

    return wait
