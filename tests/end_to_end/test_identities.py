"""Persons decide who belongs: a new identity under an old name, a box thrown out, a directory that was copied."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.core.control import SubmitOutcome
from bridge.core.view import RaftRole
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, local_farm, tail
from tests.end_to_end.settings import addresses
from tests.end_to_end.test_membership import newcomer

pytestmark = pytest.mark.processes


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Three founders, in good order."""
    with local_farm(tmp_path / "farm", 3) as made:
        made.start_all()
        made.wait_settled()
        yield made


def nodes(node: Node) -> dict[str, dict[str, object]]:
    """`garlicfarm node list`, by id."""
    done = call("node", "list", "--json", "--node", node.directory)
    assert done.returncode == 0, done.stderr
    return {each["id"]: each for each in json.loads(done.stdout)["nodes"]}


def voters(node: Node) -> set[int]:
    """By Raft id."""
    return {voter.raft_id for voter in node.view().raft.voters}


def alarms(node: Node) -> dict[str, str]:
    """What stands on a node's board."""
    return {each.kind: f"{each.text}; {each.action}" for each in node.view().alarms}


def test_a_router_that_lost_its_state_comes_back_from_a_backup_once_it_is_approved(farm: Farm, tmp_path: Path) -> None:
    leader = farm.wait_settled()
    follower, lost = (node for node in farm.nodes if node is not leader)
    old_id = lost.view().node.node_id
    farm.wait_until(
        lambda: len([each for each in nodes(farm.nodes[0]).values() if each["name"]]) == 3, START_BOUND_S, "names"
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
        return any(each["standing"] == "waiting for approval" for each in nodes(leader).values())

    farm.wait_until(waiting, START_BOUND_S, "the new identity waits for a person")
    farm.wait_until(lambda: "admission" in alarms(leader), START_BOUND_S, "the leader says so")
    assert f"garlicfarm node approve {lost.name}" in alarms(leader)["admission"]
    refused = call("node", "approve", lost.name, "--yes", "--node", follower.directory)
    assert refused.returncode == 1
    assert f"{leader.name} does. Ask it there" in refused.stderr
    done = call("node", "approve", lost.name, "--yes", "--json", "--node", leader.directory)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["raftId"], told["retired"]["id"]) == (4, old_id)
    old_server = told["retired"]["raftId"]
    farm.wait_until(
        lambda: voters(leader) == {1, 2, 3, 4} - {old_server},
        START_BOUND_S,
        "the seat of the old one has changed hands",
    )
    assert nodes(leader)[old_id]["standing"] == "retired"
    assert lost.view().node.raft_id == 4
    assert lost.submit({"mark": "again"}).outcome is SubmitOutcome.COMMITTED


def test_an_evicted_router_is_out_for_ever_and_one_that_was_away_meanwhile_comes_back_by_itself(farm: Farm) -> None:
    stolen = newcomer(farm, "node-4")
    farm.wait_until(lambda: len(voters(stolen)) == 4, START_BOUND_S, "the fourth node votes")
    leader = farm.leader()
    if leader is stolen:
        assert call("transfer", "--node", stolen.directory).returncode == 0
        leader = farm.wait_until(
            lambda: found if (found := farm.leader()) is not stolen else None, START_BOUND_S, "else"
        )
    assert leader is not None
    stolen_id = stolen.view().node.node_id
    farm.wait_until(
        lambda: all(each["name"] for each in nodes(leader).values()),
        START_BOUND_S,
        "everybody's name and key is recorded",
    )
    away = next(node for node in farm.nodes if node not in {leader, stolen})
    away.kill()
    done = call("node", "evict", stolen_id, "--yes", "--json", "--node", leader.directory)
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["era"], json.loads(done.stdout)["sealedFor"]) == (1, 3)
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
    assert "key-retired" not in alarms(away)
    assert stolen.view().raft.role is not RaftRole.LEADER
    assert nodes(leader)[stolen_id]["standing"] == "evicted"
    primaries = {node.ask(lambda client: client.keys()).primary for node in farm.nodes}
    assert len(primaries) == 1
    assert stolen.ask(lambda client: client.keys()).primary not in primaries
    assert away.submit({"mark": "without it"}).outcome is SubmitOutcome.COMMITTED
    stolen.kill()


def test_of_a_copied_state_directory_one_process_stops_and_the_farm_goes_on(farm: Farm) -> None:
    original = next(node for node in farm.nodes if node is not farm.leader())
    original.kill()
    copy = farm.directory / "copy"
    shutil.copytree(original.directory, copy, ignore=shutil.ignore_patterns("*.sock", "*.log"))
    text = (copy / original.configuration.name).read_text()
    twin = Node(copy / original.configuration.name)
    with Farm(farm.directory, [twin]):
        gossip, consensus = addresses(original)
        for port in {address.rpartition(":")[2] for address in (gossip, consensus)}:
            text = text.replace(f":{port}", f":{int(port) + 1000 if int(port) < 60_000 else int(port) - 1000}")
        twin.configuration.write_text(text.replace(str(original.directory), str(copy)))
        original.start()
        twin.start()
        farm.wait_until(lambda: not (twin.running and original.running), START_BOUND_S, "one of the two stops")
        assert not twin.running
        said = tail(twin.log_file)
        assert "this directory is a copy" in said or "identity" in said
    farm.wait_settled()
    assert original.submit({"mark": "alone"}).outcome is SubmitOutcome.COMMITTED
