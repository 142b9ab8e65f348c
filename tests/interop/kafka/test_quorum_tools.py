"""Kafka's quorum tool and admin client on quorums of our servers, and servers that join a quorum of the other kind.

`make interop-kafka` downloads Kafka.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import trio

from consensus.protocols.kafka.wire.apis import ApiKey
from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import running_jvm_servers
from tests.interop.kafka.mixed import MixedQuorum, running_mixed_quorum
from tests.interop.kafka.recording import LOOPBACK, Recorder
from tests.interop.kafka.tool_jvm import ToolError, java

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

STORY_S: Final = 180.0
VOTERS: Final = (1, 2, 3)
NEWCOMER: Final = 4
OBSERVER: Final = 9
QUORUMS: Final = pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])


def admin(quorum: MixedQuorum) -> dict[str, Any]:
    """Return the properties of Kafka's admin client for a quorum."""
    addresses = ",".join(quorum.server(node_id).voter.address for node_id in VOTERS)
    return {"bootstrap.controllers": addresses}


async def add_voter(quorum: MixedQuorum, node_id: int) -> None:
    """Add a voter with Kafka's admin client."""
    server = quorum.server(node_id)
    endpoint = {"name": "CONTROLLER", "host": LOOPBACK, "port": server.port}
    who: dict[str, Any] = {"id": node_id, "directory": server.directory_id, "properties": admin(quorum)}
    await (await quorum.jvm.tools()).do("add-voter", endpoints=[endpoint], **who)


async def remove_voter(quorum: MixedQuorum, node_id: int) -> None:
    """Remove a voter with Kafka's admin client."""
    who: dict[str, Any] = {"id": node_id, "directory": quorum.server(node_id).directory_id, "properties": admin(quorum)}
    await (await quorum.jvm.tools()).do("remove-voter", **who)


async def voters(quorum: MixedQuorum) -> set[int]:
    """Return the ids of the voters, from Kafka's quorum tool."""
    address = quorum.server((await quorum.leader())[0]).voter.address
    rows = await (await quorum.jvm.tools()).replication(address)
    return {int(row["NodeId"]) for row in rows if row["Status"] in ("Leader", "Follower")}


@QUORUMS
async def test_quorum_tool_describes_our_quorum(tmp_path: Path, *, is_dynamic: bool) -> None:
    """`describe --status` and `--replication` at each server show the same leader, voters and observer."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, VOTERS, (), is_dynamic=is_dynamic) as quorum,
        ):
            leader, epoch = await quorum.leader()
            await quorum.wait_for_progress()
            if is_dynamic:
                await observe(quorum, NEWCOMER)
            tools = await jvm.tools()
            for node_id in VOTERS:
                before = quorum.seen.high_watermark
                status = await tools.status(quorum.server(node_id).voter.address)
                assert status["ClusterId"] == jvm.cluster_id
                assert (int(status["LeaderId"]), int(status["LeaderEpoch"])) == (leader, epoch)
                assert before <= int(status["HighWatermark"]) <= (await quorum.ask(leader, "status"))["committed"]
                assert all(f'"id": {voter}' in status["CurrentVoters"] for voter in VOTERS)
                assert status["CurrentObservers"] == "[]" or f'"id": {NEWCOMER}' in status["CurrentObservers"]
                assert int(status["MaxFollowerLag"]) <= quorum.seen.high_watermark
                rows = await tools.replication(quorum.server(node_id).voter.address)
                statuses = {int(row["NodeId"]): row["Status"] for row in rows}
                expected = {voter: "Leader" if voter == leader else "Follower" for voter in VOTERS}
                assert statuses == (expected | {NEWCOMER: "Observer"} if is_dynamic else expected)
                assert all(int(row["LogEndOffset"]) >= before - int(row["Lag"]) for row in rows)
                directories = {int(row["NodeId"]): row["DirectoryId"] for row in rows}
                if is_dynamic:
                    assert directories == {each: quorum.server(each).directory_id for each in directories}


async def observe(quorum: MixedQuorum, node_id: int) -> None:
    """Start our observer, and wait until it has all records."""
    server = quorum.add(node_id)
    quorum.format(server, [quorum.server(each).voter for each in VOTERS])
    await quorum.start(node_id)
    await quorum.wait_until_caught_up(node_id)


async def observe_with_kafka(quorum: MixedQuorum, node_id: int) -> None:
    """Start a controller of Kafka as an observer, and wait until it has all records."""
    server = await quorum.jvm.add(node_id)
    await quorum.jvm.format_dynamic(server, [quorum.server(each).voter for each in VOTERS])
    await quorum.start(node_id)
    await quorum.wait_until_caught_up(node_id)


@pytest.mark.parametrize(
    ("is_ours", "newcomer_is_ours"),
    [(True, True), (True, False), (False, True)],
    ids=["ours to ours", "Kafka's to ours", "ours to Kafka's"],
)
async def test_kafka_admin_client_adds_and_removes_voter(
    tmp_path: Path, *, is_ours: bool, newcomer_is_ours: bool
) -> None:
    """While an earlier voter is down, commits need the new voter. The stopped voter and the leader are removed."""
    with trio.fail_after(STORY_S):
        sides = (VOTERS, ()) if is_ours else ((), VOTERS)
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, *sides, is_dynamic=True) as quorum,
        ):
            leader, epoch = await quorum.leader()
            await quorum.wait_for_progress()
            await (observe if newcomer_is_ours else observe_with_kafka)(quorum, NEWCOMER)
            assert await voters(quorum) == set(VOTERS)
            await add_voter(quorum, NEWCOMER)
            assert await voters(quorum) == {*VOTERS, NEWCOMER}
            with pytest.raises(ToolError, match="DuplicateVoter"):
                await add_voter(quorum, NEWCOMER)
            # A majority of four has three: with another voter down, commits need the new voter
            stopped = next(node_id for node_id in VOTERS if node_id != leader)
            await quorum.kill(stopped)
            await quorum.wait_for_progress()
            await remove_voter(quorum, stopped)
            assert await voters(quorum) == {*VOTERS, NEWCOMER} - {stopped}
            with pytest.raises(ToolError, match="VoterNotFound"):
                await remove_voter(quorum, stopped)
            # The leader removes itself last, and another server leads
            await remove_voter(quorum, leader)
            new_leader, _ = await quorum.leader(epoch_above=epoch)
            assert new_leader in {*VOTERS, NEWCOMER} - {stopped, leader}
            await quorum.wait_for_progress()
            print(f"\n{quorum.summary()}")


async def test_our_voter_sends_new_address_to_kafka_leader(tmp_path: Path) -> None:
    """The voter sends UpdateRaftVoter; from then on the others find it at the new address, even when it leads."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, (1,), (2, 3), is_dynamic=True) as quorum,
        ):
            leader = await quorum.make_lead(jvm.servers)
            await quorum.kill(1)
            quorum.move(1)
            await quorum.start(1)
            address, tools = quorum.server(1).voter.address, await jvm.tools()
            while address not in (await tools.status(jvm.servers[leader].address))["CurrentVoters"]:  # noqa: ASYNC110
                await trio.sleep(0.5)
            await quorum.make_lead([1])
            await quorum.wait_for_progress()
            print(f"\n{quorum.summary()}")
            await quorum.equal_logs()


@QUORUMS
async def test_our_observer_of_kafka_quorum_never_votes(tmp_path: Path, *, is_dynamic: bool) -> None:
    recorder = Recorder()
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path, recorder=recorder) as jvm,
            running_mixed_quorum(jvm, (), VOTERS, is_dynamic=is_dynamic) as quorum,
        ):
            leader, epoch = await quorum.leader()
            await quorum.wait_for_progress()
            await observe(quorum, OBSERVER)
            # Another leader, and then none: the observer follows, and waits
            await quorum.kill(leader)
            second, epoch = await quorum.leader(epoch_above=epoch)
            await quorum.wait_for_progress()
            await quorum.wait_until_caught_up(OBSERVER)
            third = next(node_id for node_id in VOTERS if node_id not in (leader, second))
            await quorum.kill(third)
            await trio.sleep(3 * FETCH_TIMEOUT_S)
            status = await quorum.ask(OBSERVER, "status")
            assert status["role"] == "follower"
            for node_id in (leader, third):
                await quorum.start(node_id)
            await quorum.leader(epoch_above=epoch - 1)
            await quorum.wait_for_progress()
            await quorum.wait_until_caught_up(OBSERVER)
            end = quorum.seen.high_watermark
            await quorum.equal_logs()
            print(f"\nobserved up to {end}; {quorum.summary()}")
        client = f"raft-client-{OBSERVER}".encode()
        sent = {frame.api_key for frame in recorder.frames if frame.is_request and client in frame.frame}
        assert ApiKey.FETCH in sent
        assert not sent & {ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH}


FETCH_TIMEOUT_S: Final = 2.0
"""Kafka's default; after this time a voter campaigns."""


async def upgrade_to_dynamic(quorum: MixedQuorum, leader: int) -> tuple[bool, str]:
    """Run `kafka-features upgrade --feature kraft.version=1`; return True on success, and the output."""
    arguments = ("--bootstrap-controller", quorum.server(leader).voter.address, "upgrade", "--feature")
    command = java("org.apache.kafka.tools.FeatureCommand", *arguments, "kraft.version=1")
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).decode()


async def test_static_voters_with_ours_are_not_upgraded(tmp_path: Path) -> None:
    """Kafka's leader requires a registration from each voter, which ours lacks. Our leader refuses the request."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, (1,), (2, 3), is_dynamic=False) as quorum,
        ):
            for node_ids, reason in (
                (jvm.servers, "controller 1 has not registered"),
                (quorum.ours, "does not support UPDATE_FEATURES"),
            ):
                done, text = await upgrade_to_dynamic(quorum, await quorum.make_lead(node_ids))
                assert (done, reason in text) == (False, True), text
                await quorum.wait_for_progress()
            await quorum.equal_logs()


async def test_our_observer_follows_upgrade_to_dynamic_voters(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, (), VOTERS, is_dynamic=False) as quorum,
        ):
            leader, _ = await quorum.leader()
            await quorum.wait_for_progress()
            await observe(quorum, OBSERVER)
            # Kafka's voters report their supported versions when they register, which may take some time
            while not (answer := await upgrade_to_dynamic(quorum, leader))[0]:
                assert "not all of the voters support it" in answer[1], answer[1]
                await trio.sleep(0.5)
            await quorum.wait_for_progress()
            await quorum.wait_until_caught_up(OBSERVER)
            # Its settings still name the voters; the log names them with their directories
            await quorum.kill(OBSERVER)
            await quorum.start(OBSERVER)
            await quorum.wait_for_progress()
            await quorum.wait_until_caught_up(OBSERVER)
            assert (await quorum.ask(OBSERVER, "status"))["voters"] == [*VOTERS]
            await quorum.equal_logs()
