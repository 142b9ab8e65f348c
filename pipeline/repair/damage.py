"""The damage in an output directory: lost or surplus rows, unread entries, and records that do not fit the tables.

    table `ranges`       entries and rows of each batch ──▶ rows that a base table lacks, by farm and day ──▶ indexes
    record of batches    the last entry of each farm    ──▶ gaps of `ranges` up to this entry             ──▶ indexes
    the table's log      rows that it should have       ──▶ a lost commit; unreadable files

Everything is read without the checks of `pipeline/tables/delta.py`, which refuse such tables. Nothing is changed.

The counts show that a base table lacks rows, or has surplus rows, but not the indexes of these rows. So the reported
damage is the range of all entries of this farm and day, in all batches. A repair reads the range again and replaces all
its rows in every base table, also the undamaged ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.gold.tables import SPECS as DERIVED_SPECS
from pipeline.local.checkpoint import CHECKPOINT, EVENTS_CHECKPOINT
from pipeline.output.buckets import Output
from pipeline.repair.checkpoint import checkpoint_fault
from pipeline.repair.record import COUNTED, CURRENT_FROM_BASE, REPAIRABLE, WATCH, Record, lost_files, record_of
from pipeline.tables.batch_notes import BatchNotes, Range
from pipeline.tables.delta import NOTHING_COMMITTED, StoredFile, Table, TableSpec
from pipeline.tables.files import DAY, TableDamagedError, read_file
from pipeline.tables.ranges import LOG_NAME, RangeKind
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC, LOG, RANGES_SPEC
from pipeline.watch.watching import STATE_SPEC


@dataclass(frozen=True, slots=True, order=True)
class LostRange:
    """Entries of a farm to read again, including both ends."""

    farm: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Damage:
    """The findings about one output directory."""

    notes: BatchNotes = field(compare=False)
    """The record of batches. If the stored record has a fault, this record is made from the tables."""
    unreadable: tuple[TableSpec, ...] = ()
    """Tables whose log cannot be read."""
    lost_files: Mapping[str, tuple[StoredFile, ...]] = field(default_factory=dict)
    """Missing or damaged data files, by table."""
    inexact: tuple[TableSpec, ...] = ()
    """Tables that lost commits.

    The table is missing, its number of rows differs from its last commit, or the record of batches has a later batch.
    """
    ranges: tuple[LostRange, ...] = ()
    checkpoint: str = ""
    """The fault of the checkpoint; empty if it fits the record of batches, or if that record has a fault."""
    events: str = ""
    """The fault of the table `events` or of its checkpoint."""
    derived: tuple[str, ...] = ()
    """Damaged or missing derived tables, and those older than the record of batches."""
    record: str = ""
    """The fault of the stored record of batches: it is missing, or ends before the tables. Empty without a fault."""

    def __bool__(self) -> bool:
        return self != Damage(self.notes)

    def lines(self) -> Iterator[str]:
        """Yield one line for each finding."""
        for spec in self.unreadable:
            yield f"{spec.name}: its log of commits is damaged"
        for name, files in self.lost_files.items():
            yield f"{name}: {len(files)} data files are missing or damaged"
        for spec in self.inexact:
            yield f"{spec.name}: commits were lost"
        for each in self.ranges:
            yield f"entries {each.first} to {each.last} of farm {each.farm}: rows are missing or surplus"
        if self.record:
            yield f"record of batches: {self.record}"
        if self.checkpoint:
            yield f"checkpoint: {self.checkpoint}"
        if self.events:
            yield f"events: {self.events}"
        for name in self.derived:
            yield f"{name}: the derived table is damaged"


def examine(output: Output) -> Damage:
    """Return the damage of an output directory.

    Raise TableDamagedError if the record of batches cannot be read, or a table of the watch is damaged.
    """
    record = record_of(output)
    _refuse_damaged_watch(output, record)
    notes = record.notes
    # Only some tables have the rows of an interrupted batch. The next run or the repair reads this batch again, so its
    # rows are not compared.
    interrupted = {farm: each.first for farm, each in notes.begun_entries().items()}
    unreadable: list[TableSpec] = []
    lost_by_table: dict[str, tuple[StoredFile, ...]] = {}
    inexact: list[TableSpec] = []
    counts: dict[tuple[str, date | None, str], int] = {}
    spans: dict[tuple[str, date | None], Range] = {}
    ranges = RANGES_SPEC.schema.empty_table()
    for spec in (*REPAIRABLE, *CURRENT_FROM_BASE):
        if (output / spec.name).exists() and spec.name not in record.tables:
            unreadable.append(spec)
            continue
        table = record.tables.get(spec.name)
        if table is None:
            if not record.fault and notes.batch_of(spec.name) != NOTHING_COMMITTED:
                inexact.append(spec)
            continue
        lost = lost_files(table)
        readable = [file for file in table.files() if file not in lost]
        if lost:
            lost_by_table[spec.name] = lost
        # A record made from the tables has the newest batch for all of them. So an earlier batch does not prove a loss.
        is_older = table.committed(LOG) < notes.batch_of(spec.name) and not record.fault
        if table.lacks_rows() or is_older:
            inexact.append(spec)
        if spec.name in BASE_SPECS:
            _count(table, readable, interrupted, counts, spans)
        elif spec is RANGES_SPEC:
            ranges = _before(table.rows(readable), interrupted, "first_index")
    found = _lost_ranges(ranges, counts, spans, notes.next_entries(), of_topic=notes.of_topic)
    fault = "" if record.fault else checkpoint_fault(output, CHECKPOINT, notes)
    return Damage(
        notes,
        tuple(unreadable),
        lost_by_table,
        tuple(inexact),
        found,
        fault,
        _events_fault(output),
        _damaged_derived(output, notes),
        record.fault,
    )


def _refuse_damaged_watch(output: Output, record: Record) -> None:
    """Raise TableDamagedError if a table of the watch is damaged."""
    notes = record.notes
    for spec in WATCH:
        last, table = notes.batch_of(spec.name), record.tables.get(spec.name)
        if last < 0 and not (output / spec.name).exists():
            continue
        if record.fault and spec is STATE_SPEC and last >= 0:
            # Only the state has a commit for each batch. The other tables have one for each batch with a change.
            last = notes.done
        if table is None or _lacks_data(table, last):
            raise TableDamagedError(
                f"{output / spec.name} lost commits or files. The watch depends on all earlier entries, so this table"
                " cannot be repaired: restore the entire directory from a backup, or read the log again into another"
                " output directory"
            )


def _damaged_derived(output: Output, notes: BatchNotes) -> tuple[str, ...]:
    recorded = {name: notes.derived.get(name, -1) for name in DERIVED_SPECS}
    return tuple(
        name
        for name, last in recorded.items()
        if (is_damaged(output, DERIVED_SPECS[name], last) if (output / name).exists() else last >= 0)
    )


def is_damaged(output: Output, spec: TableSpec, last: int = -1) -> bool:
    """Return True if a table lacks rows or the batch `last`, or has unreadable files or an unreadable log."""
    try:
        return _lacks_data(Table(output, spec, is_checked=False), last)
    except TableDamagedError:
        return True


def _lacks_data(table: Table, last: int) -> bool:
    """Return True if a table lacks rows or the batch `last`, or has unreadable files."""
    return table.lacks_rows() or table.committed(LOG) < last or bool(lost_files(table))


def _events_fault(output: Output) -> str:
    """Return the fault of the table `events`."""
    notes = BatchNotes(output, EVENTS)
    if not (output / EVENTS).exists():
        return "" if notes.is_empty else "it is missing"
    try:
        table = Table(output, EVENTS_SPEC, is_checked=False)
    except TableDamagedError:
        return "its log of commits is damaged"
    if lost := lost_files(table):
        return f"{len(lost)} data files are missing or damaged"
    if table.lacks_rows() or table.committed(EVENTS) < notes.batch_of(EVENTS):
        return "commits were lost"
    if found := notes.fault({EVENTS: table.committed(EVENTS)}, may_be_missing=not table.is_counted):
        return f"record of batches: {found}"
    fault = checkpoint_fault(output, EVENTS_CHECKPOINT, notes)
    return fault and f"checkpoint: {fault}"


def _before(rows: pa.Table, interrupted: Mapping[str, int], index: str) -> pa.Table:
    """Return the rows before an interrupted batch; `interrupted`: its first entry of each farm."""
    for farm, first in interrupted.items():
        is_later = pc.and_(pc.equal(rows.column("farm"), farm), pc.greater_equal(rows.column(index), first))
        rows = rows.filter(pc.invert(pc.fill_null(is_later, False)))  # noqa: FBT003 - pyarrow's parameter
    return rows


def _count(
    table: Table,
    files: Iterable[StoredFile],
    interrupted: Mapping[str, int],
    counts: dict[tuple[str, date | None, str], int],
    spans: dict[tuple[str, date | None], Range],
) -> None:
    """Add the number of rows of a base table to `counts`, and their indexes to `spans`, by farm and day."""
    for file in files:
        rows = _before(read_file(table.root, file.path, COUNTED), interrupted, "index")
        found = rows.group_by("farm").aggregate([("index", "count"), ("index", "min"), ("index", "max")])
        for each in found.to_pylist():
            farm, this = each["farm"], Range(each["index_min"], each["index_max"])
            key = (farm, file.day, table.spec.name)
            counts[key] = counts.get(key, 0) + each["index_count"]
            spans[farm, file.day] = _union(spans.get((farm, file.day), this), this)


def _lost_ranges(
    ranges: pa.Table,
    counts: Mapping[tuple[str, date | None, str], int],
    row_spans: Mapping[tuple[str, date | None], Range],
    next_entries: Mapping[str, int],
    *,
    of_topic: bool,
) -> tuple[LostRange, ...]:
    rows = ranges.select(["farm", "name", "kind", "first_index", "last_index", "row_count", DAY]).to_pylist()
    limits: dict[str, date] = {}
    differences = {key: -count for key, count in counts.items()}
    # The rows of the tables show the entries of a day whose file of `ranges` is lost. If `ranges` is empty, the counts
    # are not compared, because early versions did not write this table.
    spans = dict(row_spans) if rows else {}
    read: dict[str, list[Range]] = {}
    for row in rows:
        farm, day = row["farm"], row[DAY]
        match row["kind"]:
            case RangeKind.READ if row["name"] != LOG_NAME:
                key = (farm, day, row["name"])
                differences[key] = differences.get(key, 0) + row["row_count"]
            case RangeKind.READ:
                this = Range(row["first_index"], row["last_index"])
                spans[farm, day] = _union(spans.get((farm, day), this), this)
                read.setdefault(farm, []).append(this)
            case RangeKind.GONE:
                read.setdefault(farm, []).append(Range(row["first_index"], row["last_index"]))
            case _ if day is not None:
                limits[farm] = max(limits.get(farm, day), day)
                if row["kind"] == RangeKind.UNCOUNTED and row["first_index"] is not None:
                    read.setdefault(farm, []).append(Range(row["first_index"], row["last_index"]))
            case _:
                pass
    found = [
        LostRange(farm, spans[farm, day].first, spans[farm, day].last)
        for (farm, day, _), difference in differences.items()
        if difference and (farm, day) in spans and (farm not in limits or (day is not None and day > limits[farm]))
    ]
    for farm, end in next_entries.items():
        ranges_read = read.get(farm, [])
        if of_topic and ranges_read:
            # The topic may lack the entries between two batches.
            ranges_read = [Range(min(each.first for each in ranges_read), max(each.last for each in ranges_read))]
        found += (LostRange(farm, each.first, each.last) for each in _gaps(ranges_read, end))
    return tuple(_closed(found, read))


def _gaps(read: Iterable[Range], end: int) -> Iterator[Range]:
    """Yield the indexes between these ranges, and after them to `end`, excluding it."""
    through: int | None = None
    for each in sorted(read, key=lambda each: (each.first, each.last)):
        if through is not None and each.first > through + 1:
            yield Range(through + 1, each.first - 1)
        through = max(each.last, through or 0)
    first = 1 if through is None else through + 1
    if first < end:
        yield Range(first, end - 1)


def _closed(found: Sequence[LostRange], read: Mapping[str, Sequence[Range]]) -> Iterator[LostRange]:
    """Yield each lost range, extended to the ends of all ranges in `read` that it overlaps; merge adjacent results."""
    for farm in sorted({each.farm for each in found}):
        ranges_read = read.get(farm, [])
        merged: list[Range] = []
        for each in sorted({(one.first, one.last) for one in found if one.farm == farm}):
            this = Range(*each)
            while (wider := _widened(this, ranges_read)) != this:
                this = wider
            if merged and this.first <= merged[-1].last + 1:
                merged[-1] = _union(merged[-1], this)
            else:
                merged.append(this)
        yield from (LostRange(farm, each.first, each.last) for each in merged)


def _widened(this: Range, ranges_read: Iterable[Range]) -> Range:
    for each in ranges_read:
        if each.first <= this.last and each.last >= this.first:
            this = _union(this, each)
    return this


def _union(one: Range, other: Range) -> Range:
    return Range(min(one.first, other.first), max(one.last, other.last))
