"""The turn to publish: another node gets it while this node cannot publish through its router.

    failures in a row < 2             repeated, with the pauses of the publishing task
    2, and another server is able     withdrawn: the report has `publishConfig` off and the failure
    after 1, 2, 4, … at most 16 min   able again; the first failure withdraws it again, a success resets all

The election compares figures of the router's health, and a healthy router may refuse each structure. So failures must
count, or the farm would choose that node permanently. A withdrawal uses `publishConfig`, which every version of the
state machine supports. So servers that do not know the member `publishFailure` come to the same decision.

Without another able server a withdrawal would be useless, and the node repeats its attempts. The pauses grow, so a farm
in which all routers refuse changes its publisher less and less often.

A module of its own: it decides without I/O or a clock, and the publishing task has both.
"""

import math
from typing import Final

from consensus.net import Backoff

FAILURES_BEFORE: Final = 2
AWAY_FIRST_S, AWAY_LONGEST_S = 60.0, 960.0


class PublishingTurns:
    """The failures of one master on this node. The caller passes times, in seconds."""

    def __init__(self) -> None:
        self._backoff = Backoff(AWAY_FIRST_S, AWAY_LONGEST_S)
        self._failures = 0
        self._away_until_s = -math.inf
        self.failure: str | None = None
        """The reason of the last attempt, if it failed."""

    def failed(self, reason: str, now_s: float) -> None:
        """Record a failed attempt."""
        self.failure = reason
        self._failures += 1
        if self._failures >= FAILURES_BEFORE and not self.is_away(now_s):
            self._away_until_s = now_s + self._backoff.next_s()

    def succeeded(self) -> None:
        """Reset the failures after the router accepted a structure."""
        self._backoff.reset()
        self._failures, self._away_until_s, self.failure = 0, -math.inf, None

    def is_away(self, now_s: float) -> bool:
        """Return True if another server has the turn, provided that one is able."""
        return now_s < self._away_until_s
