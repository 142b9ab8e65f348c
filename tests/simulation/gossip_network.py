"""The simulated network of gossip nodes, part of the installed package for `garlicfarm simulate gossip`."""

from collections.abc import Callable

from gossip.simulation.network import GossipNetwork, Node, address_of, node_id, token_for

__all__ = ["GossipNetwork", "Node", "address_of", "must", "node_id", "token_for"]


def must(network: GossipNetwork, holds: Callable[[], bool], *, within_ms: int, what: str) -> int:
    """Run until the condition holds; return the duration. The failure names the random seed."""
    started = network.now
    is_reached = network.run_until(holds, limit_ms=within_ms)
    assert is_reached, f"random seed {network.random_seed}: not within {within_ms} ms: {what}"
    return network.now - started
