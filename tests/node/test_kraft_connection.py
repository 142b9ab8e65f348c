"""The client side of a connection: the agreement on versions, and servers that break the protocol."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from consensus.protocols.kafka.connections.connection import (
    DialOptions,
    KafkaConnection,
    KafkaConnectionError,
    connect,
    open_connection,
)
from consensus.protocols.kafka.connections.framing import FrameStream
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import encode_response
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.schemas import api_key_of
from tests.node.unexpected_errors import tracebacks
from tests.processes import hold_for_sockets

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 60
REQUEST = clients.MetadataRequest(topics=())
RESPONSE = clients.MetadataResponse(brokers=(), topics=(), cluster_id="cluster")
FRAME_BYTES = 64 * 2**20

Script = Callable[[FrameStream], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[int]:
    """Run a server that follows the script for each connection; yield its port."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await script(FrameStream(stream, FRAME_BYTES))

    with trio.fail_after(TIMEOUT_S):
        listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            yield int(listeners[0].socket.getsockname()[1])
            nursery.cancel_scope.cancel()


def head_of(frame: bytes) -> tuple[int, int, int]:
    """Return API, version and correlation id of a request."""
    api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
    return api_key, version, correlation_id


def versions(*apis: tuple[int, int, int], error_code: int = 0) -> clients.ApiVersionsResponse:
    apis_listed = [
        clients.ApiVersionsResponseApi(api_key=key, min_version=low, max_version=high) for key, low, high in apis
    ]
    return clients.ApiVersionsResponse(error_code=error_code, api_keys=tuple(apis_listed))


async def agree(frames: FrameStream, *apis: tuple[int, int, int]) -> None:
    """Reply to ApiVersions."""
    _, version, correlation_id = head_of(await frames.receive())
    await frames.send(encode_response(ApiKey.API_VERSIONS, version, correlation_id, versions(*apis)))


async def test_older_server_is_requested_in_its_version() -> None:
    requested: list[int] = []

    async def older(frames: FrameStream) -> None:
        _, version, correlation_id = head_of(await frames.receive())
        requested.append(version)
        refusal = versions((ApiKey.API_VERSIONS, 0, 2), error_code=ErrorCode.UNSUPPORTED_VERSION)
        await frames.send(encode_response(ApiKey.API_VERSIONS, 0, correlation_id, refusal))
        _, version, correlation_id = head_of(await frames.receive())
        requested.append(version)
        supported = versions((ApiKey.API_VERSIONS, 0, 2), (ApiKey.METADATA, 0, 5), (ApiKey.VOTE, 7, 9))
        await frames.send(encode_response(ApiKey.API_VERSIONS, version, correlation_id, supported))

    async with scripted(older) as port:
        connection = await connect(LOOPBACK, port)
        assert requested == [4, 2]
        assert connection.version_of(ApiKey.METADATA) == 5
        assert connection.version_of(ApiKey.VOTE) is None
        with pytest.raises(KafkaConnectionError, match="do not share a version of DESCRIBE_QUORUM"):
            await connection.ask(admin.DescribeQuorumRequest(topics=()))
        await connection.aclose()


async def refuse(frames: FrameStream) -> None:
    """Reply to ApiVersions with an error."""
    _, version, correlation_id = head_of(await frames.receive())
    refusal = versions(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    await frames.send(encode_response(ApiKey.API_VERSIONS, version, correlation_id, refusal))


async def hang_up(frames: FrameStream) -> None:
    """Close the connection without a reply."""
    await frames.receive()


async def send_huge_length(frames: FrameStream) -> None:
    """Announce a frame length that the client must not allocate."""
    await frames._stream.send_all(b"\x7f\xff\xff\xff")
    await frames.receive()


async def reply_to_other_request(frames: FrameStream) -> None:
    """Send a reply with the correlation id of another request."""
    await frames.receive()
    await frames.send(encode_response(ApiKey.API_VERSIONS, 4, 99, versions()))


async def never_reply(frames: FrameStream) -> None:
    """Receive the request, and never reply."""
    await frames.receive()
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (refuse, "refuses ApiVersions: CLUSTER_AUTHORIZATION_FAILED"),
        (hang_up, "hung up"),
        (send_huge_length, "a frame of 2147483647 bytes"),
        (reply_to_other_request, "response 99 to request 1"),
        (never_reply, "did not reply within 100 ms"),
    ],
    ids=["error", "closed", "giant-length", "other-reply", "no-reply"],
)
async def test_failed_agreement_closes_connection_with_reason(
    script: Script, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    hold_for_sockets(autojump_clock)
    async with scripted(script) as port:
        with pytest.raises(KafkaConnectionError, match=f"{LOOPBACK}:{port} .*{reason}|no connection.*{reason}"):
            await connect(LOOPBACK, port, DialOptions(connect_timeout_ms=100))


async def test_unreachable_server_is_named() -> None:
    async with scripted(hang_up) as port:
        pass
    with pytest.raises(KafkaConnectionError, match=f"^no connection to {LOOPBACK}:{port}: .*refused"):
        await connect(LOOPBACK, port)


async def test_ended_connection_fails_waiting_and_later_requests() -> None:
    async def end(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 12))
        await frames.receive()

    async with scripted(end) as port, open_connection(LOOPBACK, port) as connection:
        with pytest.raises(KafkaConnectionError, match="did not answer MetadataRequest: the peer hung up"):
            await connection.ask(REQUEST)
        with pytest.raises(KafkaConnectionError, match="is over: the peer hung up"):
            await connection.ask(REQUEST)


async def test_error_within_block_is_raised_ungrouped() -> None:
    """Callers catch the error by its type, so it must not be wrapped in an exception group."""

    async def end(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 12))
        await frames.receive()

    async with scripted(end) as port:
        with pytest.raises(KafkaConnectionError, match="did not answer MetadataRequest"):
            async with open_connection(LOOPBACK, port) as connection:
                await connection.ask(REQUEST)


async def test_missing_reply_ends_connection_after_timeout(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)

    async def at_first_only(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 12))
        for _ in range(3):
            _, version, correlation_id = head_of(await frames.receive())
            await trio.sleep(0.04)
            await frames.send(encode_response(ApiKey.METADATA, version, correlation_id, RESPONSE))
        await frames.receive()
        await trio.sleep_forever()

    options = DialOptions(request_timeout_ms=100)
    async with scripted(at_first_only) as port, open_connection(LOOPBACK, port, options) as connection:
        for _ in range(3):
            # Together longer than the timeout of one request, so the timer is rearmed.
            assert await connection.ask(REQUEST) == RESPONSE
        began_s = trio.current_time()
        with pytest.raises(KafkaConnectionError, match="no answer within 100 ms"):
            await connection.ask(REQUEST)
        assert trio.current_time() - began_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("response", "reason"),
    [(struct.pack(">i", 99), "bytes are announced"), (b"\x00" * 200, "cannot be in this version")],
    ids=["short", "wrong"],
)
async def test_invalid_response_ends_connection(response: bytes, reason: str) -> None:
    async def wrong(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 12))
        await frames.receive()
        await frames.send(response)
        await trio.sleep_forever()

    async with scripted(wrong) as port, open_connection(LOOPBACK, port) as connection:
        with pytest.raises(KafkaConnectionError, match=reason):
            await connection.ask(REQUEST)


async def test_large_requests_are_sent_completely() -> None:
    got: list[int] = []

    async def slow(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 12))
        await trio.sleep(0.05)
        for _ in range(2):
            frame = await frames.receive()
            got.append(len(frame))
            _, version, correlation_id = head_of(frame)
            await frames.send(encode_response(ApiKey.METADATA, version, correlation_id, RESPONSE))

    names = tuple(clients.MetadataRequestTopic(name="n" * 30_000) for _ in range(400))
    async with scripted(slow) as port, open_connection(LOOPBACK, port) as connection:
        connection.start(clients.MetadataRequest(topics=names), lambda _: None)
        assert await connection.ask(clients.MetadataRequest(topics=names)) == RESPONSE
        assert got[0] == got[1] > 400 * 30_000


async def test_requests_beyond_limit_are_refused_locally() -> None:
    async def unresponsive(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 12))
        await trio.sleep_forever()

    options = DialOptions(max_waiting=2)
    async with scripted(unresponsive) as port, open_connection(LOOPBACK, port, options) as connection:
        for _ in range(2):
            connection.start(REQUEST, lambda _: None)
        with pytest.raises(KafkaConnectionError, match=r"2 requests .* wait"):
            connection.start(REQUEST, lambda _: None)


def test_api_of_response_is_refused() -> None:
    assert api_key_of(REQUEST) is ApiKey.METADATA
    with pytest.raises(KafkaWireError, match="MetadataResponse is not a Kafka request"):
        api_key_of(RESPONSE)


async def reply_in_parts(part_bytes: int, pause_s: float, total_s: float) -> Any:
    """Return the response, or the error, of a request whose reply arrives in parts, in simulated time."""
    ours, theirs = memory_stream_pair()
    connection = KafkaConnection(FrameStream(ours, FRAME_BYTES), "peer", DialOptions(request_timeout_ms=2_000))
    connection.versions = {ApiKey.METADATA: (12, 12)}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)

        async def answer() -> None:
            frames = FrameStream(theirs, FRAME_BYTES)
            _, version, correlation_id = head_of(await frames.receive())
            response = encode_response(ApiKey.METADATA, version, correlation_id, LONG)
            data = len(response).to_bytes(4, "big") + response
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(total_s):
                for at in range(0, len(data), part_bytes):
                    await theirs.send_all(data[at : at + part_bytes])
                    await trio.sleep(pause_s)

        nursery.start_soon(answer)
        try:
            return await connection.ask(REQUEST)
        except KafkaConnectionError as error:
            return str(error)
        finally:
            nursery.cancel_scope.cancel()


async def test_progressing_reply_outlasts_timeout(autojump_clock: trio.testing.MockClock) -> None:
    assert await reply_in_parts(part_bytes=10_000, pause_s=1.0, total_s=600) == LONG
    assert trio.current_time() > 40


async def test_dripping_reply_ends_with_timeout(autojump_clock: trio.testing.MockClock) -> None:
    assert "no answer within 2000 ms" in await reply_in_parts(part_bytes=1, pause_s=1.0, total_s=600)
    assert trio.current_time() < 5


async def test_stalled_reply_ends_with_timeout(autojump_clock: trio.testing.MockClock) -> None:
    assert "no answer within 2000 ms" in await reply_in_parts(part_bytes=10_000, pause_s=1.0, total_s=10.5)
    assert trio.current_time() < 14


LONG = clients.MetadataResponse(
    brokers=tuple(clients.MetadataResponseBroker(node_id=number, host="h" * 30_000, port=1) for number in range(16)),
    topics=(),
)


async def test_unexpected_error_of_reply_ends_other_requests(caplog: pytest.LogCaptureFixture) -> None:
    results: list[Any] = []

    def fail(_: Any) -> None:
        raise LookupError("unexpected")

    async def end(frames: FrameStream) -> None:
        await agree(frames, (ApiKey.METADATA, 0, 5))
        await frames.receive()

    async with scripted(end) as port:
        connection = await connect(LOOPBACK, port)
        connection.start(REQUEST, fail)
        connection.start(REQUEST, results.append)
        await connection.run()
    assert (results, tracebacks(caplog)) == ([None], 1)
