"""In which order peers are probed: SWIM's round robin with random insertion (SWIM paper, section 4.3).

Choosing at random each round would leave the time until a given peer is probed unbounded. A rotation probes each peer
once per pass, so a failed peer is found within two passes at the latest; newcomers enter at a random place and the
order is shuffled after each pass, so that the group does not fall into step.
"""

from collections.abc import Collection
from random import Random

from gossip.core.member import NodeId


class Rotation:
    """A shuffled ring over a set that changes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._order: list[NodeId] = []
        self._next = 0

    def next(self, current: Collection[NodeId]) -> NodeId | None:
        """The next of `current`; what left the set is forgotten, what is new enters at a random place."""
        self._follow(current)
        if not self._order:
            return None
        if self._next >= len(self._order):
            self._random.shuffle(self._order)
            self._next = 0
        chosen = self._order[self._next]
        self._next += 1
        return chosen

    def _follow(self, current: Collection[NodeId]) -> None:
        known = set(self._order)
        if known == set(current):
            return
        passed = sum(1 for node_id in self._order[: self._next] if node_id in current)
        self._order = [node_id for node_id in self._order if node_id in current]
        self._next = passed
        for node_id in current:
            if node_id not in known:
                place = self._random.randint(0, len(self._order))
                self._order.insert(place, node_id)
                if place < self._next:
                    self._next += 1
