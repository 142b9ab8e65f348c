"""A holder of a copied farm key can announce a farm of its own: no node with a fact of the real one believes it.

The fact is a founder's own promise, the cluster id in an exported key file, or the one that an operator confirmed.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.api.view import Phase, RaftRole
from bridge.core.formation.founding import FormationNotice, FormationState, Founder, Founding
from bridge.wire.membership.formation_state import decode_formation_state, encode_formation_state
from gossip.node.state_files import NodeIdentity, save_identity
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, exported_key, local_farm
from tests.end_to_end.liar import Liar
from tests.end_to_end.settings import LOOPBACK, addresses, free_port, node_toml

FOUNDERS = 3
STRANGERS = (b"strang-1", b"strang-2")


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Three founders, in good order; each story may add servers, and none needs those of another."""
    with local_farm(tmp_path_factory.mktemp("copied"), FOUNDERS) as farm:
        farm.start_all()
        farm.wait_settled()
        yield farm


def formation_of(node: Node) -> FormationState:
    """What the node's formation file says."""
    return decode_formation_state((node.directory / "formation.json").read_bytes())


def real_founding(farm: Farm) -> Founding:
    """By the file of a founder."""
    founding = formation_of(farm.nodes[0]).founding
    assert founding is not None
    return founding


def forged_beside(founder: Founder) -> Founding:
    """A founding of the liar's making, with a real promise inside: promises are no secret among holders of the key."""
    invented = [Founder(each, founder.clock_ms, bytes(16)) for each in STRANGERS]
    return Founding(tuple(sorted([founder, *invented], key=lambda each: each.node_id)))


def seeds_of(farm: Farm) -> list[str]:
    """Where its gossip listens."""
    return [addresses(node)[0] for node in farm.nodes[:FOUNDERS]]


def formation_alarm(node: Node) -> str:
    """What formation says to the node's operator."""
    return next((each.text for each in node.view().alarms if each.kind == "formation"), "")


def newcomer(farm: Farm, name: str, key_file: Path) -> Node:
    """One more node with this key file, not started; it belongs to `farm` from here on."""
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    node = node_toml(farm.directory / name, farm_key=key_file, gossip=gossip, consensus=consensus, seeds=seeds_of(farm))
    farm.nodes.append(node)
    return node


def serves(node: Node) -> bool:
    """Whether it is a server of the farm with its log; a sixth one stays a learner, since five vote."""
    view = node.view()
    return view.node.raft_id is not None and view.raft.applied_index > 0


def no_founder(farm: Farm) -> Node:
    """A voter that is not a founder: the first that an earlier story has added, or a new one."""
    if len(farm.nodes) == FOUNDERS:
        newcomer(farm, "no-founder", exported_key(farm.nodes[0], farm.directory / "no-founder.key")).start()
    node = farm.nodes[FOUNDERS]
    farm.wait_until(lambda: node.view().node.phase is Phase.FOUNDED, START_BOUND_S, f"{node.name} votes")
    return node


def led_by(farm: Farm, node: Node) -> None:
    """Have this node lead."""

    def leads() -> bool:
        leader = farm.leader()
        if leader is not None and leader is not node:
            leader.ask(lambda client: client.transfer(node.name))
        return leader is node

    farm.wait_until(leads, START_BOUND_S, f"{node.name} leads")


def with_identity(node: Node) -> bytes:
    """Make the identity of a node before it starts; its NodeId."""
    identity = NodeIdentity.throwaway()
    node.directory.chmod(0o700)
    save_identity(node.directory, identity)
    return identity.node_id


def test_a_forged_founding_is_told_and_believed_by_no_member_and_by_no_newcomer_with_a_cluster_id(
    founded: Farm,
) -> None:
    # Given a farm, and a stranger with its key that tells of another founding with a founder's promise inside
    real = real_founding(founded)
    exported = exported_key(founded.nodes[0], founded.directory / "exported.key")
    forged = forged_beside(real.promised[0])
    with Liar(founded.directory / "farm.key", seeds_of(founded), FormationNotice(founding=forged)):
        founded.wait_until(
            lambda: all(forged.cluster_id.hex() in formation_alarm(node) for node in founded.nodes),
            START_BOUND_S,
            "every member tells of the other founding",
        )
        assert all("announced by liar" in formation_alarm(node) for node in founded.nodes)
        # When a founder starts again that remembers its promise and not the founding
        late = next(node for node in founded.nodes[:FOUNDERS] if node.view().raft.role is RaftRole.FOLLOWER)
        late.stop()
        state = formation_of(late)
        forgotten = FormationState(promise=state.promise, endorsed=real)
        (late.directory / "formation.json").write_bytes(encode_formation_state(forgotten))
        late.start()
        # And a node comes with an exported key file
        fourth = newcomer(founded, "node-4", exported).start()
        # Then both are servers of the real farm, and count what they did not believe
        founded.wait_until(lambda: late.view().node.phase is Phase.FOUNDED, START_BOUND_S, "the founder votes again")
        founded.wait_until(lambda: serves(fourth), START_BOUND_S, "the node serves")
        founded.wait_until(
            lambda: all(node.counters().get("foundings_ignored") for node in (late, fourth)), START_BOUND_S, "counted"
        )
        founded.wait_settled()
        assert {node.view().farm.cluster_id for node in founded.nodes} == {real.cluster_id.hex()}
        assert formation_of(late).founding == real
        assert formation_of(fourth).known == real


def test_a_newcomer_that_does_not_know_the_cluster_waits_until_its_operator_confirms_it(founded: Farm) -> None:
    real = real_founding(founded)
    forged = forged_beside(real.promised[1])
    with Liar(founded.directory / "farm.key", seeds_of(founded), FormationNotice(founding=forged)):
        # Given a node with the key file of the day before the founding, which discovers two clusters
        fifth = newcomer(founded, "node-5", founded.directory / "farm.key").start()
        founded.wait_until(
            lambda: all(each.cluster_id.hex() in formation_alarm(fifth) for each in (real, forged)),
            START_BOUND_S,
            "it names both clusters",
        )
        # Then it has joined neither, and says who tells of which, and what to do
        said = call("status", "--node", fifth.directory).stdout
        assert f"cluster {forged.cluster_id.hex()} (announced by liar)" in said
        assert f"`garlicfarm confirm-cluster {real.cluster_id.hex()}`" in said
        view = fifth.view()
        assert (view.raft.role, view.farm.cluster_id) == (RaftRole.NONE, None)
        assert not (fifth.directory / "raft").exists()
        # When its operator confirms the cluster that a founder shows, the newcomer joins it
        refused = call("confirm-cluster", "00" * 16, "--node", fifth.directory)
        assert refused.returncode == 1
        assert "no member reports cluster" in refused.stderr
        done = call("confirm-cluster", real.cluster_id.hex(), "--json", "--node", fifth.directory)
        assert json.loads(done.stdout)["confirmed"] == real.cluster_id.hex()
        founded.wait_until(lambda: serves(fifth), START_BOUND_S, "it serves")
        founded.wait_settled()
        state = formation_of(fifth)
        assert (state.known, state.confirmed) == (real, real.cluster_id)


def test_a_newcomer_takes_its_raft_id_from_no_stranger_and_gets_rid_of_a_wrong_one(founded: Farm) -> None:
    # Given a stranger that counts itself to the real farm and tells a newcomer a Raft id
    real, leader = real_founding(founded), no_founder(founded)
    sixth = newcomer(founded, "node-6", exported_key(founded.nodes[0], founded.directory / "exported-6.key"))
    node_id = with_identity(sixth)
    real_notice = FormationNotice(founding=real)
    with Liar(founded.directory / "farm.key", seeds_of(founded), real_notice, ((node_id, 99),)):
        # And the word of a member that was evicted since, which the newcomer had believed
        note = {"cluster": real.cluster_id.hex(), "servers": {}, "told": 77}
        (sixth.directory / "admissions.json").write_text(json.dumps(note))
        # And a leader that is no founder, so that its word needs the admissions that lead to one
        led_by(founded, leader)
        sixth.start()
        # Then it serves under the id that the log has given it
        founded.wait_until(
            lambda: sixth.view().node.raft_id not in {None, 77}, START_BOUND_S, "its Raft id is corrected"
        )
        founded.wait_settled()
        assert sixth.view().node.raft_id not in {77, 99}
        assert sixth.view().raft.applied_index, "under a wrong id no server of the farm would have given it the log"
        assert "raft-id-corrected" in sixth.log_file.read_text()
