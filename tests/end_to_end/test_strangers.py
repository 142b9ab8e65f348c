"""Nodes that are one too many: a late node, a copy of a running one, a server that came back without its storage."""

import shutil
from pathlib import Path

from bridge.api.control import SubmitOutcome
from bridge.api.view import Phase, RaftRole
from tests.end_to_end.farm import END_BOUND_S, START_BOUND_S, Farm, Node, exported_key, tail
from tests.end_to_end.settings import copy_of

STATE = ("identity.pem", "generation", "formation.json", "raft", "tls.pem", "published")


def extra(farm: Farm, directory: Path, *without: str) -> Farm:
    """A copy of the standing farm's second node, as a farm of its own so that it is ended in any case."""
    return Farm(directory, [copy_of(farm.nodes[1], directory / "extra", *without)])


def test_node_that_is_not_a_founder_observes_without_disturbance(lan_timing_farm: Farm, tmp_path: Path) -> None:
    farm = lan_timing_farm
    before = farm.wait_settled().view()
    here = {member.node_id for member in before.members}
    with extra(farm, tmp_path, *STATE) as strangers:
        (stranger,) = strangers.nodes
        key_file = exported_key(farm.nodes[0], tmp_path / "exported.key")
        text = stranger.configuration.read_text()
        stranger.configuration.write_text(text.replace(str(farm.directory / "farm.key"), str(key_file)))
        stranger.start()

        def observes() -> bool:
            view = stranger.view()
            return view.node.phase is Phase.OBSERVER and here < {member.node_id for member in view.members}

        strangers.wait_until(observes, START_BOUND_S, "the fourth node observes, and sees the others")
        view = stranger.view()
        assert view.farm.cluster_id == before.farm.cluster_id
        assert view.raft.role is RaftRole.NONE
        assert stranger.submit({"mark": "observer"}).outcome is SubmitOutcome.REFUSED
        assert stranger.stop() == 0
        assert "election-started" not in stranger.log_file.read_text()
    after = farm.wait_settled().view()
    assert (after.raft.term, after.raft.leader_id) == (before.raft.term, before.raft.leader_id)
    assert after.raft.voters == before.raft.voters


def test_a_copy_of_a_running_node_stops_and_says_why(farm: Farm, tmp_path: Path) -> None:
    with extra(farm, tmp_path) as copies:
        copy = copies.nodes[0].start()
        assert copy.wait_end(END_BOUND_S) == 1
        said = tail(copy.log_file)
        assert "this directory is a copy" in said or "another live node at" in said
    farm.wait_settled()


def test_of_two_live_nodes_with_one_identity_one_stops_and_the_copy_never_becomes_a_voter(
    farm: Farm, tmp_path: Path
) -> None:
    """Which one hears of the other first is open; the farm's own returns with its directory when the copy is gone.

    The copy has nothing that tells its Raft id: with that, and without the storage, it would stop for another reason.
    """
    original = farm.nodes[1]
    with extra(farm, tmp_path, "formation.json", "admissions.json", "raft", "raft-made") as copies:
        copy = copies.nodes[0].start()

        def stopped() -> Node | None:
            return next((node for node in (original, copy) if not node.running), None)

        node = copies.wait_until(stopped, START_BOUND_S, "one of the two stops")
        assert node.wait_end(1) == 1
        assert "another live node at" in tail(node.log_file)
        assert "give one of them a fresh state directory" in tail(node.log_file)
        assert not (copy.directory / "raft").exists()
    farm.start_all()
    farm.wait_settled()


def test_a_server_whose_log_was_removed_does_not_come_back_as_the_same_voter(farm: Farm, tmp_path: Path) -> None:
    """What it had acknowledged and voted for is unknown now; under the same Raft id it could undo both."""
    node = farm.nodes[2]
    node.stop()
    kept = tmp_path / "raft"
    shutil.move(node.directory / "raft", kept)
    node.start()
    assert node.wait_end(END_BOUND_S) == 1
    assert "new state directory" in tail(node.log_file)
    # The directory is the same one again: a rename keeps its inode.
    shutil.rmtree(node.directory / "raft", ignore_errors=True)
    kept.rename(node.directory / "raft")
    node.start()
    farm.wait_settled()
