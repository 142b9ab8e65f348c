"""The sessions of a client at hostile and failing SAM bridges: bounded waits and retries, one line for each failure."""

import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.connect import ClientCounter, ConnectError, LeafSilentError, NoSessionError, connect
from bridge.connect.sessions import SESSIONS, WAIT_LIMIT_S
from bridge.core.connecting.leaves import PROVEN_FOR_S
from bridge.sam.connection import SamBridge
from bridge.wire.i2p.farm_link import FarmLink
from tests.node.connect_stage import connect_stage, request, until
from tests.processes import hold_for_sockets

Handler = Callable[[trio.SocketStream], Awaitable[None]]
LINK = FarmLink(bytes(32), (b"1" * 32,))
MEBIBYTE = 1 << 20


async def never_replies(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        continue


async def sends_rubbish(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x00\xff HTTP/1.1 400 Bad Request\r\n\r\n")


async def sends_endlessly(stream: trio.SocketStream) -> None:
    while True:
        await stream.send_all(bytes(MEBIBYTE))


async def ends_after_hello(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HELLO REPLY RESULT=OK VERSION=3.1\n")
    await stream.receive_some()


async def refuses_sessions(stream: trio.SocketStream) -> None:
    await ends_after_hello(stream)
    await stream.send_all(b'SESSION STATUS RESULT=I2P_ERROR MESSAGE="no \x1b[31m tunnels"\n')


async def creates_false_session(stream: trio.SocketStream) -> None:
    await ends_after_hello(stream)
    await stream.send_all(b"SESSION STATUS RESULT=OK DESTINATION=AAAA\n")


@pytest.mark.parametrize(
    "handler",
    [never_replies, sends_rubbish, sends_endlessly, ends_after_hello, refuses_sessions, creates_false_session],
)
async def test_hostile_bridge_is_reported_in_one_line(
    tmp_path: Path, autojump_clock: MockClock, handler: Handler
) -> None:
    hold_for_sockets(autojump_clock)
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        with suppress(trio.BrokenResourceError):
            async with stream:
                await handler(stream)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        bridge = SamBridge("127.0.0.1", listeners[0].socket.getsockname()[1])
        tracemalloc.start()
        try:
            async with connect(LINK, bridge=bridge, cache_dir=tmp_path) as farm:
                began_s = trio.current_time()
                with pytest.raises(NoSessionError, match=f"127.0.0.1:{bridge.port}") as caught:
                    await farm.open_stream()
                assert trio.current_time() - began_s <= WAIT_LIMIT_S
                await trio.sleep(120)
                assert farm.status().problem is not None
            assert tracemalloc.get_traced_memory()[1] < 8 * MEBIBYTE
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    assert str(caught.value).isprintable()
    assert connections <= 60, "the client opens two sessions, each with delays of up to 10 s"


async def test_sessions_that_end_soon_are_opened_with_pauses(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        own = {leaf.hash for leaf in stage.leaves} | {each.hash for each in stage.directories}
        async with stage.client() as farm, trio.open_nursery() as nursery:

            async def end_sessions() -> None:
                while True:
                    for each in stage.network.hashes - own:
                        stage.network.end_session(each)
                    await trio.sleep(0.5)

            nursery.start_soon(end_sessions)
            with trio.move_on_after(90):
                while True:
                    with suppress(ConnectError, trio.BrokenResourceError):
                        await request(farm)
                    await trio.sleep(1)
            assert farm.counters[ClientCounter.SESSIONS_MADE] <= 60
            nursery.cancel_scope.cancel()
        # The leaves are not the cause: a new client reaches a leaf, and its sessions stay open.
        async with stage.client() as farm:
            await request(farm)
            await until(lambda: farm.status().sessions == SESSIONS)


async def test_requests_succeed_if_bridge_refuses_one_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        await request(farm)
        await until(lambda: farm.status().sessions == SESSIONS)
        broken = next(iter(farm._pool._ready))
        broken._id = "unknown"  # the bridge replies INVALID_ID, and the control connection stays
        for _ in range(8):
            assert (await request(farm)).startswith("leaf-")
        assert farm.counters[ClientCounter.STREAMS_FAILED] == 0


async def test_last_error_is_the_newest_of_all_parts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        stage.leaves[0].closes = True
        async with await farm.open_stream() as stream:
            await stream.receive_some()
        assert "ended the stream without a reply" in (farm.status().last_error or "")
        used = next(iter(farm._pool._ready))
        stage.network.end_session(used.hash)
        await until(lambda: farm.status().sessions == SESSIONS - 1)
        assert "ended the session" in (farm.status().last_error or "")


async def test_request_after_lost_reply_uses_other_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        await until(lambda: farm.status().sessions == SESSIONS)
        stage.leaves[0].is_silent = True
        with pytest.raises(LeafSilentError):
            await request(farm)
        stage.leaves[0].is_silent = False
        for _ in range(3):
            await request(farm)
        await trio.sleep(PROVEN_FOR_S)
        for _ in range(3):
            await request(farm)
    peers = [peer for destination, peer in stage.streams if destination == stage.leaves[0].hash]
    assert len(set(peers)) == 2
    # Requests use the other session for `PROVEN_FOR_S`, then both in turn, so that the router looks up the leaf's
    # lease set for both.
    assert peers[1] == peers[2] == peers[3] != peers[0]
    assert peers[4] == peers[6] != peers[5]


@pytest.mark.parametrize(("hops", "expected"), [(None, []), (1, ["inbound.length=1", "outbound.length=1"])])
async def test_hops_are_the_lengths_of_tunnels(
    autojump_clock: MockClock, hops: int | None, expected: list[str]
) -> None:
    hold_for_sockets(autojump_clock)
    lines: list[bytes] = []

    async def record(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HELLO REPLY RESULT=OK VERSION=3.1\n")
        lines.append(bytes(await stream.receive_some()))
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, record, listeners)
        bridge = SamBridge("127.0.0.1", listeners[0].socket.getsockname()[1])
        async with connect(LINK, bridge=bridge, hops=hops):
            await until(lambda: len(lines) == SESSIONS)
        nursery.cancel_scope.cancel()
    for line in lines:
        assert [each for each in line.decode().split() if ".length" in each] == expected


@pytest.mark.parametrize("hops", [-1, 8])
async def test_impossible_hops_are_refused(hops: int) -> None:
    with pytest.raises(ValueError, match="hops must be 0 to 7"):
        async with connect(LINK, hops=hops):
            pass
