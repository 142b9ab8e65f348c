"""Consumers read a topic of one partition: positions, waiting fetches, refusals, and the cache of batches."""

import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing
from msgspec import structs

from consensus.protocols.kafka import BatchCache, ConsumerService, KafkaWireError, ListenerOptions, open_listener
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ErrorCode
from tests.node.kraft_topic import EPOCH, TOPIC_ID, MemoryTopic, caller, values_in, written


def fetch_of(offset: int, **given: int) -> clients.FetchRequest:
    fields = {"epoch": -1, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1_000_000, "session_id": 0} | given
    partition = clients.FetchRequestPartition(
        partition=fields.get("partition", 0),
        fetch_offset=offset,
        current_leader_epoch=fields["epoch"],
        partition_max_bytes=fields["max_bytes"],
    )
    return clients.FetchRequest(
        max_wait_ms=fields["max_wait_ms"],
        min_bytes=fields["min_bytes"],
        session_id=fields["session_id"],
        topics=(clients.FetchRequestTopic(topic="farm", partitions=(partition,)),),
    )


async def fetched(
    topic: MemoryTopic, request: clients.FetchRequest, version: int = 12
) -> clients.FetchResponsePartition:
    response = await ConsumerService(topic).fetch(request, caller(version))
    return response.responses[0].partitions[0]


def values_of(part: clients.FetchResponsePartition) -> list[bytes]:
    return values_in(part.records or b"")


async def offset_of(topic: MemoryTopic, timestamp: int) -> tuple[int, int]:
    partition = clients.ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
    request = clients.ListOffsetsRequest(
        replica_id=-1, topics=(clients.ListOffsetsRequestTopic(name="farm", partitions=(partition,)),)
    )
    [answered_topic] = (await ConsumerService(topic).list_offsets(request, caller(10))).topics
    assert answered_topic.partitions[0].error_code == ErrorCode.NONE
    return answered_topic.partitions[0].offset, answered_topic.partitions[0].timestamp


async def test_fetch_returns_whole_batches_from_offset() -> None:
    topic = MemoryTopic()
    topic.write(b"a", b"b")
    topic.write(b"c")
    part = await fetched(topic, fetch_of(1))
    assert values_of(part) == [b"a", b"b", b"c"]
    assert part.high_watermark == 3


async def test_fetch_returns_batch_larger_than_limit() -> None:
    topic = MemoryTopic()
    topic.write(b"a" * 500)
    topic.write(b"b")
    assert values_of(await fetched(topic, fetch_of(0, max_bytes=10))) == [b"a" * 500]


async def test_fetch_at_watermark_waits_for_record(autojump_clock: trio.testing.MockClock) -> None:
    topic = MemoryTopic()
    found = []
    async with trio.open_nursery() as nursery:

        async def fetch_once() -> None:
            found.append((values_of(await fetched(topic, fetch_of(0, max_wait_ms=10_000))), trio.current_time()))

        began = trio.current_time()
        nursery.start_soon(fetch_once)
        await trio.sleep(3)
        topic.write(b"late")
    [(values, at)] = found
    assert values == [b"late"]
    assert at - began == pytest.approx(3)


async def test_fetch_without_record_is_empty_after_max_wait(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    part = await fetched(MemoryTopic(), fetch_of(0, max_wait_ms=700))
    assert (part.error_code, part.records) == (ErrorCode.NONE, b"")
    assert trio.current_time() - began == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("epoch", "error", "end"),
    [
        (-1, ErrorCode.NONE, 2**63 - 1),
        (EPOCH, ErrorCode.NONE, 2**63 - 1),
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH, -1),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH, -1),
    ],
)
async def test_epoch_end_needs_current_epoch(epoch: int, error: ErrorCode, end: int) -> None:
    assert await epoch_end(MemoryTopic(), EPOCH, epoch) == (error, end)


async def epoch_end(topic: MemoryTopic, epoch: int, current: int = -1) -> tuple[int, int]:
    partition = clients.OffsetForLeaderEpochRequestPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    requested_topic = clients.OffsetForLeaderEpochRequestTopic(topic="farm", partitions=(partition,))
    request = clients.OffsetForLeaderEpochRequest(topics=(requested_topic,))
    [answered_topic] = (await ConsumerService(topic).offset_for_leader_epoch(request, caller(4))).topics
    [part] = answered_topic.partitions
    return part.error_code, part.end_offset


async def test_epoch_end_comes_from_topic() -> None:
    topic = MemoryTopic()
    topic.epoch_ends = {3: 17, 4: None}
    assert await epoch_end(topic, 3) == (ErrorCode.NONE, 17)
    assert await epoch_end(topic, 4) == (ErrorCode.NONE, -1), "clients apply their reset policy"
    assert await epoch_end(topic, -1) == (ErrorCode.NONE, 2**63 - 1)


def _elsewhere(topic: MemoryTopic) -> None:
    topic.leader_id = 2


def _compacted(topic: MemoryTopic) -> None:
    topic.start = 1


def _unchanged(topic: MemoryTopic) -> None:
    assert topic.start == 0


@pytest.mark.parametrize(
    ("change", "request_", "version", "error"),
    [
        (_unchanged, fetch_of(0, epoch=EPOCH - 1), 12, ErrorCode.FENCED_LEADER_EPOCH),
        (_unchanged, fetch_of(0, epoch=EPOCH + 1), 12, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (_unchanged, fetch_of(0, partition=1), 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (_unchanged, fetch_of(0), 13, ErrorCode.UNKNOWN_TOPIC_ID),
        (_elsewhere, fetch_of(0), 12, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (_compacted, fetch_of(0), 12, ErrorCode.OFFSET_OUT_OF_RANGE),
        (_unchanged, fetch_of(-1), 12, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
    ids=["old-epoch", "new-epoch", "partition", "topic-id", "leader", "compacted", "negative"],
)
async def test_invalid_fetch_is_refused_immediately(
    change: Callable[[MemoryTopic], None], request_: clients.FetchRequest, version: int, error: ErrorCode
) -> None:
    topic = MemoryTopic()
    topic.write(b"a", b"b")
    change(topic)
    part = await fetched(topic, request_, version)
    assert part.error_code == error
    assert part.current_leader.leader_id == topic.leader_id


async def test_offset_beyond_watermark_is_out_of_range_at_leader(autojump_clock: trio.testing.MockClock) -> None:
    topic = MemoryTopic()
    topic.write(b"a")
    assert (await fetched(topic, fetch_of(9))).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    topic.controller_id = 2
    assert (await fetched(topic, fetch_of(9))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_fetch_of_session_is_refused() -> None:
    response = await ConsumerService(MemoryTopic()).fetch(fetch_of(0, session_id=7), caller(12))
    assert (response.error_code, response.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


async def test_offsets_are_listed_by_place_and_time() -> None:
    topic = MemoryTopic()
    topic.write(b"a", b"b", b"c")
    topic.start = 1
    assert await offset_of(topic, -2) == (1, -1)
    assert await offset_of(topic, -1) == (3, -1)
    assert await offset_of(topic, -3) == (2, 1_002)
    assert await offset_of(topic, 1_002) == (2, 1_002)
    assert await offset_of(topic, 9_999) == (-1, -1)


async def test_duplicate_partition_in_list_offsets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand duplicates could read the whole log."""
    topic, looked_up = MemoryTopic(), list[int]()
    topic.write(b"a")
    monkeypatch.setattr(topic, "offset_for_time", looked_up.append)
    partition = clients.ListOffsetsRequestPartition(partition_index=0, timestamp=1_000)
    requested_topic = clients.ListOffsetsRequestTopic(
        name="farm", partitions=(partition, structs.replace(partition, timestamp=1_001))
    )
    response = await ConsumerService(topic).list_offsets(
        clients.ListOffsetsRequest(replica_id=-1, topics=(requested_topic,)), caller(9)
    )
    assert [part.error_code for part in response.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2
    assert looked_up == []


async def test_metadata_lists_only_own_topic() -> None:
    service = ConsumerService(MemoryTopic())
    everything = await service.metadata(clients.MetadataRequest(), caller(12))
    assert [(it.name, it.topic_id, it.partitions[0].leader_id) for it in everything.topics] == [("farm", TOPIC_ID, 1)]
    other = clients.MetadataRequest(topics=(clients.MetadataRequestTopic(name="other"),))
    [refused] = (await service.metadata(other, caller(12))).topics
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    none = await service.metadata(clients.MetadataRequest(topics=()), caller(12))
    assert none.topics == ()


async def test_cache_loads_batch_once_within_its_bytes() -> None:
    # Given a log of ten batches and a cache with room for three
    batches = [written(2 * at, [b"x" * 100, b"y"]) for at in range(10)]
    loads = []

    async def load(offset: int, max_bytes: int) -> bytes:
        del max_bytes
        loads.append(offset)
        await trio.lowlevel.checkpoint()
        return batches[offset // 2]

    cache = BatchCache(load, max_bytes=3 * len(batches[0]))
    # When two consumers read the same batch at the same time
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.read, 0, 1_000)
        nursery.start_soon(cache.read, 1, 1_000)
    assert len(loads) == 1
    # And one consumer reads the whole log
    for offset in range(20):
        assert await cache.read(offset, 1) == batches[offset // 2]
        assert cache.cached_bytes <= 3 * len(batches[0])
    # Then each batch was loaded once, and the latest batches are cached
    assert [offset // 2 for offset in loads] == list(range(10))
    assert await cache.read(14, 10_000) == b"".join(batches[7:])
    cache.drop_before(18)
    assert cache.cached_bytes == len(batches[9])


async def test_load_begun_before_clear_is_not_kept() -> None:
    old, new = written(0, [b"old"]), written(0, [b"new"])
    current, may_load = [old], trio.Event()

    async def load(offset: int, max_bytes: int) -> bytes:
        del offset, max_bytes
        loaded = current[0]
        await may_load.wait()
        return loaded

    cache = BatchCache(load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.read, 0, 100)
        await trio.testing.wait_all_tasks_blocked()
        current[0] = new
        cache.clear()
        may_load.set()
    assert await cache.read(0, 100) == new


async def test_larger_batch_replaces_covered_batches() -> None:
    small, large = written(1, [b"b"]), written(0, [b"a", b"b", b"c"])
    loads = [small, large]

    async def load(offset: int, max_bytes: int) -> bytes:
        del offset, max_bytes
        await trio.lowlevel.checkpoint()
        return loads.pop(0)

    cache = BatchCache(load)
    assert await cache.read(1, 100) == small
    assert await cache.read(0, 100) == large
    assert await cache.read(1, 100) == large
    assert cache.cached_bytes == len(large)


async def test_cache_refuses_invalid_batches() -> None:
    async def load(offset: int, max_bytes: int) -> bytes:
        del offset, max_bytes
        await trio.lowlevel.checkpoint()
        return b"x" * 100

    with pytest.raises(KafkaWireError, match="record batch"):
        await BatchCache(load).read(0, 100)


_CONSUME = """
import sys
from kafka import KafkaConsumer, TopicPartition
server = "127.0.0.1:" + sys.argv[1]
consumer = KafkaConsumer(bootstrap_servers=server, enable_auto_commit=False)
place = TopicPartition("farm", 0)
consumer.assign([place])
consumer.seek_to_beginning(place)
for record in consumer:
    print(record.offset, record.value.decode())
    if record.offset == 999:
        break
consumer.close()
"""


async def test_kafka_python_consumer_reads_whole_topic() -> None:
    topic = MemoryTopic()
    for at in range(50):
        topic.write(*(b"%d" % (20 * at + each) for each in range(20)))
    with trio.fail_after(60):
        async with open_listener([ConsumerService(topic)], ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            command = [sys.executable, "-c", _CONSUME, str(listener.port)]
            ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.stdout.decode().splitlines() == [f"{at} {at}" for at in range(1_000)], ended.stderr.decode()
