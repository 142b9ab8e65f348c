"""TCP between the machines, in memory: connections, refusals, resets, retransmissions over blocked links.

    End ◀── Pipe ──▶ End      two ends of a connection, and a pipe for each direction

    a blocked link        bytes are sent again after 0.2 s, 0.4 s, … 120 s; the sender's connection breaks after 15 min
    a closed end          FIN after the bytes under way; RST for bytes that arrive later
    a killed process      its ends close
    no power              nothing is sent, and RST for old connections after the boot
    no listener           RST to the SYN: "connection refused"
    no machine            "no route to host" after 3 s
    a blocked SYN         it is sent again, and the connection fails after 127 s

An `End` has the interface of the kernel without waiting: read, write, `EAGAIN`. `tests.simulation.farm.sockets` makes
sockets of it.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from tests.simulation.farm.datagrams import is_own
from tests.simulation.farm.host import Host, current_service
from tests.simulation.farm.network import Network

WINDOW_BYTES: Final = 256 * 1024
"""Bytes under way or unread, in one direction."""
RETRY_FIRST_S: Final = 0.2
RETRY_LONGEST_S: Final = 120.0
GIVE_UP_S: Final = 924.0
"""tcp_retries2 = 15, as the kernel documents it."""
CONNECT_GIVE_UP_S: Final = 127.0
"""tcp_syn_retries = 6."""
NO_ROUTE_S: Final = 3.0
_FIRST_FREE_PORT: Final = 32_768
_PORTS: Final = 28_000

Name = tuple[str, int]


class Waiter:
    """The tasks that wait until something is readable or writable."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[trio.lowlevel.Task, None] = {}

    async def wait(self) -> None:
        task = trio.lowlevel.current_task()
        self._tasks[task] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._tasks[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        if self._tasks:
            tasks, self._tasks = self._tasks, {}
            for each in tasks:
                trio.lowlevel.reschedule(each)


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class _Segment:
    data: bytes
    """Empty for FIN."""


class Pipe:
    """One direction of a connection: bytes in order, each after its delay."""

    def __init__(self, network: Network, source: "End", target: "End") -> None:
        self._network = network
        self._source = source
        self._target = target
        self._last_s = 0.0
        self._held: deque[_Segment] = deque()
        """Segments to send again: a blocked link lost them, or lost an earlier segment."""
        self._retry_s = RETRY_FIRST_S
        self._stalled_s: float | None = None
        self.under_way_bytes = 0

    def send(self, data: bytes) -> None:
        """Send bytes; none means FIN."""
        self._network.segments += 1
        self.under_way_bytes += len(data)
        self._transmit(_Segment(data))

    def _transmit(self, segment: _Segment) -> None:
        if self._held:
            self._held.append(segment)
            return
        network, clock = self._network, self._network.clock
        link = network.link_of(self._source.host, self._target.host)
        delay_s = network.delay_s(link)
        while link.loss and network.random.random() < link.loss:
            delay_s += RETRY_FIRST_S
        self._last_s = max(self._last_s, clock.now_s + delay_s)
        clock.call_at(self._last_s, lambda: self._arrive(segment))

    def _arrive(self, segment: _Segment) -> None:
        if self._held or not self._network.is_open(self._source.host, self._target.host):
            if self._source.has_vanished:
                return
            self._held.append(segment)
            if len(self._held) == 1:
                self._stalled_s, self._retry_s = self._network.clock.now_s, RETRY_FIRST_S
                self._network.clock.call_at(self._stalled_s + self._retry_s, self._retry)
            return
        self._target.arrive(segment.data)

    def _retry(self) -> None:
        now_s = self._network.clock.now_s
        if self._source.has_vanished:
            self._held.clear()
        elif self._network.is_open(self._source.host, self._target.host):
            held, self._held = list(self._held), deque()
            for each in held:
                self._transmit(each)
        elif self._stalled_s is not None and now_s - self._stalled_s >= GIVE_UP_S:
            self._held.clear()
            self._source.fail(errno.ETIMEDOUT)
        else:
            self._retry_s = min(2 * self._retry_s, RETRY_LONGEST_S)
            self._network.clock.call_at(now_s + self._retry_s, self._retry)


class End:
    """One end of a connection, as the kernel of its machine keeps it."""

    def __init__(self, streams: "MemoryStreams", host: Host, own: Name, other: Name, service: str) -> None:
        self.host = host
        self.service = service
        self.own = own
        self.other = other
        self.readable = Waiter()
        self.writable = Waiter()
        self.on_readable: Callable[[], None] | None = None
        """Called when a read would return something new, for a selector."""
        self.has_vanished = False
        """True after a power cut of its machine."""
        self.is_closed = False
        self._streams = streams
        self._received = bytearray()
        self._has_ended = False
        self._error: int | None = None
        self._out: Pipe | None = None
        self._peer: End | None = None

    def join(self, peer: "End") -> None:
        self._peer = peer
        self._out = Pipe(self._streams.network, self, peer)

    # -- the process's calls -------------------------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        """Return True if a read returns immediately: bytes, the end, or an error."""
        return bool(self._received) or self._has_ended or self._error is not None or self.is_closed

    @property
    def is_writable(self) -> bool:
        """Return True if a write takes at least one byte, or returns an error."""
        return self._error is not None or self.is_closed or self._room > 0

    @property
    def _room(self) -> int:
        if self._out is None or self._peer is None:
            return 0
        return WINDOW_BYTES - self._out.under_way_bytes

    def read(self, limit: int, *, peek: bool = False) -> bytes:
        """Return bytes, or none at the end; raise OSError."""
        if self._received:
            data = bytes(self._received[:limit])
            if not peek:
                del self._received[:limit]
                self._peer_may_write(len(data))
            return data
        if self._error is not None:
            error, self._error = self._error, None if peek else self._error
            raise failure(error)
        if self._has_ended:
            return b""
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes; return their number; raise OSError."""
        if self._error is not None:
            raise failure(self._error)
        if self.is_closed or self._out is None:
            raise failure(errno.EPIPE)
        room = self._room
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = bytes(data[:room])
        if taken:
            self._out.send(taken)
        return len(taken)

    def end(self) -> None:
        """Send FIN."""
        if self._out is not None and self._error is None and not self.is_closed:
            self._out.send(b"")

    def close(self, *, abortive: bool = False) -> None:
        """Close: FIN after the bytes under way, or RST if bytes are unread or the close is abortive."""
        if self.is_closed:
            return
        peer = self._peer
        if abortive or self._received:
            self._reset_peer()
        else:
            self.end()
        self.is_closed = True
        self._received.clear()
        self._streams.forget(self)
        if peer is not None and peer.is_closed:
            self._peer = None
        self.readable.wake()
        self.writable.wake()

    def vanish(self) -> None:
        """Lose the power: nothing is sent."""
        self.has_vanished = self.is_closed = True
        self._received.clear()
        self._streams.forget(self)
        self.readable.wake()
        self.writable.wake()

    # -- the network's calls -------------------------------------------------------------------------------------------

    def arrive(self, data: bytes) -> None:
        """Receive bytes, or FIN."""
        if self.is_closed:
            if data or self.has_vanished:
                self._reset_peer()
            return
        if data:
            self._received += data
        else:
            self._has_ended = True
        self._news()

    def fail(self, number: int) -> None:
        """Break the connection at this end."""
        if not self.is_closed and self._error is None:
            self._error = number
            self._news()
            self.writable.wake()

    def _news(self) -> None:
        self.readable.wake()
        if self.on_readable is not None:
            self.on_readable()

    def _peer_may_write(self, size_bytes: int) -> None:
        peer = self._peer
        if peer is not None and peer._out is not None:
            was_full = peer._room <= 0
            peer._out.under_way_bytes -= size_bytes
            if was_full:
                peer.writable.wake()

    def _reset_peer(self) -> None:
        peer, network = self._peer, self._streams.network
        if peer is None:
            return

        def reset() -> None:
            if network.is_open(self.host, peer.host):
                peer.fail(errno.ECONNRESET)

        link = network.link_of(self.host, peer.host)
        network.clock.call_at(network.clock.now_s + network.delay_s(link), reset)


class Listening:
    """A listening port."""

    def __init__(self, streams: "MemoryStreams", host: Host, own: Name, backlog: int) -> None:
        self.host = host
        self.service = current_service.get()
        self.own = own
        self.readable = Waiter()
        self.is_closed = False
        self._streams = streams
        self._backlog = backlog
        self._arrived: deque[End] = deque()

    @property
    def is_readable(self) -> bool:
        """Return True if a connection waits."""
        return bool(self._arrived) or self.is_closed

    def arrive(self, end: End) -> bool:
        """Queue a connection; return False if the queue is full."""
        if len(self._arrived) >= self._backlog:
            return False
        self._arrived.append(end)
        self.readable.wake()
        return True

    def accept(self) -> End:
        """Return the next connection; raise OSError."""
        if self._arrived:
            return self._arrived.popleft()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def close(self) -> None:
        """Stop listening, and reset the waiting connections."""
        if not self.is_closed:
            self.is_closed = True
            self._streams.forget_port(self)
            for each in self._arrived:
                each.close(abortive=True)
            self.readable.wake()


class MemoryStreams:
    """The ports and connections of all machines."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._listening: dict[tuple[str, Name], Listening] = {}
        self._ends: dict[End, None] = {}
        self._next_port = 0

    def listen(self, host: Host, own: Name, backlog: int) -> Listening:
        """Open a port; raise OSError."""
        if not is_own(host, own[0]):
            raise failure(errno.EADDRNOTAVAIL)
        if own[1] == 0:
            own = own[0], self._free_port()
        if self._find(host, own) is not None:
            raise failure(errno.EADDRINUSE)
        return self._listening.setdefault((host.name, own), Listening(self, host, own, backlog))

    def _free_port(self) -> int:
        self._next_port += 1
        return _FIRST_FREE_PORT + self._next_port % _PORTS

    def _find(self, host: Host, name: Name) -> Listening | None:
        found = self._listening.get((host.name, name))
        return found or self._listening.get((host.name, ("0.0.0.0", name[1])))  # noqa: S104 - compared

    async def connect(self, host: Host, other: Name) -> End:
        """Connect to a port; raise OSError."""
        network, clock = self.network, self.network.clock
        target = host if is_own(host, other[0]) else network.owner(other[0])
        began_s, retry_s = clock.now_s, 1.0
        own = (other[0] if target is host else host.addresses[0] if host.addresses else ""), self._free_port()
        while target is None or not self._passes(host, target):
            if target is None and clock.now_s - began_s >= NO_ROUTE_S:
                raise failure(errno.EHOSTUNREACH)
            if clock.now_s - began_s >= CONNECT_GIVE_UP_S:
                raise failure(errno.ETIMEDOUT)
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, 64.0)
            target = network.owner(other[0])
        await trio.sleep(network.delay_s(network.link_of(host, target)))
        inside = network.inside(target, other[0]), other[1]
        listening = self._find(target, inside)
        if listening is None:
            await trio.sleep(network.delay_s(network.link_of(target, host)))
            raise failure(errno.ECONNREFUSED)
        end = End(self, host, own, other, current_service.get())
        outside = own if is_own(host, other[0]) else (network.outside(host, own[0]), own[1])
        far = End(self, target, inside, outside, listening.service)
        end.join(far)
        far.join(end)
        self._ends[end] = self._ends[far] = None
        if not listening.arrive(far):
            self.forget(end)
            self.forget(far)
            await trio.sleep(CONNECT_GIVE_UP_S)
            raise failure(errno.ETIMEDOUT)
        try:
            await trio.sleep(network.delay_s(network.link_of(target, host)))
        except trio.Cancelled:
            end.close(abortive=True)
            raise
        return end

    def _passes(self, source: Host, target: Host) -> bool:
        return self.network.is_open(source, target) and self.network.is_open(target, source)

    def forget(self, end: End) -> None:
        """Remove a closed end."""
        self._ends.pop(end, None)

    def forget_port(self, listening: Listening) -> None:
        """Remove a closed port."""
        self._listening.pop((listening.host.name, listening.own), None)

    def close_all(self, host: Host, service: str = "", *, power_cut: bool = False) -> None:
        """Close everything of a process that has ended, or of a machine without power."""
        for listening in [each for each in self._listening.values() if each.host is host]:
            if power_cut or listening.service == service:
                listening.close()
        for end in [each for each in self._ends if each.host is host]:
            if power_cut:
                end.vanish()
            elif end.service == service:
                end.close()
