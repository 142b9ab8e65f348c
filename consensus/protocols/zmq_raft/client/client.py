"""A client of a ØMQ Raft cluster: updates, changes of the members, reads of the log, and a subscription.

    update, change_config ──▶ the leader ─▶ "accepted": wait on        ─▶ committed: the index
                                  │       ├▶ another leads: send there ─▶ the same request id again
                                  │       ├▶ no reply: find the leader ─▶ the same request id again
                                  │       └▶ expired, refused: an error
                                  └── one DEALER for each peer (`links`), the leader found by `known_leader`
    entries    the leader, by RequestEntries (`log_reader`)
    subscribe  the leader's broadcast, and RequestEntries for missing entries (`subscriber`)
    config, log_info, broadcast_url      one request each

If a call ends without a reply (`NoAnswerError` or cancellation), its update may be committed or not. Within some hours,
the caller can repeat the update with the same id: the cluster commits an id only once, and returns its index. To be
able to repeat an interrupted call, make the id before the call (`make_request_id`).

Many tasks may share a client; the order of their updates is not defined. A client reads each connection in a separate
task; a call runs in its caller's task.
"""

import math
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

import trio

from consensus.core.model import Index
from consensus.protocols.zmq_raft.client.known_leader import KnownLeader
from consensus.protocols.zmq_raft.client.links import (
    ClientLink,
    ClientLinks,
    ClientSocket,
    ClientSockets,
    Exchange,
    NoReply,
    Receive,
    ZmqClientOptions,
)
from consensus.protocols.zmq_raft.client.log_reader import LogItem, LogReader, NoProgressError
from consensus.protocols.zmq_raft.client.subscriber import Subscriber
from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.sockets import (
    CurveClient,
    SocketKind,
    SocketOptions,
    ZmqContext,
    ZmqSocket,
    zmq_context,
)
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import encode_request
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS, REQUEST_ID_BYTES
from consensus.protocols.zmq_raft.wire.request_ids import RequestIds
from consensus.server.block_nursery import block_nursery

PATIENCE_S: Final = 30.0
"""Default time limit of a call, in seconds."""
_URL: Final = re.compile(r"tcp://[^\s/@]+:[0-9]{1,5}")
_URL_MAX: Final = 256


class ClientError(Exception):
    """A call of a client failed; the text contains the reason and the remedy."""


class NoAnswerError(ClientError):
    """A call ended without its result; the text contains the reason. An update may be committed or not.

    `has_peer_replied` is False if no peer has replied to this client yet. Then the client may have the `ident` of
    another cluster, because a peer does not reply to such a client.
    """

    def __init__(self, text: str, *, has_peer_replied: bool) -> None:
        super().__init__(text)
        self.has_peer_replied = has_peer_replied


class RequestExpiredError(ClientError):
    """The peer refused the request: its id is too old or too far in the future, or the update is not permitted.

    An earlier request with this id may be committed.
    """


class ConfigRefusedError(ClientError):
    """The cluster does not accept these members; the text contains the peer's reason."""


class ZmqRaftClient:
    """A client of one cluster; made by `connect`.

    `timeout_s` is the time limit of a call. For `entries` and `subscribe`, it limits the time without progress. With
    `math.inf`, a call without a result lasts until it is canceled.
    """

    def __init__(
        self,
        links: ClientLinks,
        leader: KnownLeader,
        options: ZmqClientOptions,
        clock_s: Callable[[], float],
    ) -> None:
        self._links = links
        self._leader = leader
        self._ident = leader.ident
        self._options = options
        self._clock_s = clock_s
        self._ids = RequestIds(secrets.token_bytes(3), os.getpid(), secrets.randbits(24))
        self._under_way: set[bytes] = set()
        self._places = trio.Semaphore(options.max_under_way)

    @property
    def counters(self) -> Counter[ClientEvent]:
        """Return the numbers of dropped and unsent messages, by reason."""
        return self._links.counters.copy()

    def make_request_id(self) -> bytes:
        """Return a new id for an update or a change: 12 bytes, valid for some hours."""
        return self._ids.next(int(self._clock_s()))

    async def update(self, data: bytes, request_id: bytes | None = None, *, timeout_s: float = PATIENCE_S) -> Index:
        """Commit `data`, once for each request id; return its index.

        Raises `NoAnswerError`, `RequestExpiredError`. Raises `ValueError` if no cluster accepts this size of `data` or
        of the id, or if another call with this id is under way.
        """
        most = DEFAULT_LIMITS.max_entry_data_bytes
        if not 1 <= len(data) <= most:
            raise ValueError(f"an update has 1 to {most} bytes, not {len(data)}")
        request = wire.UpdateRequest(self._checked(request_id), self._ident, data)
        reply = await self._call_within(timeout_s, request)
        match reply:
            case wire.UpdateCommitted():
                return reply.index
            case wire.UpdateExpired():
                raise _expired(request.request_id)
            case _:
                raise TypeError(f"an update was answered by {type(reply).__name__}")

    async def change_config(
        self, peers: Sequence[wire.Peer], request_id: bytes | None = None, *, timeout_s: float = PATIENCE_S
    ) -> Index:
        """Make `peers` the members; return the index of the entry with the change.

        During another change, the client repeats the request. Raises `ConfigRefusedError`, `NoAnswerError`,
        `RequestExpiredError`. Raises `ValueError` if the id has a wrong size, or if another call with it is under way.
        """
        request = wire.ChangeRequest(self._checked(request_id), self._ident, tuple(peers))
        deadline_s = trio.current_time() + timeout_s
        while True:
            reply = await self._call_within(deadline_s - trio.current_time(), request)
            match reply:
                case wire.ChangeCommitted():
                    return reply.index
                case wire.ChangeRefused():
                    raise ConfigRefusedError(f"the cluster refuses these members: {reply.message} ({reply.name})")
                case wire.ChangeExpired():
                    raise _expired(request.request_id)
                case wire.ChangeBusy():
                    if trio.current_time() + self._options.busy_s >= deadline_s:
                        raise NoAnswerError(
                            "another change of the members is under way; repeat this one later", has_peer_replied=True
                        )
                    await trio.sleep(self._options.busy_s)
                case _:
                    raise TypeError(f"a change of the members was answered by {type(reply).__name__}")

    async def config(self, *, timeout_s: float = PATIENCE_S) -> wire.ConfigReply:
        """Return the members and the leader, as reported by the leader, or by another peer while no leader replies."""
        with trio.move_on_after(max(0.0, timeout_s)):
            return await self._leader.config()
        raise self._no_answer(f"no peer returned the configuration within {timeout_s:g} s")

    async def log_info(self, url: str | None = None, *, timeout_s: float = PATIENCE_S) -> wire.LogInfoReply:
        """Return the state of the log of the peer at `url`, or of the leader without `url`. Raises `NoAnswerError`."""
        request = wire.LogInfoRequest(self._links.next_request_id(), self._ident)
        if url is None:
            reply = await self._call_within(timeout_s, request)
        else:
            reply = await self._call_peer(url, request, timeout_s)
        if not isinstance(reply, wire.LogInfoReply):
            raise TypeError(f"a question about the log was answered by {type(reply).__name__}")
        return reply

    async def broadcast_url(self, *, timeout_s: float = PATIENCE_S) -> str:
        """Return the address of the leader's PUB socket. Raises `NoAnswerError`, also if the leader lacks one."""
        with trio.move_on_after(max(0.0, timeout_s)):
            while True:
                reply, link = await self._call_leader(wire.UrlRequest(self._links.next_request_id(), self._ident))
                if isinstance(reply, wire.UrlReply) and reply.url is not None and is_url(reply.url):
                    return reply.url
                self._leader.unfit(link.url, "does not return the URL of a broadcast")
        raise self._no_answer(f"no leader returned the URL of its broadcast within {timeout_s:g} s")

    def entries(
        self, previous: Index = 0, count: int | None = None, *, timeout_s: float = PATIENCE_S
    ) -> AsyncGenerator[LogItem, None]:
        """Yield committed entries after index `previous`, in order: at most `count`, or all up to the present end.

        If the log is compacted, the parts of a snapshot come first; they do not count toward `count`. The client
        requests more entries as the consumer takes them, and ends the server's stream when the consumer stops:

            async with aclosing(client.entries(0)) as entries:
                async for entry in entries:
                    ...

        Raises `NoAnswerError` if no new entry arrives for `timeout_s`.
        """
        if previous < 0 or (count is not None and count < 1):
            raise ValueError(
                f"a read needs an index of 0 or more and at least one entry, not {count} entries after {previous}"
            )
        return self._read(previous, count, timeout_s)

    def subscribe(self, previous: Index, *, timeout_s: float = math.inf) -> AsyncGenerator[LogItem, None]:
        """Yield every entry after index `previous` once, in order, when it commits, without end. Use `aclosing`.

        The subscription survives changes of the leader and lost connections. Parts of a snapshot come first if the log
        is compacted. Raises `NoAnswerError` if no leader could be reached for `timeout_s`.
        """
        if previous < 0:
            raise ValueError(f"a subscription begins after an index of 0 or more, not {previous}")

        async def find_url() -> str:
            return await self.broadcast_url(timeout_s=timeout_s)

        def fetch(last: Index) -> AsyncGenerator[LogItem, None]:
            return self._read(last, None, timeout_s)

        return Subscriber(self._leader, previous, find_url, fetch).items()

    async def _read(self, previous: Index, count: int | None, timeout_s: float) -> AsyncGenerator[LogItem, None]:
        async with aclosing(LogReader(self._leader, previous, count, timeout_s).items()) as items:
            try:
                async for item in items:
                    yield item
            except NoProgressError:
                raise self._no_answer(f"no entries came for {timeout_s:g} s") from None

    async def _call_peer(self, url: str, request: wire.ClientRequest, timeout_s: float) -> wire.ClientReply:
        """Return the reply of this peer; repeat the request until it replies. Raises `NoAnswerError`."""
        deadline_s = trio.current_time() + timeout_s
        try:
            with self._links.use(url):  # one connection for all repeats
                while (left_s := deadline_s - trio.current_time()) > 0:
                    reply = await self._links.ask(url, request, min(left_s, self._options.response_ttl_s))
                    if not isinstance(reply, NoReply):
                        self._leader.has_peer_replied = True
                        return reply
        except OSError as error:
            raise NoAnswerError(
                f"{url} cannot be queried: {error.strerror or error}", has_peer_replied=self._leader.has_peer_replied
            ) from error
        raise NoAnswerError(
            f"{url} did not reply within {timeout_s:g} s", has_peer_replied=self._leader.has_peer_replied
        )

    async def _call_within(self, timeout_s: float, request: wire.ClientRequest) -> wire.ClientReply:
        """Return the leader's final reply.

        Raises `NoAnswerError`, and `ValueError` if another call with this request id is under way.
        """
        if request.request_id in self._under_way:
            raise ValueError(f"a request with the id {request.request_id.hex()} is under way")
        self._under_way.add(request.request_id)
        try:
            with trio.move_on_after(max(0.0, timeout_s)):
                await self._take_place()
                try:
                    reply, _ = await self._call_leader(request)
                finally:
                    self._places.release()
                return reply
        finally:
            self._under_way.discard(request.request_id)
        hint = ""
        if isinstance(request, wire.UpdateRequest | wire.ChangeRequest):
            hint = f" It may be committed or not; repeat it with the request id {request.request_id.hex()}."
        raise self._no_answer(f"no leader answered within {timeout_s:g} s", hint)

    async def _take_place(self) -> None:
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()

    async def _call_leader(self, request: wire.ClientRequest) -> tuple[wire.ClientReply, ClientLink]:
        """Return the final reply and its sender; repeat the request without a limit."""
        frames = encode_request(request)
        while True:
            link = await self._leader.link()
            exchange = Exchange(type(request), self._options.response_ttl_s, follows_leader=True)
            reply = await link.ask(request, frames, exchange)
            match reply:
                case wire.UpdateRedirect() | wire.ChangeRedirect() | wire.LogInfoReply(is_leader=False):
                    self._leader.redirected(link, reply.leader)
                case NoReply.SILENT:
                    self._leader.silent(link, exchange.last_sign_s)
                case NoReply.MOVED:
                    pass
                case wire.UrlReply() | wire.LogInfoReply():
                    return reply, link
                case _:
                    self._leader.served(link)
                    return reply, link

    def _checked(self, request_id: bytes | None) -> bytes:
        if request_id is None:
            return self.make_request_id()
        if len(request_id) != REQUEST_ID_BYTES:
            raise ValueError(f"a request id has {REQUEST_ID_BYTES} bytes, not {len(request_id)}")
        return request_id

    def _no_answer(self, reason: str, hint: str = "") -> NoAnswerError:
        return NoAnswerError(
            f"{reason}: {self._leader.account()}.{hint}", has_peer_replied=self._leader.has_peer_replied
        )


class _ZmqSockets:
    def __init__(self, context: ZmqContext, curve: CurveClient | None) -> None:
        self._context = context
        self._options = SocketOptions(curve=curve)

    def dealer(self, url: str, receive: Receive) -> ClientSocket:
        return self._connected(SocketKind.DEALER, url, receive)

    def subscriber(self, url: str, prefix: bytes, receive: Receive) -> ClientSocket:
        socket = self._connected(SocketKind.SUB, url, receive)
        socket.subscribe(prefix)
        return socket

    def _connected(self, kind: SocketKind, url: str, receive: Receive) -> ZmqSocket:
        socket = ZmqSocket(self._context, kind, receive, self._options)
        try:
            socket.connect(url)
        except OSError:
            socket.close()
            raise
        return socket


@asynccontextmanager
async def connect(
    urls: Sequence[str],
    ident: bytes | str,
    *,
    options: ZmqClientOptions | None = None,
    curve: CurveClient | None = None,
) -> AsyncIterator[ZmqRaftClient]:
    """Open a client of the cluster `ident` for the block; `urls` has one or more of its peers (`tcp://host:port`).

        async with zmq_raft.connect(["tcp://127.0.0.1:8047"], "my cluster") as client:
            index = await client.update(b"hello")

    The client connects at its first use, so `connect` does not fail if no peer is reachable. `curve` encrypts all
    connections; all peers must have the same key. Raises `ValueError` for an invalid URL.
    """
    with zmq_context() as context:
        async with open_client(_ZmqSockets(context, curve), urls, ident, options or ZmqClientOptions()) as client:
            yield client


@asynccontextmanager
async def open_client(
    sockets: ClientSockets,
    urls: Sequence[str],
    ident: bytes | str,
    options: ZmqClientOptions,
    clock_s: Callable[[], float] = time.time,
) -> AsyncIterator[ZmqRaftClient]:
    """Open a client with these sockets. `clock_s` gives seconds since 1970, for request ids."""
    wrong = [url for url in urls if not is_url(url)]
    if wrong or not urls:
        raise ValueError(
            f"{wrong[0]!r} is not the URL of a peer: write tcp://HOST:PORT" if wrong else "give a URL of a peer"
        )
    async with block_nursery() as nursery:
        links = ClientLinks(sockets, nursery, options)
        leader = KnownLeader(links, urls, ident.encode() if isinstance(ident, str) else ident, options)
        yield ZmqRaftClient(links, leader, options, clock_s)


def is_url(url: str) -> bool:
    """Return True for `tcp://HOST:PORT`, the only accepted form of a given URL and of a broadcast's URL."""
    return len(url) <= _URL_MAX and _URL.fullmatch(url) is not None


def _expired(request_id: bytes) -> RequestExpiredError:
    return RequestExpiredError(
        f"the peer refused the request with the id {request_id.hex()}: the id is too old or too far in the future, or"
        " the peer does not permit the request. Compare the clocks. Make a new id only if no earlier request with this"
        " id was committed"
    )
