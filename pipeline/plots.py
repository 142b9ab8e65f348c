"""Plots as SVG text: lines over time and bars on a timeline. Nothing but strings, so a page needs no other file.

A plot is a drawing of 900 by 220 units with the time from left to right in UTC. Whatever text comes from the tables is
escaped here, at the one place where text becomes markup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

WIDTH, HEIGHT = 900, 220
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 10, 24
LANE = 22
TICKS = 6
POINTS_MAX = 600
COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#e7298a", "#8c564b", "#17a2b8", "#7f7f7f")


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: (time, value) in the order of time; a value that is None leaves a gap."""

    name: str
    points: Sequence[tuple[datetime, float | None]]


@dataclass(frozen=True, slots=True)
class Bar:
    """From when to when, in which lane, with what said when one points at it."""

    lane: str
    begins: datetime
    ends: datetime
    text: str
    color: int


def lines(series: Sequence[Series], unit: str, *, highest: float | None = None) -> str:
    """Lines over time; `highest` fixes the upper end of the scale."""
    times = [moment for each in series for moment, _ in each.points]
    values = [value for each in series for _, value in each.points if value is not None]
    if not values:
        return _nothing()
    begin, end = min(times), max(times)
    top = max(highest if highest is not None else max(values), 1e-9)
    parts = [_time_axis(begin, end, HEIGHT)]
    for share in (0.0, 0.5, 1.0):
        y = _height(share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="left">{escape(_figure(share * top))}</text>')
    parts.append(f'<text x="4" y="{TOP + 8}">{escape(unit)}</text>')
    for number, each in enumerate(series):
        color = COLORS[number % len(COLORS)]
        for run in _runs(_thinned(each.points)):
            places = " ".join(
                f"{_place(moment, begin, end):.1f},{_height(min(value / top, 1.0)):.1f}" for moment, value in run
            )
            shape = "polyline" if len(run) > 1 else "circle"
            if shape == "circle":
                across, _, down = places.partition(",")
                parts.append(f'<circle cx="{across}" cy="{down}" r="2" fill="{color}"/>')
            else:
                parts.append(
                    f'<polyline points="{places}" stroke="{color}"><title>{escape(each.name)}</title></polyline>'
                )
    return _drawing(parts, HEIGHT) + _legend([each.name for each in series])


def timeline(bars: Sequence[Bar]) -> str:
    """Bars in lanes, one lane a name, in the order in which they first come."""
    if not bars:
        return _nothing()
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    begin, end = min(bar.begins for bar in bars), max(bar.ends for bar in bars)
    height = TOP + LANE * len(lanes) + BOTTOM
    parts = [_time_axis(begin, end, height)]
    for number, lane in enumerate(lanes):
        parts.append(f'<text x="4" y="{TOP + LANE * number + 15}">{escape(lane)}</text>')
    for bar in bars:
        x, ends = _place(bar.begins, begin, end), _place(bar.ends, begin, end)
        y = TOP + LANE * lanes.index(bar.lane) + 3
        color = COLORS[bar.color % len(COLORS)]
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(ends - x, 2):.1f}" height="{LANE - 6}" fill="{color}">'
            f"<title>{escape(bar.text)}</title></rect>"
        )
    return _drawing(parts, height)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape('' if cell is None else str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else _nothing()


def _thinned(points: Sequence[tuple[datetime, float | None]]) -> Sequence[tuple[datetime, float | None]]:
    """So many points as can be told apart; of each group the lowest and the highest stay, so that no peak is lost."""
    if len(points) <= POINTS_MAX:
        return points
    size = -(-len(points) // (POINTS_MAX // 2))
    kept: list[tuple[datetime, float | None]] = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        known = [point for point in group if point[1] is not None]
        ends = {min(known, key=_value), max(known, key=_value)} if known else {group[0]}
        kept.extend(sorted(ends, key=lambda point: point[0]))
    return kept


def _value(point: tuple[datetime, float | None]) -> float:
    return 0.0 if point[1] is None else point[1]


def _runs(points: Sequence[tuple[datetime, float | None]]) -> list[list[tuple[datetime, float]]]:
    runs: list[list[tuple[datetime, float]]] = [[]]
    for moment, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((moment, value))
    return [run for run in runs if run]


def _time_axis(begin: datetime, end: datetime, height: int) -> str:
    pattern = "%H:%M:%S" if (end - begin).total_seconds() < 3600 else "%m-%d %H:%M"  # noqa: PLR2004 - an hour
    marks = []
    for number in range(TICKS):
        share = number / (TICKS - 1)
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        moment = begin + (end - begin) * share
        anchor = "end" if number == TICKS - 1 else "start" if number == 0 else "middle"
        marks.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{moment:{pattern}}</text>')
    return "".join(marks)


def _place(moment: datetime, begin: datetime, end: datetime) -> float:
    whole = (end - begin).total_seconds()
    share = (moment - begin).total_seconds() / whole if whole else 0.5
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _height(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _figure(value: float) -> str:
    return f"{value:.3g}"


def _legend(names: Sequence[str]) -> str:
    marks = (
        f'<span><i style="background:{COLORS[number % len(COLORS)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(marks)}</p>'


def _drawing(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _nothing() -> str:
    return '<p class="none">The tables have nothing about this.</p>'
