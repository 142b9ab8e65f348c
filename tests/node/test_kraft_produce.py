"""Records of producers for a topic of one partition: stored exactly once, or refused with an error."""

import sys

import pytest
import trio
import trio.testing
from msgspec import structs

from consensus import ServerBusyError, ServerStoppedError
from consensus.protocols.kafka import (
    ConsumerService,
    ListenerOptions,
    ProduceRefusedError,
    ProducerId,
    ProduceService,
    open_listener,
)
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire import record_batches
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.compression import decompress
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from tests.node.kraft_topic import MemoryTopic, caller, values_in, written
from tests.wire.record_batches import encode_batch

GOOD = written(0, [b"one", b"two"])


def packed(count: int) -> bytes:
    """Return a compressed batch of `count` records."""
    records = tuple(Record(1_000, None, b"same") for _ in range(count))
    return encode_batch(RecordBatch(0, -1, records, compression=Compression.ZSTD))


def produce_of(records: bytes, *, acks: int = -1, name: str = "farm") -> clients.ProduceRequest:
    partition = clients.ProduceRequestPartition(index=0, records=records)
    topic = clients.ProduceRequestTopic(name=name, partition_data=(partition,))
    return clients.ProduceRequest(acks=acks, timeout_ms=2_000, topic_data=(topic,))


async def part_of_reply(topic: MemoryTopic, request: clients.ProduceRequest) -> clients.ProduceResponsePartition:
    response = await ProduceService(topic).produce(request, caller(9))
    assert response is not None
    return response.responses[0].partition_responses[0]


async def test_batch_reply_has_offset_of_first_record() -> None:
    topic = MemoryTopic()
    topic.write(b"before")
    part = await part_of_reply(topic, produce_of(GOOD))
    assert (part.error_code, part.base_offset, topic.end) == (ErrorCode.NONE, 1, 3)


async def test_acks_0_stores_records_without_reply() -> None:
    topic = MemoryTopic()
    assert await ProduceService(topic).produce(produce_of(GOOD, acks=0), caller(9)) is None
    assert topic.end == 2


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (produce_of(GOOD[:-1] + b"!"), ErrorCode.CORRUPT_MESSAGE),
        (produce_of(GOOD + GOOD), ErrorCode.INVALID_RECORD),
        (produce_of(b""), ErrorCode.INVALID_RECORD),
        (produce_of(GOOD, acks=2), ErrorCode.INVALID_REQUIRED_ACKS),
        (produce_of(GOOD, name="other"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (structs.replace(produce_of(GOOD), transactional_id="t"), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
    ids=["crc", "two-batches", "no-batch", "acks", "topic", "transaction"],
)
async def test_invalid_batch_is_refused_without_write(request_: clients.ProduceRequest, error: ErrorCode) -> None:
    topic = MemoryTopic()
    part = await part_of_reply(topic, request_)
    assert (part.error_code, part.base_offset, topic.end) == (error, -1, 0)
    assert part.error_message


async def test_several_batches_are_refused_before_decompression(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may have hundreds of batches, and each may decompress to many records."""
    unpacked: list[int] = []

    def counted(data: bytes, compression: Compression, max_bytes: int) -> bytes:
        unpacked.append(len(data))
        return decompress(data, compression, max_bytes)

    monkeypatch.setattr(record_batches, "decompress", counted)
    topic, bomb = MemoryTopic(), packed(50)
    assert (await part_of_reply(topic, produce_of(bomb * 20))).error_code == ErrorCode.INVALID_RECORD
    assert unpacked == []
    assert (await part_of_reply(topic, produce_of(bomb))).error_code == ErrorCode.NONE
    assert (len(unpacked), topic.end) == (1, 50)


async def test_large_batch_is_refused_before_decompression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients, such as Java's, then send the records again in smaller batches."""
    topic = MemoryTopic()
    topic.max_batch_records = 50
    assert (await part_of_reply(topic, produce_of(packed(50)))).error_code == ErrorCode.NONE
    monkeypatch.delattr(record_batches, "decompress")
    part = await part_of_reply(topic, produce_of(packed(51)))
    assert (part.error_code, topic.end) == (ErrorCode.MESSAGE_TOO_LARGE, 50)
    assert part.error_message == "a batch has at most 50 records here, this one has 51: send smaller batches"


async def test_repeated_partition_is_refused() -> None:
    topic, request = MemoryTopic(), produce_of(GOOD)
    [requested_topic] = request.topic_data
    for topics in (
        (requested_topic,) * 2,
        (structs.replace(requested_topic, partition_data=requested_topic.partition_data * 2),),
    ):
        response = await ProduceService(topic).produce(structs.replace(request, topic_data=topics), caller(9))
        assert response is not None
        codes = [part.error_code for each in response.responses for part in each.partition_responses]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    assert topic.end == 4


async def test_read_only_topic_refuses_records() -> None:
    topic = MemoryTopic()
    topic.takes_records = False
    part = await part_of_reply(topic, produce_of(GOOD))
    assert part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "read-only" in (part.error_message or "")
    request = clients.InitProducerIdRequest(transaction_timeout_ms=1)
    given = await ProduceService(topic).init_producer_id(request, caller(4))
    assert given.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


LATER = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProduceRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, ""), LATER),
        (ProduceRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, ""), LATER),
        (ProduceRefusedError(ErrorCode.REQUEST_TIMED_OUT, ""), LATER),
        (ProduceRefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ""), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ServerBusyError(), LATER),
        (ServerStoppedError(), LATER),
    ],
    ids=["not-available", "not-leader", "timed-out", "unauthorized", "busy", "stopped"],
)
async def test_temporary_refusal_of_producer_id_requests_retry(
    error: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After COORDINATOR_NOT_AVAILABLE, kafka-python would look for a coordinator forever."""
    topic = MemoryTopic()

    async def refuse(principal: str | None) -> ProducerId:
        del principal
        raise error

    monkeypatch.setattr(topic, "new_producer_id", refuse)
    request = clients.InitProducerIdRequest(transaction_timeout_ms=1)
    given = await ProduceService(topic).init_producer_id(request, caller(4))
    assert (given.error_code, given.producer_id, given.producer_epoch) == (code, -1, -1)


async def test_follower_names_leader() -> None:
    topic = MemoryTopic()
    topic.leader_id = 2
    response = await ProduceService(topic).produce(produce_of(GOOD), caller(10))
    assert response is not None
    part = response.responses[0].partition_responses[0]
    assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert [it.node_id for it in response.node_endpoints] == [2]


async def test_uncommitted_records_time_out(autojump_clock: trio.testing.MockClock) -> None:
    topic = MemoryTopic()
    topic.is_stuck = True
    assert (await part_of_reply(topic, produce_of(GOOD))).error_code == ErrorCode.REQUEST_TIMED_OUT


_PRODUCE = """
import sys
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers="127.0.0.1:" + sys.argv[1], enable_idempotence=True, acks="all")
sent = [producer.send("farm", b"%d" % at, partition=0) for at in range(20)]
print([future.get(timeout=60).offset for future in sent])
producer.close(timeout=1)
"""


async def test_kafka_python_idempotent_producer_writes() -> None:
    topic = MemoryTopic()
    with trio.fail_after(60):
        async with open_listener([ConsumerService(topic), ProduceService(topic)], ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            command = [sys.executable, "-c", _PRODUCE, str(listener.port)]
            ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.stdout.decode().strip() == str(list(range(20))), ended.stderr.decode()
    assert [value for _, _, data in topic.batches for value in values_in(data)] == [b"%d" % at for at in range(20)]
    assert {producer for producer, _, _ in topic.appended} == {41}
