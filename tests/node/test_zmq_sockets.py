"""ØMQ sockets in trio: messages are neither lost nor late under mixed sends and receives; bad messages are dropped."""

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
from tests.effort import IS_SOAK

ANY_PORT = "tcp://127.0.0.1:*"
REQUESTS = 16_000 if IS_SOAK else 4_000
CONCURRENT = 32
TIMEOUT_S = 60
STALL_S = 0.9
"""Limit in seconds of the time between two replies.

A reply takes less than 1 ms; a lost wake-up delays it by 1 s or more.
"""


@pytest.fixture
def context() -> Iterator[ZmqContext]:
    with zmq_context() as context:
        yield context


class Inbox:
    """Stores the messages that a socket receives."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.users: list[str | None] = []
        self._arrived = trio.Event()

    def receive(self, frames: list[bytes], user: str | None) -> None:
        """Store a message; the callback of a socket."""
        self.messages.append(frames)
        self.users.append(user)
        self._arrived.set()

    async def wait(self, count: int) -> None:
        while len(self.messages) < count:
            self._arrived = trio.Event()
            await self._arrived.wait()


@asynccontextmanager
async def running(*sockets: ZmqSocket | ZapAuthenticator) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for socket in sockets:
            await nursery.start(socket.run)
        with trio.fail_after(TIMEOUT_S):
            yield
        nursery.cancel_scope.cancel()


class Echo:
    """A ROUTER that sends every message back."""

    def __init__(self, context: ZmqContext, url: str = ANY_PORT) -> None:
        self.socket = ZmqSocket(context, SocketKind.ROUTER, lambda frames, _user: self._answer(frames))
        self.url = self.socket.bind(url)

    def _answer(self, frames: list[bytes]) -> None:
        assert self.socket.send(frames)


async def test_fault_in_receiver_drops_only_its_message(context: ZmqContext, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()

    def receive(frames: list[bytes], user: str | None) -> None:
        if frames[-1] == b"bad":
            raise ZeroDivisionError
        inbox.receive(frames, user)

    server, client = ZmqSocket(context, SocketKind.ROUTER, receive), ZmqSocket(context, SocketKind.DEALER)
    client.connect(server.bind(ANY_PORT))
    async with running(server, client):
        client.send([b"bad"])
        client.send([b"good"])
        await inbox.wait(1)
    assert [frames[-1] for frames in inbox.messages] == [b"good"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.search
async def test_many_requests_answered_without_stall(context: ZmqContext) -> None:
    # Given: a task that sends requests while the replies to earlier requests arrive
    echo, replies = Echo(context), Inbox()
    turns = trio.CapacityLimiter(CONCURRENT)
    longest_s, last_s = 0.0, trio.current_time()

    def receive(frames: list[bytes], user: str | None) -> None:
        nonlocal longest_s, last_s
        now_s = trio.current_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
        replies.receive(frames, user)
        turns.release_on_behalf_of(frames[0])

    dealer = ZmqSocket(context, SocketKind.DEALER, receive)
    dealer.connect(echo.url)
    async with running(echo.socket, dealer):
        # When: the task sends many requests
        for number in range(REQUESTS):
            name = number.to_bytes(3)
            await turns.acquire_on_behalf_of(name)
            assert dealer.send([name, b"request"])
        # Then: all replies arrive, in order and without a stall
        await replies.wait(REQUESTS)
    assert [int.from_bytes(frames[0]) for frames in replies.messages] == list(range(REQUESTS))
    assert longest_s < STALL_S


async def test_send_that_consumes_wake_up_still_wakes_reader(context: ZmqContext) -> None:
    # Given: a waiting reader, and a peer in this task, so that the reader does not run between the peer's calls
    replies = Inbox()
    peer = context.socket(zmq.ROUTER)
    peer.bind("tcp://127.0.0.1:*")
    dealer = ZmqSocket(context, SocketKind.DEALER, replies.receive)
    dealer.connect(peer.get_string(zmq.LAST_ENDPOINT))
    with peer:
        async with running(dealer):
            for count in range(1, 11):
                dealer.send([b"request"])
                await trio.testing.wait_all_tasks_blocked()
                # When: the descriptor signals a reply, and a send consumes the wake-up
                peer.send_multipart(peer.recv_multipart())
                select.select([dealer._descriptor], [], [], TIMEOUT_S)
                dealer._socket.get(zmq.EVENTS)
                dealer._wake()
                # Then: the reply is read nevertheless
                await replies.wait(count)


async def test_flood_does_not_block_other_tasks(context: ZmqContext) -> None:
    # Given: many unread messages
    sink = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, sink.receive, SocketOptions(receive_queue=20_000))
    dealer = ZmqSocket(context, SocketKind.DEALER, None, SocketOptions(send_queue=20_000))
    dealer.connect(router.bind(ANY_PORT))
    for _ in range(10_000):
        assert dealer.send([b"flood"])
    received: list[int] = []
    # When: the router reads them while another task runs
    async with running(router, dealer):
        while len(sink.messages) < 10_000:
            received.append(len(sink.messages))
            await trio.lowlevel.checkpoint()
    # Then: the other task ran after every slice of messages
    assert max(later - earlier for earlier, later in pairwise(received)) <= SLICE_FRAMES


@pytest.mark.parametrize(
    "frames", [pytest.param([b""] * 2_000, id="too many frames"), pytest.param([b"x" * 600] * 4, id="too many bytes")]
)
async def test_message_beyond_limits_dropped_before_next(context: ZmqContext, frames: list[bytes]) -> None:
    sink = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, sink.receive, SocketOptions(max_frames=8, max_message_bytes=2_000))
    dealer = ZmqSocket(context, SocketKind.DEALER)
    dealer.connect(router.bind(ANY_PORT))
    async with running(router, dealer):
        assert dealer.send(frames)
        assert dealer.send([b"next"])
        await sink.wait(1)
    assert [message[1:] for message in sink.messages] == [[b"next"]]
    assert router.counters == {SocketDrop.TOO_LARGE: 1}


async def test_oversized_frame_closes_only_its_connection(context: ZmqContext) -> None:
    # Given: a server with a limit of 100 bytes, and two clients
    sink = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, sink.receive, SocketOptions(max_message_bytes=100))
    url = router.bind(ANY_PORT)
    other, attacker = ZmqSocket(context, SocketKind.DEALER), ZmqSocket(context, SocketKind.DEALER)
    other.connect(url)
    attacker.connect(url)
    async with running(router, other, attacker):
        other.send([b"before"])
        await sink.wait(1)
        # When: one client exceeds the limit, and the other sends again
        attacker.send([b"x" * 101])
        other.send([b"after"])
        await sink.wait(2)
    # Then: the other client still has the same connection
    assert [message[1] for message in sink.messages] == [b"before", b"after"]
    assert sink.messages[0][0] == sink.messages[1][0]


async def test_message_without_room_in_queue_not_sent(context: ZmqContext) -> None:
    dealer = ZmqSocket(context, SocketKind.DEALER, None, SocketOptions(send_queue=1))
    dealer.connect("tcp://127.0.0.1:1")  # a port without a listener
    assert dealer.send([b"kept for the connection"])
    assert not dealer.send([b"one too many"])
    assert dealer.counters == {SocketDrop.QUEUE_FULL: 1}
    dealer.close()


async def test_dealer_without_server_rejects_send_if_only_connected(context: ZmqContext) -> None:
    dealer = ZmqSocket(context, SocketKind.DEALER, None, SocketOptions(only_connected=True))
    dealer.connect("tcp://127.0.0.1:1")
    assert not dealer.send([b"to no server"])
    dealer.close()


async def test_router_rejects_send_to_unknown_connection(context: ZmqContext) -> None:
    router = ZmqSocket(context, SocketKind.ROUTER, Inbox().receive)
    router.bind(ANY_PORT)
    assert not router.send([b"identity", b"reply"])
    assert router.counters == {SocketDrop.CONNECTION_GONE: 1}
    router.close()


@pytest.mark.parametrize("kind", [SocketKind.ROUTER, SocketKind.DEALER, SocketKind.PUB])
async def test_message_after_end_of_socket_is_dropped(context: ZmqContext, kind: SocketKind) -> None:
    socket = ZmqSocket(context, kind, Inbox().receive)
    socket.bind(ANY_PORT)
    async with running(socket):
        pass
    assert not socket.send([b"identity", b"reply"])
    assert socket.counters == {SocketDrop.CONNECTION_GONE: 1}


async def test_subscriber_receives_messages_with_its_prefix(context: ZmqContext) -> None:
    # Given: a publisher for two clusters
    inbox = Inbox()
    publisher = ZmqSocket(context, SocketKind.PUB)
    subscriber = ZmqSocket(context, SocketKind.SUB, inbox.receive)
    subscriber.subscribe(b"ours")
    subscriber.connect(publisher.bind(ANY_PORT))
    async with running(publisher, subscriber):
        # When: the publisher sends messages until the subscription has arrived
        while not inbox.messages:
            publisher.send([b"theirs", b"1"])
            publisher.send([b"ours", b"2"])
            await trio.lowlevel.checkpoint()
    # Then: the subscriber gets only its cluster's messages
    assert {frames[0] for frames in inbox.messages} == {b"ours"}


async def test_ipv6_address_reachable(context: ZmqContext) -> None:
    try:
        echo, replies = Echo(context, "tcp://[::1]:*"), Inbox()
    except OSError:
        pytest.skip("this machine has no IPv6")
    dealer = ZmqSocket(context, SocketKind.DEALER, replies.receive)
    dealer.connect(echo.url)
    async with running(echo.socket, dealer):
        dealer.send([b"request"])
        await replies.wait(1)


def test_unusable_url_named_in_error(context: ZmqContext) -> None:
    first, second = ZmqSocket(context, SocketKind.ROUTER), ZmqSocket(context, SocketKind.ROUTER)
    url = first.bind(ANY_PORT)
    with pytest.raises(OSError, match=rf"cannot listen at {url}: Address already in use"):
        second.bind(url)
    with pytest.raises(OSError, match=r"cannot connect to nowhere: "):
        second.connect("nowhere")
    first.close()
    second.close()


def test_descriptors_closed_at_end() -> None:
    async def exchange() -> None:
        with zmq_context() as context:
            echo, replies = Echo(context), Inbox()
            dealer = ZmqSocket(context, SocketKind.DEALER, replies.receive)
            dealer.connect(echo.url)
            async with running(echo.socket, dealer):
                dealer.send([b"request"])
                await replies.wait(1)

    trio.run(exchange)
    process = psutil.Process()
    earlier = process.num_fds()
    for _ in range(3):
        trio.run(exchange)
    assert process.num_fds() == earlier


@dataclass(frozen=True, slots=True)
class Key:
    """A pair of CURVE keys, 32 bytes each."""

    secret: bytes
    public: bytes


def make_key() -> Key:
    public, secret = zmq.curve_keypair()
    return Key(z85.decode(secret), z85.decode(public))


def client_socket(context: ZmqContext, url: str, key: Key, server: Key, inbox: Inbox) -> ZmqSocket:
    curve = CurveClient(server.public, key.public, key.secret)
    socket = ZmqSocket(context, SocketKind.DEALER, inbox.receive, SocketOptions(reconnect_ms=10, curve=curve))
    socket.connect(url)
    return socket


async def test_curve_server_refuses_unlisted_key(context: ZmqContext) -> None:
    # Given: a server with one listed key
    server, alice, unknown = make_key(), make_key(), make_key()
    authenticator = ZapAuthenticator(context, {alice.public}.__contains__)
    received = Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, received.receive, SocketOptions(curve=CurveServer(server.secret)))
    url = router.bind(ANY_PORT)
    # When: a client with this key and a client with another key each send a message
    unlisted, listed = (client_socket(context, url, key, server, Inbox()) for key in (unknown, alice))
    unlisted.send([b"from an unknown client"])
    listed.send([b"from alice", b"and more"])
    async with running(authenticator, router, unlisted, listed):
        await received.wait(1)
        while not authenticator.counters[EndpointEvent.KEYS_REFUSED]:
            await trio.lowlevel.checkpoint()
    # Then: only the message of the listed client arrives, with the client's key
    assert [(frames[1:], user) for frames, user in zip(received.messages, received.users, strict=True)] == [
        ([b"from alice", b"and more"], alice.public.hex())
    ]
    assert authenticator.counters[EndpointEvent.KEYS_ACCEPTED] == 1


async def test_fault_in_key_look_up_refuses_only_that_client(
    context: ZmqContext, caplog: pytest.LogCaptureFixture
) -> None:
    server, alice, broken = make_key(), make_key(), make_key()

    def is_listed(key: bytes) -> bool:
        return bool(1 // (key != broken.public))

    authenticator, received = ZapAuthenticator(context, is_listed), Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, received.receive, SocketOptions(curve=CurveServer(server.secret)))
    url = router.bind(ANY_PORT)
    refused = client_socket(context, url, broken, server, Inbox())
    refused.send([b"refused"])
    async with running(authenticator, router, refused):
        while not authenticator.counters[EndpointEvent.KEYS_REFUSED]:
            await trio.lowlevel.checkpoint()
        listed = client_socket(context, url, alice, server, Inbox())
        listed.send([b"from alice"])
        await received.wait(1)
        listed.close()
    assert [frames[1:] for frames in received.messages] == [[b"from alice"]]
    assert "ZeroDivisionError" in caplog.text


async def test_curve_server_without_authenticator_refuses_clients(context: ZmqContext) -> None:
    # Given: a server without an authenticator, and a client that monitors its handshakes
    server, client, received = make_key(), make_key(), Inbox()
    router = ZmqSocket(context, SocketKind.ROUTER, received.receive, SocketOptions(curve=CurveServer(server.secret)))
    dealer = client_socket(context, router.bind(ANY_PORT), client, server, Inbox())
    failures = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )
    with dealer._socket.get_monitor_socket(failures | zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
        # When: the client sends a message
        dealer.send([b"request"])
        async with running(router, dealer):
            event = recv_monitor_message(monitor)
    # Then: the handshake fails and nothing arrives
    assert event["event"] & failures
    assert received.messages == []
