"""Data of the live view: figures of the last minutes, each member's states, and the last take-over.

    FarmView, once a second ─▶ per member: round trip, lag, processor, memory, states with their times
    TraceEvent              ─▶ the last thousand, of all watched nodes ─▶ the last take-over
    LogEntryView            ─▶ the last entries, as text

A view has only the present values. The figures are few enough for the viewer to keep, and the nodes need not store
them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.api.entry_words import Names, entry_words
from bridge.api.log import LogEntryView
from bridge.api.trace import TraceEvent
from bridge.api.view import SHOWN, FarmView, ReportView
from bridge.core.formation.member import MemberStatus

SAMPLES: Final = 120
STATES: Final = 20
EVENTS: Final = 1_000
LEAST_INTERVAL_MS: Final = 900
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = ".:-=+*#@"
ENTRIES: Final = 200


@dataclass(slots=True)
class MemberHistory:
    """One member's figures, the oldest first; None for an unknown figure."""

    rtt_ms: deque[float | None] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    lag: deque[float | None] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    figures: dict[str, deque[float | None]] = field(
        default_factory=lambda: {each.name: deque(maxlen=SAMPLES) for each in SHOWN}
    )
    """Figures of its reports, by name."""
    states: deque[tuple[int, MemberStatus]] = field(default_factory=lambda: deque(maxlen=STATES))


@dataclass(frozen=True, slots=True)
class EntryLine:
    """An entry of the log as text."""

    index: int
    term: int
    log_time_ms: int | None
    type: str
    text: str


class History:
    """All stored data."""

    def __init__(self) -> None:
        self.entries: deque[EntryLine] = deque(maxlen=ENTRIES)
        """Without a gap, the oldest first."""
        self.members: dict[str, MemberHistory] = {}
        """By NodeId."""
        self.events: deque[TraceEvent] = deque(maxlen=EVENTS)
        self._taken_at_ms = 0

    def take(self, view: FarmView) -> None:
        """Store a view; within a second after the last one its figures are not added."""
        self._note_states(view)
        if 0 <= view.taken_at_ms - self._taken_at_ms < LEAST_INTERVAL_MS:
            return
        self._taken_at_ms = view.taken_at_ms
        lags = {each.raft_id: each.lag_entries for each in view.raft.followers}
        reports = {each.raft_id: each for each in view.reports}
        for member in view.members:
            history = self.members[member.node_id]
            lag = None if member.raft_id is None else lags.get(member.raft_id)
            report: ReportView | None = None if member.raft_id is None else reports.get(member.raft_id)
            history.rtt_ms.append(member.rtt_ms)
            history.lag.append(None if lag is None else float(lag))
            for figure in SHOWN:
                history.figures[figure.name].append(None if report is None else figure.of(report))

    def add(self, events: Iterable[TraceEvent]) -> None:
        """Add new events."""
        self.events.extend(events)

    def read(self, entries: Iterable[LogEntryView], names: Names) -> None:
        """Store entries; entries that do not follow the last one replace all."""
        for entry in entries:
            if self.entries and entry.index != self.entries[-1].index + 1:
                self.entries.clear()
            words = entry_words(entry, names)
            self.entries.append(EntryLine(entry.index, entry.term, entry.log_time_ms, words.type, words.text))

    def _note_states(self, view: FarmView) -> None:
        for member in view.members:
            history = self.members.setdefault(member.node_id, MemberHistory())
            if not history.states or history.states[-1][1] is not member.status:
                history.states.append((view.taken_at_ms, member.status))
        present = {member.node_id for member in view.members}
        for former in self.members.keys() - present:
            del self.members[former]


def sparkline(values: Sequence[float | None], width: int, *, unicode: bool = True, full: float | None = None) -> str:
    """Return the newest values as a line of blocks; a blank for an unknown value.

    They reach from 0 to `full`, or to the highest of them.
    """
    blocks = _BLOCKS if unicode else _ASCII_BLOCKS
    shown = list(values)[-width:] if width > 0 else []
    highest = full or max((value for value in shown if value is not None), default=0.0)
    cells = [_block(value, highest, blocks) for value in shown]
    return "".join(cells).rjust(width)


def graph(
    values: Sequence[float | None], width: int, height: int, *, unicode: bool = True, full: float | None = None
) -> list[str]:
    """Return the newest values as `height` lines of blocks, the upper ones first; scaled as in `sparkline`."""
    blocks = f" {_BLOCKS}" if unicode else f" {_ASCII_BLOCKS}"
    shown = list(values)[-width:] if width > 0 else []
    highest = full or max((value for value in shown if value is not None), default=0.0)
    steps = len(blocks) - 1
    # The least value is a low block of the lowest line, so that it differs from an unknown one.
    levels = [
        0 if value is None else max(1, min(height * steps, round(value / highest * height * steps) if highest else 1))
        for value in shown
    ]
    return [
        "".join(blocks[max(0, min(steps, level - line * steps))] for level in levels).rjust(width)
        for line in reversed(range(height))
    ]


def _block(value: float | None, highest: float, blocks: str) -> str:
    if value is None:
        return " "
    if highest <= 0:
        return blocks[0]
    return blocks[min(len(blocks) - 1, int(value / highest * len(blocks)))]
