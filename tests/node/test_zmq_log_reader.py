"""Reading the log by RequestEntries: the items for the consumer, and the requests and confirmations to the server."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from consensus.core.entry_data import configuration_entry, encode_no_op
from consensus.core.model import Configuration, Entry, EntryKind, NoOp, Server
from consensus.protocols.zmq_raft.client.client import NoAnswerError, ZmqRaftClient, open_client
from consensus.protocols.zmq_raft.client.links import ZmqClientOptions
from consensus.protocols.zmq_raft.client.log_reader import (
    CommittedEntry,
    LogEntryKind,
    LogItem,
    SnapshotPart,
    log_entry,
)
from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.wire.messages import (
    ConfigRequest,
    EntriesBatch,
    EntriesRedirect,
    EntriesRequest,
    Reply,
    Request,
    SnapshotPiece,
)
from tests.node.zmq_network import IDENT, EntryServer, MemoryNetwork, Respond, Script, ScriptedPeer, state, url_of


@asynccontextmanager
async def client_of(network: MemoryNetwork, options: ZmqClientOptions | None = None) -> AsyncIterator[ZmqRaftClient]:
    urls = [url_of(number) for number in (1, 2, 3)]
    async with open_client(network, urls, IDENT, options or ZmqClientOptions()) as client:
        yield client


def cluster(network: MemoryNetwork, server: EntryServer) -> list[ScriptedPeer]:
    """Return three peers with the same log; the first leads."""
    peers = network.cluster(leader=1)
    for peer in peers:
        peer.script = serving(peer, server)
    return peers


def serving(peer: ScriptedPeer, server: EntryServer) -> Script:
    def script(request: Request, respond: Respond) -> bool:
        if isinstance(request, EntriesRequest) and peer.leader != peer.peer_id:
            respond(EntriesRedirect(request.request_id, peer.leader))
            return True
        return server(request, respond)

    return script


def indexes(items: list[LogItem]) -> list[int]:
    return [item.index for item in items if isinstance(item, CommittedEntry)]


async def test_entries_read_to_end_of_log(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(25)
    cluster(network, server)
    async with client_of(network) as client:
        items = [item async for item in client.entries()]
        assert items == [log_entry(number, state(number)) for number in range(1, 26)]
        assert items[4] == CommittedEntry(5, 1, LogEntryKind.STATE, (5).to_bytes(12, "big"), b"entry 5")
        assert indexes([item async for item in client.entries(20, 3)]) == [21, 22, 23]
        assert [item async for item in client.entries(25)] == []
        assert [item async for item in client.entries(99)] == []
    assert {request.count for request in server.stopped} <= {0}
    assert server.sending == {}


async def test_message_confirmed_after_consumption(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(100)
    cluster(network, server)
    async with client_of(network) as client, aclosing(client.entries()) as entries:
        for count in range(1, 31):
            await anext(entries)
            await wait_all_tasks_blocked()
            confirmed = (count - 1) // 2
            assert [request.previous_index for request in server.confirmed] == [2 * n for n in range(1, confirmed + 1)]
            (sending,) = server.sending.values()
            assert sending.previous == 2 * (confirmed + 5), "five messages ahead of the confirmed one"
    assert len({request.request_id for request in server.requests + server.confirmed}) == 1


async def test_stream_stopped_after_consumer_leaves(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(100)
    cluster(network, server)
    async with client_of(network) as client:
        async with aclosing(client.entries()) as entries:
            async for entry in entries:
                if isinstance(entry, CommittedEntry) and entry.index == 7:
                    break
        (stop,) = server.stopped
        assert (stop.count, stop.request_id) == (0, server.requests[0].request_id)
        assert server.sending == {}


async def test_stream_stopped_if_server_exceeds_count(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(100, per_message=7)
    peers = cluster(network, server)

    def ignore_count(request: Request, respond: Respond) -> bool:
        if isinstance(request, EntriesRequest) and request.count:
            request = EntriesRequest(
                request_id=request.request_id, ident=request.ident, previous_index=request.previous_index
            )
        return server(request, respond)

    peers[0].script = ignore_count
    async with client_of(network) as client:
        assert indexes([item async for item in client.entries(0, 10)]) == list(range(1, 11))
    assert len(server.stopped) == 1


async def test_configuration_and_checkpoint_returned_as_sent(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(1)
    servers = (Server("a", "tcp://10.0.0.1:1"),)
    server.entries.append(configuration_entry(3, Configuration(servers), b"r" * 12))
    server.entries.append(Entry(4, EntryKind.NO_OP, encode_no_op(NoOp())))
    cluster(network, server)
    async with client_of(network) as client:
        _, config, checkpoint = [item async for item in client.entries()]
    assert config == CommittedEntry(2, 3, LogEntryKind.CONFIG, b"r" * 12, b"\x91\x92\xa1a\xb0tcp://10.0.0.1:1")
    assert checkpoint == CommittedEntry(3, 4, LogEntryKind.CHECKPOINT, bytes(12), b"\xc0")


async def test_snapshot_of_compacted_log_read_first(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(12, first=9, snapshot=b"0123456789")
    cluster(network, server)
    async with client_of(network) as client:
        items = [item async for item in client.entries(2, 3)]
    parts = [item for item in items if isinstance(item, SnapshotPart)]
    assert [(part.offset, part.data, part.is_last) for part in parts] == [
        (0, b"0123", False),
        (4, b"4567", False),
        (8, b"89", True),
    ]
    assert {(part.last_index, part.last_term, part.total_bytes) for part in parts} == {(8, 1, 10)}
    assert indexes(items) == [9, 10, 11]
    confirmations = [(request.previous_index, request.snapshot_offset) for request in server.confirmed]
    assert confirmations[:3] == [(2, 4), (2, 8), (8, None)]


async def test_interrupted_snapshot_restarts(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(12, first=9, snapshot=b"0123456789")
    one, two, three = cluster(network, server)
    server.ahead = 2
    async with client_of(network) as client, aclosing(client.entries()) as items:
        first = await anext(items)
        one.is_unresponsive = True
        two.leader = three.leader = "2"
        rest = [item async for item in items]
    parts = [(part.offset, part.data) for part in (first, *rest) if isinstance(part, SnapshotPart)]
    assert parts == [(0, b"0123"), (4, b"4567"), (0, b"0123"), (4, b"4567"), (8, b"89")]
    assert indexes(rest) == [9, 10, 11, 12]


async def test_new_leader_continues_after_last_entry(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(40)
    one, two, three = peers = cluster(network, server)
    async with client_of(network) as client, aclosing(client.entries()) as entries:
        received = [await anext(entries) for _ in range(5)]
        for peer in peers:
            peer.leader = "3"
        one.is_unresponsive = True
        received += [entry async for entry in entries]
    assert indexes(received) == list(range(1, 41))
    (first, *_) = [request for request in three.of(EntriesRequest) if isinstance(request, EntriesRequest)]
    assert first.previous_index == 14
    assert two.of(EntriesRequest) == []


async def test_redirect_followed_from_last_index(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(40)
    one, _, three = peers = cluster(network, server)
    async with client_of(network) as client, aclosing(client.entries()) as entries:
        received = [await anext(entries) for _ in range(5)]
        for peer in peers:
            peer.leader = "3"
        received += [entry async for entry in entries]
    assert indexes(received) == list(range(1, 41))
    assert trio.current_time() == 0.0
    assert len(three.of(EntriesRequest)) > 1
    assert len(one.of(ConfigRequest)) == 1


async def test_slow_consumer_requests_again_after_expired_stream(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(40)
    cluster(network, server)
    async with client_of(network) as client, aclosing(client.entries()) as entries:
        received = [await anext(entries) for _ in range(3)]
        await trio.sleep(6.0)
        server.sending.clear()
        received += [entry async for entry in entries]
    assert indexes(received) == list(range(1, 41))
    assert [request.previous_index for request in server.requests] == [0, 12]


async def test_entries_out_of_order_dropped_and_requested_again(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(10)
    one, *_ = cluster(network, server)
    false_replies: list[Callable[[bytes], Reply]] = [
        lambda each: EntriesBatch(request_id=each, is_last=False, last_index=5, entries=(state(5),)),
        lambda each: EntriesBatch(request_id=each, is_last=False, last_index=0),
        lambda each: SnapshotPiece(request_id=each, last_index=9, last_term=1, offset=4, total_bytes=8, data=b"late"),
        lambda each: SnapshotPiece(request_id=each, last_index=0, last_term=1, offset=0, total_bytes=4, data=b"none"),
    ]

    def send_false_reply(request: Request, respond: Respond) -> bool:
        if not isinstance(request, EntriesRequest) or not false_replies:
            return server(request, respond)
        if request.count != 0:
            respond(false_replies.pop(0)(request.request_id))
        return True

    one.script = send_false_reply
    async with client_of(network) as client:
        assert indexes([entry async for entry in client.entries()]) == list(range(1, 11))
        assert client.counters[ClientEvent.ENTRIES_OUT_OF_ORDER] == 4
    assert len(one.of(ConfigRequest)) == 1


@pytest.mark.parametrize("options", [ZmqClientOptions(max_ahead=4), ZmqClientOptions(max_ahead_bytes=150)])
async def test_flooding_server_disconnected(autojump_clock: MockClock, options: ZmqClientOptions) -> None:
    network, server = MemoryNetwork(), EntryServer(100)
    cluster(network, server)
    server.ahead = 1_000
    async with client_of(network, options) as client, aclosing(client.entries()) as entries:
        received = [await anext(entries)]
        await wait_all_tasks_blocked()
        received += [entry async for entry in entries]
    assert indexes(received) == list(range(1, 101))
    assert len(server.requests) > 1


async def test_reader_without_progress_raises_error_with_replies(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(10)
    for peer in cluster(network, server):
        peer.script = lambda request, _respond: isinstance(request, EntriesRequest)
    async with client_of(network) as client:
        with pytest.raises(NoAnswerError, match=r"no entries came for 10 s: tcp://127.0.0.1:8001: (says|no answer)"):
            await anext(client.entries(timeout_s=10.0))
    assert trio.current_time() == pytest.approx(10.0)


async def test_updates_continue_during_read(autojump_clock: MockClock) -> None:
    network, server = MemoryNetwork(), EntryServer(30)
    cluster(network, server)
    async with client_of(network) as client, aclosing(client.entries()) as entries:
        async for _ in entries:
            await client.update(b"x")


async def test_invalid_index_or_count_rejected() -> None:
    async with client_of(MemoryNetwork()) as client:
        for previous, count in ((-1, None), (0, 0)):
            with pytest.raises(ValueError, match="a read needs an index of 0 or more"):
                client.entries(previous, count)
