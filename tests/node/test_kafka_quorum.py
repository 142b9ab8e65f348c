"""DescribeQuorum of a farm: the leader reports the progress of all replicas.

Another server reports only the leader and itself, or redirects the tool to the leader.
"""

from dataclasses import replace

import pytest

from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.farm_quorum import quorum_of
from bridge.node.settings.clients import KafkaPeer
from consensus.core.model import Configuration, Server
from consensus.core.replication.progress import ProgressState
from consensus.core.status import FollowerProgress
from consensus.protocols.kafka import AskElsewhereError, Caller, ErrorCode, QuorumViewService
from consensus.protocols.kafka.topic.quorum_view import ReplicaTimes
from consensus.protocols.kafka.wire import messages_admin as admin
from gossip import Address
from tests.node.farm_stage import NOW_MS, OTHER, OWN, Stage
from tests.node.kafka_farm import SETTINGS, farm_of, named_stage

CALLER = Caller("client", None, "127.0.0.1", 1, 2, 3, "FARM")
PEERS = (KafkaPeer("two", Address("node-2", 9092)),)
VOTERS = tuple(Server(number, f"tcp://127.0.0.1:{number}") for number in (1, 2))
LEARNERS = (Server(3, "name.b32.i2p:7669"), Server(4, "nowhere"))


pytestmark = pytest.mark.usefixtures("machine_clock")


async def described(stage: Stage | None, topic: str = "__cluster_metadata") -> admin.DescribeQuorumResponse:
    current = CurrentFarm(None if stage is None else farm_of(stage))
    service = QuorumViewService(lambda: quorum_of(current, replace(SETTINGS, peers=PEERS)), lambda: NOW_MS)
    request = admin.DescribeQuorumRequest(
        topics=(
            admin.DescribeQuorumRequestTopic(
                topic_name=topic, partitions=(admin.DescribeQuorumRequestPartition(partition_index=0),)
            ),
        )
    )
    return await service.describe_quorum(request, CALLER)


def partition_in(response: admin.DescribeQuorumResponse) -> admin.DescribeQuorumResponsePartition:
    return response.topics[0].partitions[0]


async def stage_of_two() -> Stage:
    stage = named_stage()
    for _ in range(5):
        await stage.append(b"{}")
    stage.server.configuration = Configuration(VOTERS, (), LEARNERS)
    return stage


async def test_leader_reports_progress_and_contact_times() -> None:
    stage = await stage_of_two()
    stage.server.followers = (
        FollowerProgress(2, 4, 5, 1, 30, ProgressState.REPLICATING, 700),
        FollowerProgress(3, 0, 1, 0, None, ProgressState.PROBING, None),
    )
    response = await described(stage)
    found = partition_in(response)
    assert (found.error_code, found.leader_id, found.leader_epoch, found.high_watermark) == (0, OWN, 1, 5)
    rows = [(row.replica_id, row.log_end_offset, row.last_fetch_timestamp) for row in found.current_voters]
    assert rows == [(1, 5, NOW_MS), (2, 4, NOW_MS - 30)]
    assert [row.last_caught_up_timestamp for row in found.current_voters] == [NOW_MS, NOW_MS - 700]
    assert [(row.replica_id, row.log_end_offset, row.last_fetch_timestamp) for row in found.observers] == [
        (3, -1, -1),
        (4, -1, -1),
    ]
    listeners = {
        node.node_id: [(each.name, each.host, each.port) for each in node.listeners] for node in response.nodes
    }
    assert listeners == {
        1: [("RAFT", "127.0.0.1", 1), ("FARM", "127.0.0.1", 9092)],
        2: [("RAFT", "127.0.0.1", 2), ("FARM", "node-2", 9092)],
    }


def test_replica_times_do_not_go_back_within_epoch() -> None:
    """Kafka's leader stores times, but this leader stores ages, so converted times could go back.

    Two clocks are never read in the same instant, and one may be set.
    """
    now_ms = 1_000
    times: ReplicaTimes[str] = ReplicaTimes(lambda: now_ms)
    assert times.timestamps(1, {"two": (30, 700), "three": (None, None)}) == {"two": (970, 300), "three": (-1, -1)}
    now_ms = 999
    assert times.timestamps(1, {"two": (30, 700), "three": (5, None)}) == {"two": (970, 300), "three": (994, -1)}
    now_ms = 1_100
    assert times.timestamps(1, {"two": (100, 100)}) == {"two": (1_000, 1_000)}
    # The leader of the next epoch uses its own clock, so its times may be earlier
    now_ms = 500
    assert times.timestamps(2, {"two": (100, None)}) == {"two": (400, -1)}


async def test_follower_redirects_tool_to_reachable_leader() -> None:
    stage = await stage_of_two()
    stage.lead(OTHER)
    with pytest.raises(AskElsewhereError, match="server 2 leads"):
        await described(stage)


async def test_follower_reports_only_leader_and_itself() -> None:
    stage = await stage_of_two()
    stage.server.configuration = Configuration((*VOTERS, LEARNERS[0]))
    stage.lead(3)
    found = partition_in(await described(stage))
    assert (found.error_code, found.leader_id, found.leader_epoch, found.high_watermark) == (0, 3, 2, 5)
    assert [(row.replica_id, row.log_end_offset) for row in found.current_voters] == [(1, 5), (2, -1), (3, 5)]


async def test_unknown_leader_makes_tool_retry() -> None:
    stage = await stage_of_two()
    stage.lose_quorum()
    for farm_stage in (stage, None):
        assert partition_in(await described(farm_stage)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_describe_quorum_refuses_other_topic() -> None:
    response = await described(await stage_of_two(), "farm-log")
    assert (response.error_code, response.topics) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())
