"""Stored state of a server: open, read, verify or rebuild it while no server runs; and a durable write.

A server itself opens its storage by `consensus.open_server`. Public names are imported at first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
