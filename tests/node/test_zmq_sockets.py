"""ØMQ sockets in a trio run: no message is lost or late, however sending and receiving mix; bad ones are dropped."""

import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import psutil
import pytest
import trio
import trio.testing
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from consensus.protocols.zmq_raft.counters import EndpointEvent, SocketDrop
from consensus.protocols.zmq_raft.sockets import (
    SLICE_FRAMES,
    CurveClient,
    CurveServer,
    SocketKind,
    SocketOptions,
    ZapAuthenticator,
    ZmqContext,
    ZmqSocket,
    zmq_context,
)

ANY_PORT = "tcp://127.0.0.1:*"
REQUESTS = 16_000
AT_ONCE = 32
PATIENCE_S = 20
STALL_S = 0.9
"""A lost wake-up shows as a stall of a second or more; otherwise a reply takes well below a millisecond."""


@pytest.fixture
def context() -> Iterator[ZmqContext]:
    with zmq_context() as context:
        yield context


class Inbox:
    """Keeps what a socket receives."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.users: list[str | None] = []
        self._arrived = trio.Event()

    def take(self, frames: list[bytes], user: str | None) -> None:
        """What a socket calls."""
        self.messages.append(frames)
        self.users.append(user)
        self._arrived.set()

    async def wait(self, count: int) -> None:
        """Wait until this many messages have come."""
        while len(self.messages) < count:
            self._arrived = trio.Event()
            await self._arrived.wait()


@asynccontextmanager
async def running(*sockets: ZmqSocket | ZapAuthenticator) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for socket in sockets:
            await nursery.start(socket.run)
        with trio.fail_after(PATIENCE_S):
            yield
        nursery.cancel_scope.cancel()


class Echo:
    """A ROUTER that sends every message back."""

    def __init__(self, context: ZmqContext, url: str = ANY_PORT) -> None:
        self.socket = ZmqSocket(context, SocketKind.ROUTER, lambda frames, _user: self._answer(frames))
        self.url = self.socket.bind(url)

    def _answer(self, frames: list[bytes]) -> None:
        assert self.socket.send(frames)


async def test_all_of_16_000_requests_are_answered_without_a_stall(context: ZmqContext) -> None:
    # Given: a task that sends requests, a few at a time, while the replies to earlier ones come in
    echo, replies = Echo(context), Inbox()
    turns = trio.CapacityLimiter(AT_ONCE)
    longest_s, last_s = 0.0, trio.current_time()

    def take(frames: list[bytes], user: str | None) -> None:
        nonlocal longest_s, last_s
        now_s = trio.current_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
        replies.take(frames, user)
        turns.release_on_behalf_of(frames[0])

    dealer = ZmqSocket(context, SocketKind.DEALER, take)
    dealer.connect(echo.url)
    async with running(echo.socket, dealer):
        # When: it sends 16,000
        for number in range(REQUESTS):
            name = number.to_bytes(3)
            await turns.acquire_on_behalf_of(name)
            assert dealer.send([name, b"request"])
        # Then: each is answered, in order, and none came late
        await replies.wait(REQUESTS)
    assert [int.from_bytes(frames[0]) for frames in replies.messages] == list(range(REQUESTS))
    assert longest_s < STALL_S


async def test_a_send_that_takes_the_wake_up_of_a_message_wakes_the_reader(context: ZmqContext) -> None:
    # Given: a reader that waits, and a peer that is called by this thread, without a turn for the reader
    replies = Inbox()
    peer = context.socket(zmq.ROUTER)
    peer.bind("tcp://127.0.0.1:*")
    dealer = ZmqSocket(context, SocketKind.DEALER, replies.take)
    dealer.connect(peer.get_string(zmq.LAST_ENDPOINT))
    with peer:
        async with running(dealer):
            for answered in range(1, 11):
                dealer.send([b"request"])
                await trio.testing.wait_all_tasks_blocked()
                # When: a reply has arrived, which the descriptor tells, and a send takes the wake-up
                peer.send_multipart(peer.recv_multipart())
                select.select([dealer._descriptor], [], [], PATIENCE_S)
                dealer._socket.get(zmq.EVENTS)
                dealer._wake()
                # Then: the reply is read nevertheless
                await replies.wait(answered)


async def test_a_flood_leaves_other_tasks_their_turns(context: ZmqContext) -> None:
    # Given: many messages that wait to be read
    sink = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, sink.take, SocketOptions(receive_queue=20_000))
    dealer = ZmqSocket(context, SocketKind.DEALER, None, SocketOptions(send_queue=20_000))
    dealer.connect(router.bind(ANY_PORT))
    for _ in range(10_000):
        assert dealer.send([b"flood"])
    received: list[int] = []
    # When: they are read, and another task runs beside
    async with running(router, dealer):
        while len(sink.messages) < 10_000:
            received.append(len(sink.messages))
            await trio.lowlevel.checkpoint()
    # Then: it had its turn after every slice, of two frames a message
    assert max(after - before for before, after in pairwise(received)) <= SLICE_FRAMES


@pytest.mark.parametrize(
    "frames",
    [pytest.param([b""] * 2_000, id="too many frames"), pytest.param([b"x" * 600] * 4, id="too many bytes")],
)
async def test_a_message_beyond_the_limits_is_dropped_and_the_next_is_read(
    context: ZmqContext, frames: list[bytes]
) -> None:
    sink = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, sink.take, SocketOptions(max_frames=8, max_message_bytes=2_000))
    dealer = ZmqSocket(context, SocketKind.DEALER)
    dealer.connect(router.bind(ANY_PORT))
    async with running(router, dealer):
        assert dealer.send(frames)
        assert dealer.send([b"next"])
        await sink.wait(1)
    assert [message[1:] for message in sink.messages] == [[b"next"]]
    assert router.counters == {SocketDrop.TOO_LARGE: 1}


async def test_a_frame_beyond_the_limit_ends_its_connection_and_no_other(context: ZmqContext) -> None:
    # Given: a server that takes frames of 100 bytes, and two clients
    sink = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, sink.take, SocketOptions(max_message_bytes=100))
    url = router.bind(ANY_PORT)
    honest, attacker = ZmqSocket(context, SocketKind.DEALER), ZmqSocket(context, SocketKind.DEALER)
    honest.connect(url)
    attacker.connect(url)
    async with running(router, honest, attacker):
        honest.send([b"before"])
        await sink.wait(1)
        # When: one of them sends more than that, and both go on
        attacker.send([b"x" * 101])
        honest.send([b"after"])
        await sink.wait(2)
    # Then: the other's connection is the same as before
    assert [message[1] for message in sink.messages] == [b"before", b"after"]
    assert sink.messages[0][0] == sink.messages[1][0]


async def test_what_has_no_room_in_the_queue_is_not_sent(context: ZmqContext) -> None:
    dealer = ZmqSocket(context, SocketKind.DEALER, None, SocketOptions(send_queue=1))
    dealer.connect("tcp://127.0.0.1:1")  # nothing listens there
    assert dealer.send([b"kept for the connection"])
    assert not dealer.send([b"one too many"])
    assert dealer.counters == {SocketDrop.QUEUE_FULL: 1}
    dealer.close()


async def test_a_dealer_for_connected_addresses_queues_nothing_for_an_address_that_is_not_there(
    context: ZmqContext,
) -> None:
    dealer = ZmqSocket(context, SocketKind.DEALER, None, SocketOptions(only_connected=True))
    dealer.connect("tcp://127.0.0.1:1")
    assert not dealer.send([b"to no server"])
    dealer.close()


async def test_a_router_says_that_a_connection_is_gone(context: ZmqContext) -> None:
    router = ZmqSocket(context, SocketKind.ROUTER, Inbox().take)
    router.bind(ANY_PORT)
    assert not router.send([b"identity", b"reply"])
    assert router.counters == {SocketDrop.CONNECTION_GONE: 1}
    router.close()


async def test_a_subscriber_hears_what_begins_with_its_prefix(context: ZmqContext) -> None:
    # Given: a publisher that tells two clusters' news
    news = Inbox()
    publisher = ZmqSocket(context, SocketKind.PUB)
    subscriber = ZmqSocket(context, SocketKind.SUB, news.take)
    subscriber.subscribe(b"ours")
    subscriber.connect(publisher.bind(ANY_PORT))
    async with running(publisher, subscriber):
        # When: it goes on until the subscription has arrived
        while not news.messages:
            publisher.send([b"theirs", b"1"])
            publisher.send([b"ours", b"2"])
            await trio.lowlevel.checkpoint()
    # Then: only one cluster's are heard
    assert {frames[0] for frames in news.messages} == {b"ours"}


async def test_an_address_of_ipv6_is_reached_like_one_of_ipv4(context: ZmqContext) -> None:
    try:
        echo, replies = Echo(context, "tcp://[::1]:*"), Inbox()
    except OSError:
        pytest.skip("this machine has no IPv6")
    dealer = ZmqSocket(context, SocketKind.DEALER, replies.take)
    dealer.connect(echo.url)
    async with running(echo.socket, dealer):
        dealer.send([b"request"])
        await replies.wait(1)


def test_a_url_that_cannot_be_used_is_named_in_the_error(context: ZmqContext) -> None:
    first, second = ZmqSocket(context, SocketKind.ROUTER), ZmqSocket(context, SocketKind.ROUTER)
    url = first.bind(ANY_PORT)
    with pytest.raises(OSError, match=rf"cannot listen at {url}: Address already in use"):
        second.bind(url)
    with pytest.raises(OSError, match=r"cannot connect to nowhere: "):
        second.connect("nowhere")
    first.close()
    second.close()


def test_nothing_stays_open_after_the_end() -> None:
    async def talk() -> None:
        with zmq_context() as context:
            echo, replies = Echo(context), Inbox()
            dealer = ZmqSocket(context, SocketKind.DEALER, replies.take)
            dealer.connect(echo.url)
            async with running(echo.socket, dealer):
                dealer.send([b"request"])
                await replies.wait(1)

    trio.run(talk)
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(3):
        trio.run(talk)
    assert process.num_fds() == before


@dataclass(frozen=True, slots=True)
class Key:
    """A pair of CURVE keys, 32 bytes each."""

    secret: bytes
    public: bytes


def make_key() -> Key:
    public, secret = zmq.curve_keypair()
    return Key(z85.decode(secret), z85.decode(public))


def caller(context: ZmqContext, url: str, key: Key, server: Key, inbox: Inbox) -> ZmqSocket:
    curve = CurveClient(server.public, key.public, key.secret)
    socket = ZmqSocket(context, SocketKind.DEALER, inbox.take, SocketOptions(reconnect_ms=10, curve=curve))
    socket.connect(url)
    return socket


async def test_a_curve_server_hears_the_listed_key_of_each_message_and_refuses_other_keys(context: ZmqContext) -> None:
    # Given: a server with one listed key
    server, alice, stranger = make_key(), make_key(), make_key()
    authenticator = ZapAuthenticator(context, {alice.public}.__contains__)
    heard = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, heard.take, SocketOptions(curve=CurveServer(server.secret)))
    url = router.bind(ANY_PORT)
    # When: the owner of that key and a stranger send a message each
    unlisted, listed = (caller(context, url, key, server, Inbox()) for key in (stranger, alice))
    unlisted.send([b"from a stranger"])
    listed.send([b"from alice", b"and more"])
    async with running(authenticator, router, unlisted, listed):
        await heard.wait(1)
        while not authenticator.counters[EndpointEvent.KEYS_REFUSED]:
            await trio.lowlevel.checkpoint()
    # Then: one of them arrives, with its key
    assert [(frames[1:], user) for frames, user in zip(heard.messages, heard.users, strict=True)] == [
        ([b"from alice", b"and more"], alice.public.hex())
    ]
    assert authenticator.counters[EndpointEvent.KEYS_ACCEPTED] == 1


async def test_a_curve_server_without_a_judge_of_keys_lets_no_client_in(context: ZmqContext) -> None:
    # Given: a server without an authenticator, and a client that is told of its handshakes
    server, client, heard = make_key(), make_key(), Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, heard.take, SocketOptions(curve=CurveServer(server.secret)))
    dealer = caller(context, router.bind(ANY_PORT), client, server, Inbox())
    failed = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )
    with dealer._socket.get_monitor_socket(failed | zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
        # When: it sends a message
        dealer.send([b"request"])
        async with running(router, dealer):
            event = recv_monitor_message(monitor)
    # Then: the handshake fails and nothing arrives
    assert event["event"] & failed
    assert heard.messages == []
