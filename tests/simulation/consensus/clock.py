"""The monotonic clock of one machine: it runs at its own rate, and may jump forward after a suspension."""

from math import ceil


class Clock:
    """Converts between simulated milliseconds and this machine's milliseconds."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._ahead_ms = 0

    def reads(self, world_ms: int) -> int:
        return int(world_ms * self._rate) + self._ahead_ms

    def shows_at(self, clock_ms: int) -> int:
        """Return the first simulated millisecond, plus or minus one, when the clock has reached `clock_ms`."""
        return ceil((clock_ms - self._ahead_ms) / self._rate)

    def jump(self, ahead_ms: int) -> None:
        """Move the clock forward."""
        self._ahead_ms += ahead_ms
