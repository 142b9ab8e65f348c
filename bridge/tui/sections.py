"""The sections of the live view: each turns its part of a FarmView into lines.

Colour only repeats what a word already says (`alive`, `dead`, `leader`, `healthy`), so that the view reads the same on
a monochrome terminal, with NO_COLOR, and for eyes that do not tell red from green.
"""

from dataclasses import dataclass

from rich.text import Text

from bridge.api.view import (
    AlarmView,
    EventView,
    FarmView,
    FollowerView,
    LocalFarmView,
    MemberView,
    MetaEntryView,
    ProcessView,
    PublishingView,
    RaftRole,
    ServerRole,
    best_view,
)
from bridge.core.membership.reconcile import MemberStatus
from bridge.tui.layout import Cell, Column, heading, line, row
from bridge.tui.words import clock_text, duration, known, milliseconds_text, short_address

WIDE = 100


@dataclass(frozen=True, slots=True)
class Palette:
    """Styles by meaning."""

    title: str = "bold"
    good: str = ""
    doubtful: str = ""
    bad: str = ""
    dim: str = ""
    accent: str = ""


COLOURS = Palette("bold", "green", "yellow", "red", "bright_black", "cyan")
MONOCHROME = Palette()


@dataclass(frozen=True, slots=True)
class Section:
    """A title line, or none, and the lines below it."""

    title: Text | None
    lines: list[Text]
    counted: bool = True
    """Whether to say how many lines had to be left out."""


def status_style(status: MemberStatus, palette: Palette) -> str:
    """How a member's status looks."""
    match status:
        case MemberStatus.ALIVE:
            return palette.good
        case MemberStatus.SUSPECT:
            return palette.doubtful
        case MemberStatus.DEAD | MemberStatus.LEFT:
            return palette.bad


def role_style(role: RaftRole, palette: Palette) -> str:
    """How a role looks."""
    return {RaftRole.LEADER: palette.accent, RaftRole.CANDIDATE: palette.doubtful}.get(role, "")


def farm_header(view: FarmView, width: int, palette: Palette) -> list[Text]:
    """Two lines: which node of which farm this is, and how Raft stands."""
    node, farm = view.node, view.farm
    alive = sum(member.status is MemberStatus.ALIVE for member in view.members)
    first = [
        Cell(" garlic farm ", "reverse bold"),
        Cell(f" {farm.cluster} ", palette.title),
        Cell(f"{farm.label}  "),
        Cell(f"{node.name}", palette.title),
        Cell(f" {node.phase.value}, up {duration(node.uptime_ms)}, "),
        Cell(f"{alive}/{len(view.members)} alive", palette.good if alive == len(view.members) else palette.doubtful),
    ]
    if farm.demo:
        first.append(Cell("  DEMO", palette.doubtful))
    return [line(first, width), raft_line(view, width, palette)]


def raft_line(view: FarmView, width: int, palette: Palette) -> Text:
    """Who leads, and how far the log has come."""
    raft = view.raft
    if raft.role is RaftRole.NONE:
        waits = f"not founded: {view.node.phase.value}, {view.farm.expect} routers make this farm"
        return line([Cell("RAFT ", palette.title), Cell(waits, palette.doubtful)], width)
    leader = raft.leader_name or known(raft.leader_id)
    cells = [
        Cell("RAFT ", palette.title),
        Cell(raft.role.value, role_style(raft.role, palette)),
        Cell(f" term {raft.term} "),
    ]
    if raft.leader_id is None:
        cells.append(Cell("no leader", palette.bad))
    else:
        cells.append(Cell(f"leader {leader}", palette.accent))
    cells.append(Cell(f" commit {raft.commit_index}/{raft.last_index} applied {raft.applied_index}"))
    if raft.log_time_ms is not None:
        cells.append(Cell(f" log time {clock_text(raft.log_time_ms)}"))
    return line(cells, width)


def members_section(view: FarmView, width: int, palette: Palette) -> Section:
    """Members by name: status, incarnation, round trip, peers, and for a leader's followers their lag."""
    columns = [
        Column("MEMBER", 14 if width < WIDE else 20),
        Column("STATUS", 7),
        Column("INCARN.", 8, right=True),
        Column("RTT", 7, right=True),
        Column("PEERS", 6, right=True),
        Column("RAFT", 9),
        Column("LAG", 5, right=True),
        Column("ADDRESS", 22),
    ]
    followers = {each.raft_id: each for each in view.raft.followers}
    lines = [_member_row(columns, each, view, followers, width, palette) for each in by_name(view.members)]
    return Section(heading(columns, width, palette.title), lines)


def by_name(members: tuple[MemberView, ...]) -> list[MemberView]:
    """Members in a stable order, in which node-10 follows node-9."""
    return sorted(members, key=lambda member: (len(member.name), member.name, member.node_id))


def _member_row(
    columns: list[Column],
    member: MemberView,
    view: FarmView,
    followers: dict[int, FollowerView],
    width: int,
    palette: Palette,
) -> Text:
    follower = None if member.raft_id is None else followers.get(member.raft_id)
    role, style = _role_of(member, view, palette)
    cells = [
        Cell(f"{member.name}{'*' if member.is_self else ''}", palette.title if member.is_self else ""),
        Cell(member.status.value, status_style(member.status, palette)),
        Cell(f"{member.generation}.{member.number}"),
        Cell("self" if member.is_self else milliseconds_text(member.rtt_ms)),
        Cell(known(member.peer_count)),
        Cell(role, style),
        _lag(follower, palette),
        Cell(known(member.address), palette.dim),
    ]
    return row(columns, cells, width)


def _role_of(member: MemberView, view: FarmView, palette: Palette) -> tuple[str, str]:
    if member.raft_id is None:
        return ("-", palette.dim)
    if member.raft_id == view.raft.leader_id:
        return (f"{member.raft_id} leader", palette.accent)
    if member.server_role is ServerRole.NONE:
        return (str(member.raft_id), palette.dim)
    return (
        f"{member.raft_id} {member.server_role.value}",
        palette.dim if member.server_role is ServerRole.REMOVED else "",
    )


def _lag(follower: FollowerView | None, palette: Palette) -> Cell:
    if follower is None:
        return Cell("-", palette.dim)
    if follower.last_contact_ms is None or follower.lag_entries is None:
        return Cell("never", palette.bad)
    return Cell(str(follower.lag_entries), palette.good if follower.lag_entries == 0 else palette.doubtful)


def local_header(farm: LocalFarmView, width: int, palette: Palette) -> list[Text]:
    """Two lines: what this is, and how Raft stands."""
    running = sum(process.running for process in farm.processes)
    first = [
        Cell(" garlic farm ", "reverse bold"),
        Cell(f" {running}/{len(farm.processes)} routers run", palette.title),
        Cell(f" in {farm.state_directory}  "),
        Cell(farm.notice, palette.doubtful),
    ]
    best = best_view(farm)
    second = line([Cell("starting…", palette.doubtful)], width) if best is None else raft_line(best, width, palette)
    return [line(first, width), second]


def processes_section(farm: LocalFarmView, width: int, palette: Palette) -> Section:
    """Every process of a local farm, with what its own node says and what the best view says about it."""
    columns = [
        Column("ROUTER", 10 if width < WIDE else 20),
        Column("PID", 7, right=True),
        Column("RAFT", 10),
        Column("TERM", 4, right=True),
        Column("COMMIT", 7, right=True),
        Column("LAG", 5, right=True),
        Column("GOSSIP", 7),
        Column("INC.", 5, right=True),
        Column("RTT", 7, right=True),
        Column("PEERS", 8),
    ]
    best = best_view(farm)
    lines = [_process_row(columns, process, best, width, palette) for process in farm.processes]
    return Section(heading(columns, width, palette.title), lines)


def _process_row(
    columns: list[Column], process: ProcessView, best: FarmView | None, width: int, palette: Palette
) -> Text:
    member = next((each for each in best.members if each.name == process.name), None) if best is not None else None
    raft_id = None if member is None else member.raft_id
    follower = (
        next((each for each in best.raft.followers if each.raft_id == raft_id), None) if best is not None else None
    )
    if not process.running:
        return _stopped_row(columns, process, member, width, palette)
    if process.view is None:
        told = [Cell(process.name), Cell(known(process.pid)), Cell("starting", palette.doubtful), Cell("-"), Cell("-")]
    else:
        raft = process.view.raft
        role = process.view.node.phase.value if raft.role is RaftRole.NONE else raft.role.value
        told = [
            Cell(process.name),
            Cell(known(process.pid)),
            Cell(role, role_style(raft.role, palette)),
            Cell(str(raft.term)),
            Cell(str(raft.commit_index)),
        ]
    cells = [*told, _lag(follower, palette), *_gossip_cells(process, member, palette)]
    return row(columns, cells, width)


def _stopped_row(
    columns: list[Column], process: ProcessView, member: MemberView | None, width: int, palette: Palette
) -> Text:
    """A process that ended: how, and what the others say, in place of figures that it no longer has."""
    said = "" if member is None else f"; the others say {member.status.value}"
    cells = [
        Cell(process.name),
        Cell("-", palette.dim),
        Cell("stopped", palette.bad),
        Cell(f"{process.detail}{said}", palette.bad),
    ]
    return row([*columns[:3], Column("", width)], cells, width)


def _gossip_cells(process: ProcessView, member: MemberView | None, palette: Palette) -> list[Cell]:
    if member is None:
        return [Cell("-", palette.dim)] * 4
    peers = known(member.peer_count) if process.view is None else str(process.view.gossip.peer_count)
    rtt = "self" if member.is_self else milliseconds_text(member.rtt_ms)
    return [_status(member, palette), Cell(f"{member.generation}.{member.number}"), Cell(rtt), Cell(peers)]


def _status(member: MemberView, palette: Palette) -> Cell:
    return Cell(member.status.value, status_style(member.status, palette))


def publishing_section(view: FarmView, width: int, palette: Palette) -> Section:
    """What is published, by whom and why, and the entries with their costs."""
    lines: list[Text] = []
    for each in view.publishing:
        lines.append(_publisher_line(each, view, width, palette))
        if each.entries:
            columns = [
                Column("  DESTINATION", 26 if width < WIDE else 64),
                Column("AT", 12),
                Column("COST", 4, right=True),
                Column("ENDS IN", 7, right=True),
                Column("HEALTH", 9),
            ]
            lines.append(heading(columns, width, palette.dim))
            now_s = _now_s(each, view)
            lines.extend(_entry_row(columns, entry, now_s, width, palette) for entry in each.entries)
    title = line([Cell("META LEASESET2", palette.title)], width)
    if not lines:
        lines = [line([Cell("  nothing is published yet", palette.doubtful)], width)]
    return Section(title, lines)


def _now_s(publishing: PublishingView, view: FarmView) -> int:
    """Now by the clock in which the entries end: log time where it is known."""
    if publishing.seconds_to_expiry is not None and publishing.entries:
        return min(entry.end_s for entry in publishing.entries) - publishing.seconds_to_expiry
    return (view.taken_at_ms if view.raft.log_time_ms is None else view.raft.log_time_ms) // 1000


def _publisher_line(each: PublishingView, view: FarmView, width: int, palette: Palette) -> Text:
    if each.publisher_id is None:
        who = Cell("no publisher", palette.bad)
    else:
        who = Cell(f"{each.publisher_name or each.publisher_id} publishes", palette.accent)
    cells = [Cell(f"  {short_address(each.master)} ", palette.title), who]
    if each.seconds_to_expiry is not None:
        style = palette.good if each.seconds_to_expiry > 0 else palette.bad
        cells.append(Cell(f", expires in {duration(each.seconds_to_expiry * 1000)}", style))
    if each.published_s is not None:
        cells.append(Cell(f", {duration(max(0, _now_s(each, view) - each.published_s) * 1000)} old"))
    cells.append(Cell(f" ({each.reason})", palette.dim))
    return line(cells, width)


def _entry_row(columns: list[Column], entry: MetaEntryView, now_s: int, width: int, palette: Palette) -> Text:
    shown = entry.destination if width >= WIDE else short_address(entry.destination)
    cells = [
        Cell(f"  {shown}"),
        Cell(known(entry.name)),
        Cell(str(entry.cost)),
        Cell(duration((entry.end_s - now_s) * 1000)),
        Cell("healthy", palette.good) if entry.healthy else Cell("unhealthy", palette.bad),
    ]
    return row(columns, cells, width)


def alarms_section(alarms: tuple[AlarmView, ...], width: int, palette: Palette) -> Section:
    """Alarms: what it is and what to do. One line each, so that several stay in sight."""
    lines = [
        line([Cell("! ", palette.bad), Cell(each.kind, palette.bad), Cell(f": {each.text}; {each.action}")], width)
        for each in alarms
    ]
    return Section(None, lines)


def events_section(events: tuple[EventView, ...], width: int, palette: Palette) -> Section:
    """The recent past, newest first: what does not fit is the oldest."""
    title = line([Cell("EVENTS", palette.title), Cell(" newest first, UTC", palette.dim)], width)
    lines = [
        line([Cell(f"  {clock_text(each.time_ms)} ", palette.dim), Cell(each.text)], width) for each in reversed(events)
    ]
    return Section(title, lines, counted=False)
