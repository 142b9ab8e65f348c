"""Sessions and streams of the SAM client through the loopback bridge, as through i2pd and a Java router."""

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
import trio.testing

from bridge.sam import loopback
from bridge.sam.connection import LeafUnreachableError, SamBridge, SamError, SamUnreachableError, open_connection
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import SamSession, new_private_key, open_session
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.key_file import sam_private_key
from bridge.wire.i2p.structures import address_of
from tests.node import sam_script

LIMIT_S = 60.0
UNKNOWN_HASH = bytes(32)


@pytest.fixture(params=[False, True], ids=["i2pd", "java"])
def network(request: pytest.FixtureRequest) -> LoopbackNetwork:
    return LoopbackNetwork(java_like=request.param)


@pytest.fixture
async def bridge(network: LoopbackNetwork) -> AsyncIterator[SamBridge]:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve_loopback_bridge, network)
            nursery.cancel_scope.cancel()


async def echo(session: SamSession) -> None:
    """Send the first bytes of each stream back, one stream at a time, until the session or a stream breaks."""
    with suppress(SamUnreachableError, trio.BrokenResourceError):
        while True:
            _, stream = await session.accept()
            async with stream:
                await stream.send_all(await stream.receive_some(100))
                await stream.receive_some(1)


async def test_stream_carries_bytes_both_ways(bridge: SamBridge) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        nursery.start_soon(echo, server)
        for sent in (b"first", b"second"):
            async with await client.connect(server.hash, 5) as stream:
                await stream.send_all(sent)
                assert await stream.receive_some(100) == sent
        nursery.cancel_scope.cancel()


async def test_accept_returns_hash_of_peer(bridge: SamBridge) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:

        async def connect() -> None:
            await (await client.connect(server.hash, 5)).aclose()

        nursery.start_soon(connect)
        peer, stream = await server.accept()
        assert peer == client.hash
        await stream.aclose()


async def test_session_keeps_address_of_private_key(bridge: SamBridge) -> None:
    private_key = await new_private_key(bridge)
    async with open_session(bridge, private_key=private_key) as first:
        pass
    async with open_session(bridge, private_key=private_key) as second:
        assert second.hash == first.hash
        assert second.private_key == private_key
        assert second.address == address_of(first.hash)
        assert private_key not in repr(second)


async def test_session_accepts_key_made_for_a_farm(bridge: SamBridge) -> None:
    key = new_master_key()
    async with open_session(bridge, private_key=sam_private_key(key)) as session:
        assert session.hash == key.destination.hash


async def test_session_with_key_in_use_is_refused(bridge: SamBridge) -> None:
    async with open_session(bridge) as session:
        with pytest.raises(SamError, match="refused SESSION CREATE: DUPLICATED_DEST"):
            async with open_session(bridge, private_key=session.private_key):
                pass


async def test_session_with_unusable_key_is_refused(bridge: SamBridge) -> None:
    with pytest.raises(SamError, match="refused SESSION CREATE: INVALID_KEY") as raised:
        async with open_session(bridge, private_key="AAAA"):
            pass
    assert "AAAA" not in str(raised.value)


async def test_session_option_with_space_is_refused(bridge: SamBridge) -> None:
    with pytest.raises(SamError, match=r"inbound\.nickname is empty, or has a space"):
        async with open_session(bridge, nickname="my farm"):
            pass


async def test_connect_to_unknown_destination_raises(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with open_session(bridge) as session:
        with pytest.raises(LeafUnreachableError, match="is unreachable through") as raised:
            await session.connect(UNKNOWN_HASH, 5)
        assert raised.value.result == ("INVALID_KEY" if network.java_like else "CANT_REACH_PEER")


async def test_connect_to_own_destination_raises(bridge: SamBridge) -> None:
    async with open_session(bridge) as session:
        with pytest.raises(LeafUnreachableError, match="CANT_REACH_PEER: Can't connect to myself"):
            await session.connect(session.hash, 5)


async def test_dead_leaf_never_replies(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        network.dead.add(server.hash)
        nursery.start_soon(echo, server)
        if network.java_like:
            with pytest.raises(LeafUnreachableError, match=r"did not reply within 0\.2 s") as raised:
                await client.connect(server.hash, 0.2)
            assert raised.value.result == "TIMEOUT"
        else:
            async with await client.connect(server.hash, 5) as stream:
                await stream.send_all(b"lost")
                with trio.move_on_after(0.2) as limit:
                    await stream.receive_some(1)
                assert limit.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_lost_leaf_stops_replying(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        nursery.start_soon(echo, server)
        async with await client.connect(server.hash, 5) as stream:
            network.dead.add(server.hash)
            network.end_session(server.hash)
            await server.wait_ended()
            await stream.send_all(b"lost")
            with trio.move_on_after(0.2) as limit:
                await stream.receive_some(1)
            assert limit.cancelled_caught
            nursery.cancel_scope.cancel()


async def test_lease_set_remains_after_session(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with open_session(bridge) as server:
        pass
    async with open_session(bridge) as client:
        await trio.testing.wait_all_tasks_blocked()
        assert network.has_lease_set(server.hash)
        network.forget_lease_sets()
        with pytest.raises(LeafUnreachableError):
            await client.connect(server.hash, 5)


async def test_end_of_session_ends_its_streams(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        nursery.start_soon(echo, server)
        async with await client.connect(server.hash, 5) as stream:
            network.end_session(client.hash)
            assert "ended the session: did the router stop?" in await client.wait_ended()
            assert await stream.receive_some(1) == b""
        with pytest.raises(SamUnreachableError, match="ended the session"):
            await client.connect(server.hash, 5)
        nursery.cancel_scope.cancel()


async def test_waiting_accept_raises_at_end_of_session(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with open_session(bridge) as session, trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.testing.wait_all_tasks_blocked(0.05)
            network.end_session(session.hash)

        nursery.start_soon(end)
        with pytest.raises(SamUnreachableError, match="ended the"):
            await session.accept()


async def test_half_close_ends_stream(bridge: SamBridge) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        received = bytearray()

        async def serve() -> None:
            _, stream = await server.accept()
            async with stream:
                async for data in stream:
                    received.extend(data)

        nursery.start_soon(serve)
        async with await client.connect(server.hash, 5) as stream:
            await stream.send_all(b"request")
            await stream.send_eof()
            assert await stream.receive_some(1) == b""
    assert received == b"request"


async def test_many_streams_carry_large_contents(bridge: SamBridge) -> None:
    content = bytes(range(256)) * 2_000

    async def serve(session: SamSession, nursery: trio.Nursery) -> None:
        while True:
            _, stream = await session.accept()
            nursery.start_soon(send, stream)

    async def send(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(content)
            await stream.receive_some(1)

    async def receive(session: SamSession, server: SamSession) -> None:
        received = bytearray()
        async with await session.connect(server.hash, 10) as stream:
            while len(received) < len(content):
                received += await stream.receive_some(65_536)
        assert received == content

    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as serving:
        serving.start_soon(serve, server, serving)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(receive, client, server)
        serving.cancel_scope.cancel()


async def test_bridges_share_a_network(bridge: SamBridge, network: LoopbackNetwork) -> None:
    async with trio.open_nursery() as other_router, open_session(bridge) as client:
        other: SamBridge = await other_router.start(serve_loopback_bridge, network)
        async with open_session(other) as server, trio.open_nursery() as nursery:
            nursery.start_soon(echo, server)
            async with await client.connect(server.hash, 5) as stream:
                await stream.send_all(b"over")
                assert await stream.receive_some(10) == b"over"
            other_router.cancel_scope.cancel()


async def test_ping_of_bridge_gets_pong(bridge: SamBridge, network: LoopbackNetwork) -> None:
    network.ping_after_s = 0.05
    async with open_session(bridge) as session:
        with trio.move_on_after(0.5):
            pytest.fail(await session.wait_ended())


async def test_loopback_bridge_pongs_and_refuses_unknown_lines(bridge: SamBridge) -> None:
    connection = await open_connection(bridge)
    async with connection.stream as stream:
        await stream.send_all(b"PING some words\n")
        assert await stream.receive_some(100) == b"PONG some words\n"
        await stream.send_all(b"RAW SEND\n")
        assert await stream.receive_some(100) == b""


async def test_loopback_bridge_refuses_public_address() -> None:
    with pytest.raises(ValueError, match=r"cannot listen on 0\.0\.0\.0"):
        await serve_loopback_bridge(LoopbackNetwork(), host="0.0.0.0")  # noqa: S104 -- refused


async def test_unreachable_bridge_error_names_remedy() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    with pytest.raises(SamUnreachableError, match=rf"^nothing answers at 127\.0\.0\.1:{port}: .*enable SAM"):
        async with open_session(SamBridge("127.0.0.1", port)):
            pass


async def test_session_raises_error_of_block_without_group(bridge: SamBridge) -> None:
    with pytest.raises(KeyError):
        async with open_session(bridge):
            raise KeyError


@pytest.mark.parametrize(("host", "port"), [("localhost", 7656), ("127.0.0.1", 0), ("127.0.0.1", 65_536)])
def test_bridge_address_with_name_or_wrong_port_raises(host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"does not appear to be|is not a port"):
        SamBridge(host, port)


async def test_loopback_bridge_gives_replies_of_i2pd(nursery: trio.Nursery) -> None:
    with trio.fail_after(LIMIT_S):
        network = LoopbackNetwork()
        first = await nursery.start(serve_loopback_bridge, network)
        second = await nursery.start(serve_loopback_bridge, network)
        assert await sam_script.play(first, second) == list(sam_script.REPLIES)


@pytest.mark.parametrize("limit", ["CONNECTIONS_LIMIT", "SESSIONS_LIMIT"])
async def test_loopback_bridge_refuses_sessions_over_limit(
    bridge: SamBridge, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, limit, 1)
    async with open_session(bridge):
        with pytest.raises(SamError, match=r"too many sessions|ended the connection"):
            async with open_session(bridge):
                pass


async def test_stream_over_waiting_limit_is_refused_or_ended(
    bridge: SamBridge, network: LoopbackNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "WAITING_STREAMS_LIMIT", 0)
    async with open_session(bridge) as server, open_session(bridge) as client:
        if network.java_like:
            with pytest.raises(LeafUnreachableError, match="CONNECTION_REFUSED"):
                await client.connect(server.hash, 5)
        else:
            async with await client.connect(server.hash, 5) as stream:
                assert await stream.receive_some(1) == b""


async def test_stream_without_accept_ends_after_limit(
    bridge: SamBridge, network: LoopbackNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "ACCEPT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(loopback, "CONNECT_TIMEOUT_S", 0.1)
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        if network.java_like:
            with pytest.raises(LeafUnreachableError, match="TIMEOUT"):
                await client.connect(server.hash, 5)
        else:
            async with await client.connect(server.hash, 5) as stream:
                assert await stream.receive_some(1) == b""
        nursery.start_soon(echo, server)
        async with await client.connect(server.hash, 5) as stream:
            await stream.send_all(b"later")
            assert await stream.receive_some(10) == b"later"
        nursery.cancel_scope.cancel()


async def test_canceled_accept_does_not_take_next_stream(bridge: SamBridge) -> None:
    async with open_session(bridge) as server, open_session(bridge) as client, trio.open_nursery() as nursery:
        with trio.move_on_after(0.05):
            await server.accept()
        nursery.start_soon(echo, server)
        async with await client.connect(server.hash, 5) as stream:
            await stream.send_all(b"kept")
            assert await stream.receive_some(10) == b"kept"
        nursery.cancel_scope.cancel()
