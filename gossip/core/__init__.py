"""The pure core of gossip: no sockets, no clock, no global randomness.

The names here are for users of gossip with their own I/O: the inputs and outputs of a `Swim`. Modules inside gossip
import each other.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
