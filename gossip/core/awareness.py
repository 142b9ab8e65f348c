"""Local health: how far a node should doubt itself before it accuses others (Lifeguard, section IV.A).

A node that is short of processor time misses answers that did arrive. The score rises with each sign of that (a failed
probe, a helper's nack that did not come, having to refute a suspicion) and falls with each answered probe; probe period
and timeout are multiplied by score + 1. A fixed timeout is what makes one overloaded node accuse a healthy group.
"""


class Awareness:
    """A score from 0 (healthy) to `limit` - 1."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.score = 0

    def adjust(self, delta: int) -> None:
        """Count a sign of ill health (positive) or of health (negative)."""
        self.score = min(max(self.score + delta, 0), self._limit - 1)

    def scale(self, duration_ms: int) -> int:
        """The duration at the present health."""
        return duration_ms * (self.score + 1)
