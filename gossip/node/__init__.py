"""Gossip on a machine: the trio task that owns the core, its sockets and its state directory.

The names here are for users of gossip that share its state directory and its notation of addresses. Modules inside
gossip import each other.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
