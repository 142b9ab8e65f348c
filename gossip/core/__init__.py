"""The pure core of gossip: no sockets, no clock, no global randomness.

What is named here is for users of gossip that bring their own I/O: what a `Swim` takes and gives. Inside gossip,
modules import each other.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
