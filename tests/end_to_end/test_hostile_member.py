"""A member in other hands says everything that the Raft port takes, at its extremes: no server ends, and it is evicted.

First a stranger with a copied key file says it, then the member with its own identity, to every server of a running
farm. Afterwards the farm elects, publishes and restarts, as if it had never been.
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
from tests.end_to_end.hostile_words import Words, in_bunches, requests
from tests.end_to_end.raw_client import Claimed, Connection, Way, application, message
from tests.end_to_end.settings import addresses
from tests.end_to_end.test_membership import newcomer
from tests.simulation.entry_fuzz import SAMPLES, unsigned

HOSTILE = "node-4"
CLIENT = 5
TAKEN = tuple(each for each in SAMPLES if "removal" not in each)
"""A member may remove others, as operators at its socket may: that would be no crash, and no farm of three either."""
BUNCH = 6
TRIES = 3
ANSWER_BOUND_S = 0.1
ANSWERS_BYTES = 26 * BUNCH
GROWTH_BOUND_BYTES = 64 * 2**20


def grown_farm(directory: Path) -> Farm:
    """Three founders, and a fourth server that votes."""
    farm = local_farm(directory, 3)
    farm.start_all()
    farm.wait_settled()
    fourth = newcomer(farm, HOSTILE)
    farm.wait_until(lambda: len(fourth.view().raft.voters) == 4, START_BOUND_S, "the fourth node votes")
    farm.wait_settled()
    return farm


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """It is told of it while it runs, and ended in any case."""
    with grown_farm(tmp_path) as made:
        yield made


def say(farm: Farm, node: Node, claimed: Claimed, random: Random, share: float) -> int:
    """So much of it, to one server; returns how many connections were upgraded.

    A small share is a connection or two. On a machine that does much else both may be given up before the server
    has its turn, so that nothing was said: then other words are said, a few times.
    """
    return next((upgraded for _ in range(TRIES) if (upgraded := _say(farm, node, claimed, random, share))), 0)


def _say(farm: Farm, node: Node, claimed: Claimed, random: Random, share: float) -> int:
    view, way = node.view(), way_of(farm, node)
    commit = view.raft.commit_index or 0
    plausible = Words(1, claimed.server_id or 0, view.node.raft_id or 0, view.raft.term, view.raft.term, commit, commit)
    said = [words for words in requests(plausible, random) if random.random() < share]
    upgraded = 0
    for bunch in in_bunches(said, BUNCH):
        # The server may close while there is still something to send; and a size that is announced and never sent is
        # waited for, but not here.
        with suppress(OSError), Connection(way, claimed, bunch) as connection:
            upgraded += connection.status == 101
            connection.hurry(ANSWER_BOUND_S)
            connection.heard(ANSWERS_BYTES)
    return upgraded


def submit(farm: Farm, claimed: Claimed, random: Random, count: int) -> int:
    """Entries with a proof that holds, each with a field at its extremes; returns how many are in the log."""
    leader = farm.wait_settled()
    before = leader.view().raft.commit_index or 0
    for number in range(count):
        entry = random.choice(TAKEN)
        own = {**entry, "id": claimed.server_id} if "id" in entry else entry
        data = unsigned(own, random)
        with suppress(ValueError):  # no farm would read it, so it is not signed
            moment_ms = time.time_ns() // 1_000_000 + number
            data = sign_entry(data, key_in(claimed), bytes.fromhex(claimed.cluster_id or ""), moment_ms)
        with suppress(OSError), Connection(way_of(farm, leader), claimed) as connection:
            connection.say(message(CLIENT, claimed.server_id or 0, 0, 0, application(0, data)))
            connection.heard(26)
    return (leader.view().raft.commit_index or 0) - before


def key_in(claimed: Claimed) -> Ed25519PrivateKey:
    """With which it proves who it is."""
    assert claimed.key is not None
    return claimed.key


def attacked(farm: Farm, share: float) -> None:
    """The whole story, with that share of what can be said."""
    random = seeded("hostile member")
    # Given a farm with four servers, of which one is in other hands
    hostile = farm["node-4"]
    view, key = hostile.view(), load_identity(hostile.directory).key
    raft_id, node_id, cluster = view.node.raft_id, view.node.node_id, view.farm.cluster_id
    hostile.kill()
    farm.nodes.remove(hostile)
    memory = {node.name: node.resident_bytes() for node in farm.nodes}
    # When a stranger with the key file says it, and when the member says it in its own name
    for node in farm.nodes:
        assert say(farm, node, Claimed(), random, share / 4) > 0
        assert say(farm, node, Claimed(raft_id, "client", key, None, cluster), random, share / 4) > 0
        assert say(farm, node, Claimed(raft_id, "server", key, None, cluster), random, share) > 0
    assert submit(farm, Claimed(raft_id, "client", key, None, cluster), random, int(800 * share)) > 0
    # Then no server has ended, none has told of a mistake of its own, and none keeps what it was sent
    farm.wait_settled()
    for node in farm.nodes:
        assert "Traceback" not in node.log_file.read_text(errors="replace"), farm.logs()
        assert node.resident_bytes() - memory[node.name] < GROWTH_BOUND_BYTES
        assert node.view().raft.term < 2**62, "terms were not used up"
        assert call("status", "--node", node.directory).returncode in (
            0,
            3,
        )  # the hostile member is down, which is told
    # And with the member evicted the farm publishes, loses its leader, and starts anew
    farm.wait_done("node", "evict", node_id, "--yes", at=farm.wait_settled)
    leader = farm.wait_settled()
    exported_key(leader, farm.directory / "farm.key", "--replace")
    with Connection(way_of(farm, leader), Claimed(raft_id, "server", key, None, cluster)) as connection:
        assert connection.status == 403
    before = last_second(farm)
    leader.stop()
    leader.start()
    farm.wait_settled()
    farm.wait_done("publish", "force", master_of(farm), at=farm.wait_settled)
    farm.wait_until(lambda: last_second(farm) > before, START_BOUND_S, "a later second is published")
    for node in farm.nodes:
        node.stop()
    farm.start_all()
    assert farm.wait_settled().submit({"mark": "after"}).index is not None


def way_of(farm: Farm, node: Node) -> Way:
    """To its Raft port, with the present password."""
    key = load_farm_key(farm.directory / "farm.key")
    host, _, port = addresses(node)[1].rpartition(":")
    shown = key.digest_credentials[0]
    return Way(host, int(port), key.cluster, shown.username, shown.password)


def master_of(farm: Farm) -> str:
    """The destination that the farm publishes."""
    [destination] = {each.destination for node in farm.nodes for each in node.published()}
    return base64.b64encode(destination, altchars=b"-~").decode()


def last_second(farm: Farm) -> int:
    """Of what is published."""
    return max((each.published_s for node in farm.nodes for each in node.published()), default=0)


def test_nothing_that_a_member_can_say_ends_a_server_and_without_it_the_farm_goes_on(farm: Farm) -> None:
    attacked(farm, 0.03)


@pytest.mark.soak
def test_everything_that_a_member_can_say_ends_no_server_and_without_it_the_farm_goes_on(farm: Farm) -> None:
    attacked(farm, 1.0)
