"""Derived tables of the nodes' traces: new events are put to what a table knows, by one SQL text on either engine.

    table `events`, batches that a table does not have ──▶ members ──▶ detections, convergence
    table `reports`, days of which something is new ────────────────────▶ detections (last contacts)

Events come by a query of their own, whose batches are numbered apart from those of the log. Each event carries the
batch that brought it, and a commit carries up to which batch of either query the table knows all: so an event is in
each table once, wherever a run is killed, and merged files make no difference.

The two queries do not wait for each other. A trace may tell of a silence before the reports from before it are read, or
weeks after. So a last contact is sought again when the log touches windows from before the notice, and when a Raft id
becomes known. Only reports of the days of such notices, and of the days before, are read.
"""

import zlib
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.gold.refreshing import literal, opened, overlaps, source_view
from pipeline.schemas import DERIVED, LATEST_MS, arrow_schema
from pipeline.tables.current import SPECS as CURRENT
from pipeline.tables.delta import (
    NOTHING_COMMITTED,
    StoredFile,
    Table,
    TableSpec,
    stored_batch,
    stored_files,
    stored_rows,
)
from pipeline.tables.lake import EVENTS, LOG

MEMBERS = "members"
_CONTACT_DAYS = """
SELECT DISTINCT CAST(log_time AS DATE) FROM member_events WHERE status IN ('suspect', 'dead')
UNION
SELECT DISTINCT CAST(least(k.suspect_at, k.dead_at) AS DATE)
FROM known k LEFT JOIN members m ON m.farm IS NOT DISTINCT FROM k.farm AND m.member = k.member
WHERE (k.server_id IS NULL AND m.server_id IS NOT NULL) OR least(k.suspect_at, k.dead_at) >= $since
"""
"""The days of notices of which something new is known."""


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A table of what the traces tell. `views` are made before its SQL, in order."""

    spec: TableSpec
    sql: str
    views: dict[str, str]
    sources: tuple[str, ...] = ()
    """Tables that it reads beside the events."""

    def name_of(self, query: str) -> str:
        """Under which name its commits carry the batches of a query."""
        return f"{query}, text {zlib.crc32(''.join((self.sql, *self.views.values())).encode()):08x}"

    def of_batches(self, made: int, through: int) -> tuple[dict[str, str], str]:
        """The texts of the views and of the table, for the events of the batches after `made` and up to `through`."""

        def told(text: str) -> str:
            return (
                text.replace("$made", str(made)).replace("$through", str(through)).replace("$latest_ms", str(LATEST_MS))
            )

        return {name: told(text) for name, text in self.views.items()}, told(self.sql)


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
"""In the order in which they are made: each reads those before it as they are by then."""
LOG_READERS = tuple(name for name, traced in TRACED.items() if "reports" in traced.sources)


def fold_traces(output: Path, table: Table, traced: TraceTable, since: datetime | None, log_batch: int) -> None:
    """Puts to a table what traces tell that it does not know.

    `since`: the oldest window that the log touched since the table's last commit, or None, up to `log_batch`.
    """
    query, through = traced.name_of(EVENTS), stored_batch(output / EVENTS, EVENTS)
    made, known = table.committed(query), table.rows()
    touched_since = since if "reports" in traced.sources else None
    if made >= through and (touched_since is None or not _notices_since(known, touched_since)):
        return
    with opened() as connection:
        connection.register("known", known)
        connection.register("current_farm", stored_rows(output / CURRENT["farm"].name, CURRENT["farm"].schema))
        source_view(connection, output, EVENTS, _files_of_batches(output, made))
        connection.execute(f"CREATE VIEW {EVENTS} AS SELECT * FROM all_{EVENTS}")  # noqa: S608 - own name
        if MEMBERS in traced.sources:
            members = TRACED[MEMBERS].spec.schema
            connection.register(MEMBERS, stored_rows(output / MEMBERS, members))
        views, sql = traced.of_batches(made, max(made, through))
        for name, text in views.items():
            connection.execute(f"CREATE VIEW {name} AS {text}")
        if "reports" in traced.sources:
            days = _contact_days(connection, since)
            files = [each for each in stored_files(output / "reports") if each.day in days]
            source_view(connection, output, "reports", files)
            connection.execute("CREATE VIEW reports AS SELECT * FROM all_reports")
        found = connection.execute(sql).to_arrow_table().select(table.spec.schema.names).cast(table.spec.schema)
    batches = [(query, through)] if through > made else []
    if touched_since is not None:
        batches.append((traced.name_of(LOG), log_batch))
    table.replace_at(batches, None if _same(found, known, table.spec) else found)


def _files_of_batches(output: Path, made: int) -> list[StoredFile]:
    """The files of events with rows of batches after this one, and those of their time, which may hold copies."""
    files = stored_files(output / EVENTS)
    if made == NOTHING_COMMITTED:
        return files
    newer = [each for each in files if each.batch is not None and each.batch > made]
    return [each for each in files if each in newer or any(overlaps(each, other) for other in newer)]


def _notices_since(known: pa.Table, moment: datetime) -> bool:
    noticed = (pc.max(known.column(each)).as_py() for each in ("suspect_at", "dead_at"))
    return any(last is not None and last >= moment for last in noticed)


def _contact_days(connection: duckdb.DuckDBPyConnection, since: datetime | None) -> set[date]:
    """The days of reports among which last contacts are to be sought."""
    text = _CONTACT_DAYS.replace("$since", "NULL" if since is None else literal(since))
    noticed = [day for (day,) in connection.execute(text).fetchall() if day is not None]
    return {day - timedelta(days=back) for day in noticed for back in (0, 1)}


def _same(one: pa.Table, other: pa.Table, spec: TableSpec) -> bool:
    order = [(each, "ascending") for each in spec.sorted_by]
    return one.num_rows == other.num_rows and bool(one.sort_by(order).equals(other.sort_by(order)))
