"""The SAM client against bridges that violate the protocol: one error with a reason, in bounded time and memory."""

import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import pytest
import trio
import trio.testing

from bridge.sam.connection import (
    CONNECT_TIMEOUT_S,
    REPLY_TIMEOUT_S,
    LeafUnreachableError,
    SamBridge,
    SamError,
    SamUnreachableError,
    UnreadablePeerError,
    receive_line,
)
from bridge.sam.loopback import COMMAND_TIMEOUT_S, LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import LINES_MAX, SESSION_TIMEOUT_S, new_private_key, open_session
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.key_file import sam_private_key
from bridge.wire.i2p.sam import LINE_LIMIT_BYTES
from tests.effort import over_seeds
from tests.processes import hold_for_sockets
from tests.simulation import sam_fuzz
from tests.simulation.fuzzing import mutated

LIMIT_S = 300.0
HASH = bytes(range(32))
KEY = new_master_key()
HELLO = b"HELLO REPLY RESULT=OK VERSION=3.3\n"
CREATED = f"SESSION STATUS RESULT=OK DESTINATION={sam_private_key(KEY)}\n".encode()
GOOD = {"HELLO": HELLO, "SESSION": CREATED, "STREAM": b"STREAM STATUS RESULT=OK\n"}


@asynccontextmanager
async def hostile_bridge(replies: Mapping[str, bytes | None], *, slowly: bool = False) -> AsyncIterator[SamBridge]:
    """Serve `replies` by the first word of a request; None ends the connection, a missing word sends nothing."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                while line := await receive_line(stream):
                    reply = replies.get(line.split()[0].decode(), b"")
                    if reply is None:
                        return
                    await send(stream, reply)
            except trio.BrokenResourceError:
                pass

    async def send(stream: trio.SocketStream, reply: bytes) -> None:
        piece_bytes = 1 if slowly else len(reply) or 1
        for at in range(0, len(reply), piece_bytes):
            await stream.send_all(reply[at : at + piece_bytes])
            await trio.sleep(1 if slowly else 0)

    async with serving(serve) as bridge:
        yield bridge


@asynccontextmanager
async def serving(serve: Callable[[trio.SocketStream], Awaitable[object]]) -> AsyncIterator[SamBridge]:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(partial(trio.serve_listeners, serve, listeners))
            yield SamBridge("127.0.0.1", listeners[0].socket.getsockname()[1])
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (None, "ended the connection during HELLO VERSION"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is not a SAM v3 bridge: it replied to HELLO VERSION with 'HTTP/1.1 400'"),
        (b"HELLO REPLY RESULT=OK VERSION=3.3\0\n", "is not a SAM v3 bridge: the line contains the control character 0"),
        (b"HELLO REPLY RESULT=NOVERSION\n", r"does not support SAM 3\.1 to 3\.3: update the router"),
        (b"HELLO REPLY RESULT=OK VERSION=3.0\n", r"does not support SAM 3\.1 to 3\.3 but 3\.0: update"),
        (b"HELLO REPLY RESULT=OK VERSION=4.0\n", r"does not support SAM 3\.1 to 3\.3 but 4\.0: update"),
        (b"HELLO REPLY RESULT=OK\n", r"does not support SAM 3\.1 to 3\.3: update"),
        (b'HELLO REPLY RESULT=I2P_ERROR MESSAGE="a \x1b[2J"\n', "control character 27"),
        (b'HELLO REPLY RESULT=I2P_ERROR MESSAGE="Authorization failed"\n', "refused HELLO VERSION: I2P_ERROR: Author"),
        ('HELLO REPLY RESULT=I2P_ERROR MESSAGE="a \u202e"\n'.encode(), r"I2P_ERROR: a \\u202e$"),
        (b"x" * (LINE_LIMIT_BYTES + 1), "a line has more than 8192 bytes"),
        (b"PING 1\n" * 1_000, "it sent 100 PINGs instead of a reply to HELLO VERSION"),
    ],
)
async def test_invalid_greeting_raises_with_reason(hello: bytes | None, reason: str) -> None:
    async with hostile_bridge({"HELLO": hello}) as bridge:
        with pytest.raises(SamError, match=reason) as raised:
            await new_private_key(bridge)
        assert str(bridge) in str(raised.value)


async def test_endless_line_uses_bounded_memory() -> None:
    async with hostile_bridge({"HELLO": b"x" * 50_000_000}) as bridge:
        tracemalloc.start()
        with pytest.raises(SamError, match="more than 8192 bytes"):
            await new_private_key(bridge)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("replies", "limit_s", "request_words"),
    [
        ({}, REPLY_TIMEOUT_S, "HELLO VERSION"),
        ({"HELLO": HELLO}, SESSION_TIMEOUT_S, "SESSION CREATE"),
        ({"HELLO": HELLO, "SESSION": b"SESSION STATUS RESULT=OK"}, SESSION_TIMEOUT_S, "SESSION CREATE"),
    ],
)
async def test_unresponsive_bridge_raises_within_limit(
    replies: dict[str, bytes], limit_s: float, request_words: str, autojump_clock: trio.testing.MockClock
) -> None:
    hold_for_sockets(autojump_clock)
    async with hostile_bridge(replies) as bridge:
        began_s = trio.current_time()
        with pytest.raises(SamUnreachableError, match=f"did not reply to {request_words} within {limit_s:g} s"):
            async with open_session(bridge):
                pass
        assert trio.current_time() - began_s <= CONNECT_TIMEOUT_S + REPLY_TIMEOUT_S + limit_s


async def test_slow_bytes_raise_within_limit(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    async with hostile_bridge({"HELLO": HELLO}, slowly=True) as bridge:
        with pytest.raises(SamUnreachableError, match="did not reply to HELLO VERSION within 10 s"):
            await new_private_key(bridge)
        assert trio.current_time() <= 2 * REPLY_TIMEOUT_S


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "ended the connection during SESSION CREATE: did the router stop"),
        (b"SESSION STATUS RESULT=OK\n", "is not a SAM v3 bridge"),
        (b"SESSION STATUS RESULT=OK DESTINATION=AAAA\n", "is not a SAM v3 bridge: it is not a private key of SAM"),
        (b"SESSION STATUS RESULT=DUPLICATED_DEST\n", "refused SESSION CREATE: DUPLICATED_DEST"),
        (b"SESSION STATUS\n", "refused SESSION CREATE: a line 'SESSION STATUS'"),
        (b"DEST REPLY RESULT=OK\n", "it replied to SESSION CREATE with 'DEST REPLY'"),
    ],
)
async def test_invalid_session_status_raises_with_reason(reply: bytes | None, reason: str) -> None:
    async with hostile_bridge({**GOOD, "SESSION": reply}) as bridge:
        with pytest.raises(SamError, match=reason):
            async with open_session(bridge):
                pass


async def test_session_error_does_not_show_private_key() -> None:
    private_key = sam_private_key(KEY)
    reply = f'SESSION STATUS RESULT=I2P_ERROR DESTINATION={private_key} MESSAGE="no"\n'.encode()
    async with hostile_bridge({**GOOD, "SESSION": reply}) as bridge:
        with pytest.raises(SamError, match="I2P_ERROR: no") as raised:
            async with open_session(bridge, private_key=private_key):
                pass
    assert private_key[:20] not in str(raised.value)


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (b"\0\n", "a line is not SAM: "),
        (b"x" * 9_000, "a line is not SAM: "),
        (b'SESSION STATUS RESULT=I2P_ERROR MESSAGE="tunnels lost"\n\0\n', "ended the session: I2P_ERROR: tunnels lost"),
    ],
)
async def test_invalid_line_on_control_connection_ends_session(control: bytes, reason: str) -> None:
    async with hostile_bridge({**GOOD, "SESSION": CREATED + control}) as bridge, open_session(bridge) as session:
        assert reason in await session.wait_ended()
        with pytest.raises(SamUnreachableError, match=reason):
            await session.connect(HASH, 5)
        with pytest.raises(SamUnreachableError, match=reason):
            await session.accept()


async def test_endless_pings_end_session() -> None:
    control = b"PING 1\n" * (LINES_MAX + 1)
    async with hostile_bridge({**GOOD, "SESSION": CREATED + control}) as bridge, open_session(bridge) as session:
        assert f"it sent more than {LINES_MAX} lines in 60 s" in await session.wait_ended()


async def test_bridge_that_does_not_read_ends_session(autojump_clock: trio.testing.MockClock) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await receive_line(stream)
        await stream.send_all(HELLO)
        await receive_line(stream)
        await stream.send_all(CREATED)
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"PING " + b"x" * 8_000 + b"\n")
                await trio.sleep(1.0)  # The rate of lines is below the limit.

    async with serving(serve) as bridge, open_session(bridge) as session:
        assert "it did not receive a PONG within 10 s" in await session.wait_ended()


@pytest.mark.parametrize("option", ["ID", "DESTINATION", "STYLE"])
async def test_option_cannot_replace_parameter_of_session(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} cannot be options of a session"):
        async with open_session(options={option: "x"}):
            pass


async def test_pings_and_unknown_lines_do_not_end_session() -> None:
    control = b"PING 1\n" * 500 + b"FUTURE EVENT A=1\n"
    async with hostile_bridge({**GOOD, "SESSION": CREATED + control}) as bridge, open_session(bridge) as session:
        await trio.testing.wait_all_tasks_blocked(0.02)
        async with await session.connect(HASH, 5):
            pass


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "ended the connection during STREAM CONNECT"),
        (b"STREAM STATUS RESULT=INVALID_ID\n", "ended the session"),
        (b"STREAM\n", "it replied to STREAM CONNECT with 'STREAM'"),
    ],
)
async def test_invalid_stream_status_raises_with_reason(reply: bytes | None, reason: str) -> None:
    async with hostile_bridge({**GOOD, "STREAM": reply}) as bridge, open_session(bridge) as session:
        with pytest.raises(SamError, match=reason) as raised:
            await session.connect(HASH, 5)
        assert not isinstance(raised.value, LeafUnreachableError)


async def test_unresponsive_stream_connect_is_error_of_leaf(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    async with hostile_bridge({**GOOD, "STREAM": b""}) as bridge, open_session(bridge) as session:
        with pytest.raises(LeafUnreachableError, match="did not reply within 7 s through") as raised:
            await session.connect(HASH, 7)
        assert raised.value.result == "TIMEOUT"


async def test_unresponsive_bridge_is_not_an_error_of_leaf(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    replies = dict(GOOD)
    async with hostile_bridge(replies) as bridge, open_session(bridge) as session:
        del replies["HELLO"]
        with pytest.raises(SamUnreachableError, match="did not reply within 7 s"):
            await session.connect(HASH, 7)


async def test_bytes_after_stream_status_are_not_lost() -> None:
    content = bytes(range(256)) * 100
    replies = {**GOOD, "STREAM": b"STREAM STATUS RESULT=OK\n" + content}
    async with hostile_bridge(replies) as bridge, open_session(bridge) as session:
        async with await session.connect(HASH, 5) as stream:
            received = bytearray()
            while len(received) < len(content):
                received += await stream.receive_some(10_000)
        assert received == content


async def test_unreadable_destination_is_error_of_peer() -> None:
    replies = {**GOOD, "STREAM": b"STREAM STATUS RESULT=OK\nAAAA\n"}
    async with hostile_bridge(replies) as bridge, open_session(bridge) as session:
        with pytest.raises(UnreadablePeerError):
            await session.accept()


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (b"\xff\n", "the line is not the peer's destination"),
        (b"AAAA\n", "the line is not the peer's destination"),
        (b"x" * 9_000, "a line has more than 8192 bytes"),
        (b'STREAM STATUS RESULT=TIMEOUT MESSAGE="slow"\n', "refused STREAM ACCEPT: TIMEOUT: slow"),
    ],
)
async def test_invalid_line_before_accepted_stream_raises(peer: bytes, reason: str) -> None:
    replies = {**GOOD, "STREAM": b"STREAM STATUS RESULT=OK\n" + peer}
    async with hostile_bridge(replies) as bridge, open_session(bridge) as session:
        with pytest.raises(SamError, match=reason):
            await session.accept()


@pytest.mark.parametrize(
    "sent",
    [b"", b"\0\n", b"x" * 9_000, b"HELLO VERSION\nSTREAM CONNECT ID=\n", b"HELLO VERSION\nSESSION CREATE\n"],
    ids=["nothing", "nul", "long", "connect", "create"],
)
async def test_loopback_bridge_ends_invalid_connections(sent: bytes, autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            bridge = await nursery.start(serve_loopback_bridge, LoopbackNetwork())
            async with await trio.open_tcp_stream(bridge.host, bridge.port) as stream:
                await stream.send_all(sent)
                with trio.fail_after(COMMAND_TIMEOUT_S + 1):
                    try:
                        while await stream.receive_some(1_000):
                            pass
                    except trio.BrokenResourceError:
                        pass
            nursery.cancel_scope.cancel()


async def test_canceled_requests_close_their_connections(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    open_connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal open_connections
        open_connections += 1
        async with stream:
            while line := await receive_line(stream):
                await stream.send_all(b"" if line.startswith(b"STREAM") else GOOD[line.split()[0].decode()])
        open_connections -= 1

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(partial(trio.serve_listeners, serve, listeners))
            async with open_session(SamBridge("127.0.0.1", listeners[0].socket.getsockname()[1])) as session:
                for _ in range(20):
                    with trio.move_on_after(1):
                        await session.connect(HASH, 5)
                    with trio.move_on_after(1):
                        await session.accept()
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert open_connections == 1
            nursery.cancel_scope.cancel()


@over_seeds(2_000)
async def test_random_bridge_raises_only_sam_errors(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    random, lines = Random(seed), [*sam_fuzz.corpus(), *GOOD.values()]

    def line() -> bytes:
        return mutated(random.choice(lines), random, lines, sam_fuzz.PIECES)

    for _ in range(10):
        replies = {verb: reply if random.random() < 0.7 else line() for verb, reply in GOOD.items()}
        replies["SESSION"] += line() if random.random() < 0.5 else b""
        async with hostile_bridge(replies) as bridge:
            with suppress(SamError):
                async with open_session(bridge) as session:
                    with suppress(SamError), trio.move_on_after(1):
                        (await session.connect(HASH, 5)).socket.close()
                    with suppress(SamError), trio.move_on_after(1):
                        (await session.accept())[1].socket.close()
