"""The sections of the live view: each turns its part of a FarmView into lines.

Color only repeats a word (`alive`, `dead`, `leader`, `healthy`). So the view reads the same on a monochrome terminal,
with NO_COLOR, and for eyes that do not distinguish red from green.
"""

import textwrap
from collections.abc import Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from bridge.api.printable import clock_text, duration, known, printable, short_address
from bridge.api.view import (
    AlarmView,
    FarmView,
    FollowerView,
    LocalFarmView,
    MemberView,
    MetaEntryView,
    ProcessView,
    PublishingView,
    RaftRole,
    ServerRole,
    Severity,
    VerdictView,
    WeightsView,
    best_view,
    counted_members,
)
from bridge.api.words import MEMBER_COLUMNS, health_text, incarnation_text, rtt_text
from bridge.core.formation.member import MemberStatus
from bridge.core.membership.admission import server_label
from bridge.tui.layout import GAP, LEAST_WIDTH, Canvas, Column, Palette, Part, shortened, widened
from bridge.tui.targets import OnMember, aimed
from consensus import counted

TWO_ALARMS = 4
VERDICT_LINES = 3
REMEDY = "→ "
"""Text before the remedy of an alarm."""
ALARM_LINES, REMEDY_LINES = 2, 8
"""Maximum number of lines for the text of an alarm, and for its remedy."""
LEAVES_WIDTH = 72
"""Least width of a table of leaves with the end of each entry; a narrower table needs this room for the health."""
SMALL_FARM = 5
"""Number of members that stay in sight before publishing and events get more than their least number of lines."""
PUBLISHER_AND_ENTRY = 4
"""Number of lines for the publisher, the headings, one entry, and the number of further entries."""
NAME_CELLS = 20
"""Cells of a name in a line of 80 cells; in a wider line, a quarter of the line."""
TITLE = (" garlic farm ", "reverse bold")
CHOSEN, NOT_CHOSEN = "▸ ", "  "
"""Marks before the name of a member. The chosen line is also reversed, but not every terminal shows this."""
_CONTINUED = " \\"
"""End of a line of a command that continues in the next line."""


class ScreenSection(Struct, frozen=True):
    """A title line, or none, and the lines below it."""

    title: Text | None
    lines: list[Text]
    counted: bool = True
    """True to show the number of omitted lines."""
    chosen: int = 0
    """The line that stays in sight."""
    least: int = 3
    """Smallest number of useful lines."""


def role_style(role: RaftRole, palette: Palette) -> str:
    """Return the style of a role."""
    return {RaftRole.LEADER: palette.accent, RaftRole.CANDIDATE: palette.doubtful}.get(role, "")


def severity_style(severity: Severity, palette: Palette) -> str:
    """Return the style of a severity; empty for the normal state."""
    return {Severity.OK: "", Severity.WARNING: palette.doubtful, Severity.CRITICAL: palette.bad}[severity]


def severity_mark(severity: Severity) -> str:
    """Return the signs before a text, which mean the same as its color."""
    return {Severity.OK: "", Severity.WARNING: "! ", Severity.CRITICAL: "!! "}[severity]


def verdict_lines(verdict: VerdictView, canvas: Canvas) -> list[Text]:
    """Return the complete verdict: a narrow screen must not cut off the number of servers that may fail."""
    palette = canvas.palette
    style = f"{palette.title} {severity_style(verdict.severity, palette) or palette.good}".strip()
    text = printable(f"{severity_mark(verdict.severity)}{verdict.text}")
    lines = textwrap.wrap(text, canvas.width, max_lines=VERDICT_LINES, placeholder=" …") or [""]
    return [canvas.line((each, style)) for each in lines]


def farm_header(view: FarmView, canvas: Canvas) -> list[Text]:
    """Return the verdict, the node with its farm, and the state of Raft: three lines, or more for a long verdict."""
    node, farm, palette = view.node, view.farm, canvas.palette
    counted = counted_members(view)
    alive = sum(member.status is MemberStatus.ALIVE for member in counted)
    first = canvas.line(
        TITLE,
        (f" {farm.cluster} ", palette.title),
        f"{farm.label}  ",
        (_in_line(node.name, canvas), palette.title),
        f" {node.phase.value}, up {duration(node.uptime_ms)}, ",
        (f"{alive}/{len(counted)} alive", palette.good if alive == len(counted) else palette.doubtful),
        ("  DEMO" if farm.demo else "", palette.doubtful),
    )
    return [*verdict_lines(view.verdict, canvas), first, raft_line(view, canvas)]


def _in_line(name: str, canvas: Canvas) -> str:
    """Return a name that leaves room for the next texts in its line."""
    return shortened(name, max(NAME_CELLS, canvas.width // 4))


def raft_line(view: FarmView, canvas: Canvas) -> Text:
    """Return the leader, and the progress of the log."""
    raft, palette = view.raft, canvas.palette
    if raft.role is RaftRole.NONE:
        founders = counted(view.farm.expect, "node creates", "nodes create")
        waits = f"not created: {view.node.phase.value}, {founders} this farm"
        return canvas.line(("RAFT ", palette.title), (waits, palette.doubtful))
    leader = (f"no leader, this node is a {raft.role.value}", palette.bad)
    if raft.leader_id is not None:
        leader = (f"{_in_line(server_label(raft.leader_id, raft.leader_name), canvas)} leads", palette.accent)
    # Without a leader, log time is only this node's estimate, which would look like an agreed time.
    log_time_ms = None if raft.leader_id is None else raft.log_time_ms
    return canvas.line(
        ("RAFT ", palette.title),
        leader,
        f", term {raft.term}, commit {raft.commit_index}/{raft.last_index}, applied {raft.applied_index}",
        "" if log_time_ms is None else f", log time {clock_text(log_time_ms)}",
    )


def status_part(member: MemberView, palette: Palette) -> Part:
    """Return the status of a member in gossip."""
    match member.status:
        case MemberStatus.ALIVE:
            style = palette.good
        case MemberStatus.SUSPECT:
            style = palette.doubtful
        case MemberStatus.DEAD | MemberStatus.LEFT:
            style = palette.bad
    return member.status.value, style


def role_part(member: MemberView, view: FarmView, palette: Palette) -> Part:
    """Return a member's Raft id, and its role in the group."""
    if member.evicted:
        return "evicted", palette.bad
    if member.raft_id is None:
        return "-", palette.dim
    if member.raft_id == view.raft.leader_id:
        return f"{member.raft_id} leader", palette.accent
    if member.server_role is ServerRole.NONE:
        return str(member.raft_id), palette.dim
    removed = member.server_role is ServerRole.REMOVED
    return f"{member.raft_id} {member.server_role.value}", palette.dim if removed else ""


def lag_part(follower: FollowerView | None, palette: Palette) -> Part:
    """Return the number of entries that a follower lacks."""
    if follower is None:
        return "-", palette.dim
    if follower.last_contact_ms is None or follower.lag_entries is None:
        return "?", palette.bad
    return str(follower.lag_entries), palette.good if follower.lag_entries == 0 else palette.doubtful


def local_header(farm: LocalFarmView, canvas: Canvas) -> list[Text]:
    """Return the verdict, the local farm, the command of a client, and the state of Raft."""
    palette = canvas.palette
    running = sum(process.running for process in farm.processes)
    first = canvas.line(
        TITLE,
        (f" {running}/{counted(len(farm.processes), 'node')} running", palette.title),
        f" in {farm.state_directory}  ",
        (farm.notice, palette.doubtful),
    )
    best = best_view(farm)
    if best is None:
        text = "starting…" if running or not farm.processes else "No node runs: this farm does not publish"
        return [canvas.line((text, palette.doubtful)), first]
    return [*verdict_lines(best.verdict, canvas), first, *_client_lines(farm.client, canvas), raft_line(best, canvas)]


def _client_lines(command: str, canvas: Canvas) -> list[Text]:
    """Return a complete command. The user copies it, so a line that continues ends with a backslash."""
    lines = textwrap.wrap(
        f"TRY {command}", canvas.width - len(_CONTINUED), subsequent_indent="    ", break_on_hyphens=False
    )
    parts = [*(f"{each}{_CONTINUED}" for each in lines[:-1]), *lines[-1:]] if command else []
    return [canvas.line((each, canvas.palette.accent)) for each in parts]


def processes_section(
    farm: LocalFarmView, canvas: Canvas, order: Sequence[str] = (), chosen: str | None = None
) -> ScreenSection:
    """Return every process of a local farm, with the data of its node and of the best view.

    `order` has the names of members as they are sorted; other names come last.
    """
    columns = [
        Column("  NODE", 20 if canvas.is_wide else 10),
        Column("PID", 7, right=True),
        Column(MEMBER_COLUMNS["raft"].heading, 10),
        Column("TERM", 4, right=True),
        Column("COMMIT", 7, right=True),
        Column("LAG", 5, right=True),
        Column("GOSSIP", 7),
        Column(MEMBER_COLUMNS["incarnation"].heading, 5, right=True),
        Column(MEMBER_COLUMNS["roundTrip"].heading, 7, right=True),
        Column(MEMBER_COLUMNS["peers"].heading, 8),
    ]
    best = best_view(farm)
    columns = widened(columns, canvas.width, max((len(each.name) for each in farm.processes), default=0) + len(CHOSEN))
    members = {} if best is None else {each.name: each for each in reversed(best.members)}
    followers = {} if best is None else {each.raft_id: each for each in best.raft.followers}
    lines: list[Text] = []
    places = {name: place for place, name in enumerate(order)}
    line_of_chosen = 0
    for process in sorted(farm.processes, key=lambda each: places.get(each.name, len(places))):
        member = members.get(process.name)
        follower = None if member is None or member.raft_id is None else followers.get(member.raft_id)
        if process.running:
            parts, shape = _process_parts(process, member, follower, canvas.palette), columns
        else:
            parts = _stopped_parts(process, member, canvas.palette)
            shape = [*columns[:3], Column("", canvas.width)]
        is_chosen = process.name == chosen
        lines.append(canvas.row(shape, [f"{CHOSEN if is_chosen else NOT_CHOSEN}{process.name}", *parts]))
        if is_chosen:
            line_of_chosen = len(lines) - 1
            lines[-1] = canvas.marked(lines[-1])
        if member is not None:
            lines[-1] = aimed(lines[-1], OnMember(member.node_id))
    return table_of_members(canvas.heading(columns, canvas.palette.title), lines, line_of_chosen)


def table_of_members(heading: Text, lines: list[Text], chosen: int) -> ScreenSection:
    """Return the table of members or processes; in a small farm it is complete before other sections grow."""
    return ScreenSection(heading, lines, chosen=chosen, least=min(max(len(lines), 1), SMALL_FARM))


def _process_parts(
    process: ProcessView, member: MemberView | None, follower: FollowerView | None, palette: Palette
) -> list[Part]:
    parts: list[Part] = [("starting", palette.doubtful), "-", "-"]
    peers = None if member is None else member.peer_count
    if process.view is not None:
        raft, peers = process.view.raft, process.view.gossip.peer_count
        role = process.view.node.phase.value if raft.role is RaftRole.NONE else raft.role.value
        parts = [(role, role_style(raft.role, palette)), str(raft.term), str(raft.commit_index)]
    gossip: list[Part] = [("-", palette.dim)] * 4
    if member is not None:
        gossip = [status_part(member, palette), incarnation_text(member), rtt_text(member), known(peers)]
    return [known(process.pid), *parts, lag_part(follower, palette), *gossip]


def _stopped_parts(process: ProcessView, member: MemberView | None, palette: Palette) -> list[Part]:
    """Return the cells of an ended process: its end, and its status at other nodes, instead of figures."""
    status = "" if member is None else f"; other nodes report it {member.status.value}"
    return [("-", palette.dim), ("stopped", palette.bad), (f"{process.detail}{status}", palette.bad)]


def publishing_section(view: FarmView, canvas: Canvas) -> ScreenSection:
    """Return the publications: publisher, reason, and the entries with their costs."""
    palette = canvas.palette
    healths = [health_text(one.faults, healthy=one.healthy) for each in view.publishing for one in each.entries]
    columns = [
        Column("  DESTINATION", 64 if canvas.is_wide else 26),
        Column("AT", 12),
        Column("COST", 4, right=True),
        *([Column("ENDS IN", 7, right=True)] if canvas.width >= LEAVES_WIDTH else []),
        Column("HEALTH", max((cell_len(each) for each in healths), default=9)),
    ]
    named = max((cell_len(printable(known(one.name))) for each in view.publishing for one in each.entries), default=0)
    destination, *others = columns
    columns = [destination, *widened(others, canvas.width - destination.width - GAP, named)]
    lines: list[Text] = []
    for each in view.publishing:
        lines.append(_publisher_line(each, view, canvas))
        if each.entries:
            lines.append(canvas.heading(columns, palette.dim))
            now_s = _now_s(view)
            # Unhealthy entries come first: a short screen leaves out the last ones.
            room = canvas.width - sum(column.width + GAP for column in columns[:-1])
            for entry in sorted(each.entries, key=lambda entry: entry.healthy):
                health = health_text(entry.faults, healthy=entry.healthy)
                fits = cell_len(health) <= room
                lines.append(canvas.row(columns, _entry_parts(entry, now_s, canvas, health if fits else "unhealthy")))
                lines += [] if fits else _reason_lines(health, canvas)
    if not lines:
        lines = [canvas.line(("  nothing is published yet", palette.doubtful))]
    every = [entry.healthy for each in view.publishing for entry in each.entries]
    healthy = (
        f" {sum(every)} of {counted(len(every), 'entry', 'entries')} healthy",
        palette.good if all(every) else palette.doubtful,
    )
    return ScreenSection(
        canvas.line(("META LEASESET2", palette.title), healthy if every else ""), lines, least=PUBLISHER_AND_ENTRY
    )


def _now_s(view: FarmView) -> int:
    return (view.taken_at_ms if view.raft.log_time_ms is None else view.raft.log_time_ms) // 1000


def _publisher_line(each: PublishingView, view: FarmView, canvas: Canvas) -> Text:
    palette = canvas.palette
    parts: list[Part] = [(f"  {short_address(each.master)} ", palette.title)]
    if each.publisher_id is None:
        parts.append(("no publisher", palette.bad))
    else:
        verb = "publishes" if each.publisher_id == each.handed_over_by else "will publish"
        parts.append((f"{server_label(each.publisher_id, each.publisher_name)} {verb}", palette.accent))
    if each.seconds_to_expiry is not None:
        style = palette.good if each.seconds_to_expiry > 0 else palette.bad
        parts.append((f", expires in {duration(each.seconds_to_expiry * 1000)}", style))
    if each.handed_over_s is not None:
        parts.append(f", handed over {duration(max(0, _now_s(view) - each.handed_over_s) * 1000)} ago")
    if each.seen is not None:
        parts.append((", seen", palette.good) if each.seen else (", not found by other routers", palette.bad))
    return canvas.line(*parts, (f" ({each.reason})", palette.dim))


def _reason_lines(health: str, canvas: Canvas) -> list[Text]:
    """Return the reason of an unhealthy leaf in lines below its row."""
    width = max(LEAST_WIDTH, canvas.width)
    lines = textwrap.wrap(health.removeprefix("unhealthy: "), width, initial_indent="    ", subsequent_indent="    ")
    return [canvas.line((each, canvas.palette.bad)) for each in lines]


def _entry_parts(entry: MetaEntryView, now_s: int, canvas: Canvas, health: str) -> list[Part]:
    return [
        f"  {entry.destination if canvas.is_wide else short_address(entry.destination)}",
        known(entry.name),
        str(entry.cost),
        *([duration((entry.end_s - now_s) * 1000)] if canvas.width >= LEAVES_WIDTH else []),
        (health, canvas.palette.good if entry.healthy else canvas.palette.bad),
    ]


def weights_section(weights: WeightsView, canvas: Canvas) -> ScreenSection:
    """Return exclusions, and factors with their age, in one line; the pane of publishing has one line for each."""
    parts = [(f" {text}", style) for text, style in _weights(weights, canvas)]
    return ScreenSection(None, [canvas.line(("WEIGHTS", canvas.palette.title), *parts)] if parts else [])


def weights_lines(weights: WeightsView, canvas: Canvas) -> list[Text]:
    """Return the weights, one line for each."""
    lines = [
        canvas.line(f"  {text}" if not style else (f"  {text}", style)) for text, style in _weights(weights, canvas)
    ]
    return [canvas.line(("WEIGHTS", canvas.palette.title)), *lines] if lines else []


def _weights(weights: WeightsView, canvas: Canvas) -> list[tuple[str, str]]:
    palette = canvas.palette
    parts = [(f"excluded {short_address(each.destination)}", palette.bad) for each in weights.excluded]
    parts += [
        (f"{short_address(each.destination)} x {each.factor:g} by an operator", palette.doubtful)
        for each in weights.costs
    ]
    parts += [
        (f"{short_address(each.destination)} x {each.factor:g} by the pipeline {duration(each.age_ms)} ago", "")
        for each in weights.factors
    ]
    return parts


def alarms_section(alarms: tuple[AlarmView, ...], canvas: Canvas, verdict: str = "") -> ScreenSection:
    """Return alarms with their texts and actions. An alarm that fits has one line, so that several stay in sight.

    An alarm does not repeat the text of the verdict above it.
    """
    lines = []
    for each in alarms:
        style = canvas.palette.bad if each.severity is Severity.CRITICAL else canvas.palette.doubtful
        sign = severity_mark(each.severity) or "! "
        kind = shortened(each.kind, max(LEAST_WIDTH, canvas.width) // 2 - len(sign))
        texts = [each.action] if each.text == verdict else [each.text, each.action]
        if cell_len(printable(f"{sign}{kind}: {'; '.join(texts)}")) <= canvas.width:
            lines.append(canvas.line((sign, style), (kind, style), f": {'; '.join(texts)}"))
            continue
        first, *more = _wrapped(
            texts[0], canvas, cell_len(f"{sign}{kind}: "), ALARM_LINES if len(texts) > 1 else REMEDY_LINES
        )
        lines.append(canvas.line((sign, style), (kind, style), f": {first}"))
        lines += [canvas.line(f"{NOT_CHOSEN}{part}") for part in more]
        for number, part in enumerate(
            part for text in texts[1:] for part in _wrapped(text, canvas, len(REMEDY), REMEDY_LINES)
        ):
            lines.append(canvas.line(f"{NOT_CHOSEN}{REMEDY if number == 0 else ' ' * len(REMEDY)}{part}"))
    return ScreenSection(None, lines, least=TWO_ALARMS)


def _wrapped(text: str, canvas: Canvas, first_indent: int, lines_max: int) -> list[str]:
    """Return a text in several lines; the first one has less room."""
    width = max(LEAST_WIDTH, canvas.width - len(NOT_CHOSEN) - len(REMEDY))
    lines = textwrap.wrap(
        printable(text), width, initial_indent=" " * first_indent, max_lines=lines_max, placeholder=" …"
    )
    return [lines[0][first_indent:], *lines[1:]] if lines else [""]
