"""The newest known state, as small tables, rewritten when a batch changes them.

    current_farm          one row a farm: its name, the range of its log in the tables, the leader
    current_routers       one row a server: its last report
    current_destinations  one row a destination and server: its part of the last report
    current_publishers    one row a master destination: its last publication
    current_watched       one row a server: the state of the watch, with the time of its change (`pipeline/watch`)

History holds past states. For the current state, a reader would have to search all of it for the last row of each
server. Most servers report in each period, so a batch changes most rows of its farms. It rewrites the files of these
farms (`pipeline/tables/farm_files.py`).

An older row never replaces a newer one. Of two rows with one key, the row with the higher index in the log remains. So
a repeated batch does not change a row, and the tables may contain rows of the next batch before that batch is written.
Two tables have rows only of written batches. `current_farm` counts entries. In `current_watched` the last written row
remains. A row about missing reports lacks an index, and a correction of log time can set times back.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.output.buckets import Output
from pipeline.schemas import TRANSITIONS, arrow_schema
from pipeline.tables.delta import Table, TableSpec, stored_rows
from pipeline.tables.farm_files import FarmFiles
from pipeline.tables.files import DAY
from pipeline.tables.rows import BASE

PREFIX = "current_"
UNDO = "interval 1 hours"
_MOMENT = pa.timestamp("us", tz="UTC")
_FARM = pa.schema(
    [
        ("farm", pa.string()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("log_time", _MOMENT),
        ("leader_id", pa.int64()),
        ("period_ms", pa.int64()),
        ("batch_id", pa.int64()),
        ("name", pa.string()),
        ("first_index", pa.int64()),
        ("entries", pa.int64()),
    ]
)


def _without_day(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each for each in schema if each.name != DAY])


SCHEMAS: dict[str, pa.Schema] = {
    "farm": _FARM,
    "routers": _without_day(BASE["reports"]),
    "destinations": _without_day(BASE["destination_reports"]),
    "publishers": _without_day(BASE["publications"]),
    "watched": _without_day(arrow_schema(TRANSITIONS)),
}
KEYS: dict[str, tuple[str, ...]] = {
    "farm": ("farm",),
    "routers": ("farm", "server_id"),
    "destinations": ("farm", "destination", "server_id"),
    "publishers": ("farm", "master"),
    "watched": ("farm", "server_id"),
}
FROM_BASE = {"reports": "routers", "destination_reports": "destinations", "publications": "publishers"}
"""For each base table, the part of the current state that its last rows determine."""
SPECS = {name: TableSpec(f"{PREFIX}{name}", schema, KEYS[name], UNDO) for name, schema in SCHEMAS.items()}


class CurrentState:
    """The tables of the current state, for their writer."""

    def __init__(self, output: Output) -> None:
        self._tables = {name: FarmFiles(output, spec) for name, spec in SPECS.items()}

    def rows(self, name: str) -> pa.Table:
        """Return the current rows."""
        return self._tables[name].table.rows()

    def tables(self) -> list[Table]:
        """Return all tables."""
        return [each.table for each in self._tables.values()]

    def take(self, query: str, batch: int, name: str, rows: pa.Table) -> None:
        """Apply the last rows of a batch; each replaces the stored row with its key, unless the stored row is newer."""
        if rows.num_rows and self._tables[name].table.known_batch(query) < batch:
            self._apply(name, rows, [(query, batch)])

    def show(self, name: str, rows: pa.Table) -> None:
        """Apply the last rows of a part of the next batch."""
        self._apply(name, rows, [])

    def _apply(self, name: str, rows: pa.Table, batches: Sequence[tuple[str, int]]) -> None:
        table = self._tables[name]
        table.commit(batches, table.change(rows, partial(_merged, name)))


def _merged(name: str, known: pa.Table, rows: pa.Table) -> pa.Table:
    both = pa.concat_tables([known, rows.select(known.column_names).cast(known.schema)])
    if name == "farm":
        return _filled_up(both)
    return last_rows(both, KEYS[name], None if name == "watched" else "index")


def last_rows(rows: pa.Table, keys: Sequence[str], order: str | None = "index") -> pa.Table:
    """Return the row with the highest `order` for each combination of keys; of several, the last."""
    if rows.num_rows <= 1:
        return rows
    # Positions are grouped instead of rows, so that only the remaining rows are copied with all columns.
    positions = pa.array(range(rows.num_rows), pa.int64())
    in_order = positions if order is None else pc.sort_indices(rows, sort_keys=[(order, "ascending")])
    placed = rows.select(list(keys)).take(in_order).append_column("_place", positions)
    last = placed.group_by(list(keys), use_threads=False).aggregate([("_place", "max")])
    return rows.take(in_order.take(last.column("_place_max").sort()))


def read(output: Output, table: str) -> list[dict[str, Any]]:
    """Return all rows of one table, in the order of its keys, for a reader. Raise TableDamagedError, OSError."""
    rows = stored_rows(output / f"{PREFIX}{table}", SCHEMAS[table])
    in_order = rows.sort_by([(each, "ascending") for each in KEYS[table]])
    return list(in_order.to_pylist())


def _filled_up(both: pa.Table) -> pa.Table:
    """Fill NULLs of a farm's new row, such as the leader, from its old row; add up the entries."""
    others = [each for each in both.column_names if each not in {"farm", "first_index", "entries"}]
    # A table begun by an earlier version lacks the number of entries permanently.
    unknown_if_lacking = pc.ScalarAggregateOptions(skip_nulls=False)
    found = (
        both.sort_by("index")
        .group_by("farm", use_threads=False)
        .aggregate(
            [*((each, "last") for each in others), ("first_index", "min"), ("entries", "sum", unknown_if_lacking)]
        )
    )
    return found.rename_columns(["farm", *others, "first_index", "entries"]).select(both.column_names)
