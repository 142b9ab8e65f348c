"""The history of a node: the rows and figures that each view adds, and the JSON document of a time window.

    FarmView ──▶ observed, figures ──▶ records in the node's file ──▶ Timeline ──▶ HistoryAnswer

While the node observes the farm, each row of the history has a state. The limits of
`bridge.core.history.records` apply: servers come before other members, and further leaves are left out.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from msgspec.structs import replace

from bridge.api.alarms import without_figures
from bridge.api.farm_facts import outdated_reports
from bridge.api.json import Document, Record
from bridge.api.view import FarmView, LeafView, MemberView, ServerRole, Severity, counted_members
from bridge.api.words import FAULT_WORDS, SERVER_FAULT, faults_text
from bridge.core.formation.member import MemberStatus
from bridge.core.history.records import ALARMS_MAX, LEAVES_MAX, MINUTE_MS, NODES_MAX, Row, RowKind, SeriesKind, State
from bridge.core.history.timeline import Timeline
from bridge.core.membership.admission import server_label

HOURS_DEFAULT: Final = 24
HOURS_MAX: Final = 24 * 31
WINDOW_MAX_MS: Final = (HOURS_MAX + 1) * 60 * MINUTE_MS
"""An hour more than `HOURS_MAX`, because the start of a window is rounded down to a step."""
UNITS: Final[Mapping[SeriesKind, str]] = {
    SeriesKind.ROUND_TRIP: "ms",
    SeriesKind.COMMIT_LAG: "ms",
    SeriesKind.FOLLOWER_LAG: "entries",
}
_OK, _WARNING, _CRITICAL = range(3)
_SEVERITIES: Final = tuple(Severity)
"""Severities by number: a recorded state has the position in this tuple."""
_STATUS: Final[Mapping[MemberStatus, int]] = {
    MemberStatus.ALIVE: _OK,
    MemberStatus.SUSPECT: _WARNING,
    MemberStatus.DEAD: _CRITICAL,
    MemberStatus.LEFT: _WARNING,
}
_VERDICT: Final = Row(RowKind.VERDICT)
_LEADER: Final = Row(RowKind.LEADER)
NOT_REPORTED: Final = FAULT_WORDS[SERVER_FAULT]
EXCLUDED: Final = "excluded by an operator"


class HistorySpan(Record, frozen=True):
    """A period of one state of a row."""

    start_ms: int
    """Start of the period by the node's clock."""
    end_ms: int
    """End of the period."""
    text: str
    """The state: the verdict's text, the leader's or publisher's name, the alarm's text, or the status of a node. For a
    leaf: `healthy`, its faults, or `excluded by an operator`. Without a leader or publisher it is empty."""
    severity: Severity
    """Severity of the state."""


class HistoryRow(Record, frozen=True):
    """States of one subject, oldest first. Between two spans the node did not run, or the subject did not exist."""

    kind: RowKind
    """Subject of the row."""
    name: str | None
    """Name of the member, address of the master or the leaf, kind of the alarm; null for verdict and leader."""
    owner: str | None
    """The server of a leaf; null for other rows."""
    spans: tuple[HistorySpan, ...]
    """The states, at most 500."""


class HistorySeries(Record, frozen=True):
    """Figures of one subject."""

    kind: SeriesKind
    """`roundTrip` to a member, `commitLag` of this node's entries, `followerLag` of a follower while the node leads."""
    name: str | None
    """Name of the member; null for `commitLag`."""
    unit: str
    """`ms` or `entries`."""
    values: tuple[float | None, ...]
    """The mean of each step, from `fromMs` on; null without a measurement. At most 1,441."""


class HistoryAnswer(Document, frozen=True):
    """The recent history of the farm, as the node observed and stored it."""

    node: str
    """Name of the node."""
    from_ms: int
    """Start of the window by the node's clock."""
    to_ms: int
    """End of the window."""
    step_ms: int
    """Milliseconds of one value of a series."""
    rows: tuple[HistoryRow, ...] = ()
    """At most 320 rows, with at most 8,000 spans."""
    series: tuple[HistorySeries, ...] = ()
    """At most 129 series."""
    spans_left_out: int = 0
    """Number of older spans beyond these limits."""
    rows_left_out: int = 0
    """Number of rows beyond these limits."""

    def __post_init__(self) -> None:
        """Refuse a window whose axis could not be drawn; recorders never make such a window."""
        length_ms = self.to_ms - self.from_ms
        if self.from_ms < 0 or not 0 <= length_ms <= WINDOW_MAX_MS or self.step_ms < 1:
            raise ValueError(f"a window from {self.from_ms} to {self.to_ms} in steps of {self.step_ms} ms")
        if not all(each.spans for each in self.rows):
            raise ValueError("a row without a span")


def observed(view: FarmView) -> dict[Row, State]:
    """Return the state of each row, in order of importance."""
    verdict = view.verdict
    found = {_VERDICT: State(verdict.text, _SEVERITIES.index(verdict.severity))}
    if view.raft.voters:
        leader = view.raft.leader_id
        name = "" if leader is None else server_label(leader, view.raft.leader_name)
        found[_LEADER] = State(name, _OK if name else _CRITICAL)
    for each in view.publishing:
        publisher = each.publisher_id
        name = "" if publisher is None else server_label(publisher, each.publisher_name)
        severity = _CRITICAL if publisher is None else _WARNING if each.without_quorum else _OK
        found[Row(RowKind.PUBLISHER, each.master)] = State(name, severity)
    for alarm in view.alarms[:ALARMS_MAX]:
        state = State(without_figures(alarm.text), _SEVERITIES.index(alarm.severity))
        found[Row(RowKind.ALARM, alarm.kind)] = state
    for member in recorded_members(view):
        # Members choose their names freely. If two members have the same name, the row belongs to the first one, since
        # servers come first.
        found.setdefault(Row(RowKind.NODE, member.name), State(member.status.value, _STATUS[member.status]))
    outdated = outdated_reports(view)
    leaves = ((each, leaf) for each in view.reports for leaf in each.leaves)
    for report, leaf in islice(leaves, LEAVES_MAX):
        owner = server_label(report.raft_id, report.name)
        found[Row(RowKind.LEAF, leaf.destination, owner)] = _leaf_state(leaf, is_outdated=report.raft_id in outdated)
    return found


def figures(view: FarmView) -> Iterator[tuple[Row, float]]:
    """Yield the present figure of each row. If members share a name, the first one counts, as in `observed`."""
    names = set[str]()
    for member in recorded_members(view):
        is_first = member.name not in names
        names.add(member.name)
        if is_first and member.rtt_ms is not None:
            yield Row(SeriesKind.ROUND_TRIP, member.name), member.rtt_ms
    for each in islice(view.raft.followers, NODES_MAX):
        if each.lag_entries is not None:
            yield Row(SeriesKind.FOLLOWER_LAG, server_label(each.raft_id, each.name)), float(each.lag_entries)


def recorded_members(view: FarmView) -> Iterator[MemberView]:
    """Yield the members with a row: this node, the servers, then others up to the limit.

    A member without a known name is omitted, because it would later have a second row under its name.
    """
    members = tuple(each for each in counted_members(view) if each.name != each.node_id)
    servers = (each for each in members if _is_server(each))
    others = (each for each in members if not _is_server(each))
    return islice(chain(servers, others), NODES_MAX)


def _is_server(member: MemberView) -> bool:
    return member.is_self or member.server_role in {ServerRole.VOTER, ServerRole.LEARNER}


def _leaf_state(leaf: LeafView, *, is_outdated: bool) -> State:
    if is_outdated:
        return State(NOT_REPORTED, _CRITICAL)
    if not leaf.healthy:
        return State(faults_text(leaf.faults) or "unhealthy", _CRITICAL)
    return State(EXCLUDED, _WARNING) if leaf.excluded else State("healthy", _OK)


def history_answer(node: str, timeline: Timeline) -> HistoryAnswer:
    """Return the document of a window."""
    rows = tuple(
        HistoryRow(
            kind=row.kind,
            name=row.name,
            owner=row.owner,
            spans=tuple(
                HistorySpan(each.start_ms, each.end_ms, each.state.text, _SEVERITIES[each.state.severity])
                for each in spans
            ),
        )
        for row, spans in timeline.rows
        if isinstance(row.kind, RowKind)
    )
    series = tuple(
        HistorySeries(row.kind, row.name, UNITS[row.kind], values)
        for row, values in timeline.series
        if isinstance(row.kind, SeriesKind)
    )
    return HistoryAnswer(
        node=node,
        from_ms=timeline.from_ms,
        to_ms=timeline.to_ms,
        step_ms=timeline.step_ms,
        rows=rows,
        series=series,
        spans_left_out=timeline.spans_left_out,
        rows_left_out=timeline.rows_left_out,
    )


def first_record_ms(answer: HistoryAnswer) -> int:
    """Return the time of the first state in a window; without a state, the end of the window."""
    return min((row.spans[0].start_ms for row in answer.rows), default=answer.to_ms)


def part_since(answer: HistoryAnswer, from_ms: int) -> HistoryAnswer:
    """Return the part of a window since a time, rounded down to a step of the series; empty after its end."""
    if from_ms > answer.to_ms:
        return replace(answer, from_ms=answer.to_ms, rows=(), series=())
    steps = (from_ms - answer.from_ms) // answer.step_ms
    if steps <= 0:
        return answer
    start_ms = answer.from_ms + steps * answer.step_ms
    rows = (
        replace(
            row,
            spans=tuple(
                replace(each, start_ms=max(each.start_ms, start_ms)) for each in row.spans if each.end_ms > start_ms
            ),
        )
        for row in answer.rows
    )
    series = (replace(each, values=each.values[steps:]) for each in answer.series)
    return replace(
        answer,
        from_ms=start_ms,
        rows=tuple(each for each in rows if each.spans),
        series=tuple(each for each in series if any(value is not None for value in each.values)),
    )
