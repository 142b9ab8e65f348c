"""aiokafka and kafka-python-ng read a topic of one partition, in a separate virtual environment.

    python stories.py CLIENT list  ADDRESSES
    python stories.py CLIENT read|time|group ADDRESSES TOPIC COUNT [MILLISECONDS|GROUP]

CLIENT is aiokafka or kafka-python-ng. The output has the form of `go/main.go`. kafka-python-ng and the project's
kafka-python have the same import name, so this file does not import the project and runs in another interpreter.
"""

import asyncio
import json
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.admin.config_resource
import aiokafka.errors
import kafka
import kafka.admin
import kafka.errors

LIST_TOPIC = "farm-log"
STORY_S = 240.0
COMMIT_S = 1.0
SESSION_MS = 10_000
_ENTRIES = 4
"""The position of the settings in a resource of a DescribeConfigs response."""


def take(records: Sequence[Any]) -> int:
    """Print some records; return their number."""
    for record in records:
        print(record.offset, zlib.crc32(record.value or b""), flush=True)
    return len(records)


def settings_of(responses: Any) -> dict[str, str]:
    """Return the settings of the only resource in DescribeConfigs responses, as both libraries return them."""
    [response] = [each for each in responses if each.resources]
    [resource] = response.resources
    return {entry[0]: entry[1] for entry in resource[_ENTRIES]}


def options(addresses: list[str], group: str | None) -> dict[str, Any]:
    """Return the same settings for both libraries."""
    return {
        "bootstrap_servers": addresses,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
    }


def listing(topics: Sequence[str], groups: Sequence[Any], configs: Any, end: int) -> str:
    """Return the results of an admin client as JSON."""
    names = sorted(name for name, *_ in groups)
    return json.dumps({"topics": sorted(topics), "groups": names, "configs": settings_of(configs), "end": end})


async def aiokafka_list(addresses: list[str]) -> str:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=addresses)
    await admin.start()
    kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
    resource = aiokafka.admin.config_resource.ConfigResource(kind, LIST_TOPIC)
    topics, groups = await admin.list_topics(), await admin.list_consumer_groups()
    configs = await admin.describe_configs([resource])
    await admin.close()
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=addresses)
    await consumer.start()
    partition = aiokafka.TopicPartition(LIST_TOPIC, 0)
    ends = await consumer.end_offsets([partition])
    await consumer.stop()
    return listing(topics, groups, configs, ends[partition])


async def aiokafka_read(addresses: list[str], topic: str, count: int, group: str | None, since_ms: int | None) -> None:
    consumer = aiokafka.AIOKafkaConsumer(*([] if group is None else [topic]), **options(addresses, group))
    await consumer.start()
    try:
        if group is None:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            if since_ms is None:
                await consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, (await consumer.offsets_for_times({partition: since_ms}))[partition].offset)
        with suppress(TimeoutError):
            async with asyncio.timeout(STORY_S):
                await aiokafka_take(consumer, count, commits=group is not None)
    finally:
        await consumer.stop()


async def aiokafka_take(consumer: Any, count: int, *, commits: bool) -> None:
    """Read `count` records, and commit each second and at the end."""
    noted = time.monotonic()
    while count:
        parts = await consumer.getmany(timeout_ms=500, max_records=count)
        read = take([each for part in parts.values() for each in part])
        count -= read
        if commits and read and (not count or time.monotonic() - noted > COMMIT_S):
            noted = time.monotonic()
            try:
                await consumer.commit()
            except aiokafka.errors.KafkaError:
                if not count:
                    raise


def ng_list(addresses: list[str]) -> str:
    admin = kafka.KafkaAdminClient(bootstrap_servers=addresses)
    resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, LIST_TOPIC)
    topics, groups, configs = admin.list_topics(), admin.list_consumer_groups(), admin.describe_configs([resource])
    admin.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=addresses)
    partition = kafka.TopicPartition(LIST_TOPIC, 0)
    end = consumer.end_offsets([partition])[partition]
    consumer.close()
    return listing(topics, groups, configs, end)


def ng_read(addresses: list[str], topic: str, count: int, group: str | None, since_ms: int | None) -> None:
    consumer = kafka.KafkaConsumer(*([] if group is None else [topic]), **options(addresses, group))
    if group is None:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        if since_ms is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, consumer.offsets_for_times({partition: since_ms})[partition].offset)
    ng_take(consumer, count, commits=group is not None)
    consumer.close(autocommit=False)


def ng_take(consumer: Any, count: int, *, commits: bool) -> None:
    """Read `count` records, and commit each second and at the end."""
    deadline = time.monotonic() + STORY_S
    noted = time.monotonic()
    while count and time.monotonic() < deadline:
        parts = consumer.poll(timeout_ms=500, max_records=count)
        read = take([each for part in parts.values() for each in part])
        count -= read
        if commits and read and (not count or time.monotonic() - noted > COMMIT_S):
            noted = time.monotonic()
            try:
                consumer.commit()
            except kafka.errors.KafkaError:
                if not count:
                    raise


def main(client: str, story: str, addresses: str, *rest: str) -> None:
    where = addresses.split(",")
    if story == "list":
        print(asyncio.run(aiokafka_list(where)) if client == "aiokafka" else ng_list(where))
        return
    topic, count = rest[0], int(rest[1])
    group = rest[2] if story == "group" else None
    since_ms = int(rest[2]) if story == "time" else None
    if client == "aiokafka":
        asyncio.run(aiokafka_read(where, topic, count, group, since_ms))
    else:
        ng_read(where, topic, count, group, since_ms)


if __name__ == "__main__":
    main(*sys.argv[1:])
