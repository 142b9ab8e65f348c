"""A subscription delivers each committed entry exactly once and in order, even after broadcasts were lost."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from consensus.protocols.zmq_raft.client.client import NoAnswerError, ZmqRaftClient, open_client
from consensus.protocols.zmq_raft.client.links import ZmqClientOptions
from consensus.protocols.zmq_raft.client.log_reader import CommittedEntry, LogItem, SnapshotPart
from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.wire.messages import EntriesRequest, Request, StateBroadcast, UrlReply, UrlRequest
from tests.node.zmq_network import IDENT, EntryServer, MemoryNetwork, Respond, ScriptedPeer, url_of

PUB = "tcp://127.0.0.1:{}"


class Broadcasting:
    """Three peers with one log.

    Each peer returns the URL of a PUB socket, at its own port plus 100. `broadcast` sends from the leader's socket.
    """

    def __init__(self, server: EntryServer) -> None:
        self.network = MemoryNetwork()
        self.server = server
        self.peers = self.network.cluster(leader=1)
        self.urls: dict[str, str | None] = {}
        for number, peer in enumerate(self.peers, start=1):
            self.urls[peer.peer_id] = f"tcp://127.0.0.1:{8100 + number}"
            self._serve(peer)

    def _serve(self, peer: ScriptedPeer) -> None:
        def script(request: Request, respond: Respond) -> bool:
            if isinstance(request, UrlRequest):
                respond(UrlReply(request.request_id, self.urls[peer.peer_id]))
                return True
            return self.server(request, respond)

        peer.script = script

    def commit(self, count: int, *, included: int | None = None) -> None:
        """Append `count` entries, and broadcast the last `included` entries of the log (default: the new ones)."""
        self.server.append(count)
        self.broadcast(count if included is None else included)

    def broadcast(self, count: int, ident: bytes = IDENT) -> None:
        """Send a broadcast with the last `count` entries."""
        leader = self.peers[0].leader
        url = self.urls[leader or "1"]
        entries = tuple(self.server.entries[len(self.server.entries) - count :])
        if url is not None:
            self.network.broadcast(
                url, StateBroadcast(ident=ident, term=1, last_applied=self.server.last, entries=entries)
            )


class Consumer:
    """Stores the items of a subscription."""

    def __init__(self) -> None:
        self.items: list[LogItem] = []

    @property
    def indexes(self) -> list[int]:
        return [item.index for item in self.items if isinstance(item, CommittedEntry)]

    async def run(self, client: ZmqRaftClient, previous: int = 0) -> None:
        async with aclosing(client.subscribe(previous)) as items:
            async for item in items:
                self.items.append(item)


@asynccontextmanager
async def client_of(network: MemoryNetwork, options: ZmqClientOptions | None = None) -> AsyncIterator[ZmqRaftClient]:
    urls = [url_of(number) for number in (1, 2, 3)]
    async with open_client(network, urls, IDENT, options or ZmqClientOptions()) as client:
        yield client


@asynccontextmanager
async def subscribed(
    stage: Broadcasting, previous: int = 0, options: ZmqClientOptions | None = None
) -> AsyncIterator[Consumer]:
    """Yield a consumer that has read all entries returned so far."""
    consumer = Consumer()
    async with client_of(stage.network, options) as client, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, client, previous)
        await wait_all_tasks_blocked()
        yield consumer
        nursery.cancel_scope.cancel()


def requests(stage: Broadcasting) -> list[int]:
    return [request.previous_index for request in stage.server.requests]


async def test_later_entries_received_without_request(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage, 2) as consumer:
        assert consumer.indexes == [3, 4, 5]
        for _ in range(3):
            stage.commit(2)
            await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(3, 12))
    assert requests(stage) == [2]
    assert stage.network.subscribed == [("tcp://127.0.0.1:8101", IDENT)]
    assert stage.network.connected == []


async def test_gap_closed_by_fetched_entries(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.server.append(4)
        stage.commit(2)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 12))
    assert requests(stage) == [0, 5]


async def test_heartbeat_reveals_gap(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.commit(3, included=0)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 9))


async def test_known_entries_not_delivered_twice(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        for included in (5, 1, 0):
            stage.broadcast(included)
        stage.commit(1, included=4)
        stage.broadcast(6)
        await wait_all_tasks_blocked()
        assert consumer.indexes == [1, 2, 3, 4, 5, 6]
    assert requests(stage) == [0]


async def test_broadcasts_are_kept_while_missing_entries_are_fetched(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    stage.server.ahead = 0  # no replies for now
    async with subscribed(stage) as consumer:
        for _ in range(4):
            stage.commit(1)
        await wait_all_tasks_blocked()
        assert consumer.indexes == []
        stage.server.ahead = 5
        await trio.sleep(0.9)
        stage.commit(1)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 11))


async def test_entries_of_dropped_broadcasts_fetched_later(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    stage.server.ahead = 0
    async with subscribed(stage, options=ZmqClientOptions(max_ahead=3)) as consumer:
        for _ in range(30):
            stage.commit(1)
        await wait_all_tasks_blocked()
        stage.server.ahead = 5
        for _ in range(4):
            await trio.sleep(0.4)
            stage.broadcast(0)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 36))


async def test_heartbeats_for_slow_consumer_use_one_queue_slot(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(1))
    async with client_of(stage.network, ZmqClientOptions(max_ahead=2)) as client:
        async with aclosing(client.subscribe(0)) as items:
            first = await anext(items)
            for _ in range(20):
                await trio.sleep(0.5)
                stage.broadcast(0)
            stage.commit(1)
            await wait_all_tasks_blocked()
            second = await anext(items)
            assert [item.index for item in (first, second) if isinstance(item, CommittedEntry)] == [1, 2]
        assert ClientEvent.BROADCAST_WITHOUT_ROOM not in client.counters


async def test_missing_broadcasts_start_search_for_leader(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.broadcast(0)
        await trio.sleep(0.6)
        stage.broadcast(0)
        await trio.sleep(0.6)
        assert len(stage.network.subscribed) == 1
        for peer in stage.peers:
            peer.leader = "2"
        stage.server.append(2)
        await trio.sleep(0.5)
        assert [url for url, _ in stage.network.subscribed] == ["tcp://127.0.0.1:8101", "tcp://127.0.0.1:8102"]
        assert consumer.indexes == list(range(1, 8))
        stage.commit(1)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 9))
        assert sorted(stage.network.connected) == [url_of(2), "tcp://127.0.0.1:8102"]


async def test_entries_delivered_once_after_leader_fails(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.commit(1)
        stage.peers[0].is_unresponsive = True
        stage.server.append(3)
        await trio.sleep(1.2)
        for peer in stage.peers[1:]:
            peer.leader = "3"
        await trio.sleep(2.0)
        assert consumer.indexes == list(range(1, 10))
        assert stage.network.subscribed[-1][0] == "tcp://127.0.0.1:8103"


async def test_subscription_moves_to_leader_that_update_found(autojump_clock: MockClock) -> None:
    """Given a deposed leader that still broadcasts, when an update finds the new one, then the subscription moves."""
    stage = Broadcasting(EntryServer(5))
    consumer = Consumer()
    async with client_of(stage.network) as client, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, client)
        await wait_all_tasks_blocked()
        stage.peers[0].leader = stage.peers[1].leader = "2"
        await client.update(b"x")
        stage.server.append(1)
        stage.network.broadcast("tcp://127.0.0.1:8101", StateBroadcast(ident=IDENT, term=1, last_applied=5))
        await wait_all_tasks_blocked()
        assert stage.network.subscribed[-1][0] == "tcp://127.0.0.1:8102"
        assert consumer.indexes == [1, 2, 3, 4, 5, 6]
        nursery.cancel_scope.cancel()


async def test_entries_fetched_every_second_without_broadcast(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(1))
    stage.network.refused = {"tcp://127.0.0.1:8101"}
    async with subscribed(stage) as consumer:
        for _ in range(5):
            stage.server.append()
            await trio.sleep(1.0)
        await trio.sleep(0.1)
        assert consumer.indexes == list(range(1, 7))
        assert len(stage.server.requests) <= 7


async def test_snapshot_delivered_in_order(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(3))
    async with subscribed(stage) as consumer:
        server = stage.server
        server.append(7)
        del server.entries[:7]
        server.first, server.snapshot = 8, b"up to seven"
        stage.broadcast(1)
        await wait_all_tasks_blocked()
        parts = [item for item in consumer.items if isinstance(item, SnapshotPart)]
        assert b"".join(part.data for part in parts) == b"up to seven"
        assert consumer.indexes == [1, 2, 3, 8, 9, 10]
        assert isinstance(consumer.items[3], SnapshotPart)


async def test_invalid_broadcasts_dropped_and_counted(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(2))
    async with client_of(stage.network) as client, trio.open_nursery() as nursery:
        consumer = Consumer()
        nursery.start_soon(consumer.run, client)
        await wait_all_tasks_blocked()
        stage.broadcast(0, IDENT + b" of another")
        for frames in ([IDENT], [IDENT, b"\x01", b""], [IDENT, b"\x01", b"\x03", b"no entry"]):
            stage.network.broadcast_frames("tcp://127.0.0.1:8101", frames)
        stage.commit(1)
        await wait_all_tasks_blocked()
        assert consumer.indexes == [1, 2, 3]
        assert client.counters == {ClientEvent.BROADCAST_OF_OTHER_CLUSTER: 1, ClientEvent.MALFORMED: 3}
        nursery.cancel_scope.cancel()


async def test_false_index_in_broadcast_causes_only_useless_requests(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(2))
    async with subscribed(stage) as consumer:
        for _ in range(5):
            stage.network.broadcast("tcp://127.0.0.1:8101", StateBroadcast(ident=IDENT, term=1, last_applied=1_000_000))
            await wait_all_tasks_blocked()
        assert consumer.indexes == [1, 2]
        assert requests(stage) == [0, *[2] * 5]


@pytest.mark.parametrize("url", [None, "ipc:///tmp/x", "tcp://127.0.0.1:8101/x y"])
async def test_error_after_timeout_names_leader_without_broadcast(autojump_clock: MockClock, url: str | None) -> None:
    stage = Broadcasting(EntryServer(2))
    stage.urls["1"] = url
    async with client_of(stage.network) as client:
        with pytest.raises(NoAnswerError, match=r"no leader returned the URL of its broadcast within 3 s: .*8001: "):
            await anext(client.subscribe(0, timeout_s=3.0))
    assert stage.network.subscribed == []
    assert len(stage.peers[0].of(UrlRequest)) < 12


async def test_closed_subscription_ends_its_connection(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(50))
    async with client_of(stage.network) as client:
        async with aclosing(client.subscribe(0)) as items:
            await anext(items)
            assert "tcp://127.0.0.1:8101" in stage.network.connected
        await wait_all_tasks_blocked()
        assert stage.network.connected == [url_of(1)]
        assert len(stage.server.stopped) == 1
        assert await client.update(b"still here") == 1
        with pytest.raises(ValueError, match="begins after an index of 0 or more"):
            client.subscribe(-1)
    assert isinstance(stage.server.requests[0], EntriesRequest)
