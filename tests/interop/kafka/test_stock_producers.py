"""Stock producers write to a farm of three nodes while its leader is killed: records are committed once, in order."""

from pathlib import Path

import pytest
import trio

from tests.interop.kafka.kafka_farm import TOPIC, KafkaFarm, running_kafka_farm, running_tools
from tests.interop.kafka.stock_producers import produce_with_java, produce_with_librdkafka
from tests.interop.kafka.tool_jvm import ToolJvm, missing

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

RECORDS = 2_000
BEFORE = 200
STORY_S = 300.0


@pytest.mark.parametrize("client", ["java", "librdkafka"])
async def test_records_are_committed_once_despite_killed_leader(tmp_path: Path, client: str) -> None:
    values = [f'{{"note":{number},"text":"{"y" * 60}"}}' for number in range(RECORDS)]
    offsets: list[int] = []
    with trio.fail_after(STORY_S):
        async with running_kafka_farm(tmp_path, writes=True) as farm, running_tools(tmp_path) as tools:

            async def produce() -> None:
                offsets.extend(await _produce(client, farm, tools, values))

            began = await farm.commit_index()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                await farm.wait_until_committed(began + BEFORE)
                killed = await farm.kill_leader()
                reached = await farm.commit_index()
            assert reached < began + RECORDS, "all records were committed before the kill"
            await killed.start()
            await farm.farm.settle()
            records = await farm.records()
    found = {offset: entry.data.decode() for offset, entry in records.items() if '"note":' in entry.data.decode()}
    assert [_value(each) for each in found.values()] == values
    assert list(found) == offsets


async def _produce(client: str, farm: KafkaFarm, tools: ToolJvm, values: list[str]) -> list[int]:
    assert farm.writer is not None
    address = await farm.address_of_leader_first()
    if client == "java":
        return await produce_with_java(tools, address, TOPIC, values, farm.writer)
    return await produce_with_librdkafka(address, TOPIC, values, farm.writer)


def _value(entry: str) -> str:
    """Return the produced value: the entry begins with the record's number and ends with the node's proof."""
    start = entry.index('"note":')
    return "{" + entry[start : entry.index('"', entry.index('"text":"') + len('"text":"')) + 1] + "}"
