"""Producers write to a topic of one partition: once each, refused clearly, or not at all where it is off."""

import sys

import pytest
import trio
import trio.testing
from msgspec import structs

from consensus.protocols.kafka import ConsumerService, ListenerOptions, ProduceService, open_listener
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire import record_batches
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.compression import decompress
from consensus.protocols.kafka.wire.record_batches import encode_batch
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from tests.node.kraft_topic import MemoryTopic, caller, values_in, written

GOOD = written(0, [b"one", b"two"])


def packed(count: int) -> bytes:
    """A batch of so many records, compressed."""
    records = tuple(Record(1_000, None, b"same") for _ in range(count))
    return encode_batch(RecordBatch(0, -1, records, compression=Compression.ZSTD))


def produce_of(records: bytes, *, acks: int = -1, name: str = "farm") -> clients.ProduceRequest:
    partition = clients.ProduceRequestPartition(index=0, records=records)
    topic = clients.ProduceRequestTopic(name=name, partition_data=(partition,))
    return clients.ProduceRequest(acks=acks, timeout_ms=2_000, topic_data=(topic,))


async def answered(topic: MemoryTopic, request: clients.ProduceRequest) -> clients.ProduceResponsePartition:
    response = await ProduceService(topic).produce(request, caller(9))
    assert response is not None
    return response.responses[0].partition_responses[0]


async def test_a_batch_is_answered_with_the_offset_of_its_first_record() -> None:
    topic = MemoryTopic()
    topic.write(b"before")
    part = await answered(topic, produce_of(GOOD))
    assert (part.error_code, part.base_offset, topic.end) == (ErrorCode.NONE, 1, 3)


async def test_acks_0_gets_no_answer_but_the_records_are_taken() -> None:
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
async def test_what_cannot_be_taken_is_refused_and_nothing_is_written(
    request_: clients.ProduceRequest, error: ErrorCode
) -> None:
    topic = MemoryTopic()
    part = await answered(topic, request_)
    assert (part.error_code, part.base_offset, topic.end) == (error, -1, 0)
    assert part.error_message


async def test_batches_of_which_only_one_may_come_are_refused_before_they_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request may have hundreds that are 80 KB each and become 100,000 records."""
    unpacked: list[int] = []

    def counted(data: bytes, compression: Compression, max_bytes: int) -> bytes:
        unpacked.append(len(data))
        return decompress(data, compression, max_bytes)

    monkeypatch.setattr(record_batches, "decompress", counted)
    topic, bomb = MemoryTopic(), packed(50)
    assert (await answered(topic, produce_of(bomb * 20))).error_code == ErrorCode.INVALID_RECORD
    assert unpacked == []
    assert (await answered(topic, produce_of(bomb))).error_code == ErrorCode.NONE
    assert (len(unpacked), topic.end) == (1, 50)


async def test_a_batch_of_more_records_than_the_topic_takes_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that makes smaller ones when it hears so, as Java's does, sends them again."""
    topic = MemoryTopic()
    topic.max_batch_records = 50
    assert (await answered(topic, produce_of(packed(50)))).error_code == ErrorCode.NONE
    monkeypatch.delattr(record_batches, "decompress")
    part = await answered(topic, produce_of(packed(51)))
    assert (part.error_code, topic.end) == (ErrorCode.MESSAGE_TOO_LARGE, 50)
    assert part.error_message == "a batch has at most 50 records here, this one has 51: send smaller batches"


async def test_a_partition_that_a_request_names_again_is_refused() -> None:
    topic, request = MemoryTopic(), produce_of(GOOD)
    [named] = request.topic_data
    for topics in ((named, named), (structs.replace(named, partition_data=named.partition_data * 2),)):
        response = await ProduceService(topic).produce(structs.replace(request, topic_data=topics), caller(9))
        assert response is not None
        codes = [part.error_code for each in response.responses for part in each.partition_responses]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    assert topic.end == 4


async def test_a_topic_that_takes_no_records_says_so() -> None:
    topic = MemoryTopic()
    topic.takes_records = False
    part = await answered(topic, produce_of(GOOD))
    assert part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "read-only" in (part.error_message or "")
    request = clients.InitProducerIdRequest(transaction_timeout_ms=1)
    given = await ProduceService(topic).init_producer_id(request, caller(4))
    assert given.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_server_that_does_not_lead_names_the_one_that_does() -> None:
    topic = MemoryTopic()
    topic.leader_id = 2
    response = await ProduceService(topic).produce(produce_of(GOOD), caller(10))
    assert response is not None
    part = response.responses[0].partition_responses[0]
    assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert [it.node_id for it in response.node_endpoints] == [2]


async def test_records_that_are_not_committed_in_time_are_answered_timed_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    topic = MemoryTopic()
    topic.is_stuck = True
    assert (await answered(topic, produce_of(GOOD))).error_code == ErrorCode.REQUEST_TIMED_OUT


_PRODUCE = """
import sys
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers="127.0.0.1:" + sys.argv[1], enable_idempotence=True, acks="all")
sent = [producer.send("farm", b"%d" % at, partition=0) for at in range(20)]
print([future.get(timeout=5).offset for future in sent])
producer.close(timeout=1)
"""


async def test_an_idempotent_producer_of_kafka_python_writes_over_loopback() -> None:
    topic = MemoryTopic()
    with trio.fail_after(20):
        async with open_listener([ConsumerService(topic), ProduceService(topic)], ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            command = [sys.executable, "-c", _PRODUCE, str(listener.port)]
            ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.stdout.decode().strip() == str(list(range(20))), ended.stderr.decode()
    assert [value for _, _, data in topic.batches for value in values_in(data)] == [b"%d" % at for at in range(20)]
    assert {producer for producer, _, _ in topic.appended} == {41}
