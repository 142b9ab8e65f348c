"""The delay before a failed operation is tried again.

    failure ──▶ next_s(): first_s, 2 * first_s, 4 * first_s, … longest_s, longest_s        success ──▶ reset()

The delay doubles and is clamped at each step: a power of the failures would overflow
(docs/explanation/architecture.md, "Errors of tasks").

A part of each delay (`spread`) is random, so that nodes that lost the same peer do not all return in one moment.
"""

from random import Random


class Backoff:
    """Delays in seconds that double from `first_s` up to `longest_s`.

    `spread` is the random part of each delay: 0 for a fixed delay. With 0.5 a delay is random, from half of its length
    to the entire length.
    """

    def __init__(self, first_s: float, longest_s: float, random: Random | None = None, *, spread: float = 0.5) -> None:
        if not 0 < first_s <= longest_s:
            raise ValueError(f"the first delay of {first_s} s must be positive and at most the longest, {longest_s} s")
        self._first_s = first_s
        self._longest_s = longest_s
        self._random = random
        self._spread = spread
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the delay before the next attempt, and double the following one."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self._longest_s)
        return delay_s if self._random is None else delay_s * (1 - self._spread * self._random.random())

    def reset(self) -> None:
        """Return to the first delay, after a success."""
        self._next_s = self._first_s
