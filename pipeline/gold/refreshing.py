"""Updates a derived table after a batch: one SQL text, run by DuckDB or Spark, makes the touched windows again.

    touched windows ──▶ base rows of that time ──▶ views ──▶ the table's SQL ──▶ rows of these windows ──┐
    files of the table with rows of that time ──▶ without the touched windows ───────────────────────────┴▶ a commit

The SQL text is one SELECT. It reads a view of each source table, with the rows from `reach_ms` before the first touched
window to `reach_ms` after the last. It also reads the table's views from `pipeline/gold/views`. It returns rows by
window; rows of untouched windows are dropped. So if a batch adds a row to a window, the window is made again from all
its rows. A window's rows may depend only on rows within its reach; otherwise the division into batches would be visible
in the table.

Usually DuckDB runs the query, in the driver, because it is quicker for such a table. It reads many rows in portions of
consecutive windows, which bounds its memory. With a session, Spark's tasks do this for several portions on a cluster,
or for a portion with more than twice `PORTION_ROWS`. The text uses only the common language of both engines. Both
engines return equal results if the text computes in integers or decimals, and puts rows in a total order.

A commit replaces the touched windows and carries the query and the batch: a repetition does not change the tables. It
also carries the batch under the name `log`, for the record of batches.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pipeline.gold.sources import Sources, list_of, literal
from pipeline.output.data_files import files_on_disk
from pipeline.schemas import HISTORY
from pipeline.spark.session import fit_to_size, rows_of_files
from pipeline.spark.settings import is_local
from pipeline.tables.current import last_rows
from pipeline.tables.delta import NOTHING_COMMITTED, StoredFile, Table, TableSpec
from pipeline.tables.files import DAY, DataFile, write_files
from pipeline.tables.specs import LOG
from pipeline.tables.tasks import write_in_tasks

PORTION_ROWS = 1_000_000
"""The number of source rows that DuckDB reads together."""
WINDOW = ("farm", "window_start")
_MADE_BY = "made-by"
"""The application id of a transaction; its version is the checksum of the query that made the table's rows."""
_MOMENT = pa.timestamp("us", tz="UTC")
EARLIER = pa.schema(
    [("farm", pa.string()), ("server_id", pa.int64()), ("uptime_ms", pa.int64()), ("window_start", _MOMENT)]
)


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A derived table and the SQL that makes it. Its columns include `farm`, `window_start` and `day`.

    `views`: name and SQL of the views made before it, in order. `widen_ms`: a touched window touches all windows that
    overlap the span of this length around it. `compares_uptimes`: the text reads the view `earlier`, which has the last
    uptime of each server before the source rows. Its values come from the table's own column `uptime_ms`.
    """

    spec: TableSpec
    sql: str
    sources: tuple[str, ...]
    reach_ms: int = 0
    views: dict[str, str] = field(default_factory=dict)
    widen_ms: int = 0
    compares_uptimes: bool = False


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """A small derived table that absorbs newer rows of one base table; the SQL reads the table's own rows as `known`.

    DuckDB does all the work, since both tables have few rows. The derived table has, for example, one row for each
    term, and the source gets one in each reporting period.
    """

    spec: TableSpec
    sql: str
    source: str


@dataclass(frozen=True, slots=True)
class Touched:
    """Windows of farms with new rows: `farm`, `window_start` (`WINDOWS` of `pipeline/tables/tasks.py`).

    `all_history`: these are all existing windows, and other rows of the table are dropped.
    """

    windows: pa.Table
    window_ms: int
    all_history: bool = False

    def widened(self, by_ms: int) -> pa.Table:
        """Return `farm`, `window_start` of these windows and of all in the same spans of `by_ms`, each once."""
        starts = self.windows.column("window_start").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        found = zip(self.windows.column("farm").to_pylist(), starts.to_pylist(), strict=True)
        if by_ms:
            spans = {(farm, begin // by_ms, -(-(begin + self.window_ms) // by_ms)) for farm, begin in found}
            all_found = {
                (farm, begin)
                for farm, first, end in spans
                for begin in range(first * by_ms // self.window_ms * self.window_ms, end * by_ms, self.window_ms)
            }
        else:
            all_found = set(found)
        in_order = sorted(all_found)
        begins = pa.array([begin for _, begin in in_order], pa.timestamp("ms", tz="UTC")).cast(_MOMENT)
        return pa.table({"farm": pa.array([farm for farm, _ in in_order], pa.string()), "window_start": begins})


@dataclass(frozen=True, slots=True)
class _Job:
    """The input of one refresh."""

    sources: Sources
    table: Table
    gold: GoldTable
    windows: pa.Table
    window_ms: int
    first: datetime
    last: datetime
    """The starts of the first and the last touched window."""
    files: dict[str, list[StoredFile]]
    all_history: bool
    """True if the table's present rows are ignored."""

    @property
    def begin(self) -> datetime:
        """The beginning of the source rows."""
        return self.first - timedelta(milliseconds=self.gold.reach_ms)

    @property
    def end(self) -> datetime:
        """The end of the source rows."""
        return self.last + timedelta(milliseconds=self.window_ms + self.gold.reach_ms)

    @property
    def rows(self) -> int:
        """The approximate number of source rows."""
        return sum(_rows_within(each, self.begin, self.end) for listed in self.files.values() for each in listed)

    def portions(self) -> "list[_Job]":
        """Split the job into parts of consecutive windows, each with about `PORTION_ROWS` evenly spread rows.

        A part also reads the rows within the reach of its windows, so its windows span at least one reach.
        """
        rows, reach = self.rows, timedelta(milliseconds=self.gold.reach_ms)
        if rows <= PORTION_ROWS:
            return [self]
        width = max((self.end - self.begin) * (PORTION_ROWS / rows) - 2 * reach, reach)
        starts = self.windows.column("window_start")
        parts: list[_Job] = []
        for start in sorted(pc.unique(starts).to_pylist()):
            if parts and start - parts[-1].first < width:
                parts[-1] = replace(parts[-1], last=start)
            else:
                parts.append(replace(self, first=start, last=start))
        return [each.narrowed() for each in parts]

    def narrowed(self) -> "_Job":
        """Return the job without windows and files outside its first and its last window."""
        starts = self.windows.column("window_start")
        within = pc.and_(pc.greater_equal(starts, self.first), pc.less_equal(starts, self.last))
        files = {
            name: [each for each in listed if _has_rows(each, self.begin, self.end)]
            for name, listed in self.files.items()
        }
        return replace(self, windows=self.windows.filter(within), files=files)

    def sql(self, text: str) -> str:
        """Return the text for windows of this width."""
        return text.strip().replace("$window_ms", str(self.window_ms))

    def of_touched(self) -> str:
        """Return the table's SQL, limited to the touched windows, with the day of each window."""
        return (
            f"SELECT made.*, CAST(made.window_start AS DATE) AS {DAY} FROM ({self.sql(self.gold.sql)}) AS made"  # noqa: S608 - own text
            " JOIN touched ON made.farm = touched.farm AND made.window_start = touched.window_start"
        )


def made_by(query: str, batch: int, log_batch: int) -> list[tuple[str, int]]:
    """Return the transactions of a derived table's commit: last batch of query and log, and checksum of the query."""
    return [(query, batch), (LOG, log_batch), (_MADE_BY, zlib.crc32(query.encode()))]


def made_through(table: Table, query: str) -> int:
    """Return the last batch of a query in a derived table; -1 if another query made the table's rows later."""
    if table.committed(_MADE_BY) not in {zlib.crc32(query.encode()), NOTHING_COMMITTED}:
        return NOTHING_COMMITTED
    return table.committed(query)


def refresh(
    sources: Sources,
    table: Table,
    gold: GoldTable,
    touched: Touched,
    query: str,
    batch: int,
    session: SparkSession | None,
) -> bool:
    """Make the touched windows again; return False without any, or if the table already has this batch.

    Without a session, DuckDB runs the query.
    """
    if not touched.windows.num_rows or made_through(table, query) >= batch:
        return False
    windows = touched.widened(gold.widen_ms)
    starts = pc.min_max(windows.column("window_start")).as_py()
    all_files = {name: sources.files(name) for name in gold.sources}
    job = _Job(
        sources, table, gold, windows, touched.window_ms, starts["min"], starts["max"], all_files, touched.all_history
    )
    job = job.narrowed()
    replaced = table.files() if touched.all_history else _with_windows(table.files(), windows)
    kept = table.spec.schema.empty_table() if touched.all_history else without(table.rows(replaced), windows)
    portions = job.portions()
    if session is not None and _is_for_spark(session, portions):
        added = _by_spark(session, job)
        added += write_files(table.root, table.spec.schema, _sorted(kept, table.spec))
    else:
        added = _by_duckdb(portions, kept)
    table.exchange(made_by(query, batch, batch), added, replaced)
    return True


def _is_for_spark(session: SparkSession, portions: Sequence[_Job]) -> bool:
    """Return True if the rows are too many for one machine, or enough for a cluster."""
    is_cluster = len(portions) > 1 and not is_local(str(session.sparkContext.master))
    return is_cluster or any(each.rows > 2 * PORTION_ROWS for each in portions)


def _by_duckdb(portions: Sequence[_Job], kept: pa.Table) -> list[DataFile]:
    """Write files with the rows of all portions; the first file also gets the kept rows of the table."""
    added: list[DataFile] = []
    earlier = EARLIER.empty_table()
    for job in portions:
        spec, schema = job.table.spec, job.table.spec.schema
        with _connected(job) as connection:
            if job.gold.compares_uptimes:
                connection.register("earlier", _earlier_uptimes(connection, job, earlier))
            made = connection.execute(job.of_touched()).to_arrow_table().select(schema.names).cast(schema)
        if job.gold.compares_uptimes:
            of_portion = made.select(EARLIER.names).filter(pc.is_valid(made.column("uptime_ms")))
            earlier = last_rows(pa.concat_tables([earlier, of_portion]), ("farm", "server_id"), "window_start")
        added += write_files(job.table.root, schema, _sorted(pa.concat_tables([kept, made]), spec))
        kept = schema.empty_table()
    return added


def fold(sources: Sources, table: Table, gold: FoldedTable, since: datetime | None, query: str, batch: int) -> None:
    """Add the source's rows from `since` on to a table, or make it again (None), unless it has the batch already."""
    files = sources.files(gold.source)
    if since is not None:
        files = [each for each in files if each.youngest is not None and each.youngest >= since]
    known = table.spec.schema.empty_table() if since is None else table.rows()
    with sources.connected() as connection:
        connection.register("known", known)
        sources.view(connection, gold.source, files)
        connection.execute(f"CREATE TEMP VIEW {gold.source} AS SELECT * FROM all_{gold.source}")  # noqa: S608 - own
        made = connection.execute(gold.sql).to_arrow_table().select(table.spec.schema.names)
    if made_through(table, query) < batch:
        table.exchange(made_by(query, batch, batch), table.written(made.cast(table.spec.schema)), table.files())


def without(rows: pa.Table, windows: pa.Table) -> pa.Table:
    """Return the rows outside these windows."""
    return rows.join(windows.select(WINDOW), WINDOW, join_type="left anti").select(rows.column_names)


@contextmanager
def _connected(job: _Job) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with the views of the sources, and the views of the table."""
    with job.sources.connected() as connection:
        connection.register("touched", job.windows)
        for name, listed in job.files.items():
            job.sources.view(connection, name, listed)
            # Files may also contain rows outside the time range, which must not change the result.
            connection.execute(
                f"CREATE TEMP VIEW {name} AS SELECT * FROM all_{name} WHERE log_time >= {literal(job.begin)}"  # noqa: S608 - own
                f" AND log_time < {literal(job.end)}"
            )
        for name, text in job.gold.views.items():
            connection.execute(f"CREATE TEMP VIEW {name} AS {job.sql(text)}")
        yield connection


def _earlier_uptimes(connection: duckdb.DuckDBPyConnection, job: _Job, earlier: pa.Table) -> pa.Table:
    """Return the last uptime of each server before the source rows, for servers without an uptime within the reach.

    Earlier portions supply it in `earlier`, or it is searched backwards, day by day, in the table itself. A server that
    returns after a week costs a search of a week. If the table is made again, its present rows are ignored.
    """
    if job.all_history:
        return earlier
    sought = connection.execute(
        "SELECT farm, server_id FROM reports WHERE uptime_ms IS NOT NULL GROUP BY farm, server_id"  # noqa: S608 - own
        f" HAVING min(log_time) >= {literal(job.first)}"
    ).to_arrow_table()
    found = [EARLIER.empty_table()]
    older = [each for each in job.table.files() if each.oldest is not None and each.oldest < job.first]
    for day in sorted({each.day for each in older if each.day is not None}, reverse=True):
        if not sought.num_rows:
            break
        of_day = [each.path for each in older if each.day == day]
        listed = list_of(files_on_disk(job.table.root, of_day))
        connection.register("sought", sought)
        last = connection.execute(
            "SELECT farm, server_id, max_by(uptime_ms, window_start) AS uptime_ms,"  # noqa: S608 - own
            f" max(window_start) AS window_start FROM read_parquet({listed})"
            " SEMI JOIN sought USING (farm, server_id)"
            f" WHERE uptime_ms IS NOT NULL AND window_start < {literal(job.first)} GROUP BY farm, server_id"
        ).to_arrow_table()
        connection.unregister("sought")
        found.append(last.cast(EARLIER))
        sought = sought.join(last, ["farm", "server_id"], join_type="left anti").select(sought.column_names)
    return last_rows(pa.concat_tables([*found, earlier]), ("farm", "server_id"), "window_start")


def _by_spark(session: SparkSession, job: _Job) -> list[DataFile]:
    fit_to_size(session, job.rows)
    with _connected(job) as connection:
        earlier = EARLIER.empty_table()
        if job.gold.compares_uptimes:
            earlier = _earlier_uptimes(connection, job, earlier)
    schema = job.table.spec.schema
    session.createDataFrame(job.windows).createOrReplaceTempView("touched")
    session.createDataFrame(earlier).createOrReplaceTempView("earlier")
    for name, listed in job.files.items():
        paths = files_on_disk(job.sources.output / name, [each.path for each in listed])
        found = rows_of_files(session, HISTORY[name], paths).drop(DAY)
        timed = found.where(f"log_time >= {literal(job.begin)} AND log_time < {literal(job.end)}")
        timed.createOrReplaceTempView(name)
    for name, text in job.gold.views.items():
        session.sql(job.sql(text)).createOrReplaceTempView(name)
    made = session.sql(job.of_touched()).orderBy(*job.table.spec.sorted_by)
    return write_in_tasks(made.selectExpr(*(f"`{each.name}`" for each in schema)), job.table.root, schema)


def _sorted(rows: pa.Table, spec: TableSpec) -> pa.Table:
    return rows.sort_by([(each, "ascending") for each in spec.sorted_by])


def _has_rows(file: StoredFile, begin: datetime, end: datetime) -> bool:
    """Return True if the file may have rows from `begin` on and before `end`."""
    return file.oldest is not None and file.youngest is not None and file.youngest >= begin and file.oldest < end


def _with_windows(files: Sequence[StoredFile], windows: pa.Table) -> list[StoredFile]:
    """Return the files of a table by window that may have rows of these windows.

    Files between the windows are excluded and stay unchanged: the log times of two farms may be days apart.
    """
    starts = sorted(pc.unique(windows.column("window_start")).to_pylist())
    return [
        each
        for each in files
        if each.oldest is not None
        and each.youngest is not None
        and bisect_left(starts, each.oldest) < bisect_right(starts, each.youngest)
    ]


def _rows_within(file: StoredFile, begin: datetime, end: datetime) -> int:
    """Return the approximate number of the file's rows in this time."""
    if file.oldest is None or file.youngest is None or (file.oldest >= begin and file.youngest < end):
        return file.rows
    lasts = max((file.youngest - file.oldest).total_seconds(), 1.0)
    within = (min(file.youngest, end) - max(file.oldest, begin)).total_seconds()
    return int(file.rows * min(1.0, max(0.0, within) / lasts))
