"""Killing a farm's processes: acknowledged entries survive, and other servers become leader and publisher."""

import json
import re
import socket
import time

import pytest

from bridge.api.control import SubmitOutcome
from bridge.api.view import Phase, RaftRole
from bridge.core.formation.member import MemberStatus
from tests.effort import IS_SOAK
from tests.end_to_end.farm import LEADER_BOUND_S, PUBLISHER_BOUND_S, START_BOUND_S, Farm, Node, call, marks, seeded
from tests.end_to_end.layout import Read
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.end_to_end.submitter import Submitter

KILL_ALL_ROUNDS = 3 if IS_SOAK else 1


def publisher(farm: Farm) -> tuple[Node, Read] | None:
    """Return the publisher according to the leader, and the first structure that it published."""
    leader = farm.leader()
    if leader is None:
        return None
    for each in leader.view().publishing:
        node = farm[each.publisher_name] if each.publisher_name else None
        if node is not None and (found := node.published()):
            return node, found[0]
    return None


def test_killed_leader_is_replaced_without_loss_of_entries(farm: Farm) -> None:
    leader = farm.wait_settled()
    before = leader.view()
    others = [node for node in farm.nodes if node is not leader]
    with Submitter(farm, farm.nodes, "leader-killed") as submitter:
        submitter.wait_for(10, START_BOUND_S)
        leader.kill()
        killed_at = time.monotonic()

        def successor() -> Node | None:
            found = farm.leader()
            return found if found is not None and found.view().raft.term > before.raft.term else None

        new_leader = farm.wait_until(successor, LEADER_BOUND_S, "another server leads")
        took_s = time.monotonic() - killed_at
        submitter.wait_for(10, START_BOUND_S)
    print(f"a new leader after {took_s:.2f} s")  # noqa: T201 - shown with -s
    assert not submitter.errors
    for node in others:
        farm.wait_log(node, submitter.acknowledged)

    def views_show_failover() -> bool:
        # Use the current leader: another election is possible.
        now_leader = farm.leader()
        views = [node.view() for node in others]
        statuses = {m.status for view in views for m in view.members if m.name == leader.name}
        if now_leader is None or {view.raft.leader_name for view in views} != {now_leader.name}:
            return False
        status = json.loads(call("status", "--json", "--node", now_leader.directory).stdout)
        return statuses == {MemberStatus.DEAD} and status["raft"]["role"] == RaftRole.LEADER.value

    assert new_leader in others
    farm.wait_until(views_show_failover, START_BOUND_S, "the views show the new leader, and the old one as dead")

    leader.start()
    farm.wait_settled()
    rejoined = leader.view()
    farm.wait_log(leader, submitter.acknowledged)
    assert rejoined.node.phase is Phase.FOUNDED
    assert rejoined.node.generation > before.node.generation
    assert (rejoined.node.node_id, rejoined.node.raft_id) == (before.node.node_id, before.node.raft_id)
    assert rejoined.farm.cluster_id == before.farm.cluster_id


def test_killed_publisher_is_replaced(farm: Farm) -> None:
    old, last = farm.wait_until(lambda: publisher(farm), START_BOUND_S, "a node publishes")
    old.kill()
    killed_at = time.monotonic()

    def next_structure() -> Read | None:
        found = [each for node in farm.running for each in node.published()]
        return next((each for each in found if each.published_s > last.published_s), None)

    made = farm.wait_until(next_structure, PUBLISHER_BOUND_S, "another server publishes")
    print(f"a new publisher after {time.monotonic() - killed_at:.2f} s")  # noqa: T201 - shown with -s
    assert made.destination == last.destination

    def views_show_failover() -> bool:
        chosen = {each.publisher_name for node in farm.running for each in node.view().publishing}
        successors = [node for node in farm.running if chosen == {node.name}]
        return any(len(each.entries) == 2 for node in successors for each in node.published())

    farm.wait_until(
        views_show_failover, PUBLISHER_BOUND_S, "the views name the new publisher, and the dead node's leaf is omitted"
    )

    old.start()
    farm.wait_settled()
    farm.wait_until(
        lambda: any(len(each.entries) == 3 for node in farm.nodes for each in node.published()),
        PUBLISHER_BOUND_S,
        "the restarted node's leaf is published again",
    )


@pytest.mark.search
def test_entries_survive_killing_all_nodes(farm: Farm) -> None:
    random = seeded("kill all")
    acknowledged: dict[int, str] = {}
    for round_number in range(KILL_ALL_ROUNDS):
        farm.start_all()
        farm.wait_settled()
        submitters = [Submitter(farm, [node], f"all-{round_number}-{node.name}") for node in farm.nodes]
        with submitters[0], submitters[1], submitters[2]:
            submitters[0].wait_for(1, START_BOUND_S)
            time.sleep(random.uniform(0, 1))
            for node in random.sample(farm.nodes, 3):
                node.kill()
        for submitter in submitters:
            acknowledged.update(submitter.acknowledged)
    farm.start_all()
    farm.wait_settled()
    assert acknowledged
    for node in farm.nodes:
        farm.wait_log(node, acknowledged)
    logs = [marks(node.entries()) for node in farm.nodes]
    common = min(max(log) for log in logs)
    assert len({json.dumps({i: m for i, m in log.items() if i <= common}, sort_keys=True) for log in logs}) == 1


# -- wrong addresses: a corrected configuration file is enough, with or without a leader -------------------------------


def advertising(text: str, section: str, port: int) -> str:
    """Return the settings with an advertised address without a listener."""
    return re.sub(rf"(?m)^\[{section}\]$", f'[{section}]\nadvertise = "{LOOPBACK}:{port}"', text)


def followers(farm: Farm, leader: Node) -> tuple[Node, Node]:
    first, second = (node for node in farm.nodes if node is not leader)
    return first, second


def test_wrong_raft_address_is_corrected_without_leader(farm: Farm) -> None:
    """Each of the two running nodes needs the vote of the other. Without a leader, the configuration cannot change."""
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
