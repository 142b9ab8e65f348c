"""An endpoint for clients alone, in front of any log: for a service whose servers speak another protocol.

    bound_endpoint:  context, ROUTER, PUB are there, or `OSError` says what is in the way; nothing is read yet
    serve(log):      ROUTER ──▶ ClientEndpoint ──▶ log ──▶ answers
                     log ──news──▶ the entries since, as StateBroadcast ──▶ PUB; without news one every 500 ms

A service binds before it does anything else that others notice, and serves when it has its log. With a secret key both
sockets are CURVE servers, and only listed keys are answered.

*The broadcast follows the log from outside*, by the reads that clients have, because a log that is not this protocol's
applies nothing here. What is compacted before it was read, as after an installed snapshot, is left out; a subscriber
sees the gap, like any that missed a message, and reads what it lacks by RequestEntries.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import trio

from consensus.core.model import Index
from consensus.protocols.zmq_raft.node.client_endpoint import ClientEndpoint
from consensus.protocols.zmq_raft.node.served_log import LogDescription, ServedLog
from consensus.protocols.zmq_raft.node.sockets import (
    CurveServer,
    SocketKind,
    SocketOptions,
    ZapAuthenticator,
    ZmqContext,
    ZmqSocket,
    zmq_context,
)
from consensus.protocols.zmq_raft.wire.codec import encode_broadcast
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS
from consensus.protocols.zmq_raft.wire.messages import StateBroadcast
from consensus.server.errors import ServerBusyError, ServerStoppedError

HEARTBEAT_S: Final = 0.5
_MESSAGE_BYTES: Final = 64 * 1024
_MESSAGE_ENTRIES: Final = 1000
_BUSY_S: Final = 0.05


class FollowedLog(ServedLog, Protocol):
    """A log that tells when it has grown."""

    async def news(self) -> None:
        """Returns when something may have been applied since the call."""


@dataclass(frozen=True, slots=True)
class ListedClients:
    """The server's secret key of 32 bytes, and whether a client's public key may connect."""

    secret_key: bytes
    is_listed: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Where an endpoint is, and for which cluster. The URLs are `tcp://IP:port`."""

    url: str
    ident: bytes
    broadcast_url: str | None = None
    clients: ListedClients | None = None
    """None: any client is answered."""
    max_message_bytes: int = DEFAULT_LIMITS.max_message_bytes
    """Of a client. libzmq closes the connection of a larger frame before it is read; a larger message is dropped."""


class BoundEndpoint:
    """Sockets that are bound and not read yet; `bound_endpoint` makes one. Raises `OSError`."""

    def __init__(self, context: ZmqContext, address: EndpointAddress) -> None:
        self._ident = address.ident
        self._counts: Counter[str] = Counter()
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
    def counts(self) -> Mapping[str, int]:
        """What was received and sent; and what was dropped, with the reason."""
        found = Counter(self._counts)
        for each in (self._router, self._broadcast, self._authenticator):
            found.update({} if each is None else each.counters)
        found.update({} if self._endpoint is None else self._endpoint.counts)
        return found

    @property
    def under_way(self) -> int:
        """Requests of clients without a final answer."""
        return 0 if self._endpoint is None else self._endpoint.under_way

    async def serve(self, log: FollowedLog, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer clients out of `log` until cancelled. Call it once."""
        self._endpoint = ClientEndpoint(log, self._ident, self._reply)
        async with trio.open_nursery() as nursery:
            for each in (self._authenticator, self._endpoint, self._router, self._broadcast):
                if each is not None:
                    await nursery.start(each.run)
            if self._broadcast is not None:
                nursery.start_soon(broadcast_log, log, self._ident, self._broadcast.send)
            task_status.started()

    def _receive(self, frames: list[bytes], user: str | None) -> None:
        """The ROUTER puts the identity of the connection first."""
        self._counts["messages received"] += 1
        if self._endpoint is not None and len(frames) > 1:
            self._endpoint.receive(frames[0], frames[1:], user)

    def _reply(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        self._counts["messages sent"] += 1
        return self._router.send([identity, *frames])


@contextmanager
def bound_endpoint(address: EndpointAddress) -> Iterator[BoundEndpoint]:
    """Have the sockets bound while the block lasts; raises `OSError` if an address cannot be had."""
    with zmq_context() as context:
        yield BoundEndpoint(context, address)


async def broadcast_log(
    log: FollowedLog, ident: bytes, send: Callable[[Sequence[bytes]], bool], heartbeat_s: float = HEARTBEAT_S
) -> None:
    """Tell subscribers of what is applied from now on, until cancelled; nothing while the log knows no leader.

    What is applied before the log knows a leader is not told: a server that starts replays its whole log.
    """
    sent: Index | None = None
    while True:
        now = log.describe()
        if not now.is_leader:
            sent = None
        elif sent is None:
            sent = now.last_applied
        elif now.last_applied > sent:
            sent = await _broadcast_next(log, ident, send, sent, now)
            continue
        with trio.move_on_after(heartbeat_s) as waited:
            await log.news()
        now = log.describe()
        if waited.cancelled_caught and now.is_leader and now.last_applied == sent:
            send(encode_broadcast(StateBroadcast(ident, now.term, sent)))


async def _broadcast_next(
    log: FollowedLog, ident: bytes, send: Callable[[Sequence[bytes]], bool], sent: Index, now: LogDescription
) -> Index:
    """Send some entries after `sent`; returns the index of the last one."""
    try:
        entries = await log.read(sent + 1, min(_MESSAGE_ENTRIES, now.last_applied - sent), _MESSAGE_BYTES)
    except (ServerBusyError, ServerStoppedError):
        await trio.sleep(_BUSY_S)
        return sent
    # None: they are compacted, and a subscriber reads the snapshot.
    last = sent + len(entries) if entries else now.last_applied
    send(encode_broadcast(StateBroadcast(ident, now.term, last, entries)))
    return last
