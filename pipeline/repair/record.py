"""The record of batches of the log for a repair: the stored one, or one made from the tables.

    stored record ──▶ its last batch is not before the tables' last batch ──▶ used
                  └─▶ missing, or older than the tables ──▶ last batch and last entries of the tables, a new checkpoint

The tables do not prove which checkpoint belongs to them, so a made record always begins new numbers. The last entry of
a farm is the highest index in any table. So no entry is read twice, and `examine` finds the rows of earlier entries
that a table lacks. A made record states that all tables have the last batch, so tables without it are counted or made
again.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.gold.tables import WINDOWS_SPEC
from pipeline.local.checkpoint import CHECKPOINT, is_of_topic
from pipeline.output.buckets import Output
from pipeline.tables.batch_notes import BatchNotes, Continuity
from pipeline.tables.current import SPECS as CURRENT_SPECS
from pipeline.tables.delta import NOTHING_COMMITTED, StoredFile, Table, TableSpec
from pipeline.tables.files import BATCH, TableDamagedError, check_files, read_file
from pipeline.tables.ranges import LOG_NAME, RangeKind
from pipeline.tables.specs import BASE_SPECS, LOG, RANGES_SPEC, TRANSITIONS_SPEC
from pipeline.watch.watching import STATE_SPEC

CURRENT_FROM_BASE = tuple(spec for name, spec in CURRENT_SPECS.items() if name != "watched")
"""Tables of the current state that the base tables determine."""
REPAIRABLE = (*BASE_SPECS.values(), RANGES_SPEC)
WATCH = (TRANSITIONS_SPEC, STATE_SPEC, CURRENT_SPECS["watched"])
COUNTED = pa.schema([("farm", pa.string()), ("index", pa.int64())])
_INDEXES = {RANGES_SPEC.name: "last_index"}


@dataclass(frozen=True, slots=True)
class Record:
    """The notes, and the fault of the stored notes; without a fault, these are used."""

    notes: BatchNotes
    fault: str = ""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """The existing tables with a readable log, by name."""


def stored_notes(output: Output) -> BatchNotes:
    """Return the notes of the log. The checkpoint shows the kind of source that an earlier version did not record.

    Without a checkpoint, a batch that lacks an index shows a topic.
    """
    checkpoint = output / CHECKPOINT
    is_topic = is_of_topic(checkpoint) if checkpoint.exists() else _has_batch_with_hole(output)
    return BatchNotes(output, LOG, Continuity.LATER if is_topic else Continuity.NEXT)


def _has_batch_with_hole(output: Output) -> bool:
    """Return True if a batch did not read each index between its ends. Only a topic lacks indexes."""
    with suppress(TableDamagedError):
        table = _opened(output, RANGES_SPEC)
        rows = RANGES_SPEC.schema.empty_table() if table is None else table.rows(readable_files(table))
        is_read = (pc.field("name") == LOG_NAME) & (pc.field("kind") == RangeKind.READ.value)
        # A correction of log time divides the entries of one day.
        batches = rows.filter(is_read).group_by(["farm", BATCH])
        read = batches.aggregate([("first_index", "min"), ("last_index", "max"), ("row_count", "sum")])
        spans = pc.field("last_index_max") - pc.field("first_index_min") + 1
        return bool(read.filter(spans > pc.field("row_count_sum")).num_rows)
    return False


def record_of(output: Output) -> Record:
    """Return the record of batches of the log. Raise TableDamagedError if its file is damaged."""
    notes, tables = stored_notes(output), dict[str, Table]()
    for spec in (*REPAIRABLE, *CURRENT_FROM_BASE, *WATCH):
        with suppress(TableDamagedError):
            if (table := _opened(output, spec)) is not None:
                tables[spec.name] = table
    committed = {name: table.committed(LOG) for name, table in tables.items()}
    # The log of an unreadable table does not show the version that wrote it.
    existing = [each.name for each in REPAIRABLE if (output / each.name).exists()]
    is_counted = any(name not in tables or tables[name].is_counted for name in existing)
    if not (fault := notes.fault(committed, may_be_missing=not is_counted)):
        return Record(notes, "", tables)
    last = max(committed.values())
    # The repair completes these tables.
    complete = dict.fromkeys((each.name for each in (*REPAIRABLE, *CURRENT_FROM_BASE)), last)
    state = tables.get(STATE_SPEC.name)
    # The other two tables of the watch have a commit for each batch with a change. The state has the last such batch.
    changed = max(
        NOTHING_COMMITTED if state is None else state.committed(TRANSITIONS_SPEC.name),
        *(committed.get(each.name, NOTHING_COMMITTED) for each in WATCH if each is not STATE_SPEC),
    )
    watch = {each.name: max(changed, committed.get(each.name, changed)) for each in WATCH}
    # The next run finds the newest windows again.
    notes.rebuild({**complete, **watch}, _last_entries(tables), {WINDOWS_SPEC.name: last})
    return Record(notes, fault, tables)


def _opened(output: Output, spec: TableSpec) -> Table | None:
    """Return a table; None if it does not exist. Raise TableDamagedError if its log is damaged."""
    return Table(output, spec, is_checked=False) if (output / spec.name).exists() else None


def lost_files(table: Table) -> tuple[StoredFile, ...]:
    """Return the missing or damaged data files of a table."""
    return tuple(file for file in table.files() if not _is_readable(table.root, file.path))


def readable_files(table: Table) -> list[StoredFile]:
    """Return the data files of a table except its lost files."""
    lost = lost_files(table)
    return [file for file in table.files() if file not in lost]


def _is_readable(root: Output, path: str) -> bool:
    try:
        check_files(root, [path])
    except TableDamagedError:
        return False
    return True


def _last_entries(tables: Mapping[str, Table]) -> dict[str, int]:
    """Return the highest index of each farm in the readable files of these tables."""
    found: dict[str, int] = {}
    for name in (*BASE_SPECS, RANGES_SPEC.name, CURRENT_SPECS["farm"].name):
        if (table := tables.get(name)) is None:
            continue
        index = _INDEXES.get(name, "index")
        schema = pa.schema([("farm", pa.string()), (index, pa.int64())])
        for file in readable_files(table):
            rows = read_file(table.root, file.path, schema)
            rows = rows.filter(pc.is_valid(rows.column(index)))
            for row in rows.group_by("farm").aggregate([(index, "max")]).to_pylist():
                found[row["farm"]] = max(row[f"{index}_max"], found.get(row["farm"], 0))
    return found
