"""Gossip on a machine: the trio task that owns the core, its sockets and its state directory.

What is named here is for users of gossip that share its state directory and its spelling of addresses; inside gossip,
modules import each other.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
