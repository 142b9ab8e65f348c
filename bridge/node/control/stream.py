"""The node's view and its trace as server-sent events, for those who watch: one answer that goes on.

    GET /v1/stream?from=CURSOR

    event: view             the FarmView, at once and every two seconds
    event: trace            one TraceEvent and its `text`, when it happens; its `id` is the cursor
    event: takeOver         the steps of the last take-over, when they change (`bridge.api.take_over`)
    event: lost             how many events the trace has dropped before this client came for them

The format is that of the WHATWG's HTML standard, 9.2. A client that lost its connection goes on with `from`, one above
the last `id` that it saw. What is sent is what `/v1/view` and `/v1/events` give, with each event in words beside its
data: a page has no dictionary. So a client that cannot stream asks those, and sees the same.

A module of its own: it has a state for each client, and the routes have none.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from bridge.api.events import story_line
from bridge.api.json import encode
from bridge.api.take_over import TakeOver, changes_take_over, last_take_over
from bridge.api.trace import EventPage, TraceEvent
from bridge.api.view import FarmView

STREAM_TYPE: Final = "text/event-stream; charset=utf-8"
VIEW_EVERY_S: Final = 2.0
PAGE_EVENTS: Final = 100
TAKE_OVER_EVENTS: Final = 1_000
"""The newest events, among which the last take-over is looked for; the live view keeps as many."""


class ToldEvent(TraceEvent, frozen=True):
    """An event of the trace, and what happened in words."""

    text: str = ""


@dataclass(slots=True)
class EventStream:
    """One client's place in the stream. `next` gives what is to be sent next, when there is something."""

    view: Callable[[], Awaitable[FarmView]]
    read_events: Callable[[int, int, int], Awaitable[EventPage]]
    """From a cursor, so many, waiting so many milliseconds."""
    cursor: int
    _view_due_s: float = field(default=0.0, init=False)
    _take_over: TakeOver | None = field(default=None, init=False)
    """The one that this client has."""

    async def next(self) -> bytes:
        """One or several events, as bytes."""
        now_s = trio.current_time()
        if now_s >= self._view_due_s:
            self._view_due_s = now_s + VIEW_EVERY_S
            return _event("view", encode(await self.view()))
        wait_ms = max(1, round((self._view_due_s - now_s) * 1000))
        page = await self.read_events(self.cursor, PAGE_EVENTS, wait_ms)
        self.cursor = page.next_cursor
        return _events(page) + await self._changed_take_over(page) or await self.next()

    async def _changed_take_over(self, page: EventPage) -> bytes:
        """The take-over as an event, if the events of this page change it.

        It is read anew: a client that goes on with a later cursor lacks the first events of it.
        """
        if self._take_over is not None and not changes_take_over(page.events):
            return b""
        first = max(1, page.next_cursor - TAKE_OVER_EVENTS)
        newest = await self.read_events(first, TAKE_OVER_EVENTS, 0)
        found = TakeOver(last_take_over(newest.events))
        if found == self._take_over:
            return b""
        self._take_over = found
        return _event("takeOver", encode(found))


def _events(page: EventPage) -> bytes:
    lost = _event("lost", str(page.lost).encode()) if page.lost else b""
    told = (
        ToldEvent(each.cursor, each.time_ms, each.log_time_ms, each.kind, each.node, each.data, story_line(each))
        for each in page.events
    )
    return lost + b"".join(_event("trace", encode(each), each.cursor) for each in told)


def _event(name: str, data: bytes, number: int | None = None) -> bytes:
    """The data are one line: JSON as it is encoded here has no other."""
    head = f"event: {name}\n" + ("" if number is None else f"id: {number}\n")
    return head.encode() + b"data: " + data + b"\n\n"
