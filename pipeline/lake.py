"""The tables of an output directory, held by their only writer, and the effect of a micro-batch on them.

    <output>/reports, clocks, …      base tables: decoded entries (`pipeline/tables/rows.py`)
    <output>/ranges                  the counts of entries and rows (`pipeline/tables/ranges.py`)
    <output>/transitions, watch_state    the watch over the servers (`pipeline/watch`)
    <output>/current_…               the newest known state (`pipeline/tables/current.py`)
    <output>/events                  the nodes' traces

All are Delta tables, so Spark, DuckDB, Polars and Trino read them. Each batch is in each table once. A batch is a
commit in each changed table; with Spark, its rows come from one job (`pipeline/tables/tasks.py`). The current
state is committed first, because a user may be waiting for it. The tables of the watch are committed last.

*One writer.* With two writers of the same batch, each would treat the other's commit as its own, and both would keep
separate states in memory. A commit by a local rename does not exclude a second writer. So a run holds a lock on
`<output>/.lock` until its end; the kernel releases it, even after a kill. The process with the lock makes the commits.
Processes that survive a killed run, the JVM and its tasks, can only leave files that are not in a commit. In a bucket
the lock is an object, and conditional writes exclude a second writer (`pipeline/output/leases.py`).
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import ignore
from pipeline.feedback.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.output.buckets import Output
from pipeline.output.leases import leased
from pipeline.schemas import EVENTS as EVENTS_SCHEMA
from pipeline.schemas import arrow_schema
from pipeline.source.log_client import FarmLogError
from pipeline.source.offsets import WHOLE_FARMS
from pipeline.tables.batch_notes import BatchNotes, Continuity, Range
from pipeline.tables.current import CurrentState
from pipeline.tables.delta import NOTHING_COMMITTED, Table, stored_version
from pipeline.tables.files import BATCH, DAY
from pipeline.tables.names import remember_names, salt_of
from pipeline.tables.ranges import RangeKind, batch_rows, limit_rows
from pipeline.tables.rows import ADDRESS
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC, LOG, RANGES_SPEC
from pipeline.tables.tasks import FARMS, LAST, RANGES, ROWS, SEEN, WINDOWS, Outcome, TaskPlan, newest_rows
from pipeline.tables.upkeep import Upkeep
from pipeline.watch.watching import Watching

LOCK_FILE = ".lock"
PERIODS_MS = (PERIOD_MIN_MS, PERIOD_MAX_MS)

_EVENT_ROWS = arrow_schema(EVENTS_SCHEMA)

NAMED_MAX = 500_000
"""The limit of known pseudonyms, about 9 MB. A run with more drops them, and later batches store them again."""
_NAMED = {"destinations": "destination", "publishers": "master"}
"""The column of pseudonyms in a part of the current state."""
UPKEEP = "upkeep"
"""The query name of commits that drop old rows."""

Note = Callable[[str, int, pa.Table | None], Mapping[str, int] | None]
"""Records the windows (`farm`, `window_start`) that a batch of a query touches, before the batch is written.

The callback returns the last batch of each derived table.
"""


@contextmanager
def alone_in(output: Output, notify: Callable[[str], None] = ignore) -> Iterator[None]:
    """Exclude other pipelines from `output` while the block runs; `notify` reports a wait for the lock of a bucket.

    Raise FarmLogError if another pipeline runs or `output` cannot be locked, and OSError if it cannot be written.
    """
    if not isinstance(output, Path):
        with leased(output / LOCK_FILE, notify):
            yield
        return
    output.mkdir(parents=True, exist_ok=True)
    lock = os.open(output / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FarmLogError(
                f"another pipeline writes into {output}: stop that one, or choose another --output"
            ) from None
        except OSError as error:
            raise FarmLogError(
                f"{output} cannot be locked: {error.strerror or error}; choose an --output on a local disk"
            ) from error
        yield
    finally:
        os.close(lock)


class Lake:
    """The writer of the query over the log. `window_ms`: the width of the windows of derived tables."""

    def __init__(
        self,
        output: Output,
        window_ms: int,
        *,
        watch: bool = False,
        feedback: bool = False,
        keep_ms: int | None = None,
        note: Note = ignore,
        continuity: Continuity = Continuity.NEXT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raise TableDamagedError if a table lacks a batch that it had, or if the record of batches does not fit.

        `clock`: seconds since the epoch.
        """
        self._output = output
        self._clock = clock
        self.plan = TaskPlan(str(output.resolve()), salt_of(output), window_ms, watch, feedback, PERIODS_MS)
        self._base = {name: Table(output, spec) for name, spec in BASE_SPECS.items()}
        self._ranges = Table(output, RANGES_SPEC)
        self._current = CurrentState(output)
        self._watching = Watching(output, PERIODS_MS) if watch else None
        self._upkeep = Upkeep(keep_ms)
        self._named = pa.array([], pa.string())
        """Pseudonyms that this run has stored, emptied when there are `NAMED_MAX`."""
        self._note = note
        self._uncounted = self._earlier_farms()
        """The farms with rows that an earlier version wrote without counting them."""
        self._notes = BatchNotes(output, LOG, continuity)
        self._notes.check_tables(
            self._committed(),
            may_be_missing=self._notes.is_empty and not any(each.is_counted for each in self._base.values()),
        )

    def _earlier_farms(self) -> list[dict[str, Any]]:
        is_new = self._ranges.known_batch(LOG) == NOTHING_COMMITTED
        has_rows = any(table.known_batch(LOG) != NOTHING_COMMITTED for table in self._base.values())
        return self._current.rows("farm").to_pylist() if is_new and has_rows else []

    @property
    def first_batch(self) -> int:
        """The tables' number for batch 0 of the checkpoint; above 0 if a repair has replaced the checkpoint."""
        return self._notes.base

    @property
    def first_entries(self) -> dict[str, int]:
        """The first entry of each farm in the present checkpoint, if a repair has replaced the earlier one."""
        return self._notes.starts

    @property
    def farms(self) -> frozenset[str]:
        """The farms with entries in the tables, also of a batch whose commits may be incomplete."""
        # An earlier version wrote tables without notes.
        current = self._current.rows("farm").column("farm").to_pylist()
        return frozenset([*self._notes.next_entries(), *self._notes.begun_entries(), *current])

    def write_outcome(self, outcome: Outcome, batch: int) -> None:
        """Write the results of the tasks of a micro-batch; a repetition does not change the tables.

        Raise TableDamagedError if the batch does not continue the tables.
        """
        ranges = _ranges_of(outcome)
        self._notes.begin(batch, ranges)
        self._update_current(outcome, batch, ranges)
        _release_memory(ranges)
        derived = self._note(LOG, batch, outcome.rows.get(WINDOWS))
        self._append_ranges(outcome, batch, ranges)
        for name, table in self._base.items():
            _release_memory(ranges)
            table.append(LOG, batch, outcome.rows.get(ROWS + name), outcome.files.get(name, ()))
        if self._watching is not None:
            changes = self._watching.changes(LOG, batch, outcome.rows.get(SEEN))
            self._watching.transitions.append(LOG, batch, changes if changes.num_rows else None)
            self._current.take(LOG, batch, "watched", changes)
            self._watching.keep(LOG, batch)
        self._notes.end(batch, self._committed(), derived)
        self._upkeep.after_batch(self._all(), self._limit_comparison)
        _release_memory(ranges)

    def show_newest(self, entries: Iterable[pa.RecordBatch]) -> None:
        """Show some entries of the next batch in the current state, except in `current_farm`."""
        outcome = newest_rows(self.plan, entries)
        for name in outcome.current():
            self._current.show(name, self._last_rows(outcome, name))

    def _append_ranges(self, outcome: Outcome, batch: int, ranges: Mapping[str, Range]) -> None:
        if RANGES in outcome.rows:
            # If a run was killed in this batch, the farm's row may already count the entries of the batch.
            uncounted = [
                {**each, "index": min(each["index"], ranges[each["farm"]].first - 1)}
                if each["farm"] in ranges
                else each
                for each in self._uncounted
            ]
            stored_at = datetime.fromtimestamp(self._clock(), UTC)
            counted = batch_rows(outcome.rows[RANGES], batch, stored_at)
            rows = pa.concat_tables([limit_rows(RangeKind.UNCOUNTED, uncounted, batch), counted])
            self._ranges.append(LOG, batch, rows)
            self._uncounted = []

    def _limit_comparison(self, dropped_through: datetime) -> None:
        """Record that rows up to this log time are about to be dropped."""
        batch = self._ranges.committed(UPKEEP) + 1
        farms = self._current.rows("farm").to_pylist()
        self._ranges.append(UPKEEP, batch, limit_rows(RangeKind.DROPPED, farms, batch, dropped_through.date()))

    def _update_current(self, outcome: Outcome, batch: int, ranges: Mapping[str, Range]) -> None:
        for name in outcome.current():
            _release_memory(ranges)
            # The rows of one part are released before the next one is read.
            self._current.take(LOG, batch, name, self._last_rows(outcome, name))
        if FARMS in outcome.rows:
            farms = outcome.rows[FARMS]
            counted = farms.append_column(BATCH, pa.repeat(pa.scalar(batch, pa.int64()), farms.num_rows))
            self._current.take(LOG, batch, "farm", counted)

    def _last_rows(self, outcome: Outcome, name: str) -> pa.Table:
        """Return the last rows of servers, destinations or masters, after storing the addresses of new pseudonyms."""
        rows = outcome.rows[LAST + name]
        if name in _NAMED:
            self._remember(rows, _NAMED[name])
        return rows

    def _remember(self, rows: pa.Table, named: str) -> None:
        new = rows.filter(pc.invert(pc.is_in(rows.column(named), self._named)))
        if new.num_rows:
            pairs = zip(new.column(named).to_pylist(), new.column(ADDRESS).to_pylist(), strict=True)
            remember_names(self._output, dict(pairs))
            kept = self._named if len(self._named) < NAMED_MAX else self._named[:0]
            self._named = pa.concat_arrays([kept, pc.unique(new.column(named)).cast(pa.string())])

    def _committed(self) -> dict[str, int]:
        return {table.spec.name: table.known_batch(LOG) for table in self._all()}

    def _all(self) -> list[Table]:
        watching = self._watching
        return [
            *self._base.values(),
            self._ranges,
            *self._current.tables(),
            *(() if watching is None else watching.tables()),
        ]


def _release_memory(ranges: Mapping[str, Range]) -> None:
    """Return unused memory to the system after a large step: with many farms, a fifth of the process's memory."""
    if len(ranges) > WHOLE_FARMS:
        pa.default_memory_pool().release_unused()


def _ranges_of(outcome: Outcome) -> dict[str, Range]:
    """Return the range of a batch in each farm's log; several tasks may have read one farm."""
    if FARMS not in outcome.rows:
        return {}
    # The rows of a snapshot are not entries.
    rows = outcome.rows[FARMS].filter(pc.is_valid(pc.field("first_index")))
    ends = rows.group_by("farm", use_threads=False).aggregate([("first_index", "min"), ("index", "max")])
    columns = (ends.column(each).to_pylist() for each in ("farm", "first_index_min", "index_max"))
    return {farm: Range(first, last) for farm, first, last in zip(*columns, strict=True)}


class EventsTable:
    """The writer of the query over the nodes' traces."""

    def __init__(self, output: Output, keep_ms: int | None = None) -> None:
        """Raise TableDamagedError if the table lacks a batch that it had, or if the record of batches does not fit."""
        self._table = Table(output, EVENTS_SPEC)
        self._notes = BatchNotes(output, EVENTS, Continuity.UNKNOWN)
        committed = {EVENTS: self._table.known_batch(EVENTS)}
        self._notes.check_tables(committed)
        self._upkeep = Upkeep(keep_ms)

    def write_batch(self, rows: Iterable[pa.RecordBatch], number: int) -> None:
        """Write one micro-batch, by its number in the checkpoint; a repetition does not change the tables."""
        found, batch = pa.Table.from_batches(rows, _EVENT_ROWS), self._notes.base + number
        columns = {each: found.column(each) for each in found.column_names} | {
            DAY: found.column("log_time").cast(pa.date32()),
            BATCH: pa.repeat(pa.scalar(batch, pa.int64()), found.num_rows),
        }
        events = pa.table({name: columns[name] for name in EVENTS_SPEC.schema.names})
        self._notes.begin(batch, _cursors_of(events))
        self._table.append(EVENTS, batch, events if events.num_rows else None)
        self._notes.end(batch, {EVENTS: self._table.known_batch(EVENTS)})
        self._upkeep.after_batch([self._table])


def record_earlier_events(output: Output, finished: int) -> None:
    """Record the batches of `events` if an earlier version wrote the tables without records.

    `finished`: the last batch that the checkpoint of the traces has completed; the table lacks batches without events.
    """
    notes = BatchNotes(output, EVENTS)
    if not notes.is_empty or stored_version(output / EVENTS) < 1:
        return
    table = Table(output, EVENTS_SPEC)
    if table.is_counted:
        return
    last = max(finished, table.committed(EVENTS))
    newest = table.rows([each for each in table.files() if each.batch == last])
    # The run repeats this batch if the checkpoint has not completed it.
    notes.begin(last, _cursors_of(newest.filter(pc.equal(newest.column(BATCH), last))))
    notes.end(last, {EVENTS: table.committed(EVENTS)})


def _cursors_of(rows: pa.Table) -> dict[str, Range]:
    ends = rows.group_by(["node"]).aggregate([("cursor", "min"), ("cursor", "max")]).to_pylist()
    return {str(each["node"]): Range(each["cursor_min"], each["cursor_max"]) for each in ends}
