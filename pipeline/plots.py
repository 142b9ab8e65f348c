"""Plots as SVG text: lines over time, strips and bars in lanes. Nothing but strings, so a page needs no other file.

A plot is a drawing 900 units wide with the time from left to right in UTC. Colours of the ground and of what is written
are the page's (`pipeline/report.py`), which has them for light and for dark. Whatever text comes from the tables is
escaped here, at the one place where text becomes markup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import groupby

WIDTH, HEIGHT = 900, 220
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 10, 24
LETTER = 6.5
LANE = 22
TICKS = 6
COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#e7298a", "#a0695c", "#17a2b8", "#8a8a8a")
LEVELS = ((0.995, "#3a9d68"), (0.9, "#a8c94a"), (0.6, "#f0b93a"), (0.2, "#e0702e"), (-1.0, "#b3202c"))
"""From which share on a strip has which colour."""

Points = Sequence[tuple[datetime, float | None]]


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: (time, value) in the order of time; a value that is None leaves a gap."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane, from one time to another, with the text that the pointer shows."""

    lane: str
    begins: datetime
    ends: datetime
    text: str
    color: int


def lines(series: Sequence[Series], unit: str, *, dots: bool = False) -> str:
    """Lines over time; with `dots`, single values that are not connected."""
    times = [moment for each in series for moment, _ in each.points]
    values = [value for each in series for _, value in each.points if value is not None]
    if not values:
        return _nothing()
    begin, end = min(times), max(times)
    top = max(*values, 1e-9)
    parts = [_time_axis(begin, end, HEIGHT, LEFT)]
    for share in (0.0, 0.5, 1.0):
        y = _height(share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="left">{escape(_figure(share * top))}</text>')
    parts.append(f'<text x="4" y="{TOP + 8}">{escape(unit)}</text>')
    for number, each in enumerate(series):
        color = COLORS[number % len(COLORS)]
        for run in _runs(each.points, apart=dots):
            places = [(_place(moment, begin, end, LEFT), _height(value / top)) for moment, value in run]
            if len(run) == 1:
                ((x, y),), ((_, value),) = places, run
                said = f"<title>{escape(each.name)}: {escape(_figure(value))} {escape(unit)}</title>"
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}">{said}</circle>')
            else:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
                parts.append(
                    f'<polyline points="{path}" stroke="{color}"><title>{escape(each.name)}</title></polyline>'
                )
    marks = [(each.name, COLORS[number % len(COLORS)]) for number, each in enumerate(series)]
    return _drawing(parts, HEIGHT) + _legend(marks)


def strips(lanes: Sequence[Series]) -> str:
    """One lane a name, coloured by a share of 0 to 1 from each moment to the next; None leaves a gap."""
    moments = sorted({moment for lane in lanes for moment, _ in lane.points})
    if not moments:
        return _nothing()
    end = moments[-1]
    if any(lane.points[-1][1] is not None for lane in lanes):
        # How long the last one lasts is not known: take as long as the one before it.
        end += moments[-1] - moments[-2] if moments[1:] else moments[0].resolution
    begin, left = moments[0], _room([lane.name for lane in lanes])
    lane_height = LANE - 8
    height = TOP + lane_height * len(lanes) + BOTTOM
    parts = [_time_axis(begin, end, height, left)]
    for number, lane in enumerate(lanes):
        y = TOP + lane_height * number
        parts.append(f'<text x="4" y="{y + 11}">{escape(lane.name)}</text>')
        until = [*(moment for moment, _ in lane.points[1:]), end]
        pieces = zip(lane.points, until, strict=True)
        for color, run in groupby(pieces, key=lambda piece: _level(piece[0][1])):
            same = list(run)
            if color:
                begins, ends = same[0][0][0], same[-1][1]
                x, x_end = (_place(moment, begin, end, left) for moment in (begins, ends))
                shares = _shares([point for point, _ in same])
                said = f"{lane.name}, {begins:%m-%d %H:%M} to {ends:%m-%d %H:%M}: {shares}"
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + 1}" width="{max(x_end - x, 0.5):.1f}" height="{lane_height - 2}"'
                    f' fill="{color}"><title>{escape(said)}</title></rect>'
                )
    marks = [(f"{max(least, 0):.1%} and more".replace(".0%", "%"), color) for least, color in LEVELS[:-1]]
    return _drawing(parts, height) + _legend([*marks, ("less", LEVELS[-1][1])])


def timeline(bars: Sequence[Bar]) -> str:
    """Bars in lanes, one lane a name, in the order in which they first come."""
    if not bars:
        return _nothing()
    lanes = list(dict.fromkeys(bar.lane for bar in bars))
    begin, end, left = min(bar.begins for bar in bars), max(bar.ends for bar in bars), _room(lanes)
    height = TOP + LANE * len(lanes) + BOTTOM
    parts = [_time_axis(begin, end, height, left)]
    for number, lane in enumerate(lanes):
        parts.append(f'<text x="4" y="{TOP + LANE * number + 15}">{escape(lane)}</text>')
    for bar in bars:
        x, ends = _place(bar.begins, begin, end, left), _place(bar.ends, begin, end, left)
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


def _runs(points: Points, *, apart: bool) -> list[list[tuple[datetime, float]]]:
    runs: list[list[tuple[datetime, float]]] = [[]]
    for moment, value in points:
        if value is None or apart:
            runs.append([])
        if value is not None:
            runs[-1].append((moment, value))
    return [run for run in runs if run]


def _level(share: float | None) -> str:
    return "" if share is None else next(color for least, color in LEVELS if share >= least)


def _shares(points: Points) -> str:
    shares = [share for _, share in points if share is not None]
    lowest, highest = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _room(names: Sequence[str]) -> float:
    """Where the time begins, right of the longest name."""
    return max(LEFT, 12 + LETTER * max(len(name) for name in names))


def _time_axis(begin: datetime, end: datetime, height: int, left: float) -> str:
    if (end - begin).total_seconds() < 1:
        middle = left + (WIDTH - left - RIGHT) / 2
        return f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle">{begin:%m-%d %H:%M:%S}</text>'
    pattern = "%H:%M:%S" if (end - begin).total_seconds() < 3600 else "%m-%d %H:%M"  # noqa: PLR2004 - an hour
    marks = []
    for number in range(TICKS):
        share = number / (TICKS - 1)
        x = left + share * (WIDTH - left - RIGHT)
        anchor = "start" if number == 0 else "end" if number == TICKS - 1 else "middle"
        moment = begin + (end - begin) * share
        marks.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{moment:{pattern}}</text>')
    return "".join(marks)


def _place(moment: datetime, begin: datetime, end: datetime, left: float) -> float:
    whole = (end - begin).total_seconds()
    share = (moment - begin).total_seconds() / whole if whole else 0.5
    return left + share * (WIDTH - left - RIGHT)


def _height(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits either way


def _legend(marks: Sequence[tuple[str, str]]) -> str:
    said = (f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in marks)
    return f'<p class="legend">{"".join(said)}</p>'


def _drawing(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _nothing() -> str:
    return '<p class="none">The tables have nothing about this.</p>'
