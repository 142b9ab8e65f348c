"""Three stock consumers, used as in an application: Java's, librdkafka's and kafka-python's.

    read_with_…, read_in_process  ─▶  up to `count` records from the beginning, or from the group's committed position

Without a group, the consumer reads partition 0 and does not store a position. With a group, it subscribes and commits
its position by default: every 5 s, and when it loses the partition.

librdkafka and kafka-python run in a separate process (`python -m tests.interop.kafka.stock_consumers JOB`): they use
threads, and emit warnings that fail tests. Java's consumer runs in the JVM of `ToolJvm`.
"""

import json
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.interop.kafka.tool_jvm import ToolJvm

TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """One record as a consumer returned it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


def read_with_librdkafka(
    address: str, topic: str, count: int, group: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[ReadEntry]:
    """Return up to `count` entries read by confluent-kafka; fewer if the time is over."""
    # librdkafka requires a group name even for a consumer without a group.
    settings: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": address,
        "group.id": group or "none",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": group is not None,
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
    finally:
        consumer.close()
    return read


def as_bytes(value: str | bytes | None) -> bytes | None:
    """Return a key or value as bytes; by its type a key may be text."""
    return value.encode() if isinstance(value, str) else value


def read_with_kafka_python(
    address: str, topic: str, count: int, group: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[ReadEntry]:
    """Return up to `count` entries read by kafka-python; fewer if the time is over."""
    from kafka import KafkaConsumer  # noqa: PLC0415 - its import raises a warning, which fails a test
    from kafka import TopicPartition as PythonTopicPartition  # noqa: PLC0415

    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=group is not None
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
    finally:
        consumer.close()
    return read


async def read_with_java(
    tools: ToolJvm, address: str, topic: str, count: int, group: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[ReadEntry]:
    """Return up to `count` entries read by Java's consumer; fewer if the time is over."""
    properties = {"bootstrap.servers": address, "auto.offset.reset": "earliest"}
    if group is not None:
        properties["group.id"] = group
    read: list[ReadEntry] = []
    arguments_of_consume = {"topic": topic, "count": count, "seconds": int(timeout_s), "properties": properties}
    async with tools.ask("consume", **arguments_of_consume) as answers:
        async for answer in answers:
            if "records" not in answer:
                assert "ok" in answer, answer
                break
            read += [_of_java(each) for each in answer["records"]]
    return read


def _of_java(record: dict[str, Any]) -> ReadEntry:
    headers = tuple((name, _bytes_of(value)) for name, value in record["headers"].items())
    return ReadEntry(
        record["offset"], _bytes_of(record["key"]), _bytes_of(record["value"]), record["timestamp"], headers
    )


def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _text_of(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


async def read_in_process(
    client: str, address: str, topic: str, count: int, group: str | None = None, timeout_s: float = TIMEOUT_S
) -> list[ReadEntry]:
    """Return entries read by `librdkafka` or `kafka-python` in a separate process."""
    job = json.dumps([client, address, topic, count, group, timeout_s])
    with trio.fail_after(2 * timeout_s):
        done = await trio.run_process(
            [sys.executable, "-m", "tests.interop.kafka.stock_consumers", job],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return [
        ReadEntry(offset, _bytes_of(key), _bytes_of(value), at_ms, tuple((name, _bytes_of(it)) for name, it in headers))
        for offset, key, value, at_ms, headers in json.loads(done.stdout)
    ]


_READERS: Final[dict[str, Callable[..., list[ReadEntry]]]] = {
    "librdkafka": read_with_librdkafka,
    "kafka-python": read_with_kafka_python,
}


if __name__ == "__main__":
    client_name, *arguments = json.loads(sys.argv[1])
    json.dump(
        [
            [
                each.offset,
                _text_of(each.key),
                _text_of(each.value),
                each.timestamp_ms,
                [[name, _text_of(value)] for name, value in each.headers],
            ]
            for each in _READERS[client_name](*arguments)
        ],
        sys.stdout,
    )
