"""Data of the live view: figures of the last minutes, each member's states, and the last take-over.

    FarmView, once a second ─▶ per member: round trip, lag, processor, memory, states with their times
                            ─▶ of the farm: committed entries
    TraceEvent              ─▶ the last thousand, of all watched nodes (`story`)
    LogEntryView            ─▶ a part of the log, as text: the newest entries, or those around a chosen one

A view has only the present values. The viewer itself stores the few figures of the last minutes, so the nodes need not
store them.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from bridge.api.entry_words import Names, entry_words
from bridge.api.log import LogEntryView
from bridge.api.view import SHOWN, FarmView, ReportView
from bridge.core.formation.member import MemberStatus
from bridge.tui.story import Story

SAMPLES: Final = 300
"""Figures of five minutes."""
STATES: Final = 20
LEAST_INTERVAL_MS: Final = 900
SECOND_MS: Final = 1_000
PAUSE_MAX_MS: Final = SAMPLES * SECOND_MS
HELD_S: Final = 5
"""Longest pause in seconds that the next figure fills; in a longer pause the figure is unknown."""
ENTRIES: Final = 200


class MemberHistory(Struct):
    """One member's figures, the oldest first; None for an unknown figure."""

    rtt_ms: deque[float | None] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    lag: deque[float | None] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    figures: dict[str, deque[float | None]] = field(
        default_factory=lambda: {each.name: deque(maxlen=SAMPLES) for each in SHOWN}
    )
    """Figures of its reports, by name."""
    states: deque[tuple[int, MemberStatus]] = field(default_factory=lambda: deque(maxlen=STATES))


class EntryLine(Struct, frozen=True):
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
        self.commits: deque[float | None] = deque(maxlen=SAMPLES)
        """Entries committed in each second."""
        self.story = Story()
        self._taken_at_ms = 0
        self._commit_index: int | None = None

    def take(self, view: FarmView) -> None:
        """Store a view; its figures are not added within `LEAST_INTERVAL_MS` of the last ones.

        Each figure has one place for each second, so the width of a chart is a time.
        """
        self._note_states(view)
        since_ms = view.taken_at_ms - self._taken_at_ms
        if 0 <= since_ms < LEAST_INTERVAL_MS:
            return
        # A clock that jumps, or another node's clock, is not a pause.
        seconds = max(1, round(since_ms / SECOND_MS)) if 0 < since_ms < PAUSE_MAX_MS else 1
        self._taken_at_ms = view.taken_at_ms
        before, self._commit_index = self._commit_index, view.raft.commit_index
        committed = None if before is None else max(0, view.raft.commit_index - before) / seconds
        _extend(self.commits, committed, seconds)
        lags = {each.raft_id: each.lag_entries for each in view.raft.followers}
        reports = {each.raft_id: each for each in view.reports}
        for member in view.members:
            history = self.members[member.node_id]
            lag = None if member.raft_id is None else lags.get(member.raft_id)
            report: ReportView | None = None if member.raft_id is None else reports.get(member.raft_id)
            _extend(history.rtt_ms, member.rtt_ms, seconds)
            _extend(history.lag, None if lag is None else float(lag), seconds)
            if member.status is MemberStatus.DEAD:
                report = None  # The last figures are not the present ones.
            for figure in SHOWN:
                now = None if report is None else figure.of(report)
                _extend(history.figures[figure.name], now, seconds)

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


def _extend(values: deque[float | None], now: float | None, seconds: int) -> None:
    """Add the figure of the seconds since the last view."""
    values.extend([None] * (seconds - 1) + [now] if seconds > HELD_S else [now] * seconds)
