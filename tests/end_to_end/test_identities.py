"""Operators decide which nodes belong: a new identity under an old name, an expelled node, a copied directory."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.api.control import IdentityView, SubmitOutcome
from bridge.api.view import RaftRole
from bridge.node.control.client import ControlClient
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from consensus.storage.directory import Directory
from consensus.storage.hard_state import HardStateFile
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, local_farm, tail
from tests.end_to_end.settings import copy_of
from tests.end_to_end.test_membership import newcomer


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Three founders, in good order."""
    with local_farm(tmp_path / "farm", 3) as made:
        made.start_all()
        made.wait_settled()
        yield made


@pytest.fixture(scope="module")
def own_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """One for both stories of copied nodes, which leave it as it was."""
    with local_farm(tmp_path_factory.mktemp("copies"), 3) as made:
        yield made


@pytest.fixture
def standing(own_farm: Farm) -> Farm:
    """In good order."""
    own_farm.start_all()
    own_farm.wait_settled()
    return own_farm


def nodes(node: Node) -> dict[str, IdentityView]:
    """What `garlicfarm node list` shows, by id."""
    return {each.id: each for each in node.ask(ControlClient.nodes).nodes}


def voters(node: Node) -> set[int]:
    """By Raft id."""
    return {voter.raft_id for voter in node.view().raft.voters}


def alarms(node: Node) -> dict[str, str]:
    """What stands on a node's board."""
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

    farm.wait_until(waiting, START_BOUND_S, "the new identity waits for a person")
    # Until gossip has seen the old identity die, the alarm is about two running nodes with one name.
    approval = f"garlicfarm node approve {lost.name}"
    farm.wait_until(lambda: approval in alarms(leader).get("admission", ""), START_BOUND_S, "the leader's alarm")
    refused = follower.ask(lambda client: client.request("POST", "/v1/nodes/approve", b'{"node":"x"}'))
    assert refused[0] == 409
    assert f"{leader.name} (127.0.0.1:".encode() in refused[1]
    farm.wait_until(lambda: nodes(leader)[old_id].status == "dead", START_BOUND_S, "gossip has seen the old one die")
    # The command is given a follower, and goes to the leader, whose state directory lies beside that one's.
    done = call("node", "approve", lost.name, "--yes", "--json", "--node", follower.directory)
    assert done.returncode == 0, done.stderr
    assert f"{leader.name} leads; the command continues there." in done.stderr
    told = json.loads(done.stdout)
    assert (told["raftId"], told["retired"]["id"]) == (4, old_id)
    old_server = told["retired"]["raftId"]
    farm.wait_until(
        lambda: voters(leader) == {1, 2, 3, 4} - {old_server},
        START_BOUND_S,
        "the seat of the old one has changed hands",
    )
    listed = call("node", "list", "--node", leader.directory)
    assert re.search(rf"{old_id} +{lost.name} +{old_server} +retired", listed.stdout), listed.stdout + listed.stderr
    assert lost.view().node.raft_id == 4
    assert lost.submit({"mark": "again"}).outcome is SubmitOutcome.COMMITTED


def test_evicted_node_stays_out_while_an_offline_node_returns(farm: Farm) -> None:
    stolen = newcomer(farm, "node-4")
    farm.wait_until(lambda: len(voters(stolen)) == 4, START_BOUND_S, "the fourth node votes")
    leader = farm.led_by_another(stolen)
    stolen_id = stolen.view().node.node_id
    farm.wait_until(
        lambda: all(each.name for each in nodes(leader).values()),
        START_BOUND_S,
        "each name and key is recorded",
    )
    away = next(node for node in farm.nodes if node not in {leader, stolen})
    away.kill()
    done = farm.wait_done("node", "evict", stolen_id, "--yes", "--json", at=lambda: farm.led_by_another(stolen))
    told = json.loads(done.stdout)
    assert (told["era"], told["sealedFor"]) == (1, 3)
    assert not told["votesStill"], "with one node away and this one silent the other two would be no majority of four"
    assert stolen.ended(START_BOUND_S) == 1
    assert f"the identity {stolen_id} was evicted, and is never admitted again" in tail(stolen.log_file)
    farm.wait_until(lambda: voters(leader) == {1, 2, 3}, START_BOUND_S, "its server is out of the group")
    stolen.start()
    farm.wait_until(lambda: "key-retired" in alarms(stolen), START_BOUND_S, "it is refused with the keys that it has")
    away.start()
    farm.nodes.remove(stolen)
    farm.wait_until(
        lambda: away.view().raft.applied_index >= leader.view().raft.commit_index > 0, START_BOUND_S, "it has the log"
    )
    # With the log it has its box; to open that and to be heard with the new key takes a moment.
    farm.wait_until(lambda: "key-retired" not in alarms(away), START_BOUND_S, "it is heard with the new key")
    assert stolen.view().raft.role is not RaftRole.LEADER
    assert nodes(leader)[stolen_id].standing == "evicted"

    def primaries() -> set[str]:
        return {node.ask(lambda client: client.keys()).primary for node in farm.nodes}

    farm.wait_until(lambda: len(primaries()) == 1, START_BOUND_S, "all have the new key")
    assert stolen.ask(lambda client: client.keys()).primary not in primaries()
    assert away.submit({"mark": "without it"}).outcome is SubmitOutcome.COMMITTED
    stolen.kill()


def as_a_cloned_disk_has_it(node: Node) -> None:
    """Give the copied storage the mark of its place, which a clone of a whole disk would have as well."""
    directory = Directory(node.directory / RAFT_DIRECTORY)
    hard_state, _ = HardStateFile.read(directory)
    directory.perform_all(hard_state.plan(replace(hard_state.state, place=directory.place)))
    directory.close()


def test_of_a_copied_state_directory_the_copy_stops_and_the_farm_goes_on(standing: Farm) -> None:
    original = next(node for node in standing.nodes if node is not standing.leader())
    original.kill()
    with Farm(standing.directory, [copy_of(original, standing.directory / "copy")]) as others:
        [second] = others.nodes
        second.start()
        assert second.ended(START_BOUND_S) == 1
        assert "this directory is a copy: it was created in another place" in tail(second.log_file)
        original.start()
        standing.wait_settled()
    assert original.submit({"mark": "alone"}).outcome is SubmitOutcome.COMMITTED


def test_of_a_cloned_disk_one_stops_before_it_votes_and_no_term_has_two_leaders(standing: Farm) -> None:
    original = next(node for node in standing.nodes if node is not standing.leader())
    others = [node for node in standing.nodes if node is not original]
    original.kill()
    second = copy_of(original, standing.directory / "clone")
    as_a_cloned_disk_has_it(second)
    both = [original, second]
    earlier = original.log_file.read_text()
    with Farm(standing.directory, [second]):
        for node in both:
            node.start()
        standing.wait_until(lambda: not all(node.running for node in both), START_BOUND_S, "one of the two stops")
        [stopped] = [node for node in both if not node.running]
        # In its present life: it may have been elected in an earlier one.
        said = stopped.log_file.read_text().removeprefix(earlier)
        assert "live node" in said or "another process" in said, said
        assert "election-started" not in said
        standing.wait_until(lambda: voters(others[0]) == {1, 2, 3}, START_BOUND_S, "the farm stands")
        assert others[0].submit({"mark": "one of them"}).outcome is SubmitOutcome.COMMITTED
        assert others[1].submit({"mark": "and on"}).outcome is SubmitOutcome.COMMITTED
    led = re.findall(
        r"leader-elected: .* in term (\d+)", "".join(tail(node.log_file) for node in (*standing.nodes, second))
    )
    assert len(set(led)) == len(led), "one leader a term"
