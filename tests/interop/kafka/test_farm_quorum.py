"""Kafka's own quorum tool describes a farm by the listener of any of its nodes, as `garlicfarm status` does."""

from pathlib import Path

import pytest
import trio

from tests.interop.kafka.kafka_farm import running_kafka_farm, running_tools
from tests.interop.kafka.recording import LOOPBACK
from tests.interop.kafka.tool_jvm import missing

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

STORY_S = 180.0


async def test_the_quorum_tool_prints_what_status_says(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with running_kafka_farm(tmp_path) as farm, running_tools(tmp_path) as tools:
            for server in farm.farm.servers:
                before, address = await server.view(), f"{LOOPBACK}:{farm.port(server)}"
                status = await tools.status(address, brokers=True)
                rows = await tools.replication(address, brokers=True)
                after = await server.view()
                assert before is not None
                assert after is not None

                # The status, while the log grows
                assert int(status["LeaderId"]) == after.raft.leader_id
                assert int(status["LeaderEpoch"]) == after.raft.term
                assert before.raft.commit_index <= int(status["HighWatermark"]) <= after.raft.commit_index
                voters = {voter.raft_id for voter in after.raft.voters}
                assert all(f'"id": {voter}' in status["CurrentVoters"] for voter in voters)
                assert status["CurrentObservers"] == "[]"

                # The replicas: as the node knows them; the leader knows all
                assert {int(row["NodeId"]) for row in rows} == voters
                leaders = [int(row["NodeId"]) for row in rows if row["Status"] == "Leader"]
                assert leaders == [after.raft.leader_id]
                own = next(row for row in rows if int(row["NodeId"]) == server.server_id)
                assert before.raft.last_index <= int(own["LogEndOffset"]) <= after.raft.last_index
                if server.server_id == after.raft.leader_id:
                    for follower in before.raft.followers:
                        row = next(row for row in rows if int(row["NodeId"]) == follower.raft_id)
                        assert int(row["LogEndOffset"]) >= (follower.match_index or 0)
                print(status, rows)
