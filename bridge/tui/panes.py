"""The panes of the live view as lines: pure, of exactly the given size, so that nothing ever scrolls or wraps.

    header     the verdict first, then the node and Raft                        3 lines
    body       farm: alarms, members, publications, take-over, events          the rest
               detail of a member │ events │ log │ publishing and weights │ help
    footer     a question or a notice, whole; the filter while it is typed; or
               the panes with their keys, the shown one in reverse              1 line or more, one more of a local farm

From 150 columns on the farm's pane has two columns: members and publications on the left, with graphs of the members if
lines are left, the last take-over and events on the right. Below that width they are stacked, and the less important
ones give way first.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from bridge.api.alarms import by_gravity
from bridge.api.events import EventStory, event_sentence, story_line
from bridge.api.printable import printable
from bridge.api.take_over import Step, last_take_over
from bridge.api.view import SHOWN, AlarmView, FarmView, LocalFarmView, MemberView, ReportView
from bridge.api.words import clock_text, duration, health_text, incarnation_text, known, rtt_text, standing_text
from bridge.core.log.figures import FIGURES, Unit
from bridge.core.membership.admission import server_label
from bridge.tui.history import EntryLine, History, MemberHistory, graph, sparkline
from bridge.tui.layout import (
    COLORS,
    GAP,
    MONOCHROME,
    Canvas,
    Column,
    Part,
    Want,
    dimmed,
    marked,
    rows,
    share,
    shortened,
    widened,
)
from bridge.tui.sections import (
    CHOSEN,
    NOT_CHOSEN,
    TITLE,
    ScreenSection,
    alarms_section,
    farm_header,
    lag_part,
    local_header,
    processes_section,
    publishing_section,
    role_part,
    status_part,
    table_of_members,
    weights_lines,
    weights_section,
)
from bridge.tui.state import Pane, Question, Sort, ViewState, selected_member, shown_members

TWO_COLUMNS: Final = 150
LEAST_WIDTH: Final = 20
LEAST_HEIGHT: Final = 5
SPARK_WIDTH: Final = 20
GRAPH_LINES: Final = 3
_GUTTER: Final = " │ "
_TABS: Final = (
    (Pane.FARM, "f farm"),
    (Pane.EVENTS, "e events"),
    (Pane.LOG, "l log"),
    (Pane.PUBLISHING, "p publish"),
    (Pane.HELP, "? help"),
)
KEYS: Final = (
    " Enter detail  / filter  q quit  s sort  T lead  X exclude  V evict  L leave",
    " / s q  T X V L change the farm",
    " / s q T X V L",
)
"""The other keys: the longest text that fits. A key that is off the screen is not found."""
HELP_CELLS: Final = 14
HELP: Final = (
    ("f e l p ?", "farm, events, log, publishing, this help; Tab and arrows change the pane"),
    ("up down, j k", "choose a member, or scroll a text; also PgUp, PgDn, Home and End"),
    ("Enter", "details of the chosen member; Esc closes them"),
    ("/", "filter members, events and entries by a text. Enter keeps the filter, Esc removes it"),
    (
        "s, S",
        "sort members by name, status, round trip, lag, Raft; S reverses the order, which ^ or v in the heading shows",
    ),
    ("T", "hand leadership to the chosen member"),
    ("X", "exclude the leaves of the chosen member from every structure, or include them again"),
    ("V", "evict the chosen member permanently, and replace all keys"),
    ("L", "make the contacted node leave the farm and stop"),
    ("q", "end the view"),
    ("", "Changes of the farm prompt first: y confirms, every other key cancels. V: type the full name."),
    ("", "Colors only repeat the words on the screen."),
)


@dataclass(frozen=True, slots=True)
class ScreenData:
    """All data that can be drawn. `local`: the processes of a local farm, for `up`."""

    farm: FarmView | None
    history: History
    reason: str = ""
    """The reason why there is no view, or no view after `farm`."""
    local: LocalFarmView | None = None

    @property
    def is_old(self) -> bool:
        """Return True if no node answers any more: the picture is the last one."""
        return self.farm is not None and self.local is None and bool(self.reason)


def draw(
    state: ViewState, data: ScreenData, width: int, height: int, *, color: bool = True, unicode: bool = True
) -> Group:
    """Return the whole screen."""
    canvas = Canvas(max(width, LEAST_WIDTH), COLORS if color else MONOCHROME)
    height = max(height, LEAST_HEIGHT)
    lines = _header(data, canvas)
    footer = [*_start_again(data, canvas), *_footer(state, canvas)]
    room = _room(lines, footer, height)
    body = _body(state, data, canvas, room, unicode=unicode)[:room]
    if data.is_old:
        body = [dimmed(line, canvas.palette.dim) for line in body]
    lines = [*lines, *body, *(Text("", end="") for _ in range(room - len(body)))][: max(1, height - len(footer))]
    lines += footer[: height - len(lines)]
    return Group(Text("\n", end="").join(lines))


def scroll_limit(state: ViewState, data: ScreenData, width: int, height: int) -> int:
    """Return the number of lines that a text can be moved until its last line is at the bottom of this screen."""
    canvas = Canvas(max(width, LEAST_WIDTH), MONOCHROME)
    fixed, moving = _text_lines(state, data, canvas)
    footer = [*_start_again(data, canvas), *_footer(state, canvas)]
    room = _room(_header(data, canvas), footer, max(height, LEAST_HEIGHT)) - len(fixed)
    return max(0, len(moving) - room)


def _room(header: Sequence[Text], footer: Sequence[Text], height: int) -> int:
    return max(0, height - len(header) - len(footer))


def _header(data: ScreenData, canvas: Canvas) -> list[Text]:
    if data.local is not None:
        return local_header(data.local, canvas)
    if data.farm is None:
        text = data.reason or "querying a node …"
        return [canvas.line(TITLE), *(canvas.line((each, canvas.palette.doubtful)) for each in _wrapped(text, canvas))]
    if data.is_old:
        since = f"not live since {clock_text(data.farm.taken_at_ms)} UTC: {data.reason}. The picture below is old"
        style = f"{canvas.palette.title} {canvas.palette.bad}".strip()
        lines = [canvas.line((each, style)) for each in _wrapped(since, canvas)]
        return [*lines, *(dimmed(line, canvas.palette.dim) for line in farm_header(data.farm, canvas))]
    return farm_header(data.farm, canvas)


def _footer(state: ViewState, canvas: Canvas) -> list[Text]:
    palette = canvas.palette
    if state.question is not None:
        return _question_lines(state.question, state.answer, canvas)
    if state.editing is not None:
        return [canvas.line((" / ", palette.title), state.editing, ("▏", palette.accent))]
    if state.notice:
        return [canvas.line((f" {each}", palette.doubtful)) for each in _wrapped(state.notice, canvas)]
    shown = Pane.FARM if state.pane is Pane.DETAIL else state.pane
    parts: list[Part] = [(f" {text} ", "reverse" if pane is shown else palette.dim) for pane, text in _TABS]
    if state.filter:
        return [canvas.line(*parts, (f" only: {state.filter} (Esc: all)", palette.doubtful))]
    room = canvas.width - sum(cell_len(part[0]) for part in parts)
    keys = next((each for each in KEYS if cell_len(each) <= room), KEYS[-1])
    return [canvas.line(*parts, (keys, palette.dim))]


def _question_lines(question: Question, answer: str, canvas: Canvas) -> list[Text]:
    """Return the whole question, and the keys that answer it: an operator must not confirm a truncated text."""
    palette = canvas.palette
    style = f"reverse {palette.title}"
    lines = [canvas.line((f" {each} ", style)) for each in _wrapped(question.text, canvas)]
    if question.name:
        name = shortened(question.name, max(LEAST_WIDTH, canvas.width // 2))
        prompt: list[Part] = [
            f" Type {name} and Enter; Esc: no ",
            (f"> {answer}", palette.title),
            ("▏", palette.accent),
        ]
    else:
        prompt = [" y: yes   any other key: no"]
    return [*lines, canvas.line(*prompt)]


def _wrapped(text: str, canvas: Canvas) -> list[str]:
    """Return the text in as many lines as it takes, with a blank at both ends."""
    return textwrap.wrap(printable(text), max(LEAST_WIDTH, canvas.width) - 2) or [""]


def _start_again(data: ScreenData, canvas: Canvas) -> list[Text]:
    """Return an experiment for a local farm: the command that starts the killed node, or the first."""
    farm = data.local
    if farm is None:
        return []
    names = [each.name for each in farm.processes if not each.running] + [each.name for each in farm.processes]
    name = names[0] if names else "node-1"
    again = f" after kill -9: {farm.program} run --config {farm.state_directory}/{name}/node.toml"
    return [canvas.line((again, canvas.palette.dim))]


def _body(state: ViewState, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    match state.pane:
        case Pane.FARM:
            return _farm_body(state, data, canvas, room, unicode=unicode)
        case Pane.DETAIL:
            return rows(_detail(state, data, canvas, unicode=unicode), room, canvas.palette.dim)
        case _:
            fixed, moving = _text_lines(state, data, canvas)
            first = min(state.offset, max(0, len(moving) - room + len(fixed)))
            return [*fixed, *moving[first:]][:room]


def _text_lines(state: ViewState, data: ScreenData, canvas: Canvas) -> tuple[list[Text], list[Text]]:
    """Return the fixed and the moving lines of a pane that is read as a text."""
    match state.pane:
        case Pane.FARM | Pane.DETAIL:
            return [], []
        case Pane.EVENTS:
            return [], _recent(data, _pattern(state), canvas, whole=True)
        case Pane.LOG:
            heading, *entries = _entry_lines(data.history.entries, _pattern(state), canvas)
            return [heading], entries
        case Pane.PUBLISHING:
            return [], _publishing_lines(data, canvas)
        case Pane.HELP:
            return [], _help_lines(canvas)
        case _:
            assert_never(state.pane)


def _help_lines(canvas: Canvas) -> list[Text]:
    """Return the keys and their effects, in as many lines as they take."""
    columns = [Column("", HELP_CELLS), Column("", canvas.width)]
    lines = []
    for keys, text in HELP:
        for number, part in enumerate(textwrap.wrap(text, max(LEAST_WIDTH, canvas.width - HELP_CELLS - GAP))):
            lines.append(canvas.row(columns, [("" if number else keys, canvas.palette.title), part]))
    return lines


def _pattern(state: ViewState) -> str:
    return (state.filter if state.editing is None else state.editing).lower()


def _farm_body(state: ViewState, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    alarms = alarms_section(_alarms(data), canvas)
    weights = ScreenSection(None, []) if data.farm is None else weights_section(data.farm.weights, canvas)
    if canvas.width < TWO_COLUMNS:
        left = _left(state, data, canvas, unicode=unicode)
        return _stacked([alarms, *left, weights, *_right(data, canvas)], canvas, room)
    above = rows(alarms.lines, max(1, room // 3), canvas.palette.dim) if alarms.lines else []
    above += weights.lines
    narrow = Canvas((canvas.width - len(_GUTTER)) * 3 // 5, canvas.palette)
    other = Canvas(canvas.width - narrow.width - len(_GUTTER), canvas.palette)
    below = room - len(above)
    lefts = _stacked(_left(state, data, narrow, unicode=unicode), narrow, below)
    lefts += _graphs(state, data, narrow, below - len(lefts), unicode=unicode)
    rights = _stacked(_right(data, other), other, below)
    return [*above, *_beside(lefts, rights, narrow)]


def _graphs(state: ViewState, data: ScreenData, canvas: Canvas, room: int, *, unicode: bool) -> list[Text]:
    """Return round trip and processor of as many members as there is room for, each with its scale; else no line."""
    members = [] if data.farm is None else [each for each in shown_members(state, data.farm) if not each.evicted]
    count = min(len(members), (room - 1) // (1 + GRAPH_LINES))
    if count < 1:
        return []
    dim, width = canvas.palette.dim, (canvas.width - len(NOT_CHOSEN) - GAP) // 2
    columns = [Column("", len(NOT_CHOSEN) - GAP), Column("", width), Column("", width)]
    lines = [canvas.line(("GRAPHS", canvas.palette.title), (" last two minutes, the newest on the right", dim))]
    cpu = FIGURES["cpu_percent"]
    for each in members[:count]:
        figures = _of(data.history, each)
        highest = max((value for value in figures.rtt_ms if value is not None), default=0.0)
        rtt = "self" if each.is_self else f"round trip, 0 to {highest:.1f} ms"
        lines.append(
            canvas.row(columns, ["", f"{each.name}: {rtt}", (f"{cpu.label}, 0 to {cpu.text(cpu.maximum)}", dim)])
        )
        rtts = graph(figures.rtt_ms, width - 1, GRAPH_LINES, unicode=unicode)
        loads = graph(figures.figures[cpu.name], width - 1, GRAPH_LINES, unicode=unicode, full=cpu.maximum)
        lines += [canvas.row(columns, ["", *pair]) for pair in zip(rtts, loads, strict=True)]
    return lines


def _beside(lefts: Sequence[Text], rights: Sequence[Text], left: Canvas) -> list[Text]:
    """Return two columns of lines as one."""
    blank = Text("", end="")
    joined = []
    for at in range(max(len(lefts), len(rights))):
        # The style of a whole line, such as the chosen one, ends with it: the gutter does not have it.
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
        sections = [_members(state, data.farm, data.history, canvas, unicode=unicode)]
    else:
        sections = []
    return sections if data.farm is None else [*sections, publishing_section(data.farm, canvas)]


def _right(data: ScreenData, canvas: Canvas) -> list[ScreenSection]:
    title = canvas.line(("EVENTS", canvas.palette.title), (" newest first, UTC", canvas.palette.dim))
    events = ScreenSection(title, _recent(data, "", canvas), counted=False)
    return [_take_over(last_take_over(tuple(data.history.events)), canvas), events]


def _stacked(sections: Sequence[ScreenSection], canvas: Canvas, room: int) -> list[Text]:
    """Return sections above one another: each gets a few lines, then its wanted lines, in their order."""
    wants = []
    for section in sections:
        titles = 0 if section.title is None else 1
        full = titles + len(section.lines) if section.lines else 0
        wants.append(Want(min(full, titles + section.least), full))
    lines: list[Text] = []
    for section, given in zip(sections, share(room, wants), strict=True):
        left = given
        if left > 0 and section.title is not None:
            lines.append(section.title)
            left -= 1
        lines += (
            rows(section.lines, left, canvas.palette.dim, section.chosen) if section.counted else section.lines[:left]
        )
    return lines


def _members(state: ViewState, farm: FarmView, history: History, canvas: Canvas, *, unicode: bool) -> ScreenSection:
    palette = canvas.palette
    followers = {each.raft_id: each for each in farm.raft.followers}
    # Only the leader has what its followers lack; a column of dashes takes room from the names.
    lag = [Column(f"LAG{_order(Sort.LAG, state)}", 5, right=True)] if followers else []
    shown = shown_members(state, farm)
    highest_rtt_ms = max(
        (value for each in shown for value in _of(history, each).rtt_ms if value is not None), default=0.0
    )
    columns = [
        Column(f"  MEMBER{_order(Sort.NAME, state)}", 22 if canvas.is_wide else 16),
        Column(f"STATUS{_order(Sort.STATUS, state)}", 8),
        Column(f"RAFT{_order(Sort.RAFT, state)}", 9),
        Column("INC.", 5, right=True),
        Column(f"RTT{_order(Sort.RTT, state)}", 7, right=True),
        *lag,
        *([Column(f"RTT, 0 TO {highest_rtt_ms:.0f} MS", SPARK_WIDTH)] if canvas.is_wide else []),
        Column("ADDRESS", 21),
    ]
    longest = max((cell_len(printable(each.name)) for each in shown), default=0)
    columns = widened(columns, canvas.width, longest + len(CHOSEN) + 1)
    chosen = selected_member(state, farm)
    lines: list[Text] = []
    line_of_chosen = 0
    for each in shown:
        mark = CHOSEN if chosen is not None and each.node_id == chosen.node_id else NOT_CHOSEN
        values = _of(history, each).rtt_ms
        spark: list[Part] = (
            [sparkline(values, SPARK_WIDTH, unicode=unicode, full=highest_rtt_ms)] if canvas.is_wide else []
        )
        parts: list[Part] = [
            (f"{mark}{each.name}{'*' if each.is_self else ''}", palette.title if mark == CHOSEN else ""),
            status_part(each, palette),
            role_part(each, farm, palette),
            incarnation_text(each),
            rtt_text(each),
            *([lag_part(None if each.raft_id is None else followers.get(each.raft_id), palette)] if lag else []),
            *spark,
            (known(each.address), palette.dim),
        ]
        line = canvas.row(columns, parts)
        if mark == CHOSEN:
            line_of_chosen = len(lines)
            line = marked(line)
        lines.append(line)
    if not lines:
        missed = f"  no member contains {_pattern(state)!r}; Esc shows all"
        lines = [canvas.line((missed, palette.doubtful))]
    return table_of_members(canvas.heading(columns, palette.title), lines, line_of_chosen)


def _of(history: History, member: MemberView) -> MemberHistory:
    return history.members.get(member.node_id) or MemberHistory()


def _order(column: Sort, state: ViewState) -> str:
    """Return the mark of the sorted column: the lowest value first, or last."""
    if column is not state.sort:
        return ""
    return " v" if state.descending else " ^"


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


def _recent(data: ScreenData, pattern: str, canvas: Canvas, *, whole: bool = False) -> list[Text]:
    """Return events, the newest first. Before the trace arrives, the view has some of them.

    `whole`: in as many lines as they take; otherwise each in one.
    """
    story = EventStory()
    shown = [
        (each.time_ms, story_line(each))
        for each in data.history.events
        if story.is_new(event_sentence(each) or f"{each.node} {each.kind}", each.time_ms)
    ]
    if not shown and data.farm is not None:
        shown = [
            (each.time_ms, each.kind if each.text == each.kind else f"{each.kind}: {each.text}")
            for each in data.farm.events
        ]
    lines = []
    for time_ms, text in reversed(shown):
        if pattern in text.lower():
            at = f"  {clock_text(time_ms)} "
            room = max(LEAST_WIDTH, canvas.width - len(at))
            parts = textwrap.wrap(printable(text), room) if whole and cell_len(text) > room else [text]
            lines.append(canvas.line((at, canvas.palette.dim), parts[0]))
            lines += [canvas.line(" " * (len(at) + 2), each) for each in parts[1:]]
    return lines


def _entry_lines(entries: Sequence[EntryLine], pattern: str, canvas: Canvas) -> list[Text]:
    """Return the newest entry first."""
    columns = [Column("INDEX", 8, right=True), Column("TERM", 5, right=True), Column("TIME", 8), Column("TYPE", 15)]
    columns.append(Column("ENTRY", canvas.width))
    dim = canvas.palette.dim
    lines = [canvas.heading(columns, canvas.palette.title)]
    for each in reversed(entries):
        if pattern not in f"{each.type} {each.text}".lower():
            continue
        at = "-" if each.log_time_ms is None else clock_text(each.log_time_ms)
        lines.append(canvas.row(columns, [str(each.index), (str(each.term), dim), (at, dim), each.type, each.text]))
    return lines


def _publishing_lines(data: ScreenData, canvas: Canvas) -> list[Text]:
    farm, palette = data.farm, canvas.palette
    if farm is None:
        return []
    section = publishing_section(farm, canvas)
    lines = [] if section.title is None else [section.title]
    lines += section.lines
    columns = [Column("  CANDIDATE", 20), Column("SCORE", 6, right=True), Column("PREFERRED", 9)]
    columns.append(Column("", canvas.width))
    for each in farm.publishing:
        lines += [Text("", end=""), canvas.heading(columns, palette.title)]
        for one in sorted(each.standings, key=lambda standing: -standing.score):
            cannot: Part = (
                standing_text(one, "can publish"),
                palette.good if one.inability is None else palette.doubtful,
            )
            name = f"  {server_label(one.raft_id, one.name)}"
            lines.append(canvas.row(columns, [name, str(one.score), "yes" if one.preferred else "", cannot]))
    weights = weights_lines(farm.weights, canvas)
    return [*lines, *([Text("", end="")] if weights else []), *weights]


def _detail(state: ViewState, data: ScreenData, canvas: Canvas, *, unicode: bool) -> list[Text]:
    member = selected_member(state, data.farm)
    if member is None or data.farm is None:
        return [canvas.line(("  no member is chosen; Esc goes back", canvas.palette.doubtful))]
    history = _of(data.history, member)
    report = next((each for each in data.farm.reports if each.raft_id == member.raft_id), None)
    facts = [*_identity(member, data.farm), *_figures(member, data.farm, history, canvas, unicode=unicode)]
    facts += _report_facts(report, demo=data.farm.farm.demo)
    facts += [("states", f"{clock_text(at_ms)} UTC {status.value}") for at_ms, status in reversed(history.states)]
    columns = [Column("", 14), Column("", canvas.width)]
    lines = [canvas.line((f" {member.name}", canvas.palette.title))]
    previous = ""
    for name, value in facts:
        lines.append(canvas.row(columns, [("" if name == previous else f"  {name}", canvas.palette.dim), value]))
        previous = name
    return lines


def _identity(member: MemberView, farm: FarmView) -> list[tuple[str, str]]:
    leads = member.raft_id is not None and member.raft_id == farm.raft.leader_id
    role = "leader" if leads else member.server_role.value
    return [
        ("identity", member.node_id),
        ("status", f"{member.status.value}, incarnation {incarnation_text(member)}"),
        ("server", f"{role}, Raft id {known(member.raft_id)}"),
        ("gossip", f"{known(member.address)}, {known(member.peer_count)} of {known(member.capacity)} peers"),
        ("Raft", known(member.endpoint)),
        ("certificate", known(member.certificate)),
    ]


def _figures(
    member: MemberView, farm: FarmView, history: MemberHistory, canvas: Canvas, *, unicode: bool
) -> list[tuple[str, str]]:
    width = max(SPARK_WIDTH, min(60, canvas.width - 40))
    lag = next((each.lag_entries for each in farm.raft.followers if each.raft_id == member.raft_id), None)

    def line(values: Sequence[float | None], now: str, full: float | None = None) -> str:
        return f"{now:>10}  {sparkline(values, width, unicode=unicode, full=full)}"

    lines = [("round trip", line(history.rtt_ms, rtt_text(member))), ("lag", line(history.lag, known(lag)))]
    for figure in SHOWN:
        values = history.figures[figure.name]
        full = figure.maximum if figure.unit is Unit.PERCENT else None
        lines.append((figure.label, line(values, figure.text(values[-1] if values else None), full)))
    return lines


def _report_facts(report: ReportView | None, *, demo: bool) -> list[tuple[str, str]]:
    if report is None:
        return [("report", "none")]
    health = f"{report.healthy_destinations} of {report.destinations} leaves healthy"
    # A file replaces the router in a demonstration.
    router = "no router (demonstration)" if demo else "router attached" if report.attached else "no router"
    clock = ", clock off" if report.clock_off else ""
    age = f"{duration(report.age_ms)} old{' (stale)' if report.stale else ''}"
    facts = [("report", f"{age}, {health}, {router}{clock}")]
    facts.append(
        ("", "is the publisher" if report.publishing else f"{'can' if report.can_publish else 'cannot'} publish")
    )
    for leaf in report.leaves:
        words = [health_text(leaf.faults, healthy=leaf.healthy), f"load {leaf.load}"]
        words += ["excluded"] if leaf.excluded else []
        facts.append(("leaf", f"{', '.join(words)}: {leaf.destination}"))
    return facts
