"""Traces as places that can be read in stretches: a node's ring of events, or a file of them.

    end(start)            an offset up to which can be read now; None while a node does not answer
    stretch(start, end)   what lies between two offsets, with what a reader elsewhere needs to know
    rows(stretch)         its events

The offset of a node is `GENERATION:CURSOR`: cursors begin at 1 in each life of a node, and the generation tells lives
apart. The offset of a file is a number of bytes, up to the end of its last whole line.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.endpoint import LOST, Credentials, Endpoint
from pipeline.log_client import FarmLogError

PAGE_EVENTS = 1_000
LINE_LIMIT_BYTES = 1024 * 1024
EVENTS_LOST = "events-lost"

EventRow = tuple[str, int, int, int | None, int | None, str, str]
"""Node, cursor, time and log time in milliseconds, the clock's offset, kind, data as JSON."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What lies in [first, end) of one life of a node, or between two places in a file."""

    first: int
    end: int
    generation: int = 0
    node: str = ""
    planned_at_ms: int = 0
    clock_offset_ms: int | None = None


class Trace(Protocol):
    """One trace. Picklable."""

    @property
    def name(self) -> str:
        """What it is called in an offset."""

    def end(self, start: str | None) -> str | None:
        """Up to where it can be read now."""

    def stretch(self, start: str | None, end: str) -> Stretch:
        """What lies between two offsets."""

    def rows(self, stretch: Stretch) -> Iterator[EventRow]:
        """The events of a stretch."""


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The ring of the node at one control endpoint."""

    address: str
    credentials: Credentials

    @property
    def name(self) -> str:
        """Its address."""
        return self.address

    def end(self, start: str | None) -> str | None:
        """Beyond the newest event."""
        try:
            with Endpoint(self.address, self.credentials) as node:
                generation = int(node.get("/v1/view")["node"]["generation"])
                following = _following(start, generation)
                while True:
                    page = node.get(f"/v1/events?from={following}&limit={PAGE_EVENTS}")
                    following = int(page["next"])
                    if len(page["events"]) < PAGE_EVENTS:
                        return f"{generation}:{following}"
        except (*LOST, KeyError):
            return None

    def stretch(self, start: str | None, end: str) -> Stretch:
        """With what the node's own picture says of its clock."""
        generation, following = _parsed(end)
        first = _following(start, generation)
        try:
            with Endpoint(self.address, self.credentials) as node:
                view = node.get("/v1/view")
                log_time_ms, now_ms = view["raft"]["logTimeMs"], int(view["takenAtMs"])
                offset_ms = None if log_time_ms is None else now_ms - int(log_time_ms)
                return Stretch(first, following, generation, str(view["node"]["name"]), now_ms, offset_ms)
        except (*LOST, KeyError):
            return Stretch(first, following, generation, self.address)

    def rows(self, stretch: Stretch) -> Iterator[EventRow]:
        """Page by page; what is gone leaves a row of its own."""
        following = stretch.first
        try:
            with Endpoint(self.address, self.credentials) as node:
                same_life = int(node.get("/v1/view")["node"]["generation"]) == stretch.generation
                while same_life and following < stretch.end:
                    page = node.get(f"/v1/events?from={following}&limit={min(PAGE_EVENTS, stretch.end - following)}")
                    rows = [_row(event, stretch.clock_offset_ms) for event in page["events"]]
                    if not rows:
                        break
                    if rows[0][1] > following:
                        yield _lost(stretch, min(rows[0][1], stretch.end) - following, rows[0][1] - 1, rows[0][2])
                    yield from (row for row in rows if row[1] < stretch.end)
                    following = rows[-1][1] + 1
        except (*LOST, KeyError):
            pass  # the node has gone, and took along what is missing
        if following < stretch.end:
            yield _lost(stretch, stretch.end - following, stretch.end - 1, stretch.planned_at_ms)


@dataclass(frozen=True, slots=True)
class FileTrace:
    """A file with one event on each line."""

    path: str

    @property
    def name(self) -> str:
        """Its path."""
        return self.path

    def end(self, start: str | None) -> str | None:
        """The end of its last whole line."""
        offset = int(start or 0)
        try:
            with Path(self.path).open("rb") as file:
                file.seek(offset)
                while line := file.readline(LINE_LIMIT_BYTES):
                    if len(line) == LINE_LIMIT_BYTES:
                        raise FarmLogError(f"the trace {self.path} has a line of {len(line)} bytes or more at {offset}")
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
        except OSError as error:
            raise FarmLogError(f"the trace {self.path} cannot be read: {error.strerror or error}") from error
        return str(offset)

    def stretch(self, start: str | None, end: str) -> Stretch:
        """Bytes between two places."""
        return Stretch(int(start or 0), int(end))

    def rows(self, stretch: Stretch) -> Iterator[EventRow]:
        """One row a line. Raises FarmLogError for a line that is no event."""
        offset = stretch.first
        try:
            with Path(self.path).open("rb") as file:
                file.seek(offset)
                while offset < stretch.end and (line := file.readline(LINE_LIMIT_BYTES)):
                    yield self._row(line, offset)
                    offset += len(line)
        except OSError as error:
            raise FarmLogError(f"the trace {self.path} cannot be read: {error.strerror or error}") from error

    def _row(self, line: bytes, offset: int) -> EventRow:
        try:
            return _row(json.loads(line), None)
        except (ValueError, TypeError, KeyError) as error:
            raise FarmLogError(f"the trace {self.path} holds at byte {offset} what is no event: {error!r}") from error


def _row(event: dict[str, Any], clock_offset_ms: int | None) -> EventRow:
    time_ms, told_ms = int(event["timeMs"]), event["logTimeMs"]
    log_time_ms = int(told_ms) if told_ms is not None else None
    if log_time_ms is None and clock_offset_ms is not None:
        log_time_ms = time_ms - clock_offset_ms
    data = json.dumps(event["data"], separators=(",", ":"))
    return str(event["node"]), int(event["cursor"]), time_ms, log_time_ms, clock_offset_ms, str(event["kind"]), data


def _lost(stretch: Stretch, count: int, cursor: int, time_ms: int) -> EventRow:
    offset_ms = stretch.clock_offset_ms
    log_time_ms = None if offset_ms is None else time_ms - offset_ms
    return stretch.node, cursor, time_ms, log_time_ms, offset_ms, EVENTS_LOST, json.dumps({"lost": count})


def _following(start: str | None, generation: int) -> int:
    """The cursor to go on from: that of the offset, or the first if that was in an earlier life."""
    if start is None:
        return 1
    life, following = _parsed(start)
    return following if life == generation else 1


def _parsed(offset: str) -> tuple[int, int]:
    generation, _, following = offset.partition(":")
    return int(generation), int(following)
