"""A history as lines of text: a strip of cells for each row, and the list of its events.

    HistoryAnswer ──▶ strips ──▶ one line per row: name, share, cells; one cell is a part of the window
                  ──▶ incidents ──▶ states that are not ok, changes of the leader and of publishers

A cell shows the worst state in its part of the window, so that a short failure is visible in a day. The height of a
cell shows the severity without colors. A cell of the leader or a publisher shows a letter for its name: `a` for the
first name, and so on. A blank cell was not observed: the node did not run, or the subject did not exist.

Pure code: it does not depend on a terminal. Names are unchanged, as the nodes sent them; the output escapes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Final

from msgspec import Struct

from bridge.api.observations.history import HistoryAnswer, HistoryRow, HistorySeries, HistorySpan
from bridge.api.printable import milliseconds_text, short_address
from bridge.api.view import Severity
from bridge.core.history.records import RowKind, SeriesKind

CELLS: Final[Mapping[Severity, str]] = {Severity.OK: "▂", Severity.WARNING: "▅", Severity.CRITICAL: "█"}
BLANK: Final = " "
LEVELS: Final = "▁▂▃▄▅▆▇█"
_RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}
_NAMED: Final = frozenset({RowKind.LEADER, RowKind.PUBLISHER})
_GROUPS: Final[Mapping[RowKind | SeriesKind, str]] = {
    RowKind.ALARM: "ALARMS",
    RowKind.NODE: "NODES",
    RowKind.LEAF: "LEAVES",
    SeriesKind.ROUND_TRIP: "ROUND TRIPS",
    SeriesKind.FOLLOWER_LAG: "ENTRIES THAT FOLLOWERS LACK",
}
_LEAF_OF: Final = "leaf of "
_ADDRESS_LETTERS: Final = 8

Cell = tuple[str, Severity | None]
"""A letter and its severity; None for a blank cell, and in a chart."""


class Strip(Struct, frozen=True):
    """One line; a heading has neither a figure nor cells."""

    label: str
    figure: str = ""
    cells: tuple[Cell, ...] = ()


class Incident(Struct, frozen=True):
    """A state that is not ok, or another leader or publisher."""

    subject: str
    span: HistorySpan
    text: str
    is_last: bool
    """True if the state lasts until the end of the window."""


def strips(history: HistoryAnswer, width: int) -> Iterator[Strip]:
    """Yield the lines of a history with `width` cells."""
    letters = name_letters(history)
    group = ""
    for row in history.rows:
        heading = _GROUPS.get(row.kind, "")
        if heading != group and heading:
            yield Strip(heading)
        group = heading
        worst = worst_states(row, history.from_ms, history.to_ms, width)
        cells = tuple(_cell(row, span, letters) for span in worst)
        label = subject(row, history).removeprefix(_LEAF_OF) if heading else subject(row, history)
        yield Strip(_indented(heading, label), _figure(row, history.to_ms), cells)
    for series in history.series:
        heading = _GROUPS.get(series.kind, "")
        if heading != group and heading:
            yield Strip(heading)
        group = heading
        yield _chart(series, _indented(heading, series.name or "commit lag"), history, width)


def name_letters(history: HistoryAnswer) -> dict[str, str]:
    """Return a letter for the name of each leader and publisher in the window, in order of their names."""
    names = {span.text for row in history.rows if row.kind in _NAMED for span in row.spans if span.text}
    ordered = sorted(names, key=lambda name: (len(name), name))
    return {name: ascii_lowercase[min(place, len(ascii_lowercase) - 1)] for place, name in enumerate(ordered)}


def incidents(history: HistoryAnswer) -> list[Incident]:
    """Return the states that are not ok, and the changes of leaders and publishers, in order of their starts."""
    found: list[Incident] = []
    for row in history.rows:
        name = subject(row, history)
        before: HistorySpan | None = None
        for span in row.spans:
            changed = row.kind in _NAMED and before is not None and before.text != span.text
            if span.severity is not Severity.OK or changed:
                text = span.text if row.kind not in _NAMED else span.text or "none"
                found.append(Incident(name, span, text, is_last=span.end_ms >= history.to_ms))
            before = span
    return sorted(found, key=lambda each: each.span.start_ms)


def subject(row: HistoryRow, history: HistoryAnswer) -> str:
    """Return a short name of a row that is unique in its window."""
    match row.kind:
        case RowKind.PUBLISHER:
            is_only = sum(each.kind is RowKind.PUBLISHER for each in history.rows) == 1
            return "publisher" if is_only else f"publisher of {short_address(row.name or '', _ADDRESS_LETTERS)}"
        case RowKind.LEAF:
            is_only = sum(each.kind is RowKind.LEAF and each.owner == row.owner for each in history.rows) == 1
            address = "" if is_only else f": {short_address(row.name or '', _ADDRESS_LETTERS)}"
            return f"{_LEAF_OF}{row.owner}{address}"
        case RowKind.ALARM | RowKind.NODE:
            return row.name or ""
        case RowKind.VERDICT:
            return "verdict"
        case RowKind.LEADER:
            return "leader"


def worst_states(row: HistoryRow, from_ms: int, to_ms: int, width: int) -> list[HistorySpan | None]:
    """Return for each part of the window the worst state, the last one of equal severity; None if not observed."""
    found: list[HistorySpan | None] = [None] * width
    length_ms = max(1, to_ms - from_ms)
    for span in row.spans:
        first = max(0, (span.start_ms - from_ms) * width // length_ms)
        last = min(width - 1, max(0, span.end_ms - 1 - from_ms) * width // length_ms)
        for place in range(first, last + 1):
            known = found[place]
            if known is None or _RANK[span.severity] >= _RANK[known.severity]:
                found[place] = span
    return found


def _cell(row: HistoryRow, span: HistorySpan | None, letters: Mapping[str, str]) -> Cell:
    if span is None:
        return BLANK, None
    if row.kind in _NAMED and span.text:
        return letters[span.text], span.severity
    return CELLS[span.severity], span.severity


def _figure(row: HistoryRow, to_ms: int) -> str:
    """Return the present name of a leader or publisher, or the state of an alarm; otherwise the share of time ok."""
    last = row.spans[-1]
    if row.kind in _NAMED:
        return (last.text or "none") if last.end_ms >= to_ms else "-"
    if row.kind is RowKind.ALARM:
        return "active" if last.end_ms >= to_ms else "over"
    observed_ms = sum(each.end_ms - each.start_ms for each in row.spans)
    ok_ms = sum(each.end_ms - each.start_ms for each in row.spans if each.severity is Severity.OK)
    tenths = ok_ms * 1000 // max(1, observed_ms)
    return "100%" if ok_ms == observed_ms else f"{tenths / 10:.1f}%"


def _chart(series: HistorySeries, label: str, history: HistoryAnswer, width: int) -> Strip:
    """Return a chart from 0 to the highest value; the figure is this value."""
    columns: list[list[float]] = [[] for _ in range(width)]
    length_ms = max(1, history.to_ms - history.from_ms)
    for step, value in enumerate(series.values):
        if value is not None:
            columns[min(width - 1, step * history.step_ms * width // length_ms)].append(value)
    means = [sum(column) / len(column) if column else None for column in columns]
    highest = max((value for value in series.values if value is not None), default=0.0)
    top = max((mean for mean in means if mean is not None), default=0.0)
    cells = tuple((BLANK if mean is None else LEVELS[_level(mean, top)], None) for mean in means)
    figure = milliseconds_text(highest) if series.unit == "ms" else f"{highest:.0f}"
    return Strip(label, f"max {figure}", cells)


def _level(value: float, top: float) -> int:
    return min(len(LEVELS) - 1, int(value / top * len(LEVELS))) if top else 0


def _indented(heading: str, text: str) -> str:
    return f"  {text}" if heading else text


def runs(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield neighboring cells of one severity as one text."""
    text, severity = "", None
    for letter, each in cells:
        if text and each is not severity:
            yield text, severity
            text = ""
        text, severity = text + letter, each
    if text:
        yield text, severity
