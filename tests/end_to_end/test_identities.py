"""Identities and operators: a new identity under an old name, an evicted node, a copied directory, a cloned disk."""

import json
import re
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.api.control import IdentityView, SubmitOutcome
from bridge.api.control_routes import KEYS, NODES
from bridge.api.view import RaftRole
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from consensus.storage.directory import Directory
from consensus.storage.hard_state import HardStateFile
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, tail
from tests.end_to_end.settings import copy_of
from tests.end_to_end.test_membership import add_node


def nodes(node: Node) -> dict[str, IdentityView]:
    """Return the rows of `garlicfarm node list`, by id."""
    return {each.id: each for each in node.ask(lambda client: client.call(NODES)).nodes}


def voters(node: Node) -> set[int]:
    return {voter.raft_id for voter in node.view().raft.voters}


def alarms(node: Node) -> dict[str, str]:
    return {each.kind: f"{each.text}; {each.action}" for each in node.view().alarms}


@pytest.mark.soak
def test_node_without_state_joins_from_backup_after_approval(farm: Farm, tmp_path: Path) -> None:
    leader = farm.wait_settled()
    follower, lost = (node for node in farm.nodes if node is not leader)
    old_id = lost.view().node.node_id
    farm.wait_until(
        lambda: len([each for each in nodes(farm.nodes[0]).values() if each.name]) == 3, START_BOUND_S, "names"
    )
    backup = tmp_path / "farm.backup"
    assert call("backup", backup, "--node", lost.directory).returncode == 0
    assert backup.stat().st_mode & 0o777 == 0o600
    lost.kill()
    before = lost.directory.rename(farm.directory / "lost")
    done = call("restore", backup, "--state-dir", lost.directory)
    assert done.returncode == 0, done.stderr
    for file in before.iterdir():
        if file.suffix in {".toml", ".key"}:
            shutil.copy2(file, lost.directory)
    lost.start()

    def waiting() -> bool:
        return any(each.standing == "waiting for approval" for each in nodes(leader).values())

    farm.wait_until(waiting, START_BOUND_S, "the new identity waits for approval")
    # Until gossip marks the old identity dead, the alarm describes two running nodes with one name.
    approval = f"garlicfarm node approve {lost.name}"
    farm.wait_until(lambda: approval in alarms(leader).get("admission", ""), START_BOUND_S, "the leader's alarm")
    farm.wait_until(lambda: nodes(leader)[old_id].status == "dead", START_BOUND_S, "gossip marks the old identity dead")
    # The command goes to a follower and continues at the leader, whose state directory is next to the follower's.
    done = call("node", "approve", lost.name, "--yes", "--json", "--node", follower.directory)
    assert done.returncode == 0, done.stderr
    assert f"{leader.name} leads; the command continues there." in done.stderr
    document = json.loads(done.stdout)
    assert (document["raftId"], document["retired"]["id"]) == (4, old_id)
    old_server = document["retired"]["raftId"]
    farm.wait_until(
        lambda: voters(leader) == {1, 2, 3, 4} - {old_server}, START_BOUND_S, "the new server has replaced the old one"
    )
    listed = call("node", "list", "--node", leader.directory)
    assert re.search(rf"{old_id} +{lost.name} +{old_server} +retired", listed.stdout), listed.stdout + listed.stderr
    assert lost.view().node.raft_id == 4
    assert lost.submit({"mark": "again"}).outcome is SubmitOutcome.COMMITTED


def test_evicted_node_stays_excluded_while_offline_node_returns(farm: Farm) -> None:
    before, era = voters(farm.nodes[0]), farm.nodes[0].ask(lambda client: client.call(KEYS)).era or 0
    stolen = add_node(farm, "node-4")
    farm.wait_until(lambda: len(voters(stolen)) == 4, START_BOUND_S, "the fourth node votes")
    leader = farm.led_by_another(stolen)
    stolen_id = stolen.view().node.node_id
    farm.wait_until(
        lambda: all(each.name for each in nodes(leader).values()), START_BOUND_S, "each name and key is recorded"
    )
    offline = next(node for node in farm.nodes if node not in {leader, stolen})
    offline.kill()
    done = farm.wait_done("node", "evict", stolen_id, "--yes", "--json", at=lambda: farm.led_by_another(stolen))
    document = json.loads(done.stdout)
    assert (document["era"], document["sealedFor"]) == (era + 1, 3)
    assert not document["votesStill"], (
        "the evicted server is removed: otherwise the other two are not a majority of four"
    )
    assert stolen.wait_end(START_BOUND_S) == 1
    assert f"the identity {stolen_id} was evicted, and is never admitted again" in tail(stolen.log_file)
    farm.wait_until(lambda: voters(leader) == before, START_BOUND_S, "the evicted server is removed from the group")
    stolen.start()
    assert stolen.wait_end(START_BOUND_S) == 1, "the node stops again after a restart"
    # A thief can remove the file with the eviction. Then the other nodes refuse the old key.
    (stolen.directory / "admissions.json").unlink()
    stolen.start()
    farm.wait_until(
        lambda: "key-retired" in alarms(stolen), START_BOUND_S, "the evicted node has the alarm key-retired"
    )
    offline.start()
    farm.nodes.remove(stolen)
    farm.wait_until(
        lambda: offline.view().raft.applied_index >= leader.view().raft.commit_index > 0,
        START_BOUND_S,
        "the offline node has applied the log",
    )
    # The log contains the new key, sealed for the node. The node uses it a moment later.
    farm.wait_until(lambda: "key-retired" not in alarms(offline), START_BOUND_S, "the offline node uses the new key")
    assert stolen.view().raft.role is not RaftRole.LEADER
    assert nodes(leader)[stolen_id].standing == "evicted"

    def primaries() -> set[str]:
        return {node.ask(lambda client: client.call(KEYS)).primary for node in farm.nodes}

    farm.wait_until(lambda: len(primaries()) == 1, START_BOUND_S, "all nodes have the new key")
    assert stolen.ask(lambda client: client.call(KEYS)).primary not in primaries()
    assert offline.submit({"mark": "without it"}).outcome is SubmitOutcome.COMMITTED
    stolen.kill()


def mark_as_cloned_disk(node: Node) -> None:
    """Store the copy's own place in its hard state, so that it looks like a clone of a whole disk."""
    directory = Directory(node.directory / RAFT_DIRECTORY)
    hard_state, _ = HardStateFile.read(directory)
    directory.perform_all(hard_state.plan(replace(hard_state.state, place=directory.place)))
    directory.close()


def test_copy_of_state_directory_stops(farm: Farm) -> None:
    original = next(node for node in farm.nodes if node is not farm.leader())
    original.kill()
    with Farm(farm.directory, [copy_of(original, farm.directory / "copy")]) as others:
        [second] = others.nodes
        second.start()
        assert second.wait_end(START_BOUND_S) == 1
        assert "this directory is a copy: it was created in another place" in tail(second.log_file)
        original.start()
        farm.wait_settled()
    assert original.submit({"mark": "alone"}).outcome is SubmitOutcome.COMMITTED


def test_cloned_disk_stops_before_second_leader_in_term(farm: Farm) -> None:
    original = next(node for node in farm.nodes if node is not farm.leader())
    others = [node for node in farm.nodes if node is not original]
    original.kill()
    second = copy_of(original, farm.directory / "clone")
    mark_as_cloned_disk(second)
    both = [original, second]
    earlier = original.log_file.read_text()
    with Farm(farm.directory, [second]):
        for node in both:
            node.start()
        farm.wait_until(lambda: not all(node.running for node in both), START_BOUND_S, "one of the two nodes stops")
        [stopped] = [node for node in both if not node.running]
        # Check only the current run: the node may have been elected earlier.
        current_log = stopped.log_file.read_text().removeprefix(earlier)
        assert "live node" in current_log or "another process" in current_log, current_log
        assert "election-started" not in current_log
        farm.wait_until(lambda: len(voters(others[0])) == 3, START_BOUND_S, "the group has its three voters")
        assert others[0].submit({"mark": "one of them"}).outcome is SubmitOutcome.COMMITTED
        assert others[1].submit({"mark": "and on"}).outcome is SubmitOutcome.COMMITTED
    led = re.findall(
        r"leader-elected: .* in term (\d+)", "".join(tail(node.log_file) for node in (*farm.nodes, second))
    )
    assert len(set(led)) == len(led), "one leader per term"
