"""A group that is complete from its first moment, and whose probe periods are aligned.

Forming a full mesh of 1,000 by joins takes a million messages, none of which an experiment about failure detection
wants to pay for. So each core is handed the others as if it had joined them, which is what joins end in. Periods are
aligned, as in the analysis in SWIM's paper: every member begins a round at each whole period, so that a crash just
before one is found after a whole number of periods.
"""

from collections.abc import Iterable

from gossip.core.member import NodeInfo
from tests.simulation.gossip_network import GossipNetwork, Node

ROOM = 8
"""How much larger than the group a member's capacity is."""


def form(network: GossipNetwork, size: int) -> list[Node]:
    """Start `size` nodes that know each other as peers; the first aligned period begins after one period."""
    nodes = [network.add(number, capacity=size + ROOM) for number in range(size)]
    begin = network.now + network.options.probe_period_ms
    infos = [info_of(node) for node in nodes]
    for node in nodes:
        acquaint(network, node, infos)
        align(node, begin)
    return nodes


def revive(network: GossipNetwork, node: Node, others: Iterable[Node]) -> None:
    """Start a crashed node again in its next life, with the others as its peers and it as theirs, at once.

    Were the others left to hear of it, many would hold its old life for dead first and give the link up: after some
    hundred crashes every member would have fewer peers who probe it, and be found later for that alone.
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
    """What a node says about itself now."""
    return node.core._local.info


def next_period(network: GossipNetwork) -> int:
    """When the next aligned period begins."""
    period_ms = network.options.probe_period_ms
    return (network.now // period_ms + 1) * period_ms


def acquaint(network: GossipNetwork, node: Node, infos: Iterable[NodeInfo]) -> None:
    """Make the described members peers of a node; no member has news."""
    membership = node.core._members
    for info in infos:
        if info.node_id != node.node_id:
            entry, _ = membership.insert(info, network.now)
            assert entry is not None
            membership.link(entry)
    node.core._queue.forget(node.node_id)


def align(node: Node, begin: int) -> None:
    """Let a node's next probe round begin at a given time."""
    node.core._prober._next_round_at = begin
