"""Charts as SVG text, drawn by Vega-Lite before the page is written, so that the page does not need a script.

    rows ─▶ a Vega-Lite chart, as JSON ─▶ vl-convert (Vega in V8, inside this process) ─▶ SVG ─▶ `_cleaned` ─▶ the page

Vega could draw in the reader's browser instead. But a page would carry a megabyte of JavaScript, and its
Content-Security-Policy would have to allow it. With finished drawings, the policy can forbid every script. A chart has
a few kilobytes, any viewer shows it, and its text can be selected. Only zooming is missing; `<title>` still shows
figures at the pointer.

The text of a drawing does not reflow, and a drawing for a desktop is unreadable when a phone shrinks it. So each chart
is drawn twice, and the page's style shows the fitting one. Colors are the page's variables (`var(--…)`), with values
for light and for dark.

Text from the tables enters a chart as data, never as an expression. It leaves the chart through `_cleaned`, which keeps
only plain shapes and text, with attributes that place and color them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from statistics import median
from typing import Any
from xml.etree import ElementTree as ET

import vl_convert

from pipeline.serve.printing import printable

WIDE, NARROW = 910, 350
"""Widths of the two drawings in pixels: for a page of 960, and for a phone of 390."""
VEGA_LITE = "6.4"
LETTER, LETTERS_MAX = 6.5, 24
"""Pixels of a letter, and the maximum of letters in a label; the pointer shows the whole name."""
SHADES = 8
"""The number of line colors, which the page's style defines. Further lines repeat them, in dashes."""
DASHES = ([1, 0], [6, 3], [2, 2])
OUTLIER = 20
"""If the highest value exceeds this multiple of the median, the axis is logarithmic above 1: a linear axis would
flatten the other lines.
"""
LEVELS = ((0.995, "99.5% and more"), (0.9, "90%"), (0.6, "60%"), (0.2, "20%"), (-1.0, "less"))
"""The least share of each color of a strip, and its text in the legend."""
_SVG = "{http://www.w3.org/2000/svg}"
_SHAPES = frozenset({"svg", "g", "path", "line", "rect", "circle", "text"})
_ATTRIBUTES = frozenset(
    [
        "d",
        "transform",
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
        "width",
        "height",
        "viewBox",
        "fill",
        "fill-opacity",
        "stroke",
        "stroke-width",
        "stroke-dasharray",
        "stroke-opacity",
        "opacity",
        "font-size",
        "font-weight",
        "text-anchor",
    ]
)
_REFERENCE = re.compile(r"url\s*\(", re.IGNORECASE)
_LONG = re.compile(r"(\.\d)\d+")

Points = Sequence[tuple[datetime, float | None]]


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: (time, value) in the order of time; None as value leaves a gap."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane, from one time to another, with a text for the pointer."""

    lane: str
    begins: datetime
    ends: datetime
    text: str
    color: int


def lines(series: Sequence[Series], unit: str, *, dots: bool = False) -> str:
    """Return lines over time, by name; with `dots`, unconnected single values."""
    runs = [(each.name, run) for each in series for run in _runs(each.points, apart=dots)]
    if not runs:
        return nothing()
    joined = [
        {"name": name, "run": number, "at": _ms(moment), "value": value}
        for number, (name, run) in enumerate(runs)
        if len(run) > 1
        for moment, value in run
    ]
    single = [
        {"name": name, "at": _ms(moment), "value": value, "said": f"{name}: {_figure(value)} {unit}"}
        for name, run in runs
        if len(run) == 1
        for moment, value in run
    ]
    moments = [moment for each in series for moment, _ in each.points]
    names = list(dict.fromkeys(each.name for each in series))
    encoding = {
        "x": {"field": "at", **_time(min(moments), max(moments))},
        "y": {"field": "value", "type": "quantitative", "title": unit, "scale": _values([*joined, *single])},
        "color": _colors(names, [_shade(number) for number in range(len(names))], "name"),
    }
    if len(names) > SHADES:
        dashes = [DASHES[number // SHADES % len(DASHES)] for number in range(len(names))]
        encoding["strokeDash"] = {**encoding["color"], "scale": {**encoding["color"]["scale"], "range": dashes}}
    line = {
        "data": {"values": joined},
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {**encoding, "detail": {"field": "run"}, "description": {"field": "name"}},
    }
    dot = {
        "data": {"values": single},
        "mark": {"type": "circle", "size": 24, "opacity": 1},
        "encoding": {**encoding, "description": {"field": "said"}},
    }
    return _drawn({"layer": [each for each, rows in ((line, joined), (dot, single)) if rows], "height": 180})


def strips(lanes: Sequence[Series]) -> str:
    """Return one lane per name, colored by a share of 0 to 1 from each moment to the next; None leaves a gap."""
    moments = sorted({moment for lane in lanes for moment, _ in lane.points})
    if not moments:
        return nothing()
    end = moments[-1]
    if any(lane.points[-1][1] is not None for lane in lanes):
        # The duration of the last value is unknown; use the previous duration.
        end += moments[-1] - moments[-2] if moments[1:] else timedelta(seconds=1)
    names = [name for _, name in LEVELS]
    chart = {
        "data": {"values": [piece for lane in lanes for piece in _pieces(lane, end)]},
        "mark": {"type": "bar", "height": {"band": 0.85}},
        "height": {"step": 14},
        "encoding": {
            "x": {"field": "begins", **_time(moments[0], end)},
            "x2": {"field": "ends"},
            "y": _lanes([lane.name for lane in lanes]),
            "color": _colors(names, [f"var(--level-{number})" for number in range(len(names))], "level"),
            "description": {"field": "said"},
        },
    }
    return _drawn(chart)


def timeline(bars: Sequence[Bar]) -> str:
    """Return bars in lanes, one lane per name, in the order of first appearance."""
    if not bars:
        return nothing()
    begin, end = min(bar.begins for bar in bars), max(bar.ends for bar in bars)
    least = (end - begin) / NARROW * 2
    rows = [
        {
            "lane": bar.lane,
            "begins": _ms(bar.begins),
            # A momentary bar must be visible.
            "ends": _ms(max(bar.ends, bar.begins + least)),
            "color": _shade(bar.color),
            "said": bar.text,
        }
        for bar in bars
    ]
    chart = {
        "data": {"values": rows},
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "height": {"step": 22},
        "encoding": {
            "x": {"field": "begins", **_time(begin, end)},
            "x2": {"field": "ends"},
            "y": _lanes([bar.lane for bar in bars]),
            "color": {"field": "color", "type": "nominal", "scale": None},
            "description": {"field": "said"},
        },
    }
    return _drawn(chart)


def nothing() -> str:
    """Return the text for an empty section."""
    return '<p class="none">The tables do not contain data for this.</p>'


def _pieces(lane: Series, end: datetime) -> Iterator[dict[str, Any]]:
    """Yield the parts of a lane; adjacent parts of one color are merged."""
    until = [*(moment for moment, _ in lane.points[1:]), end]
    pieces = zip(lane.points, until, strict=True)
    for level, run in groupby(pieces, key=lambda piece: _level(piece[0][1])):
        same = list(run)
        if level:
            begins, ends = same[0][0][0], same[-1][1]
            shares = [share for (_, share), _ in same if share is not None]
            lowest, highest = f"{min(shares):.1%}", f"{max(shares):.1%}"
            range_text = lowest if lowest == highest else f"{lowest} to {highest}"
            yield {
                "lane": lane.name,
                "begins": _ms(begins),
                "ends": _ms(ends),
                "level": level,
                "said": f"{lane.name}, {begins:%m-%d %H:%M} to {ends:%m-%d %H:%M}: {range_text}",
            }


def _runs(points: Points, *, apart: bool) -> list[list[tuple[datetime, float]]]:
    runs: list[list[tuple[datetime, float]]] = [[]]
    for moment, value in points:
        if value is None or apart:
            runs.append([])
        if value is not None:
            runs[-1].append((moment, value))
    return [run for run in runs if run]


def _level(share: float | None) -> str:
    return "" if share is None else next(name for least, name in LEVELS if share >= least)


def _shade(number: int) -> str:
    return f"var(--shade-{number % SHADES})"


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits either way


def _time(begin: datetime, end: datetime) -> dict[str, Any]:
    if begin == end:
        begin, end = begin - timedelta(seconds=30), end + timedelta(seconds=30)
    pattern = "%H:%M:%S" if end - begin < timedelta(hours=1) else "%m-%d %H:%M"
    scale = {"type": "utc", "domain": [_ms(begin), _ms(end)], "nice": False}
    axis = {"format": pattern, "grid": False, "labelFlush": True}
    return {"type": "temporal", "title": None, "scale": scale, "axis": axis}


def _lanes(names: Sequence[str]) -> dict[str, Any]:
    domain = list(dict.fromkeys(map(printable, names)))
    # The browser's letters may be wider than Vega's measure.
    axis = {"minExtent": LETTER * min(max(map(len, domain)), LETTERS_MAX)}
    return {"field": "lane", "type": "nominal", "title": None, "scale": {"domain": domain}, "axis": axis}


def _values(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scale of the values: logarithmic above 1 if one of them would flatten the others."""
    values = [row["value"] for row in rows]
    has_outlier = max(values) > OUTLIER * max(median(values), 1)
    return {"type": "symlog", "zero": True} if has_outlier else {"zero": True}


def _colors(names: Sequence[str], colors: Sequence[str], field: str) -> dict[str, Any]:
    scale = {"domain": [*map(printable, names)], "range": [*colors]}
    return {"field": field, "type": "nominal", "title": None, "scale": scale, "legend": {"orient": "bottom"}}


def _drawn(chart: dict[str, Any]) -> str:
    """Return a figure with both drawings; the pointer shows the `description` of a mark."""
    soft = {"labelColor": "var(--soft)", "titleColor": "var(--soft)", "labelFontSize": 11, "titleFontSize": 11}
    line = {"domainColor": "var(--line)", "tickColor": "var(--line)", "gridColor": "var(--line)"}
    drawings = []
    for name, width, columns in (("wide", WIDE, 5), ("narrow", NARROW, 3)):
        room = LETTER * LETTERS_MAX
        config = {
            "background": None,
            "view": {"stroke": "var(--line)"},
            "axis": {**soft, **line, "labelLimit": room, "aria": False},
            "axisX": {"tickCount": width // 160, "labelSeparation": 16},
            "legend": {**soft, "aria": False, "columns": columns, "columnPadding": 24, "labelLimit": room},
        }
        size = {
            "width": width,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "padding": {"left": 2, "right": 8, "top": 4, "bottom": 2},
        }
        spec = json.dumps(_printable({**chart, **size, "config": config}))
        drawings.append(_cleaned(vl_convert.vegalite_to_svg(spec, VEGA_LITE, allowed_base_urls=[]), name))
    return f"<figure>{''.join(drawings)}</figure>"


def _printable(value: Any) -> Any:
    """Make every text in a value `printable`: XML cannot hold some characters, and others reverse the text."""
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(each) for each in value]
        case dict():
            return {name: _printable(each) for name, each in value.items()}
        case _:
            return value


def _cleaned(drawing: str, name: str) -> str:
    """Return the drawn parts of Vega's SVG: shapes and text, and a `<title>` for a mark's description."""
    root = ET.fromstring(drawing)  # noqa: S314 - Vega wrote it just now, and it declares no entity
    kept = _simplified(root)
    if kept is None:
        return nothing()
    kept.attrib = {**kept.attrib, "class": name, "role": "img"}
    return ET.tostring(kept, encoding="unicode")


def _simplified(found: ET.Element) -> ET.Element | None:
    tag = found.tag.removeprefix(_SVG)
    if tag not in _SHAPES or found.get("display") == "none" or found.get("opacity") == "0":
        return None
    attributes = {
        key: _LONG.sub(r"\1", value)
        for key, value in found.attrib.items()
        if key in _ATTRIBUTES and not _REFERENCE.search(value)
    }
    kept = ET.Element(tag, attributes)
    kept.text = found.text
    label = found.get("aria-label")
    if label and found.get("role") == "graphics-symbol":
        ET.SubElement(kept, "title").text = label
    kept.extend(each for each in map(_simplified, found) if each is not None)
    is_empty = (tag == "g" and not len(kept)) or (tag == "path" and not _is_drawn(attributes))
    return None if is_empty else kept


def _is_drawn(attributes: dict[str, str]) -> bool:
    """Return True unless this is Vega's path without size and color for each group."""
    return bool(attributes.get("d")) and bool({"fill", "stroke"} & attributes.keys())
