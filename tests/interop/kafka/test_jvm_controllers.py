"""Three controllers of Apache Kafka without our nodes: the other tests rely on this behavior of the harness.

`make interop-kafka` downloads Kafka and runs these stories.
"""

from collections import Counter
from pathlib import Path

import pytest
import trio

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import JvmServers, running_jvm_quorum
from tests.interop.kafka.recording import Recorder

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

STORY_S = 180.0
WRITES = 20


async def write_records(quorum: JvmServers, count: int) -> None:
    """Commit some records with Kafka's admin client."""
    tools = await quorum.tools()
    addresses = ",".join(server.address for server in quorum.servers.values() if server.lives)
    await tools.do("alter-configs", count=count, properties={"bootstrap.controllers": addresses})


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
async def test_kafka_controllers_replace_killed_leader(tmp_path: Path, *, is_dynamic: bool) -> None:
    with trio.fail_after(STORY_S):
        # Given three controllers that have committed some records
        async with running_jvm_quorum(tmp_path, is_dynamic=is_dynamic) as quorum:
            leader_id, epoch = await quorum.leader()
            await write_records(quorum, WRITES)
            # When the leader is killed
            began = trio.current_time()
            await quorum.kill(quorum.servers[leader_id])
            new_id, new_epoch = await quorum.leader(epoch_above=epoch)
            print(
                f"\n{'dynamic' if is_dynamic else 'static'}: another leader after {trio.current_time() - began:.2f} s"
            )
            # Then another one leads and commits, and the restarted former leader follows it
            assert new_id != leader_id
            assert new_epoch > epoch
            await write_records(quorum, WRITES)
            await quorum.start(quorum.servers[leader_id])
            await wait_until_caught_up(quorum, leader_id)


async def wait_until_caught_up(quorum: JvmServers, node_id: int) -> None:
    """Wait until kafka-metadata-quorum shows a follower without a lag."""
    tools = await quorum.tools()
    while True:
        rows = await tools.replication(*(server.address for server in quorum.servers.values() if server.lives))
        (row,) = [row for row in rows if int(row["NodeId"]) == node_id]
        if row["Status"] == "Follower" and row["Lag"] == "0":
            return
        await trio.sleep(0.1)


async def test_recorder_records_election_and_replication(tmp_path: Path) -> None:
    recorder = Recorder()
    with trio.fail_after(STORY_S):
        async with running_jvm_quorum(tmp_path, recorder=recorder) as quorum:
            await quorum.leader()
            await write_records(quorum, WRITES)
    seen = Counter((frame.api_key, frame.direction) for frame in recorder.frames)
    for api_key in (ApiKey.API_VERSIONS, ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.FETCH):
        assert seen[api_key, "request"] > 0
        assert seen[api_key, "response"] > 0
    ours = [frame for frame in recorder.frames if frame.api_key in VERSIONS]
    assert all(VERSIONS[frame.api_key][0] <= frame.api_version <= VERSIONS[frame.api_key][1] for frame in ours)
