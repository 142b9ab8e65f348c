"""How far a logical clock may be: as far as the time of day, and never further.

Key chains and user messages are ordered by Lamport clocks, which honest members raise by one at a time. Whoever holds
the farm's key can claim any time, and there are three things that a member could do about a claim that is far ahead:

    believe it          one lie at the end of the scale leaves no later time to anybody, for good
    believe a step of   a member that misses one such lie is behind the others by more than a step, refuses all that
    at most so much     they say from then on, and is cut off for good: the bound itself does the harm
    believe what the    one bound for all, wherever they are themselves: what one may take, all may take. A member that
    time of day allows  missed every lie so far follows at once, and the scale lasts until the year 2248

The bound is 1,024 per millisecond since 1970: no group is so quick, so that honest clocks never come near, and after a
lie that uses it up there is room for the next change one millisecond later. Members whose times of day differ by a
second may disagree for a second about such a lie; nothing else ever depends on the time of day. `HEAD_START` serves
machines that begin in 1970 because nothing tells them the time: they understand every group that nobody lied to.
"""

from typing import Final

CLOCK_LIMIT: Final = 1 << 53
"""The end of the scale: numbers beyond it lose digits in other languages."""

HEAD_START: Final = 1 << 32
TICKS_PER_MS: Final = 1 << 10


class ClockBound:
    """The bound of one node. `unix_ms` is the time of day when the core's own clock is 0."""

    def __init__(self, unix_ms: int) -> None:
        self._unix_ms = max(unix_ms, 0)

    def at(self, now: int) -> int:
        """The latest time that may be believed now."""
        return min(HEAD_START + (self._unix_ms + max(now, 0)) * TICKS_PER_MS, CLOCK_LIMIT - 1)
