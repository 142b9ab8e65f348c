"""Groups larger than a node's capacity: a partition heals, and a departure differs from a failure.

Two presets for such a group are tested. With `lan`, each member has a directory of all members, and few peers. In the
overlay, a directory has at most 16 of the 24 members. `make soak` runs each test with both and under more random seeds.
Every message contains the seed.
"""

import pytest
from msgspec.structs import replace

from gossip.core.member import Status
from gossip.core.options import SwimOptions
from tests.effort import few_of
from tests.simulation.gossip_network import GossipNetwork, Node, is_symmetrical, must

SEEDS = (1, pytest.param(19, marks=pytest.mark.soak))
MEMBERS = 24
CAPACITY = 6
PRESETS = {"lan": SwimOptions.lan(), "overlay": replace(SwimOptions.for_overlay(), directory_limit=16)}
PERIOD_MS = SwimOptions.lan().probe_period_ms
both_presets = pytest.mark.parametrize("preset", few_of({each: each for each in PRESETS}, "overlay"))
several_seeds = pytest.mark.parametrize("random_seed", SEEDS)


def formed(random_seed: int, preset: str) -> tuple[GossipNetwork, list[Node]]:
    """Return an idle group; no node exceeds its capacity."""
    network = GossipNetwork(random_seed, PRESETS[preset])
    nodes = network.start(MEMBERS, capacity=CAPACITY)
    must(network, lambda: is_one(network, nodes), within_ms=120 * PERIOD_MS, what="one connected overlay")
    network.run(20 * PERIOD_MS)
    assert all(len(network.peers(node)) <= CAPACITY < MEMBERS for node in nodes)
    return network, nodes


def is_one(network: GossipNetwork, nodes: list[Node]) -> bool:
    """Return True if links connect the first node with all others."""
    return {node.number for node in nodes} <= network.reached_from(nodes[0])


def holders(network: GossipNetwork, of: Node, *statuses: Status) -> list[int]:
    return [node.number for node in network.up if node is not of and network.status(of, node) in statuses]


@both_presets
@several_seeds
def test_overlay_partition_heals_automatically(random_seed: int, preset: str) -> None:
    network, nodes = formed(random_seed, preset)
    for node in nodes:
        node.core._joiner._seeds.clear()
    left, right = nodes[: MEMBERS // 2], nodes[MEMBERS // 2 :]
    network.partition(left, right)
    network.run(60 * PERIOD_MS)
    across = [(near, far) for near, far in ((left, right), (right, left))]
    for near, far in across:
        assert is_one(network, near), f"random seed {random_seed}: each half is connected"
        listed = [n.number for each in far for n in near if network.status(each, n) in {Status.ALIVE, Status.SUSPECT}]
        assert listed == [], f"random seed {random_seed}: members do not list the other half after 60 periods"
    network.heal()
    must(network, lambda: is_one(network, nodes), within_ms=60 * PERIOD_MS, what="one overlay again")

    def no_running_member_is_dead() -> bool:
        return not any(holders(network, node, Status.DEAD, Status.LEFT) for node in nodes)

    must(network, no_running_member_is_dead, within_ms=90 * PERIOD_MS, what="no running member is marked dead")
    network.run(30 * PERIOD_MS)
    assert is_one(network, nodes)
    assert is_symmetrical(network)
    assert all(len(network.peers(node)) <= CAPACITY for node in nodes)


@both_presets
@several_seeds
def test_overlay_departure_reaches_peers_within_500_ms(random_seed: int, preset: str) -> None:
    network, nodes = formed(random_seed, preset)
    departed = nodes[7]
    peers = network.peers(departed)
    assert len(peers) >= 2
    network.leave(departed)
    network.run(500)
    assert peers <= set(holders(network, departed, Status.LEFT)), f"random seed {random_seed}: its peers mark it left"
    network.kill(departed)

    def no_member_lists_it() -> bool:
        return not holders(network, departed, Status.ALIVE, Status.SUSPECT)

    must(network, no_member_lists_it, within_ms=30 * PERIOD_MS, what="no member lists the departed member")
    network.run(30 * PERIOD_MS)
    assert no_member_lists_it(), f"random seed {random_seed}: and no member lists it again"
    assert network.ever(Status.DEAD, departed) == []
    rest = [node for node in nodes if node is not departed]
    assert is_one(network, rest)
    assert network.ever(Status.DEAD) == [], f"random seed {random_seed}: no other member is marked dead"
