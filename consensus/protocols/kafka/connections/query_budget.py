"""The share of time that the queries of one connection may take while the log grows.

    query ─▶ reply ─▶ `charge`: its time, nine times as long a pause ─▶ the next request is read after the pause
                          └─ the log has not grown for a second: nothing is charged

Queries and commits use the same event loop and disk. So a client that scans the log or repeats DescribeQuorum delays
other clients' commits. Its connection gets about a tenth of the time. It gets more if `MAX_PAUSE_S` cuts the pauses of
its long queries. The first `BURST_S` of pauses is free, so a client with rare queries does not wait. On an idle log a
scan does not pause.

Like a Kafka broker (KIP-219), the listener sends the reply before the pause. The budget counts elapsed time, not
processor time, so queries become rarer on a busy machine.
"""

from math import inf
from typing import Final

import trio

SHARE: Final = 0.1
REQUEST_S: Final = 0.0005
"""Time that each request takes in addition to the measured query: wake-up, decoding, encoding."""
BURST_S: Final = 0.25
MAX_PAUSE_S: Final = 1.0
GROWS_S: Final = 1.0
"""Time from a commit until the log does not count as growing any more."""


class QueryBudget:
    """The budget of one connection."""

    def __init__(self) -> None:
        self._high_watermark = -1
        self._grew_s = -inf
        self._used_until_s = -inf
        """End of the time whose share the queries so far have used up."""

    def charge(self, began_s: float, high_watermark: int) -> None:
        """Count a query that began at `began_s`; `high_watermark` is the log's present high watermark."""
        now_s = trio.current_time()
        if high_watermark != self._high_watermark:
            is_first, self._high_watermark = self._high_watermark < 0, high_watermark
            self._grew_s = self._grew_s if is_first else now_s
        if now_s - self._grew_s < GROWS_S:
            self._used_until_s = max(self._used_until_s, began_s - BURST_S) + (REQUEST_S + now_s - began_s) / SHARE

    @property
    def pause_s(self) -> float:
        """Return the time until the next request is read."""
        return min(max(0.0, self._used_until_s - trio.current_time()), MAX_PAUSE_S)
