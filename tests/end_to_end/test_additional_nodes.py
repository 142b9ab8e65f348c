"""Additional nodes: a node that is not a founder, a second node with a used identity, and a server without its log."""

import shutil
from pathlib import Path

from bridge.api.control import SubmitOutcome
from bridge.api.view import Phase, RaftRole
from tests.end_to_end.farm import END_BOUND_S, START_BOUND_S, Farm, Node, exported_key, tail
from tests.end_to_end.settings import copy_of

STATE = ("identity.pem", "generation", "formation.json", "raft", "tls.pem", "published")


def copied_node(farm: Farm, directory: Path, *without: str) -> Farm:
    """Return a copy of the shared farm's second node, as a separate farm, so that it is always ended."""
    return Farm(directory, [copy_of(farm.nodes[1], directory / "extra", *without)])


def test_node_without_founding_observes_without_disturbance(farm: Farm, tmp_path: Path) -> None:
    before = farm.nodes[0].view()
    here = {member.node_id for member in before.members}
    with copied_node(farm, tmp_path, *STATE) as observers:
        (observer,) = observers.nodes
        key_file = exported_key(farm.nodes[0], tmp_path / "exported.key")
        text = observer.configuration.read_text()
        observer.configuration.write_text(text.replace(str(farm.directory / "farm.key"), str(key_file)))
        observer.start()

        def observes() -> bool:
            view = observer.view()
            return view.node.phase is Phase.OBSERVER and here < {member.node_id for member in view.members}

        observers.wait_until(observes, START_BOUND_S, "the fourth node observes, and has discovered the others")
        view = observer.view()
        assert view.farm.cluster_id == before.farm.cluster_id
        assert view.raft.role is RaftRole.NONE
        assert observer.submit({"mark": "observer"}).outcome is SubmitOutcome.REFUSED
        assert observer.stop() == 0
        assert "election-started" not in observer.log_file.read_text()
    after = farm.wait_settled().view()
    assert (after.raft.term, after.raft.leader_id) == (before.raft.term, before.raft.leader_id)
    assert after.raft.voters == before.raft.voters


def test_duplicate_identity_stops_one_node(farm: Farm, tmp_path: Path) -> None:
    """Either node may discover the other first. The original returns when the copy has ended.

    The copy lacks all files with its Raft id: with the id, but without the storage, it would stop for another reason.
    """
    original = farm.nodes[1]
    with copied_node(farm, tmp_path, "formation.json", "admissions.json", "raft", "raft-made") as copies:
        copy = copies.nodes[0].start()

        def stopped() -> Node | None:
            return next((node for node in (original, copy) if not node.running), None)

        node = copies.wait_until(stopped, START_BOUND_S, "one of the two nodes stops")
        assert node.wait_end(END_BOUND_S) == 1
        assert "another live node at" in tail(node.log_file)
        assert "give one of them a fresh state directory" in tail(node.log_file)
        assert not (copy.directory / "raft").exists()
    farm.start_all()
    farm.wait_settled()


def test_server_without_its_log_does_not_return_as_voter(farm: Farm, tmp_path: Path) -> None:
    """The acknowledgments and votes of the server are unknown. Under the same Raft id it could contradict both."""
    node = farm.nodes[2]
    node.stop()
    moved_log = tmp_path / "raft"
    shutil.move(node.directory / "raft", moved_log)
    node.start()
    assert node.wait_end(END_BOUND_S) == 1
    assert "new state directory" in tail(node.log_file)
    # The directory is the same again: a rename keeps its inode.
    shutil.rmtree(node.directory / "raft", ignore_errors=True)
    moved_log.rename(node.directory / "raft")
    node.start()
    farm.wait_settled()
