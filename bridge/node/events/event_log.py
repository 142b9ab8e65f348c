"""The recent past of a node: a bounded ring of trace events, read by cursor.

Every event gets the next cursor. A reader sends the cursor of the next event that it needs. If the ring has dropped
events since then, the page contains their number, so that a gap is visible. The ring does not keep state for readers,
so a slow reader does not cost memory.

Cursors begin at 1 in each process. A reader whose cursor is beyond the end has read from an earlier process, and
receives the events of this process from the start.

No cause has more than a quarter of the ring: a further event replaces the oldest event of the same cause. So a sender
that continuously causes events of one kind cannot displace events of other kinds. Replaced events count as lost, like
dropped events. A cause is a kind of event; for events about alarms, the kind and the alarm.

The ring stores each event as JSON, which takes less memory than the objects.
"""

import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import trio

from bridge.api.events import EventType
from bridge.api.log import PAGE_LIMIT_BYTES
from bridge.api.trace import EventPage, Scalar, TraceEvent

CAPACITY_EVENTS = 4096
PER_CAUSE_EVENTS = CAPACITY_EVENTS // 4
PAGE_LIMIT_EVENTS = 1000
TEXT_LIMIT = 16 * 1024
"""The limit for characters of one text of an event. The longest are alarms that name many servers."""
_HEAD_BYTES = 256
"""Upper bound for the bytes that a page adds to the stored JSON of each event."""


def clock_ms() -> int:
    """Return this machine's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True, eq=False)
class EventLog:
    """A ring of events. `append` never blocks and may be called from anywhere in the trio thread."""

    node: str
    clock_ms: Callable[[], int]
    capacity_events: int = CAPACITY_EVENTS
    on_event: Callable[[TraceEvent], None] = lambda _: None
    per_cause_events: int = PER_CAUSE_EVENTS
    _events: dict[int, tuple[str, bytes]] = field(default_factory=dict, init=False)
    _by_cause: defaultdict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque), init=False)
    _next: int = field(default=1, init=False)
    _recent: tuple[int, int, tuple[TraceEvent, ...]] = field(default=(0, 0, ()), init=False)
    """The arguments and the result of the last call of `recent`."""
    _readers: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def next_cursor(self) -> int:
        """The cursor that the next event will get."""
        return self._next

    def append(
        self, event_type: EventType, data: Mapping[str, Scalar] | None = None, *, log_time_ms: int | None = None
    ) -> TraceEvent:
        """Record an event of this moment."""
        facts = {name: each[:TEXT_LIMIT] if isinstance(each, str) else each for name, each in (data or {}).items()}
        event = TraceEvent(self._next, self.clock_ms(), log_time_ms, event_type.kind, self.node, facts)
        self._keep(event)
        self._next += 1
        self._readers.unpark_all()
        self.on_event(event)
        return event

    def _keep(self, event: TraceEvent) -> None:
        cause = cause_of(event)
        of_cause = self._by_cause[cause]
        if len(of_cause) >= self.per_cause_events:
            del self._events[of_cause.popleft()]
        elif len(self._events) >= self.capacity_events:
            oldest = next(iter(self._events))
            oldest_cause, _ = self._events.pop(oldest)
            self._by_cause[oldest_cause].popleft()
        of_cause.append(event.cursor)
        self._events[event.cursor] = (cause, _packed(event))

    def read(self, cursor: int, limit: int = PAGE_LIMIT_EVENTS) -> EventPage:
        """Return the events from `cursor` on that fit in a page."""
        oldest = next(iter(self._events), self._next)
        begin = oldest if cursor > self._next else max(cursor, 1)
        count = max(0, min(limit, PAGE_LIMIT_EVENTS))
        cursors = self._fitting(islice((each for each in self._events if each >= begin), count))
        events = self._unpacked(cursors)
        end = events[-1].cursor + 1 if events else max(begin, oldest)
        return EventPage(end, end - begin - len(events), events)

    def recent(self, count: int) -> tuple[TraceEvent, ...]:
        """Return the last `count` events, oldest first. Each view of the farm reads them."""
        if self._recent[:2] != (self._next, count):
            last = islice(self._events, max(0, len(self._events) - count), None)
            self._recent = self._next, count, self._unpacked(last)
        return self._recent[2]

    async def wait(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        """Read like `read`, but wait for at most `wait_ms` if the page is empty."""
        page = self.read(cursor, limit)
        if not page.events and limit > 0:
            with trio.move_on_after(wait_ms / 1000):
                await self.news()
            page = self.read(cursor, limit)
        return page

    async def news(self) -> None:
        """Wait for an event after the call."""
        await self._readers.park()

    def _fitting(self, cursors: Iterable[int]) -> Iterator[int]:
        """Yield the first event, and the next ones while they fit in one page with it."""
        left = PAGE_LIMIT_BYTES
        for number, cursor in enumerate(cursors):
            left -= len(self._events[cursor][1]) + _HEAD_BYTES
            if number and left < 0:
                return
            yield cursor

    def _unpacked(self, cursors: Iterable[int]) -> tuple[TraceEvent, ...]:
        return tuple(_event(self.node, cursor, self._events[cursor][1]) for cursor in cursors)


def cause_of(event: TraceEvent) -> str:
    """Return the cause of an event: events of one cause cannot displace others."""
    alarm = event.data.get("alarm")
    return event.kind if alarm is None else f"{event.kind} {alarm}"


def _packed(event: TraceEvent) -> bytes:
    fields = [event.time_ms, event.log_time_ms, event.kind, event.data]
    return json.dumps(fields, separators=(",", ":")).encode()


def _event(node: str, cursor: int, packed: bytes) -> TraceEvent:
    time_ms, log_time_ms, kind, data = json.loads(packed)
    return TraceEvent(cursor, time_ms, log_time_ms, kind, node, data)
