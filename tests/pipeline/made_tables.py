"""Tables for tests of queries, written like the tables of a run, but without Spark."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pytest

from pipeline import ignore
from pipeline.gold import tables
from pipeline.gold.tables import FOLDED, GOLD, SPECS, Gold
from pipeline.gold.traces import TRACED
from pipeline.lake import Lake
from pipeline.output.buckets import Output
from pipeline.schemas import DERIVED, arrow_schema
from pipeline.tables.batch_notes import BatchNotes, Continuity
from pipeline.tables.current import SCHEMAS, CurrentState
from pipeline.tables.delta import HELD, Table, stored_rows
from pipeline.tables.files import BATCH
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC, LOG, TRANSITIONS_SPEC
from pipeline.tables.tasks import Outcome, outcome_of, work
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of

FARM = "f0" * 16
_SPECS = {**BASE_SPECS, EVENTS_SPEC.name: EVENTS_SPEC, TRANSITIONS_SPEC.name: TRANSITIONS_SPEC}


def rows_of(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows with the columns of `schema`. Absent values are NULL, except the farm and the day."""

    def complete(row: Mapping[str, Any]) -> dict[str, Any]:
        moment = row.get("log_time", row.get("window_start", row.get("at")))
        return {"farm": FARM, "day": moment.date() if isinstance(moment, datetime) else None, **row}

    return pa.Table.from_pylist([complete(row) for row in rows], schema=schema)


def write_batch(output: Output, table: str, batch: int, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Write a batch of a base table, of events or of transitions, and record it as the last one of its query."""
    opened = Table(output, _SPECS[table])
    given = [{BATCH: batch, **row} for row in rows]
    query = EVENTS if table == EVENTS else LOG
    opened.append(query, batch, rows_of(opened.spec.schema, given))
    known = BatchNotes(output, query)
    last = max(batch, known.done)
    known.path.unlink(missing_ok=True)
    notes = BatchNotes(output, query, Continuity.UNKNOWN)
    notes.begin(last, {})
    notes.end(last, {table: batch})
    return opened


def without_records(output: Path) -> None:
    """Change tables to the format of a version that recorded neither batches nor the numbers of rows."""
    for record in output.glob("batches-*.json"):
        record.unlink()
    rmtree(output / "ranges")
    for commit in output.glob("*/_delta_log/*.json"):
        lines = commit.read_text().splitlines(keepends=True)
        commit.write_text("".join(each for each in lines if HELD not in each))


def write_current_state(output: Path, batch: int, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    state = CurrentState(output)
    for name, given in rows.items():
        state.take(LOG, batch, name, rows_of(SCHEMAS[name], given))


def tables_of(log: MadeUpLog, output: Path, batch: int = 0, *, gold: Gold | None = None, **options: Any) -> Outcome:
    """Write tables from one batch with all entries of the log, divided like two tasks of Spark."""
    return tables_of_entries(arrow_entries_of(log), output, batch, gold=gold, **options)


def tables_of_entries(
    entries: pa.Table, output: Path, batch: int = 0, *, gold: Gold | None = None, **options: Any
) -> Outcome:
    """Write tables from one batch of rows of the source `farm`."""
    return write_entries(lake_at(output, gold, **options), entries, batch)


def lake_at(output: Path, gold: Gold | None = None, **options: Any) -> Lake:
    window_ms, note = (60_000, ignore) if gold is None else (gold.window_ms, gold.note)
    return Lake(output, window_ms, note=note, **options)


def write_entries(lake: Lake, entries: pa.Table, batch: int) -> Outcome:
    batches = entries.combine_chunks().to_batches(max_chunksize=1 + entries.num_rows // 2)
    outcome = outcome_of(result for each in batches for result in work(lake.plan, [each]))
    lake.write_outcome(outcome, batch)
    return outcome


def gold_rows(output: Path, name: str) -> list[dict[str, Any]]:
    """Return all rows of a derived table that SQL computes, sorted."""
    spec = SPECS[name]
    rows = stored_rows(output / name, spec.schema).sort_by([(each, "ascending") for each in spec.sorted_by])
    return list(rows.to_pylist())


def derived_rows(output: Path, name: str, window_ms: int) -> list[dict[str, Any]]:
    """Derive all tables of the kind of `name`, and one cheap table, from the base tables; return the rows of `name`."""
    kinds: dict[str, Mapping[str, object]] = {"GOLD": GOLD, "FOLDED": FOLDED, "TRACED": TRACED}
    chosen = {kind: each if name in each else {} for kind, each in kinds.items()}
    # The run compares its batch with at least one table of the log.
    chosen["FOLDED"] = chosen["FOLDED"] or {"publishers": FOLDED["publishers"]}
    with pytest.MonkeyPatch.context() as patched:
        for kind, each in chosen.items():
            patched.setattr(tables, kind, each)
        patched.setattr(tables, "SPECS", {each: SPECS[each] for kind in chosen.values() for each in kind})
        Gold(output, window_ms).refresh(0)
    return gold_rows(output, name)


def write_derived(output: Path, name: str, rows: Sequence[Mapping[str, Any]], batch: int = 0) -> None:
    made = rows_of(arrow_schema(DERIVED[name]), rows)
    Table(output, SPECS[name]).append(LOG, batch, made)
