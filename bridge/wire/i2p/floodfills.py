"""Which floodfills keep a destination's lease set: the closest ones, for yesterday, today and tomorrow.

    routing key = SHA-256(hash ‖ yyyyMMdd)           of a UTC day, so that all keys move at midnight
    distance    = routing key XOR router hash        as one big number; the least are the closest

A structure is stored at the closest floodfills of its day. At midnight others become the closest, so who wants to know
whether a destination can be found looks at three days. Which routers are floodfills is not known here: the caller
brings the hashes, and gets an answer about those alone.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta
from heapq import nsmallest
from typing import Final

from bridge.wire.i2p.structures import distance, routing_key

CLOSEST_DEFAULT: Final = 4


@dataclass(frozen=True, slots=True)
class ClosestFloodfills:
    """Router hashes, the closest first."""

    yesterday: tuple[bytes, ...]
    today: tuple[bytes, ...]
    tomorrow: tuple[bytes, ...]


def closest_floodfills(
    destination_hash: bytes, routers: Collection[bytes], utc_day: date, count: int = CLOSEST_DEFAULT
) -> ClosestFloodfills:
    """The `count` closest of these routers to a destination (or a router: anything that is stored by its hash)."""
    one_day = timedelta(days=1)

    def closest(day: date) -> tuple[bytes, ...]:
        routing = routing_key(destination_hash, day)
        return tuple(nsmallest(count, routers, key=lambda router: distance(routing, router)))

    return ClosestFloodfills(closest(utc_day - one_day), closest(utc_day), closest(utc_day + one_day))
