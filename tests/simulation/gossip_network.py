"""The simulated network of gossip nodes, which the installed package ships for `garlicfarm simulate gossip`."""

from gossip.simulation.network import GossipNetwork, Node, address_of, node_id, token_for

__all__ = ["GossipNetwork", "Node", "address_of", "node_id", "token_for"]
