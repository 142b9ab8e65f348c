"""Changes of the farm's keys while it runs: rotation, replacement, stolen copies and outdated key files."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.api.control import SubmitOutcome
from bridge.api.control_routes import KEYS, LEAVE
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
from tests.end_to_end.farm import LEADER_BOUND_S, START_BOUND_S, Farm, Node, call
from tests.end_to_end.settings import addresses, free_port, node_toml
from tests.end_to_end.submitter import Submitter


def keys(farm: Farm, *arguments: str | Path, node: Node | None = None) -> dict[str, object]:
    """Run a `keys` command; return its JSON document."""
    done = farm.wait_done("keys", *arguments, "--json", at=lambda: node or farm.nodes[0])
    found: dict[str, object] = json.loads(done.stdout)
    return found


def alarms(node: Node) -> dict[str, str]:
    return {each.kind: f"{each.text}; {each.action}" for each in node.view().alarms}


def wrong_credentials(farm: Farm) -> int:
    """Return the number of logins that the nodes have refused because of their passwords."""
    return sum(node.counters().get("garlic_farm_wrong_credentials", 0) for node in farm.nodes)


def test_rotation_under_load_keeps_entries_and_connections(farm: Farm) -> None:
    before, refused = farm.nodes[0].view().raft.term, wrong_credentials(farm)
    with Submitter(farm, farm.nodes, "rotated") as submitter:
        submitter.wait_for(5, START_BOUND_S)
        done = keys(farm, "rotate")
        submitter.wait_for(5, START_BOUND_S)
    assert not submitter.errors
    assert done["rotated"] is True
    views = [node.view() for node in farm.nodes]
    assert {view.raft.term for view in views} == {before}, "the rotation did not cause an election"
    assert wrong_credentials(farm) == refused
    leader = farm.wait_settled()
    leader.kill()
    others = [node for node in farm.nodes if node is not leader]

    def elected() -> bool:
        found = farm.leader()
        return found in others

    farm.wait_until(elected, LEADER_BOUND_S, "the other nodes elect a leader over new connections")
    assert others[0].submit({"mark": "after"}).outcome is SubmitOutcome.COMMITTED
    leader.start()
    farm.wait_settled()

    def listed() -> bool:
        listing = keys(farm, "list", node=leader)
        return (listing["primary"], listing["members"], listing["behind"]) == (done["key"], 3, [])

    farm.wait_until(listed, START_BOUND_S, "the restarted node lists all nodes with the new key")
    farm.wait_until(
        lambda: "farm-key-file" in alarms(leader), START_BOUND_S, "the restarted node reports its outdated key file"
    )
    assert "garlicfarm keys export --replace" in alarms(leader)["farm-key-file"]
    keys(farm, "export", "--replace", farm.directory / "farm.key")


def test_node_with_retired_key_joins_after_export_of_key(farm: Farm, tmp_path: Path) -> None:
    key_file = tmp_path / "farm.key"
    shutil.copy(farm.directory / "farm.key", key_file)
    keys(farm, "rotate")
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    seeds = [addresses(node)[0] for node in farm.nodes]
    new_node = node_toml(tmp_path / "node-4", farm_key=key_file, gossip=gossip, consensus=consensus, seeds=seeds)
    with Farm(tmp_path, [new_node]):
        new_node.start()
        farm.wait_until(
            lambda: "key-retired" in alarms(new_node), START_BOUND_S, "the new node has the alarm key-retired"
        )
        assert (
            f"`garlicfarm keys export FILE`; copy that file here, mode 0600, as {key_file}"
            in (alarms(new_node)["key-retired"])
        )
        result = call("keys", "export", tmp_path / "useless.key", "--node", new_node.directory)
        assert result.returncode == 1
        assert "query another node of the farm" in result.stderr
        new_node.kill()
        exported = keys(farm, "export", "--replace", key_file)
        assert load_farm_key(key_file).epoch == exported["epoch"]
        new_node.start()
        farm.wait_until(
            lambda: len(new_node.view().members) == 4, START_BOUND_S, "the new node has discovered the farm"
        )
        farm.wait_until(lambda: alarms(new_node) == {}, START_BOUND_S, "the alarms of the new node have ended")
        new_node.ask(lambda client: client.call(LEAVE))
        farm.wait_until(lambda: not new_node.running, START_BOUND_S, "the new node has left")


def login(node: Node, farm_key: FarmKey) -> Fault | None:
    """Log in at the node's Raft port with the passwords of a key file; return the fault, or None."""
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


def dropped_keyrings(node: Node) -> int:
    """Return the number of keyrings dropped because the sender may not send them."""
    return node.counters().get("gossip_dropped_keyring_of_a_stranger", 0)


def test_copied_key_cannot_remove_voters_or_change_keys(farm: Farm, tmp_path: Path) -> None:
    # Given: a farm, and an unknown node with a new identity and a copy of the farm key.
    copy = tmp_path / "copy.key"
    keys(farm, "export", copy)
    ring = load_farm_key(copy).key_ring
    before, listed = farm.wait_settled().view(), keys(farm, "list")
    identity = Ed25519PrivateKey.generate()
    thief = Signer(identity)
    envelope = Sealed(ring, os.urandom(SALT_BYTES), thief.node_id)
    alive = [(NodeId(bytes.fromhex(each.node_id)), each.generation) for each in before.members]
    incarnations = {node_id: Incarnation(generation, 2**20) for node_id, generation in alive}
    departures = tuple(
        VerdictUpdate(each, incarnation, Status.LEFT, each, bytes(96)) for each, incarnation in incarnations.items()
    )
    chain = ring.install(bytes(32)).use(bytes(32))
    keyring_update = sign_keys(KeyringUpdate(chain), identity)
    dropped_before = {node.name: dropped_keyrings(node) for node in farm.nodes}
    log_sizes = {node.name: len(node.log_file.read_text()) for node in farm.nodes}

    def new_log(node: Node) -> str:
        return node.log_file.read_text()[log_sizes[node.name] :]

    # When: the unknown node sends each node false departures of all members, and a keyring with its own key.
    def send_to_all(sender: socket.socket) -> None:
        for node in farm.nodes:
            own = NodeId(bytes.fromhex(node.view().node.node_id))
            ping = PingRequest(
                thief.node_id, Incarnation(1, 0), own, incarnations[own], 1, 0, None, Payload(departures)
            )
            host, port = addresses(node)[0].rsplit(":", 1)
            for message in (ping, keyring_update):
                sender.sendto(envelope.seal(encode(message), own), (host, int(port)))

    def is_dropped() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            send_to_all(sender)
        return all(dropped_keyrings(node) > dropped_before[node.name] for node in farm.nodes)

    # Then: each node has dropped the keyring, the last message. Voters and primary key are unchanged.
    farm.wait_until(is_dropped, START_BOUND_S, "all nodes have dropped the keyring of the unknown node")
    after = farm.wait_settled().view()
    assert after.raft.voters == before.raft.voters
    assert not any("member-left" in new_log(node) for node in farm.nodes)
    assert keys(farm, "list")["primary"] == listed["primary"]


def test_replaced_keys_invalidate_copied_key_file(farm: Farm, tmp_path: Path) -> None:
    # Given: a farm of three, a copy of its key file, and an offline node.
    export = tmp_path / "copied.key"
    keys(farm, "export", export)
    copied = load_farm_key(export)
    for node in farm.nodes:
        assert login(node, copied) is None
    before = farm.wait_settled().view()
    leader = farm.wait_settled()
    era = leader.ask(lambda client: client.call(KEYS)).era or 0
    listed = json.loads(call("node", "list", "--json", "--node", leader.directory).stdout)["nodes"]
    admitted = [each["name"] for each in listed if each["standing"] == "member"]
    offline = next(node for node in farm.nodes if node is not leader)
    offline.kill()

    def leading() -> Node:
        return farm.wait_until(farm.leader, START_BOUND_S, "a node leads")

    # When: the operator replaces the keys.
    done = farm.wait_done("keys", "replace", "--yes", "--json", at=leading)
    document = json.loads(done.stdout)
    assert (document["era"], document["sealedFor"], document["leftOut"]) == (era + 1, len(admitted), [])
    # Then: all nodes refuse the passwords of the copy, also the offline node after its restart.
    offline.start()
    farm.wait_settled()

    def is_refused() -> bool:
        return all(login(node, copied) is Fault.WRONG_CREDENTIALS for node in farm.nodes)

    farm.wait_until(is_refused, START_BOUND_S, "all Raft ports refuse the passwords of the copy")
    after = farm.wait_settled().view()
    assert after.raft.voters == before.raft.voters
    assert farm.nodes[0].submit({"mark": "replaced"}).outcome is SubmitOutcome.COMMITTED
    # And: a new node with the copy is not discovered.
    gossip, consensus = (f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
    seeds = [addresses(node)[0] for node in farm.nodes]
    thief = node_toml(tmp_path / "thief", farm_key=export, gossip=gossip, consensus=consensus, seeds=seeds)
    with Farm(tmp_path, [thief]):
        thief.start()
        farm.wait_until(lambda: "key-retired" in alarms(thief), START_BOUND_S, "the copied key is refused")
        assert "thief" not in call("node", "list", "--node", farm.nodes[0].directory).stdout
    keys(farm, "export", "--replace", farm.directory / "farm.key")


@pytest.mark.soak
def test_node_offline_during_forced_rotation_rejoins(farm: Farm) -> None:
    offline = farm.nodes[2]
    offline.kill()
    farm.wait_until(
        lambda: farm.nodes[0].ask(lambda client: client.call(KEYS)).absent == (offline.name,),
        START_BOUND_S,
        "the killed node is listed as absent",
    )
    result = call("keys", "rotate", "--node", farm.nodes[0].directory)
    assert result.returncode == 1
    assert f"{offline.name} is down" in result.stderr
    done = keys(farm, "rotate", "--force")
    assert done["leftOut"] == [offline.name]
    offline.start()
    farm.wait_until(
        lambda: "key-retired" in alarms(offline), START_BOUND_S, "the restarted node has the alarm key-retired"
    )
    offline.kill()
    keys(farm, "export", "--replace", farm.directory / "farm.key")
    offline.start()
    farm.wait_settled()
    assert keys(farm, "list", node=offline)["primary"] == done["key"]
    farm.wait_until(
        lambda: not any("farm-key-file" in alarms(node) for node in farm.nodes), 60.0, "the file is current"
    )


def test_start_fails_and_names_damaged_or_readable_keys_file(farm: Farm) -> None:
    node = farm.nodes[1]
    path = node.directory / KEYS_FILE
    keys(farm, "rotate")  # The node writes the file at the first change of keys.
    farm.wait_until(path.exists, START_BOUND_S, "the node has stored the farm's keys")
    node.kill()
    content = path.read_bytes()
    path.write_bytes(b"\0" + content[1:])
    stopped = call("run", "--config", node.configuration)
    assert stopped.returncode == 1
    assert f"{path}, this node's copy of the farm's keys, is damaged: remove it" in stopped.stderr
    path.write_bytes(content)
    path.chmod(0o644)
    stopped = call("run", "--config", node.configuration)
    assert stopped.returncode == 1
    assert f"chmod 600 {path}" in stopped.stderr
    path.chmod(0o600)
    node.start()
    farm.wait_settled()
