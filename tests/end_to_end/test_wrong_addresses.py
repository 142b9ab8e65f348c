"""A node restarted with a wrong address: a corrected configuration file is enough, with or without a leader."""

import re
import socket

from bridge.api.control import SubmitOutcome
from tests.end_to_end.farm import START_BOUND_S, Farm, Node
from tests.end_to_end.settings import LOOPBACK, free_port


def advertising(text: str, section: str, port: int) -> str:
    """Return the settings with an advertised address without a listener."""
    return re.sub(rf"(?m)^\[{section}\]$", f'[{section}]\nadvertise = "{LOOPBACK}:{port}"', text)


def followers(farm: Farm, leader: Node) -> tuple[Node, Node]:
    first, second = (node for node in farm.nodes if node is not leader)
    return first, second


def test_wrong_raft_address_is_corrected_without_leader(farm: Farm) -> None:
    """Each of the two running nodes needs the vote of the other. Without a leader, the group cannot change."""
    leader = farm.wait_settled()
    wrong, other = followers(farm, leader)
    wrong.stop()
    right = wrong.configuration.read_text()
    wrong.configuration.write_text(advertising(right, "consensus", free_port(socket.SOCK_STREAM)))
    assert leader.submit({"mark": "before"}).outcome is SubmitOutcome.COMMITTED
    wrong.start()
    farm.wait_known()
    committed = leader.view().raft.commit_index
    farm.wait_until(
        lambda: other.view().raft.applied_index >= committed, START_BOUND_S, "the other follower has the log"
    )
    assert wrong.view().raft.applied_index < committed, "the leader cannot reach the wrong address"
    leader.kill()
    wrong.stop()
    wrong.configuration.write_text(right)
    wrong.start()
    running = (wrong, other)
    farm.wait_until(lambda: farm.leader() in running, START_BOUND_S, "the two nodes elect a leader")
    farm.wait_until(
        lambda: wrong.submit({"mark": "after"}).outcome is SubmitOutcome.COMMITTED,
        START_BOUND_S,
        "the two nodes commit an entry",
    )


def test_wrong_gossip_address_is_corrected_by_configuration(farm: Farm) -> None:
    leader = farm.wait_settled()
    wrong, other = followers(farm, leader)
    wrong.stop()
    right = wrong.configuration.read_text()
    wrong.configuration.write_text(advertising(right, "gossip", free_port(socket.SOCK_DGRAM)))
    wrong.start()
    farm.wait_until(wrong.view, START_BOUND_S, "the node runs")
    wrong.stop()
    wrong.configuration.write_text(right)
    wrong.start()
    farm.wait_known()
    assert farm.wait_settled() in {leader, wrong, other}
