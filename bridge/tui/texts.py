"""Panes that are read as texts: events, the log, publications with their candidates, and the keys.

    events   each fact once, the newest first; one is chosen: Enter opens its member, o the log at its time
    log      the entries, the newest first; one is chosen; its text is below, in up to 6 lines
    publish  structures, candidates with their scores, weights
    help     every key

`Window` is a long list, with the place of the chosen item. The chosen item is always visible. Lines are made only for
the visible items.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct
from rich.text import Text

from bridge.api.printable import clock_text, printable
from bridge.api.view import FarmView
from bridge.api.words import score_text, standing_text
from bridge.core.membership.admission import server_label
from bridge.tui.history import EntryLine, History
from bridge.tui.layout import GAP, LEAST_WIDTH, Canvas, Column, Part
from bridge.tui.sections import CHOSEN, NOT_CHOSEN, publishing_section, severity_mark, severity_style, weights_lines
from bridge.tui.state import ViewState, selected_entry, selected_event, shown_entries, shown_events
from bridge.tui.story import StoryLine
from bridge.tui.targets import OnEntry, OnEvent, aimed

HELP_CELLS: Final = 14
_REASON_CELLS: Final = 4
"""Indent of a candidate's reasons."""
ENTRY_LINES_MAX: Final = 6
"""Lines of the chosen entry below the table."""
HELP: Final = (
    ("f e l p t ?", "farm, events, log, publishing, time, help; also Tab and arrows"),
    ("up down, j k", "choose a row, or scroll a text; also PgUp, PgDn, Home, End"),
    ("Enter", "details of the chosen member, or of the chosen event's member; Esc goes back"),
    ("o", "in events: the log at the time of the chosen event"),
    ("t, w", "t: timeline of leaders and outages; w: the last 1, 6 or 24 hours"),
    ("/", "filter members, events, entries. Enter keeps it, Esc removes it"),
    ("s, S", "sort members by the next column; reverse. ^ or v is in the heading"),
    ("T", "hand leadership to the chosen member"),
    ("X", "exclude the member's leaves from all structures, or include them"),
    ("V", "evict the chosen member permanently, and replace all keys"),
    ("L", "make the contacted node leave the farm and stop"),
    ("click", "choose a row, a pane or a key; sort by a heading; twice: Enter"),
    ("Shift + mouse", "(or Option + mouse) selects text; after m, the mouse alone does"),
    ("Ctrl-Z, q", "suspend the view (fg continues it); end it"),
    ("", "A key that changes the farm prompts first: y confirms, every other key cancels."),
    ("", "V: type the full name. Colors only repeat the words on the screen."),
)
T = TypeVar("T")


class Window(Struct, Generic[T], frozen=True):
    """Items in order, the place of the chosen one, and the place of the first shown one."""

    items: Sequence[T]
    chosen: int
    top: int

    def settled(self, room: int, height: Callable[[T], int]) -> int:
        """Return the place of the first shown item, so that the chosen one is inside `room` lines."""
        if not self.items:
            return 0
        top = min(self.top, self.chosen)
        used = 0
        for place in range(self.chosen, top - 1, -1):
            used += height(self.items[place])
            if used > room:
                return min(place + 1, self.chosen)
        return top


def event_window(state: ViewState, history: History) -> Window[StoryLine]:
    """Return the events that pass the filter."""
    events = shown_events(state, history)
    chosen = selected_event(state, history)
    return _window(events, [each.number for each in events], None if chosen is None else chosen.number, state.top)


def entry_window(state: ViewState, history: History) -> Window[EntryLine]:
    """Return the entries that pass the filter."""
    entries = shown_entries(state, history)
    chosen = selected_entry(state, history)
    return _window(entries, [each.index for each in entries], None if chosen is None else chosen.index, state.top)


def _window(items: Sequence[T], keys: Sequence[int], chosen: int | None, top: int | None) -> Window[T]:
    places = {key: place for place, key in enumerate(keys)}
    return Window(items, 0 if chosen is None else places[chosen], 0 if top is None else places.get(top, 0))


def event_lines(event: StoryLine, canvas: Canvas, *, whole: bool, is_chosen: bool = False) -> list[Text]:
    """Return an event in the color of its severity; `whole`: in as many lines as it takes, otherwise in one.

    `is_chosen`: the line of the cursor, in a list that has a cursor.
    """
    palette = canvas.palette
    mark = CHOSEN if is_chosen else NOT_CHOSEN
    before = f"{mark}{clock_text(event.time_ms)} {severity_mark(event.severity):3}"
    style = severity_style(event.severity, palette)
    parts = (
        textwrap.wrap(printable(event.text), max(LEAST_WIDTH, canvas.width - len(before))) if whole else [event.text]
    )
    lines = [canvas.line((before, style or palette.dim), (parts[0] if parts else "", style))]
    lines += [canvas.line((" " * len(before) + each, style)) for each in parts[1:]]
    return [aimed(canvas.marked(each) if is_chosen else each, OnEvent(event.number)) for each in lines]


def events_pane(state: ViewState, history: History, farm: FarmView | None, canvas: Canvas, room: int) -> list[Text]:
    """Return the part of the events that fits, with the chosen one."""
    window = event_window(state, history)
    if not window.items:
        missed = "no event contains the filter; Esc shows all" if history.story.lines else "no events yet"
        return early_events(farm, canvas) or [canvas.line((f"  {missed}", canvas.palette.doubtful))]
    top = window.settled(room, lambda each: len(event_lines(each, canvas, whole=True)))
    lines: list[Text] = []
    for place in range(top, len(window.items)):
        if len(lines) >= room:
            break
        lines += event_lines(window.items[place], canvas, whole=True, is_chosen=place == window.chosen)
    return lines[:room]


def recent_events(history: History, farm: FarmView | None, canvas: Canvas, room: int) -> list[Text]:
    """Return the newest events, one line each; a click opens the pane of events."""
    lines = list(history.story.lines)[: -room - 1 : -1] if room else []
    return [line for each in lines for line in event_lines(each, canvas, whole=False)] or early_events(farm, canvas)


def early_events(farm: FarmView | None, canvas: Canvas) -> list[Text]:
    """Return the events in the FarmView, until the trace arrives."""
    events = () if farm is None else farm.events
    texts = [(each.time_ms, each.text if each.text == each.kind else f"{each.kind}: {each.text}") for each in events]
    return [
        canvas.line((f"  {clock_text(time_ms)}    ", canvas.palette.dim), text) for time_ms, text in reversed(texts)
    ]


def log_pane(state: ViewState, history: History, canvas: Canvas, room: int) -> list[Text]:
    """Return the headings, the part of the log that fits, and the text of the chosen entry."""
    columns = [
        Column(f"{NOT_CHOSEN}INDEX", 10, right=True),
        Column("TERM", 5, right=True),
        Column("TIME", 8),
        Column("TYPE", 15),
        Column("ENTRY", canvas.width),
    ]
    window, dim = entry_window(state, history), canvas.palette.dim
    heading = canvas.heading(columns, canvas.palette.title)
    if not window.items:
        missed = "no loaded entry contains the filter; Esc shows all" if history.entries else "reading the log …"
        return [heading, canvas.line((f"  {missed}", canvas.palette.doubtful))]
    below = _entry_text(window, canvas, room)
    count = entry_rows(window, canvas, room)
    top = window.settled(count, lambda _: 1)
    lines = []
    for place in range(top, min(len(window.items), top + count)):
        each, is_chosen = window.items[place], place == window.chosen
        at = "-" if each.log_time_ms is None else clock_text(each.log_time_ms)
        index = f"{CHOSEN if is_chosen else NOT_CHOSEN}{each.index:>8}"
        line = canvas.row(columns, [index, (str(each.term), dim), (at, dim), each.type, each.text])
        lines.append(aimed(canvas.marked(line) if is_chosen else line, OnEntry(each.index)))
    lines += [Text("", end="") for _ in range(count - len(lines))]
    return [heading, *lines, *below]


def entry_rows(window: Window[EntryLine], canvas: Canvas, room: int) -> int:
    """Return the number of rows that fit between the headings and the text of the chosen entry."""
    return max(1, room - 1 - len(_entry_text(window, canvas, room)))


def _entry_text(window: Window[EntryLine], canvas: Canvas, room: int) -> list[Text]:
    """Return the text of the chosen entry, cut to `ENTRY_LINES_MAX` lines and to a third of the room."""
    if not window.items:
        return []
    entry = window.items[window.chosen]
    parts = textwrap.wrap(f"{entry.index} {entry.type}: {printable(entry.text)}", max(LEAST_WIDTH, canvas.width - 2))
    most = min(ENTRY_LINES_MAX, room // 3 - 1)
    lines = [canvas.line((f"  {each}", canvas.palette.accent)) for each in parts[: max(0, most)]]
    return [Text("", end=""), *lines] if lines else []


def publishing_lines(farm: FarmView | None, canvas: Canvas) -> list[Text]:
    """Return the structures, the candidates with their scores, and the weights."""
    if farm is None:
        return []
    palette = canvas.palette
    section = publishing_section(farm, canvas)
    lines = [] if section.title is None else [section.title]
    lines += section.lines
    columns = [Column("  CANDIDATE", 20), Column("SCORE", 6, right=True), Column("STATE", canvas.width)]
    for each in farm.publishing:
        lines += [Text("", end=""), canvas.heading(columns, palette.title)]
        for one in sorted(each.standings, key=lambda one: (one.raft_id != each.publisher_id, -one.score)):
            state = standing_text(one, "publisher" if one.raft_id == each.publisher_id else "can publish")
            cell: Part = (
                f"{state}, preferred" if one.preferred else state,
                palette.good if one.inability is None else palette.doubtful,
            )
            name = f"  {server_label(one.raft_id, one.name)}"
            lines.append(canvas.row(columns, [name, str(one.score), cell]))
            reasons = [one.choice, score_text(one) if one.parts else ""]
            for reason in filter(None, reasons):
                parts = textwrap.wrap(printable(reason), max(LEAST_WIDTH, canvas.width - _REASON_CELLS))
                lines += [canvas.line((f"{'':{_REASON_CELLS}}{part}", palette.dim)) for part in parts]
    weights = weights_lines(farm.weights, canvas)
    return [*lines, *([Text("", end="")] if weights else []), *weights]


def help_lines(canvas: Canvas) -> list[Text]:
    """Return the keys and their effects, in as many lines as they take."""
    columns = [Column("", HELP_CELLS), Column("", canvas.width)]
    lines = []
    for keys, text in HELP:
        for number, part in enumerate(textwrap.wrap(text, max(LEAST_WIDTH, canvas.width - HELP_CELLS - GAP))):
            lines.append(canvas.row(columns, [("" if number else keys, canvas.palette.title), part]))
    return lines
