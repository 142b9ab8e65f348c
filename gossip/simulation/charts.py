"""A picture of a played scenario as SVG: detection, dissemination, messages and bytes per member.

Four small line charts do not need a plotting library, and every browser shows SVG.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from gossip.simulation.scenario import Play

_WIDTH, _HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 46, 36
_COLORS = ("#2563a8", "#c2571a")
_TICKS = 4

Point = tuple[float, float]


class Chart(Struct, frozen=True):
    """One chart: its title, the label of its axis, and its named lines."""

    title: str
    axis: str
    lines: tuple[tuple[str, Sequence[Point]], ...]


def picture(play: Play) -> str:
    """Return the whole picture."""
    crashes, load = play.crashes, play.load
    suspected = [crash.first_suspected for crash in crashes if crash.first_suspected is not None]
    declared = [crash.first_declared for crash in crashes if crash.first_declared is not None]
    by_peers = [time for crash in crashes for time in crash.declared_by_peers]
    by_directories = [time for crash in crashes for time in crash.declared_by_directories]
    after = "periods after the crash"
    charts = (
        Chart(
            "Detection: % of crashes",
            after,
            (("first suspicion", shares(suspected)), ("first declaration", shares(declared))),
        ),
        Chart(
            "Dissemination: % of declarations",
            after,
            (("peers", shares(by_peers)), ("directories", shares(by_directories))),
        ),
        Chart("Messages per member and period", "period", (("", list(enumerate(load.messages_by_period))),)),
        Chart("Bytes per member and period", "period", (("", list(enumerate(load.bytes_by_period))),)),
    )
    drawn = "".join(
        f'<g transform="translate({index % 2 * _WIDTH} {index // 2 * _HEIGHT})">{_draw(chart)}</g>\n'
        for index, chart in enumerate(charts)
    )
    size = f'width="{2 * _WIDTH}" height="{2 * _HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect {size} fill="white"/>\n{drawn}</svg>\n'
    )


def shares(values: Sequence[float]) -> list[Point]:
    """Return the percentage of values reached at each value."""
    ordered = sorted(values)
    return [(0.0, 0.0), *((value, 100 * (index + 1) / len(ordered)) for index, value in enumerate(ordered))]


def round_end(highest: float) -> float:
    """Return the end of an axis: the next number with round ticks, such as 4, 8, 10, 20, 40, 60, 80, 100."""
    if highest <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(highest))
    return next(step * scale for step in (1, 2, 4, 6, 8, 10) if step * scale >= highest * (1 - 1e-9))


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:g}"  # noqa: PLR2004 - three digits


def _draw(chart: Chart) -> str:
    right = round_end(max((x for _, line in chart.lines for x, _ in line), default=1.0))
    top = round_end(max((y for _, line in chart.lines for _, y in line), default=1.0))
    parts = [f'<text x="{_LEFT}" y="18" font-size="13" font-weight="bold">{chart.title}</text>']
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        x, y = _place((share * right, share * top), right, top)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(share * top)}</text>')
        label = _label(share * right)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{chart.axis}</text>')
    for number, (name, line) in enumerate(chart.lines):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_place(point, right, top) for point in _thinned(line)))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<text x="{_LEFT + 130 * number}" y="34" fill="{color}">{name}</text>')
    return "".join(parts)


def _place(point: Point, right: float, top: float) -> Point:
    x = _LEFT + point[0] / right * (_WIDTH - _LEFT - _RIGHT)
    y = _HEIGHT - _BOTTOM - point[1] / top * (_HEIGHT - _TOP - _BOTTOM)
    return x, y


def _thinned(line: Sequence[Point]) -> Sequence[Point]:
    """Return fewer than two points per pixel of a chart's width, including the last point."""
    step = max(len(line) // _WIDTH, 1)
    return [*line[::step], line[-1]] if step > 1 else line
