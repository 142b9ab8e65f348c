"""The recent past of a node: a bounded ring of trace events, read by cursor.

Every event gets the next cursor. A reader says from which cursor it wants to go on; if the ring has moved past that
point, the page says how many were lost, so that nobody takes a gap for silence. Readers hold no state here, which is
why a slow one cannot make the node grow.

Cursors begin at 1 in each process. A reader whose cursor lies beyond the end has read from an earlier process: it is
given what this one has from the start.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

import trio

from bridge.core.control import EventPage, Scalar, TraceEvent

CAPACITY_EVENTS = 4096
PAGE_LIMIT_EVENTS = 1000


class EventLog:
    """A ring of events. `append` never blocks and may be called from anywhere in the trio thread."""

    def __init__(
        self,
        node: str,
        clock_ms: Callable[[], int],
        capacity_events: int = CAPACITY_EVENTS,
        on_event: Callable[[TraceEvent], None] = lambda _: None,
    ) -> None:
        self._on_event = on_event
        self._node = node
        self._clock_ms = clock_ms
        self._events: deque[TraceEvent] = deque(maxlen=capacity_events)
        self._next = 1
        self._news = trio.Event()

    @property
    def next_cursor(self) -> int:
        """The cursor that the next event will get."""
        return self._next

    def append(
        self, kind: str, data: Mapping[str, Scalar] | None = None, *, log_time_ms: int | None = None
    ) -> TraceEvent:
        """Record that something happened now."""
        event = TraceEvent(self._next, self._clock_ms(), log_time_ms, kind, self._node, dict(data or {}))
        self._events.append(event)
        self._next += 1
        self._news.set()
        self._news = trio.Event()
        self._on_event(event)
        return event

    def read(self, cursor: int, limit: int = PAGE_LIMIT_EVENTS) -> EventPage:
        """Events from `cursor` on, as many as fit in a page."""
        oldest = self._next - len(self._events)
        first = oldest if cursor > self._next else max(cursor, oldest)
        lost = max(0, oldest - max(cursor, 1)) if cursor <= self._next else 0
        count = max(0, min(limit, PAGE_LIMIT_EVENTS))
        events = tuple(islice(self._events, first - oldest, first - oldest + count))
        return EventPage(first + len(events), lost, events)

    def recent(self, count: int) -> tuple[TraceEvent, ...]:
        """The last `count` events, oldest first."""
        return tuple(islice(self._events, max(0, len(self._events) - count), None))

    async def wait(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        """Like `read`, but if there is nothing yet, wait for something for at most `wait_ms`."""
        page = self.read(cursor, limit)
        if not page.events and limit > 0:
            with trio.move_on_after(wait_ms / 1000):
                await self._news.wait()
            page = self.read(cursor, limit)
        return page
