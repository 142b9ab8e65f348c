"""Events of the farm as lines of one story: text, severity, the member concerned, and the place in the log.

    TraceEvent, of one node or of several ─▶ Story.add ─▶ StoryLine, each fact once ─▶ farm's pane, pane of events

A line is made when its event arrives, not at each drawing. The screen is drawn each second, and the story has up to a
thousand lines.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from bridge.api.events import EventStory, event_sentence, event_severity, story_line
from bridge.api.take_over import Step, changes_take_over, last_take_over
from bridge.api.trace import TraceEvent
from bridge.api.view import Severity

EVENTS: Final = 1_000
_MEMBER_FACTS: Final = ("member", "name", "leaderName")
"""Facts with the name of the member that an event is about, in their order of precedence."""


class StoryLine(Struct, frozen=True):
    """One fact."""

    number: int
    """Place of the fact in the story, from 1 on."""
    time_ms: int
    """Time of the reporting node's clock, milliseconds since the epoch."""
    text: str
    severity: Severity
    member: str
    """Name of the member that it is about: the reporting node if its facts do not name one."""
    log_time_ms: int | None
    """Log time of the entry that caused it; None if it does not come from the log."""


class Story:
    """The last lines, the oldest first, and the last take-over."""

    def __init__(self) -> None:
        self.lines: deque[StoryLine] = deque(maxlen=EVENTS)
        self.take_over: tuple[Step, ...] = ()
        self._events: deque[TraceEvent] = deque(maxlen=EVENTS)
        self._filter = EventStory()
        self._number = 0

    def clear(self) -> None:
        """Drop all events, before the trace of another node is read from its start; later numbers are higher."""
        self.lines.clear()
        self._events.clear()
        self.take_over, self._filter = (), EventStory()

    def add(self, events: Iterable[TraceEvent]) -> None:
        """Add new events."""
        new = list(events)
        self._events.extend(new)
        if changes_take_over(new):
            self.take_over = last_take_over(tuple(self._events))
        for event in new:
            if self._filter.is_new(event_sentence(event) or f"{event.node} {event.kind}", event.time_ms):
                self._number += 1
                self.lines.append(_line(event, self._number))


def _line(event: TraceEvent, number: int) -> StoryLine:
    named = (event.data.get(fact) for fact in _MEMBER_FACTS)
    return StoryLine(
        number=number,
        time_ms=event.time_ms,
        text=story_line(event),
        severity=event_severity(event),
        member=next((str(name) for name in named if name), event.node),
        log_time_ms=event.log_time_ms,
    )
