"""A subscription: each committed entry once, in order, whatever the broadcast loses."""

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
    """Three peers with one log. The leader has a PUB socket at its port plus 100, and broadcasts when told."""

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

    def commit(self, count: int, *, told: int | None = None) -> None:
        """Append entries, of which the broadcast has the last `told`, or all."""
        self.server.append(count)
        self.tell(count if told is None else told)

    def tell(self, count: int, ident: bytes = IDENT) -> None:
        """A broadcast with the last `count` entries."""
        leader = self.peers[0].leader
        url = self.urls[leader or "1"]
        entries = tuple(self.server.entries[len(self.server.entries) - count :])
        if url is not None:
            self.network.broadcast(
                url, StateBroadcast(ident=ident, term=1, last_applied=self.server.last, entries=entries)
            )


class Consumer:
    """Takes what a subscription gives."""

    def __init__(self) -> None:
        self.items: list[LogItem] = []

    @property
    def indexes(self) -> list[int]:
        """Of the entries."""
        return [item.index for item in self.items if isinstance(item, CommittedEntry)]

    async def run(self, client: ZmqRaftClient, previous: int = 0) -> None:
        """Take everything."""
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
    """A consumer that has read what there was."""
    consumer = Consumer()
    async with client_of(stage.network, options) as client, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, client, previous)
        await wait_all_tasks_blocked()
        yield consumer
        nursery.cancel_scope.cancel()


def requests(stage: Broadcasting) -> list[int]:
    return [request.previous_index for request in stage.server.requests]


async def test_what_is_committed_already_is_fetched_and_the_rest_is_broadcast(autojump_clock: MockClock) -> None:
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
    del autojump_clock


async def test_a_gap_is_closed_by_entries_that_are_fetched(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.server.append(4)
        stage.commit(2)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 12))
    assert requests(stage) == [0, 5]
    del autojump_clock


async def test_a_broadcast_without_entries_tells_of_a_gap(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.commit(3, told=0)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 9))
    del autojump_clock


async def test_entries_that_are_known_do_not_come_twice(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        for told in (5, 1, 0):
            stage.tell(told)
        stage.commit(1, told=4)
        stage.tell(6)
        await wait_all_tasks_blocked()
        assert consumer.indexes == [1, 2, 3, 4, 5, 6]
    assert requests(stage) == [0]
    del autojump_clock


async def test_broadcasts_that_come_while_a_gap_is_closed_are_kept(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    stage.server.ahead = 0  # it answers nothing for now
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
    del autojump_clock


async def test_broadcasts_without_room_are_fetched_later(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    stage.server.ahead = 0
    async with subscribed(stage, options=ZmqClientOptions(max_ahead=3)) as consumer:
        for _ in range(30):
            stage.commit(1)
        await wait_all_tasks_blocked()
        stage.server.ahead = 5
        for _ in range(4):
            await trio.sleep(0.4)
            stage.tell(0)
        await wait_all_tasks_blocked()
        assert consumer.indexes == list(range(1, 36))
    del autojump_clock


async def test_heartbeats_take_one_place_while_the_consumer_is_slow(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(1))
    async with client_of(stage.network, ZmqClientOptions(max_ahead=2)) as client:
        async with aclosing(client.subscribe(0)) as items:
            first = await anext(items)
            for _ in range(20):
                await trio.sleep(0.5)
                stage.tell(0)
            stage.commit(1)
            await wait_all_tasks_blocked()
            second = await anext(items)
            assert [item.index for item in (first, second) if isinstance(item, CommittedEntry)] == [1, 2]
        assert ClientEvent.BROADCAST_WITHOUT_ROOM not in client.counters
    del autojump_clock


async def test_a_broadcast_that_falls_silent_is_sought_anew(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(5))
    async with subscribed(stage) as consumer:
        stage.tell(0)
        await trio.sleep(0.6)
        stage.tell(0)
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
    del autojump_clock


async def test_a_leader_that_dies_costs_no_entry_and_gives_none_twice(autojump_clock: MockClock) -> None:
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
    del autojump_clock


async def test_a_leader_that_updates_were_sent_to_is_listened_to(autojump_clock: MockClock) -> None:
    """A leader that was deposed and does not know it broadcasts on."""
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
    del autojump_clock


async def test_without_any_broadcast_entries_are_fetched_once_a_second(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(1))
    stage.network.refused = {"tcp://127.0.0.1:8101"}
    async with subscribed(stage) as consumer:
        for _ in range(5):
            stage.server.append()
            await trio.sleep(1.0)
        await trio.sleep(0.1)
        assert consumer.indexes == list(range(1, 7))
        assert len(stage.server.requests) <= 7
    del autojump_clock


async def test_a_snapshot_in_between_is_given_in_its_place(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(3))
    async with subscribed(stage) as consumer:
        server = stage.server
        server.append(7)
        del server.entries[:7]
        server.first, server.snapshot = 8, b"up to seven"
        stage.tell(1)
        await wait_all_tasks_blocked()
        parts = [item for item in consumer.items if isinstance(item, SnapshotPart)]
        assert b"".join(part.data for part in parts) == b"up to seven"
        assert consumer.indexes == [1, 2, 3, 8, 9, 10]
        assert isinstance(consumer.items[3], SnapshotPart)
    del autojump_clock


async def test_broadcasts_that_are_none_are_dropped_and_counted(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(2))
    async with client_of(stage.network) as client, trio.open_nursery() as nursery:
        consumer = Consumer()
        nursery.start_soon(consumer.run, client)
        await wait_all_tasks_blocked()
        stage.tell(0, IDENT + b" of another")
        for frames in ([IDENT], [IDENT, b"\x01", b""], [IDENT, b"\x01", b"\x03", b"no entry"]):
            stage.network.broadcast_frames("tcp://127.0.0.1:8101", frames)
        stage.commit(1)
        await wait_all_tasks_blocked()
        assert consumer.indexes == [1, 2, 3]
        assert client.counters == {ClientEvent.BROADCAST_OF_OTHER_CLUSTER: 1, ClientEvent.MALFORMED: 3}
        nursery.cancel_scope.cancel()
    del autojump_clock


async def test_a_leader_that_lies_about_its_log_costs_no_more_than_the_asking(autojump_clock: MockClock) -> None:
    stage = Broadcasting(EntryServer(2))
    async with subscribed(stage) as consumer:
        for _ in range(5):
            stage.network.broadcast("tcp://127.0.0.1:8101", StateBroadcast(ident=IDENT, term=1, last_applied=1_000_000))
            await wait_all_tasks_blocked()
        assert consumer.indexes == [1, 2]
        assert requests(stage) == [0, *[2] * 5]
    del autojump_clock


@pytest.mark.parametrize("url", [None, "ipc:///tmp/x", "tcp://127.0.0.1:8101/x y"])
async def test_a_leader_without_a_broadcast_is_named_when_patience_ends(
    autojump_clock: MockClock, url: str | None
) -> None:
    stage = Broadcasting(EntryServer(2))
    stage.urls["1"] = url
    async with client_of(stage.network) as client:
        with pytest.raises(NoAnswerError, match=r"no leader returned the URL of its broadcast within 3 s: .*8001: "):
            await anext(client.subscribe(0, patience_s=3.0))
    assert stage.network.subscribed == []
    assert len(stage.peers[0].of(UrlRequest)) < 12
    del autojump_clock


async def test_a_subscription_that_is_left_ends_its_connection(autojump_clock: MockClock) -> None:
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
    del autojump_clock
