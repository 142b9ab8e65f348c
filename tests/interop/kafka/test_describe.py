"""Story 1: `kafka-metadata-quorum` and `garlicfarm kraft describe` print equal tables for Kafka's quorum and ours.

    JVM controllers    ◀── kafka-metadata-quorum describe, garlicfarm kraft describe ──▶    garlicfarm kraft serve

Constant values must be equal. The high watermark of a JVM quorum and the times change between two queries. They must
lie between the values that Kafka's tool prints before and after.
"""

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import running_jvm_quorum
from tests.interop.kafka.tool_jvm import ToolJvm, fields_of
from tests.node.kraft_processes import Files, kraft, served

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

STORY_S = 180.0
CONSTANT = ("ClusterId", "LeaderId", "LeaderEpoch", "CurrentVoters", "CurrentObservers")
COLUMNS_OF_TIME = ("LastFetchTimestamp", "LastCaughtUpTimestamp")


async def ours(*arguments: str, of: str) -> str:
    """Return the output of our command about a quorum."""
    result = await trio.to_thread.run_sync(lambda: kraft(*arguments, "--bootstrap-controller", of))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def rows_of(printed: str) -> list[dict[str, str]]:
    """Parse our table; its cells never contain a blank."""
    head, *rows = [line.split() for line in printed.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


async def equal_tables(tools: ToolJvm, controllers: str) -> None:
    """Compare both tables of both tools."""
    print(await tools.describe("--status", controllers), await tools.describe("--replication", controllers))
    before = await tools.status(controllers)
    found = fields_of(await ours("describe", of=controllers))
    after = await tools.status(controllers)
    assert list(found) == list(before)
    assert {name: found[name] for name in CONSTANT} == {name: before[name] for name in CONSTANT}
    assert int(before["HighWatermark"]) <= int(found["HighWatermark"]) <= int(after["HighWatermark"])
    assert int(found["MaxFollowerLag"]) >= 0
    rows_before = await tools.replication(controllers)
    rows = rows_of(await ours("describe", "--replication", of=controllers))
    rows_after = await tools.replication(controllers)
    assert [list(row) for row in rows] == [list(row) for row in rows_before]
    for row, early, late in zip(rows, rows_before, rows_after, strict=True):
        for name in ("NodeId", "DirectoryId", "Status"):
            assert row[name] == early[name]
        assert int(early["LogEndOffset"]) <= int(row["LogEndOffset"]) <= int(late["LogEndOffset"])
        for name in COLUMNS_OF_TIME:
            assert int(early[name]) <= int(row[name]) <= int(late[name])


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
async def test_describe_prints_same_tables_for_kafka_controllers(tmp_path: Path, *, is_dynamic: bool) -> None:
    with trio.fail_after(STORY_S):
        async with running_jvm_quorum(tmp_path, is_dynamic=is_dynamic) as quorum:
            await quorum.leader()
            controllers = ",".join(server.address for server in quorum.servers.values())
            tools = await quorum.tools()
            await tools.do("alter-configs", count=5, properties={"bootstrap.controllers": controllers})
            await equal_tables(tools, controllers)
            # The log of Kafka's controllers can be read from any committed position, by offset and epoch
            lines = [json.loads(line) for line in (await ours("log", "--json", of=controllers)).splitlines()]
            assert [line["offset"] for line in lines] == list(range(len(lines)))
            assert lines[0]["record"] == "LeaderChange"
            assert sum(line["record"] == "Data" for line in lines) > 5
            place = len(lines) // 2
            part = await ours("log", "--json", "--from", str(place), "--limit", "3", of=controllers)
            assert [json.loads(line) for line in part.splitlines()] == lines[place : place + 3]


@asynccontextmanager
async def our_quorum(path: Path) -> AsyncIterator[tuple[Files, ToolJvm]]:
    """Run Kafka's tools, and three of our servers; they serve, but may not have elected a leader yet."""
    files = Files(path)
    tools = await ToolJvm.start(path / "tools.log")
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tools.run)
            try:
                for node_id in files.ports:
                    files.format(node_id)
                    server = stack.enter_context(served(files, node_id))
                    await trio.to_thread.run_sync(server.event, "serving")
                yield files, tools
            finally:
                with trio.CancelScope(shield=True):
                    await tools.end()


async def test_describe_prints_same_tables_for_our_quorum(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with our_quorum(tmp_path) as (files, tools):
            await ours("describe", "--timeout", "30", of=files.controllers)
            await equal_tables(tools, files.controllers)


async def test_kraft_commands_change_voters_of_kafka_controllers(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with running_jvm_quorum(tmp_path, is_dynamic=True) as quorum:
            # Given a controller that follows the quorum
            await quorum.leader()
            voters = [server.voter for server in quorum.servers.values()]
            controllers = ",".join(voter.address for voter in voters)
            fourth = await quorum.add(4)
            await quorum.format_dynamic(fourth, voters)
            await quorum.start(fourth)
            # When it is added, and a follower is removed
            newcomer = ("--voter-id", "4", "--voter-directory-id", fourth.directory_id)
            listener = ("--listener", f"CONTROLLER://{fourth.address}")
            assert await ours("add-voter", *newcomer, *listener, of=controllers) == (
                "Committed: the voters are 1, 2, 3, 4.\n"
            )
            leader_id, _ = await quorum.leader()
            removed = next(voter.node_id for voter in voters if voter.node_id != leader_id)
            left = ", ".join(str(node_id) for node_id in (1, 2, 3, 4) if node_id != removed)
            leave = ("remove-voter", "--voter-id", str(removed), "--yes")
            assert await ours(*leave, of=controllers) == f"Committed: the voters are {left}.\n"
            assert await ours(*leave, of=controllers) == f"It was so already: the voters are {left}.\n"
            # Then Kafka's tool shows the change
            rows = await (await quorum.tools()).replication(controllers)
            assert {row["NodeId"]: row["Status"] for row in rows}[str(removed)] == "Observer"
