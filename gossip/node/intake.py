"""What waits for the owner of the core: datagrams, and requests behind a doorbell.

    socket ------------------------------+
    broadcast --> watcher --> a queue ---+--> wait, then take a batch --> owner
    doorbell, deadline ------------------+    (wakes the owner)

The owner reads the node's socket itself. A reader task with a queue would have the event loop switch tasks twice for
what is often a single datagram, and a switch costs as much as half of the work on it. Only the second socket, the one
that hears broadcasts, has a task of its own: a task can wait for one socket, and presence is rare.

A batch is what waits already, at most `BATCH`, so that a flood keeps neither other tasks nor deadlines from their turn.
What comes faster than that waits in the kernel, which drops what does not fit.
"""

from collections import deque
from typing import Final

import trio

from gossip.core.member import Address
from gossip.node.counters import Counters, Loss
from gossip.node.discovery import Discovery
from gossip.node.udp import DatagramSocket

BATCH: Final = 64
BROADCASTS_LIMIT: Final = 256
"""So many broadcasts wait at most; each sender repeats its own."""

Datagram = tuple[bytes, Address]
"""A datagram, and from or to whom."""


class Intake:
    """The ways into one agent. Whatever is dropped here is counted."""

    def __init__(self, socket: DatagramSocket, limit_bytes: int, counters: Counters) -> None:
        self._socket = socket
        self._limit_bytes = limit_bytes
        self._counters = counters
        self._broadcasts: deque[Datagram] = deque()
        self._waiting = trio.CancelScope()
        self._is_more = False
        self.is_rung = False
        """Whether somebody rang; the owner takes it back."""

    def ring(self) -> None:
        """Wake the owner for something other than a datagram."""
        self.is_rung = True
        self._waiting.cancel()

    async def wait(self, deadline_s: float) -> None:
        """Until something waits, or the deadline. Other tasks have their turn in any case."""
        if self.is_rung or self._is_more or self._broadcasts:
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope(deadline=deadline_s) as self._waiting:
            await self._socket.readable()

    def take(self) -> list[Datagram]:
        """What waits, up to a batch."""
        arrivals: list[Datagram] = []
        while self._broadcasts:
            arrivals.append(self._broadcasts.popleft())
        receive, heard, limit_bytes = self._socket.receive_waiting, self._counters.heard, self._limit_bytes
        for _ in range(BATCH):
            arrival = receive()
            if arrival is None:
                self._is_more = False
                return arrivals
            heard(arrival[0])
            if len(arrival[0]) > limit_bytes:
                self._counters.drop(Loss.OVERSIZE)
            else:
                arrivals.append(arrival)
        self._is_more = True
        return arrivals

    async def watch(self, broadcast_socket: DatagramSocket) -> None:
        """Queue what comes by broadcast."""
        while True:
            await broadcast_socket.readable()
            for _ in range(BATCH):
                arrival = broadcast_socket.receive_waiting()
                if arrival is None:
                    break
                self._counters.heard(arrival[0])
                loss = self._queue(arrival)
                if loss is not None:
                    self._counters.drop(loss)

    def _queue(self, arrival: Datagram) -> Loss | None:
        if len(arrival[0]) > self._limit_bytes:
            return Loss.OVERSIZE
        if not Discovery.is_presence(arrival[0]):
            return Loss.MISPLACED
        if len(self._broadcasts) >= BROADCASTS_LIMIT:
            return Loss.OVERLOADED
        self._broadcasts.append(arrival)
        self._waiting.cancel()
        return None
