"""Derived tables of the nodes' traces: a table absorbs new events, by one SQL text in DuckDB.

    table `events`, batches that a table does not have ──▶ members ──▶ detections, convergence
    table `reports`, days with new information ─────────────────────────▶ detections (last contacts)

Events come from a separate query, whose batches are numbered independently of the log's. Each event carries the number
of its batch, and a commit carries the last complete batch. So an event is in each table once, even if a run is
killed at any point or files are merged.

The two queries do not wait for each other. A trace may report a lost contact before the earlier reports are read from
the log, or weeks after. So a last contact is searched again when the log touches windows from before the notice, and
when a Raft id becomes known. Only reports of the days of such notices, and of the days before, are read.

A long trace, such as in a first run, is processed in portions of whole batches, each with a commit. One query over all
events would need memory for all of them. Of the older events only copies of new events are read. They are found by
`node`, `cursor` and `time_ms`, because copies may lack a log time.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.gold.refreshing import made_by, made_through
from pipeline.gold.sources import Sources, literal
from pipeline.schemas import DERIVED, LATEST_MS, arrow_schema
from pipeline.tables.current import SPECS as CURRENT
from pipeline.tables.delta import NOTHING_COMMITTED, StoredFile, Table, TableSpec
from pipeline.tables.specs import EVENTS, LOG

MEMBERS = "members"
PORTION_EVENTS = 200_000
"""The number of events that DuckDB processes together."""
_NEW_BATCHES = """
SELECT coalesce(batch_id, 0) AS batch, count(*), min(time_ms), max(time_ms) FROM all_events
WHERE batch > {made} AND batch <= {through} AND time_ms BETWEEN 0 AND {latest_ms}
GROUP BY batch ORDER BY batch
"""
_EVENTS_OF_PORTION = """
CREATE TEMP VIEW events AS
WITH in_time AS (SELECT * FROM all_events WHERE time_ms BETWEEN {first_ms} AND {last_ms})
SELECT * FROM in_time SEMI JOIN (
  SELECT node, cursor, time_ms FROM in_time
  WHERE coalesce(batch_id, 0) > {made} AND coalesce(batch_id, 0) <= {through}
) USING (node, cursor, time_ms)
"""
"""New events and their copies; only `node`, `cursor` and `time_ms` of the new events are held in memory."""
_CONTACT_DAYS = """
SELECT DISTINCT CAST(log_time AS DATE) FROM member_events WHERE status IN ('suspect', 'dead') AND is_dated
UNION
SELECT DISTINCT CAST(least(k.suspect_at, k.dead_at) AS DATE)
FROM known k LEFT JOIN members m ON m.farm IS NOT DISTINCT FROM k.farm AND m.member = k.member
WHERE k.is_dated AND ((k.server_id IS NULL AND m.server_id IS NOT NULL) OR least(k.suspect_at, k.dead_at) >= $since)
"""
"""The days of notices (`suspect` or `dead`) whose last contact is searched."""


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A table made from the traces. `views` are made before its SQL, in order."""

    spec: TableSpec
    sql: str
    views: dict[str, str]
    sources: tuple[str, ...] = ()
    """Tables that the SQL reads in addition to the events."""

    @property
    def query(self) -> str:
        """The query name of the table's commits."""
        return f"{EVENTS}, text {zlib.crc32(''.join((self.sql, *self.views.values())).encode()):08x}"

    def of_batches(self, made: int, through: int) -> tuple[dict[str, str], str]:
        """Return the texts of the views and of the table, for the events of the batches `made` + 1 to `through`."""

        def filled(text: str) -> str:
            return (
                text.replace("$made", str(made)).replace("$through", str(through)).replace("$latest_ms", str(LATEST_MS))
            )

        return {name: filled(text) for name, text in self.views.items()}, filled(self.sql)


def _table(name: str, sorted_by: tuple[str, ...], views: tuple[str, ...], *sources: str) -> TraceTable:
    here = Path(__file__).parent
    texts = {view: (here / f"views/{view}.sql").read_text(encoding="utf-8").strip() for view in views}
    spec = TableSpec(name, arrow_schema(DERIVED[name]), ("farm", *sorted_by))
    return TraceTable(spec, (here / f"{name}.sql").read_text(encoding="utf-8").strip(), texts, sources)


TRACED = {
    table.spec.name: table
    for table in (
        _table(MEMBERS, ("member",), ("told_events",)),
        _table(
            "detections",
            ("observer", "noticed_ms", "member"),
            ("told_events", "member_events"),
            MEMBERS,
            "reports",
        ),
        _table("convergence", ("member", "status", "first_at"), ("told_events", "member_events"), MEMBERS),
    )
}
"""The tables in the order of making: each reads the present state of earlier tables."""


def fold_traces(
    sources: Sources, tables: Mapping[str, Table], traced: TraceTable, since: datetime | None, log_batch: int
) -> None:
    """Add new information from the traces to one of the derived tables.

    `since`: the oldest window that the log touched since the last refresh, or None. `log_batch`: the last batch of the
    log, for the record of batches.
    """
    table, query, through = tables[traced.spec.name], traced.query, sources.batch(EVENTS, EVENTS)
    made = made_through(table, query)
    # After a change of the text, all events are read again.
    known = table.spec.schema.empty_table() if made == NOTHING_COMMITTED else table.rows()
    touched_since = since if "reports" in traced.sources else None
    if made >= through and (touched_since is None or not _notices_since(known, touched_since)):
        return
    members = tables[MEMBERS].rows() if MEMBERS in traced.sources else None
    for portion in _portions(sources, made, through):
        is_last = portion.through >= through
        found = _folded(sources, traced, members, portion, known, since if is_last else None)
        batches = made_by(query, portion.through, log_batch) if portion.through > portion.made else []
        is_same = _same(found, known, table.spec)
        if batches or not is_same:
            changed = () if is_same else (table.written(found), table.files())
            table.exchange(batches or [(LOG, log_batch)], *changed)
        known = found


@dataclass(frozen=True, slots=True)
class _Portion:
    """The batches after `made` and up to `through`, whose events are from `first_ms` to `last_ms`."""

    made: int
    through: int
    first_ms: int = 0
    last_ms: int = -1

    def has_new(self, file: StoredFile) -> bool:
        """Return True if rows of these batches may be in the file."""
        newest, oldest = 0 if file.batch is None else file.batch, 0 if file.first_batch is None else file.first_batch
        return newest > self.made and oldest <= self.through

    def has_time(self, file: StoredFile) -> bool:
        """Return True if copies of the events may be in the file."""
        if file.first_ms is None or file.last_ms is None:
            return True
        return file.last_ms >= self.first_ms and file.first_ms <= self.last_ms


def _portions(sources: Sources, made: int, through: int) -> list[_Portion]:
    """Return the new batches in parts of one batch or about `PORTION_EVENTS` events; one empty part without any."""
    whole = _Portion(made, max(made, through))
    with sources.connected() as connection:
        sources.view(connection, EVENTS, [each for each in sources.files(EVENTS) if whole.has_new(each)])
        text = _NEW_BATCHES.format(made=whole.made, through=whole.through, latest_ms=LATEST_MS)
        batches = connection.execute(text).fetchall()
    found: list[_Portion] = []
    events = PORTION_EVENTS
    for batch, count, first_ms, last_ms in batches:
        if events + count > PORTION_EVENTS:
            found.append(_Portion(found[-1].through if found else whole.made, batch, first_ms, last_ms))
            events = count
        else:
            last = found[-1]
            found[-1] = _Portion(last.made, batch, min(last.first_ms, first_ms), max(last.last_ms, last_ms))
            events += count
    # The last one also takes the batches without a usable event.
    return [*found[:-1], replace(found[-1], through=whole.through)] if found else [whole]


def _folded(
    sources: Sources,
    traced: TraceTable,
    members: pa.Table | None,
    portion: _Portion,
    known: pa.Table,
    since: datetime | None,
) -> pa.Table:
    """Return the rows of the table after a portion of events."""
    with sources.connected() as connection:
        connection.register("known", known)
        connection.register("current_farm", sources.rows(CURRENT["farm"]))
        read = [each for each in sources.files(EVENTS) if portion.has_new(each) or portion.has_time(each)]
        sources.view(connection, EVENTS, read)
        connection.execute(_EVENTS_OF_PORTION.format_map(_numbers(portion)))
        if members is not None:
            connection.register(MEMBERS, members)
        views, sql = traced.of_batches(portion.made, portion.through)
        for name, text in views.items():
            connection.execute(f"CREATE TEMP VIEW {name} AS {text}")
        if "reports" in traced.sources:
            days = _contact_days(connection, since)
            of_days = [each for each in sources.files("reports") if each.day in days]
            sources.view(connection, "reports", of_days)
            connection.execute("CREATE TEMP VIEW reports AS SELECT * FROM all_reports")
        return connection.execute(sql).to_arrow_table().select(known.schema.names).cast(known.schema)


def _numbers(portion: _Portion) -> dict[str, int]:
    return {each.name: getattr(portion, each.name) for each in fields(portion)}


def _notices_since(known: pa.Table, moment: datetime) -> bool:
    noticed = (pc.max(known.column(each)).as_py() for each in ("suspect_at", "dead_at"))
    return any(last is not None and last >= moment for last in noticed)


def _contact_days(connection: duckdb.DuckDBPyConnection, since: datetime | None) -> set[date]:
    """Return the days of reports to search for last contacts."""
    text = _CONTACT_DAYS.replace("$since", "NULL" if since is None else literal(since))
    noticed = [day for (day,) in connection.execute(text).fetchall() if day is not None]
    return {day - timedelta(days=back) for day in noticed for back in (0, 1)}


def _same(one: pa.Table, other: pa.Table, spec: TableSpec) -> bool:
    order = [(each, "ascending") for each in spec.sorted_by]
    return one.num_rows == other.num_rows and bool(one.sort_by(order).equals(other.sort_by(order)))
