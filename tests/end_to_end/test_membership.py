"""Changes of the group in a running farm: a server joins and votes, leaves and is removed, or fails and is replaced."""

import socket
from collections.abc import Iterator

import pytest

from bridge.api.control_routes import LEAVE
from bridge.api.view import Phase, RaftRole, ServerRole
from tests.end_to_end.farm import LEADER_BOUND_S, START_BOUND_S, Farm, Node, call, exported_key, local_farm
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml
from tests.end_to_end.submitter import Submitter

GRACE_S = 3


@pytest.fixture(scope="module")
def shared_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Start a farm of three, each with a grace time of seconds."""
    farm = local_farm(tmp_path_factory.mktemp("growing"), 3)
    for node in farm.nodes:
        set_short_grace(node)
    with farm:
        farm.start_all()
        yield farm


def set_short_grace(node: Node) -> Node:
    """Set a grace time of seconds instead of minutes."""
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace("[consensus]\n", f"[consensus]\ngrace_ms = {GRACE_S * 1000}\n"))
    return node


def add_node(farm: Farm, name: str) -> Node:
    """Add a node to `farm`, with an exported key file and the others as seeds, and start it."""
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    seeds = [member.address for member in farm.nodes[0].view().members if member.address is not None]
    key_file = exported_key(farm.nodes[0], farm.directory / f"{name}.key")
    node = node_toml(farm.directory / name, farm_key=key_file, gossip=gossip, consensus=consensus, seeds=seeds)
    farm.nodes.append(set_short_grace(node))
    return node.start()


def voters(node: Node) -> set[str | None]:
    return {voter.name for voter in node.view().raft.voters}


def fourth_of(farm: Farm) -> Node:
    """Return the fourth voter: a node that an earlier test has added, or a new node."""
    is_new = len(farm.nodes) == 3
    fourth = add_node(farm, "node-4") if is_new else farm.nodes[3]
    farm.wait_until(lambda: len(voters(fourth)) == 4, START_BOUND_S, "the fourth node votes")

    def log_packs_sent() -> bool:
        return any(node.counters().get("garlic_farm_log_packs_sent") for node in farm.nodes)

    if is_new:
        farm.wait_until(log_packs_sent, START_BOUND_S, "a server sent the log in packs")
    return fourth


def leave_three(farm: Farm) -> None:
    """Reduce the farm to the founders, if an earlier test has added a fourth voter. The next test starts it again."""
    for fourth in farm.nodes[3:]:
        fourth.ask(lambda client: client.call(LEAVE))
        assert fourth.wait_end(START_BOUND_S) == 0
        farm.wait_until(lambda: len(voters(farm.nodes[0])) == 3, START_BOUND_S, "the fourth voter is removed")


def test_node_leaving_minimal_farm_stays_voter(farm: Farm) -> None:
    leave_three(farm)
    leaving = farm.nodes[2]
    leaving.ask(lambda client: client.call(LEAVE))
    assert leaving.wait_end(START_BOUND_S) == 0

    def is_reported() -> bool:
        leader = farm.leader()
        waits = () if leader is None else leader.view().raft.waits
        return any("node-3 has left; not removed: a farm of 3 needs another voter" in text for text in waits)

    farm.wait_until(is_reported, START_BOUND_S, "the leader reports the reason of its wait")
    assert len(voters(farm.nodes[0])) == 3


def test_leaving_node_removes_its_leaf_before_report_is_stale(farm: Farm) -> None:
    observer, before = farm.nodes[0], len(farm.nodes)

    def leaves(count: int) -> bool:
        shown = observer.view().publishing
        return bool(shown) and len(shown[0].entries) == count

    farm.wait_until(lambda: leaves(before), START_BOUND_S, "every leaf is published")
    leaving = next(node for node in farm.nodes[1:] if node.view().publishing[0].publisher_name != node.name)
    raft_id = leaving.view().node.raft_id
    leaving.ask(lambda client: client.call(LEAVE))

    def last_report() -> bool:
        return any(
            report.raft_id == raft_id and report.destinations == 0 and not report.stale
            for report in observer.view().reports
        )

    farm.wait_until(last_report, START_BOUND_S, "the last report without leaves is fresh")
    farm.wait_until(lambda: leaves(before - 1), START_BOUND_S, "the structure does not contain its leaf")
    assert leaving.wait_end(START_BOUND_S) == 0


def test_farm_with_fourth_voter_works_after_loss_of_leader(farm: Farm) -> None:
    with Submitter(farm, farm.nodes[:3], "joining") as submitter:
        fourth = fourth_of(farm)
        submitter.wait_for(5, START_BOUND_S)
        leader = farm.led_by_another(fourth)
        others = {node.name for node in farm.nodes} - {leader.name}
        farm.wait_until(
            lambda: {link.name for link in leader.view().raft.links} == others,
            START_BOUND_S,
            "the leader has links to all others",
        )
        assert all("configurations" in link.extensions for link in leader.view().raft.links if link.connected)

        def follows() -> bool:
            farm.led_by_another(fourth)
            view = fourth.view()
            return (view.node.raft_id, view.node.phase, view.raft.role) == (4, Phase.FOUNDED, RaftRole.FOLLOWER)

        farm.wait_until(follows, START_BOUND_S, "the fourth node is a follower")
        submitter.wait_for(5, START_BOUND_S)
    voting = dict.fromkeys(("node-1", "node-2", "node-3", "node-4"), ServerRole.VOTER)
    farm.wait_until(
        lambda: {m.name: m.server_role for m in leader.view().members} == voting,
        START_BOUND_S,
        "the leader shows all members as voters",
    )
    leader = farm.led_by_another(fourth)
    leader.kill()

    def is_removed() -> bool:
        found = farm.leader()
        return found is not None and voters(found) == {node.name for node in farm.nodes} - {leader.name}

    farm.wait_until(farm.leader, LEADER_BOUND_S, "another server leads")
    assert fourth.submit({"mark": "after the leader's death"}).index is not None
    farm.wait_until(is_removed, START_BOUND_S, "the dead server is removed after the grace time")
    farm.wait_log(fourth, submitter.acknowledged)
    assert submitter.errors == []
    leader.start()
    farm.wait_until(lambda: len(voters(leader)) == 4, START_BOUND_S, "the restarted server votes again")


def test_leaving_node_is_removed_and_returns_with_its_raft_id(farm: Farm) -> None:
    fourth_of(farm)
    leader = farm.wait_settled()
    raft_id = leader.view().node.raft_id
    assert call("leave", "--yes", "--node", leader.directory).returncode == 0
    assert leader.wait_end(START_BOUND_S) == 0
    others = [node for node in farm.nodes if node is not leader]
    farm.wait_until(
        lambda: all(len(voters(node)) == 3 for node in others), START_BOUND_S, "the leaving server is removed"
    )
    roles = {**{node.name: ServerRole.VOTER for node in others}, leader.name: ServerRole.REMOVED}
    farm.wait_until(
        lambda: {member.name: member.server_role for member in others[0].view().members} == roles,
        START_BOUND_S,
        "the roles of all members are shown",
    )
    assert others[0].submit({"mark": "without it"}).index is not None
    leader.start()
    farm.wait_until(lambda: len(voters(leader)) == 4, START_BOUND_S, "the restarted server votes again")
    assert leader.view().node.raft_id == raft_id
