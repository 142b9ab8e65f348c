"""The monotonic clock of one machine: it runs at its own rate, and may jump forward when a machine was suspended."""

from math import ceil


class Clock:
    """Converts between the world's milliseconds and this machine's."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._ahead_ms = 0

    def reads(self, world_ms: int) -> int:
        """What it shows at this moment of the world."""
        return int(world_ms * self._rate) + self._ahead_ms

    def shows_at(self, clock_ms: int) -> int:
        """The first moment of the world at which it shows `clock_ms` or more, give or take one."""
        return ceil((clock_ms - self._ahead_ms) / self._rate)

    def jump(self, ahead_ms: int) -> None:
        """Skip some time."""
        self._ahead_ms += ahead_ms
