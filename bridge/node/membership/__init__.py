"""The other nodes: how this node learns of them, and which of them belong to its farm."""
