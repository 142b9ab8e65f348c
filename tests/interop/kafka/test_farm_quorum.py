"""Kafka's quorum tool describes a farm with the same values as `garlicfarm status`.

The tool contacts any of the given brokers and is redirected to the leader. The leader may not have received a message
of a follower in its term yet; it reports the follower's end as -1. So the test repeats the tool until all ends are
known.
"""

from pathlib import Path

import pytest
import trio

from bridge.api.view import FarmView
from tests.interop.kafka.kafka_farm import KafkaFarm, running_kafka_farm, running_tools
from tests.interop.kafka.tool_jvm import missing

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

STORY_S = 180.0
TRIES = 5
UNKNOWN = -1


async def test_quorum_tool_prints_values_of_status(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with running_kafka_farm(tmp_path) as farm, running_tools(tmp_path) as tools:
            for _ in range(TRIES):
                before = await leaders_view(farm)
                status = await tools.status(farm.addresses, brokers=True)
                rows = await tools.replication(farm.addresses, brokers=True)
                after = await leaders_view(farm)
                check_status(status, before, after)
                ends = check_replication(rows, before, after)
                if UNKNOWN not in ends:
                    break
            else:
                pytest.fail(f"the leader has not reported all ends in {TRIES} tries")


async def leaders_view(farm: KafkaFarm) -> FarmView:
    """Return the view of the leader's `garlicfarm status`."""
    view = await (await farm.farm.leader()).view()
    assert view is not None
    return view


def check_status(status: dict[str, str], before: FarmView, after: FarmView) -> None:
    """Check `describe --status`, taken between two views of the leader: the log grows, and followers lag a little."""
    assert int(status["LeaderId"]) == after.raft.leader_id
    assert int(status["LeaderEpoch"]) == after.raft.term
    assert 0 < int(status["HighWatermark"]) <= after.raft.commit_index
    assert before.raft.commit_index - int(status["HighWatermark"]) < 10
    assert status["ClusterId"] == after.farm.cluster_id
    assert all(f'"id": {voter.raft_id}' in status["CurrentVoters"] for voter in after.raft.voters)
    assert status["CurrentObservers"] == "[]"


def check_replication(rows: list[dict[str, str]], before: FarmView, after: FarmView) -> list[int]:
    """Check `describe --replication`; return the ends of the logs."""
    assert {int(row["NodeId"]) for row in rows} == {voter.raft_id for voter in after.raft.voters}
    assert [int(row["NodeId"]) for row in rows if row["Status"] == "Leader"] == [after.raft.leader_id]
    ends = {int(row["NodeId"]): int(row["LogEndOffset"]) for row in rows}
    assert max(ends.values()) <= after.raft.last_index
    if UNKNOWN not in ends.values():
        assert ends[after.raft.leader_id or 0] >= before.raft.last_index
        for follower in before.raft.followers:
            assert ends[follower.raft_id] >= (follower.match_index or 0)
    return [*ends.values()]
