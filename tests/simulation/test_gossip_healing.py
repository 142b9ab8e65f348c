"""Automatic healing, and identity: an old and a new node that share an address or an id.

Each test runs under several random seeds; the test id and the failure message contain the seed.
"""

from collections.abc import Callable

import pytest

from gossip.core.member import Incarnation, NodeId, Status
from gossip.core.membership import Member
from tests.effort import GROUP_SEEDS
from tests.simulation.gossip_network import GossipNetwork, Node, address_of, is_symmetrical, must, node_id


def formed(random_seed: int, size: int, capacity: int = 64) -> tuple[GossipNetwork, list[Node]]:
    """Start a group, and return it after 10 seconds of simulated time."""
    network = GossipNetwork(random_seed)
    nodes = network.start(size, capacity=capacity)
    network.run(10_000)
    return network, nodes


def member_view(name: NodeId, seen_by: Node) -> Member | None:
    return next((m for m in seen_by.core.describe().members if m.node_id == name), None)


def all_see(nodes: list[Node], name: NodeId, status: Status) -> Callable[[], bool]:
    """Return a predicate that is true when all these nodes see the member with this status."""

    def holds() -> bool:
        views = [member_view(name, node) for node in nodes]
        return all(view is not None and view.status is status for view in views)

    return holds


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_halves_without_common_seeds_merge_after_partition(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    left = [network.add(number, seeds=(0,) if number else ()) for number in range(5)]
    right = [network.add(number, seeds=(5,) if number > 5 else ()) for number in range(5, 10)]
    network.add(0, seeds=(5,), generation=2)
    must(network, network.is_full_mesh, within_ms=30_000, what="one group")
    for node in (left[0], right[0]):
        node.core._joiner._seeds.clear()
    network.partition(left, right)
    network.run(60_000)
    assert all(network.status(far, near) is Status.DEAD for near in left for far in right)
    network.heal()
    must(network, network.is_full_mesh, within_ms=60_000, what="one group again")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_member_declared_dead_returns_with_higher_incarnation(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    lost, others = nodes[2], nodes[:2] + nodes[3:]
    network.partition([lost], others)
    must(network, all_see(others, lost.node_id, Status.DEAD), within_ms=60_000, what="others see it as dead")
    network.heal()
    must(network, all_see(others, lost.node_id, Status.ALIVE), within_ms=60_000, what="alive to all")
    own = lost.core.describe().self_info.incarnation
    assert own > Incarnation(1, 0), "expected a higher incarnation: it must refute its death itself"
    assert own.generation == 1, "it never stopped, so the generation is the same"


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
@pytest.mark.parametrize("after_ms", [0, 60_000], ids=["immediately", "after-being-declared-dead"])
def test_new_node_at_old_address_is_distinguished(random_seed: int, after_ms: int) -> None:
    network, nodes = formed(random_seed, 6)
    old, new, others = nodes[2].node_id, node_id(77), nodes[:2] + nodes[3:]
    network.kill(nodes[2])
    network.run(after_ms)
    network.add(2, seeds=(0,), identity=77, metadata=b"new")
    must(network, all_see(others, new, Status.ALIVE), within_ms=30_000, what="the new one alive")
    must(network, all_see(others, old, Status.DEAD), within_ms=60_000, what="the old one dead")
    network.run(60_000)
    for node in others:
        one, other = member_view(new, node), member_view(old, node)
        assert one is not None
        assert (one.status, one.info.metadata, one.info.address) == (Status.ALIVE, b"new", address_of(2))
        assert other is None or (other.status, other.info.metadata) == (Status.DEAD, b"")
    assert all(
        change.status is not Status.DEAD for n in others for _, change in n.changes if change.info.node_id == new
    )


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_new_generation_at_another_address_is_distinguished(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    name, others = nodes[2].node_id, nodes[:2] + nodes[3:]
    network.set_metadata(nodes[2], b"first generation")
    network.run(5_000)
    network.kill(nodes[2])
    moved = network.add(40, seeds=(0,), identity=2, generation=2, metadata=b"second generation")

    def found() -> bool:
        views = [member_view(name, node) for node in others]
        return all(view is not None and view.info.metadata == b"second generation" for view in views)

    must(network, found, within_ms=30_000, what="the second generation known to all")
    network.run(60_000)
    for node in others:
        view = member_view(name, node)
        assert view is not None
        assert (view.status, view.info.address, view.incarnation.generation) == (Status.ALIVE, moved.address, 2)
    assert moved.alarms == [], "the first run is over, so there is no conflict"


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_late_update_of_first_generation_is_ignored(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    network.set_metadata(nodes[2], b"first generation")
    first = nodes[2].core.describe().self_info
    network.kill(nodes[2])
    network.restart(nodes[2], seeds=(0,))
    network.run(20_000)
    for node in nodes[:2] + nodes[3:]:
        node.core._updates.apply_alive(first)
        view = member_view(first.node_id, node)
        assert view is not None
        assert (view.incarnation.generation, view.info.metadata) == (2, b"")


# -- one link is enough: a node is in the group if it is a peer of at least one other node -----------------------------


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_node_with_one_peer_is_in_the_group(random_seed: int) -> None:
    network, nodes = formed(random_seed, 8)
    narrow = network.add(30, seeds=(3,), capacity=1)
    must(network, all_see(nodes, narrow.node_id, Status.ALIVE), within_ms=30_000, what="known to all")
    network.run(20_000)
    assert sum(narrow.number in network.peers(node) for node in nodes) == 1
    assert len(network.peers(narrow)) == 1
    assert network.ever(Status.SUSPECT) == [], "nodes that do not list it probe it occasionally, and it replies"
    network.kill(narrow)
    must(network, all_see(nodes, narrow.node_id, Status.DEAD), within_ms=40_000, what="its death known to all")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_unlisted_node_joins_again(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    unlisted = nodes[4]
    for node in nodes:
        node.core._members.unlink(unlisted.node_id)
    for node in nodes[:4] + nodes[5:]:
        assert unlisted.number not in network.peers(node)

    def listed() -> bool:
        return is_symmetrical(network) and any(unlisted.number in network.peers(node) for node in network.up)

    must(network, listed, within_ms=20_000, what="listed again")
    must(network, network.is_full_mesh, within_ms=60_000, what="a full mesh again")
    assert network.ever(Status.SUSPECT) == []
