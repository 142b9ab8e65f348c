"""Gossip as bytes: signed descriptions, sealed datagrams, keys.

What is named here is for users of gossip that sign and seal by themselves; inside gossip, modules import each other.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
