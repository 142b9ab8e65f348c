"""The tables of an output directory as their one writer holds them, and what a micro-batch does to them.

    <output>/reports, clocks, …      base tables: what entries say (`pipeline/tables/rows.py`)
    <output>/transitions, watch_state    the watch over the servers (`pipeline/watch`)
    <output>/current_…               the newest known state (`pipeline/tables/current.py`)
    <output>/events                  the nodes' traces

All are Delta tables, so Spark, DuckDB, Polars and Trino read them, each batch is in each of them once, and what was
there before can be read by version. A batch is one Spark job (`pipeline/tables/tasks.py`) and a commit in each table
that it changes. What a user may be waiting for, the current state, is committed first, and the state of the watch last.

*One writer.* Two that write the same batch would each take the other's commit for its own, and keep a state of their
own in memory; and a commit by a local rename excludes no second writer. So a run holds a lock on `<output>/.lock` for
as long as it lives; the kernel gives it back, however the run ended. The process that holds the lock is the one that
commits: what still lives of a run that was killed, the JVM and its tasks, can leave files that no commit names, and
nothing else.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.feedback.weighing import PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.source.log_client import FarmLogError
from pipeline.tables.batch_notes import BatchNotes, Continuity, Range
from pipeline.tables.current import CurrentState
from pipeline.tables.delta import Table
from pipeline.tables.files import BATCH, DAY
from pipeline.tables.names import remember_names, salt_of
from pipeline.tables.rows import ADDRESS
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC, LOG
from pipeline.tables.tasks import FARMS, LAST, ROWS, SEEN, WINDOWS, Outcome, TaskPlan, outcome_of
from pipeline.tables.upkeep import Upkeep
from pipeline.watch.watching import Watching

LOCK_FILE = ".lock"
PERIODS_MS = (PERIOD_MIN_MS, PERIOD_MAX_MS)

Note = Callable[[str, int, pa.Table | None], None]
"""Takes note of the windows (`farm`, `window_start`) that a batch of a query touches, before it is written."""


def note_nothing(_query: str, _batch: int, _windows: pa.Table | None) -> None:
    """The default: no derived tables are made."""


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """No other pipeline writes into `output` while the block runs. Raises FarmLogError if one does, or if none can."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        lock = os.open(output / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FarmLogError(
            f"{output} cannot be written: {error.strerror or error}; let this user write it, or choose another --output"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FarmLogError(
                f"another pipeline writes into {output}: stop that one, or choose another --output"
            ) from None
        yield
    finally:
        os.close(lock)


class Lake:
    """What the query over the log writes. `window_ms`: the width of the windows of derived tables."""

    def __init__(
        self,
        output: Path,
        window_ms: int,
        *,
        watch: bool = False,
        feedback: bool = False,
        keep_ms: int | None = None,
        note: Note = note_nothing,
        continuity: Continuity = Continuity.NEXT,
    ) -> None:
        """Raises `TableDamagedError` if a table lacks a batch that it had."""
        self._output = output
        self.plan = TaskPlan(str(output.resolve()), salt_of(output), window_ms, watch, feedback, PERIODS_MS)
        self._base = {name: Table(output, spec) for name, spec in BASE_SPECS.items()}
        self._current = CurrentState(output)
        self._watching = Watching(output, PERIODS_MS) if watch else None
        self._upkeep = Upkeep(keep_ms)
        self._named: set[str] = set()
        self._note = note
        self._notes = BatchNotes(output, LOG, continuity)
        self._notes.check_tables(self._committed())

    def write_batch(self, found: DataFrame, batch: int) -> Outcome:
        """Runs the tasks of one micro-batch and writes what they find; repeated, it changes nothing."""
        outcome = outcome_of(found.toArrow())
        self.write_outcome(outcome, batch)
        return outcome

    def write_outcome(self, outcome: Outcome, batch: int) -> None:
        """Writes what the tasks of a micro-batch found; repeated, it changes nothing.

        Raises `TableDamagedError` if the batch does not continue the tables.
        """
        self._notes.begin(batch, _ranges_of(outcome))
        self._update_current(outcome, batch)
        self._note(LOG, batch, outcome.rows.get(WINDOWS))
        for name, table in self._base.items():
            table.append(LOG, batch, outcome.rows.get(ROWS + name), outcome.files.get(name, ()))
        if self._watching is not None:
            changes = self._watching.changes(LOG, batch, outcome.rows.get(SEEN))
            self._watching.transitions.append(LOG, batch, changes if changes.num_rows else None)
            self._current.take(LOG, batch, {"watched": changes})
            self._watching.keep(LOG, batch)
        self._notes.end(batch, self._committed())
        self._upkeep.after_batch(self._all())

    def _update_current(self, outcome: Outcome, batch: int) -> None:
        found = outcome.of(LAST)
        for name, named in (("destinations", "destination"), ("publishers", "master")):
            if name in found:
                self._remember(found[name], named)
        if FARMS in outcome.rows:
            farms = outcome.rows[FARMS]
            found["farm"] = farms.append_column(BATCH, pa.repeat(pa.scalar(batch, pa.int64()), farms.num_rows))
        self._current.take(LOG, batch, found)

    def _remember(self, rows: pa.Table, named: str) -> None:
        told = zip(rows.column(named).to_pylist(), rows.column(ADDRESS).to_pylist(), strict=True)
        names = {name: address for name, address in told if name not in self._named}
        if names:
            remember_names(self._output, names)
            self._named |= names.keys()

    def _committed(self) -> dict[str, int]:
        return {table.spec.name: table.known_batch(LOG) for table in self._all()}

    def _all(self) -> list[Table]:
        watching = self._watching
        return [*self._base.values(), *self._current.tables(), *(() if watching is None else watching.tables())]


def _ranges_of(outcome: Outcome) -> dict[str, Range]:
    """Return from where to where a batch reaches in each farm's log; several tasks may have read one farm."""
    found: dict[str, Range] = {}
    for each in outcome.rows[FARMS].to_pylist() if FARMS in outcome.rows else ():
        if each["first_index"] is not None:
            known = found.get(each["farm"], Range(each["first_index"], each["index"]))
            found[each["farm"]] = Range(min(known.first, each["first_index"]), max(known.last, each["index"]))
    return found


class EventsTable:
    """What the query over the nodes' traces writes."""

    def __init__(self, output: Path, keep_ms: int | None = None) -> None:
        """Raises `TableDamagedError` if the table lacks a batch that it had."""
        self._table = Table(output, EVENTS_SPEC)
        self._notes = BatchNotes(output, EVENTS, Continuity.UNKNOWN)
        self._notes.check_tables({EVENTS: self._table.known_batch(EVENTS)})
        self._upkeep = Upkeep(keep_ms)

    def write_batch(self, rows: DataFrame, batch: int) -> None:
        """Writes one micro-batch; repeated, it changes nothing."""
        found = rows.toArrow()
        columns = {each: found.column(each) for each in found.column_names} | {
            DAY: found.column("log_time").cast(pa.date32()),
            BATCH: pa.repeat(pa.scalar(batch, pa.int64()), found.num_rows),
        }
        told = pa.table({name: columns[name] for name in EVENTS_SPEC.schema.names})
        self._notes.begin(batch, _cursors_of(told))
        self._table.append(EVENTS, batch, told if told.num_rows else None)
        self._notes.end(batch, {EVENTS: self._table.known_batch(EVENTS)})
        self._upkeep.after_batch([self._table])


def _cursors_of(rows: pa.Table) -> dict[str, Range]:
    ends = rows.group_by(["node"]).aggregate([("cursor", "min"), ("cursor", "max")]).to_pylist()
    return {str(each["node"]): Range(each["cursor_min"], each["cursor_max"]) for each in ends}
