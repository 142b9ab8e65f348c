"""A network in memory: a `Transport` for servers of one process, such as the tests of a service that embeds one.

    network = MemoryNetwork(delay_s=0.001)
    transport = network.transport(1)          one for each run of a server

    send ─▶ queue to one peer, in order ─▶ after `delay_s` ─▶ `Receiver.ask` │ `Receiver.deliver_reply`

It behaves like one TCP connection for each pair of servers. Each direction keeps its order. The position of a reply in
this order depends on the time of the reply, not of its request. Messages are not lost while both servers run. If one of
them stops, messages under way are lost. Messages beyond `_QUEUE_MAX` are lost as well. A server that starts again gets
new connections, and each side is notified (`peer_connected`). The time is trio's, so a test with a `MockClock` does not
wait.
"""

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress

import trio
from msgspec.structs import replace

from consensus.core.features import GARLIC_FARM, Extensions, FirstEntries
from consensus.core.messages import Reply, Request
from consensus.core.model import ServerId
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.interfaces import Receiver, next_call

MEMORY = replace(GARLIC_FARM, name="memory", first_entries=FirstEntries.NO_OP)
"""The features of this network: pre-vote, transfers, joint configurations and learners.

The network also works with any other `Features`.
"""

_QUEUE_MAX = 1024
_EXTENSIONS = Extensions(pre_vote=True, transfer=True, configurations=True)


class MemoryNetwork:
    """The network between the transports that it makes. `delay_s` is the delay of each message."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.running: dict[ServerId, MemoryTransport] = {}

    def transport(self, server_id: ServerId) -> "MemoryTransport":
        """Return the transport of a server that is about to start."""
        return MemoryTransport(self, server_id)


class MemoryTransport:
    """One server's `Transport`, for one run of it."""

    def __init__(self, network: MemoryNetwork, server_id: ServerId) -> None:
        self.server_id = server_id
        self._network = network
        self._queues: dict[ServerId, _Queue] = {}
        self._running: tuple[trio.Nursery, Receiver] | None = None

    def send(self, recipient: ServerId, request: Request) -> None:
        """Queue a request; the network drops it if the recipient does not run at the time of arrival."""
        self._to(recipient).put(lambda peer: peer.take_request(self, request))

    def connect(self, peers: Collection[ServerId]) -> None:
        """Connect to each running peer, and notify both servers. A peer that starts later connects to this server."""
        for peer in peers:
            self._to(peer).put(lambda _: None)

    async def run(self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry messages until canceled."""
        async with trio.open_nursery() as nursery:
            self._running = nursery, receiver
            self._network.running[self.server_id] = self
            for queue in self._queues.values():
                nursery.start_soon(queue.run)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._running = None
                if self._network.running.get(self.server_id) is self:
                    del self._network.running[self.server_id]

    def met(self, peer: "MemoryTransport") -> None:
        """Notify this server of a connection to this run of `peer`."""
        if self._running is not None:
            self._running[1].peer_connected(peer.server_id, _EXTENSIONS)

    def take_request(self, sender: "MemoryTransport", request: Request) -> None:
        """Pass a received request to the server. A busy server does not reply."""
        if self._running is None:
            return

        def on_reply(reply: Reply | None) -> None:
            if reply is not None:
                numbered = replace(reply, correlation=request.correlation)
                self._to(sender.server_id).put(lambda peer: peer.take_reply(self, numbered) if peer is sender else None)

        with suppress(ServerBusyError, ServerStoppedError):
            self._running[1].ask(sender.server_id, replace(request, correlation=next_call()), on_reply)

    def take_reply(self, sender: "MemoryTransport", reply: Reply) -> None:
        """Pass a received reply to the server."""
        if self._running is not None:
            self._running[1].deliver_reply(sender.server_id, reply)

    def _to(self, peer: ServerId) -> "_Queue":
        queue = self._queues.get(peer)
        if queue is None:
            queue = self._queues[peer] = _Queue(self._network, self, peer)
            if self._running is not None:
                self._running[0].start_soon(queue.run)
        return queue


class _Queue:
    def __init__(self, network: MemoryNetwork, sender: MemoryTransport, recipient: ServerId) -> None:
        self._network = network
        self._sender = sender
        self._recipient = recipient
        self._connected: MemoryTransport | None = None
        self._messages: deque[tuple[float, Callable[[MemoryTransport], None]]] = deque()
        self._arrived = trio.Event()

    def put(self, deliver: Callable[[MemoryTransport], None]) -> None:
        if len(self._messages) < _QUEUE_MAX:
            self._messages.append((trio.current_time() + self._network.delay_s, deliver))
            self._arrived.set()

    async def run(self) -> None:
        while True:
            while not self._messages:
                self._arrived = trio.Event()
                await self._arrived.wait()
            due_s, deliver = self._messages.popleft()
            await trio.sleep_until(due_s)
            peer = self._network.running.get(self._recipient)
            if peer is not None:
                self._connect(peer)
                deliver(peer)

    def _connect(self, peer: MemoryTransport) -> None:
        if self._connected is not peer:
            self._connected = peer
            self._sender.met(peer)
            peer.met(self._sender)
