"""Figures as small pictures: a line of blocks, and a chart with its scale and its time.

    sparkline    ▁▂▅█▂                       one line in a table, scaled to a given value
    chart_lines  10ms ┤   ▂                  several lines: the scale is a round number above the highest value, the
                      │▁▂▅█▂                 newest value is on the right, and a blank is an unknown value
                  0ms ┤█████
                      └ 5s ago ─ now

Each cell is one second, or in a history an equal part of its time. If the terminal lacks letters beyond ASCII, other
signs replace the blocks.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct
from rich.text import Text

from bridge.api.printable import duration
from bridge.tui.layout import Canvas, Part

CHART_CELLS: Final = 36
"""Least width of a chart."""
CHART_LINES: Final = 3
"""Least number of lines for the figures of a chart, which also has a title and the time."""
CHART_LINES_MAX: Final = 8
FRAME_LINES: Final = 2
_GAP: Final = "  "
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = ".:-=+*#@"
_DOUBTFUL_SHARE: Final = 0.7
_BAD_SHARE: Final = 0.9
"""Fractions of a fixed scale above which a figure is high, and too high."""
_SECOND_MS: Final = 1_000
_EXPONENT_FROM: Final = 999.5


class Chart(Struct, frozen=True):
    """A title, one value for each second, the text of a value, and the end of the scale if it is fixed."""

    title: str
    values: Sequence[float | None]
    text: Callable[[float], str]
    full: float | None = None
    span_ms: int | None = None
    """Milliseconds of all values, which then fill the width; None: one value for each second."""

    @property
    def is_known(self) -> bool:
        """Return True if there is a value to draw."""
        return any(value is not None for value in self.values)

    @property
    def last(self) -> float | None:
        """Return the last value; in a history, whose present minute is incomplete, the last known value."""
        shown = self.values if self.span_ms is None else [each for each in self.values if each is not None]
        return shown[-1] if shown else None


def charts_lines(charts: Iterable[Chart], canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    """Return the lines of as many charts as fit, in rows as wide as the canvas; empty without room for one row."""
    shown = [each for each in charts if each.is_known]
    columns = max(1, (canvas.width + len(_GAP)) // (CHART_CELLS + len(_GAP)))
    rows = min(math.ceil(len(shown) / columns), room // (CHART_LINES + FRAME_LINES))
    if rows < 1:
        return []
    in_row = math.ceil(min(len(shown), rows * columns) / rows)
    height = min(CHART_LINES_MAX, room // rows - FRAME_LINES)
    width = (canvas.width - (in_row - 1) * len(_GAP)) // in_row
    lines = []
    for row in range(rows):
        part = [
            chart_lines(each, Canvas(width, canvas.palette), height, unicode=unicode)
            for each in shown[row * in_row : (row + 1) * in_row]
        ]
        lines += [_joined(each, width) for each in zip(*part, strict=True)]
    return lines


def _joined(parts: Sequence[Text], width: int) -> Text:
    line = Text("", no_wrap=True, overflow="ellipsis", end="")
    for number, part in enumerate(parts):
        line.append(_GAP if number else "")
        part.pad_right(max(0, width - part.cell_len))
        line.append_text(part)
    return line


def chart_lines(chart: Chart, canvas: Canvas, height: int, *, unicode: bool) -> list[Text]:
    """Return a chart: its title with the last value, `height` lines of figures, and the time."""
    palette = canvas.palette
    highest = chart.full or round_above(max((value for value in chart.values if value is not None), default=0.0))
    top, bottom = chart.text(highest), chart.text(0)
    label = max(len(top), len(bottom))
    width = max(1, canvas.width - label - 2)
    tick, side, corner, line = ("┤", "│", "└", "─") if unicode else ("+", "|", "+", "-")
    values = chart.values if chart.span_ms is None else resampled(chart.values, width)
    last = chart.last
    style = palette.dim if last is None else palette.accent
    if chart.full is not None and last is not None and last > _DOUBTFUL_SHARE * chart.full:
        style = palette.bad if last > _BAD_SHARE * chart.full else palette.doubtful
    title: list[Part] = [(chart.title, palette.title)]
    title.append((f"  {'-' if last is None else chart.text(last)}", style))
    lines = [canvas.line(*title)]
    for number, blocks in enumerate(graph(values, width, height, unicode=unicode, full=highest)):
        edge = top if number == 0 else bottom if number == height - 1 else ""
        lines.append(canvas.line((f"{edge:>{label}} {tick if edge else side}", palette.dim), (blocks, style)))
    began = f" {duration(width * _SECOND_MS if chart.span_ms is None else chart.span_ms)} ago "
    ruler = f"{began}{line * (width - len(began) - len(' now'))} now" if width > len(began) + len(" now") else ""
    lines.append(canvas.line((f"{'':{label}} {corner}{ruler}", palette.dim)))
    return lines


def resampled(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return `width` values over the same time: the highest of each part, so that a peak stays visible."""
    starts = [at * len(values) // width for at in range(width + 1)]
    parts = (values[start : max(start + 1, end)] for start, end in pairwise(starts))
    return [max((value for value in part if value is not None), default=None) for part in parts]


def round_above(value: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below the value; 1 for zero."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 5) if step * power >= value), 10 * power)


def figure_text(value: float) -> str:
    """Return three digits of a small figure, and all digits of a large one, without an exponent."""
    return f"{value:.3g}" if value < _EXPONENT_FROM else f"{value:.0f}"


def milliseconds_figure(value: float) -> str:
    """Return a figure in milliseconds."""
    return f"{figure_text(value)}ms"


def sparkline(values: Sequence[float | None], width: int, *, unicode: bool = True, full: float | None = None) -> str:
    """Return the newest values as a line of blocks; a blank for an unknown value.

    The scale is from 0 to `full`, or to the highest of these values.
    """
    blocks = _BLOCKS if unicode else _ASCII_BLOCKS
    shown = list(values)[-width:] if width > 0 else []
    highest = full or max((value for value in shown if value is not None), default=0.0)
    cells = [_block(value, highest, blocks) for value in shown]
    return "".join(cells).rjust(width)


def graph(
    values: Sequence[float | None], width: int, height: int, *, unicode: bool = True, full: float | None = None
) -> list[str]:
    """Return the newest values as `height` lines of blocks, the upper ones first; scaled as in `sparkline`."""
    blocks = f" {_BLOCKS}" if unicode else f" {_ASCII_BLOCKS}"
    shown = list(values)[-width:] if width > 0 else []
    highest = full or max((value for value in shown if value is not None), default=0.0)
    steps = len(blocks) - 1
    # The least value is a low block of the lowest line, so that it differs from an unknown one.
    levels = [
        0 if value is None else max(1, min(height * steps, round(value / highest * height * steps) if highest else 1))
        for value in shown
    ]
    return [
        "".join(blocks[max(0, min(steps, level - line * steps))] for level in levels).rjust(width)
        for line in reversed(range(height))
    ]


def _block(value: float | None, highest: float, blocks: str) -> str:
    if value is None:
        return " "
    if highest <= 0:
        return blocks[0]
    return blocks[min(len(blocks) - 1, int(value / highest * len(blocks)))]
