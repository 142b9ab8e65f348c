"""Limits for connections to the control endpoint's TCP port: separate places for clients with and without a token.

    arrive ─▶ unknown ──token──▶ authenticated ─▶ leave
                 └── too many: the oldest of the source with most of them is closed

Each connection takes one place. So unknown clients compete only with each other, regardless of their number. A client
with a token is unknown only during the handshake and the head of its first request. If a recent client of a source sent
a valid token, the unknown clients of this source are closed last.
"""

from collections import Counter
from collections.abc import Callable

import trio
from msgspec import Struct, field

from consensus.net import KnownSources, source_of


class Place(Struct, eq=False):
    """One connection, from accept to close; canceling `scope` closes it."""

    source: str
    is_known: bool
    authenticated: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class RemotePlaces:
    """The clients connected by TCP."""

    def __init__(self, unproven_max: int, authenticated_max: int, replaced: Callable[[], None]) -> None:
        """Start empty; `replaced` is called when an unknown client is closed to make room for another."""
        self.known = KnownSources()
        self._replaced = replaced
        self._unproven_max = unproven_max
        self._authenticated_max = authenticated_max
        self._unproven: dict[Place, None] = {}
        self._authenticated: set[Place] = set()

    def arrive(self, address: str) -> Place:
        """Return a place for a new connection; another one may be closed for it."""
        if len(self._unproven) >= self._unproven_max:
            crowd = [each for each in self._unproven if not each.is_known] or list(self._unproven)
            crowding, _ = Counter(each.source for each in crowd).most_common(1)[0]
            oldest = next(each for each in crowd if each.source == crowding)
            del self._unproven[oldest]
            oldest.scope.cancel()
            self._replaced()
        place = Place(source_of(address), address in self.known)
        self._unproven[place] = None
        return place

    def authenticate(self, place: Place, address: str) -> bool:
        """Mark a place after a valid token; return False if all authenticated places are taken."""
        if place.authenticated:
            return True
        if len(self._authenticated) >= self._authenticated_max:
            return False
        self._unproven.pop(place, None)
        place.authenticated = True
        self._authenticated.add(place)
        self.known.add(address)
        return True

    def leave(self, place: Place) -> None:
        """Release the place of a closed connection."""
        self._unproven.pop(place, None)
        self._authenticated.discard(place)
