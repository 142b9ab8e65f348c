"""The entries of a structure, and their greatest number.

Clients and the wire format import this module without the modules of the farm's state, which load slowly.
"""

from typing import Final

from msgspec import Struct

LEAVES_MAX: Final = 16


class LeafEntry(Struct, frozen=True):
    """One entry of the Meta LeaseSet2: a destination (base64), its cost, and its end in seconds since the epoch."""

    destination: str
    cost: int
    end_s: int
