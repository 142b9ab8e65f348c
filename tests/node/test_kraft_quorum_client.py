"""A quorum client: it finds the leader from any server, and reads the log across leaders and snapshots.

The brokers of these tests serve a `MemoryTopic`, like the listener of a farm or a broker of Kafka.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
import trio
from msgspec import structs
from msgspec.structs import replace
from trio.testing import MockClock

from consensus.core.effects import Role
from consensus.protocols.kafka import (
    Caller,
    ListenerOptions,
    ListenerSecurity,
    QuorumView,
    QuorumViewService,
    ReplicaView,
    Service,
    open_listener,
)
from consensus.protocols.kafka.connections.service import ServedApi
from consensus.protocols.kafka.topic.consumer_service import ConsumerService
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.messages_clients import FetchResponsePartition, MetadataRequest, MetadataResponse
from consensus.protocols.kafka.wire.record_batches import encode_tail
from consensus.protocols.kafka.wire.records import Record
from consensus.protocols.kafka.wire.scram import ScramUsers
from consensus.protocols.kraft.operators.log_records import (
    LogRecord,
    LogStart,
    control_text,
    stored_fault,
    stored_records,
)
from consensus.protocols.kraft.operators.quorum_client import QuorumClient, QuorumClientError
from consensus.protocols.kraft.operators.quorum_directory import QuorumDirectoryError
from consensus.protocols.kraft.operators.settings import VoterSettings
from consensus.protocols.kraft.replica import open_voter
from consensus.protocols.kraft.replica.open_voter import VoterOptions
from consensus.protocols.kraft.wire.control_records import SNAPSHOT_HEADER, control_key, snapshot_header
from consensus.storage import StorageOptions
from consensus.storage.snapshots import snapshot_file
from tests.node.kraft_topic import EPOCH, MemoryTopic, written
from tests.node.memory_server import until
from tests.node.test_kraft_voter import LOOPBACK, Quorum, batch, formatted, opened

pytestmark = pytest.mark.usefixtures("small_segments")

CONSUMERS = VoterOptions(services=lambda topic: (ConsumerService(topic, describes_cluster=False),))


def bootstrap(settings: list[VoterSettings]) -> list[tuple[str, int]]:
    return [(LOOPBACK, each.listeners[0].port) for each in settings]


async def read(client: QuorumClient, first: int) -> list[LogRecord | LogStart]:
    """Return the committed records from offset `first`."""
    async with aclosing(client.records(first)) as items:
        return [item async for item in items]


def run_story(
    tmp_path: Path, story: Callable[[Quorum, list[VoterSettings], QuorumClient], Awaitable[None]], servers: int = 3
) -> None:
    """Run a story of servers and a client that has the addresses of all of them. A single server always leads."""

    async def run() -> None:
        # A snapshot replaces all covered records.
        made = formatted(tmp_path, servers, dynamic=True)
        settings = [replace(each, retention_bytes=1) for each in made]
        async with opened(settings, CONSUMERS) as quorum:
            await quorum.leader()
            await story(quorum, settings, QuorumClient(bootstrap(settings)))

    trio.run(run)


def test_leader_is_found_from_any_server(tmp_path: Path) -> None:
    """The first address may be down. Any other server names the leader, which describes the quorum."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        nowhere = (LOOPBACK, 1)
        while True:
            leader = await quorum.leader()
            follower = next(each for each in quorum.running if each != leader.key.id)
            found = await QuorumClient([nowhere, bootstrap(settings)[follower - 1]]).describe()
            # If the leader lost its role during the query, try again.
            if leader.server.role.role is Role.LEADER:
                break
        assert found.leader_id == leader.key.id
        assert {each.node_id for each in found.voters} == {1, 2, 3}
        assert found.observers == ()
        assert [where.port for where in found.listeners[follower]] == [settings[follower - 1].listeners[0].port]
        del client

    run_story(tmp_path, story)


def test_quorum_without_majority_has_leader_error(tmp_path: Path) -> None:
    """After the timeout, the error names each unreachable server."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del client
        leader = await quorum.leader()
        left = next(each for each in quorum.running if each != leader.key.id)
        for node_id in [each for each in quorum.running if each != left]:
            await quorum.end(node_id)
        # The remaining server may have been elected before the end of the others.
        await until(lambda: quorum.running[left].server.role.role is not Role.LEADER)
        with pytest.raises(QuorumClientError) as raised:
            await QuorumClient(bootstrap(settings), timeout_s=0.1).describe()
        ended = [f"{host}:{port}" for node_id, (host, port) in enumerate(bootstrap(settings), 1) if node_id != left]
        assert len(ended) == 2
        assert all(each in str(raised.value) for each in ended)

    run_story(tmp_path, story)


def test_log_is_read_from_any_offset_to_high_watermark(tmp_path: Path) -> None:
    """The client returns records with their offsets, and control records as text."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del settings
        leader = await quorum.leader()
        produced = await leader.topic.append(batch(b"one", b"two"), None)
        items = await read(client, 0)
        records = [item for item in items if isinstance(item, LogRecord)]
        assert [record.offset for record in records] == list(range(len(items)))
        texts = [control_text(record) for record in records if record.control_type is not None]
        assert texts[0] is not None
        assert texts[0].startswith(f"leader {leader.key.id}, granted by ")
        assert texts[1] == "level 1"
        assert [record.value for record in records[produced.base_offset :]] == [b"one", b"two"]
        assert await read(client, produced.base_offset + 1) == items[produced.base_offset + 1 :]
        assert await read(client, 1_000) == []

    run_story(tmp_path, story, servers=1)


def test_compacted_log_reports_its_start(tmp_path: Path) -> None:
    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del settings
        leader = await quorum.leader()
        await leader.topic.append(batch(b"before"), None)
        snapshot = await leader.server.take_snapshot()
        assert snapshot is not None
        await leader.topic.append(batch(b"after"), None)
        start = leader.server.describe().raft.log_start.index
        assert start > 0
        first, *others = await read(client, 0)
        assert first == LogStart(start)
        assert next(item.offset for item in others if isinstance(item, LogRecord)) == start

    run_story(tmp_path, story, servers=1)


def test_snapshot_header_has_timestamp_of_last_entry(tmp_path: Path) -> None:
    """Kafka's controllers show this timestamp as the time of their last applied record."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del client
        leader = await quorum.leader()
        await leader.topic.append(replace(batch(b"x"), records=(Record(123_456, None, b"x"),)), None)
        snapshot = await leader.server.take_snapshot()
        assert snapshot is not None
        [file] = settings[0].log_dir.rglob(snapshot_file(snapshot.last))
        assert encode_tail(control_key(SNAPSHOT_HEADER), snapshot_header(123_456)) in file.read_bytes()

    run_story(tmp_path, story, servers=1)


def test_log_follower_continues_with_next_leader(tmp_path: Path) -> None:
    """The records of the next leader follow without a gap."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del settings
        leader = await quorum.leader()
        await leader.topic.append(batch(b"first"), None)
        values: list[bytes | None] = []
        offsets: list[int] = []
        async with aclosing(client.records(0, follow=True)) as items:
            async for item in items:
                assert isinstance(item, LogRecord)
                offsets.append(item.offset)
                if item.control_type is not None:
                    continue
                values.append(item.value)
                if len(values) == 2:
                    break
                await quorum.end(leader.key.id)
                await (await quorum.leader()).topic.append(batch(b"second"), None)
        assert values == [b"first", b"second"]
        assert offsets == list(range(len(offsets)))

    run_story(tmp_path, story)


def test_stored_records_match_quorum_while_running_or_stopped(tmp_path: Path) -> None:
    """Reading from any offset does not change the directory."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        leader = await quorum.leader()
        await leader.topic.append(batch(b"one", b"two"), None)
        await leader.topic.append(batch(b"three"), None)
        given = await read(client, 0)
        directory = settings[leader.key.id - 1].log_dir
        for first in (0, 3, len(given) - 1):
            assert list(stored_records(directory, first)) == given[first:]
        assert list(stored_records(directory, 1_000)) == []
        await quorum.end(leader.key.id)
        before = contents(directory)
        assert list(stored_records(directory, 0))[: len(given)] == given
        assert stored_fault(directory) is None
        assert contents(directory) == before

    run_story(tmp_path, story, servers=1)


def test_compacted_directory_reports_log_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is deleted when a snapshot covers all of it.

    Until then the directory has more records than the quorum returns.
    """
    monkeypatch.setattr(open_voter, "StorageOptions", partial(StorageOptions, segment_bytes=64 * 1024))

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        leader = await quorum.leader()
        for _ in range(4):
            await leader.topic.append(batch(b"x" * 30_000), None)
        assert await leader.server.take_snapshot() is not None
        await leader.topic.append(batch(b"after"), None)
        directory = settings[leader.key.id - 1].log_dir
        start, *stored = stored_records(directory, 0)
        assert isinstance(start, LogStart)
        assert start.offset > 0
        assert stored[0].offset == start.offset
        _, *given = await read(client, 0)
        assert given == stored[-len(given) :]

    run_story(tmp_path, story, servers=1)


def test_damaged_directory_returns_valid_records_with_fault(tmp_path: Path) -> None:
    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        leader = await quorum.leader()
        directory = settings[leader.key.id - 1].log_dir
        await leader.topic.append(batch(b"intact"), None)
        await leader.topic.append(batch(b"spoilt"), None)
        given = await read(client, 0)
        await quorum.end(leader.key.id)
        (segment,) = directory.rglob("*.segment")
        segment.write_bytes(segment.read_bytes().replace(b"spoilt", b"SPOILT"))
        assert list(stored_records(directory, 0)) == given[:-1]
        assert "durable" in (stored_fault(directory) or "")

    run_story(tmp_path, story, servers=1)


def contents(directory: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        QuorumDirectoryError, match="is not a directory of this program: name the directory in the server's setting"
    ):
        list(stored_records(tmp_path, 0))
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").touch()
    with pytest.raises(QuorumDirectoryError, match=r"Kafka's own controller: read it with Kafka's kafka-dump-log\.sh"):
        list(stored_records(tmp_path, 0))


@asynccontextmanager
async def brokers(topic: MemoryTopic, view: QuorumView | None = None) -> AsyncIterator[QuorumClient]:
    """Yield a client with the address of a listener that serves a topic, as a farm does."""
    services: list[Service] = [ConsumerService(topic)]
    if view is not None:
        services.append(QuorumViewService(lambda: view, lambda: 0))
    with trio.fail_after(60):
        async with open_listener(services, ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            yield QuorumClient([(LOOPBACK, listener.port)], brokers=True, timeout_s=0.1)


async def test_broker_log_is_its_only_topic() -> None:
    topic = MemoryTopic()
    topic.write(b"one", b"two")
    topic.write(b"three")
    async with brokers(topic) as client:
        records = [item for item in await read(client, 1) if isinstance(item, LogRecord)]
        assert [(each.offset, each.epoch, each.value) for each in records] == [(1, EPOCH, b"two"), (2, EPOCH, b"three")]
        assert await read(client, 3) == []


async def test_broker_reader_follows_log() -> None:
    topic = MemoryTopic()
    topic.write(b"one")
    async with brokers(topic) as client, aclosing(client.records(0, follow=True)) as items:
        values = []
        async for item in items:
            assert isinstance(item, LogRecord)
            values.append(item.value)
            if len(values) == 2:
                break
            topic.write(b"two")
    assert values == [b"one", b"two"]


async def test_uncommitted_records_are_fetched_with_pauses(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's controller returns uncommitted records immediately, so the client pauses between fetches."""
    fetches: list[int] = []

    async def fetched(*_: object) -> FetchResponsePartition:
        await trio.lowlevel.checkpoint()
        fetches.append(len(fetches))
        return FetchResponsePartition(
            partition_index=0,
            error_code=ErrorCode.NONE,
            high_watermark=len(fetches) // 40,
            records=written(0, [b"one"]),
        )

    async def call(_: QuorumClient, _find: object, question: Callable[[object, object], Awaitable[object]]) -> object:
        return await question(None, None)

    monkeypatch.setattr(QuorumClient, "_fetched", fetched)
    monkeypatch.setattr(QuorumClient, "_call", call)
    async with aclosing(QuorumClient([(LOOPBACK, 1)], brokers=True).records(0, follow=True)) as items:
        record = await anext(items)
    assert isinstance(record, LogRecord)
    assert (record.value, len(fetches)) == (b"one", 40)
    assert trio.current_time() >= 39 * 0.2


async def test_broker_without_leader_is_named_after_timeout() -> None:
    topic = MemoryTopic()
    topic.leader_id = -1
    async with brokers(topic) as client:
        with pytest.raises(QuorumClientError, match="does not know a leader of farm: it does not serve the log yet"):
            await read(client, 0)


async def test_broker_with_many_topics_points_to_controllers() -> None:
    class Kafkas(ConsumerService):
        async def metadata(self, request: MetadataRequest, caller: Caller) -> MetadataResponse:
            answer = await super().metadata(request, caller)
            return structs.replace(answer, topics=answer.topics * 3)

    async with open_listener([Kafkas(MemoryTopic())], ListenerOptions()) as listener:
        client = QuorumClient([(LOOPBACK, listener.port)], brokers=True, timeout_s=0.1)
        with pytest.raises(
            QuorumClientError, match=r"serves 3 topics.*from its controllers, by --bootstrap-controller"
        ):
            await read(client, 0)


async def test_kafka_broker_with_one_topic_is_not_a_farm() -> None:
    class Kafkas(ConsumerService):
        def apis(self) -> Mapping[int, ServedApi]:
            create_topics = {19: ServedApi(2, 7, self.metadata)}
            return {**super().apis(), **create_topics}

    topic = MemoryTopic()
    topic.write(b"an order")
    async with open_listener([Kafkas(topic)], ListenerOptions()) as listener:
        topic.is_served_at(listener.port)
        client = QuorumClient([(LOOPBACK, listener.port)], brokers=True, timeout_s=0.1)
        with pytest.raises(QuorumClientError, match=r"serves 1 topic and no log of a farm: read a topic with.* kcat"):
            await read(client, 0)


async def test_broker_without_leader_address_describes_itself() -> None:
    topic, replicas = MemoryTopic(), (ReplicaView(1, 5), ReplicaView(3))
    topic.controller_id = 3
    view = QuorumView(1, 3, leader_is_listed=False, leader_epoch=7, high_watermark=4, voters=replicas, observers=())
    async with brokers(topic, view) as client:
        found = await client.describe()
        assert (found.leader_id, found.leader_epoch, found.high_watermark) == (3, 7, 4)
        assert [(each.node_id, each.log_end_offset) for each in found.voters] == [(1, 5), (3, -1)]


async def test_broker_refusing_voter_change_names_controllers() -> None:
    voters = (ReplicaView(1, 5),)
    view = QuorumView(1, 1, leader_is_listed=True, leader_epoch=7, high_watermark=4, voters=voters, observers=())
    async with brokers(MemoryTopic(), view) as client:
        with pytest.raises(
            QuorumClientError, match=r"does not change voters: name the controllers.*`garlicfarm leave`"
        ):
            await client.remove_voter("cluster", 1, UUID(int=0), 1_000)


async def test_login_requirement_is_reported_to_client() -> None:
    security = ListenerSecurity(None, ScramUsers({}))
    async with open_listener([ConsumerService(MemoryTopic())], ListenerOptions(security=security)) as listener:
        client = QuorumClient([(LOOPBACK, listener.port)], brokers=True, timeout_s=0.1)
        with pytest.raises(QuorumClientError, match=r"ended the connection.*it may require a login"):
            await client.describe()


async def test_controller_without_topics_names_option(tmp_path: Path) -> None:
    settings = formatted(tmp_path, 1, dynamic=True, initial=1)
    async with opened(settings) as quorum:
        await quorum.leader()
        client = QuorumClient(bootstrap(settings), brokers=True, timeout_s=0.1)
        with pytest.raises(QuorumClientError, match="if it is a controller, name it with --bootstrap-controller"):
            await read(client, 0)
