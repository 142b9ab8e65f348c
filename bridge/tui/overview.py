"""The overview of several farms: one row for each with its verdict, and a summary of the chosen farm. Pure.

    FarmRow ─▶ overview_lines      worst verdict in the title, the table, the chosen farm's alarms and publications
    keys    ─▶ update_overview ─▶ OverviewState: the chosen farm, and the opened one

Enter or a double click opens a farm; Esc in its first pane returns here (`bridge.tui.farms`).
"""

import textwrap
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from bridge.api.printable import clock_text, duration, printable
from bridge.api.view import FarmView, Severity, counted_members
from bridge.core.formation.member import MemberStatus
from bridge.core.membership.admission import server_label
from bridge.tui.charts import Chart, charts_lines
from bridge.tui.layout import LEAST_WIDTH, Canvas, Column, Part, dimmed, rows, widened
from bridge.tui.sections import (
    CHOSEN,
    NOT_CHOSEN,
    TITLE,
    alarms_section,
    publishing_section,
    severity_mark,
    severity_style,
)
from bridge.tui.state import MOVES
from bridge.tui.targets import OnFarm, OnKey, aimed
from consensus import counted

_NAME_CELLS: Final = 14
_GRAVITY: Final = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.OK: 2}
_KEYS: Final = (("enter", "Enter open"), ("s", "s worst first"), ("m", "m mouse"), ("q", "q quit"))


class FarmRow(Struct, frozen=True):
    """One farm as its last view shows it. `reason`: the cause of a missing or late view."""

    name: str
    farm: FarmView | None
    age_ms: int
    is_old: bool
    reason: str
    charts: Sequence[Chart] = ()

    @property
    def severity(self) -> Severity:
        """Return the severity of the verdict; critical without a view that is live."""
        return Severity.CRITICAL if self.farm is None or self.is_old else self.farm.verdict.severity

    @property
    def text(self) -> str:
        """Return the verdict, with its age if it is old; before the first view, the reason."""
        if self.farm is None:
            return self.reason
        if self.is_old:
            return f"not live for {duration(self.age_ms)}, then: {self.farm.verdict.text}"
        return self.farm.verdict.text


class OverviewState(Struct, frozen=True):
    """The choices of an operator in the overview."""

    selected: str | None = None
    """The name of the chosen farm; None: the first."""
    opened: str | None = None
    """The name of the farm that the screen shows; None: the overview."""
    worst_first: bool = False
    mouse: bool = True


def update_overview(state: OverviewState, key: str, farms: Sequence[FarmRow]) -> tuple[OverviewState, bool, bool]:
    """Return the state after a key, True if the chosen farm will open, and True if the view will end."""
    names = [each.name for each in ordered(state, farms)]
    at = names.index(state.selected) if state.selected in names else 0
    match key:
        case "q" | "Q" | "ctrl-c" | "ctrl-d":
            return state, False, True
        case "enter":
            return replace(state, selected=names[at]), True, False
        case "s":
            return replace(state, selected=names[at], worst_first=not state.worst_first), False, False
        case "m":
            return replace(state, mouse=not state.mouse), False, False
        case _ if key in MOVES:
            return replace(state, selected=names[min(max(0, at + MOVES[key]), len(names) - 1)]), False, False
        case _:
            return state, False, False


def ordered(state: OverviewState, farms: Sequence[FarmRow]) -> list[FarmRow]:
    """Return the farms as they were named, or the worst first."""
    return sorted(farms, key=lambda each: _GRAVITY[each.severity]) if state.worst_first else list(farms)


def overview_lines(
    state: OverviewState, farms: Sequence[FarmRow], canvas: Canvas, height: int, *, unicode: bool = True
) -> list[Text]:
    """Return the lines of the whole screen."""
    shown = ordered(state, farms)
    at = next((place for place, each in enumerate(shown) if each.name == state.selected), 0)
    table = _table(shown, at, canvas)
    head, foot = (
        [_title(farms, canvas), canvas.line(TITLE, f" {counted(len(farms), 'farm')}"), table[0]],
        _footer(state, canvas),
    )
    room = max(0, height - len(head) - 1)
    body = rows(table[1:], min(len(table) - 1, max(3, room // 2)), canvas.palette.dim, at)
    body = [*body, *_preview(shown[at], canvas, room - len(body), unicode=unicode)][:room]
    body += [Text("", end="") for _ in range(room - len(body))]
    return [*head, *body, foot][:height]


def _title(farms: Sequence[FarmRow], canvas: Canvas) -> Text:
    """Return the number of farms of each severity, the worst first, with the names of the worst ones."""
    worst = min((each.severity for each in farms), key=_GRAVITY.__getitem__)
    if worst is Severity.OK:
        return canvas.line(
            (
                "The farm is healthy" if len(farms) == 1 else f"All {len(farms)} farms are healthy",
                f"{canvas.palette.title} {canvas.palette.good}".strip(),
            )
        )
    named = [each.name for each in farms if each.severity is worst]
    words = {Severity.CRITICAL: "critical", Severity.WARNING: "with a warning"}[worst]
    text = f"{severity_mark(worst)}{len(named)} of {counted(len(farms), 'farm')} {words}: {', '.join(named)}"
    return canvas.line((text, f"{canvas.palette.title} {severity_style(worst, canvas.palette)}".strip()))


def _table(farms: Sequence[FarmRow], chosen: int, canvas: Canvas) -> list[Text]:
    palette = canvas.palette
    columns = [Column("  FARM", _NAME_CELLS), Column("ALIVE", 7), Column("VERDICT", canvas.width)]
    if canvas.is_wide:
        columns[2:2] = [Column("LEADER", 14), Column("ALARMS", 6, right=True)]
    longest = max(cell_len(printable(each.name)) for each in farms)
    columns = [widened(columns[:1], min(canvas.width // 4, longest + len(CHOSEN)), canvas.width)[0], *columns[1:]]
    lines = [canvas.heading(columns, palette.title)]
    for place, each in enumerate(farms):
        verdict = f"{severity_mark(each.severity)}{each.text}"
        style = severity_style(each.severity, palette) or palette.good
        parts: list[Part] = [f"{CHOSEN if place == chosen else NOT_CHOSEN}{each.name}", _alive(each)]
        if canvas.is_wide:
            parts += [_leader(each), "-" if each.farm is None else str(len(each.farm.alarms))]
        line = canvas.row(columns, [*parts, (verdict, style)])
        if each.is_old:
            line = dimmed(line, palette.dim)
        lines.append(aimed(canvas.marked(line) if place == chosen else line, OnFarm(each.name)))
    return lines


def _alive(row: FarmRow) -> str:
    if row.farm is None:
        return "-"
    counted = counted_members(row.farm)
    return f"{sum(each.status is MemberStatus.ALIVE for each in counted)}/{len(counted)}"


def _leader(row: FarmRow) -> str:
    raft = None if row.farm is None else row.farm.raft
    return "-" if raft is None or raft.leader_id is None else server_label(raft.leader_id, raft.leader_name)


def _preview(row: FarmRow, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    """Return a summary of the chosen farm: its complete verdict and remedy, its alarms, publications and charts."""
    palette = canvas.palette
    width = max(LEAST_WIDTH, canvas.width - len(NOT_CHOSEN))
    lines = [Text("", end=""), canvas.line((row.name.upper(), palette.title))]
    if row.farm is None:
        return [*lines, *(canvas.line(f"{NOT_CHOSEN}{each}") for each in textwrap.wrap(printable(row.reason), width))]
    seen = f"seen by {row.farm.node.name} at {clock_text(row.farm.taken_at_ms)} UTC"
    texts = [(row.reason and f"{row.reason}; {seen}") or seen, _whole(row.farm)]
    lines += [canvas.line(f"{NOT_CHOSEN}{part}") for text in texts for part in textwrap.wrap(printable(text), width)]
    publications = publishing_section(row.farm, canvas)
    lines += [
        *alarms_section(row.farm.alarms, canvas, row.farm.verdict.text).lines,
        *([publications.title] if publications.title else []),
    ]
    lines = rows([*lines, *publications.lines], room, palette.dim)
    charts = charts_lines(row.charts, canvas, room - len(lines) - 2, unicode=unicode) if canvas.is_wide else []
    lines += [Text("", end=""), *charts] if charts else []
    return [dimmed(each, palette.dim) for each in lines] if row.is_old else lines


def _whole(farm: FarmView) -> str:
    """Return the verdict, with its advice unless the alarms below contain the remedies."""
    verdict = farm.verdict
    return verdict.text if farm.alarms or verdict.severity is Severity.OK else f"{verdict.text}; {verdict.advice}"


def _footer(state: OverviewState, canvas: Canvas) -> Text:
    dim = canvas.palette.dim
    words = {
        "s": "s as named" if state.worst_first else "s worst first",
        "m": "m mouse" if state.mouse else "m mouse off",
    }
    return canvas.line(*((f" {words.get(key, word)} ", dim, OnKey(key)) for key, word in _KEYS))
