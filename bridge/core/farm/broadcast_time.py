"""Compare the time that a majority needs to store an entry with the election timeout.

Raft keeps a leader only if broadcastTime << electionTimeout (section 5.6). If a round to the majority, with disk
writes, takes about as long as the election timeout, any delay causes an election. The leader measures the time from
proposing a clock entry until it is committed, without extra messages. The median of several measurements is used, so
that one slow write does not raise an alarm. The paper requires a tenth of the timeout; the alarm is raised at a fifth.

A module of its own: it is pure, and the measuring task is not.
"""

from collections import deque

MEASURED = 8
SHARE = 5


class BroadcastTime:
    """The last measurements of one leader."""

    def __init__(self, election_timeout_ms: int) -> None:
        self._limit_ms = election_timeout_ms / SHARE
        self._election_timeout_ms = election_timeout_ms
        self._taken_ms: deque[float] = deque(maxlen=MEASURED)

    def measured(self, taken_ms: float) -> None:
        """Record how long an entry took from its proposal to its commitment."""
        self._taken_ms.append(taken_ms)

    def forget(self) -> None:
        """Drop the measurements: another server leads."""
        self._taken_ms.clear()

    @property
    def alarm(self) -> str | None:
        """The problem as text; None without a problem, or with too few measurements."""
        if len(self._taken_ms) < MEASURED:
            return None
        below, above = sorted(self._taken_ms)[MEASURED // 2 - 1 : MEASURED // 2 + 1]
        usual_ms = (below + above) / 2
        if usual_ms <= self._limit_ms:
            return None
        return (
            f"a majority takes {usual_ms:.0f} ms to store an entry, more than a fifth of the shortest election timeout"
            f" ({self._election_timeout_ms} ms): ordinary delays may cause needless elections"
        )
