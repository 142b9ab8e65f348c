"""A false founding announced by a holder of the farm key: a node with proof of the real founding ignores it.

The proof is a founder's own promise, the cluster id in an exported key file, or a cluster id confirmed by an operator.
"""

import json
import socket
from pathlib import Path

import msgspec
import pytest

from bridge.api.control_routes import TRANSFER
from bridge.api.requests import TransferRequest
from bridge.api.view import Phase, RaftRole
from bridge.core.formation.founding import FormationNotice, FormationState, Founder, Founding
from bridge.node.membership.admissions import FILE_NAME, AdmissionFile
from bridge.wire.membership.formation_state import decode_formation_state, encode_formation_state
from gossip.node.state_files import NodeIdentity, save_identity
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, exported_key
from tests.end_to_end.liar import Liar
from tests.end_to_end.settings import LOOPBACK, addresses, free_port, node_toml

FOUNDERS = 3
UNKNOWN_NODES = (b"strang-1", b"strang-2")


def formation_of(node: Node) -> FormationState:
    return decode_formation_state((node.directory / "formation.json").read_bytes())


def real_founding(farm: Farm) -> Founding:
    founding = formation_of(farm.nodes[0]).founding
    assert founding is not None
    return founding


def forged_founding(founder: Founder) -> Founding:
    """Return a false founding with one real promise: every holder of the farm key can read promises."""
    invented = [Founder(each, founder.clock_ms, bytes(16)) for each in UNKNOWN_NODES]
    return Founding(tuple(sorted([founder, *invented], key=lambda each: each.node_id)))


def seeds_of(farm: Farm) -> list[str]:
    return [addresses(node)[0] for node in farm.nodes[:FOUNDERS]]


def formation_alarm(node: Node) -> str:
    """Return the text of the node's formation alarm, or ""."""
    return next((each.text for each in node.view().alarms if each.kind == "formation"), "")


def new_node(farm: Farm, name: str, key_file: Path) -> Node:
    """Add a node with this key file to `farm`, without a start."""
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    node = node_toml(farm.directory / name, farm_key=key_file, gossip=gossip, consensus=consensus, seeds=seeds_of(farm))
    farm.nodes.append(node)
    return node


def serves(node: Node) -> bool:
    """Return True if the node is a server with the farm's log. The sixth server stays a learner: five servers vote."""
    view = node.view()
    return view.node.raft_id is not None and view.raft.applied_index > 0


def no_founder(farm: Farm) -> Node:
    """Return a voter that is not a founder: the first one added by an earlier test, or a new one."""
    if len(farm.nodes) == FOUNDERS:
        new_node(farm, "no-founder", exported_key(farm.nodes[0], farm.directory / "no-founder.key")).start()
    node = farm.nodes[FOUNDERS]
    farm.wait_until(lambda: node.view().node.phase is Phase.FOUNDED, START_BOUND_S, f"{node.name} votes")
    return node


def led_by(farm: Farm, node: Node) -> None:
    def leads() -> bool:
        leader = farm.leader()
        if leader is not None and leader is not node:
            leader.ask(lambda client: client.call(TRANSFER, TransferRequest(node.name)))
        return leader is node

    farm.wait_until(leads, START_BOUND_S, f"{node.name} leads")


def with_identity(node: Node) -> bytes:
    """Create the identity of a node before its start; return its NodeId."""
    identity = NodeIdentity.throwaway()
    node.directory.chmod(0o700)
    save_identity(node.directory, identity)
    return identity.node_id


def test_forged_founding_is_reported_and_ignored(farm: Farm) -> None:
    # Given a farm, and an unknown node with its key, which announces another founding with one real promise
    real = real_founding(farm)
    exported = exported_key(farm.nodes[0], farm.directory / "exported.key")
    forged = forged_founding(real.promised[0])
    with Liar(farm.directory / "farm.key", seeds_of(farm), FormationNotice(founding=forged)):
        farm.wait_until(
            lambda: all(forged.cluster_id.hex() in formation_alarm(node) for node in farm.nodes),
            START_BOUND_S,
            "all members report the other founding",
        )
        assert all("announced by liar" in formation_alarm(node) for node in farm.nodes)
        # When a founder restarts with its promise and without the founding
        late = next(node for node in farm.nodes[:FOUNDERS] if node.view().raft.role is RaftRole.FOLLOWER)
        late.stop()
        state = formation_of(late)
        promise_only = FormationState(promise=state.promise, endorsed=real)
        (late.directory / "formation.json").write_bytes(encode_formation_state(promise_only))
        late.start()
        # And a node with an exported key file is added
        fourth = new_node(farm, "node-4", exported).start()
        # Then both are servers of the real farm, and count the ignored founding
        farm.wait_until(lambda: late.view().node.phase is Phase.FOUNDED, START_BOUND_S, "the founder votes again")
        farm.wait_until(lambda: serves(fourth), START_BOUND_S, "the node serves")
        farm.wait_until(
            lambda: all(node.counters().get("foundings_ignored") for node in (late, fourth)), START_BOUND_S, "counted"
        )
        farm.wait_settled()
        assert {node.view().farm.cluster_id for node in farm.nodes} == {real.cluster_id.hex()}
        assert formation_of(late).founding == real
        assert formation_of(fourth).known == real


def test_new_node_without_cluster_id_waits_for_confirmation(farm: Farm) -> None:
    real = real_founding(farm)
    forged = forged_founding(real.promised[1])
    with Liar(farm.directory / "farm.key", seeds_of(farm), FormationNotice(founding=forged)):
        # Given a node with the key file from before the founding, which discovers two clusters
        fifth = new_node(farm, "node-5", farm.directory / "farm.key").start()
        farm.wait_until(
            lambda: all(each.cluster_id.hex() in formation_alarm(fifth) for each in (real, forged)),
            START_BOUND_S,
            "the alarm names both clusters",
        )
        # Then it has not joined either cluster, and its status shows both announcers and the command
        status = call("status", "--node", fifth.directory).stdout
        assert f"cluster {forged.cluster_id.hex()} (announced by liar)" in status
        assert f"`garlicfarm confirm-cluster {real.cluster_id.hex()}`" in status
        view = fifth.view()
        assert (view.raft.role, view.farm.cluster_id) == (RaftRole.NONE, None)
        assert not (fifth.directory / "raft").exists()
        # When its operator confirms the cluster of the founders, the node joins it
        result = call("confirm-cluster", "00" * 16, "--node", fifth.directory)
        assert result.returncode == 1
        assert "no member reports cluster" in result.stderr
        done = call("confirm-cluster", real.cluster_id.hex(), "--json", "--node", fifth.directory)
        assert json.loads(done.stdout)["confirmed"] == real.cluster_id.hex()
        farm.wait_until(lambda: serves(fifth), START_BOUND_S, "the node serves")
        farm.wait_settled()
        state = formation_of(fifth)
        assert (state.known, state.confirmed) == (real, real.cluster_id)


@pytest.mark.soak
def test_wrong_raft_id_is_corrected(farm: Farm) -> None:
    # Given an unknown node that claims to belong to the real farm and announces a Raft id for a new node
    real, leader = real_founding(farm), no_founder(farm)
    sixth = new_node(farm, "node-6", exported_key(farm.nodes[0], farm.directory / "exported-6.key"))
    node_id = with_identity(sixth)
    real_notice = FormationNotice(founding=real)
    with Liar(farm.directory / "farm.key", seeds_of(farm), real_notice, ((node_id, 99),)):
        # And a stored Raft id that a member announced before its eviction
        stored = AdmissionFile(real.cluster_id.hex(), {}, announced=77)
        (sixth.directory / FILE_NAME).write_bytes(msgspec.json.encode(stored))
        # And a leader that is not a founder, so its announcement needs the admissions that lead to a founder
        led_by(farm, leader)
        sixth.start()
        # Then the node serves with the id from the log
        farm.wait_until(
            lambda: sixth.view().node.raft_id not in {None, 77}, START_BOUND_S, "the node has another Raft id"
        )
        farm.wait_settled()
        assert sixth.view().node.raft_id not in {77, 99}
        assert sixth.view().raft.applied_index, "a server with a wrong id would not receive the log"
        assert "raft-id-corrected" in sixth.log_file.read_text()
