"""A librdkafka consumer that closes before it has read all fetched records commits the end of its read records.

    fetched ahead:  record 0, record 1, record 2, CONTROL, record 4, …
    read: record 0 ─▶ close ─▶ must commit offset 1, and not 4, the position after CONTROL

When librdkafka closes, it drops the records that it fetched ahead. But a control record among them moves the position
past them, and that position is committed (librdkafka 2.16; https://github.com/confluentinc/librdkafka/issues/3400). On
a topic with control records of version 0, some closes committed about 2,000 unread records. This happened in 2 of 8
runs with `consume`, in 1 of 8 with `poll`, and in 6 of 10 with kcat. On a broker of Kafka 4.1.2, where transactions
leave control records, it happened in 9 of 15 runs. Without control records it never happened. So the control records of
a farm have a version that librdkafka skips.
"""

from functools import partial

import pytest
import trio
from confluent_kafka import Consumer

from bridge.node.kafka.farm_batches import CONTROL_KEY
from consensus.protocols.kafka import (
    ConsumerService,
    ListenerOptions,
    ProduceService,
    RecordBatch,
    Service,
    open_listener,
)
from consensus.protocols.kafka.groups.service import GroupService
from consensus.protocols.kafka.wire.records import Record
from tests.node.kraft_topic import EPOCH, MemoryOffsets, MemoryTopic
from tests.wire.record_batches import encode_batch

pytestmark = pytest.mark.interop
TIMEOUT_S = 120
TOPIC = "farm"
CLOSES = 10
BATCHES = 100
RECORDS = 50
"""Records per batch; every tenth batch is a single control record."""
CONTROL = Record(1_000, CONTROL_KEY, b"")
PART = 2_500


def mixed_topic() -> MemoryTopic:
    """Return a topic with records and control records."""
    topic = MemoryTopic()

    for number in range(BATCHES):
        is_control = number % 10 == 9
        records = (CONTROL,) if is_control else (Record(1_000, b"key", bytes(100)),) * RECORDS
        end = topic.end + len(records)
        batch = RecordBatch(topic.end, EPOCH, records, is_control=is_control)
        topic.batches.append((topic.end, end, encode_batch(batch)))
        topic.end = end
    return topic


def read_part(address: str, group: str, at_once: int) -> int:
    """Read some records and close; return the offset of the last one."""
    settings: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    count, offset = 0, -1
    while count < PART:
        for message in consumer.consume(num_messages=min(at_once, PART - count), timeout=0.2):
            assert message.error() is None
            count, offset = count + 1, message.offset() or 0
    consumer.close()
    return offset


@pytest.mark.parametrize("at_once", [1, PART], ids=["one at a time", "many at a time"])
async def test_close_does_not_commit_unread_records(at_once: int) -> None:
    topic, offsets = mixed_topic(), MemoryOffsets()
    topic.offsets = offsets
    services: list[Service] = [ConsumerService(topic), ProduceService(topic), GroupService(topic)]
    with trio.fail_after(TIMEOUT_S):
        async with open_listener(services, ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            for number in range(CLOSES):
                group = f"group {number}"
                read = partial(read_part, f"127.0.0.1:{listener.port}", group, at_once)
                offset = await trio.to_thread.run_sync(read)
                assert offsets.stored[group][TOPIC].offset == offset + 1
