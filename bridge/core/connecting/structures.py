"""The acceptance by a client of a verified *structure* (a farm's Meta LeaseSet2), and the time of its next refresh.

    offered ─▶ refusal(…) ─▶ None: the client uses it ─▶ refresh_delay_s(…)
                         └─▶ the reason of the refusal

The address signs the structure (`bridge.wire.i2p.structure_exchange.verified_structure`), so a directory (a node that
returns it) cannot change it, but can return an old structure. Therefore a client stores the timestamp of the newest
accepted structure, and refuses older structures, also after a restart. `verified_structure` also refuses a publication
in the far future: otherwise one such structure would make the client refuse all later ones.

A structure with the mark of a demonstration is accepted: the address signed it, and its leaves exist only at the bridge
of the demonstration. The client shows the mark. The code that hands structures to a router refuses marked ones, because
the router would publish them.
"""

from random import Random
from typing import Final

from msgspec import Struct

from bridge.core.publishing.entries import LEAVES_MAX

CLOCK_DIFFERENCE_MAX_S: Final = 10 * 60
"""Seconds that a publication may be ahead of the client's clock: users' clocks are less exact than nodes' clocks."""
REFRESH_LONGEST_S: Final = 300.0
"""The default time between two publications of an unchanged structure."""
REFRESH_SHORTEST_S: Final = 5.0
CONNECTABLE_KINDS: Final = frozenset({0, 1, 3})
"""Kinds of lease sets whose hash is enough to open a stream: unknown, LeaseSet, LeaseSet2."""


class ListedLeaf(Struct, frozen=True):
    """One entry of a structure: the hash of the leaf, its cost, and the end of the entry in Unix seconds."""

    hash: bytes
    cost: int
    ends_s: int


class OfferedStructure(Struct, frozen=True, kw_only=True):
    """The facts about a verified structure that decide on its acceptance and use. Times are Unix seconds."""

    published_s: int
    ends_s: int
    """The end of its last entry, of the structure, or of the transient key that signed it: the earliest of them."""
    entries: int
    """Number of all entries, also of entries that a client cannot use."""
    leaves: tuple[ListedLeaf, ...]
    """The entries that a client can use, each leaf once."""
    demo: bool


def refusal(offered: OfferedStructure, newest_published_s: int | None) -> str | None:
    """Return the reason to refuse a verified structure; None to accept it.

    `newest_published_s` is the publication of the newest accepted structure.
    """
    if offered.entries > LEAVES_MAX:
        return f"it has {offered.entries} entries; at most {LEAVES_MAX} are allowed"
    if not offered.leaves:
        return "none of its entries is a destination that a stream can reach"
    if newest_published_s is not None and offered.published_s < newest_published_s:
        return f"it is {newest_published_s - offered.published_s} s older than the newest accepted structure"
    return None


def refresh_delay_s(left_s: float, random: Random) -> float:
    """Return the delay before the next refresh of a structure that ends in `left_s` seconds.

    The random part prevents the clients of one farm from refreshing at the same moment.
    """
    delay_s = min(left_s / 2, REFRESH_LONGEST_S) * random.uniform(0.75, 1.0)
    return max(delay_s, REFRESH_SHORTEST_S)
