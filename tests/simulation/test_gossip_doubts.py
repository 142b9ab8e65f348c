"""An attacker with the group's key sends verdicts continuously, and no node's view changes.

The attacker knows the incarnation of each member and sends verdicts that win by SWIM's rule, in the names of members.
They mark a member suspect or dead, at its incarnation number and just above it. `make soak` runs each test under more
seeds.
"""

import pytest
from msgspec.structs import replace

from gossip.core.effects import AlarmKind
from gossip.core.events import Received
from gossip.core.member import Address, Incarnation, Status
from gossip.core.messages import Payload, PingRequest, VerdictUpdate
from gossip.core.options import SwimOptions
from tests.effort import GROUP_SEEDS, IS_SOAK
from tests.simulation.gossip_network import GossipNetwork, Node, node_id

OPTIONS = replace(SwimOptions.lan(), first_hand_verdicts=True)
ATTACK_MS = 60_000 if IS_SOAK else 20_000
ATTACKER = Address("10.9.9.9", 7_669)


def formed(
    random_seed: int, size: int, options: SwimOptions = OPTIONS, loss: float = 0.0
) -> tuple[GossipNetwork, list[Node]]:
    network = GossipNetwork(random_seed, options, loss=loss)
    nodes = network.start(size)
    assert network.run_until(network.is_full_mesh, limit_ms=60_000), f"random seed {random_seed}: no full mesh"
    for node in nodes:
        node.changes.clear()
    return network, nodes


def accuse(network: GossipNetwork, receiver: Node, victim: Node, number: int) -> None:
    """Send one forged verdict that wins by the rule of precedence."""
    current = victim.core.info.incarnation
    claimed = Incarnation(current.generation, current.number + number % 2)
    status = Status.DEAD if number % 3 else Status.SUSPECT
    verdict = VerdictUpdate(victim.node_id, claimed, status, node_id(number % len(network.nodes)))
    ping = PingRequest(
        node_id(99), Incarnation(1, 0), receiver.node_id, current, number, 0, payload=Payload((verdict,), 30, 2)
    )
    network.step(receiver, Received(ATTACKER, ping))


def flood(network: GossipNetwork, victim: Node, every_ms: int, duration_ms: int) -> None:
    """Report the victim dead to all nodes, including itself, at a fixed interval."""
    for number in range(duration_ms // every_ms):
        network.run(every_ms)
        for receiver in network.up:
            accuse(network, receiver, victim, number)


@pytest.mark.search
@pytest.mark.parametrize("seed", GROUP_SEEDS)
@pytest.mark.parametrize("every_ms", [20, 170, 1_000])
def test_forged_verdicts_do_not_change_status(seed: int, every_ms: int) -> None:
    network, nodes = formed(seed, 5)
    flood(network, nodes[2], every_ms, ATTACK_MS)
    assert network.ever(Status.DEAD) == network.ever(Status.SUSPECT) == []


@pytest.mark.search
@pytest.mark.parametrize("seed", GROUP_SEEDS)
def test_forged_verdicts_under_loss_do_not_declare_death(seed: int) -> None:
    network, nodes = formed(seed, 5, loss=0.05)
    flood(network, nodes[2], 170, ATTACK_MS)
    assert network.ever(Status.DEAD, nodes[2]) == []


@pytest.mark.search
def test_forged_verdicts_without_first_hand_rule_declare_death() -> None:
    network, nodes = formed(1, 5, SwimOptions.lan())
    flood(network, nodes[2], 170, ATTACK_MS)
    assert network.ever(Status.DEAD, nodes[2])


@pytest.mark.parametrize("seed", GROUP_SEEDS)
def test_forged_verdicts_alarm_ends_after_attack(seed: int) -> None:
    network, nodes = formed(seed, 3)
    flood(network, nodes[2], 250, 60_000)
    for node in nodes:
        (alarm,) = [each for each in node.alarms if each.kind is AlarmKind.FORGED_VERDICTS]
        assert nodes[2].node_id.hex() in alarm.text
        assert "10.9.9.9:7669" in alarm.text
    network.run(400_000)
    for node in nodes:
        assert [each.over for each in node.alarms if each.kind is AlarmKind.FORGED_VERDICTS] == [False, True]


@pytest.mark.search
@pytest.mark.parametrize("seed", GROUP_SEEDS)
def test_lost_datagrams_do_not_raise_forged_verdicts_alarm(seed: int) -> None:
    network, nodes = formed(seed, 8, loss=0.1)
    network.run(600_000 if IS_SOAK else 150_000)
    assert not [each for node in nodes for each in node.alarms if each.kind is AlarmKind.FORGED_VERDICTS]


@pytest.mark.parametrize("seed", GROUP_SEEDS)
@pytest.mark.parametrize("size", [3, 10, 30])
def test_first_hand_detection_takes_at_most_twice_as_long(seed: int, size: int) -> None:
    def seconds(options: SwimOptions) -> float:
        network, nodes = formed(seed, size, options)
        began = network.now
        network.kill(nodes[1])
        others = [each for each in nodes if each is not nodes[1]]
        found = network.run_until(
            lambda: all(network.status(nodes[1], each) is Status.DEAD for each in others), limit_ms=120_000
        )
        assert found, f"random seed {seed}: the crash is not found"
        return (network.now - began) / 1_000

    assert seconds(OPTIONS) <= 2 * seconds(SwimOptions.lan()) + 10
