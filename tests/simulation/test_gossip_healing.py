"""Healing without an operator, and identities: the old and the new under one address or one name.

Each test runs under several random seeds; the seed stands in the test's name and in the message of a failure.
"""

from collections.abc import Callable

import pytest

from gossip.core.member import Incarnation, NodeId, Status
from gossip.core.membership import Member
from tests.simulation.gossip_network import GossipNetwork, Node, address_of, node_id

SEEDS = [1, 2, 3]


def must(network: GossipNetwork, holds: Callable[[], bool], *, within_ms: int, what: str) -> None:
    """Run until it holds; the failure names the random seed."""
    held = network.run_until(holds, limit_ms=within_ms)
    assert held, f"random seed {network.random_seed}: not within {within_ms} ms: {what}"


def formed(random_seed: int, size: int, capacity: int = 64) -> tuple[GossipNetwork, list[Node]]:
    """A group at rest."""
    network = GossipNetwork(random_seed)
    nodes = network.start(size, capacity=capacity)
    network.run(10_000)
    return network, nodes


def seen(name: NodeId, seen_by: Node) -> Member | None:
    """How a node sees the member of that name."""
    return next((m for m in seen_by.core.describe().members if m.node_id == name), None)


def all_see(nodes: list[Node], name: NodeId, status: Status) -> Callable[[], bool]:
    """Whether all these nodes see the member of that name so."""

    def holds() -> bool:
        views = [seen(name, node) for node in nodes]
        return all(view is not None and view.status is status for view in views)

    return holds


@pytest.mark.parametrize("random_seed", SEEDS)
def test_halves_that_declared_each_other_dead_find_each_other_again_though_no_seed_is_in_the_other_half(
    random_seed: int,
) -> None:
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


@pytest.mark.parametrize("random_seed", SEEDS)
def test_a_member_declared_dead_that_lives_comes_back_by_its_own_higher_incarnation(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    lost, others = nodes[2], nodes[:2] + nodes[3:]
    network.partition([lost], others)
    must(network, all_see(others, lost.node_id, Status.DEAD), within_ms=60_000, what="dead to the others")
    network.heal()
    must(network, all_see(others, lost.node_id, Status.ALIVE), within_ms=60_000, what="alive to all")
    own = lost.core.describe().self_info.incarnation
    assert own > Incarnation(1, 0), "the word of the others was not enough"
    assert own.generation == 1, "it never died, so it is the same life"


@pytest.mark.parametrize("random_seed", SEEDS)
@pytest.mark.parametrize("after_ms", [0, 60_000], ids=["at-once", "after-its-death-was-known"])
def test_a_new_node_under_the_address_of_an_old_one_is_told_apart_from_it(random_seed: int, after_ms: int) -> None:
    network, nodes = formed(random_seed, 6)
    old, new, others = nodes[2].node_id, node_id(77), nodes[:2] + nodes[3:]
    network.kill(nodes[2])
    network.run(after_ms)
    network.add(2, seeds=(0,), identity=77, metadata=b"new")
    must(network, all_see(others, new, Status.ALIVE), within_ms=30_000, what="the new one alive")
    must(network, all_see(others, old, Status.DEAD), within_ms=60_000, what="the old one dead")
    network.run(60_000)
    for node in others:
        one, other = seen(new, node), seen(old, node)
        assert one is not None
        assert (one.status, one.metadata, one.info.address) == (Status.ALIVE, b"new", address_of(2))
        assert other is None or (other.status, other.metadata) == (Status.DEAD, b"")
    assert all(
        change.status is not Status.DEAD for n in others for _, change in n.changes if change.info.node_id == new
    )


@pytest.mark.parametrize("random_seed", SEEDS)
def test_a_new_life_under_an_old_name_is_told_apart_by_its_generation_wherever_it_lives_now(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    name, others = nodes[2].node_id, nodes[:2] + nodes[3:]
    network.say(nodes[2], b"first life")
    network.run(5_000)
    network.kill(nodes[2])
    moved = network.add(40, seeds=(0,), identity=2, generation=2, metadata=b"second life")

    def found() -> bool:
        views = [seen(name, node) for node in others]
        return all(view is not None and view.metadata == b"second life" for view in views)

    must(network, found, within_ms=30_000, what="the second life known to all")
    network.run(60_000)
    for node in others:
        view = seen(name, node)
        assert view is not None
        assert (view.status, view.info.address, view.incarnation.generation) == (Status.ALIVE, moved.address, 2)
    assert moved.alarms == [], "the first run is over, so it is no conflict"


@pytest.mark.parametrize("random_seed", SEEDS)
def test_what_the_first_life_said_late_changes_nothing_about_the_second(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    network.say(nodes[2], b"first life")
    first = nodes[2].core.describe().self_info
    network.kill(nodes[2])
    network.restart(nodes[2], seeds=(0,))
    network.run(20_000)
    for node in nodes[:2] + nodes[3:]:
        node.core._updates.apply_alive(first)
        view = seen(first.node_id, node)
        assert view is not None
        assert (view.incarnation.generation, view.metadata) == (2, b"")


# -- in the group when at least one other lists it ------------------------------------------------------------------


@pytest.mark.parametrize("random_seed", SEEDS)
def test_a_node_that_one_other_lists_is_in_the_group_known_to_all_and_missed_by_all(random_seed: int) -> None:
    network, nodes = formed(random_seed, 8)
    narrow = network.add(30, seeds=(3,), capacity=1)
    must(network, all_see(nodes, narrow.node_id, Status.ALIVE), within_ms=30_000, what="known to all")
    network.run(20_000)
    assert sum(narrow.number in network.peers(node) for node in nodes) == 1
    assert len(network.peers(narrow)) == 1
    assert network.ever(Status.SUSPECT) == [], "probed now and then by those who do not list it, and found well"
    network.kill(narrow)
    must(network, all_see(nodes, narrow.node_id, Status.DEAD), within_ms=40_000, what="its death known to all")


@pytest.mark.parametrize("random_seed", SEEDS)
def test_a_node_that_no_member_lists_any_more_finds_out_and_joins_again(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    forgotten = nodes[4]
    for node in nodes:
        node.core._members.unlink(forgotten.node_id)
    for node in nodes[:4] + nodes[5:]:
        assert forgotten.number not in network.peers(node)

    def listed() -> bool:
        return network.is_symmetrical() and any(forgotten.number in network.peers(node) for node in network.up)

    must(network, listed, within_ms=20_000, what="listed again")
    must(network, network.is_full_mesh, within_ms=60_000, what="a full mesh again")
    assert network.ever(Status.SUSPECT) == []
