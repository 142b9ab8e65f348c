"""Traces, read in stretches: a node's ring of events, or a file of events.

    end(start)            the end of the readable range, as an offset; None while a node does not reply
    stretch(start, end)   the range between two offsets, with the data that a reader in another process needs
    rows(stretch)         its events

The offset of a node is `GENERATION:CURSOR:CLOCK_OFFSET_MS:TAKEN_AT_MS:FARM:NAME`. Cursors begin at 1 in each process of
a node, and the generation distinguishes its processes. The other parts are needed for rows: they are in the offset, so
that a repeated batch makes the same rows. The offset of a file is a number of bytes, up to the end of its last whole
line.

An event of a node gets its log time from the node's clock and that clock's offset to log time. A file has log time for
some events only. Any other event uses the clock offset of a neighbor. This is the last dated event of the same node
before it, at most `BACK_BYTES` before the stretch. Without such an event, it is the next dated event of the node in the
stretch. Without a neighbor, log time is NULL. Clocks of nodes are not compared.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from pipeline.schemas import LATEST_MS
from pipeline.source.endpoint import LOST, Credentials, Endpoint
from pipeline.source.log_client import FarmLogError

PAGE_EVENTS = 1_000
PAGES_AT_ONCE = 100
"""Limit of pages in a row: more than twenty times the ring of a node. An endpoint that sends more is not a node."""
LINE_LIMIT_BYTES = BACK_BYTES = 1024 * 1024
EVENTS_LOST = "events-lost"
_COUNTS_END = 2**63
_SHOWN = 100

EventRow = tuple[str, int, int, int | None, int | None, str, str]
"""Node, cursor, time and log time in milliseconds, the clock's offset, kind, data as JSON."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The range [first, end) of one generation of a node, or between two places in a file."""

    first: int
    end: int
    generation: int = 0
    node: str = ""
    planned_at_ms: int = 0
    clock_offset_ms: int | None = None
    farm: str | None = None
    """The cluster id of the node's farm, if known."""


class Trace(Protocol):
    """One trace. Picklable."""

    @property
    def name(self) -> str:
        """Name of the trace in an offset."""

    def end(self, start: str | None) -> str | None:
        """Return the current end of the readable range."""

    def stretch(self, start: str | None, end: str) -> Stretch:
        """Return the range between two offsets."""

    def rows(self, stretch: Stretch) -> Iterator[EventRow]:
        """Yield the events of a stretch."""


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The ring of the node at one control endpoint."""

    address: str
    credentials: Credentials

    @property
    def name(self) -> str:
        """Address of the node."""
        return self.address

    def end(self, start: str | None) -> str | None:
        """Return the offset after the newest event, with the node's clock offset; return `start` without new events."""
        try:
            with Endpoint(self.address, self.credentials) as node:
                view = node.get("/v1/view")
                generation = _count(view["node"]["generation"])
                next_cursor = _newest(node, _next_cursor(start, generation))
                log_time_ms, now_ms = view["raft"]["logTimeMs"], _time_ms(view["takenAtMs"])
                offset = "" if log_time_ms is None else now_ms - _time_ms(log_time_ms)
                farm = _cluster(view.get("farm"))
                found = f"{generation}:{next_cursor}:{offset}:{now_ms}:{farm}:{_text(view['node']['name'])}"
        except (*LOST, KeyError):
            return None  # no reply, or a node without a trace
        return start if start is not None and same_place(start, found) else found

    def stretch(self, start: str | None, end: str) -> Stretch:
        """Return the stretch from the two offsets alone, without a request."""
        generation, next_cursor = _parsed(end)
        _, _, offset, now, farm, name = (*end.split(":", 5), "", "", "", "")[:6]
        return Stretch(
            first=_next_cursor(start, generation),
            end=next_cursor,
            generation=generation,
            node=name or self.address,
            planned_at_ms=int(now or 0),
            clock_offset_ms=int(offset) if offset else None,
            farm=farm or None,
        )

    def rows(self, stretch: Stretch) -> Iterator[EventRow]:
        """Request the events page by page; yield one row for each gap of lost events."""
        next_cursor = stretch.first
        try:
            with Endpoint(self.address, self.credentials) as node:
                pages = PAGES_AT_ONCE if node.get("/v1/view")["node"]["generation"] == stretch.generation else 0
                while pages and next_cursor < stretch.end:
                    pages -= 1
                    page = node.get(
                        f"/v1/events?from={next_cursor}&limit={min(PAGE_EVENTS, stretch.end - next_cursor)}"
                    )
                    rows = [_row(event, stretch.clock_offset_ms) for event in page["events"]]
                    if not rows:
                        break
                    _check_order(rows, next_cursor)
                    if rows[0][1] > next_cursor:
                        yield _lost(stretch, min(rows[0][1], stretch.end) - next_cursor, rows[0][1] - 1, rows[0][2])
                    yield from (row for row in rows if row[1] < stretch.end)
                    next_cursor = rows[-1][1] + 1
        except (*LOST, KeyError, RecursionError):
            pass  # the node has gone, with the missing events
        if next_cursor < stretch.end:
            yield _lost(stretch, stretch.end - next_cursor, stretch.end - 1, stretch.planned_at_ms)


@dataclass(frozen=True, slots=True)
class FileTrace:
    """A file with one event on each line."""

    path: str
    farm: str | None = None
    """The cluster id of the events, from the reader: a line does not contain it."""

    @property
    def name(self) -> str:
        """Path of the file."""
        return self.path

    def end(self, start: str | None) -> str | None:
        """Return the end of its last whole line."""
        offset = int(start or 0)
        try:
            with Path(self.path).open("rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                if size_bytes < offset:
                    raise FarmLogError(
                        f"the trace {self.path} has {size_bytes} bytes, and {offset} were read before: it was cut or"
                        " replaced. Give the new trace another name; the tables keep the events read before",
                    )
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
        """Return the bytes between two places."""
        return Stretch(int(start or 0), int(end), farm=self.farm)

    def rows(self, stretch: Stretch) -> Iterator[EventRow]:
        """Yield one row per line. Raise FarmLogError for a line that is not an event."""
        try:
            offsets = dict(self._clock_offsets(max(0, stretch.first - BACK_BYTES), stretch.first))
            later: dict[str, int] | None = None
            for place, line in self._lines(stretch.first, stretch.end):
                node, cursor, time_ms, log_time_ms, _, kind, facts = self._row(line, place)
                if log_time_ms is not None:
                    offsets[node] = time_ms - log_time_ms
                elif node not in offsets:
                    if later is None:
                        later = {}
                        for other, found_ms in self._clock_offsets(place, stretch.end):
                            later.setdefault(other, found_ms)
                    if node in later:
                        offsets[node] = later[node]
                offset_ms = offsets.get(node)
                at_ms = _reckoned(time_ms, offset_ms) if log_time_ms is None else log_time_ms
                yield node, cursor, time_ms, at_ms, offset_ms, kind, facts
        except OSError as error:
            raise FarmLogError(f"the trace {self.path} cannot be read: {error.strerror or error}") from error

    def _lines(self, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines between two places, each with its place."""
        with Path(self.path).open("rb") as file:
            file.seek(first)
            while first < end and (line := file.readline(LINE_LIMIT_BYTES)):
                yield first, line
                first += len(line)

    def _clock_offsets(self, first: int, end: int) -> Iterator[tuple[str, int]]:
        """Yield the node and its clock offset of each dated event; skip other lines, and a cut first line."""
        for _, line in self._lines(first, end):
            try:
                node, _, time_ms, log_time_ms, *_ = _row(json.loads(line), None)
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if log_time_ms is not None:
                yield node, time_ms - log_time_ms

    def _row(self, line: bytes, offset: int) -> EventRow:
        try:
            return _row(json.loads(line), None)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FarmLogError(
                f"the trace {self.path} has an invalid event at byte {offset} ({error!r}): stop the run and remove"
                " that line, or leave the file out",
            ) from error


def _newest(node: Endpoint, next_cursor: int) -> int:
    """Return the cursor after the newest event, or after the limit of one batch."""
    first_cursor = next_cursor
    for _ in range(PAGES_AT_ONCE):
        page = node.get(f"/v1/events?from={next_cursor}&limit={PAGE_EVENTS}")
        next_cursor = _count(page["next"])
        if len(page["events"]) < PAGE_EVENTS:
            break
    if next_cursor < first_cursor:
        raise ValueError(f"its trace ends before {first_cursor}, in the same generation")
    return next_cursor


def _check_order(rows: list[EventRow], next_cursor: int) -> None:
    cursors = [next_cursor - 1, *(row[1] for row in rows)]
    if any(after <= before for before, after in pairwise(cursors)):
        raise ValueError(f"a page of its trace from {next_cursor} on is not in order")


def _row(event: dict[str, Any], clock_offset_ms: int | None) -> EventRow:
    """Return the row of an event. Raise ValueError, TypeError, KeyError or RecursionError if it is malformed."""
    time_ms, given_ms = _time_ms(event["timeMs"]), event["logTimeMs"]
    log_time_ms = _reckoned(time_ms, clock_offset_ms) if given_ms is None else _time_ms(given_ms)
    data = event["data"]
    if not isinstance(data, dict):
        raise TypeError(f"the facts {data!r}"[:_SHOWN])
    facts = json.dumps(data, separators=(",", ":"), allow_nan=False)
    cursor, node, kind = _count(event["cursor"]), _text(event["node"]), _text(event["kind"])
    return node, cursor, time_ms, log_time_ms, clock_offset_ms, kind, facts


def _reckoned(time_ms: int, clock_offset_ms: int | None) -> int | None:
    """Return log time by a node's clock; None if unknown, or not representable."""
    if clock_offset_ms is None or not 0 <= time_ms - clock_offset_ms <= LATEST_MS:
        return None
    return time_ms - clock_offset_ms


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _COUNTS_END:
        raise ValueError(f"the number {value!r}"[:_SHOWN])
    return value


def _time_ms(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LATEST_MS:
        raise ValueError(f"the time {value!r}"[:_SHOWN])
    return value


def _text(value: Any) -> str:
    # Half of a UTF-16 pair is valid text in JSON, but no table can hold it.
    if not isinstance(value, str) or value.encode("utf-8", "replace").decode() != value:
        raise ValueError(f"the text {value!r}"[:_SHOWN])
    return value


def _cluster(farm_view: Any) -> str:
    """Return the cluster id in a node's view, a part of an offset; empty before the farm is created."""
    found = farm_view.get("clusterId") if isinstance(farm_view, dict) else None
    return found if isinstance(found, str) and found.isascii() and found.isalnum() else ""


def _lost(stretch: Stretch, count: int, cursor: int, time_ms: int) -> EventRow:
    offset_ms = stretch.clock_offset_ms
    log_time_ms = _reckoned(time_ms, offset_ms)
    return stretch.node, cursor, time_ms, log_time_ms, offset_ms, EVENTS_LOST, json.dumps({"lost": count})


def _next_cursor(start: str | None, generation: int) -> int:
    """Return the next cursor: from the offset, or 1 if the offset is from another generation."""
    if start is None:
        return 1
    read_generation, next_cursor = _parsed(start)
    return next_cursor if read_generation == generation else 1


def _parsed(offset: str) -> tuple[int, int]:
    generation, next_cursor, *_ = offset.split(":")
    return int(generation), int(next_cursor)


def same_place(one: str, other: str) -> bool:
    """Return True if two offsets are at the same place."""
    return one.split(":")[:2] == other.split(":")[:2]
