"""`garlicfarm pipeline repair`: read lost entries again, and continue the tables without their checkpoint.

    damage ──▶ a record of batches that does not fit is made from the tables
           ──▶ unreadable tables are moved aside, lost files leave their table
           ──▶ each lost range of entries: its rows are replaced in all base tables and in `ranges`
           ──▶ damaged tables of the current state are made from base tables; derived tables by the next run
           ──▶ a checkpoint that does not fit is moved aside, and new numbers of batches begin

Entries that the farm does not have any more cannot be read again. Their remaining rows stay. A row of kind `gone` in
the table `ranges` stores their indexes for later answers about completeness.

A table of the watch (`transitions`, `watch_state`, `current_watched`) cannot be made from entries: its state depends on
all earlier batches. For such damage, `examine` raises TableDamagedError before anything is changed.

Every step is a commit that can be repeated. A killed repair is completed by the next one.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.decode.columns import record_batches
from pipeline.feedback.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.gold.tables import SPECS as DERIVED_SPECS
from pipeline.local.checkpoint import CHECKPOINT, EVENTS_CHECKPOINT, StoredCheckpoint
from pipeline.output.buckets import Output
from pipeline.repair.checkpoint import set_aside
from pipeline.repair.damage import Damage, LostRange, examine
from pipeline.repair.record import CURRENT_FROM_BASE, REPAIRABLE, lost_files, stored_notes
from pipeline.source.farms import SelectedLog, StreamFarms
from pipeline.source.log_client import FarmLogError, shortened
from pipeline.tables.batch_notes import BatchNotes
from pipeline.tables.current import FROM_BASE, KEYS, PREFIX, SCHEMAS, last_rows
from pipeline.tables.delta import Table, TableSpec, stored_rows
from pipeline.tables.files import BATCH, DAY, TableDamagedError
from pipeline.tables.names import remember_names, salt_of
from pipeline.tables.ranges import LOG_NAME, RangeKind, batch_rows, counts_of, merged, range_rows
from pipeline.tables.rows import ADDRESS, Pseudonyms, base_rows
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC, LOG, RANGES_SPEC

ENTRIES_AT_ONCE = 100_000
"""The entries whose rows are in memory together."""
Notify = Callable[[str], None]


def repair(output: Output, found: Damage, open_farms: Callable[[], StreamFarms], notify: Notify) -> None:
    """Repair the found damage of the tables below `output`; `open_farms` is called only for lost entries.

    Raise FarmLogError if a farm with lost entries cannot be read, and TableDamagedError if damage remains.
    """
    damage = _made_readable(output, found, notify)
    notes = stored_notes(output)
    interrupted = notes.begun_entries() if damage.checkpoint else {}
    lost = [*damage.ranges, *(LostRange(farm, each.first, each.last) for farm, each in interrupted.items())]
    if lost:
        logs = _logs(open_farms(), {each.farm for each in lost})
        for each in lost:
            _replace(output, each, logs[each.farm], notify)
    _make_exact(output, {*found.unreadable, *found.inexact, *damage.inexact}, found.lost_files, notes, notify)
    # Parts of the output differ in age, so derived tables may also be old.
    derived = [*DERIVED_SPECS] if lost or found.record or found.inexact else [*damage.derived]
    for name in derived:
        set_aside(output, name)
        notify(f"{name}: the next run makes this derived table.")
    notes.end_derived({name: last for name, last in notes.derived.items() if name not in derived})
    if damage.checkpoint:
        _begin_numbers(output, CHECKPOINT, notes)
        notify("The next run continues after the last entry of the tables, with a new checkpoint.")
    if damage.events:
        events, table = BatchNotes(output, EVENTS), _readable_events(output, notify)
        if events.fault(committed := {EVENTS: table.committed(EVENTS)}):
            events.rebuild(committed, {})
        table.recount(EVENTS, events.batch_of(EVENTS))
        _begin_numbers(output, EVENTS_CHECKPOINT, events)
        notify("The next run reads the traces again, as far back as the nodes have them.")
    if remaining := examine(output):
        raise TableDamagedError(f"{output} is still damaged after the repair: {'; '.join(remaining.lines())}")


def _readable_events(output: Output, notify: Notify) -> Table:
    """Return the table `events` without lost files; an unreadable table is moved aside."""
    try:
        table = Table(output, EVENTS_SPEC, is_checked=False)
    except TableDamagedError:
        notify(f"{EVENTS}: the damaged table is in {set_aside(output, EVENTS)}")
        return Table(output, EVENTS_SPEC, is_checked=False)
    table.rewrite(lost_files(table), EVENTS_SPEC.schema.empty_table())
    return table


def _make_exact(
    output: Output, inexact: Collection[TableSpec], lost_files: Collection[str], notes: BatchNotes, notify: Notify
) -> None:
    """Make the damaged tables of the current state again, and record the number of rows of all tables."""
    for spec in REPAIRABLE:
        Table(output, spec, is_checked=False).recount(LOG, notes.batch_of(spec.name))
    for spec in CURRENT_FROM_BASE:
        if spec in inexact or spec.name in lost_files:
            table = Table(output, spec, is_checked=False)
            table.rewrite(table.files(), current_rows(output, spec))
            table.recount(LOG, notes.batch_of(spec.name))
            notify(f"{spec.name}: made from the base tables")


def _begin_numbers(output: Output, checkpoint: str, notes: BatchNotes) -> None:
    set_aside(output, checkpoint)
    StoredCheckpoint(output / checkpoint).begin()
    notes.begin_numbers()


def _made_readable(output: Output, damage: Damage, notify: Notify) -> Damage:
    """Make the record of batches again, and remove unreadable tables and lost files; return the remaining damage."""
    if not (damage.record or damage.unreadable or damage.lost_files):
        return damage
    if damage.record:
        _begin_numbers(output, CHECKPOINT, damage.notes)
        notify("The record of batches was made from the tables.")
    for spec in damage.unreadable:
        aside = set_aside(output, spec.name)
        notify(f"{spec.name}: the damaged table is in {aside}")
    for name, files in damage.lost_files.items():
        spec = next(each for each in (*REPAIRABLE, *CURRENT_FROM_BASE) if each.name == name)
        Table(output, spec, is_checked=False).rewrite(files, spec.schema.empty_table())
    found = examine(output)
    # Tables of a version without a record need one after their first repair.
    return _made_readable(output, found, notify) if found.record else found


def _logs(farms: StreamFarms, clusters: set[str]) -> Mapping[str, SelectedLog]:
    logs = farms.poll({}, thorough=True)
    for farm in sorted(clusters - logs.keys()):
        problems = "; ".join(shortened([f"{name}: {problem}" for name, problem in farms.problems.items()]))
        raise FarmLogError(
            f"entries of farm {farm} were lost, and it is not among the farms that reply ({problems or 'no problem'}):"
            " name its nodes, or a copy of a state directory"
        )
    return logs


def _replace(output: Output, lost: LostRange, log: SelectedLog, notify: Notify) -> None:
    """Read a range again, and replace its rows in all tables."""
    if lost.last > log.status.commit_index:
        raise FarmLogError(
            f"entries {lost.first} to {lost.last} of farm {lost.farm} were lost, and its log has entries up to"
            f" {log.status.commit_index} only: name a node that has them"
        )
    oldest, ranges = max(lost.first, log.place.ranges.oldest(lost.farm)), list[pa.Table]()
    if oldest > lost.first:
        missing = LostRange(lost.farm, lost.first, min(lost.last, oldest - 1))
        ranges.append(_missing_rows(output, missing))
        notify(
            f"Entries {missing.first} to {missing.last} of farm {lost.farm} are gone:"
            " the farm does not have them any more."
        )
    first = oldest
    while first <= lost.last:
        part = LostRange(lost.farm, first, min(lost.last, first + ENTRIES_AT_ONCE - 1))
        base, of_part = _read(output, part, log)
        for name, spec in BASE_SPECS.items():
            _replace_rows(Table(output, spec, is_checked=False), part, base.get(name), "index", "index")
        ranges.append(of_part)
        notify(f"Entries {part.first} to {part.last} of farm {part.farm} were read again.")
        first = part.last + 1
    # A row may have entries of several parts. Until this commit, the next repair finds the same range again.
    rows = pa.concat_tables(ranges)
    _replace_rows(Table(output, RANGES_SPEC, is_checked=False), lost, rows, "first_index", "last_index")


def _number_of(part: LostRange) -> int:
    """Return a number for these rows that replaces a batch number: negative, and different for each range of a farm."""
    return -part.first


def _read(output: Output, part: LostRange, log: SelectedLog) -> tuple[Mapping[str, pa.Table], pa.Table]:
    """Return the rows of these entries: of base tables by name, and of the table `ranges`."""
    pseudonyms = Pseudonyms(salt_of(output))
    partition = log.place.ranges.plan(part.first, part.last + 1, part.farm)
    base: dict[str, list[pa.Table]] = {}
    counts: list[pa.Table] = []
    for each in record_batches(log.place.ranges.rows(partition), part.farm, log.place.name):
        entries = pa.Table.from_batches([each])
        made = base_rows(entries, pseudonyms)
        counts.append(range_rows(entries, made))
        for name, rows in made.items():
            _remember(output, rows)
            base.setdefault(name, []).append(rows.select(BASE_SPECS[name].schema.names))
    tables = {name: pa.concat_tables(rows) for name, rows in base.items()}
    # A topic may lack all entries of a part.
    if not counts:
        return tables, RANGES_SPEC.schema.empty_table()
    return tables, batch_rows(merged(pa.concat_tables(counts)), _number_of(part)).cast(RANGES_SPEC.schema)


def _remember(output: Output, rows: pa.Table) -> None:
    named = "destination" if "destination" in rows.column_names else "master"
    if ADDRESS in rows.column_names:
        pairs = zip(rows.column(named).to_pylist(), rows.column(ADDRESS).to_pylist(), strict=True)
        remember_names(output, dict(pairs))


def _replace_rows(table: Table, part: LostRange, rows: pa.Table | None, first: str, last: str) -> None:
    """Replace the rows of these entries in a table; `first`, `last`: the columns with the indexes of a row."""
    removed, kept = [], [table.spec.schema.empty_table() if rows is None else rows.cast(table.spec.schema)]
    for file in table.files():
        found = table.rows([file])
        of_part = _is_within(found, part, first, last)
        if pc.any(of_part).as_py():
            removed.append(file)
            kept.append(found.filter(pc.invert(of_part)))
    table.rewrite(removed, pa.concat_tables(kept))


def _is_within(rows: pa.Table, part: LostRange, first: str, last: str) -> pa.ChunkedArray:
    within = pc.and_(pc.greater_equal(rows.column(first), part.first), pc.less_equal(rows.column(last), part.last))
    of_part = pc.and_(pc.equal(rows.column("farm"), part.farm), within)
    if "kind" in rows.column_names and first != last:
        of_part = pc.and_(of_part, pc.is_in(rows.column("kind"), pa.array([RangeKind.READ, RangeKind.GONE])))
    return pc.fill_null(of_part, False)  # noqa: FBT003 - pyarrow's parameter


def _missing_rows(output: Output, missing: LostRange) -> pa.Table:
    """Return rows of `ranges` for entries that cannot be read again, with the counts of their remaining rows."""
    known = Table(output, RANGES_SPEC, is_checked=False).rows()
    known = known.filter(_is_within(known, missing, "first_index", "first_index"))
    gone = {
        "farm": missing.farm,
        "name": LOG_NAME,
        "kind": RangeKind.GONE.value,
        "first_index": missing.first,
        "last_index": missing.last,
        "row_count": missing.last - missing.first + 1,
        BATCH: _number_of(missing),
        DAY: pc.min(known.column(DAY)).as_py(),
    }
    remaining = []
    for name, spec in BASE_SPECS.items():
        rows = Table(output, spec, is_checked=False).rows()
        remaining.append(counts_of(name, rows.filter(_is_within(rows, missing, "index", "index"))))
    counted = batch_rows(pa.concat_tables(remaining), _number_of(missing)).cast(RANGES_SPEC.schema)
    return pa.concat_tables([pa.Table.from_pylist([gone], schema=RANGES_SPEC.schema), counted])


def current_rows(output: Output, spec: TableSpec) -> pa.Table:
    """Return all rows of a table of the current state except `current_watched`. Raise TableDamagedError.

    The last row of each key in a base table is the current one, as in a batch (`pipeline/tables/current.py`). The row
    of a farm has the range in `ranges`, and leader and period of its last clock entry. A farm's name is not in any
    other table: it is NULL until the next batch has the farm.
    """
    name = spec.name.removeprefix(PREFIX)
    if name == "farm":
        return _farms(output)
    (base,) = (each for each, current in FROM_BASE.items() if current == name)
    rows = stored_rows(output / base, BASE_SPECS[base].schema)
    return last_rows(rows, KEYS[name]).select(spec.schema.names)


def _farms(output: Output) -> pa.Table:
    farms: dict[str, dict[str, Any]] = {}
    for row in stored_rows(output / RANGES_SPEC.name, RANGES_SPEC.schema).sort_by("last_index").to_pylist():
        if row["name"] == LOG_NAME and row["kind"] in {RangeKind.READ, RangeKind.UNCOUNTED}:
            known = farms.setdefault(row["farm"], {"farm": row["farm"], BATCH: row[BATCH], "entries": 0})
            _add(known, row)
    for row in stored_rows(output / "clocks", BASE_SPECS["clocks"].schema).sort_by("index").to_pylist():
        if (farm := farms.get(row["farm"])) is not None:
            farm |= {"term": row["term"], "leader_id": row["leader_id"]}
            if row["period_ms"] is not None and PERIOD_MIN_MS <= row["period_ms"] <= PERIOD_MAX_MS:
                farm["period_ms"] = row["period_ms"]
    return pa.Table.from_pylist([*farms.values()], schema=SCHEMAS["farm"])


def _add(farm: dict[str, Any], row: dict[str, Any]) -> None:
    """Extend a farm's range by a row of `ranges`; rows with earlier last indexes come first."""
    farm["index"] = row["last_index"]
    # A run also takes the log time of the last entry: a correction may have set it back.
    farm["log_time"] = row["log_time"] or farm.get("log_time")
    farm["first_index"] = min(each for each in (farm.get("first_index"), row["first_index"]) if each is not None)
    farm[BATCH] = max(farm[BATCH], row[BATCH])
    known = (farm["entries"], row["row_count"])
    farm["entries"] = None if None in known else sum(known)
