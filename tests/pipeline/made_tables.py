"""Tables for tests that ask them, written as a run writes them and without Spark."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.gold.tables import SPECS, Gold
from pipeline.lake import Lake, note_nothing
from pipeline.schemas import DERIVED, arrow_schema
from pipeline.tables.current import SCHEMAS, CurrentState
from pipeline.tables.delta import Table, stored_rows
from pipeline.tables.files import BATCH
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC, LOG, TRANSITIONS_SPEC
from pipeline.tables.tasks import Outcome, outcome_of, work
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of

FARM = "f0" * 16
_SPECS = {**BASE_SPECS, EVENTS_SPEC.name: EVENTS_SPEC, TRANSITIONS_SPEC.name: TRANSITIONS_SPEC}


def rows_of(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows with these columns; what a row does not say is NULL, but for the farm and the day."""

    def value(row: Mapping[str, Any], column: str) -> Any:
        moment = row.get("log_time", row.get("window_start", row.get("at")))
        made = {"farm": FARM, "day": moment.date() if isinstance(moment, datetime) else None}
        return row.get(column, made.get(column))

    columns = [pa.array([value(row, each.name) for row in rows], each.type) for each in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def wrote(output: Path, table: str, batch: int, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A batch of a base table, of events or of transitions."""
    opened = Table(output, _SPECS[table])
    told = [{BATCH: batch, **row} for row in rows]
    opened.append(EVENTS if table == EVENTS else LOG, batch, rows_of(opened.spec.schema, told))
    return opened


def knew(output: Path, batch: int, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """A batch's last rows, by the part of the current state that they belong to."""
    found = {name: rows_of(SCHEMAS[name], told) for name, told in rows.items()}
    CurrentState(output).take(LOG, batch, found)


def tables_of(log: MadeUpLog, output: Path, batch: int = 0, *, gold: Gold | None = None, **options: Any) -> Outcome:
    """The tables with a batch of all that the log has, written as two tasks of Spark would find it."""
    return tables_of_entries(arrow_entries_of(log), output, batch, gold=gold, **options)


def tables_of_entries(
    entries: pa.Table, output: Path, batch: int = 0, *, gold: Gold | None = None, **options: Any
) -> Outcome:
    """The same of rows of the source `farm`."""
    window_ms, note = (60_000, note_nothing) if gold is None else (gold.window_ms, gold.note)
    lake = Lake(output, window_ms, note=note, **options)
    batches = entries.combine_chunks().to_batches(max_chunksize=1 + entries.num_rows // 2)
    found = [pa.Table.from_batches(work(lake.plan, [each])) for each in batches] or [
        pa.Table.from_batches(work(lake.plan, []))
    ]
    outcome = outcome_of(pa.concat_tables(found))
    lake.write_outcome(outcome, batch)
    return outcome


def gold_rows(output: Path, name: str) -> list[dict[str, Any]]:
    """All rows of a derived table that SQL makes, in order."""
    spec = SPECS[name]
    rows = stored_rows(output / name, spec.schema).sort_by([(each, "ascending") for each in spec.sorted_by])
    return list(rows.to_pylist())


def derived_rows(output: Path, name: str, window_ms: int) -> list[dict[str, Any]]:
    """The same, made now of all that the base tables have."""
    Gold(output, window_ms).refresh(0)
    return gold_rows(output, name)


def derived(output: Path, name: str, rows: Sequence[Mapping[str, Any]], batch: int = 0) -> None:
    """A derived table that says what a test wants it to say; of a later batch, that too."""
    made = rows_of(arrow_schema(DERIVED[name]), rows)
    Table(output, SPECS[name]).append(LOG, batch, made)
