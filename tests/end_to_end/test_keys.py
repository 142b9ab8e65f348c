"""The farm's keys change while it runs: it goes on, restarted nodes come back, and an old file is reported."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.api.control import SubmitOutcome
from bridge.node.local.farm_files import LOOPBACK
from bridge.node.security.key_files import load_farm_key
from bridge.wire.keys.farm_key import FarmKey
from consensus.net.tls import load_or_create_certificate
from consensus.protocols.garlic_farm.node.connectors import TlsConnector
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from gossip.core.member import Incarnation, NodeId, Status
from gossip.core.messages import KeyringUpdate, Payload, PingRequest, VerdictUpdate
from gossip.node.state_files import KEYS_FILE
from gossip.wire.codec import encode
from gossip.wire.identity import Signer, sign_keys
from gossip.wire.seal import SALT_BYTES, Sealed
from tests.end_to_end.farm import LEADER_BOUND_S, START_BOUND_S, Farm, Node, call, local_farm
from tests.end_to_end.settings import addresses, free_port, node_toml
from tests.end_to_end.submitter import Submitter


@pytest.fixture(scope="module")
def own_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm of this module's own: the standing one keeps its keys."""
    with local_farm(tmp_path_factory.mktemp("keys"), 3) as farm:
        farm.start_all()
        yield farm


@pytest.fixture
def farm(own_farm: Farm) -> Farm:
    """In good order."""
    own_farm.start_all()
    own_farm.wait_settled()
    own_farm.wait_known()
    return own_farm


def keys(farm: Farm, *arguments: str | Path, node: Node | None = None) -> dict[str, object]:
    """The document of one `keys` command."""
    done = farm.wait_done("keys", *arguments, "--json", at=lambda: node or farm.nodes[0])
    found: dict[str, object] = json.loads(done.stdout)
    return found


def alarms(node: Node) -> dict[str, str]:
    """What stands on a node's board."""
    return {each.kind: f"{each.text}; {each.action}" for each in node.view().alarms}


def test_a_rotation_under_load_loses_nothing_and_the_next_leader_is_elected_with_the_new_keys(
    lan_timing_farm: Farm,
) -> None:
    farm = lan_timing_farm
    before = farm.nodes[0].view().raft.term
    with Submitter(farm, farm.nodes, "rotated") as submitter:
        submitter.wait_for(5, START_BOUND_S)
        done = keys(farm, "rotate")
        submitter.wait_for(5, START_BOUND_S)
    assert not submitter.errors
    assert done["rotated"] is True
    views = [node.view() for node in farm.nodes]
    assert {view.raft.term for view in views} == {before}, "no connection that carried Raft ended"
    assert not any(node.counters().get("garlic_farm_wrong_credentials") for node in farm.nodes)
    leader = farm.wait_settled()
    leader.kill()
    survivors = [node for node in farm.nodes if node is not leader]

    def elected() -> bool:
        found = farm.leader()
        return found in survivors

    farm.wait_until(elected, LEADER_BOUND_S, "the others elect a leader over connections of their own")
    assert survivors[0].submit({"mark": "after"}).outcome is SubmitOutcome.COMMITTED
    leader.start()
    farm.wait_settled()

    def listed() -> bool:
        listing = keys(farm, "list", node=leader)
        return (listing["primary"], listing["members"], listing["behind"]) == (done["key"], 3, [])

    farm.wait_until(listed, START_BOUND_S, "the restarted node lists all nodes with the new key")
    farm.wait_until(
        lambda: "farm-key-file" in alarms(leader), START_BOUND_S, "the restarted node tells of its old file"
    )
    assert "garlicfarm keys export --replace" in alarms(leader)["farm-key-file"]


def test_a_fourth_node_with_the_old_key_file_is_told_why_and_joins_with_the_current_one(
    farm: Farm, tmp_path: Path
) -> None:
    key_file = tmp_path / "farm.key"
    shutil.copy(farm.directory / "farm.key", key_file)
    keys(farm, "rotate")
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    seeds = [addresses(node)[0] for node in farm.nodes]
    newcomer = node_toml(tmp_path / "node-4", farm_key=key_file, gossip=gossip, consensus=consensus, seeds=seeds)
    with Farm(tmp_path, [newcomer]):
        newcomer.start()
        farm.wait_until(lambda: "key-retired" in alarms(newcomer), START_BOUND_S, "the newcomer is told")
        assert (
            f"`garlicfarm keys export FILE`; bring that file here, mode 0600, as {key_file}"
            in (alarms(newcomer)["key-retired"])
        )
        refused = call("keys", "export", tmp_path / "useless.key", "--node", newcomer.directory)
        assert refused.returncode == 1
        assert "query another node of the farm" in refused.stderr
        newcomer.kill()
        exported = keys(farm, "export", "--replace", key_file)
        assert load_farm_key(key_file).epoch == exported["epoch"]
        newcomer.start()
        farm.wait_until(lambda: len(newcomer.view().members) == 4, START_BOUND_S, "the newcomer sees the farm")
        farm.wait_until(lambda: alarms(newcomer) == {}, START_BOUND_S, "no alarm stands at the newcomer")
        newcomer.ask(lambda client: client.leave())
        farm.wait_until(lambda: not newcomer.running, START_BOUND_S, "it has left")


def login(node: Node, farm_key: FarmKey) -> Fault | None:
    """Why a client with the passwords of this key file cannot log in on the node's Raft port; None if it can."""
    host, port = addresses(node)[1].rsplit(":", 1)
    certificate = load_or_create_certificate(node.directory).fingerprint
    shown = tuple(Credentials(each.username, each.password) for each in farm_key.digest_credentials)
    caller = Initiator(farm_key.cluster, lambda: shown, Identity, os.urandom, None, ConnectionRole.CLIENT)

    async def dial() -> Fault | None:
        try:
            dialed = await Dialer(caller, transport=TlsConnector()).dial(PeerAddress(host, int(port), certificate))
        except GarlicFarmError as error:
            return error.fault
        await trio.aclose_forcefully(dialed.stream)
        return None

    return trio.run(dial)


def dropped(node: Node) -> int:
    """How often the node got keys from a sender that may not send them."""
    return node.counters().get("gossip_dropped_keyring_of_a_stranger", 0)


def test_a_copy_of_the_key_takes_no_living_voter_out_and_hands_out_no_keys(farm: Farm, tmp_path: Path) -> None:
    # Given: a farm, and a stranger with a copy of its key and an identity of its own.
    copy = tmp_path / "copy.key"
    keys(farm, "export", copy)
    ring = load_farm_key(copy).key_ring
    before, listed = farm.wait_settled().view(), keys(farm, "list")
    identity = Ed25519PrivateKey.generate()
    thief = Signer(identity)
    envelope = Sealed(ring, os.urandom(SALT_BYTES), thief.node_id)
    alive = [(NodeId(bytes.fromhex(each.node_id)), each.generation) for each in before.members]
    lives = {node_id: Incarnation(generation, 2**20) for node_id, generation in alive}
    left = tuple(VerdictUpdate(each, life, Status.LEFT, each, bytes(96)) for each, life in lives.items())
    chain = ring.install(bytes(32)).use(bytes(32))
    told = sign_keys(KeyringUpdate(chain), identity)
    dropped_before = {node.name: dropped(node) for node in farm.nodes}
    said_before = {node.name: len(node.log_file.read_text()) for node in farm.nodes}

    def said(node: Node) -> str:
        return node.log_file.read_text()[said_before[node.name] :]

    # When: it tells every node that all others have left, and keys of its own.
    def tell_them(loudspeaker: socket.socket) -> None:
        for node in farm.nodes:
            own = NodeId(bytes.fromhex(node.view().node.node_id))
            ping = PingRequest(thief.node_id, Incarnation(1, 0), own, lives[own], 1, 0, None, Payload(left))
            host, port = addresses(node)[0].rsplit(":", 1)
            for message in (ping, told):
                loudspeaker.sendto(envelope.seal(encode(message), own), (host, int(port)))

    def refused() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loudspeaker:
            tell_them(loudspeaker)
        return all(dropped(node) > dropped_before[node.name] for node in farm.nodes)

    # Then: every node has refused what came last, and the group is what it was.
    farm.wait_until(refused, START_BOUND_S, "every node has dropped the keys of a stranger")
    after = farm.wait_settled().view()
    assert after.raft.voters == before.raft.voters
    assert not any("member-left" in said(node) for node in farm.nodes)
    assert keys(farm, "list")["primary"] == listed["primary"]


def test_replaced_keys_make_a_copied_key_file_worthless_and_leave_every_node_in_place(
    farm: Farm, tmp_path: Path
) -> None:
    # Given: a farm of three, one of them away, and a copy of its key file.
    export = tmp_path / "copied.key"
    keys(farm, "export", export)
    copied = load_farm_key(export)
    for node in farm.nodes:
        assert login(node, copied) is None
    before = farm.wait_settled().view()
    leader = farm.wait_settled()
    listed = json.loads(call("node", "list", "--json", "--node", leader.directory).stdout)["nodes"]
    admitted = [each["name"] for each in listed if each["standing"] == "member"]
    away = next(node for node in farm.nodes if node is not leader)
    away.kill()

    def leading() -> Node:
        return farm.wait_until(farm.leader, START_BOUND_S, "a node leads")

    # When: the operator replaces the keys.
    done = farm.wait_done("keys", "replace", "--yes", "--json", at=leading)
    told = json.loads(done.stdout)
    assert (told["era"], told["sealedFor"], told["leftOut"]) == (1, len(admitted), [])
    # Then: all nodes refuse the passwords of the copy, and the node that was away does when it is back.
    away.start()
    farm.wait_settled()

    def refused() -> bool:
        return all(login(node, copied) is Fault.WRONG_CREDENTIALS for node in farm.nodes)

    farm.wait_until(refused, START_BOUND_S, "no Raft port takes the passwords of the copy")
    after = farm.wait_settled().view()
    assert after.raft.voters == before.raft.voters
    assert farm.nodes[0].submit({"mark": "replaced"}).outcome is SubmitOutcome.COMMITTED
    # And: a node that comes with the copy is not discovered.
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    seeds = [addresses(node)[0] for node in farm.nodes]
    thief = node_toml(tmp_path / "thief", farm_key=export, gossip=gossip, consensus=consensus, seeds=seeds)
    with Farm(tmp_path, [thief]):
        thief.start()
        farm.wait_until(lambda: "key-retired" in alarms(thief), START_BOUND_S, "its key is refused")
        assert "thief" not in call("node", "list", "--node", farm.nodes[0].directory).stdout
    keys(farm, "export", "--replace", farm.directory / "farm.key")


@pytest.mark.soak
def test_a_node_that_was_down_during_a_forced_rotation_comes_back_with_the_exported_file(farm: Farm) -> None:
    away = farm.nodes[2]
    away.kill()
    farm.wait_until(
        lambda: farm.nodes[0].ask(lambda client: client.keys()).absent == (away.name,),
        START_BOUND_S,
        "it is known to be down",
    )
    refused = call("keys", "rotate", "--node", farm.nodes[0].directory)
    assert refused.returncode == 1
    assert f"{away.name} is down" in refused.stderr
    done = keys(farm, "rotate", "--force")
    assert done["leftOut"] == [away.name]
    away.start()
    farm.wait_until(lambda: "key-retired" in alarms(away), START_BOUND_S, "it is told that its keys were removed")
    away.kill()
    keys(farm, "export", "--replace", farm.directory / "farm.key")
    away.start()
    farm.wait_settled()
    assert keys(farm, "list", node=away)["primary"] == done["key"]
    farm.wait_until(
        lambda: not any("farm-key-file" in alarms(node) for node in farm.nodes), 60.0, "the file is current"
    )


def test_a_damaged_file_of_keys_stops_the_start_and_names_it(farm: Farm) -> None:
    node = farm.nodes[1]
    node.kill()
    path = node.directory / KEYS_FILE
    kept = path.read_bytes()
    path.write_bytes(b"\0" + kept[1:])
    stopped = call("run", "--config", node.configuration)
    assert stopped.returncode == 1
    assert f"{path}, this node's copy of the farm's keys, is damaged: remove it" in stopped.stderr
    path.write_bytes(kept)
    path.chmod(0o644)
    stopped = call("run", "--config", node.configuration)
    assert stopped.returncode == 1
    assert f"chmod 600 {path}" in stopped.stderr
    path.chmod(0o600)
    node.start()
    farm.wait_settled()
