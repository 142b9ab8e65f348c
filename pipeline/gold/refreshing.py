"""Brings a derived table up to a batch: only the windows that the batch touched, by one SQL text on either engine.

    touched windows ──▶ base rows of that time ──▶ views ──▶ the table's SQL ──▶ rows of these windows ──┐
    files of the table with rows of that time ──▶ without the touched windows ───────────────────────────┴▶ a commit

The text is one SELECT. It finds a view of each base table that is a source, with the rows from `reach_ms` before the
first touched window to `reach_ms` behind the last, and the views of `pipeline/gold/views` that the table names. What it
gives are rows by window; those of windows that were not touched are left out. So a window is made anew out of all its
rows whenever a batch adds one, and nothing else is. What the text says of a window may depend on rows within its reach
only, or the batches would be seen in the table.

Few rows are asked by DuckDB, in the driver and without a job of Spark; many by Spark, whose tasks write the files. The
text keeps to what both understand. `MACROS` gives DuckDB the functions that Spark has under other names. Results are
equal where the text computes in integers or decimals and puts rows in a total order.

A commit replaces the touched windows and carries the query and the batch: repeated, it changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pipeline.schemas import HISTORY
from pipeline.spark.session import fit_to_size, rows_of_files
from pipeline.tables.delta import StoredFile, Table, TableSpec, stored_files
from pipeline.tables.files import DAY, DataFile, write_files
from pipeline.tables.lake import BASE_SPECS, EVENTS, EVENTS_SPEC
from pipeline.tables.tasks import write_in_tasks

FEW_ROWS = 500_000
"""Rows of sources up to which DuckDB is asked: it has them in a second and some hundred megabytes."""
MEMORY_LIMIT = "1GB"
MACROS = (
    "CREATE MACRO unix_millis(moment) AS epoch_ms(moment)",
    "CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000)",
    "CREATE MACRO regexp_like(text, pattern) AS regexp_matches(text, pattern)",
    "CREATE MACRO get_json_object(text, path) AS CASE WHEN json_valid(text) THEN json_extract_string(text, path) END",
    "CREATE MACRO array_size(whole) AS len(whole)",
    "CREATE MACRO array_union(these, those) AS list_distinct(list_concat(these, those))",
    "CREATE MACRO array_except(these, those) AS list_filter(these, lambda each: NOT list_contains(those, each))",
    "CREATE MACRO collect_list(each) AS list(each)",
)
WINDOW = ("farm", "window_start")
EARLIER = pa.schema([("farm", pa.string()), ("server_id", pa.int64()), ("uptime_ms", pa.int64())])
_MOMENT = pa.timestamp("us", tz="UTC")
_SOURCES = {**BASE_SPECS, EVENTS: EVENTS_SPEC}


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A derived table and the SQL that makes it. Its columns have `farm`, `window_start` and `day` among them.

    `views`: name and SQL of what is made before it, in order. `widen_ms`: a touched window touches all that overlap the
    span of this length that it lies in. `compares_uptimes`: the text finds the view `earlier`, with the last uptime of
    each server from before its rows, out of the table's own `uptime_ms`.
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
    """A small derived table that newer rows of one base table are put to: its SQL finds it as `known`.

    Rows are few, such as one a term, and its source has one a reporting period, so DuckDB does all.
    """

    spec: TableSpec
    sql: str
    source: str


@dataclass(frozen=True, slots=True)
class Touched:
    """Windows of farms that have new rows: `farm`, `window_start` (`WINDOWS` of `pipeline/tables/tasks.py`).

    `all_history`: these are all windows that there are, and what else the table holds is given up.
    """

    windows: pa.Table
    window_ms: int
    all_history: bool = False

    def widened(self, by_ms: int) -> pa.Table:
        """`farm`, `window_start`, each once, with all windows that overlap a span of `by_ms` with one of them."""
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
    """What one refresh reads."""

    output: Path
    table: Table
    gold: GoldTable
    windows: pa.Table
    window_ms: int
    begin: datetime
    end: datetime
    """Of the rows of sources that are read."""
    files: dict[str, list[StoredFile]]

    def sql(self, text: str) -> str:
        """The text for windows of this width."""
        return text.strip().replace("$window_ms", str(self.window_ms))

    def of_touched(self) -> str:
        """The table's SQL, kept to the touched windows, with the day of each window."""
        return (
            f"SELECT made.*, CAST(made.window_start AS DATE) AS {DAY} FROM ({self.sql(self.gold.sql)}) AS made"  # noqa: S608 - own text
            " JOIN touched ON made.farm = touched.farm AND made.window_start = touched.window_start"
        )


def refresh(
    output: Path, table: Table, gold: GoldTable, touched: Touched, query: str, batch: int, session: SparkSession | None
) -> bool:
    """Makes the touched windows anew; False if this batch is in it already. Without a session DuckDB does all."""
    if not touched.windows.num_rows or table.committed(query) >= batch:
        return False
    windows = touched.widened(gold.widen_ms)
    reach = timedelta(milliseconds=gold.reach_ms)
    begin = pc.min(windows.column("window_start")).as_py()
    end = pc.max(windows.column("window_start")).as_py() + timedelta(milliseconds=touched.window_ms)
    files = {
        name: [each for each in stored_files(output / name) if _has_rows(each, begin - reach, end + reach)]
        for name in gold.sources
    }
    job = _Job(output, table, gold, windows, touched.window_ms, begin - reach, end + reach, files)
    replaced = table.files() if touched.all_history else [each for each in table.files() if _has_rows(each, begin, end)]
    kept = table.spec.schema.empty_table() if touched.all_history else without(table.rows(replaced), windows)
    rows = sum(_rows_within(each, job.begin, job.end) for listed in files.values() for each in listed)
    with _asked(job) as connection:
        earlier = EARLIER.empty_table()
        if gold.compares_uptimes and not touched.all_history:
            earlier = _earlier_uptimes(connection, job, begin)
        if session is None or rows <= FEW_ROWS:
            connection.register("earlier", earlier)
            made = connection.execute(job.of_touched()).to_arrow_table().select(table.spec.schema.names)
            both = pa.concat_tables([kept, made.cast(table.spec.schema)])
            added = write_files(table.root, table.spec.schema, _sorted(both, table.spec))
        else:
            added = _by_spark(session, job, earlier, rows)
            added += write_files(table.root, table.spec.schema, _sorted(kept, table.spec))
    table.commit(query, batch, added, replaced)
    return True


def fold(output: Path, table: Table, gold: FoldedTable, since: datetime | None, query: str, batch: int) -> bool:
    """Puts to a table what its source has since this time, or makes it anew (None); False if the batch is in it."""
    files = stored_files(output / gold.source)
    if since is not None:
        files = [each for each in files if each.youngest is not None and each.youngest >= since]
    known = table.spec.schema.empty_table() if since is None else table.rows()
    with opened() as connection:
        connection.register("known", known)
        source_view(connection, output, gold.source, files)
        connection.execute(f"CREATE VIEW {gold.source} AS SELECT * FROM all_{gold.source}")  # noqa: S608 - own
        made = connection.execute(gold.sql).to_arrow_table().select(table.spec.schema.names)
    return table.replace(query, batch, made.cast(table.spec.schema))


def without(rows: pa.Table, windows: pa.Table) -> pa.Table:
    """The rows that lie in none of these windows."""
    return rows.join(windows.select(WINDOW), WINDOW, join_type="left anti").select(rows.column_names)


@contextmanager
def _asked(job: _Job) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the views of the sources, and those that the table names."""
    with opened() as connection:
        connection.register("touched", job.windows)
        for name, listed in job.files.items():
            source_view(connection, job.output, name, listed)
            # What batches have left in one file must make no difference.
            connection.execute(
                f"CREATE VIEW {name} AS SELECT * FROM all_{name} WHERE log_time >= {literal(job.begin)}"  # noqa: S608 - own
                f" AND log_time < {literal(job.end)}"
            )
        for name, text in job.gold.views.items():
            connection.execute(f"CREATE VIEW {name} AS {job.sql(text)}")
        yield connection


@contextmanager
def opened() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB as the SQL of derived tables expects it, in memory and without a place on the disk."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET temp_directory = ''")
        for macro in MACROS:
            connection.execute(macro)
        yield connection


def source_view(connection: duckdb.DuckDBPyConnection, output: Path, name: str, files: Sequence[StoredFile]) -> None:
    """`all_NAME`: the rows of these files of a base table; what an old file lacks is NULL."""
    schema = pa.schema([each for each in _SOURCES[name].schema if each.name != DAY])
    connection.register(f"_{name}", schema.empty_table())
    paths = ", ".join("'" + str(output / name / each.path).replace("'", "''") + "'" for each in files)
    read = f"UNION ALL BY NAME SELECT * FROM read_parquet([{paths}], union_by_name = true)" if files else ""  # noqa: S608 - own
    told = ", ".join(f'"{column}"' for column in schema.names)
    connection.execute(f"CREATE VIEW all_{name} AS SELECT {told} FROM (SELECT * FROM _{name} {read})")  # noqa: S608 - own


def _earlier_uptimes(connection: duckdb.DuckDBPyConnection, job: _Job, begin: datetime) -> pa.Table:
    """The last uptime that servers told before the rows that are read, of those that tell none in the reach.

    It is sought day by day backwards, in the table itself: a server that comes back after a week costs a week's search.
    """
    sought = connection.execute(
        "SELECT farm, server_id FROM reports WHERE uptime_ms IS NOT NULL GROUP BY farm, server_id"  # noqa: S608 - own
        f" HAVING min(log_time) >= {literal(begin)}"
    ).to_arrow_table()
    found = [EARLIER.empty_table()]
    older = [each for each in job.table.files() if each.oldest is not None and each.oldest < begin]
    for day in sorted({each.day for each in older if each.day is not None}, reverse=True):
        if not sought.num_rows:
            break
        paths = [str(job.table.root / each.path) for each in older if each.day == day]
        connection.register("sought", sought)
        last = connection.execute(
            "SELECT farm, server_id, max_by(uptime_ms, window_start) AS uptime_ms FROM"  # noqa: S608 - own
            " read_parquet($paths)"
            " SEMI JOIN sought USING (farm, server_id)"
            f" WHERE uptime_ms IS NOT NULL AND window_start < {literal(begin)} GROUP BY farm, server_id",
            {"paths": paths},
        ).to_arrow_table()
        connection.unregister("sought")
        found.append(last.cast(EARLIER))
        sought = sought.join(last, ["farm", "server_id"], join_type="left anti").select(sought.column_names)
    return pa.concat_tables(found)


def _by_spark(session: SparkSession, job: _Job, earlier: pa.Table, rows: int) -> list[DataFile]:
    fit_to_size(session, rows)
    schema = job.table.spec.schema
    session.createDataFrame(job.windows).createOrReplaceTempView("touched")
    session.createDataFrame(earlier).createOrReplaceTempView("earlier")
    for name, listed in job.files.items():
        found = rows_of_files(session, HISTORY[name], (job.output / name / each.path for each in listed)).drop(DAY)
        timed = found.where(f"log_time >= {literal(job.begin)} AND log_time < {literal(job.end)}")
        timed.createOrReplaceTempView(name)
    for name, text in job.gold.views.items():
        session.sql(job.sql(text)).createOrReplaceTempView(name)
    made = session.sql(job.of_touched()).orderBy(*job.table.spec.sorted_by)
    return write_in_tasks(made.selectExpr(*(f"`{each.name}`" for each in schema)), job.table.root, schema)


def _sorted(rows: pa.Table, spec: TableSpec) -> pa.Table:
    return rows.sort_by([(each, "ascending") for each in spec.sorted_by])


def literal(moment: datetime) -> str:
    """A moment in SQL."""
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"


def _has_rows(file: StoredFile, begin: datetime, end: datetime) -> bool:
    """Whether rows of the file may lie in this time, its end excluded."""
    return file.oldest is not None and file.youngest is not None and file.youngest >= begin and file.oldest < end


def overlaps(file: StoredFile, other: StoredFile) -> bool:
    """Whether rows of both may be of one time, which a row without a time may be of as well."""
    if file.oldest is None or file.youngest is None or other.oldest is None or other.youngest is None:
        return (file.oldest is None) == (other.oldest is None)
    return file.youngest >= other.oldest and file.oldest <= other.youngest


def _rows_within(file: StoredFile, begin: datetime, end: datetime) -> int:
    """About how many rows of the file lie in this time."""
    if file.oldest is None or file.youngest is None or (file.oldest >= begin and file.youngest < end):
        return file.rows
    lasts = max((file.youngest - file.oldest).total_seconds(), 1.0)
    within = (min(file.youngest, end) - max(file.oldest, begin)).total_seconds()
    return int(file.rows * min(1.0, max(0.0, within) / lasts))
