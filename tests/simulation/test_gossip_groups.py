"""Complete groups of gossip nodes in virtual time: the guarantees for users of the protocol.

`make test` runs each test with one random seed; `make soak` repeats the parametrized tests with others. The id of such
a test contains the seed.
"""

from collections.abc import Callable

import pytest

from gossip.core.effects import AlarmKind, Effect, Send
from gossip.core.member import Address, Status
from gossip.core.messages import PingRequest, PingResponse
from gossip.core.options import SwimOptions
from tests.effort import GROUP_SEEDS
from tests.simulation.gossip_network import GossipNetwork, Node, is_symmetrical, must


def formed(random_seed: int, size: int, **network_options: float) -> tuple[GossipNetwork, list[Node]]:
    """Return a full mesh of `size` nodes."""
    network = GossipNetwork(random_seed, **network_options)  # type: ignore[arg-type]  # loss and duplication only
    nodes = network.start(size)
    must(network, network.is_full_mesh, within_ms=60_000, what="a full mesh")
    return network, nodes


def known_everywhere(network: GossipNetwork, member: Node, status: Status) -> Callable[[], bool]:
    """Return a condition: every other running node sees `member` with this status."""
    return lambda: all(network.status(member, node) is status for node in network.up if node is not member)


def parts(network: GossipNetwork) -> int:
    """Return the number of parts that the links of the running nodes form."""
    left = {node.number for node in network.up}
    count = 0
    while left:
        left -= network.reached_from(network.nodes[min(left)])
        count += 1
    return count


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
@pytest.mark.parametrize("size", [3, 5, 12])
def test_small_group_forms_mesh_without_suspicion(size: int, random_seed: int) -> None:
    network, _ = formed(random_seed, size)
    network.run(60_000)
    assert network.is_full_mesh()
    assert network.ever(Status.SUSPECT) == [], f"random seed {random_seed}"


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_loopback_group_of_3_forms_mesh_within_a_second(random_seed: int) -> None:
    network = GossipNetwork(random_seed, SwimOptions.loopback())
    network.start(3)
    must(network, network.is_full_mesh, within_ms=1_000, what="a full mesh of 3")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_nodes_without_seeds_find_each_other_by_broadcast(random_seed: int) -> None:
    network = GossipNetwork(random_seed, broadcast=True)
    for number in range(5):
        network.add(number)
        network.run(500)
    must(network, network.is_full_mesh, within_ms=20_000, what="a full mesh by broadcast")


def test_nodes_join_seed_that_starts_late() -> None:
    network = GossipNetwork(1)
    for number in (1, 2, 3):
        network.add(number, seeds=(0,))
    network.run(600_000)
    assert all(node.alarms[0].kind is AlarmKind.ISOLATED for node in network.up)
    network.add(0)
    must(network, network.is_full_mesh, within_ms=60_000, what="a full mesh once the seed is there")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
@pytest.mark.parametrize("size", [3, 12])
def test_crash_is_known_to_every_member(size: int, random_seed: int) -> None:
    network, nodes = formed(random_seed, size)
    network.run(5_000)
    network.kill(nodes[1])
    must(network, known_everywhere(network, nodes[1], Status.DEAD), within_ms=20_000, what="the death known to all")
    assert {line.split(" saw ")[1] for line in network.ever(Status.DEAD)} == {"1 DEAD"}


@pytest.mark.soak
def test_group_of_50_forms_full_mesh_and_detects_crash() -> None:
    network = GossipNetwork(1)
    nodes = network.start(50)
    must(network, network.is_full_mesh, within_ms=10_000, what="a full mesh of 50")
    network.kill(nodes[7])
    must(network, known_everywhere(network, nodes[7], Status.DEAD), within_ms=30_000, what="the death known to all")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_suspects_at_20_percent_loss_refute(random_seed: int) -> None:
    network, _ = formed(random_seed, 8, loss=0.2, duplication=0.05)
    network.run(180_000)
    assert network.ever(Status.SUSPECT), "the run proves nothing: no member was suspected"
    assert network.ever(Status.DEAD) == [], f"random seed {random_seed}"
    network.loss = 0.0
    must(network, network.is_full_mesh, within_ms=20_000, what="all alive again")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_crash_under_loss_is_known_to_every_member(random_seed: int) -> None:
    network, nodes = formed(random_seed, 8, loss=0.2)
    network.kill(nodes[3])
    must(network, known_everywhere(network, nodes[3], Status.DEAD), within_ms=60_000, what="the death known to all")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_node_reachable_through_helpers_is_not_suspected(random_seed: int) -> None:
    network, nodes = formed(random_seed, 6)
    cut = {nodes[1].address, nodes[2].address}
    deliver = network.deliver

    def without_one_link(sender: Node, target: Address, message: object) -> None:
        if {sender.address, target} != cut:
            deliver(sender, target, message)  # type: ignore[arg-type]  # passed on as it came

    network.deliver = without_one_link  # type: ignore[method-assign]  # one link of the network is cut
    network.run(120_000)
    assert network.ever(Status.SUSPECT) == [], f"random seed {random_seed}"


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_frozen_node_causes_suspicion_but_no_death(random_seed: int) -> None:
    network = GossipNetwork(random_seed, SwimOptions.loopback())
    nodes = network.start(5)
    must(network, network.is_full_mesh, within_ms=5_000, what="a full mesh")
    for _ in range(10):
        network.freeze(network.random.choice(nodes), 1_000)
        network.run(1_500)
    assert network.ever(Status.SUSPECT)
    assert network.ever(Status.DEAD) == [], f"random seed {random_seed}"
    must(network, network.is_full_mesh, within_ms=5_000, what="all alive")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_partition_into_halves_heals_automatically(random_seed: int) -> None:
    network, nodes = formed(random_seed, 12)
    network.partition(nodes[:6], nodes[6:])
    network.run(60_000)
    assert network.is_full_mesh(nodes[:6])
    assert network.is_full_mesh(nodes[6:])
    assert network.status(nodes[0], nodes[6]) is Status.DEAD
    network.heal()
    deaths = len(network.ever(Status.DEAD))
    must(network, network.is_full_mesh, within_ms=60_000, what="one full mesh again")
    assert len(network.ever(Status.DEAD)) == deaths, f"random seed {random_seed}: healing itself declared deaths"


@pytest.mark.parametrize("minutes", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_node_isolated_for_long_rejoins(minutes: int) -> None:
    network, nodes = formed(1, 3)
    network.partition(nodes[:2], nodes[2:])
    network.run(minutes * 60_000)
    network.heal()
    must(network, network.is_full_mesh, within_ms=60_000, what="one full mesh again")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_restarted_node_rejoins_with_or_without_seeds(random_seed: int) -> None:
    network, nodes = formed(random_seed, 5)
    network.kill(nodes[2])
    network.run(300)
    network.restart(nodes[2], seeds=(0,))
    must(network, network.is_full_mesh, within_ms=5_000, what="back after a quick restart")
    assert network.ever(Status.DEAD) == []
    network.kill(nodes[2])
    must(network, known_everywhere(network, nodes[2], Status.DEAD), within_ms=30_000, what="the death known to all")
    network.restart(nodes[2])
    must(network, network.is_full_mesh, within_ms=60_000, what="found by the others after a restart without seeds")


def test_node_with_lost_generation_adopts_later_one() -> None:
    network, nodes = formed(1, 4)
    network.restart(nodes[1], seeds=(0,))
    network.restart(nodes[1], seeds=(0,))
    must(network, network.is_full_mesh, within_ms=10_000, what="full mesh in the third generation")
    network.kill(nodes[1])
    network.add(1, seeds=(0,), generation=1)
    must(network, network.is_full_mesh, within_ms=60_000, what="full mesh after adoption")
    assert nodes[1].generation > 3
    assert nodes[1].alarms == []


def test_duplicate_identity_stops_one_node_with_alarm() -> None:
    network, nodes = formed(1, 4)
    network.restart(nodes[1], seeds=(0,))
    second = network.add(9, seeds=(0,), identity=1, generation=2)

    def one_stopped() -> bool:
        return nodes[1].core.describe().halted or second.core.describe().halted

    must(network, one_stopped, within_ms=60_000, what="one of the two stops")
    assert {alarm.kind for alarm in nodes[1].alarms + second.alarms} == {AlarmKind.IDENTITY_CONFLICT}


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_departed_node_is_left_and_never_dead(random_seed: int, loss: float) -> None:
    network, nodes = formed(random_seed, 8, loss=loss)
    network.leave(nodes[4])
    network.run(2_000)
    network.kill(nodes[4])
    must(network, known_everywhere(network, nodes[4], Status.LEFT), within_ms=20_000, what="the departure known")
    network.run(60_000)
    assert network.ever(Status.DEAD, nodes[4]) == [], f"random seed {random_seed}"


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_metadata_change_reaches_every_member(random_seed: int) -> None:
    network, nodes = formed(random_seed, 12)
    network.set_metadata(nodes[3], b"role=publisher")

    def is_known() -> bool:
        return all(
            any(m.info.metadata == b"role=publisher" for m in node.core.describe().members)
            for node in nodes
            if node is not nodes[3]
        )

    took = must(network, is_known, within_ms=10_000, what="the new metadata known to all")
    assert took <= 2_000


# -- bounded capacity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_full_group_forms_one_connected_overlay(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    nodes = network.start(40, capacity=5)

    def placed() -> bool:
        return all(network.peers(node) for node in nodes) and is_symmetrical(network) and parts(network) == 1

    must(network, placed, within_ms=30_000, what="all placed, one overlay")
    network.run(20_000)
    assert placed()
    assert all(len(network.peers(node)) <= 5 for node in nodes)
    assert network.ever(Status.SUSPECT) == []
    before = sum(node.core.describe().sent.get("JoinReq", 0) for node in nodes)
    network.run(30_000)
    after = sum(node.core.describe().sent.get("JoinReq", 0) for node in nodes)
    assert after - before <= len(nodes), f"random seed {random_seed}: the overlay does not settle"


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_full_overlay_places_late_joiner(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    network.start(20, capacity=3)
    network.run(30_000)
    late = network.add(99, seeds=(4,), capacity=3)
    must(network, lambda: len(network.peers(late)) >= 2, within_ms=20_000, what="the late joiner placed")
    must(network, lambda: parts(network) == 1 and is_symmetrical(network), within_ms=10_000, what="one overlay")


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_overlay_after_loss_of_a_third_is_connected(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    nodes = network.start(30, capacity=4)
    network.run(20_000)
    for node in nodes[:10]:
        network.kill(node)
    network.run(60_000)
    assert parts(network) == 1, f"random seed {random_seed}"
    assert is_symmetrical(network)


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_full_overlay_reconnects_after_partition(random_seed: int) -> None:
    network = GossipNetwork(random_seed)
    nodes = network.start(24, capacity=4)
    network.run(20_000)
    network.partition(nodes[:12], nodes[12:])
    network.run(60_000)
    assert parts(network) >= 2, "a half may split, because each node has few links"
    network.heal()
    network.run(30_000)
    assert parts(network) == 1, f"random seed {random_seed}"
    crossing = sum((peer < 12) != (node.number < 12) for node in nodes for peer in network.peers(node)) // 2
    assert crossing >= 4, f"random seed {random_seed}: only {crossing} links connect the halves"


# -- load --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 5, pytest.param(20, marks=pytest.mark.soak)])
def test_idle_group_sends_about_two_messages_per_member(size: int) -> None:
    network, _ = formed(1, size)
    network.run(30_000)
    before = network.messages_sent
    network.run(60_000)
    per_member_and_period = (network.messages_sent - before) / 60 / size
    assert 1.9 <= per_member_and_period <= 2.2


def test_payloads_fit_datagram_budget() -> None:
    network = GossipNetwork(1)
    largest = 0

    def measure(_: Node, effect: Effect) -> None:
        nonlocal largest
        if isinstance(effect, Send) and isinstance(effect.message, PingRequest | PingResponse):
            payload = effect.message.payload
            infos = [u.info for u in payload.updates if hasattr(u, "info")] + list(payload.sample)
            # A signed description has metadata, a credential of 96 bytes, and 45 bytes of fields; a verdict has 40
            # bytes.
            size = sum(len(info.metadata) + 141 for info in infos)
            size += 40 * sum(not hasattr(u, "info") for u in payload.updates)
            largest = max(largest, size)

    network.watch = measure
    for number in range(12):
        network.add(number, seeds=(0,), metadata=bytes(512))
    network.run(20_000)
    network.kill(network.nodes[3])
    network.run(30_000)
    assert network.is_full_mesh()
    assert 600 < largest <= network.options.payload_budget_bytes


def test_random_seed_determines_run() -> None:
    def story(random_seed: int) -> tuple[int, list[str]]:
        network, nodes = formed(random_seed, 6, loss=0.3)
        network.kill(nodes[1])
        network.run(10_000)
        return network.messages_sent, network.ever(Status.SUSPECT) + network.ever(Status.DEAD)

    assert story(4) == story(4)
    assert story(4) != story(5)
