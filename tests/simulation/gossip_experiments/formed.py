"""A group that is complete from its first moment, with aligned probe periods.

Forming a full mesh of 1,000 members by joins takes a million messages, too many for an experiment about failure
detection. So each core receives the other members directly, in the state after a join. Periods are aligned, as in the
analysis in SWIM's paper. Every member begins a round at each whole period, so that a crash just before a period is
detected after a whole number of periods.
"""

from collections.abc import Iterable

from gossip.core.member import NodeInfo
from tests.simulation.gossip_network import GossipNetwork, Node

ROOM = 8
"""Capacity of a member beyond the size of the group."""


def form(network: GossipNetwork, size: int) -> list[Node]:
    """Start `size` nodes that are each other's peers; the first aligned period begins after one period."""
    nodes = [network.add(number, capacity=size + ROOM) for number in range(size)]
    begin = network.now + network.options.probe_period_ms
    infos = [info_of(node) for node in nodes]
    for node in nodes:
        acquaint(network, node, infos)
        align(node, begin)
    return nodes


def revive(network: GossipNetwork, node: Node, others: Iterable[Node]) -> None:
    """Restart a crashed node with its next generation; the others become its peers immediately.

    If the others had to discover it, many would first mark its old generation dead and drop the link. After some
    hundred crashes every member would have fewer peers that probe it, and be detected later only because of that.
    """
    network.restart(node, capacity=len(network.nodes) + ROOM)
    known = list(others)
    acquaint(network, node, [info_of(other) for other in known])
    own = info_of(node)
    for other in known:
        core = other.core
        core._context.now = network.now
        entry = core._updates.apply_alive(own, further=False)
        assert entry is not None
        assert core._members.link(entry)
        core._context.take_effects()
        core._queue.forget(node.node_id)
    align(node, next_period(network))


def info_of(node: Node) -> NodeInfo:
    return node.core._local.info


def next_period(network: GossipNetwork) -> int:
    """Return the beginning of the next aligned period."""
    period_ms = network.options.probe_period_ms
    return (network.now // period_ms + 1) * period_ms


def acquaint(network: GossipNetwork, node: Node, infos: Iterable[NodeInfo]) -> None:
    """Make the described members peers of a node, without updates to gossip."""
    membership = node.core._members
    for info in infos:
        if info.node_id != node.node_id:
            entry, _ = membership.insert(info, network.now)
            assert entry is not None
            membership.link(entry)
    node.core._queue.forget(node.node_id)


def align(node: Node, begin: int) -> None:
    """Begin the probe rounds of a node at a time; later rounds keep its phase."""
    prober = node.core._prober
    prober._first_round_at = prober._next_round_at = begin
