"""The TCP port of `garlicfarm connect`: both directions, their ends, resets and limits, over loopback and in memory."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from bridge.connect.errors import NoLeafError
from bridge.connect.forwarding import ANSWERED_S, BUFFER_BYTES, HALF_OPEN_S, ListenerCount, Listeners, forward
from bridge.connect.tcp_listener import ListenError, TcpForwarder, serve_port
from gossip import Address
from tests.node.fake_farm import FailingStream, FakeFarm, Service

LOOPBACK = "127.0.0.1"
BOUND_S = 60.0
LARGE = bytes(range(256)) * 8192


async def echo(stream: trio.abc.HalfCloseableStream) -> None:
    while data := await stream.receive_some(4096):
        await stream.send_all(data)
    await stream.send_eof()


@asynccontextmanager
async def forwarder(service: Service) -> AsyncIterator[tuple[FakeFarm, Listeners, Address]]:
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            farm, listeners = FakeFarm(nursery, service), Listeners()
            address = await nursery.start(serve_port, Address(LOOPBACK, 0), TcpForwarder(farm, listeners).serve)
            yield farm, listeners, address
            nursery.cancel_scope.cancel()


async def all_of(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([bytes(part) async for part in stream])


async def test_bytes_pass_in_both_directions_until_both_ends() -> None:
    async with (
        forwarder(echo) as (_, listeners, address),
        await trio.open_tcp_stream(LOOPBACK, address.port) as program,
    ):
        received: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: _collect(program, received))
            await program.send_all(LARGE)
            await program.send_eof()
        assert received == [LARGE]
        assert listeners.counters[ListenerCount.CONNECTIONS_FAILED] == 0


async def _collect(stream: trio.abc.ReceiveStream, received: list[bytes]) -> None:
    received.append(await all_of(stream))


async def test_service_that_speaks_first_is_received() -> None:
    async def greet(stream: trio.abc.HalfCloseableStream) -> None:
        await stream.send_all(b"220 ready\r\n")

    async with forwarder(greet) as (_, _, address), await trio.open_tcp_stream(LOOPBACK, address.port) as program:
        assert await program.receive_some(100) == b"220 ready\r\n"


async def test_program_receives_after_its_own_end() -> None:
    async def reply_at_end(stream: trio.abc.HalfCloseableStream) -> None:
        assert await all_of(stream) == b"question"
        await stream.send_all(b"reply")
        await stream.aclose()

    async with (
        forwarder(reply_at_end) as (_, _, address),
        await trio.open_tcp_stream(LOOPBACK, address.port) as program,
    ):
        await program.send_all(b"question")
        await program.send_eof()
        assert await all_of(program) == b"reply"


async def test_program_sends_after_end_of_service() -> None:
    received: list[bytes] = []

    async def end_first(stream: trio.abc.HalfCloseableStream) -> None:
        await stream.send_eof()
        received.append(await all_of(stream))

    async with forwarder(end_first) as (_, listeners, address):
        async with await trio.open_tcp_stream(LOOPBACK, address.port) as program:
            assert await all_of(program) == b""
            await program.send_all(b"late")
        while listeners.places.borrowed_tokens:
            await trio.testing.wait_all_tasks_blocked()
        assert received == [b"late"]


async def test_connection_without_leaf_is_reset_with_reason() -> None:
    async with forwarder(echo) as (farm, listeners, address):
        farm.error = NoLeafError("no leaf answered: 3 tried")
        async with await trio.open_tcp_stream(LOOPBACK, address.port) as program:
            with pytest.raises(trio.BrokenResourceError) as caught:
                await program.receive_some(1)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.ECONNRESET
        assert listeners.counters[ListenerCount.CONNECTIONS_FAILED] == 1
        assert listeners.last_error == "no leaf answered: 3 tried"


async def test_failed_stream_resets_program() -> None:
    async with forwarder(echo) as (farm, listeners, address):
        farm.stream = FailingStream(trio.BrokenResourceError())
        async with await trio.open_tcp_stream(LOOPBACK, address.port) as program:
            await program.send_all(b"x")
            with pytest.raises(trio.BrokenResourceError):
                await program.receive_some(1)
        assert listeners.last_error == "the connection to the leaf broke; connect again"


async def test_fault_of_one_connection_keeps_others(caplog: pytest.LogCaptureFixture) -> None:
    async with forwarder(echo) as (farm, _, address):
        farm.error = ArithmeticError("a fault")
        async with await trio.open_tcp_stream(LOOPBACK, address.port) as program:
            assert await program.receive_some(1) == b""
        farm.error = None
        async with await trio.open_tcp_stream(LOOPBACK, address.port) as program:
            await program.send_all(b"x")
            assert await program.receive_some(1) == b"x"
    assert "a fault" in caplog.text


async def test_slow_reader_stops_sender(nursery: trio.Nursery) -> None:
    sent = 0
    program, ours = lockstep_stream_pair()
    leaf, service = lockstep_stream_pair()

    async def flood() -> None:
        nonlocal sent
        for _ in range(100):
            await service.send_all(bytes(BUFFER_BYTES))
            sent += 1

    with trio.fail_after(BOUND_S):
        nursery.start_soon(flood)
        nursery.start_soon(forward, ours, leaf)
        await trio.testing.wait_all_tasks_blocked()
        assert sent == 1
        await program.receive_some(BUFFER_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert sent == 2


async def test_half_open_connection_ends_without_bytes(autojump_clock: MockClock) -> None:
    program, ours = memory_stream_pair()
    leaf, service = memory_stream_pair()
    await program.send_all(b"question")
    await program.send_eof()
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forward, ours, leaf)
        await trio.sleep(HALF_OPEN_S - 1)
        for _ in range(3):
            await service.send_all(b"part")
            await trio.sleep(ANSWERED_S - 1)
        assert await program.receive_some(100) == b"part" * 3
    assert trio.current_time() - began_s == pytest.approx(HALF_OPEN_S + 3 * ANSWERED_S, abs=10)


async def test_closed_program_ends_its_stream_soon(autojump_clock: MockClock) -> None:
    program, ours = memory_stream_pair()
    leaf, service = memory_stream_pair()
    await program.send_all(b"question")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forward, ours, leaf)
        assert await service.receive_some(100) == b"question"
        await service.send_all(b"reply")
        assert await program.receive_some(100) == b"reply"
        await program.send_eof()
        ended_s = trio.current_time()
    assert trio.current_time() - ended_s == pytest.approx(ANSWERED_S)


async def test_canceled_connection_closes_leaf() -> None:
    ended = trio.Event()

    async def watch(stream: trio.abc.HalfCloseableStream) -> None:
        assert await all_of(stream) == b""
        ended.set()

    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            farm = FakeFarm(nursery, watch)
            _, ours = memory_stream_pair()
            async with trio.open_nursery() as inner:
                inner.start_soon(_forward_to, farm, ours)
                await trio.testing.wait_all_tasks_blocked()
                inner.cancel_scope.cancel()
            await ended.wait()


async def _forward_to(farm: FakeFarm, program: trio.abc.HalfCloseableStream) -> None:
    async with await farm.open_stream() as leaf:
        await forward(program, leaf)


async def test_connection_above_limit_is_reset() -> None:
    async with forwarder(echo) as (_, listeners, address):
        listeners.places.total_tokens = 1
        async with await trio.open_tcp_stream(LOOPBACK, address.port) as first:
            await first.send_all(b"x")
            assert await first.receive_some(1) == b"x"
            async with await trio.open_tcp_stream(LOOPBACK, address.port) as second:
                with pytest.raises(trio.BrokenResourceError):
                    await second.receive_some(1)
        assert listeners.counters[ListenerCount.CONNECTIONS_REFUSED] == 1


async def test_used_port_is_reported_with_remedy() -> None:
    async with forwarder(echo) as (_, _, address):
        with pytest.raises(
            ListenError, match=f"{LOOPBACK}:{address.port} cannot be opened .*port that no other program"
        ):
            await serve_port(address, echo)
