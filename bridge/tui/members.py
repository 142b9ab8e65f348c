"""The table of members, and one member in detail.

members_section   one row for each, sorted and filtered; a click on a heading sorts, on a row chooses
member_facts      identity, figures, report, leaves and states of the chosen member
member_charts     the same figures of the last minutes; `farm_charts`: of all members
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from msgspec import UnsetType
from rich.cells import cell_len
from rich.text import Text

from bridge.api.farm_facts import outdated_reports
from bridge.api.printable import clock_text, duration, known, printable, short_address
from bridge.api.view import SHOWN, FarmView, MemberView, ReportView
from bridge.api.words import (
    IN_LAST_REPORT,
    MEMBER_COLUMNS,
    SERVER_FAULT,
    condition_text,
    health_text,
    incarnation_text,
    rtt_text,
    score_text,
    standing_text,
)
from bridge.core.log.figures import FIGURES, Figure, Unit
from bridge.tui.charts import Chart, milliseconds_figure, sparkline
from bridge.tui.history import History, MemberHistory
from bridge.tui.layout import GAP, LEAST_WIDTH, Canvas, Column, Palette, Part, widened
from bridge.tui.sections import (
    CHOSEN,
    NOT_CHOSEN,
    ScreenSection,
    lag_part,
    role_part,
    status_part,
    table_of_members,
)
from bridge.tui.state import ViewState, pattern_of, selected_member, shown_members
from bridge.tui.targets import OnMember, Sort, aimed
from consensus import counted

SPARK_WIDTH: Final = 20
_HEADINGS: Final = {key: each.heading for key, each in MEMBER_COLUMNS.items()}
_FACT_CELLS: Final = 14
ADDRESS_CELLS: Final = 14


def members_section(
    state: ViewState, farm: FarmView, history: History, canvas: Canvas, *, unicode: bool
) -> ScreenSection:
    """Return the table of members."""
    palette = canvas.palette
    followers = {each.raft_id: each for each in farm.raft.followers}
    shown = shown_members(state, farm)
    measured = [value for each in shown for value in history_of(history, each).rtt_ms if value is not None]
    highest_rtt_ms, has_chart = max(measured, default=0.0), canvas.is_wide and bool(measured)
    columns = [
        Column(f"  {_HEADINGS['name']}{_order(Sort.NAME, state)}", 22 if canvas.is_wide else 16, sort=Sort.NAME),
        Column(f"{_HEADINGS['status']}{_order(Sort.STATUS, state)}", 8, sort=Sort.STATUS),
        Column(f"{_HEADINGS['raft']}{_order(Sort.RAFT, state)}", 9, sort=Sort.RAFT),
        Column(_HEADINGS["incarnation"], 5, right=True),
        Column(f"{_HEADINGS['roundTrip']}{_order(Sort.RTT, state)}", 7, right=True, sort=Sort.RTT),
        # Only the leader knows the lags of its followers; a column of dashes takes room from the names.
        *([Column(f"LAG{_order(Sort.LAG, state)}", 5, right=True, sort=Sort.LAG)] if followers else []),
        *([Column(f"RTT, 0 TO {highest_rtt_ms:.0f} MS", SPARK_WIDTH)] if has_chart else []),
    ]
    room = canvas.width - sum(column.width + GAP for column in columns)
    # A truncated address does not help.
    columns.append(Column(_HEADINGS["address"] if room >= ADDRESS_CELLS else "", 21))
    longest = max((cell_len(printable(each.name)) for each in shown), default=0)
    columns = widened(columns, canvas.width, longest + len(CHOSEN) + 1)
    chosen = selected_member(state, farm)
    lines: list[Text] = []
    line_of_chosen = 0
    for each in shown:
        is_chosen = chosen is not None and each.node_id == chosen.node_id
        values = history_of(history, each).rtt_ms
        parts: list[Part] = [
            (f"{CHOSEN if is_chosen else NOT_CHOSEN}{each.name}{'*' if each.is_self else ''}", ""),
            status_part(each, palette),
            role_part(each, farm, palette),
            incarnation_text(each),
            rtt_text(each),
        ]
        if followers:
            parts.append(lag_part(None if each.raft_id is None else followers.get(each.raft_id), palette))
        if has_chart:
            parts.append(sparkline(values, SPARK_WIDTH, unicode=unicode, full=highest_rtt_ms))
        line = canvas.row(columns, [*parts, (known(each.address) if room >= ADDRESS_CELLS else "", palette.dim)])
        if is_chosen:
            line_of_chosen = len(lines)
            line = canvas.marked(line)
        lines.append(aimed(line, OnMember(each.node_id)))
    if not lines:
        missed = f"  no member contains {pattern_of(state)!r}; Esc shows all"
        lines = [canvas.line((missed, palette.doubtful))]
    return table_of_members(canvas.heading(columns, palette.title), lines, line_of_chosen)


def history_of(history: History, member: MemberView) -> MemberHistory:
    """Return the figures of a member; empty ones before its first view."""
    return history.members.get(member.node_id) or MemberHistory()


def _order(column: Sort, state: ViewState) -> str:
    """Return the mark of the sorted column: the lowest value first, or last."""
    if column is not state.sort:
        return ""
    return " v" if state.descending else " ^"


def farm_charts(state: ViewState, farm: FarmView, history: History) -> Iterator[Chart]:
    """Yield charts of the farm and of its members, the most important first: not every screen has room for all."""
    members = [(each.name, history_of(history, each)) for each in shown_members(state, farm) if not each.evicted]
    yield Chart("entries committed per second", history.commits, lambda value: f"{value:.0f}")
    for name, figures in members:
        yield Chart(f"{name}: round trip", figures.rtt_ms, milliseconds_figure)
    for figure in (FIGURES["cpu_percent"], FIGURES["memory_percent"]):
        for name, figures in members:
            yield _chart_of(figure, figures, f"{name}: ")


def member_charts(member: MemberView, history: History) -> Iterator[Chart]:
    """Yield the charts of one member."""
    figures = history_of(history, member)
    yield Chart("round trip", figures.rtt_ms, milliseconds_figure)
    yield Chart("lag, in entries", figures.lag, lambda value: f"{value:.0f}")
    for figure in SHOWN:
        yield _chart_of(figure, figures, "")


def _chart_of(figure: Figure, figures: MemberHistory, prefix: str) -> Chart:
    full = figure.maximum if figure.unit is Unit.PERCENT else None
    return Chart(f"{prefix}{figure.label}", figures.figures[figure.name], figure.text, full)


def member_facts(state: ViewState, farm: FarmView | None, history: History, canvas: Canvas) -> list[Text]:
    """Return the facts about the chosen member, one below the other."""
    member = selected_member(state, farm)
    if member is None or farm is None:
        return [canvas.line(("  no member is chosen; Esc goes back", canvas.palette.doubtful))]
    figures = history_of(history, member)
    report = next((each for each in farm.reports if each.raft_id == member.raft_id), None)
    facts = [*_identity(member, farm), *_figures(member, farm, figures), *_report_facts(report, demo=farm.farm.demo)]
    if report is not None:
        facts += _leaf_facts(report, canvas.palette, is_outdated=report.raft_id in outdated_reports(farm))
    facts += _candidate_facts(member, farm)
    facts += [("states", f"{clock_text(at_ms)} UTC {status.value}", "") for at_ms, status in reversed(figures.states)]
    lines = [canvas.line((f" {member.name}", canvas.palette.title))]
    previous = ""
    for name, value, style in facts:
        label = "" if name == previous else f"  {name}"
        for number, part in enumerate(textwrap.wrap(printable(value), max(LEAST_WIDTH, canvas.width - _FACT_CELLS))):
            lines.append(canvas.line((f"{'' if number else label:<{_FACT_CELLS}}", canvas.palette.dim), (part, style)))
        previous = name
    return lines


Fact: TypeAlias = tuple[str, str, str]
"""A label, a text, and its style."""


def _identity(member: MemberView, farm: FarmView) -> list[Fact]:
    leads = member.raft_id is not None and member.raft_id == farm.raft.leader_id
    role = "leader" if leads else member.server_role.value
    facts = [
        ("identity", member.node_id),
        ("status", f"{member.status.value}, incarnation {incarnation_text(member)}"),
        ("server", f"{role}, Raft id {known(member.raft_id)}"),
        ("gossip", f"{known(member.address)}, {known(member.peer_count)} of {known(member.capacity)} peers"),
        ("Raft", known(member.endpoint)),
        ("certificate", known(member.certificate)),
    ]
    return [(name, value, "") for name, value in facts]


def _figures(member: MemberView, farm: FarmView, figures: MemberHistory) -> list[Fact]:
    lag = next((each.lag_entries for each in farm.raft.followers if each.raft_id == member.raft_id), None)
    lines = [("round trip", rtt_text(member)), ("lag", "-" if lag is None else counted(lag, "entry", "entries"))]
    lines += [(each.label, each.text(_last(figures.figures[each.name]))) for each in SHOWN]
    return [(name, value, "") for name, value in lines]


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def _report_facts(report: ReportView | None, *, demo: bool) -> list[Fact]:
    if report is None:
        return [("report", "none", "")]
    health = f"{report.healthy_destinations} of {counted(report.destinations, 'leaf', 'leaves')} healthy"
    # A file replaces the router in a demonstration.
    router = "no router (demonstration)" if demo else "router attached" if report.attached else "no router"
    clock = ", clock off" if report.clock_off else ""
    age = f"{duration(report.age_ms)} old{' (stale)' if report.stale else ''}"
    return [("report", f"{age}, {health}, {router}{clock}", "")]


def _leaf_facts(report: ReportView, palette: Palette, *, is_outdated: bool) -> list[Fact]:
    """Return each leaf, and below it the conditions of its health: which one fails, since when, and why."""
    facts: list[Fact] = []
    prefix, lost = (IN_LAST_REPORT, (SERVER_FAULT,)) if is_outdated else ("", ())
    for leaf in report.leaves:
        is_healthy = leaf.healthy and not is_outdated
        words = [health_text((*lost, *(leaf.faults or ())), healthy=is_healthy), f"load {leaf.load}"]
        words += ["excluded"] if leaf.excluded else []
        style = "" if is_healthy else palette.bad
        facts.append(("leaf", f"{short_address(leaf.destination)} {', '.join(words)}", style))
        conditions = () if isinstance(leaf.conditions, UnsetType) else leaf.conditions
        facts += [
            ("leaf", f"  {prefix}{condition_text(each)}", "" if each.holds else palette.bad) for each in conditions
        ]
    return facts


def _candidate_facts(member: MemberView, farm: FarmView) -> list[Fact]:
    """Return for each master the reason why the member publishes it or not, and the member's score with its parts."""
    facts: list[Fact] = []
    for each in farm.publishing:
        standing = next((one for one in each.standings if one.raft_id == member.raft_id), None)
        if standing is not None:
            facts.append(
                (
                    "publishes",
                    f"{short_address(each.master)}: {standing.choice or standing_text(standing, 'can publish')}",
                    "",
                )
            )
            facts += [("score", score_text(standing).removeprefix("score "), "")] if standing.parts else []
    return facts
