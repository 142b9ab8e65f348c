"""The simulated network of gossip nodes, part of the installed package for `garlicfarm simulate gossip`."""

from gossip.simulation.network import GossipNetwork, Node, address_of, node_id, token_for

__all__ = ["GossipNetwork", "Node", "address_of", "node_id", "token_for"]
