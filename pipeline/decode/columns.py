"""The rows of the source `farm`: decoded entries as typed columns (`pipeline.schemas.ENTRIES`) in Arrow batches.

    rows ──▶ thousands at a time ──▶ the common columns        one value a row
                                └──▶ a struct for each kind    made of the entries of that kind, then spread over the
                                                               rows: NULL for entries of other kinds

Columns are filled one after another, each from a list, because a loop in Python over rows and columns is slow. A record
batch costs milliseconds, even for one row, so it may have rows of many logs. It ends after `ROWS_PER_RECORD_BATCH`
rows, or earlier when its bodies grow large: a few entries of ten megabytes must not become one allocation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import attrgetter
from statistics import median_low
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.decode.entries import (
    Action,
    Clock,
    Configuration,
    Decoded,
    Factors,
    LeafPart,
    Publication,
    ReportEntry,
    address_of,
    decoded,
    parts_of,
)
from pipeline.schemas import ENTRIES, FIGURE_COLUMNS, LATEST_MS, arrow_schema

ROWS_PER_RECORD_BATCH = 4_000
"""Two megabytes of reports, which fit a processor's cache."""
BYTES_PER_RECORD_BATCH = 32 * 1024 * 1024

Row = tuple[int, int, str, int | None, bytes]
"""Index, term, kind, log time in milliseconds, the entry's bytes."""
RowsOfLog = tuple[str, str | None, Iterable[Row]]
"""The cluster id of a farm, its name, and rows of its log."""

ARROW_SCHEMA = arrow_schema(ENTRIES)
_UNDECODED = frozenset({"farm", "farm_name", "index", "term", "kind", "log_time", "body_bytes"})
_PLAIN = {"farm": "farms", "farm_name": "names", "index": "indexes", "term": "terms", "kind": "kinds"}
_NOT_DECODED = Decoded("")
_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_MOMENT = pa.timestamp("us", tz="UTC")


class Selection(Protocol):
    """The selected rows and columns; None selects all."""

    @property
    def entries(self) -> frozenset[str] | None:
        """The kinds of entries."""

    @property
    def servers(self) -> frozenset[int] | None:
        """The servers."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns, in this order."""


def record_batches(rows: Iterable[Row], farm: str, name: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the farm with the cluster id `farm` and the name `name` in order, in batches."""
    return batches_of_logs([(farm, name, rows)])


def batches_of_logs(logs: Iterable[RowsOfLog], selection: Selection | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several logs in order; a batch may have rows of many of them."""
    made = _Maker(selection)
    columns = _Columns()
    size_bytes = 0
    for farm, name, rows in logs:
        for index, term, kind, time_ms, body in rows:
            columns.farms.append(farm)
            columns.names.append(name)
            columns.indexes.append(index)
            columns.terms.append(term)
            columns.kinds.append(kind)
            columns.times_ms.append(time_ms)
            columns.bodies.append(body)
            size_bytes += len(body)
            if len(columns.indexes) >= ROWS_PER_RECORD_BATCH or size_bytes >= BYTES_PER_RECORD_BATCH:
                yield made.record_batch(columns)
                columns, size_bytes = _Columns(), 0
    if columns.indexes:
        yield made.record_batch(columns)


@dataclass(slots=True)
class _Columns:
    """Collected rows, by column: thousands of tuples would double the cost of a batch."""

    farms: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    times_ms: list[int | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


class _Maker:
    """Makes record batches of the selected rows and columns."""

    def __init__(self, selection: Selection | None) -> None:
        self._entries, self._servers, columns = (
            (None, None, None) if selection is None else (selection.entries, selection.servers, selection.columns)
        )
        self._schema = ARROW_SCHEMA if columns is None else pa.schema([ARROW_SCHEMA.field(each) for each in columns])

    def record_batch(self, columns: _Columns) -> pa.RecordBatch:
        """Return the selected rows and columns as a record batch."""
        entries = self._decoded(columns)
        if self._entries is not None or self._servers is not None:
            columns, entries = self._chosen(columns, entries)
        return pa.RecordBatch.from_arrays(
            [self._column(each, columns, entries) for each in self._schema], schema=self._schema
        )

    def _decoded(self, columns: _Columns) -> list[Decoded]:
        if self._entries is None and self._servers is None and _UNDECODED.issuperset(self._schema.names):
            return [_NOT_DECODED] * len(columns.indexes)
        return [decoded(kind, body) for kind, body in zip(columns.kinds, columns.bodies, strict=True)]

    def _chosen(self, columns: _Columns, entries: list[Decoded]) -> tuple[_Columns, list[Decoded]]:
        places = [
            place
            for place, each in enumerate(entries)
            if (self._entries is None or each.entry in self._entries)
            and (self._servers is None or _server_of(each.content) in self._servers)
        ]
        chosen = {each.name: [*map(getattr(columns, each.name).__getitem__, places)] for each in fields(columns)}
        return _Columns(**chosen), [entries[place] for place in places]

    def _column(self, column: pa.Field, columns: _Columns, entries: list[Decoded]) -> pa.Array:
        if column.name in _STRUCTS:
            return _spread(column.type, entries, *_STRUCTS[column.name])
        made = self._plain(column.name, columns, entries)
        return made if isinstance(made, pa.Array) else pa.array(made, column.type)

    def _plain(self, name: str, columns: _Columns, entries: list[Decoded]) -> Any:
        match name:
            case _ if name in _PLAIN:
                return getattr(columns, _PLAIN[name])
            case "log_time":
                return _moments(columns.times_ms)
            case "server_id":
                return [_server_of(each.content) for each in entries]
            case "body_bytes":
                return [len(body) for body in columns.bodies]
            case "body":
                pairs = zip(entries, columns.bodies, strict=True)
                return [None if each.reason is None else body for each, body in pairs]
            case _:
                return [getattr(each, name) for each in entries]


def _server_of(content: Any) -> int | None:
    """Return the server of an entry: the reporting server, the leader that keeps time, or the publisher."""
    if type(content) is ReportEntry:
        return content.id
    return content.server_id if isinstance(content, Clock | Publication) else None


def _spread(
    kind: pa.DataType, entries: Sequence[Decoded], of: type, values: Callable[[pa.DataType, list[Any]], pa.Array]
) -> pa.Array:
    """Return the column made from the entries of one kind, with NULL in all other rows."""
    contents = [each.content for each in entries if type(each.content) is of]
    if not contents:
        return pa.nulls(len(entries), kind)
    made = values(kind, contents)
    if len(contents) == len(entries):
        return made
    place = iter(range(len(contents)))
    return made.take(pa.array([next(place) if type(each.content) is of else None for each in entries], pa.int32()))


def _struct(kind: pa.StructType, columns: dict[str, Any]) -> pa.StructArray:
    arrays = [
        value if isinstance(value, pa.Array) else pa.array(value, each.type)
        for each, value in ((each, columns[each.name]) for each in kind)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _moments(times_ms: Sequence[int | None], scale: int = 1) -> pa.Array:
    """Return moments from milliseconds, or from units of `scale` milliseconds; NULL outside the representable years."""
    whole = pa.array(times_ms, pa.int64())
    if scale != 1:
        whole = pc.multiply(whole, scale)
    shown = pc.if_else(pc.less_equal(whole, LATEST_MS), whole, pa.scalar(None, pa.int64()))
    return shown.cast(_MILLISECONDS).cast(_MOMENT)


def _reports(kind: pa.StructType, entries: list[ReportEntry]) -> pa.Array:
    routers = [entry.router for entry in entries]
    masters = [parts_of(entry) for entry in entries]
    columns = {
        "written_at": _moments([entry.date for entry in entries]),
        # A missing `attached` means true.
        "attached": [router.attached is not False for router in routers],
        **{column: [*map(attrgetter(figure.name), routers)] for column, figure in FIGURE_COLUMNS.items()},
        "destinations": [len(entry.destinations) for entry in entries],
        "healthy_destinations": [sum(leaf.healthy is True for leaf in entry.destinations) for entry in entries],
        "publishing": [any(part.publishing is True for part in parts) for parts in masters],
        "publish_config": [
            ",".join(dict.fromkeys(part.publish_config.value for part in parts)) if parts else None for parts in masters
        ],
        "can_sign_until": _moments(
            [
                min((part.can_sign_until_s for part in parts if part.can_sign_until_s is not None), default=None)
                for parts in masters
            ],
            1000,
        ),
        "last_published_at": _moments(
            [max((part.last_published_time_ms or 0 for part in parts), default=0) or None for parts in masters]
        ),
        "masters": [len(parts) for parts in masters],
        "fetch_ms": [_fetch_ms(entry) for entry in entries],
    }
    return _struct(kind, columns)


def _fetch_ms(entry: ReportEntry) -> int | None:
    """Return the lower median of the durations of successful look-ups in a report; None without any."""
    # Most reports lack look-ups.
    if not entry.remote_destinations and not entry.remote_metas:
        return None
    measured = (*entry.remote_destinations, *entry.remote_metas)
    took_ms = [each.fetch_ms for each in measured if each.reachable and each.fetch_ms is not None]
    return median_low(took_ms) if took_ms else None


def _destinations(kind: pa.ListType, entries: list[ReportEntry]) -> pa.Array:
    ends = [0, *accumulate(len(entry.destinations) for entry in entries)]
    leaves: list[LeafPart] = [leaf for entry in entries for leaf in entry.destinations]
    columns = {
        "address": [address_of(leaf.destination) for leaf in leaves],
        "healthy": [leaf.healthy is True for leaf in leaves],
        "uptime_ms": [leaf.uptime_ms for leaf in leaves],
        "configured_tunnels": [leaf.configured_tunnels for leaf in leaves],
        "current_tunnels": [leaf.current_tunnels for leaf in leaves],
        "configured_bandwidth_bytes_per_s": [leaf.configured_bandwidth_bytes_per_s for leaf in leaves],
        "bandwidth_bytes_per_s": [leaf.current_bandwidth_bytes_per_s for leaf in leaves],
        "configured_connections": [leaf.configured_connections for leaf in leaves],
        "connections": [leaf.current_connections for leaf in leaves],
    }
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _struct(kind.value_type, columns), type=kind)


def _clocks(kind: pa.StructType, entries: list[Clock]) -> pa.Array:
    columns = {
        "time": _moments([entry.time_ms for entry in entries]),
        "period_ms": [entry.period_ms for entry in entries],
    }
    return _struct(kind, columns)


def _publications(kind: pa.StructType, entries: list[Publication]) -> pa.Array:
    columns = {
        "address": [address_of(entry.master) for entry in entries],
        "published_at": _moments([entry.published_s for entry in entries], 1000),
        "content_hash": [entry.content_hash for entry in entries],
    }
    return _struct(kind, columns)


def _configurations(kind: pa.StructType, entries: list[Configuration]) -> pa.Array:
    columns = {
        "voters": [sorted(server.id for server in entry.voters) for entry in entries],
        "learners": [sorted(server.id for server in entry.learners) for entry in entries],
        "joint": [bool(entry.old_voters) for entry in entries],
    }
    return _struct(kind, columns)


def _factors(kind: pa.StructType, entries: list[Factors]) -> pa.Array:
    columns = {
        "through_index": [entry.through_index for entry in entries],
        "formula": [entry.formula for entry in entries],
        "factors": [[*entry.factors.items()] for entry in entries],
    }
    return _struct(kind, columns)


def _actions(kind: pa.StructType, entries: list[Action]) -> pa.Array:
    columns = {
        "address": [entry.subject for entry in entries],
        "detail": [entry.detail for entry in entries],
    }
    return _struct(kind, columns)


_STRUCTS: dict[str, tuple[type, Callable[[Any, list[Any]], pa.Array]]] = {
    "report": (ReportEntry, _reports),
    "destinations": (ReportEntry, _destinations),
    "clock": (Clock, _clocks),
    "publication": (Publication, _publications),
    "configuration": (Configuration, _configurations),
    "factors": (Factors, _factors),
    "action": (Action, _actions),
}
"""The class of contents of each struct column, and the function that makes the column."""
