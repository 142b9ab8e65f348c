"""Approval of a new node: a node with a copied key file waits until an operator approves it."""

import json
from collections.abc import Iterator

import pytest

from bridge.api.view import Phase, RaftRole
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, local_farm
from tests.end_to_end.test_identities import alarms, nodes
from tests.end_to_end.test_membership import add_node


@pytest.fixture(scope="module")
def approving_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Start a farm of one node that requires an operator's approval of new nodes, the default."""
    farm = local_farm(tmp_path_factory.mktemp("asking"), 1)
    for node in farm.nodes:
        text = node.configuration.read_text()
        assert text.count('admit = "all"\n') == 1
        node.configuration.write_text(text.replace('admit = "all"\n', ""))
    with farm:
        farm.start_all()
        farm.wait_settled()
        yield farm


def status_of(farm: Farm, node: Node) -> object:
    """Return the node's status in the founder's list."""
    listed = nodes(farm.nodes[0]).get(node.view().node.node_id)
    return None if listed is None else listed.standing


def test_new_node_waits_until_operator_approves_it(approving_farm: Farm) -> None:
    # Given: a farm, and a new node with its key file.
    founder = approving_farm.nodes[0]
    new_node = add_node(approving_farm, "node-2")
    approving_farm.wait_until(
        lambda: status_of(approving_farm, new_node) == "waiting for approval",
        START_BOUND_S,
        "the new node is listed as waiting",
    )
    approving_farm.wait_until(
        lambda: "waiting-for-approval" in alarms(founder),
        START_BOUND_S,
        "the leader has the alarm waiting-for-approval",
    )
    approving_farm.wait_until(
        lambda: "not-admitted" in alarms(new_node), START_BOUND_S, "the new node has the alarm not-admitted"
    )
    # Then: both alarms contain the command of the approval, and the new node does not have a Raft id or run a Raft
    # server.
    node_id = new_node.view().node.node_id
    command = f"garlicfarm node approve {node_id}"
    assert command in alarms(founder)["waiting-for-approval"]
    assert command in alarms(new_node)["not-admitted"]
    assert "waiting for approval" in call("node", "list", "--node", founder.directory).stdout
    assert (new_node.view().node.phase, new_node.view().raft.role) == (Phase.OBSERVER, RaftRole.NONE)
    assert nodes(founder)[node_id].raft_id is None
    # When: the operator enters the command.
    done = call(*command.split()[1:], "--yes", "--json", "--node", founder.directory)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["name"], document["id"], document["raftId"], document["retired"]) == ("node-2", node_id, 2, None)
    # Then: the node is a server of the farm, and the list of waiting nodes is empty.
    approving_farm.wait_until(lambda: new_node.view().node.raft_id == 2, START_BOUND_S, "the new node has Raft id 2")
    approving_farm.wait_until(
        lambda: status_of(approving_farm, new_node) == "member", START_BOUND_S, "the new node is listed as a member"
    )
    approving_farm.wait_until(
        lambda: "waiting-for-approval" not in alarms(founder), START_BOUND_S, "the leader's alarm has ended"
    )
    approving_farm.wait_until(
        lambda: "not-admitted" not in alarms(new_node), START_BOUND_S, "the new node's alarm has ended"
    )
