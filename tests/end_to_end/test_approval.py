"""A copied key file is an invitation to ask: a node that has it waits, visibly, until an operator approves it."""

import json
from collections.abc import Iterator

import pytest

from bridge.api.view import Phase, RaftRole
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, local_farm
from tests.end_to_end.test_identities import alarms, nodes
from tests.end_to_end.test_membership import newcomer


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm of one node, which waits for an operator's approval of new nodes, the default."""
    farm = local_farm(tmp_path_factory.mktemp("asking"), 1)
    for node in farm.nodes:
        text = node.configuration.read_text()
        assert text.count('admit = "all"\n') == 1
        node.configuration.write_text(text.replace('admit = "all"\n', ""))
    with farm:
        farm.start_all()
        farm.wait_settled()
        yield farm


def standing(farm: Farm, node: Node) -> object:
    """What the node is to the farm, by the founder's list."""
    listed = nodes(farm.nodes[0]).get(node.view().node.node_id)
    return None if listed is None else listed.standing


def test_a_newcomer_with_the_key_file_waits_for_an_operator_and_both_screens_show_the_command(asking: Farm) -> None:
    # Given: a farm, and a node that comes with its key file.
    founder = asking.nodes[0]
    came = newcomer(asking, "node-2")
    asking.wait_until(lambda: standing(asking, came) == "waiting for approval", START_BOUND_S, "it is listed")
    asking.wait_until(lambda: "waiting-for-approval" in alarms(founder), START_BOUND_S, "the leader tells of it")
    asking.wait_until(lambda: "not-admitted" in alarms(came), START_BOUND_S, "its own screen tells of it")
    # Then: both tell the command, and it has no Raft id and no server.
    node_id = came.view().node.node_id
    typed = f"garlicfarm node approve {node_id}"
    assert typed in alarms(founder)["waiting-for-approval"]
    assert typed in alarms(came)["not-admitted"]
    assert "waiting for approval" in call("node", "list", "--node", founder.directory).stdout
    assert (came.view().node.phase, came.view().raft.role) == (Phase.OBSERVER, RaftRole.NONE)
    assert nodes(founder)[node_id].raft_id is None
    # When: the operator types it.
    done = call(*typed.split()[1:], "--yes", "--json", "--node", founder.directory)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["name"], told["id"], told["raftId"], told["retired"]) == ("node-2", node_id, 2, None)
    # Then: it is a server of the farm, and no node waits any more.
    asking.wait_until(lambda: came.view().node.raft_id == 2, START_BOUND_S, "its server runs")
    asking.wait_until(lambda: standing(asking, came) == "member", START_BOUND_S, "it is a member")
    asking.wait_until(lambda: "waiting-for-approval" not in alarms(founder), START_BOUND_S, "no node waits")
    asking.wait_until(lambda: "not-admitted" not in alarms(came), START_BOUND_S, "it knows")
