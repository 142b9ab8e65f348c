"""Three different consumers share one group of a farm; Kafka's tool shows and moves the committed positions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from benchmarks.child import Child, ChildError
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from tests.end_to_end.farm import START_BOUND_S
from tests.end_to_end.test_kafka_listener import lone_farm
from tests.interop.kafka.group_member import SESSION_MS
from tests.interop.kafka.kafka_farm import TOPIC, KafkaFarm, running_kafka_farm, running_tools
from tests.interop.kafka.stock_consumers import ReadEntry, read_with_java
from tests.interop.kafka.tool_jvm import ToolJvm, java, missing

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

GROUP = "shared"
PART = 500
STORY_S = 240.0
WAIT_S = 60.0


class Member:
    """A member in a separate process, and its output."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.read: list[int] = []
        self.partitions: int | None = None
        """The number of its partitions; None between two rounds, and before the first."""
        self._changed = trio.Event()

    async def listen(self) -> None:
        """Read its output until it ends."""
        while True:
            try:
                line = await self.child.receive_line(STORY_S)
            except ChildError:
                return
            what, _, count = line.partition(" ")
            if what == "assigned":
                self.partitions = int(count)
            elif what == "revoked":
                self.partitions = None
            else:
                self.read.append(int(what))
            self._changed.set()
            self._changed = trio.Event()

    async def wait_until_assigned(self, partitions: int) -> None:
        """Wait until it has this number of partitions."""
        with trio.fail_after(WAIT_S):
            while self.partitions != partitions:
                await self._changed.wait()

    async def wait_until_read(self, offset: int) -> None:
        """Wait until it has read a record at or after an offset."""
        with trio.fail_after(WAIT_S):
            while not self.read or self.read[-1] < offset:
                await self._changed.wait()


async def start_member(client: str, farm: KafkaFarm, directory: Path) -> Member:
    """Start a member that joins the group."""
    job = json.dumps([client, farm.addresses, TOPIC, GROUP])
    command = [sys.executable, "-m", "tests.interop.kafka.group_member", job]
    return Member(await Child.start(client, command, directory / f"{client}.log"))


async def test_partition_moves_when_members_leave_or_are_killed(tmp_path: Path) -> None:
    # The range assignor sorts members by id: Java's, kafka-python's, librdkafka's.
    java_read: list[ReadEntry] = []
    with trio.fail_after(STORY_S):
        async with (
            running_kafka_farm(tmp_path) as farm,
            running_tools(tmp_path) as tools,
            trio.open_nursery() as nursery,
        ):
            await farm.write(PART, "first")
            python = await start_member("kafka-python", farm, tmp_path)
            librdkafka = await start_member("librdkafka", farm, tmp_path)
            try:
                for member in (python, librdkafka):
                    nursery.start_soon(member.listen)
                # Two members: one reads, one waits
                await python.wait_until_assigned(1)
                await librdkafka.wait_until_assigned(0)

                # A third one joins, takes the partition, reads some records and leaves
                java_read += await _read_some_with_java(farm, tools)
                await python.wait_until_assigned(1)
                last = max(await farm.records())
                await python.wait_until_read(last)

                # The reader is killed: after its session timeout another member continues from the committed position
                os.kill(python.child.pid, signal.SIGKILL)
                began = trio.current_time()
                await librdkafka.wait_until_assigned(1)
                assert trio.current_time() - began > SESSION_MS / 1000 / 2
                await farm.write(PART, "last")
                committed_offsets = sorted(await farm.records())
                await librdkafka.wait_until_read(committed_offsets[-1])
            finally:
                nursery.cancel_scope.cancel()
                for member in (python, librdkafka):
                    await member.child.end()
    offsets = [each.offset for each in java_read]
    assert set(committed_offsets) <= set(offsets) | set(python.read) | set(librdkafka.read), "no member read a record"
    by_two = python.read + offsets
    assert len(by_two) == len(set(by_two)), "a record was read twice after an orderly transfer"
    assert librdkafka.read == sorted(set(librdkafka.read))


async def _read_some_with_java(farm: KafkaFarm, tools: ToolJvm) -> list[ReadEntry]:
    """Let Java's consumer join, read new records, and leave."""
    found: list[ReadEntry] = []
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            found.extend(await read_with_java(tools, farm.addresses, TOPIC, PART, GROUP, WAIT_S))
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        while True:
            await farm.write(PART // 10, "for Java")
            await trio.sleep(1)
    return found


def group_tool(listen: str, *arguments: str) -> list[dict[str, str]]:
    """Return the output of kafka-consumer-groups: the rows of its table, by column name."""
    command = java("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", listen)
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    head = next(at for at, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], line, strict=False)) for line in lines[head + 1 :] if len(line) > 1]


def test_group_tool_lists_describes_and_resets_groups(tmp_path: Path) -> None:
    farm, listen = lone_farm(tmp_path, "groups = true\n")
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().farm.level == SUPPORTED_LEVEL, START_BOUND_S, "the level is raised")
        for number in range(10):
            node.submit({"note": number})
        read = read_by_process(listen, 10)
        [listed] = group_tool(listen, "--list", "--state")
        assert (listed["GROUP"], listed["STATE"]) == (GROUP, "Empty")

        place = ("--group", GROUP, "--topic", TOPIC)
        [described] = group_tool(listen, "--describe", "--group", GROUP)
        assert (described["TOPIC"], described["PARTITION"]) == (TOPIC, "0")
        assert int(described["CURRENT-OFFSET"]) == read[-1] + 1
        assert int(described["LAG"]) == int(described["LOG-END-OFFSET"]) - int(described["CURRENT-OFFSET"])

        [reset] = group_tool(listen, "--reset-offsets", *place, "--to-earliest", "--execute")
        assert reset["NEW-OFFSET"] == "0"
        assert read_by_process(listen, 10) == read, "the group reads from the reset position"


def read_by_process(listen: str, count: int) -> list[int]:
    """Return the offsets that librdkafka reads in the group."""
    job = json.dumps(["librdkafka", listen, TOPIC, count, GROUP])
    command = [sys.executable, "-m", "tests.interop.kafka.stock_consumers", job]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return [offset for offset, *_ in json.loads(done.stdout)]
