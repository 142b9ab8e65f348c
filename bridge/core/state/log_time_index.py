"""The index of log time: for each entry the log time after it, and for each log time the entries of that time.

    entry 7 sets 12:00:30, entry 12 sets 12:01:00 ──▶ (7, 12:00:30), (12, 12:01:00)
    time_at(9) = 12:00:30      first_at(12:00:45) = 12      last_until(12:00:45) = 7

One pair of numbers (16 bytes) is kept for each change of log time, at most `MOMENTS_MAX`. Half a year of 30 s periods
takes 8 MB. The times of older entries are unknown.

An operator can set log time back. Between two such corrections, times rise, so each of these ranges is searched by
bisection. A scan of all moments would block the event loop.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import compress, islice
from operator import lt
from typing import Self

MOMENTS_MAX = 500_000


class LogTimeIndex:
    """The moments of the changes of log time. Times are milliseconds since the epoch."""

    def __init__(self, indexes: Sequence[int], times_ms: Sequence[int]) -> None:
        self.indexes = array("q", indexes)
        """The index of the entry that changed log time, for each moment."""
        self.times_ms = array("q", times_ms)
        """Log time after that entry."""
        changes = map(lt, islice(self.times_ms, 1, None), self.times_ms)
        self._turns_back = [*compress(range(1, len(self.times_ms)), changes)]
        """The places of the moments whose time is lower than the previous one."""

    @classmethod
    def from_base(cls, base_ms: int) -> Self:
        """Return the index of an empty log, with the time that its farm began with."""
        return cls((0,), (base_ms,))

    @property
    def now_ms(self) -> int:
        """Log time after the last change."""
        return self.times_ms[-1]

    def note(self, index: int, time_ms: int) -> None:
        """Add the log time after the entry at `index`; a time that equals the last one is not added."""
        if time_ms == self.now_ms:
            return
        if time_ms < self.now_ms:
            self._turns_back.append(len(self.times_ms))
        self.indexes.append(index)
        self.times_ms.append(time_ms)
        if len(self.indexes) > MOMENTS_MAX:
            dropped = MOMENTS_MAX // 2
            del self.indexes[:dropped], self.times_ms[:dropped]
            self._turns_back = [place - dropped for place in self._turns_back if place > dropped]

    def time_at(self, index: int) -> int | None:
        """Return log time after the entry at `index`; None if the entry is older than the known moments."""
        place = bisect_right(self.indexes, index) - 1
        return None if place < 0 else self.times_ms[place]

    def first_at(self, time_ms: int) -> int | None:
        """Return the first known index with this log time or a later one, or None."""
        place = self._first_place(time_ms, bisect_left)
        return None if place is None else self.indexes[place]

    def latest_ms(self) -> int:
        """Return the highest known log time."""
        return max(self.times_ms[end - 1] for end in (*self._turns_back, len(self.times_ms)))

    def last_until(self, time_ms: int) -> int:
        """Return the index of the last change up to log time `time_ms`; 0 if it is before the known moments."""
        place = self._first_place(time_ms, bisect_right)
        place = (len(self.times_ms) if place is None else place) - 1
        return self.indexes[place] if place >= 0 else 0

    def _first_place(self, time_ms: int, bisect: "Callable[[array[int], int, int, int], int]") -> int | None:
        """Return the first place that `bisect` finds within a range of rising times."""
        for start, end in zip((0, *self._turns_back), (*self._turns_back, len(self.times_ms)), strict=True):
            place = bisect(self.times_ms, time_ms, start, end)
            if place < end:
                return place
        return None
