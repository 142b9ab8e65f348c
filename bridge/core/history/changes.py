"""The records that an observation adds to the history: changes of states, and one sample in each minute.

    observed states, figures, clock ──▶ take ──▶ records to write

The rate of records is limited, so that a row that changes all the time cannot displace a day of other rows' records. A
row may change 20 times, and once more every two minutes. The rows of nodes and leaves also share a budget of bytes. If
a limit delays a change, the next observation compares the row with its recorded state again. So only short states
between two records are lost.

The node's clock decides the times. It may move back: a short step repeats the last time, a longer one is a break, after
which all states are recorded again. For `BREAK_CHECKS` observations after a break, even a longer step repeats the last
time.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from bridge.core.history.records import (
    LATEST_MS,
    MINUTE_MS,
    ROWS_MAX,
    Break,
    BreakCause,
    Record,
    Row,
    RowKind,
    Sample,
    State,
    StateRecord,
)

ROW_CHANGES: Final = 20
ROW_REFILL_MS: Final = 2 * MINUTE_MS
SHARED_BYTES: Final = 128 * 1024
SHARED_REFILL_MS: Final = 125
"""Milliseconds for one byte of the shared budget: 691 kB a day."""
_SHARING: Final = frozenset({RowKind.NODE, RowKind.LEAF})
_RECORD_BYTES: Final = 20
"""Bytes of a record of a state, without its text."""
STEP_BACK_MS: Final = 2_000
"""Milliseconds that a clock may move back without a break."""
PAUSE_MS: Final = 5 * MINUTE_MS
"""A longer pause between observations is a break. It exceeds every pause between checks, even in a very large farm."""
BREAK_CHECKS: Final = 600
"""Observations after a break (ten minutes) until a clock that moves back causes another break."""


class Budget(Struct):
    """Tokens: a change takes them, time adds them."""

    capacity: int
    refill_ms: int
    """Milliseconds for one token."""
    tokens: float
    filled_ms: int

    def fill(self, now_ms: int) -> None:
        """Add the tokens of the time since the last call."""
        passed_ms = max(0, now_ms - self.filled_ms)
        self.tokens = min(float(self.capacity), self.tokens + passed_ms / self.refill_ms)
        self.filled_ms = now_ms


class Changes:
    """The recorded state of each row."""

    def __init__(self) -> None:
        self._recorded: dict[Row, State] = {}
        self._row_budgets: dict[Row, Budget] = {}
        self._shared: Budget | None = None
        self._last_ms = 0
        self._checks_since_break = 0
        self._minute = 0
        self._sums: dict[Row, tuple[float, int]] = {}

    def take(self, now_ms: int, observed: Mapping[Row, State], figures: Mapping[Row, float]) -> list[Record]:
        """Return the records of one observation. `observed` has all present rows, in order of their importance."""
        records: list[Record] = []
        now_ms = self._in_order(now_ms, records)
        if self._minute != now_ms // MINUTE_MS:
            records += self.sample()
            self._minute = now_ms // MINUTE_MS
        self._last_ms = now_ms
        for row, value in figures.items():
            total, count = self._sums.get(row, (0.0, 0))
            self._sums[row] = (total + value, count + 1)
        if observed != self._recorded:
            records += self._changed(now_ms, observed)
        return records

    def sample(self) -> Iterator[Sample]:
        """Yield the sample of the present minute if it has an observation, and begin the next sample."""
        if self._minute:
            values = tuple((row, total / count) for row, (total, count) in self._sums.items())
            yield Sample(self._last_ms, self._minute, values)
        self._sums.clear()
        self._minute = 0

    def _in_order(self, now_ms: int, records: list[Record]) -> int:
        """Return the time of this observation; add a break after a start, a pause or a move of the clock."""
        now_ms, last_ms = max(1, min(now_ms, LATEST_MS - 1)), self._last_ms
        self._checks_since_break += 1
        if not last_ms:
            cause = BreakCause.START
        elif now_ms < last_ms - STEP_BACK_MS and self._checks_since_break >= BREAK_CHECKS:
            cause = BreakCause.CLOCK_BACK
        elif now_ms > last_ms + PAUSE_MS:
            cause = BreakCause.PAUSE
        else:
            return max(now_ms, last_ms)
        records += self.sample()
        records.append(Break(now_ms, cause, last_ms))
        self._recorded.clear()
        self._row_budgets.clear()
        self._checks_since_break = 0
        return now_ms

    def _changed(self, now_ms: int, observed: Mapping[Row, State]) -> Iterator[StateRecord]:
        if self._shared is None:
            self._shared = Budget(SHARED_BYTES, SHARED_REFILL_MS, SHARED_BYTES, now_ms)
        self._shared.fill(now_ms)
        if len(self._row_budgets) > 2 * ROWS_MAX:
            self._row_budgets = {row: each for row, each in self._row_budgets.items() if row in observed}
        ended = [row for row in self._recorded if row not in observed]
        for row, state in (*observed.items(), *((row, None) for row in ended)):
            if self._recorded.get(row) == state or not self._allow(row, state, now_ms, self._shared):
                continue
            if state is None:
                del self._recorded[row]
            else:
                self._recorded[row] = state
            yield StateRecord(now_ms, row, state)

    def _allow(self, row: Row, state: State | None, now_ms: int, shared: Budget) -> bool:
        """Return True if the budgets allow this change, and charge them."""
        own = self._row_budgets.setdefault(row, Budget(ROW_CHANGES, ROW_REFILL_MS, ROW_CHANGES, now_ms))
        own.fill(now_ms)
        is_sharing = row.kind in _SHARING
        if own.tokens < 1 or (is_sharing and shared.tokens <= 0):
            return False
        own.tokens -= 1
        if is_sharing:
            shared.tokens -= _RECORD_BYTES + (0 if state is None else len(state.text))
        return True
