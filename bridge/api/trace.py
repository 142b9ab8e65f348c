"""The trace of a node: its events, in the same form at `/v1/events` and in the lines of a file.

    {"cursor": 17, "timeMs": …, "logTimeMs": … or null, "kind": "leader-elected", "node": "node-2", "data": {…}}

`kind` consists of lower-case words joined by `-`. `data` holds only facts (text, numbers, booleans, null), so that each
fact is a column for the pipeline. The part of the node that records an event chooses its keys; no other part renames
them.

A reader requests a position, and each page has the position of the next page. The node does not keep state for a
reader. The trace is bounded, and `lost` counts the events that it dropped before the reader requested them.
"""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, field

from bridge.api.json import Document, Record

DATA_LIMIT_KEYS = 32

Scalar: TypeAlias = str | int | float | bool | None
"""Types of the facts of an event. Facts are not nested, so that they become columns of a table."""


class TraceEvent(Record, frozen=True):
    """An event of a node, for people and for the pipeline."""

    cursor: int
    """The number of the event since the process started, from 1 on."""
    time_ms: int
    """Time of the node's clock."""
    log_time_ms: int | None
    """Log time; null if the event does not come from the log."""
    kind: str
    """The name of the event."""
    node: str
    """The name of the node."""
    data: Annotated[Mapping[str, Scalar], Meta(max_length=DATA_LIMIT_KEYS)] = {}
    """The facts of the event; their keys depend on its kind."""


class EventPage(Document, frozen=True):
    """Events in order of their cursors."""

    next_cursor: int = field(name="next")
    """Cursor for the next request."""
    lost: int
    """Number of events overwritten before this request read them."""
    events: tuple[TraceEvent, ...] = ()
    """The events."""


class LogLine(Record, frozen=True):
    """A line of a node's own log, with `log.format = "json"`; UTC."""

    time: str
    """Time of the node's clock: `2026-11-25T14:16:57.874Z`."""
    level: str
    """`info`; `warning` for alarms, failures, refusals and bad verdicts; `error` for the node's end and faults."""
    node: str
    """Name of the node; empty until its settings are read."""
    event: str
    """Kind of the event, as in the trace; `node-ended` with the reason; otherwise `message`."""
    text: str
    """The event as text."""
    fields: dict[str, Scalar]
    """The facts of the event, as in the trace; otherwise `logger`, and `traceback` of a fault of the program."""
