"""Record batches of the product and of librdkafka, with every compression, in both directions over loopback.

    librdkafka's producer ─▶ our listener ─▶ decode_batch          encode_batch ─▶ our listener ─▶ librdkafka's consumer

librdkafka has its own writer, reader and four compressions in C; it uses LZ4 only with servers that support groups. For
uncompressed batches, `make test` compares with kafka-python and kio (`tests/wire/test_kraft_records.py`).
"""

from functools import partial

import pytest
import trio
from confluent_kafka import Producer

from consensus.protocols.kafka import (
    ConsumerService,
    ListenerOptions,
    Produced,
    ProduceService,
    RecordBatch,
    Service,
    open_listener,
)
from consensus.protocols.kafka.groups.service import GroupService
from consensus.protocols.kafka.wire.records import Compression, Record
from tests.interop.kafka.stock_consumers import read_with_librdkafka
from tests.node.kraft_topic import EPOCH, MemoryOffsets, MemoryTopic
from tests.wire.record_batches import encode_batch

pytestmark = pytest.mark.interop
TIMEOUT_S = 60
RECORDS = 500
WORDS = tuple(Record(1_000 + at, b"k%d" % at, b"garlic" * (at % 9), (("h", b"%d" % at),)) for at in range(RECORDS))


class KeepingTopic(MemoryTopic):
    """Keeps the decoded batches of producers."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[RecordBatch] = []
        self.offsets = MemoryOffsets()

    async def append(self, batch: RecordBatch, principal: str | None) -> Produced:
        self.kept.append(batch)
        return await super().append(batch, principal)


def produce(address: str, compression: str) -> None:
    """Send all of `WORDS` with librdkafka; raise if a record is not acknowledged."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": address, "compression.type": compression, "linger.ms": 50})
    for record in WORDS:
        producer.produce(
            "farm",
            record.value,
            record.key,
            0,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert errors == []


@pytest.mark.parametrize("compression", Compression, ids=lambda each: each.name.lower())
async def test_batch_of_librdkafka_decodes(compression: Compression) -> None:
    topic = KeepingTopic()
    services: list[Service] = [ConsumerService(topic), ProduceService(topic), GroupService(topic)]
    with trio.fail_after(TIMEOUT_S):
        async with open_listener(services, ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            name = compression.name.lower()
            await trio.to_thread.run_sync(partial(produce, f"127.0.0.1:{listener.port}", name))
    assert [record for batch in topic.kept for record in batch.records] == [*WORDS]
    assert {batch.compression for batch in topic.kept} >= {compression}


@pytest.mark.parametrize("compression", Compression, ids=lambda each: each.name.lower())
async def test_librdkafka_reads_encoded_batch(compression: Compression) -> None:
    topic = MemoryTopic()
    for at in range(0, RECORDS, 50):
        batch = RecordBatch(at, EPOCH, WORDS[at : at + 50], compression=compression)
        topic.batches.append((at, at + 50, encode_batch(batch)))
        topic.end = at + 50
    with trio.fail_after(TIMEOUT_S):
        async with open_listener([ConsumerService(topic), ProduceService(topic)], ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            read = await trio.to_thread.run_sync(
                partial(read_with_librdkafka, f"127.0.0.1:{listener.port}", "farm", RECORDS)
            )
    found = [(each.offset, Record(each.timestamp_ms, each.key, each.value, each.headers)) for each in read]
    assert found == [*enumerate(WORDS)]
