"""A hostile member sends every kind of request of the Raft port, with fields at their limits.

An unknown client with a copied key file sends them first, then the member with its identity, to each server. The
servers must keep running. Then the member is evicted, and the farm elects, publishes and restarts as before.
"""

import base64
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.node.security.key_files import load_farm_key
from bridge.wire.log.proof import sign_entry
from gossip.node.state_files import load_identity
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call, exported_key, local_farm, seeded
from tests.end_to_end.hostile_words import RequestFields, in_batches, requests
from tests.end_to_end.raw_client import ClientClaim, Connection, RaftPort, application, message
from tests.end_to_end.settings import addresses
from tests.end_to_end.test_membership import add_node
from tests.simulation.entry_fuzz import SAMPLES, unsigned

HOSTILE = "node-4"
CLIENT = 5
SENT_ENTRIES = tuple(each for each in SAMPLES if "removal" not in each)
"""The member's entries. Removals are excluded: members may remove servers, and the farm would shrink."""
BATCH = 6
TRIES = 10
ANSWER_BOUND_S = 0.1
ANSWERS_BYTES = 26 * BATCH
GROWTH_BOUND_BYTES = 64 * 2**20


def grown_farm(directory: Path) -> Farm:
    """Return a farm of three founders and a fourth voter."""
    farm = local_farm(directory, 3)
    farm.start_all()
    farm.wait_settled()
    fourth = add_node(farm, HOSTILE)
    farm.wait_until(lambda: len(fourth.view().raft.voters) == 4, START_BOUND_S, "the fourth node votes")
    farm.wait_settled()
    return farm


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Start the farm, and end it after the test."""
    with grown_farm(tmp_path) as made:
        yield made


def send_requests(farm: Farm, node: Node, claim: ClientClaim, random: Random, share: float) -> int:
    """Send this share of the requests to one server; return the number of upgraded connections.

    A small share is one or two connections. On a busy machine both may end before the server handles them; then other
    requests are sent, up to ten times.
    """
    return next((upgraded for _ in range(TRIES) if (upgraded := _send_requests(farm, node, claim, random, share))), 0)


def _send_requests(farm: Farm, node: Node, claim: ClientClaim, random: Random, share: float) -> int:
    view, target = node.view(), raft_port_of(farm, node)
    commit = view.raft.commit_index or 0
    plausible = RequestFields(
        1, claim.server_id or 0, view.node.raft_id or 0, view.raft.term, view.raft.term, commit, commit
    )
    sent = [request for request in requests(plausible, random) if random.random() < share]
    upgraded = 0
    for batch in in_batches(sent, BATCH):
        # The server may close during a write. It may also wait for bytes that never arrive, so the wait is short.
        with suppress(OSError), Connection(target, claim, batch) as connection:
            upgraded += connection.status == 101
            connection.set_timeout(ANSWER_BOUND_S)
            connection.receive(ANSWERS_BYTES)
    return upgraded


def submit(farm: Farm, claim: ClientClaim, random: Random, count: int) -> int:
    """Submit entries with a valid proof and fields at their limits; return the number of new log entries."""
    leader = farm.wait_settled()
    before = leader.view().raft.commit_index or 0
    for number in range(count):
        entry = random.choice(SENT_ENTRIES)
        own = {**entry, "id": claim.server_id} if "id" in entry else entry
        data = unsigned(own, random)
        with suppress(ValueError):  # the entry cannot be decoded, so it stays unsigned
            moment_ms = time.time_ns() // 1_000_000 + number
            data = sign_entry(data, key_in(claim), bytes.fromhex(claim.cluster_id or ""), moment_ms)
        with suppress(OSError), Connection(raft_port_of(farm, leader), claim) as connection:
            connection.send(message(CLIENT, claim.server_id or 0, 0, 0, application(0, data)))
            connection.receive(26)
    return (leader.view().raft.commit_index or 0) - before


def key_in(claim: ClientClaim) -> Ed25519PrivateKey:
    assert claim.key is not None
    return claim.key


def attack(farm: Farm, share: float) -> None:
    """Attack with this share of the requests, and check the farm."""
    random = seeded("hostile member")
    # Given a farm with four servers, one of them hostile
    hostile = farm["node-4"]
    view, key = hostile.view(), load_identity(hostile.directory).key
    raft_id, node_id, cluster = view.node.raft_id, view.node.node_id, view.farm.cluster_id
    hostile.kill()
    farm.nodes.remove(hostile)
    memory = {node.name: node.resident_bytes() for node in farm.nodes}
    # When an unknown client with the key file sends the requests, and then the member under its own identity
    for node in farm.nodes:
        assert send_requests(farm, node, ClientClaim(), random, share / 4) > 0
        assert send_requests(farm, node, ClientClaim(raft_id, "client", key, None, cluster), random, share / 4) > 0
        assert send_requests(farm, node, ClientClaim(raft_id, "server", key, None, cluster), random, share) > 0
    assert submit(farm, ClientClaim(raft_id, "client", key, None, cluster), random, int(800 * share)) > 0
    # Then each server runs, without a traceback, and does not keep the received data
    farm.wait_settled()
    for node in farm.nodes:
        assert "Traceback" not in node.log_file.read_text(errors="replace"), farm.logs()
        assert node.resident_bytes() - memory[node.name] < GROWTH_BOUND_BYTES
        assert node.view().raft.term < 2**62, "terms were not used up"
        # Exit code 3 is a warning: the member is down, and its report names a master that no other server reports. On a
        # busy machine an election may be in progress.
        farm.wait_until(
            lambda node=node: call("status", "--node", node.directory).returncode in (0, 3),  # type: ignore[misc]
            START_BOUND_S,
            f"{node.name} reports at most a warning",
        )
    # And after the eviction of the member, the farm publishes, loses its leader, and restarts
    farm.wait_done("node", "evict", node_id, "--yes", at=farm.wait_settled)
    leader = farm.wait_settled()
    exported_key(leader, farm.directory / "farm.key", "--replace")
    with Connection(raft_port_of(farm, leader), ClientClaim(raft_id, "server", key, None, cluster)) as connection:
        assert connection.status == 403
    before = last_second(farm)
    leader.stop()
    leader.start()
    farm.wait_settled()
    farm.wait_done("publish", "force", master_of(farm), at=farm.wait_settled)
    farm.wait_until(lambda: last_second(farm) > before, START_BOUND_S, "a newer structure is published")
    for node in farm.nodes:
        node.stop()
    farm.start_all()
    assert farm.wait_settled().submit({"mark": "after"}).index is not None


def raft_port_of(farm: Farm, node: Node) -> RaftPort:
    """Return address and password of the node's Raft port."""
    key = load_farm_key(farm.directory / "farm.key")
    host, _, port = addresses(node)[1].rpartition(":")
    shown = key.digest_credentials[0]
    return RaftPort(host, int(port), key.cluster, shown.username, shown.password)


def master_of(farm: Farm) -> str:
    [destination] = {each.destination for node in farm.nodes for each in node.published()}
    return base64.b64encode(destination, altchars=b"-~").decode()


def last_second(farm: Farm) -> int:
    """Return the time of the newest publication, in seconds."""
    return max((each.published_s for node in farm.nodes for each in node.published()), default=0)


@pytest.mark.parametrize("share", [0.03, pytest.param(1.0, marks=pytest.mark.soak)], ids=["sample", "all"])
def test_hostile_requests_do_not_stop_farm(farm: Farm, share: float) -> None:
    attack(farm, share)
