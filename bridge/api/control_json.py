"""The bodies of the control endpoint as JSON and back (`docs/reference/control-endpoint.md`).

An application entry is bytes. Nearly always they are UTF-8 text, and then `value` is that text as it stands; otherwise
`base64` carries them. Quoting the text, instead of embedding the entry's JSON, keeps the bytes exact: what a reader
hashes or parses is what the log holds, whatever its key order, spacing or duplicate keys.
"""

import base64
import binascii
from typing import Any

import msgspec

from bridge.api.control import (
    ClusterAnswer,
    EntryKind,
    EventPage,
    KeysAnswer,
    LogEntryView,
    LogPage,
    SubmitAnswer,
    SubmitOutcome,
)
from bridge.api.trace import event_document, event_from
from bridge.api.view_json import SCHEMA, ViewError, checked, document, from_document
from consensus import Entry, decode_configuration, decode_no_op
from consensus import EntryKind as CoreEntryKind


def log_entry(index: int, entry: Entry, log_time_ms: int | None) -> LogEntryView:
    """A Raft entry as its reader sees it; a configuration becomes JSON text."""
    match entry.kind:
        case CoreEntryKind.COMMAND:
            return LogEntryView(index, entry.term, EntryKind.APPLICATION, log_time_ms, entry.data)
        case CoreEntryKind.CONFIGURATION:
            members = decode_configuration(entry.data)
            listed = {"voters": members.voters, "oldVoters": members.old_voters, "learners": members.learners}
            value = msgspec.json.encode(
                {
                    name: [{"id": server.server_id, "endpoint": server.endpoint} for server in servers]
                    for name, servers in listed.items()
                    if servers or name == "voters"
                }
            )
            return LogEntryView(index, entry.term, EntryKind.CONFIGURATION, log_time_ms, value)
        case CoreEntryKind.NO_OP | CoreEntryKind.CONTROL:
            leader = decode_no_op(entry.data).leader if entry.kind is CoreEntryKind.NO_OP else None
            value = msgspec.json.encode({"leader": leader})
            return LogEntryView(index, entry.term, EntryKind.NO_OP, log_time_ms, value)


def log_page_document(page: LogPage) -> dict[str, Any]:
    """A page of the log as what JSON consists of."""
    return {
        "schema": SCHEMA,
        "firstIndex": page.first_index,
        "lastIndex": page.last_index,
        "commitIndex": page.commit_index,
        "nextIndex": page.next_index,
        "entries": [_log_entry_document(entry) for entry in page.entries],
    }


def _log_entry_document(entry: LogEntryView) -> dict[str, Any]:
    try:
        value = {"value": entry.value.decode()}
    except UnicodeDecodeError:
        value = {"base64": base64.b64encode(entry.value).decode()}
    head = {"index": entry.index, "term": entry.term, "kind": entry.kind.value, "logTimeMs": entry.log_time_ms}
    return {**head, **value}


def log_page_from(found: dict[str, Any]) -> LogPage:
    """A page of the log out of its document; `ViewError` if it is none."""
    match checked(found):
        case {
            "firstIndex": int(first),
            "lastIndex": int(last),
            "commitIndex": int(commit),
            "nextIndex": int(following),
            "entries": list(entries),
        }:
            return LogPage(first, last, commit, following, tuple(_log_entry_from(entry) for entry in entries))
        case _:
            raise ViewError("not a page of the log")


def _log_entry_from(found: object) -> LogEntryView:
    match found:
        case {
            "index": int(index),
            "term": int(term),
            "kind": "application" | "configuration" | "no-op" as kind,
            "logTimeMs": int() | None as log_time_ms,
        }:
            return LogEntryView(index, term, EntryKind(kind), log_time_ms, _value(found))
        case _:
            raise ViewError("not an entry of the log")


def _value(found: object) -> bytes:
    match found:
        case {"value": str(text)}:
            return text.encode()
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ViewError(f"an entry's base64 does not decode: {error}") from error
        case _:
            raise ViewError("an entry of the log without value")


def event_page_document(page: EventPage) -> dict[str, Any]:
    """A page of the trace as what JSON consists of."""
    return {
        "schema": SCHEMA,
        "next": page.next_cursor,
        "lost": page.lost,
        "events": [event_document(event) for event in page.events],
    }


def event_page_from(found: dict[str, Any]) -> EventPage:
    """A page of the trace out of its document; `ViewError` if it is none."""
    match checked(found):
        case {"next": int(following), "lost": int(lost), "events": list(events)}:
            return EventPage(following, lost, tuple(event_from(event) for event in events))
        case _:
            raise ViewError("not a page of the trace")


def cluster_document(answer: ClusterAnswer) -> dict[str, Any]:
    """Who leads and who votes, as what JSON consists of."""
    return {"schema": SCHEMA, **document(answer)}


def cluster_from(found: dict[str, Any]) -> ClusterAnswer:
    """Who leads and who votes, out of its document; `ViewError` if it is none."""
    return from_document(ClusterAnswer, checked(found))


def keys_document(answer: KeysAnswer) -> dict[str, Any]:
    """The farm's key ring, as what JSON consists of."""
    return {"schema": SCHEMA, **document(answer)}


def keys_from(found: dict[str, Any]) -> KeysAnswer:
    """The farm's key ring, out of its document; `ViewError` if it is none."""
    return from_document(KeysAnswer, checked(found))


def submit_document(answer: SubmitAnswer) -> dict[str, Any]:
    """How a submission ended; `accepted` says in one word whether it is an acknowledgement."""
    return {"schema": SCHEMA, "accepted": answer.outcome is SubmitOutcome.COMMITTED, **document(answer)}


def submit_from(found: dict[str, Any]) -> SubmitAnswer:
    """How a submission ended, out of its document; `ViewError` if it is none."""
    return from_document(SubmitAnswer, checked(found))
