"""The screen of one farm as lines: pure, of exactly the given size, so that nothing ever scrolls or wraps.

    header     the verdict first, then the node and Raft                        3 lines
    body       farm: alarms, members, publications, charts, take-over, events  the rest
               detail of a member │ events │ log │ publishing and weights │ timeline │ help
    footer     a question or a notice, whole; the filter while it is typed; or
               the panes with their keys, the shown one in reverse              1 line or more, one more of a local farm

From 150 columns on, the farm's pane has two columns: members, publications and charts on the left, the last take-over
and events on the right. Below that width they are stacked; from 100 columns on, charts come before the events if at
least eight lines of events remain. The less important sections give way first.
"""

import shlex
import textwrap
from collections.abc import Sequence
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from bridge.api.alarms import by_gravity
from bridge.api.observations.history import HistoryAnswer
from bridge.api.printable import clock_text, duration, printable
from bridge.api.take_over import Step
from bridge.api.view import AlarmView, FarmView, LocalFarmView
from bridge.tui import texts
from bridge.tui.charts import charts_lines
from bridge.tui.history import History
from bridge.tui.layout import (
    COLORS,
    LEAST_WIDTH,
    MONOCHROME,
    Canvas,
    Height,
    Part,
    dimmed,
    rows,
    share,
    shortened,
)
from bridge.tui.members import farm_charts, member_charts, member_facts, members_section
from bridge.tui.sections import (
    TITLE,
    ScreenSection,
    alarms_section,
    farm_header,
    local_header,
    processes_section,
    publishing_section,
    weights_section,
)
from bridge.tui.state import Pane, Question, ViewState, selected_member, shown_members
from bridge.tui.targets import OnKey
from bridge.tui.timeline import timeline_lines

TWO_COLUMNS: Final = 150
LEAST_HEIGHT: Final = 5
EVENTS_BELOW_CHARTS: Final = 8
STALE_MS: Final = 2_000
"""Milliseconds; if the next view is later than this, the shown view is not live."""
_GUTTER: Final = " │ "
_TABS: Final = (
    (Pane.FARM, "f", "farm"),
    (Pane.EVENTS, "e", "events"),
    (Pane.LOG, "l", "log"),
    (Pane.PUBLISHING, "p", "publish"),
    (Pane.TIMELINE, "t", "time"),
    (Pane.HELP, "?", "help"),
)
_FURTHER: Final = "… and {} more lines: enlarge the terminal before you press a key"
_CHANGES: Final = (("T", "T lead"), ("X", "X exclude"), ("V", "V evict"), ("L", "L leave"))
_KEYS: Final = {
    Pane.FARM: (("enter", "Enter open"), ("/", "/ filter"), ("q", "q quit"), ("s", "s sort"), *_CHANGES),
    Pane.DETAIL: (("escape", "Esc back"), ("q", "q quit"), *_CHANGES),
    Pane.EVENTS: (("enter", "Enter member"), ("o", "o log then"), ("/", "/ filter"), ("q", "q quit")),
    Pane.LOG: (("/", "/ filter"), ("home", "Home newest"), ("q", "q quit")),
    Pane.PUBLISHING: (("q", "q quit"),),
    Pane.TIMELINE: (("w", "w 1/6/24 hours"), ("q", "q quit")),
    Pane.HELP: (("q", "q quit"),),
}
"""The other keys of each pane, with labels; without room for its label, a key is shown alone."""


class ScreenData(Struct, frozen=True):
    """All data that can be drawn. `local`: the processes of a local farm, for `up`."""

    farm: FarmView | None
    history: History
    reason: str = ""
    """The reason for a missing view; if there is a `farm`, the reason for a missing newer view."""
    local: LocalFarmView | None = None
    age_ms: int = 0
    """Milliseconds since the last reply, by the clock of this process."""
    interval_ms: int = 1_000
    """Milliseconds between two queries."""
    several: bool = False
    """True if the farm is one of several: Esc leads to the overview."""
    timeline: HistoryAnswer | None = None
    timeline_reason: str = ""
    """The reason for a missing timeline."""

    @property
    def is_old(self) -> bool:
        """Return True if no node answers any more: the picture is the last one."""
        return (
            self.farm is not None
            and self.local is None
            and (bool(self.reason) or self.age_ms > self.interval_ms + STALE_MS)
        )


def draw(
    state: ViewState, data: ScreenData, width: int, height: int, *, color: bool = True, unicode: bool = True
) -> Group:
    """Return the whole screen."""
    return Group(Text("\n", end="").join(draw_lines(state, data, width, height, color=color, unicode=unicode)))


def draw_lines(
    state: ViewState, data: ScreenData, width: int, height: int, *, color: bool = True, unicode: bool = True
) -> list[Text]:
    """Return the lines of the whole screen."""
    canvas = Canvas(max(width, LEAST_WIDTH), COLORS if color else MONOCHROME)
    height = max(height, LEAST_HEIGHT)
    lines, footer, room = _frame(state, data, canvas, height)
    body = _body(state, data, canvas, room, unicode=unicode)[:room]
    if data.is_old:
        chosen = f"{canvas.palette.dim} reverse".strip()
        body = [dimmed(line, chosen if line.style == "reverse" else canvas.palette.dim) for line in body]
    lines = [*lines, *body, *(Text("", end="") for _ in range(room - len(body)))][: max(1, height - len(footer))]
    return lines + footer[: height - len(lines)]


def settled(state: ViewState, data: ScreenData, width: int, height: int) -> ViewState:
    """Return the state for a screen of this size: no text is scrolled beyond its end, and the chosen row is visible.

    Excess scrolling is dropped, so that the next key upwards moves the text immediately.
    """
    canvas = Canvas(max(width, LEAST_WIDTH), MONOCHROME)
    _, _, room = _frame(state, data, canvas, max(height, LEAST_HEIGHT))
    match state.pane:
        case Pane.FARM | Pane.DETAIL:
            return state
        case Pane.EVENTS:
            events = texts.event_window(state, data.history)
            top = events.settled(room, lambda each: len(texts.event_lines(each, canvas, whole=True)))
            return replace(state, top=events.items[top].number if top else None)
        case Pane.LOG:
            entries = texts.entry_window(state, data.history)
            top = entries.settled(texts.entry_rows(entries, canvas, room), lambda _: 1)
            return replace(state, top=entries.items[top].index if top else None)
        case Pane.PUBLISHING | Pane.TIMELINE | Pane.HELP:
            lines = _text(state.pane, data, canvas, room)
            return replace(state, offset=min(state.offset, max(0, len(lines) - room)))
        case _:
            assert_never(state.pane)


def _frame(state: ViewState, data: ScreenData, canvas: Canvas, height: int) -> tuple[list[Text], list[Text], int]:
    """Return the header, the footer, and the number of lines between them."""
    header = _header(data, canvas)
    start_again = _start_again(data, canvas)
    # The header keeps one line.
    footer = [*start_again, *_footer(state, data, canvas, height - 1 - len(start_again))]
    return header, footer, max(0, height - len(header) - len(footer))


def _header(data: ScreenData, canvas: Canvas) -> list[Text]:
    if data.local is not None:
        return local_header(data.local, canvas)
    if data.farm is None:
        text = data.reason or "querying a node …"
        return [canvas.line(TITLE), *(canvas.line((each, canvas.palette.doubtful)) for each in _wrapped(text, canvas))]
    if data.is_old:
        reason = data.reason or f"{data.farm.node.name} does not answer"
        age = f", {duration(data.age_ms)} ago" if data.age_ms else ""
        end = "" if reason.endswith("?") else "."
        since = f"not live since {clock_text(data.farm.taken_at_ms)} UTC{age}: {reason}{end} The picture below is old"
        style = f"{canvas.palette.title} {canvas.palette.bad}".strip()
        lines = [canvas.line((each, style)) for each in _wrapped(since, canvas)]
        return [*lines, *(dimmed(line, canvas.palette.dim) for line in farm_header(data.farm, canvas))]
    return farm_header(data.farm, canvas)


def _footer(state: ViewState, data: ScreenData, canvas: Canvas, most: int) -> list[Text]:
    palette = canvas.palette
    if state.question is not None:
        return _question_lines(state.question, state.answer, canvas)
    if state.editing is not None:
        return [canvas.line((" / ", palette.title), state.editing, ("▏", palette.accent))]
    if state.notice:
        lines = _wrapped(state.notice, canvas)
        if len(lines) > most:
            kept = max(0, most - len(_wrapped(_FURTHER.format(len(lines)), canvas)))
            lines[kept:] = _wrapped(_FURTHER.format(len(lines) - kept), canvas)
        return [canvas.line((f" {each}", palette.doubtful)) for each in lines]
    shown = Pane.FARM if state.pane is Pane.DETAIL else state.pane
    keys = [*([("escape", "Esc farms")] if data.several and state.pane is Pane.FARM else []), *_KEYS[state.pane]]
    letters = sum(len(key) + 1 for key, _ in keys if len(key) == 1)
    is_wide = sum(len(f" {key} {word} ") for _, key, word in _TABS) + letters <= canvas.width
    parts: list[Part] = []
    for pane, key, word in _TABS:
        text = f" {key} {word} " if is_wide or pane is shown else f" {key} "
        parts.append((text, "reverse" if pane is shown else palette.dim, OnKey(key)))
    if state.filter:
        cleared = f" only: {state.filter} (Esc: all)"
        return [canvas.line(*parts, (cleared, palette.doubtful, OnKey("escape")))]
    room = canvas.width - sum(cell_len(part[0]) for part in parts)
    return [canvas.line(*parts, *_named_keys(keys, room, palette.dim))]


def _named_keys(keys: Sequence[tuple[str, str]], room: int, style: str) -> list[Part]:
    """Return the keys with their labels, if there is room; other keys are shown alone."""
    words = [key if len(key) == 1 else "" for key, _ in keys]
    for place, (_, word) in enumerate(keys):
        longer = [*words[:place], word, *words[place + 1 :]]
        if sum(len(each) + 1 for each in longer if each) <= room:
            words = longer
    return [(f" {word}", style, OnKey(key)) for (key, _), word in zip(keys, words, strict=True) if word]


def _question_lines(question: Question, answer: str, canvas: Canvas) -> list[Text]:
    """Return the whole question, and the keys that answer it: an operator must not confirm a truncated text."""
    palette = canvas.palette
    lines = [canvas.line((f" {each} ", f"reverse {palette.title}")) for each in _wrapped(question.text, canvas)]
    prompt: list[Part]
    if question.name:
        name = shortened(question.name, max(LEAST_WIDTH, canvas.width // 2))
        prompt = [f" Type {name} and Enter; ", ("Esc: no ", "", OnKey("escape")), (f"> {answer}", palette.title)]
        prompt.append(("▏", palette.accent))
    else:
        prompt = [(" y: yes ", "", OnKey("y")), ("  any other key: no", "", OnKey("escape"))]
    return [*lines, canvas.line(*prompt)]


def _wrapped(text: str, canvas: Canvas) -> list[str]:
    """Return each line of the text in as many lines as it takes, with a blank at both ends."""
    width = max(LEAST_WIDTH, canvas.width) - 2
    return [part for line in text.split("\n") for part in textwrap.wrap(printable(line), width) or [""]]


def _start_again(data: ScreenData, canvas: Canvas) -> list[Text]:
    """Return an experiment for a local farm: the command that starts the killed node, or the first node."""
    farm = data.local
    if farm is None:
        return []
    names = [each.name for each in farm.processes if not each.running] + [each.name for each in farm.processes]
    name = names[0] if names else "node-1"
    file = shlex.quote(f"{farm.state_directory}/{name}/node.toml")
    again = f" after kill -9: {farm.program} run --config {file}"
    return [canvas.line((again, canvas.palette.dim))]


def _body(state: ViewState, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    match state.pane:
        case Pane.FARM:
            return _farm_body(state, data, canvas, room, unicode=unicode)
        case Pane.DETAIL:
            return _detail_body(state, data, canvas, room, unicode=unicode)
        case Pane.EVENTS:
            return texts.events_pane(state, data.history, data.farm, canvas, room)
        case Pane.LOG:
            return texts.log_pane(state, data.history, canvas, room)
        case Pane.PUBLISHING | Pane.TIMELINE | Pane.HELP:
            lines = _text(state.pane, data, canvas, room, unicode=unicode)
            return rows(lines[min(state.offset, max(0, len(lines) - room)) :], room, canvas.palette.dim)
        case _:
            assert_never(state.pane)


def _text(pane: Pane, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool = True) -> list[Text]:
    if pane is Pane.TIMELINE:
        return timeline_lines(data.timeline, data.timeline_reason, data.farm, canvas, room, unicode=unicode)
    return texts.help_lines(canvas) if pane is Pane.HELP else texts.publishing_lines(data.farm, canvas)


def _detail_body(state: ViewState, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    """Return the facts of a member; its charts are next to them, or below them."""
    member = selected_member(state, data.farm)
    charts = [] if member is None else member_charts(member, data.history)
    if canvas.width < TWO_COLUMNS:
        facts = rows(member_facts(state, data.farm, data.history, canvas), room, canvas.palette.dim)
        return [*facts, *_spaced(charts_lines(charts, canvas, room - len(facts) - 1, unicode=unicode))]
    left, right = _columns(canvas)
    facts = rows(member_facts(state, data.farm, data.history, left), room, canvas.palette.dim)
    return _beside(facts, charts_lines(charts, right, room, unicode=unicode), left, room)


def _spaced(lines: list[Text]) -> list[Text]:
    return [Text("", end=""), *lines] if lines else []


def _columns(canvas: Canvas) -> tuple[Canvas, Canvas]:
    left = Canvas((canvas.width - len(_GUTTER)) * 3 // 5, canvas.palette)
    return left, Canvas(canvas.width - left.width - len(_GUTTER), canvas.palette)


def _farm_body(state: ViewState, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    alarms = alarms_section(_alarms(data), canvas, "" if data.farm is None else data.farm.verdict.text)
    weights = ScreenSection(None, []) if data.farm is None else weights_section(data.farm.weights, canvas)
    charts = [] if data.farm is None else list(farm_charts(state, data.farm, data.history))
    if canvas.width < TWO_COLUMNS:
        above = [alarms, *_left(state, data, canvas, unicode=unicode), weights]
        take_over, events = _right(data, canvas, room)
        spare = room - sum(_full(each) for each in (*above, take_over)) - EVENTS_BELOW_CHARTS - 1
        drawn = charts_lines(charts, canvas, min(spare, room // 3), unicode=unicode) if canvas.is_wide else []
        return _stacked([*above, ScreenSection(None, drawn, least=len(drawn)), take_over, events], canvas, room)
    above_lines = rows(alarms.lines, max(1, room // 3), canvas.palette.dim) if alarms.lines else []
    above_lines += weights.lines
    left, right = _columns(canvas)
    below = room - len(above_lines)
    lefts = _stacked(_left(state, data, left, unicode=unicode), left, below)
    lefts += _spaced(charts_lines(charts, left, below - len(lefts) - 1, unicode=unicode))
    rights = _stacked(_right(data, right, below), right, below)
    return [*above_lines, *_beside(lefts, rights, left, below)]


def _beside(lefts: Sequence[Text], rights: Sequence[Text], left: Canvas, room: int) -> list[Text]:
    """Return two columns as one, down to the footer."""
    blank = Text("", end="")
    joined = []
    for at in range(max(room, len(lefts), len(rights))):
        # The style of a whole line, such as the chosen one, ends with the line, so the space between the columns does
        # not have it.
        line = Text("", no_wrap=True, overflow="ellipsis", end="").append_text(lefts[at] if at < len(lefts) else blank)
        line.pad_right(max(0, left.width - line.cell_len))
        line.append(_GUTTER, left.palette.dim)
        line.append_text(rights[at] if at < len(rights) else blank)
        joined.append(line)
    return joined


def _alarms(data: ScreenData) -> tuple[AlarmView, ...]:
    if data.local is None:
        return () if data.farm is None else data.farm.alarms
    views = [each.view for each in data.local.processes if each.running and each.view is not None]
    return by_gravity(dict.fromkeys(alarm for view in views for alarm in view.alarms))


def _left(state: ViewState, data: ScreenData, canvas: Canvas, *, unicode: bool) -> list[ScreenSection]:
    if data.local is not None:
        chosen = selected_member(state, data.farm)
        order = [each.name for each in shown_members(state, data.farm)]
        sections = [processes_section(data.local, canvas, order, None if chosen is None else chosen.name)]
    elif data.farm is not None:
        sections = [members_section(state, data.farm, data.history, canvas, unicode=unicode)]
    else:
        sections = []
    return sections if data.farm is None else [*sections, publishing_section(data.farm, canvas)]


def _right(data: ScreenData, canvas: Canvas, room: int) -> list[ScreenSection]:
    title = canvas.line(
        ("EVENTS", canvas.palette.title, OnKey("e")), (" newest first, UTC", canvas.palette.dim, OnKey("e"))
    )
    events = ScreenSection(title, texts.recent_events(data.history, data.farm, canvas, room), counted=False)
    return [_take_over(data.history.story.take_over, canvas), events]


def _full(section: ScreenSection) -> int:
    return (section.title is not None) + len(section.lines) if section.lines else 0


def _stacked(sections: Sequence[ScreenSection], canvas: Canvas, room: int) -> list[Text]:
    """Return sections above one another: each gets a few lines, then its wanted lines, in their order."""
    heights = []
    for section in sections:
        full = _full(section)
        heights.append(Height(min(full, (section.title is not None) + section.least), full))
    lines: list[Text] = []
    for section, given in zip(sections, share(room, heights), strict=True):
        left = given
        if left > 0 and section.title is not None:
            lines.append(section.title)
            left -= 1
        lines += (
            rows(section.lines, left, canvas.palette.dim, section.chosen) if section.counted else section.lines[:left]
        )
    return lines


def _take_over(steps: Sequence[Step], canvas: Canvas) -> ScreenSection:
    """Return one line for each step: seconds since the first one, and the text."""
    if not steps:
        return ScreenSection(None, [])
    first_ms, palette = steps[0].time_ms, canvas.palette
    title = canvas.line(("LAST TAKE-OVER", palette.title), (f" began {clock_text(first_ms)} UTC", palette.dim))
    lines = []
    for step in steps:
        after = f"  +{(step.time_ms - first_ms) / 1000:5.1f} s  "
        lines.append(canvas.line(after, (step.detail, palette.accent)))
    return ScreenSection(title, lines, chosen=len(lines) - 1)
