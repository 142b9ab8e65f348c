"""The recent past of a node: a bounded ring of trace events, read by cursor.

Every event gets the next cursor. A reader says from which cursor it wants to go on; if the ring has moved past that
point, the page says how many were lost, so that nobody takes a gap for silence. Readers hold no state here, which is
why a slow one cannot make the node grow.

Cursors begin at 1 in each process. A reader whose cursor lies beyond the end has read from an earlier process: it is
given what this one has from the start.

The ring holds each event as the bytes of its JSON, a quarter of what the objects would take: four thousand events are
kept for readers who mostly never come.
"""

import json
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
        self._events: deque[bytes] = deque(maxlen=capacity_events)
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
        self._events.append(_packed(event))
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
        events = self._unpacked(first - oldest, first - oldest + count)
        return EventPage(first + len(events), lost, events)

    def recent(self, count: int) -> tuple[TraceEvent, ...]:
        """The last `count` events, oldest first."""
        return self._unpacked(max(0, len(self._events) - count), len(self._events))

    async def wait(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        """Like `read`, but if there is nothing yet, wait for something for at most `wait_ms`."""
        page = self.read(cursor, limit)
        if not page.events and limit > 0:
            with trio.move_on_after(wait_ms / 1000):
                await self._news.wait()
            page = self.read(cursor, limit)
        return page

    def _unpacked(self, start: int, end: int) -> tuple[TraceEvent, ...]:
        oldest = self._next - len(self._events)
        return tuple(
            _event(self._node, oldest + place, packed)
            for place, packed in enumerate(islice(self._events, start, end), start)
        )


def _packed(event: TraceEvent) -> bytes:
    fields = [event.time_ms, event.log_time_ms, event.kind, event.data]
    return json.dumps(fields, separators=(",", ":")).encode()


def _event(node: str, cursor: int, packed: bytes) -> TraceEvent:
    time_ms, log_time_ms, kind, data = json.loads(packed)
    return TraceEvent(cursor, time_ms, log_time_ms, kind, node, data)
