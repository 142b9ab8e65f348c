"""Three stock consumers read a farm of three nodes while its leader is killed: Java's, librdkafka's and kafka-python's.

The records read are compared with the control endpoint at the end: all committed records in order, each once.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bridge.api.log import LogEntryView
from tests.interop.kafka.kafka_farm import TOPIC, KafkaFarm, running_kafka_farm, running_tools
from tests.interop.kafka.stock_consumers import ReadEntry, read_in_process, read_with_java
from tests.interop.kafka.tool_jvm import ToolJvm, missing

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

RECORDS = 10_000
STORY_S = 300.0
READ_S = 120.0
CLIENTS = ("java", "librdkafka", "kafka-python")


@asynccontextmanager
async def farm_and_tools(directory: Path) -> AsyncIterator[tuple[KafkaFarm, ToolJvm]]:
    """Run a farm, and a JVM with Kafka's consumer, during a story."""
    with trio.fail_after(STORY_S):
        async with running_kafka_farm(directory) as farm, running_tools(directory) as tools:
            yield farm, tools


class Readers:
    """The three consumers, and the records read by each."""

    def __init__(self, farm: KafkaFarm, tools: ToolJvm) -> None:
        self.read: dict[str, list[ReadEntry]] = {client: [] for client in CLIENTS}
        self._farm = farm
        self._tools = tools

    async def read_all(self, count: int, group: str | None = None) -> None:
        """Let each consumer read `count` records, concurrently."""
        async with trio.open_nursery() as nursery:
            for client in CLIENTS:
                nursery.start_soon(self._read, client, count, group)

    async def _read(self, client: str, count: int, group: str | None) -> None:
        address, name = self._farm.addresses, None if group is None else f"{client}-{group}"
        if client == "java":
            found = await read_with_java(self._tools, address, TOPIC, count, name, READ_S)
        else:
            found = await read_in_process(client, address, TOPIC, count, name, READ_S)
        self.read[client] += found


def check(client: str, read: list[ReadEntry], log: dict[int, LogEntryView], count: int) -> None:
    expected = sorted(log)[:count]
    offsets = [each.offset for each in read]
    assert offsets == expected, f"{client} reads other records than the log has: {_difference(offsets, expected)}"
    for each in read:
        entry = log[each.offset]
        assert each.value == entry.data, f"{client} at {each.offset}"
        assert each.headers == (("term", str(entry.term).encode()),)
        assert each.timestamp_ms == (-1 if entry.log_time_ms is None else entry.log_time_ms)


def _difference(offsets: list[int], expected: list[int]) -> str:
    twice = sorted({each for each in offsets if offsets.count(each) > 1}) if len(offsets) > len(set(offsets)) else []
    missing_ = sorted(set(expected) - set(offsets))
    more = sorted(set(offsets) - set(expected))
    return f"{len(offsets)} read, twice {twice[:5]}, missing {missing_[:5]}, not in the log {more[:5]}"


async def test_consumers_read_records_once_despite_killed_leader(tmp_path: Path) -> None:
    async with farm_and_tools(tmp_path) as (farm, tools):
        await farm.write(RECORDS // 2, "before")
        readers = Readers(farm, tools)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.read_all, RECORDS)
            await farm.write(RECORDS // 10, "while they read")
            killed = await farm.kill_leader()
            await farm.write(RECORDS // 2, "after")
        await killed.start()
        await farm.farm.settle()
        log = await farm.records()
        for client in CLIENTS:
            check(client, readers.read[client], log, RECORDS)
        print({client: len(read) for client, read in readers.read.items()})


async def test_groups_resume_despite_killed_leader(tmp_path: Path) -> None:
    async with farm_and_tools(tmp_path) as (farm, tools):
        await farm.write(RECORDS // 2, "before")
        readers = Readers(farm, tools)
        first = RECORDS // 4
        await readers.read_all(first, "g")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.read_all, RECORDS - first, "g")
            await trio.sleep(5)
            await farm.kill_leader()
            await farm.write(RECORDS // 2 + RECORDS // 10, "after")
        log = await farm.records()
        for client in CLIENTS:
            check(client, readers.read[client], log, RECORDS)
