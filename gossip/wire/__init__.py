"""Gossip as bytes: signed descriptions, sealed datagrams, keys.

The names here are for users of gossip that sign and seal on their own. Modules inside gossip import each other.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
