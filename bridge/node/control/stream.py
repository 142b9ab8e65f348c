"""The node's view and its trace as server-sent events, for viewers: one continuous reply.

    GET /v1/stream?from=CURSOR&log=COUNT

    event: view             the FarmView, immediately, every two seconds, and when the verdict changes
    event: log              on request the new entries of the log as text, first the last COUNT of them
    event: trace            one TraceEvent with its `text` and `severity`, when it happens; its `id` is the cursor
    event: takeOver         the steps of the last take-over, when they change (`bridge.api.take_over`)
    event: lost             the number of events that the trace dropped before this client read them

The format is defined in the WHATWG's HTML standard, 9.2. After a lost connection a client continues with `from`, one
above the last `id` that it received. A client without streaming can use `/v1/view`, `/v1/events` and `/v1/log`; only
this stream adds texts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio
from msgspec import structs

from bridge.api.control import Refused
from bridge.api.entry_words import Names, entry_words
from bridge.api.events import VERDICT_CHANGED, event_severity, story_line
from bridge.api.json import Record, encode
from bridge.api.log import LogPage
from bridge.api.take_over import TakeOver, changes_take_over, last_take_over
from bridge.api.trace import EventPage, TraceEvent
from bridge.api.view import FarmView, Severity

STREAM_TYPE: Final = "text/event-stream; charset=utf-8"
VIEW_EVERY_S: Final = 2.0
PAGE_EVENTS: Final = 100
TAKE_OVER_EVENTS: Final = 1_000
"""The number of newest events to search for the last take-over; the live view keeps as many."""
LOG_ENTRIES_MAX: Final = 100
LOG_TEXT_LIMIT: Final = 400
"""Characters of an entry's text."""


class DescribedEvent(TraceEvent, frozen=True):
    """An event of the trace with its text and severity."""

    text: str = ""
    severity: Severity = Severity.OK


class DescribedEntry(Record, frozen=True):
    """An entry of the log as text."""

    index: int
    term: int
    log_time_ms: int | None
    type: str
    text: str


class LogTail(Record, frozen=True):
    """New entries of the log."""

    entries: tuple[DescribedEntry, ...]


@dataclass(slots=True)
class EventStream:
    """One client's position in the stream. `next` returns the next part, when there is one."""

    view: Callable[[], Awaitable[FarmView]]
    read_events: Callable[[int, int, int], Awaitable[EventPage]]
    """Reads at most the given number of events from a cursor, and waits at most the given number of milliseconds."""
    cursor: int
    read_log: Callable[[int, int, int], Awaitable[LogPage]]
    """Reads entries of the log from an index, like `read_events`."""
    log_entries: int = 0
    """Number of entries in the first event `log`; 0 disables events of this kind."""
    _next_index: int = field(default=1, init=False)
    _view_due_s: float = field(default=0.0, init=False)
    _take_over: TakeOver | None = field(default=None, init=False)
    """The last take-over sent to this client."""

    async def next(self) -> bytes:
        """Return one or several events, as bytes."""
        now_s = trio.current_time()
        if now_s >= self._view_due_s:
            self._view_due_s = now_s + VIEW_EVERY_S
            view = await self.view()
            return _event("view", encode(view)) + await self._new_entries(view)
        wait_ms = max(1, round((self._view_due_s - now_s) * 1000))
        page = await self.read_events(self.cursor, PAGE_EVENTS, wait_ms)
        self.cursor = page.next_cursor
        if any(each.kind == VERDICT_CHANGED.kind for each in page.events):
            self._view_due_s = now_s
        return _events(page) + await self._changed_take_over(page) or await self.next()

    async def _new_entries(self, view: FarmView) -> bytes:
        kept = min(self.log_entries, LOG_ENTRIES_MAX)
        first = max(self._next_index, view.raft.applied_index - kept + 1)
        if not kept or first > view.raft.applied_index:
            return b""
        try:
            page = await self.read_log(first, kept, 0)
        except Refused:  # The next view tries again.
            return b""
        self._next_index = page.next_index
        names = Names(view)
        found = ((each, entry_words(each, names)) for each in page.entries)
        tail = LogTail(
            tuple(
                DescribedEntry(each.index, each.term, each.log_time_ms, words.type, _shortened(words.text))
                for each, words in found
            )
        )
        return _event("log", encode(tail))

    async def _changed_take_over(self, page: EventPage) -> bytes:
        """Return the take-over as an event, if the events of this page change it.

        Read the last events again: a client that continues from a later cursor has not received the first steps.
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
    sent = (
        DescribedEvent(
            **structs.asdict(each),
            text=story_line(each),
            severity=event_severity(each),
        )
        for each in page.events
    )
    return lost + b"".join(_event("trace", encode(each), each.cursor) for each in sent)


def _shortened(text: str) -> str:
    return text if len(text) <= LOG_TEXT_LIMIT else f"{text[:LOG_TEXT_LIMIT]}…"


def _event(name: str, data: bytes, number: int | None = None) -> bytes:
    """Encode an event; its data is one line, since the JSON encoder here never breaks lines."""
    head = f"event: {name}\n" + ("" if number is None else f"id: {number}\n")
    return head.encode() + b"data: " + data + b"\n\n"
