"""The rows of a time window, made from the records of a history.

    records, oldest first ──▶ read ──▶ Timeline: for each row its spans, for each series a value per step

A state lasts until the next record of its row, until the last observation before a break, or until the end. A damaged
place in the file interrupts the records like a break. If the clock moved back, the later records have precedence:
earlier spans end at the new time.

The window is bounded: the newest spans of each row and of all rows are kept.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from bridge.core.history import records

ROW_SPANS_MAX: Final = 500
SPANS_MAX: Final = 8_000
STEPS_MAX: Final = 1_441
"""Values of a series: one per minute of a day; steps of longer windows are longer."""


class Span(NamedTuple):
    """A period of one state of a row."""

    start_ms: int
    end_ms: int
    state: records.State


class Timeline(Struct, frozen=True):
    """A window of the history."""

    from_ms: int
    to_ms: int
    step_ms: int
    rows: tuple[tuple[records.Row, tuple[Span, ...]], ...]
    """Rows with at least one span, in order of their kinds and names."""
    series: tuple[tuple[records.Row, tuple[float | None, ...]], ...]
    spans_left_out: int
    rows_left_out: int


class _Window:
    """The spans and values of a window while the records are read."""

    def __init__(self, from_ms: int, step_ms: int) -> None:
        self._from_ms = from_ms
        self._step_ms = step_ms
        self._open: dict[records.Row, tuple[int, records.State]] = {}
        self.spans: dict[records.Row, deque[Span]] = {}
        self.values: dict[records.Row, dict[int, tuple[float, int]]] = {}
        """By series and step: the sum and the number of the minutes' values."""
        self.last_ms = 0
        """The last observation."""
        self.left_out = 0

    def take(self, record: records.Record) -> None:
        match record:
            case records.StateRecord(time_ms, row, state):
                self.last_ms = max(self.last_ms, time_ms)
                if state is None or self._open.get(row, (0, None))[1] != state:
                    self._close(row, time_ms)
                    if state is not None:
                        self._open[row] = (time_ms, state)
            case records.Sample(time_ms):
                self.last_ms = max(self.last_ms, time_ms)
                self._add(record)
            case records.Break(time_ms, _, last_ms):
                self.interrupt(min(last_ms, self.last_ms) if last_ms else self.last_ms)
                if time_ms < self.last_ms:
                    self._cut(time_ms)
                self.last_ms = time_ms

    def interrupt(self, end_ms: int) -> None:
        """End every state: the next records do not continue the previous ones.

        A state of the last observation lasts one millisecond: it may be the alarm just before the node was killed.
        """
        for row, (start_ms, _) in list(self._open.items()):
            self._close(row, start_ms + 1 if start_ms == end_ms else end_ms)

    def _close(self, row: records.Row, end_ms: int) -> None:
        start_ms, state = self._open.pop(row, (0, None))
        if state is None or end_ms <= max(start_ms, self._from_ms):
            return
        spans = self.spans.setdefault(row, deque(maxlen=ROW_SPANS_MAX))
        self.left_out += len(spans) == ROW_SPANS_MAX
        spans.append(Span(max(start_ms, self._from_ms), end_ms, state))

    def _cut(self, time_ms: int) -> None:
        """Remove all data after this time, because the clock has moved back to it."""
        for row, spans in self.spans.items():
            kept = (each._replace(end_ms=min(each.end_ms, time_ms)) for each in spans if each.start_ms < time_ms)
            self.spans[row] = deque(kept, maxlen=ROW_SPANS_MAX)
        later = (time_ms - self._from_ms) // self._step_ms
        for row, values in self.values.items():
            self.values[row] = {step: each for step, each in values.items() if step < later}

    def _add(self, sample: records.Sample) -> None:
        step = (sample.minute * records.MINUTE_MS - self._from_ms) // self._step_ms
        if step < 0:
            return
        for row, value in sample.values:
            values = self.values.setdefault(row, {})
            total, count = values.get(step, (0.0, 0))
            values[step] = (total + value, count + 1)


def read(parts: Iterable[Iterable[records.Record]], now_ms: int | None, hours: int) -> Timeline:
    """Return the last `hours` until `now_ms`; None: until the last observation.

    Each part has records without a gap, oldest first; the node did not record between two parts.
    """
    read_parts = [list(each) for each in parts]
    to_ms = _last_of(read_parts) if now_ms is None else now_ms
    step_ms = records.MINUTE_MS * max(1, -(-hours * 60 // (STEPS_MAX - 1)))
    from_ms = max(0, (to_ms - hours * 60 * records.MINUTE_MS) // step_ms * step_ms)
    window = _Window(from_ms, step_ms)
    for number, part in enumerate(read_parts):
        if number:
            window.interrupt(window.last_ms)
        for record in part:
            window.take(record)
    window.interrupt(to_ms)
    return _bounded(window, from_ms, to_ms, step_ms)


def _last_of(parts: Iterable[Iterable[records.Record]]) -> int:
    last_ms = 0
    for part in parts:
        for record in part:
            last_ms = record.time_ms if isinstance(record, records.Break) else max(last_ms, record.time_ms)
    return last_ms


def _bounded(window: _Window, from_ms: int, to_ms: int, step_ms: int) -> Timeline:
    shown = sorted((row for row, spans in window.spans.items() if spans), key=_order)
    left_out = window.left_out
    excess = sum(len(window.spans[row]) for row in shown[: records.ROWS_MAX]) - SPANS_MAX
    if excess > 0:
        # Drop the spans with the oldest ends, so that every row keeps its newest spans.
        ends = sorted(span.end_ms for row in shown[: records.ROWS_MAX] for span in window.spans[row])
        oldest_ms = ends[excess - 1]
        for row in shown[: records.ROWS_MAX]:
            spans = window.spans[row]
            while spans and spans[0].end_ms <= oldest_ms:
                spans.popleft()
                left_out += 1
    rows = [(row, tuple(window.spans[row])) for row in shown[: records.ROWS_MAX]]
    count = min(STEPS_MAX, -(-(to_ms - from_ms) // step_ms))
    series = sorted((row for row, values in window.values.items() if values), key=_order)
    return Timeline(
        from_ms=from_ms,
        to_ms=to_ms,
        step_ms=step_ms,
        rows=tuple((row, spans) for row, spans in rows if spans),
        series=tuple((row, tuple(_means(window.values[row], count))) for row in series[: records.SERIES_MAX]),
        spans_left_out=left_out,
        rows_left_out=max(0, len(shown) - records.ROWS_MAX),
    )


def _means(values: dict[int, tuple[float, int]], count: int) -> Iterator[float | None]:
    for step in range(count):
        total, number = values.get(step, (0.0, 0))
        yield round(total / number, 2) if number else None


_KINDS: Final = {kind: place for place, kind in enumerate((*records.RowKind, *records.SeriesKind))}


def _order(row: records.Row) -> tuple[int, str, int, str]:
    """Order by kind and owner, then by name; node-10 follows node-9."""
    name = row.name or ""
    return _KINDS[row.kind], row.owner or "", len(name), name
