"""Links with a bandwidth, in memory under a MockClock, for tests of transports with slow transfers.

    send_all ─▶ socket buffer of the stream ─▶ the link's pipe, shared by all streams of one direction ─▶ receive_some

A pipe carries one segment at a time at its rate, so streams share it fairly. A sender waits only if its socket buffer
is full, as with a kernel's buffer: a sender cannot see which bytes have arrived.
"""

from dataclasses import dataclass

import trio

MEGABIT_PER_S = 125_000
"""Bytes per second of a link of 1 Mbit/s."""
SOCKET_BYTES = 256 * 1024
_SEGMENT_BYTES = 16_384
"""Larger than real segments, because each one costs processor time; a heartbeat waits 0.13 s for one."""


@dataclass
class Pipe:
    """One direction of a link. `bytes_per_s` may change at any time."""

    bytes_per_s: float
    carried_bytes: int = 0
    _free_s: float = 0.0

    async def carry(self, count: int) -> None:
        """Return when these bytes have arrived."""
        now_s = trio.current_time()
        self._free_s = max(now_s, self._free_s) + count / self.bytes_per_s
        self.carried_bytes += count
        await trio.sleep_until(self._free_s)


class _Direction:
    """The bytes that one end sends to the other."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._waiting = bytearray()
        self._arrived = bytearray()
        self._changed = trio.Event()
        self.is_closed = False
        self._is_over = False

    async def put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self.is_closed:
                raise trio.BrokenResourceError("the peer has closed")
            room = SOCKET_BYTES - len(self._waiting)
            if room > 0:
                self._waiting += view[:room]
                view = view[room:]
                self._change()
            else:
                await self._changed.wait()
        await trio.lowlevel.checkpoint()

    async def get(self, limit: int) -> bytes:
        while not self._arrived and not self._is_over:
            await self._changed.wait()
        data = bytes(self._arrived[:limit])
        del self._arrived[:limit]
        return data

    def close(self) -> None:
        self.is_closed = True
        self._change()

    async def pump(self) -> None:
        while not self.is_closed or self._waiting:
            if not self._waiting:
                await self._changed.wait()
                continue
            segment = bytes(self._waiting[:_SEGMENT_BYTES])
            await self._pipe.carry(len(segment))
            del self._waiting[: len(segment)]
            self._arrived += segment
            self._change()
        self._is_over = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class SlowStream(trio.abc.Stream):
    """One end of a connection over a link."""

    def __init__(self, out: _Direction, back: _Direction) -> None:
        self._out = out
        self._back = back
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Return when the socket buffer has accepted all bytes."""
        self._check_open()
        await self._out.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        self._check_open()
        data = await self._back.get(max_bytes or 65_536)
        await trio.lowlevel.checkpoint()
        return data

    async def aclose(self) -> None:
        """Close both directions; buffered bytes are still sent."""
        if not self._closed:
            self._closed = True
            self._out.close()
            self._back.close()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")


def slow_pair(nursery: trio.Nursery, there: Pipe, back: Pipe) -> tuple[SlowStream, SlowStream]:
    """Return both ends of a connection; the first end sends through `there`. Tasks of the nursery move the segments."""
    out, home = _Direction(there), _Direction(back)
    nursery.start_soon(out.pump)
    nursery.start_soon(home.pump)
    return SlowStream(out, home), SlowStream(home, out)
