"""The pause after a lost start of one of Spark's Python processes, and the limit for a run with an end.

    lost start ─▶ `pause_s` ─▶ counted, reported, 1 s, 2 s, 4 s, … 60 s          success ─▶ `reset`

To begin a query or a task Spark starts Python processes. Each has ten seconds to connect, and Spark does not have a
setting for this limit. On a busy machine some starts miss it. A lost start does not end the run, because the machine
may only be busy at that moment. The pauses double, because each new start makes the machine busier. A run that follows
the log continues until it is stopped. A run with an end fails after lost starts in a row for `give_up_s`, because a
caller waits for its end.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from consensus.net.backoff import Backoff
from pipeline.source.log_client import FarmLogError

PAUSE_FIRST_S = 1.0
PAUSE_LONGEST_S = 60.0
GIVE_UP_S = 3_600.0
"""The limit of lost starts in a row, as a duration, for a run with an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The reaction of a run to lost starts. Lost starts in a row for `give_up_s` end the run; None: never."""

    notify: Callable[[str], None]
    count: Callable[[], None]
    give_up_s: float | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class LostStarts:
    """The lost starts in a row of one query or task, `name`."""

    name: str
    retry_policy: RetryPolicy
    _in_a_row: int = 0
    _first_s: float = 0.0
    _pauses: Backoff = field(default_factory=lambda: Backoff(PAUSE_FIRST_S, PAUSE_LONGEST_S))

    def reset(self) -> None:
        """Return to the first pause, after a success."""
        self._in_a_row = 0
        self._pauses.reset()

    def pause_s(self, failure: BaseException) -> float:
        """Count and report a lost start; return the seconds before the next start. Raises FarmLogError at the end."""
        now_s, give_up_s = self.retry_policy.clock(), self.retry_policy.give_up_s
        if not self._in_a_row:
            self._first_s = now_s
        self._in_a_row += 1
        self.retry_policy.count()
        if give_up_s is not None and now_s - self._first_s > give_up_s:
            raise FarmLogError(
                f"{self.name} could not start: {self._in_a_row} times in a row, for {give_up_s / 60:.0f} minutes, a"
                " Python process of Spark's took more than ten seconds to start. Free some processor or memory on"
                " this machine, then run the same command again: it continues from there",
            ) from failure
        pause_s = self._pauses.next_s()
        self.retry_policy.notify(
            f"{self.name}: a Python process of Spark's took more than ten seconds to start, as on a busy machine;"
            f" begun again from the last batch in {pause_s:.0f} s (lost starts in a row: {self._in_a_row})",
        )
        return pause_s
