"""The time that a client waits for the first byte of a reply, from measured times.

    timeout = max(least, 4 * typical, 1.5 * slow) * doubt, at most 60 s (or the base, if that is more)

    least      the base. After 8 measured times: the greatest of a fifth of the base, twice `slow`, and twice each late
               reply, but at most the base
    typical    the lower median of the last 32 first-reply times of the leaf. After 8 of them it counts only above half
               of the base: `least` covers quicker replies
    slow       the second-greatest of these 32 times: one lost packet does not count (i2pd repeats one after 9 s)
    doubt      1. It doubles after a late reply that took longer than the base. It also doubles after twice as many
               failures in a row as there are leaves. In both cases the network is slow or down

A leaf without measured times uses the times of all leaves. i2pd confirms a stream before the leaf has replied, so a
missing reply is the only sign of a dead leaf. With a fixed timeout, a slow network would look like dead leaves. If
`doubt` doubled after the second failure, one dead leaf and one lost packet would delay a client by half a minute.

A failure counts for the doubt only if its attempt began after the last failure that counted. Otherwise a hundred
streams to one dead leaf would look like a hundred failures in a row.
"""

from collections import deque
from math import inf
from typing import Final

SAMPLES_MAX: Final = 32
MEASURED_FROM: Final = 8
"""Minimum number of measured times for a timeout below the base."""
MEASURED_PART: Final = 0.2
TIMEOUT_MAX_S: Final = 60.0
_TYPICAL_FACTOR: Final = 4
_SLOW_FACTOR: Final = 1.5
_LEAST_FACTOR: Final = 2
_DOUBT_MAX: Final = 64.0
_ROUNDS: Final = 2
"""Failures in a row, per leaf, that double the timeouts. One is not enough: a packet to a live leaf may be lost."""
_FAILURES_LEAST: Final = 2
"""Minimum number of failures: with a single leaf, one failure may be only a lost packet."""


class ReplyTimes:
    """The last first-reply times of one leaf, or of all leaves, in seconds."""

    def __init__(self) -> None:
        self._samples = deque[float](maxlen=SAMPLES_MAX)
        self._late = deque[float](maxlen=SAMPLES_MAX)
        """For each measured time: the same time if the reply arrived after its timeout, else 0."""

    def __bool__(self) -> bool:
        return bool(self._samples)

    def add(self, reply_s: float, *, is_late: bool = False) -> None:
        """Add a measured time; a late reply arrived after the failure of its stream."""
        self._samples.append(max(0.0, reply_s))
        self._late.append(reply_s if is_late else 0.0)

    @property
    def typical_s(self) -> float | None:
        """The lower median; None without a measured time."""
        return sorted(self._samples)[(len(self._samples) - 1) // 2] if self._samples else None

    @property
    def is_measured(self) -> bool:
        """True if the times allow a timeout below the base."""
        return len(self._samples) >= MEASURED_FROM

    def least_s(self, base_s: float) -> float:
        """Return the least timeout that the times allow."""
        if not self.is_measured:
            return base_s
        return min(base_s, max(MEASURED_PART * base_s, _LEAST_FACTOR * max(self._slow_s, *self._late)))

    @property
    def _slow_s(self) -> float:
        return sorted(self._samples)[-2] if len(self._samples) > 1 else 0.0

    def timeout_s(self, base_s: float, least_s: float, doubt: float = 1.0) -> float:
        """Return the time to wait for the first byte of a reply."""
        typical_s = self.typical_s or 0.0
        measured_s = max(least_s, _SLOW_FACTOR * self._slow_s)
        if not self.is_measured or typical_s > base_s / 2:
            measured_s = max(measured_s, _TYPICAL_FACTOR * typical_s)
        return min(measured_s * doubt, max(base_s, TIMEOUT_MAX_S))


class NetworkDoubt:
    """The factor on all timeouts after failures in a row."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._failures = 0
        self._counted_at_s: float | None = None
        self._doubled_at_s = -inf

    def failed(self, began_s: float, now_s: float, leaves: int) -> None:
        """Count a failure of an attempt that began at `began_s`; `leaves` is the number of the client's leaves."""
        if self._counted_at_s is not None and began_s < self._counted_at_s:
            return
        self._counted_at_s = now_s
        self._failures += 1
        if self._failures >= max(_ROUNDS * leaves, _FAILURES_LEAST):
            self._double(now_s)

    def late(self, began_s: float, now_s: float) -> None:
        """Record a reply after its timeout: the timeout was too short, or a packet was lost."""
        if began_s >= self._doubled_at_s:
            self._double(now_s)

    def _double(self, now_s: float) -> None:
        self._failures = 0
        self._doubled_at_s = now_s
        self.factor = min(2 * self.factor, _DOUBT_MAX)

    def replied(self) -> None:
        """Return to the plain timeouts: a leaf has replied."""
        self.factor = 1.0
        self._failures = 0
        self._counted_at_s = None
