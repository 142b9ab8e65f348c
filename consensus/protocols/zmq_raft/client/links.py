"""A client's connections, one DEALER for each peer in use, and their requests under way.

    ClientLinks ──▶ ClientLink (url) ──▶ DEALER ──▶ the peer's ROUTER
                     │ request id → Call
                     └◀── reply: decoded for its request, and given to its call

By the specification, a client has one DEALER, which it connects to all peers or only to the leader. A DEALER sends its
messages to its connections in turn. So with several connections a request for the leader may reach any peer. With a
socket for each peer, a message reaches its target, and only the queried peer can reply. A dead peer does not delay
messages to others. The messages are the same, and usually only the connection to the leader is open.

No call here waits for a connection. A message for an absent peer stays in the socket's queue, and is lost with the
socket when the link is closed. A reply without a request, or of another protocol, is dropped and counted. A request has
its timer in the waiting task (`Exchange.wait`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

import trio
from msgspec import Struct

from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.wire.codec import decode_reply, encode_request
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError, uint_frame
from consensus.protocols.zmq_raft.wire.messages import (
    ChangeAccepted,
    ClientReply,
    ClientRequest,
    RequestId,
    UpdateAccepted,
)

_LAST_NUMBER = 2**32 - 1

Receive = Callable[[list[bytes], str | None], None]
"""Processes the frames of a message; the second argument is the sender's public key, and None at a client."""


class ClientSocket(Protocol):
    """A connected socket; `run` receives until it is canceled, and closes it."""

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue a message; return False if the queue was full."""

    async def run(self) -> None:
        """Receive until canceled."""


class ClientSockets(Protocol):
    """Source of a client's sockets: libzmq, or a network in memory. Both methods raise `OSError`."""

    def dealer(self, url: str, receive: Receive) -> ClientSocket:
        """Return a DEALER connected to `url`."""

    def subscriber(self, url: str, prefix: bytes, receive: Receive) -> ClientSocket:
        """Return a SUB connected to `url` for messages that begin with `prefix`."""


class ZmqClientOptions(Struct, frozen=True):
    """Times and bounds of a client. The specification recommends the first two and `broadcast_ttl_s`."""

    response_ttl_s: float = 0.5
    """Maximum time without a reply before a peer counts as unresponsive (SERVER_RESPONSE_TTL)."""
    election_grace_s: float = 0.3
    """Time that peers get for an election before the next query (SERVER_ELECTION_GRACE_MS)."""
    turn_s: float = 0.1
    """Time that the search for a leader waits for one peer before it queries the next as well."""
    busy_s: float = 1.0
    """Delay before a change is repeated after "another change is under way"."""
    max_under_way: int = 1024
    """Maximum number of updates and other calls to the leader without a reply; further calls wait."""
    max_ahead: int = 50
    """Limit of the messages with entries, and of the broadcasts, that wait for a consumer."""
    max_ahead_bytes: int = 64 * 1024 * 1024
    """Limit of the bytes of messages that wait for a consumer."""
    confirm_within_s: float = 4.0
    """Time limit of a confirmation: after REQUEST_ENTRIES_TTL (5 to 7 s) a server drops its stream of entries."""
    broadcast_ttl_s: float = 1.0
    """Time without a broadcast before the subscription reconnects: twice CLIENT_HEARTBEAT_INTERVAL."""


class NoReply(Enum):
    """Reason for a missing reply."""

    SILENT = "no answer"
    MOVED = "another peer leads"


class Call(Protocol):
    """A request under way at one peer. `follows_leader`: it must be canceled when another peer leads."""

    @property
    def request_type(self) -> type[ClientRequest]:
        """Return the type for decoding its replies."""

    @property
    def follows_leader(self) -> bool:
        """Return True if the request was sent to this peer as the leader."""

    def take(self, reply: ClientReply, size: int) -> None:
        """Process one reply, of `size` bytes."""

    def give_up(self) -> None:
        """End the request: the link is closed, or its peer no longer leads."""


class Exchange:
    """A request that ends with one reply. "Accepted" does not end it, but restarts its timer."""

    __slots__ = ("_ended", "_scope", "_ttl_s", "follows_leader", "last_sign_s", "reply", "request_type")

    def __init__(self, request_type: type[ClientRequest], ttl_s: float, *, follows_leader: bool) -> None:
        self.request_type = request_type
        self.follows_leader = follows_leader
        self.reply: ClientReply | None = None
        self.last_sign_s = trio.current_time()
        """Time when the request was sent, or when the last "accepted" arrived."""
        self._ttl_s = ttl_s
        self._ended = trio.Event()
        self._scope = trio.CancelScope()

    def take(self, reply: ClientReply, _size: int) -> None:
        """End with this reply, or continue to wait if it is not final."""
        if isinstance(reply, UpdateAccepted | ChangeAccepted):
            self.last_sign_s = trio.current_time()
            self._scope.deadline = self.last_sign_s + self._ttl_s
        elif self.reply is None:
            self.reply = reply
            self._ended.set()

    def give_up(self) -> None:
        """End without a reply."""
        self._ended.set()

    async def wait(self) -> ClientReply | NoReply:
        """Return the reply, or the reason why it is missing."""
        self._scope.deadline = trio.current_time() + self._ttl_s
        with self._scope:
            await self._ended.wait()
        if self.reply is not None:
            return self.reply
        return NoReply.MOVED if self._ended.is_set() else NoReply.SILENT


class ClientLink:
    """The connection to one peer."""

    def __init__(self, url: str, sockets: ClientSockets, counters: Counter[ClientEvent]) -> None:
        self.url = url
        self.uses = 0
        """Number of callers that need the link although its peer may not lead."""
        self.served_s = -1.0
        """Time of the peer's last reply as a leader."""
        self.leftover_s = -1.0
        """Time of the last reply to an ended request. Such a reply shows a slow link, and delays later replies."""
        self._counters = counters
        self._calls: dict[RequestId, Call] = {}
        self._life = trio.CancelScope()
        self._is_open = True
        self._socket = sockets.dealer(url, self._receive)

    async def run(self) -> None:
        """Receive until the link is closed."""
        try:
            with self._life:
                await self._socket.run()
        finally:
            self._is_open = False

    def close(self) -> None:
        """End the connection, and the calls on it."""
        self._is_open = False
        self._life.cancel()
        for call in tuple(self._calls.values()):
            call.give_up()

    def release_followers(self) -> None:
        """Cancel requests sent here because this peer led."""
        for call in tuple(self._calls.values()):
            if call.follows_leader:
                call.give_up()

    def begin(self, request_id: RequestId, call: Call, frames: Sequence[bytes]) -> None:
        """Send a request; its replies go to `call` until `end`."""
        self._calls[request_id] = call
        self.send(frames)

    def end(self, request_id: RequestId) -> None:
        """Ignore later replies to this request."""
        self._calls.pop(request_id, None)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, unless the link is closed. If the queue is full, the message is lost and counted."""
        if self._is_open and not self._socket.send(frames):
            self._counters[ClientEvent.NOT_SENT] += 1

    async def ask(self, request: ClientRequest, frames: Sequence[bytes], exchange: Exchange) -> ClientReply | NoReply:
        """Send a request and wait for its reply; canceling this ends the request."""
        self.begin(request.request_id, exchange, frames)
        try:
            return await exchange.wait()
        finally:
            self.end(request.request_id)

    def _receive(self, frames: list[bytes], _user: str | None) -> None:
        call = self._calls.get(frames[0])
        if call is None:
            self.leftover_s = trio.current_time()
            self._counters[ClientEvent.UNMATCHED_REPLY] += 1
            return
        try:
            reply = decode_reply(call.request_type, frames)
        except ZmqRaftError:
            self._counters[ClientEvent.MALFORMED] += 1
            return
        call.take(reply, sum(map(len, frames)))


class ClientLinks:
    """All links of a client. They are opened when they are needed, and run in `nursery`."""

    def __init__(self, sockets: ClientSockets, nursery: trio.Nursery, options: ZmqClientOptions) -> None:
        self.counters: Counter[ClientEvent] = Counter()
        self._sockets = sockets
        self._nursery = nursery
        self._options = options
        self._links: dict[str, ClientLink] = {}
        self._kept_urls: frozenset[str] = frozenset()
        self._number = 0

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the URLs of connections that are open or being made."""
        return tuple(self._links)

    def next_request_id(self) -> RequestId:
        """Return a number of 32 bits as a frame, for requests that need not stay unique for hours."""
        self._number = self._number % _LAST_NUMBER + 1
        return uint_frame(self._number)

    def open(self, url: str) -> ClientLink:
        """Return the link to a peer; raises `OSError`."""
        link = self._links.get(url)
        if link is None:
            link = ClientLink(url, self._sockets, self.counters)
            self._links[url] = link
            self._nursery.start_soon(link.run)
        return link

    @contextmanager
    def use(self, url: str) -> Iterator[ClientLink]:
        """Keep the link to a peer open for the block, whether or not the peer leads; raises `OSError`."""
        link = self.open(url)
        link.uses += 1
        try:
            yield link
        finally:
            link.uses -= 1
            self._close_if_idle(link)

    def follow(self, url: str) -> None:
        """Follow this peer as leader: close every other link, except for those in use."""
        for link in tuple(self._links.values()):
            if link.url != url:
                link.release_followers()
        self.keep((url,))

    def keep(self, urls: Iterable[str]) -> None:
        """Close every link, except for those to these peers and those in use."""
        self._kept_urls = frozenset(urls)
        for link in tuple(self._links.values()):
            self._close_if_idle(link)

    async def ask(self, url: str, request: ClientRequest, ttl_s: float) -> ClientReply | NoReply:
        """Query one peer in any role; raises `OSError`."""
        exchange = Exchange(type(request), ttl_s, follows_leader=False)
        with self.use(url) as link:
            return await link.ask(request, encode_request(request), exchange)

    def subscribe(self, url: str, prefix: bytes, receive: Receive) -> trio.CancelScope:
        """Receive the broadcasts of `url` until the scope is canceled; raises `OSError`."""
        life = trio.CancelScope()
        self._nursery.start_soon(_run_within, life, self._sockets.subscriber(url, prefix, receive))
        return life

    def _close_if_idle(self, link: ClientLink) -> None:
        if self._links.get(link.url) is link and link.uses == 0 and link.url not in self._kept_urls:
            del self._links[link.url]
            link.close()


async def _run_within(life: trio.CancelScope, socket: ClientSocket) -> None:
    with life:
        await socket.run()
