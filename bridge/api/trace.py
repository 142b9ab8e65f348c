"""The trace's schema: one event as a JSON object, the same at `/v1/events` and in a line of a file.

    {"cursor": 17, "timeMs": …, "logTimeMs": … or null, "kind": "leader-elected", "node": "node-2", "data": {…}}

`kind` is a lower-case word joined by `-`; `data` holds facts only (text, numbers, booleans, null), so that each is a
column for the pipeline. Its keys are chosen by whoever records the event and are not renamed here.
"""

import math
from typing import Any

from bridge.api.control import Scalar, TraceEvent
from bridge.api.view_json import ViewError

DATA_LIMIT_KEYS = 32


def event_document(event: TraceEvent) -> dict[str, Any]:
    """One event as what JSON consists of."""
    return {
        "cursor": event.cursor,
        "timeMs": event.time_ms,
        "logTimeMs": event.log_time_ms,
        "kind": event.kind,
        "node": event.node,
        "data": dict(event.data),
    }


def event_from(found: object) -> TraceEvent:
    """One event out of its document; `ViewError` if it is none."""
    match found:
        case {
            "cursor": int(cursor),
            "timeMs": int(time_ms),
            "logTimeMs": int() | None as log_time_ms,
            "kind": str(kind),
            "node": str(node),
            "data": dict(data),
        }:
            return TraceEvent(cursor, time_ms, log_time_ms, kind, node, _facts(data))
        case _:
            raise ViewError("not a trace event")


def _facts(data: dict[object, object]) -> dict[str, Scalar]:
    if len(data) > DATA_LIMIT_KEYS:
        raise ViewError(f"a trace event with {len(data)} facts, at most {DATA_LIMIT_KEYS} are read")
    facts: dict[str, Scalar] = {}
    for name, value in data.items():
        match name, value:
            case str(), str() | bool() | int() | None:
                facts[name] = value
            case str(), float() if math.isfinite(value):
                facts[name] = value
            case _:
                raise ViewError(f"a trace event's fact {name!r} is neither text nor a number")
    return facts


def event_text(event: TraceEvent) -> str:
    """One event as a line for people: its kind, then its facts."""
    facts = " ".join(f"{name}={_shown(value)}" for name, value in event.data.items())
    return f"{event.kind} {facts}".rstrip()


def _shown(value: Scalar) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
        case _:
            return str(value)
