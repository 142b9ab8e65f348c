"""Attacks on the Raft port by real connections, byte by byte: a server accepts only the proven identity of a peer.

The attacker has a copied key file, all addresses and ids, and a complete implementation of the protocol. All tests use
one farm, in this order. The last two remove its fourth node and evict it.
"""

import itertools
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.api.view import FarmView
from bridge.node.security.key_files import load_farm_key
from gossip.node.state_files import load_identity
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, exported_key, local_farm
from tests.end_to_end.raw_client import ClientClaim, Connection, RaftPort, application, message
from tests.end_to_end.settings import addresses
from tests.end_to_end.test_membership import add_node

VOTE, APPEND, CLIENT, TIMEOUT_NOW, PRE_VOTE = 1, 3, 5, 66, 64
REPLY_BYTES = 26
AHEAD = 1_000
FORGED = b'{"mark":"forged"}'


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Start three founders with long election timeouts, so that only an attack raises the term, and a fourth voter."""
    with local_farm(tmp_path_factory.mktemp("raft-port"), 3, lan_timing=True) as made:
        made.start_all()
        made.wait_settled()
        fourth = add_node(made, "node-4")
        made.wait_until(lambda: len(fourth.view().raft.voters) == 4, START_BOUND_S, "the fourth node votes")
        made.wait_settled()
        yield made


def raft_port_of(node: Node, farm: Farm) -> RaftPort:
    """Return the address of the node's Raft port, with the password of the copied key file."""
    key = load_farm_key(farm.directory / "farm.key")
    host, _, port = addresses(node)[1].rpartition(":")
    shown = key.digest_credentials[0]
    return RaftPort(host, int(port), key.cluster, shown.username, shown.password)


def forged_requests(source: int, node: Node) -> bytes:
    """Return every harmful request of a server in the name of `source`, with a high term."""
    view = node.view()
    own_id, term = view.node.raft_id or 0, view.raft.term + AHEAD
    entry = application(term, FORGED)
    return (
        message(PRE_VOTE, source, own_id, term)
        + message(VOTE, source, own_id, term)
        + message(APPEND, source, own_id, term, entry, commit=1)
        + message(TIMEOUT_NOW, source, own_id, term)
    )


def alarm_text(node: Node, kind: str) -> str:
    """Return the text of an active alarm, or ""."""
    return "; ".join(alarm.text for alarm in node.view().alarms if alarm.kind == kind)


def check_unharmed(before: FarmView, farm: Farm) -> None:
    """Check that terms and leader are unchanged, and that the logs do not contain a forged entry."""
    for node in farm.running:
        view = node.view()
        assert (view.raft.term, view.raft.leader_id) == (before.raft.term, before.raft.leader_id), farm.logs()
        assert not [entry for entry in node.entries().values() if entry.data == FORGED]


def check_refused(connection: Connection, why: str) -> None:
    """Check for a 403 with the reason, and that no request after the handshake got a reply."""
    with connection:
        assert connection.status == 403, connection.head
        assert f"X-Garlic-Refusal: {why}".encode() in connection.head
        body = connection.receive(len(b"Forbidden\n") + REPLY_BYTES)
        assert body == b"Forbidden\n", "the server did not reply to a message"


@pytest.mark.parametrize("proof", ["no-proof", "own-key", "other-server"])
def test_unknown_node_with_copied_key_file_is_refused(farm: Farm, proof: str) -> None:
    leader = farm.wait_settled()
    before = leader.view()
    own = None if proof == "no-proof" else Ed25519PrivateKey.generate()
    channel = "tls " + "00" * 32 if proof == "other-server" else None
    why = "unknown-identity" if proof == "own-key" else "unproven"
    for node, claimed_id in itertools.product(farm.nodes, (77, 2)):
        for peer_id in (None, node.view().node.raft_id):
            claim = ClientClaim(claimed_id, "server", own, peer_id, before.farm.cluster_id)
            check_refused(
                Connection(raft_port_of(node, farm), claim, forged_requests(claimed_id, node), channel=channel), why
            )
        assert node.counters()[f"garlic_farm_{why.replace('-', '_')}"] >= 2
        assert "server 77" in alarm_text(node, "peers-refused")
    check_unharmed(before, farm)


def test_client_without_id_submits_but_cannot_act_as_server(farm: Farm) -> None:
    leader = farm.wait_settled()
    before = leader.view()
    with Connection(raft_port_of(leader, farm), ClientClaim()) as client:
        assert client.status == 101
        client.send(message(CLIENT, 0, 0, 0, application(0, b'{"mark":"client"}')))
        reply = client.receive(REPLY_BYTES)
        assert (len(reply), reply[-1]) == (REPLY_BYTES, 1), "its entry is committed"
    for source in (2, 77):
        with Connection(raft_port_of(leader, farm), ClientClaim(), forged_requests(source, leader)) as client:
            assert client.status == 101
            assert client.receive(REPLY_BYTES) == b"", "closed without a reply"
    check_unharmed(before, farm)
    assert leader.submit({"mark": "after"}).index is not None


def test_member_cannot_use_id_of_other_server(farm: Farm) -> None:
    """A hostile member proves its identity, and then sends requests in the name of another server."""
    leader = farm.wait_settled()
    before, member = leader.view(), next(node for node in farm.nodes if node is not leader)
    own_id, others = member.view().node.raft_id or 0, {1, 2, 3, 4} - {before.node.raft_id}
    key = load_identity(member.directory).key
    for source in others - {own_id} | {77}:
        claim = ClientClaim(own_id, "server", key, before.node.raft_id)
        with Connection(raft_port_of(leader, farm), claim, forged_requests(source, leader)) as connection:
            assert connection.status == 101
            assert connection.receive(REPLY_BYTES) == b""
        check_refused(Connection(raft_port_of(leader, farm), ClientClaim(source, "server", key)), "unknown-identity")
    check_unharmed(before, farm)


def test_removed_server_connects_as_client_only(farm: Farm) -> None:
    fourth = farm.nodes[3]
    raft_id, key = fourth.view().node.raft_id, load_identity(fourth.directory).key
    leader = farm.led_by_another(fourth)
    farm.wait_done("servers", "remove", fourth.name, "--yes", at=lambda: farm.led_by_another(fourth))
    farm.wait_until(
        lambda: len(leader.view().raft.voters) == 3, START_BOUND_S, "the fourth node is removed from the group"
    )
    founders = farm.nodes[:3]
    farm.wait_until(
        lambda: all(raft_id in node.view().removed for node in founders),
        START_BOUND_S,
        "all nodes have applied the removal",
    )
    before = leader.view()
    for node in founders:
        check_refused(
            Connection(
                raft_port_of(node, farm), ClientClaim(raft_id, "server", key), forged_requests(raft_id or 0, node)
            ),
            "expelled",
        )
        with Connection(raft_port_of(node, farm), ClientClaim(raft_id, "client", key)) as client:
            assert client.status == 101
    check_unharmed(before, Farm(farm.directory, founders))
    assert "was removed from the farm by an operator" in alarm_text(leader, "peers-refused")


def test_evicted_node_with_new_key_file_is_refused_in_every_role(farm: Farm) -> None:
    fourth, founders = farm.nodes[3], farm.nodes[:3]
    raft_id, node_id = fourth.view().node.raft_id, fourth.view().node.node_id
    key = load_identity(fourth.directory).key
    farm.wait_done("node", "evict", node_id, "--yes", at=lambda: farm.led_by_another(fourth))
    fourth.kill()  # a removed server does not get the log, so it does not receive its eviction
    farm.nodes.remove(fourth)
    leader = farm.wait_settled()
    # With the old key file the evicted node only gets the challenge, so the test uses the new file.
    exported_key(leader, farm.directory / "farm.key", "--replace")
    before = leader.view()
    for node in founders:
        counted = node.counters().get("garlic_farm_expelled", 0)
        for claim in (
            ClientClaim(raft_id, "server", key),
            ClientClaim(raft_id, "client", key),
            ClientClaim(None, "client", key),
            ClientClaim(1, "server", key),
        ):
            check_refused(
                Connection(raft_port_of(node, farm), claim, forged_requests(claim.server_id or 0, node)), "expelled"
            )
        assert node.counters()["garlic_farm_expelled"] == counted + 4
    check_unharmed(before, farm)
    assert call("status", "--node", leader.directory).returncode == 0
