"""Forged entries from a holder of a copied farm key, sent to the Raft port.

Before entries carried proofs, each of these attacks succeeded against this farm. After reports of 64 invented servers,
the signed Meta LeaseSet2 had sixteen false leaves and no leaf of the farm. An invented server with `publishConfig` on
became the publisher, so the farm did not publish. Forged weights changed costs. None of this raised an alarm.
"""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.api.alarms import ENTRIES_WITHOUT_EFFECT
from bridge.api.log import EntryKind
from bridge.node.security.key_files import load_farm_key
from bridge.wire.log.proof import sign_entry
from consensus.core.model import Entry
from consensus.net.tls import load_or_create_certificate
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.messages import ClientRequest
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from gossip.node.state_files import load_identity
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call
from tests.end_to_end.settings import addresses

INVENTED = 64


class Attacker:
    """A client with a copy of the farm key, which may connect and submit."""

    def __init__(self, farm: Farm) -> None:
        view = farm.nodes[0].view()
        self._farm = farm
        self.cluster_id = bytes.fromhex(view.farm.cluster_id or "")
        self._number = 0

    def sign(self, entry: bytes, key: Ed25519PrivateKey) -> bytes:
        """Return the entry with a valid proof by `key`."""
        self._number += 1
        return sign_entry(entry, key, self.cluster_id, time.time_ns() // 1_000_000 + self._number)

    def submit(self, entries: list[bytes]) -> None:
        """Submit entries to the leader's Raft port, as a client without a proof; wait for their commitment."""
        leader = self._farm.wait_settled()
        before = leader.view().raft.commit_index or 0
        trio.run(self._send, leader, entries)
        self._farm.wait_until(
            lambda: (leader.view().raft.commit_index or 0) >= before + len(entries),
            START_BOUND_S,
            "the entries are committed",
        )

    async def _send(self, leader: Node, entries: list[bytes]) -> None:
        key = load_farm_key(self._farm.directory / "farm.key")
        credentials = tuple(Credentials(each.username, each.password) for each in key.digest_credentials)
        host, _, port = addresses(leader)[1].rpartition(":")
        address = PeerAddress(host, int(port), load_or_create_certificate(leader.directory).fingerprint)
        identity = Identity(self.cluster_id.hex())
        dialed = await Dialer(Initiator(key.cluster, lambda: credentials, lambda: identity, os.urandom, None)).dial(
            address
        )
        try:
            for entry in entries:
                request = ClientRequest(entries=(Entry.command(0, entry),))
                await dialed.stream.send_all(encode_request(request))
                await dialed.stream.receive_some(4096)
        finally:
            await trio.aclose_forcefully(dialed.stream)


def forged_report(farm: Farm, server_id: int, leaves: int = 1) -> bytes:
    """Return an attractive report: an idle server, able to publish, with leaves of the attacker."""
    [destination] = {each.destination for node in farm.nodes for each in node.published()}
    master = base64.b64encode(destination, altchars=b"-~").decode()
    report: dict[str, Any] = {
        "cluster": load_farm_key(farm.directory / "farm.key").cluster,
        "date": time.time_ns() // 1_000_000,
        "id": server_id,
        "router": {"attached": True, "uptime": 10**10, "jobLag": 0.0},
        "meta": {
            "destination": master,
            "publishConfig": "on",
            "publishing": True,
            "lastPublishedTime": 0,
            "canSignUntil": 4_000_000_000,
        },
        "destinations": [{"destination": new_demo_leaf().base64, "healthy": True} for _ in range(leaves)],
    }
    return json.dumps(report).encode()


def without_effect(node: Node) -> dict[str, int]:
    """Count the entries without effect, by reason."""
    mark = "without_effect_"
    return {name.partition(mark)[2]: value for name, value in node.counters().items() if mark in name}


def listed(farm: Farm) -> set[bytes]:
    """Return the leaves of the farm's newest publication."""
    found = [each for node in farm.nodes for each in node.published()]
    latest = max(found, key=lambda each: each.published_s, default=None)
    return set() if latest is None else set(latest.entries)


def last_second(farm: Farm) -> int:
    """Return the time of the farm's newest publication, in seconds."""
    return max((each.published_s for node in farm.nodes for each in node.published()), default=0)


def test_forged_entries_change_neither_publisher_nor_publication(farm: Farm) -> None:
    node, attacker = farm.nodes[0], Attacker(farm)
    farm.wait_until(lambda: len(listed(farm)) == len(farm.nodes), START_BOUND_S, "every leaf is listed")
    own, publisher, costs = listed(farm), node.view().publishing[0].publisher_id, node.view().weights
    member = load_identity(farm.nodes[1].directory).key
    another = next(each.raft_id for each in node.view().raft.voters if each.name != farm.nodes[1].name)
    replayed = [
        entry.data
        for entry in node.entries().values()
        if entry.kind is EntryKind.APPLICATION and b'"router"' in entry.data
    ][-1]
    leaf = new_demo_leaf().address.removesuffix(".b32.i2p")
    forged_weights = json.dumps({"factors": {"throughIndex": 1, "formula": "x", "factors": {leaf: 2.0}}}).encode()
    invented = [forged_report(farm, 100 + number) for number in range(INVENTED)]
    before = without_effect(node)
    attacker.submit(
        [
            *invented[: INVENTED // 2],
            *(attacker.sign(each, Ed25519PrivateKey.generate()) for each in invented[INVENTED // 2 :]),
            forged_report(farm, 77, leaves=16),
            attacker.sign(forged_report(farm, another, leaves=16), member),
            replayed,
            forged_weights,
            attacker.sign(forged_weights, Ed25519PrivateKey.generate()),
        ]
    )
    second = last_second(farm)
    # Force one more publication: an effect of the attack would show in it.
    force = {"force": {"master": node.view().publishing[0].master}}
    farm.wait_done("publish", "force", force["force"]["master"], at=lambda: farm.nodes[2])
    farm.wait_until(lambda: last_second(farm) > second, START_BOUND_S, "the next structure is published")
    assert listed(farm) == own
    for each in farm.nodes:
        view = each.view()
        assert view.publishing[0].publisher_id == publisher
        assert {report.raft_id for report in view.reports} == {voter.raft_id for voter in view.raft.voters}
        assert view.weights == costs
        farm.wait_until(
            lambda each=each: [alarm.kind for alarm in each.view().alarms if alarm.kind == ENTRIES_WITHOUT_EFFECT.kind],  # type: ignore[misc]
            START_BOUND_S,
            f"{each.name} has the alarm",
        )
    after = without_effect(node)
    counted = {reason: after[reason] - before[reason] for reason in after}
    assert counted["unsigned"] == INVENTED // 2 + 2
    assert counted["unknown_author"] == INVENTED // 2 + 1
    assert counted["wrong_author"] == 1
    assert counted["repeated"] >= 1


@pytest.mark.soak
def test_client_key_is_limited_to_its_scopes(farm: Farm, tmp_path: Path) -> None:
    node, file = farm.nodes[0], tmp_path / "script.key"
    leaf = new_demo_leaf().address.removesuffix(".b32.i2p")
    cost = json.dumps({"cost": {"hash": leaf, "factor": 2.0}})
    weights = json.dumps({"factors": {"throughIndex": 1, "formula": "x", "factors": {leaf: 1.1}}})

    def output_of(*arguments: str | Path) -> str:
        done = call(*arguments, "--node", node.directory)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(*arguments: str | Path) -> str:
        done = call("submit", *arguments, "--node", node.directory)
        assert done.returncode == 1, done.stdout
        return done.stderr

    call("keys", "new-client", file, "--name", "script")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "no member admitted the key" in refusal("--client-key", file, cost)
    assert "is admitted with the scope operator" in output_of("node", "admit-client", file, "--scope", "operator")
    output_of("submit", "--client-key", file, cost)
    assert [each.factor for each in node.view().weights.costs] == [2.0]
    assert "not admitted for this kind" in refusal("--client-key", file, weights)
    [listed_key] = json.loads(output_of("node", "clients", "--json"))["clients"]
    assert (listed_key["name"], listed_key["scopes"], listed_key["admitted"]) == ("script", ["operator"], True)
    assert "is removed" in output_of("node", "remove-client", "script", "--yes")
    assert "retired, evicted or removed" in refusal("--client-key", file, cost)
    output_of("submit", json.dumps({"cost": {"hash": leaf, "factor": 1.0}}))
    assert not farm.nodes[1].view().weights.costs
