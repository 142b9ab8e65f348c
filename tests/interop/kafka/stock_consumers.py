"""librdkafka's and kafka-python's consumer as an application uses them: read a number of entries from the beginning.

Each is called in a thread. Without a group the consumer is given partition 0, and stores no position; with one it
subscribes, as an application that runs several times does. The third stock consumer, Java's, is `ToolJvm`'s `consume`.
"""

import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """One record as a consumer gave it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


def read_with_librdkafka(
    address: str, topic: str, count: int, group: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[ReadEntry]:
    """Up to `count` entries by confluent-kafka; fewer if the time is over."""
    # librdkafka wants a group's name even of a consumer that is in none.
    settings: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": address,
        "group.id": f"librdkafka-{group}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    read: list[ReadEntry] = []
    try:
        if group is None:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        else:
            consumer.subscribe([topic])
        deadline = time.monotonic() + timeout_s
        while len(read) < count and time.monotonic() < deadline:
            for message in consumer.consume(num_messages=min(10_000, count - len(read)), timeout=POLL_S):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                offset = message.offset()
                assert offset is not None
                read.append(
                    ReadEntry(
                        offset,
                        as_bytes(message.key()),
                        as_bytes(message.value()),
                        message.timestamp()[1],
                        tuple((pair[0], as_bytes(pair[1])) for pair in message.headers() or []),
                    )
                )
        if group is not None and read:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return read


def as_bytes(value: str | bytes | None) -> bytes | None:
    """Its type says that a key may be text."""
    return value.encode() if isinstance(value, str) else value


def read_with_kafka_python(
    address: str, topic: str, count: int, group: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[ReadEntry]:
    """Up to `count` entries by kafka-python; fewer if the time is over."""
    name = None if group is None else f"python-{group}"
    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
    )
    read: list[ReadEntry] = []
    try:
        if group is None:
            partition = PythonTopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
        else:
            consumer.subscribe([topic])
        deadline = time.monotonic() + timeout_s
        while len(read) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=count - len(read)).values():
                read += [
                    ReadEntry(each.offset, each.key, each.value, each.timestamp, tuple(each.headers))
                    for each in records
                ]
        if group is not None and read:
            consumer.commit()
    finally:
        consumer.close()
    return read
