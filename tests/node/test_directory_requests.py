"""Valid and hostile requests to a node's directory, which returns structures: bytes, time and number are bounded."""

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from bridge.node.tasks import directory_requests
from bridge.node.tasks.directory_requests import (
    CLOSE_TIMEOUT_S,
    EXCHANGE_TIMEOUT_S,
    EXCHANGES_MAX,
    PEER_BURST,
    DirectoryRequest,
    DirectoryRequests,
)
from bridge.wire.i2p.structure_exchange import (
    REPLY_LIMIT_BYTES,
    REQUEST_BYTES,
    ReplyStatus,
    StructureReply,
    decode_reply,
    encode_request,
    reply_bytes_missing,
)

ADDRESS = b"a" * 32
PEER = b"p" * 32
MANY = 5 * EXCHANGES_MAX
STRUCTURE = StructureReply(ReplyStatus.STRUCTURE, b"structure" * 100)
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


def replied(address_hash: bytes) -> StructureReply:
    return STRUCTURE if address_hash == ADDRESS else StructureReply(ReplyStatus.UNKNOWN_ADDRESS)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_requests, "now_ms", lambda: round(trio.current_time() * 1000))


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as opened:
        yield opened
        opened.cancel_scope.cancel()


@pytest.fixture
def requests() -> DirectoryRequests:
    return DirectoryRequests(replied)


def begin(requests: DirectoryRequests, nursery: trio.Nursery, peer: bytes = PEER) -> Stream:
    own, remote = memory_stream_pair()
    nursery.start_soon(requests.serve, peer, remote)
    return own


async def reply_on(stream: Stream) -> StructureReply:
    received = b""
    while missing := reply_bytes_missing(received):
        assert len(received) + missing <= REPLY_LIMIT_BYTES
        part = await stream.receive_some(missing)
        assert part, "the reply ends early"
        received += part
    return decode_reply(received)


async def send_slowly(stream: Stream, parts: Sequence[bytes], pause_s: float) -> None:
    for part in parts:
        try:
            await stream.send_all(part)
        except trio.BrokenResourceError:
            await trio.sleep(0.1)
            return
        await trio.sleep(pause_s)
    raise AssertionError("the directory received everything")


def counted(requests: DirectoryRequests) -> dict[DirectoryRequest, int]:
    return {result: count for result, count in requests.counts.items() if count}


@pytest.mark.parametrize("part_bytes", [1, 7, REQUEST_BYTES])
async def test_request_gets_structure(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock, part_bytes: int
) -> None:
    stream = begin(requests, nursery)
    request = encode_request(ADDRESS)
    for start in range(0, len(request), part_bytes):
        await stream.send_all(request[start : start + part_bytes])
        await trio.sleep(0.01)
    assert await reply_on(stream) == STRUCTURE
    await stream.aclose()
    await trio.sleep(0.01)
    assert counted(requests) == {DirectoryRequest.STRUCTURE: 1}


async def test_directory_closes_stream_if_client_does_not(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    stream = begin(requests, nursery)
    await stream.send_all(encode_request(b"b" * 32))
    assert (await reply_on(stream)).status is ReplyStatus.UNKNOWN_ADDRESS
    await trio.sleep(CLOSE_TIMEOUT_S - 0.1)
    with pytest.raises(trio.TooSlowError), trio.fail_after(0):
        await stream.receive_some(1)
    await trio.sleep(0.2)
    assert await stream.receive_some(1) == b""
    assert counted(requests) == {DirectoryRequest.UNKNOWN_ADDRESS: 1}


@pytest.mark.parametrize("request_bytes", [b"\x02" + ADDRESS, b"GET / HTTP/1.1\r\nHost: example.i2p\r\n\r\n"])
async def test_malformed_request_ends_stream(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock, request_bytes: bytes
) -> None:
    stream = begin(requests, nursery)
    await stream.send_all(request_bytes)
    assert await stream.receive_some(1) == b""
    assert counted(requests) == {DirectoryRequest.MALFORMED: 1}


async def test_ten_megabytes_are_not_received(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    stream = begin(requests, nursery)
    await send_slowly(stream, [b"\xff" * 1024] * 10 * 1024, 0.001)
    assert counted(requests) == {DirectoryRequest.MALFORMED: 1}


async def test_slow_request_ends_after_timeout(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    stream = begin(requests, nursery)
    began_s = trio.current_time()
    await send_slowly(stream, [bytes([byte]) for byte in encode_request(ADDRESS)], 1)
    assert trio.current_time() - began_s <= EXCHANGE_TIMEOUT_S + 2
    assert counted(requests) == {DirectoryRequest.TIMEOUT: 1}


async def test_stream_closed_before_end_of_request_is_counted(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    for sent in (b"", b"\x01"):
        stream = begin(requests, nursery)
        await stream.send_all(sent)
        await stream.aclose()
        await trio.sleep(0.01)
    assert counted(requests) == {DirectoryRequest.BROKEN: 1, DirectoryRequest.MALFORMED: 1}


async def test_unfinished_streams_do_not_block_others(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    for number in range(MANY):
        begin(requests, nursery, number.to_bytes(32, "big"))
        if number % 100 == 0:
            await trio.sleep(0.001)
    await trio.sleep(0.001)
    assert len(nursery.child_tasks) == EXCHANGES_MAX
    stream = begin(requests, nursery)
    await stream.send_all(encode_request(ADDRESS))
    assert await reply_on(stream) == STRUCTURE
    await stream.aclose()
    await trio.sleep(EXCHANGE_TIMEOUT_S + 1)
    assert counted(requests) == {
        DirectoryRequest.STRUCTURE: 1,
        DirectoryRequest.DISPLACED: MANY + 1 - EXCHANGES_MAX,
        DirectoryRequest.TIMEOUT: EXCHANGES_MAX - 1,
    }


async def asked(requests: DirectoryRequests, nursery: trio.Nursery, peer: bytes) -> ReplyStatus:
    stream = begin(requests, nursery, peer)
    await stream.send_all(encode_request(ADDRESS))
    reply = await reply_on(stream)
    await stream.aclose()
    return reply.status


async def test_client_above_its_rate_is_refused(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    statuses = [await asked(requests, nursery, PEER) for _ in range(round(PEER_BURST) + 5)]
    assert statuses == [ReplyStatus.STRUCTURE] * round(PEER_BURST) + [ReplyStatus.TOO_MANY_REQUESTS] * 5
    assert await asked(requests, nursery, b"q" * 32) is ReplyStatus.STRUCTURE
    await trio.sleep(10)
    assert await asked(requests, nursery, PEER) is ReplyStatus.STRUCTURE


async def test_requests_above_common_rate_of_clients_are_refused(
    requests: DirectoryRequests, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    statuses = [await asked(requests, nursery, number.to_bytes(32, "big")) for number in range(100)]
    assert statuses.count(ReplyStatus.STRUCTURE) == 40
    assert set(statuses[40:]) == {ReplyStatus.TOO_MANY_REQUESTS}
