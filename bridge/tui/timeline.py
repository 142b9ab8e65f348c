"""The pane of the timeline: leaders, publishers, and the health of each node and leaf in the last hours. Pure.

    GET /v1/history ─▶ HistoryAnswer ─▶ a strip for each row, with as many cells as fit on the screen
                                     ─▶ charts of round trips and of the commit lag, if there is room

A cell has the worst severity of its time, so a short outage stays visible. The height of a block shows the same
severity as its color: full for OK, half for a warning, low for critical. A gap means that the node did not run, or that
the subject did not exist. The strips of the leader and of the publisher show names instead of blocks, with a vertical
line at each change.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from rich.text import Text

from bridge.api.observations.history import HistoryAnswer, HistoryRow, HistorySpan
from bridge.api.printable import clock_text, duration
from bridge.api.view import FarmView, Severity
from bridge.core.history.records import RowKind, SeriesKind
from bridge.tui.charts import Chart, charts_lines, figure_text, milliseconds_figure
from bridge.tui.layout import Canvas, Part, shortened
from bridge.tui.sections import severity_style
from bridge.tui.targets import OnKey, OnMember, Target, aimed

_LABEL_CELLS: Final = 20
_SHARE_CELLS: Final = 8
_ADDRESS_LETTERS: Final = 6
_TICK_CELLS: Final = 12
"""Least cells between two times of the axis."""
_TICKS_MS: Final = tuple(minutes * 60_000 for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))
_BLOCKS: Final = {Severity.OK: "█", Severity.WARNING: "▄", Severity.CRITICAL: "▁"}
_ASCII: Final = {Severity.OK: "#", Severity.WARNING: "=", Severity.CRITICAL: "_"}
_GRAVITY: Final = (Severity.OK, Severity.WARNING, Severity.CRITICAL)
_NAMED: Final = frozenset({RowKind.LEADER, RowKind.PUBLISHER})
_TITLES: Final = {
    SeriesKind.ROUND_TRIP: "round trip",
    SeriesKind.COMMIT_LAG: "commit lag",
    SeriesKind.FOLLOWER_LAG: "follower lag",
}


def timeline_lines(
    history: HistoryAnswer | None, reason: str, farm: FarmView | None, canvas: Canvas, room: int, *, unicode: bool
) -> list[Text]:
    """Return all lines of the pane: the time, the strips, and as many charts as fit below them."""
    palette = canvas.palette
    if history is None:
        return [canvas.line((f"  {reason or 'reading the history …'}", palette.doubtful))]
    window = f" the last {duration(history.to_ms - history.from_ms)}, as {history.node} observed it, UTC   "
    width = max(1, canvas.width - _LABEL_CELLS - _SHARE_CELLS - 2)
    axis, share = f"{'':{_LABEL_CELLS}} {_axis(history, width)}", f"{'OK':>{_SHARE_CELLS}}"
    node_ids = {} if farm is None else {each.name: each.node_id for each in farm.members}
    lines = [
        canvas.line(
            ("TIMELINE", palette.title), (window, palette.dim), ("w: 1, 6 or 24 hours", palette.dim, OnKey("w"))
        ),
        canvas.line((axis, palette.dim), (share, palette.title)),
        *(_strip(row, history, canvas, width, _target(row, node_ids), unicode=unicode) for row in history.rows),
    ]
    if history.rows_left_out:
        lines.append(canvas.line((f"  … {history.rows_left_out} more rows", palette.dim)))
    charts = charts_lines(_charts(history), canvas, room - len(lines) - 1, unicode=unicode)
    return [*lines, *([Text("", end=""), *charts] if charts else [])]


def _target(row: HistoryRow, node_ids: dict[str, str]) -> Target | None:
    node_id = node_ids.get((row.owner if row.kind is RowKind.LEAF else row.name) or "")
    return None if node_id is None else OnMember(node_id)


def _axis(history: HistoryAnswer, width: int) -> str:
    """Return the times of day above the strips, each at its place."""
    span_ms = max(1, history.to_ms - history.from_ms)
    step_ms = next((each for each in _TICKS_MS if each * width >= _TICK_CELLS * span_ms), _TICKS_MS[-1])
    text = ""
    for at_ms in range(-(-history.from_ms // step_ms) * step_ms, history.to_ms, step_ms):
        place = (at_ms - history.from_ms) * width // span_ms
        label = f"|{clock_text(at_ms)[:5]}"
        if place >= len(text) and place + len(label) <= width:
            text = text.ljust(place) + label
    return text.ljust(width)


def _strip(
    row: HistoryRow, history: HistoryAnswer, canvas: Canvas, width: int, target: Target | None, *, unicode: bool
) -> Text:
    label = f"{shortened(_label(row), _LABEL_CELLS):<{_LABEL_CELLS}} "
    cells = (_names if row.kind in _NAMED else _blocks)(row, history, width, unicode=unicode)
    parts: list[Part] = [label]
    for severity, group in groupby(cells, key=itemgetter(0)):
        style = "" if severity is None else severity_style(severity, canvas.palette) or canvas.palette.good
        parts.append(("".join(text for _, text in group), style))
    share = _share(row)
    ended = "" if share is None else f"{share:>{_SHARE_CELLS - 2}.1f} %"
    line = canvas.line(*parts, (ended, "" if share is None or share == _WHOLE else canvas.palette.doubtful))
    return line if target is None else aimed(line, target)


_WHOLE: Final = 100.0
Cells = Iterator[tuple[Severity | None, str]]
"""Texts with their severity; None for a time without one."""


def _label(row: HistoryRow) -> str:
    match row.kind:
        case RowKind.LEAF:
            return f"leaf {(row.name or '')[:_ADDRESS_LETTERS]} {row.owner or ''}"
        case RowKind.PUBLISHER:
            return f"publisher {(row.name or '')[:_ADDRESS_LETTERS]}"
        case RowKind.ALARM:
            return f"alarm {row.name}"
        case RowKind.NODE:
            return row.name or ""
        case _:
            return str(row.kind.value)


def _places(span: HistorySpan, history: HistoryAnswer, width: int) -> tuple[int, int]:
    """Return the first cell of a span, and the cell after its last one; a short span has one cell."""
    span_ms = max(1, history.to_ms - history.from_ms)
    first = min(width - 1, max(0, (span.start_ms - history.from_ms) * width // span_ms))
    return first, min(width, max(first + 1, -(-(span.end_ms - history.from_ms) * width // span_ms)))


def _worst_of_cells(row: HistoryRow, history: HistoryAnswer, width: int) -> list[Severity | None]:
    cells: list[Severity | None] = [None] * width
    for span in row.spans:
        for place in range(*_places(span, history, width)):
            before = cells[place]
            if before is None or _GRAVITY.index(span.severity) > _GRAVITY.index(before):
                cells[place] = span.severity
    return cells


def _blocks(row: HistoryRow, history: HistoryAnswer, width: int, *, unicode: bool) -> Cells:
    blocks = _BLOCKS if unicode else _ASCII
    for severity in _worst_of_cells(row, history, width):
        yield severity, " " if severity is None else blocks[severity]


def _names(row: HistoryRow, history: HistoryAnswer, width: int, *, unicode: bool) -> Cells:
    """Yield the name of each span, shortened to the width of the span, with a vertical line at each change."""
    line, change = ("─", "│") if unicode else ("-", "|")
    text, severities = [" "] * width, _worst_of_cells(row, history, width)
    for span in row.spans:
        first, end = _places(span, history, width)
        name = shortened(span.text or "none", max(0, end - first - 1))
        text[first:end] = f"{change}{name}".ljust(end - first, line)[: end - first]
    yield from zip(severities, text, strict=True)


def _share(row: HistoryRow) -> float | None:
    """Return the percentage of the recorded time that had severity OK; None for an alarm, or without records."""
    known_ms = sum(each.end_ms - each.start_ms for each in row.spans)
    if row.kind is RowKind.ALARM or not known_ms:
        return None
    well_ms = sum(each.end_ms - each.start_ms for each in row.spans if each.severity is Severity.OK)
    # Rounded down, so that even a short outage does not show as 100 %.
    return well_ms * 1000 // known_ms / 10


def _charts(history: HistoryAnswer) -> Iterator[Chart]:
    """Yield a chart for each series, the commit lag first."""
    span_ms = history.to_ms - history.from_ms
    for series in sorted(history.series, key=lambda each: each.kind is not SeriesKind.COMMIT_LAG):
        title = f"{series.name}: {_TITLES[series.kind]}" if series.name else _TITLES[series.kind]
        text = milliseconds_figure if series.unit == "ms" else figure_text
        yield Chart(title, series.values, text, span_ms=span_ms)
