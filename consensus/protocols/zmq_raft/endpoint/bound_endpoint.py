"""An endpoint for clients alone, for any log: for a service whose servers speak another protocol.

    bound_endpoint:  context, ROUTER, PUB exist, or `OSError` names the obstacle; nothing is read yet
    serve(log):      ROUTER ──▶ ClientEndpoint ──▶ log ──▶ replies
                     log ──changed──▶ the entries since, as StateBroadcast ──▶ PUB; otherwise one every 500 ms

A service binds the sockets before any step that other servers notice, and serves clients when its log exists. With a
secret key both sockets are CURVE servers, and only listed keys get replies.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio
from msgspec import Struct
from msgspec.structs import replace

from consensus.protocols.zmq_raft.counters import EndpointDrop, EndpointEvent, SocketDrop
from consensus.protocols.zmq_raft.endpoint.broadcast import FollowedLog, broadcast_log
from consensus.protocols.zmq_raft.endpoint.client_endpoint import ClientEndpoint
from consensus.protocols.zmq_raft.sockets import (
    CurveServer,
    SocketKind,
    SocketOptions,
    ZapAuthenticator,
    ZmqContext,
    ZmqSocket,
    zmq_context,
)
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS


class ListedClients(Struct, frozen=True):
    """The server's secret key of 32 bytes, and the check of a client's public key."""

    secret_key: bytes
    is_listed: Callable[[bytes], bool]


class EndpointAddress(Struct, frozen=True):
    """Address of an endpoint, and its cluster. The URLs are `tcp://IP:port`."""

    url: str
    ident: bytes
    broadcast_url: str | None = None
    clients: ListedClients | None = None
    """Keys of clients that get replies; None if any client gets them."""
    max_message_bytes: int = DEFAULT_LIMITS.max_message_bytes
    """Size limit of a client's message. libzmq closes the connection of a larger frame; a larger message is dropped."""


class BoundEndpoint:
    """Sockets that are bound and not read yet; `bound_endpoint` makes one. Raises `OSError`."""

    def __init__(self, context: ZmqContext, address: EndpointAddress) -> None:
        self._ident = address.ident
        self._counts: Counter[EndpointEvent] = Counter()
        self._endpoint: ClientEndpoint | None = None
        self._authenticator = None
        options = SocketOptions(max_message_bytes=address.max_message_bytes)
        if address.clients is not None:
            self._authenticator = ZapAuthenticator(context, address.clients.is_listed)
            options = replace(options, curve=CurveServer(address.clients.secret_key))
        self._router = ZmqSocket(context, SocketKind.ROUTER, self._receive, options)
        self.url = self._router.bind(address.url)
        self._broadcast = None
        self.broadcast_url = None
        if address.broadcast_url is not None:
            self._broadcast = ZmqSocket(context, SocketKind.PUB, None, options)
            self.broadcast_url = self._broadcast.bind(address.broadcast_url)

    @property
    def counts(self) -> Counter[EndpointEvent | EndpointDrop | SocketDrop]:
        """Return the counts of received, sent and dropped messages, the latter by reason."""
        found: Counter[EndpointEvent | EndpointDrop | SocketDrop] = Counter()
        for each in (self._router, self._broadcast, self._authenticator):
            found.update({} if each is None else each.counters)
        found.update(self._counts)
        found.update({} if self._endpoint is None else self._endpoint.counts)
        return found

    @property
    def under_way(self) -> int:
        """Number of requests of clients without a final reply."""
        return 0 if self._endpoint is None else self._endpoint.under_way

    async def serve(self, log: FollowedLog, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve clients from `log` until canceled. Call it once."""
        self._endpoint = ClientEndpoint(log, self._ident, self._reply)
        async with trio.open_nursery() as nursery:
            for each in (self._authenticator, self._endpoint, self._router, self._broadcast):
                if each is not None:
                    await nursery.start(each.run)
            if self._broadcast is not None:
                nursery.start_soon(broadcast_log, log, self._ident, self._broadcast.send)
            task_status.started()

    def _receive(self, frames: list[bytes], user: str | None) -> None:
        """Process a message, which begins with the identity of the connection."""
        self._counts[EndpointEvent.MESSAGES_RECEIVED] += 1
        if self._endpoint is not None and len(frames) > 1:
            self._endpoint.receive(frames[0], frames[1:], user)

    def _reply(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        self._counts[EndpointEvent.MESSAGES_SENT] += 1
        return self._router.send([identity, *frames])


@contextmanager
def bound_endpoint(address: EndpointAddress) -> Iterator[BoundEndpoint]:
    """Bind the sockets for the block; raises `OSError` if an address cannot be used."""
    with zmq_context() as context:
        yield BoundEndpoint(context, address)
