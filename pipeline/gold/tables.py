"""The derived tables: their SQL, their base tables, and the windows that are still to be made.

    batch N ──▶ `note`: the windows that it touched, in the table `gold_windows`, before the batch counts as written
    thread or end of a batch ──▶ `refresh`: every table, for the windows of all batches that it does not have

A batch touches the windows of its rows, and the farm's newest window before the batch. Only the next reporting period
shows if the last period of that window was complete. The table `gold_windows` keeps these windows until all derived
tables have them. So a killed run does not lose a window, and a refresh may combine batches.

The commits of a derived table state its batches under a query name, which contains the width of windows and a checksum
of the SQL. With another width or text, the table does not have batches of that name, so it is made again from all kept
history. The same applies to a removed table.

Each commit of a derived table also has the last batch of the log. The record of batches has the last batch of each
derived table and of `gold_windows`. If they differ, for example because the table was restored from a backup, the table
is made again from all kept history. If `gold_windows` or the width differs, the newest window of each farm is found
again, and all tables of `GOLD` and `FOLDED` are made again.

Tables that are not by window, such as the leaderships, are small. They absorb new rows of the log, or new events of the
nodes' traces (`pipeline/gold/traces.py`).
"""

import re
import threading
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pipeline.feedback.weighing import PERIOD_DEFAULT_MS, PERIOD_MAX_MS, PERIOD_MIN_MS
from pipeline.gold.refreshing import FoldedTable, GoldTable, Touched, fold, made_through, refresh
from pipeline.gold.sources import Sources
from pipeline.gold.traces import TRACED, fold_traces
from pipeline.output.buckets import Output
from pipeline.schemas import DERIVED, arrow_schema
from pipeline.tables.batch_notes import NotedBatches, noted_batches
from pipeline.tables.delta import NOTHING_COMMITTED, StoredFile, Table, TableSpec, stored_files, stored_rows
from pipeline.tables.farm_files import FarmFiles
from pipeline.tables.files import BATCH, read_file
from pipeline.tables.specs import LOG, RANGES_SPEC
from pipeline.tables.upkeep import Upkeep

DEFAULT_WINDOW = "1 minute"
_WIDTH = re.compile(r"([1-9][0-9]{0,5}) *(second|minute|hour|day|week)s?")
_UNITS_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_LATEST = datetime.max.replace(tzinfo=UTC)
_WIDEST_MS = 366 * _UNITS_MS["day"]
HOUR_MS = 3_600_000
REACH_MS = 2 * HOUR_MS
"""An hour for comparisons with earlier rows, and one more to detect repetitions among those."""
ROUTER_HEALTH = "router_health"
_HERE = Path(__file__).parent
_PERIODS = {
    "$period_min_ms": PERIOD_MIN_MS,
    "$period_max_ms": PERIOD_MAX_MS,
    "$period_default_ms": PERIOD_DEFAULT_MS,
}
_WINDOWS_SCHEMA = pa.schema(
    [("farm", pa.string()), ("window_start", pa.timestamp("us", tz="UTC")), ("batch", pa.int64())]
)
WINDOWS_SPEC = TableSpec("gold_windows", _WINDOWS_SCHEMA, ("farm", "window_start"), "interval 1 hours")


def _text(file: str) -> str:
    text = (_HERE / file).read_text(encoding="utf-8")
    text = text.replace("$submission", (_HERE / "submission.sql").read_text(encoding="utf-8").strip())
    for name, value in _PERIODS.items():
        text = text.replace(name, str(value))
    return text


def _table(name: str, sources: tuple[str, ...], keys: tuple[str, ...], *views: str, **more: Any) -> GoldTable:
    spec = TableSpec(name, arrow_schema(DERIVED[name]), ("farm", "window_start", *keys))
    texts = {view: _text(f"views/{view}.sql") for view in views}
    return GoldTable(spec, _text(f"{name}.sql"), sources, REACH_MS, texts, **more)


GOLD = {
    table.spec.name: table
    for table in (
        _table(ROUTER_HEALTH, ("reports", "clocks"), ("server_id",), "told_reports", "periods", compares_uptimes=True),
        _table(
            "destination_health",
            ("destination_reports", "clocks"),
            ("destination", "server_id"),
            "told_destinations",
            "periods",
        ),
        _table("data_quality", ("reports", "clocks", "quarantine"), ("server_id",), "told_reports", widen_ms=HOUR_MS),
    )
}

FOLDED = {
    name: FoldedTable(TableSpec(name, arrow_schema(DERIVED[name]), keys), _text(f"{name}.sql"), source)
    for name, keys, source in (
        ("leaderships", ("farm", "first_index"), "clocks"),
        ("publishers", ("farm", "master", "first_index"), "publications"),
    )
}
SPECS = {name: each.spec for name, each in (GOLD | FOLDED | TRACED).items()}


class Gold:
    """The derived tables of an output directory. Two threads may call `note` and `refresh`."""

    def __init__(self, output: Output, window_ms: int, keep_ms: int | None = None) -> None:
        self._output, self.window_ms = output, window_ms
        self._tables = {name: Table(output, spec) for name, spec in SPECS.items()}
        self._windows = FarmFiles(output, WINDOWS_SPEC)
        # The table compares this last batch with later commits, so a writer with outdated windows is refused.
        self._windows.table.committed(LOG)
        # Two threads write the two kinds of tables, and each thread uses its own upkeep.
        self._upkeep, self._upkeep_of_windows = Upkeep(keep_ms), Upkeep(None)
        self._lock = threading.Lock()
        record = noted_batches(output, LOG)
        if record is not None:
            self._make_again(record)
        known = {} if record is None else record.derived
        self._batches = {name: max(batch, known.get(name, batch)) for name, batch in self._committed().items()}
        """The last batch of the log in each table; for an older table the recorded batch, until it is made again."""
        self._made_through = min(map(self._made, (*GOLD, *FOLDED)))
        self.noted_windows = sum(each.rows for each in self._new_files())
        """The approximate number of windows recorded since the last refresh."""

    def note(self, query: str, batch: int, windows: pa.Table | None) -> Mapping[str, int]:
        """Record the windows that a batch touches (`farm`, `window_start`), before it counts as written.

        Return `batches`.
        """
        with self._lock:
            if windows is None or not windows.num_rows or self._windows.table.committed(query) >= batch:
                return self._batches
            merge = partial(_noted, batch=batch, made_through=self._made_through)
            self._windows.commit([(query, batch)], self._windows.change(windows, merge))
            self.noted_windows += windows.num_rows
            self._upkeep_of_windows.after_batch([self._windows.table])
            self._batches = self._batches | {WINDOWS_SPEC.name: batch}
            return self._batches

    @property
    def batches(self) -> Mapping[str, int]:
        """The last batch of each table and of the recorded windows, for the record of batches."""
        return self._batches

    def refresh(self, batch: int, session: SparkSession | None = None) -> None:
        """Bring all tables up to the batches through this one. Raise TableDamagedError."""
        try:
            self._refresh(batch, session)
        except duckdb.IOException:
            if isinstance(self._output, Path):
                raise
            # Another program removed a copy of a bucket's file. Finished tables have the batch, so they are skipped.
            self._refresh(batch, session)

    def _refresh(self, batch: int, session: SparkSession | None) -> None:
        with self._lock:
            after, files = self._made_through, self._new_files()
            self.noted_windows = 0
        # The files remain for `WINDOWS_SPEC.undo` after a batch has replaced them, so `note` does not wait.
        parts = [_of_batches(self._windows.table.rows([each]), after, batch) for each in files]
        noted = pa.concat_tables([_WINDOWS_SCHEMA.empty_table(), *parts])
        with Sources(self._output) as sources:
            # Tables of traces do not record the windows that they have, so they are first: a killed refresh repeats its
            # windows.
            for traced in TRACED.values():
                fold_traces(sources, self._tables, traced, pc.min(noted.column("window_start")).as_py(), batch)
            every_window = cache(partial(self._all_windows, sources))
            for name, gold in GOLD.items():
                made = self._made(name)
                if made >= batch:
                    continue
                all_history = made == NOTHING_COMMITTED
                windows = every_window() if all_history else _unique(_of_batches(noted, made, batch))
                touched = Touched(windows, self.window_ms, all_history)
                refresh(sources, self._tables[name], gold, touched, self._query(name), batch, session)
            for name, folded in FOLDED.items():
                made = self._made(name)
                windows = _of_batches(noted, made, batch)
                if made < batch and (windows.num_rows or made == NOTHING_COMMITTED):
                    since = None if made == NOTHING_COMMITTED else pc.min(windows.column("window_start")).as_py()
                    fold(sources, self._tables[name], folded, since, self._query(name), batch)
        with self._lock:
            self._made_through = batch
            self._batches = self._batches | {name: table.known_batch(LOG) for name, table in self._tables.items()}
        self._upkeep.after_batch([*self._tables.values()])

    def _new_files(self) -> list[StoredFile]:
        """Return the files with windows that not all tables have."""
        return [each for each in self._windows.table.files() if each.batch is None or each.batch > self._made_through]

    def noted_through(self, query: str) -> int:
        """Return the last batch of the query, by the recorded windows and by the record of batches."""
        record = noted_batches(self._output, query)
        done = [] if record is None else [*record.tables.values()]
        return max([self._windows.table.committed(query), *done])

    def _committed(self) -> dict[str, int]:
        tables = {**self._tables, WINDOWS_SPEC.name: self._windows.table}
        return {name: table.committed(LOG) for name, table in tables.items()}

    def _make_again(self, record: NotedBatches) -> None:
        """Mark the tables that do not match the record, so that the next refresh makes them again."""
        outdated = {name for name, batch in self._committed().items() if record.is_other(name, batch)}
        # Windows of another width begin at other times.
        has_other_width = all(self._made(name) == NOTHING_COMMITTED for name in GOLD)
        is_windows = has_other_width or WINDOWS_SPEC.name in outdated
        for name in outdated - {WINDOWS_SPEC.name} | ({*GOLD, *FOLDED} if is_windows else set()):
            self._tables[name].exchange([(self._query(name), NOTHING_COMMITTED)])
        if is_windows:
            # The last batch may be incomplete, and its repetition records its windows.
            last = max(record.derived.get(WINDOWS_SPEC.name, NOTHING_COMMITTED), record.begun - 1)
            newest = _of_batch(self._newest_windows(last), last)
            change = self._windows.change(newest, lambda _, found: found, is_new=True)
            self._windows.commit([(LOG, last)], change)

    def _made(self, name: str) -> int:
        """Return the last batch of the log in a table."""
        return made_through(self._tables[name], self._query(name))

    def _query(self, name: str) -> str:
        if name in TRACED:
            return TRACED[name].query
        if name in FOLDED:
            return f"{LOG}, text {zlib.crc32(FOLDED[name].sql.encode()):08x}"
        gold = GOLD[name]
        checksum = zlib.crc32("".join((gold.sql, *gold.views.values())).encode())
        return f"{LOG}, windows of {self.window_ms} ms, text {checksum:08x}"

    def _newest_windows(self, through: int) -> pa.Table:
        """Return the newest window of each farm in the batches up to `through`: `farm`, `window_start`."""
        rows = stored_rows(self._output / RANGES_SPEC.name, RANGES_SPEC.schema)
        rows = rows.filter((pc.field(BATCH) <= through) & pc.is_valid(pc.field("log_time")))
        times_ms = rows.column("log_time").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        starts_ms = pc.multiply(pc.divide(times_ms, self.window_ms), self.window_ms)
        starts = starts_ms.cast(pa.timestamp("ms", tz="UTC"))
        return _newest(pa.table({"farm": rows.column("farm"), "window_start": starts}))

    def _all_windows(self, sources: Sources) -> pa.Table:
        """Return the windows of all history: `farm`, `window_start`."""
        names = ("reports", "clocks", "quarantine")
        with sources.connected() as connection:
            for name in names:
                sources.view(connection, name, sources.files(name))
            rows = " UNION ALL ".join(f"SELECT farm, log_time FROM all_{name}" for name in names)  # noqa: S608 - own names
            start = f"timestamp_millis(unix_millis(log_time) - unix_millis(log_time) % {self.window_ms})"
            found = connection.execute(
                f"SELECT DISTINCT farm, {start} AS window_start FROM ({rows}) WHERE log_time IS NOT NULL"  # noqa: S608
            ).to_arrow_table()
        return found.cast(pa.schema(list(_WINDOWS_SCHEMA)[:2]))


def window_ms(window: str) -> int:
    """Return the width of windows such as `5 minutes`; they begin at multiples of it since the epoch.

    Raise ValueError.
    """
    found = _WIDTH.fullmatch(window.strip().lower())
    if found is None:
        raise ValueError(
            f"{window!r} is not the width of a window: give a width such as 30 seconds, 5 minutes, 1 hour or 1 day"
        )
    width_ms = int(found[1]) * _UNITS_MS[found[2]]
    if width_ms > _WIDEST_MS:
        raise ValueError(f"{window!r} is wider than a year: name a shorter window")
    return width_ms


def last_rows(output: Output, count: int) -> list[dict[str, Any]]:
    """Return the last rows of `router_health`, ordered by window, farm and server. Raise TableDamagedError."""
    root, schema = output / ROUTER_HEALTH, GOLD[ROUTER_HEALTH].spec.schema
    order = [(each, "ascending") for each in ("window_start", "farm", "server_id")]
    found = schema.empty_table()
    newest_first = sorted(stored_files(root), key=_youngest, reverse=True)
    for file in newest_first:
        if found.num_rows >= count and _youngest(file) < found.column("window_start")[0].as_py():
            break
        both = pa.concat_tables([found, read_file(root, file.path, schema, file.day)]).sort_by(order)
        found = both.slice(max(0, both.num_rows - count))
    return list(found.to_pylist())


def _youngest(file: StoredFile) -> datetime:
    return file.youngest or _LATEST


def _noted(known: pa.Table, windows: pa.Table, *, batch: int, made_through: int) -> pa.Table:
    """Return the recorded windows of some farms after a batch; derived tables have the batches up to `made_through`."""
    newest = _newest(known)
    is_touched = pc.is_in(newest.column("farm"), pc.unique(windows.column("farm")))
    touched = pa.concat_tables([newest.filter(is_touched), windows.cast(newest.schema)])
    of_batch = touched.group_by(["farm", "window_start"], use_threads=False).aggregate([])
    # Windows in all tables are dropped, except the newest window of a farm without rows in this batch.
    other = newest.filter(pc.invert(is_touched))
    is_newest = pc.and_(
        pc.is_in(known.column("farm"), other.column("farm")),
        pc.is_in(known.column("window_start"), other.column("window_start")),
    )
    kept = known.filter(pc.or_(pc.greater(known.column("batch"), made_through), is_newest))
    return pa.concat_tables([kept, _of_batch(of_batch, batch)])


def _newest(windows: pa.Table) -> pa.Table:
    newest = windows.group_by("farm", use_threads=False).aggregate([("window_start", "max")])
    return newest.rename_columns(["farm", "window_start"])


def _of_batch(windows: pa.Table, batch: int) -> pa.Table:
    batches = pa.repeat(pa.scalar(batch, pa.int64()), windows.num_rows)
    return windows.append_column("batch", batches).cast(_WINDOWS_SCHEMA)


def _of_batches(noted: pa.Table, after: int, through: int) -> pa.Table:
    batches = noted.column("batch")
    return noted.filter(pc.and_(pc.greater(batches, after), pc.less_equal(batches, through)))


def _unique(windows: pa.Table) -> pa.Table:
    return windows.group_by(["farm", "window_start"], use_threads=False).aggregate([])
