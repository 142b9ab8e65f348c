"""Brings a derived table up to a batch: only the windows that the batch touched, by one SQL text on either engine.

    touched windows ──▶ base files with rows of that time ──▶ the SQL ──▶ rows of these windows ──┐
    files of the table with rows of that time ──▶ without the touched windows ────────────────────┴▶ a commit

The text is one SELECT. It finds the view `touched` (`farm`, `window_start`, `window_end`) and a view of each base table
that is a source, with the rows from `reach_ms` before the first touched window to `reach_ms` behind the last. What it
gives are the rows of touched windows; others are left out. So a window is made anew out of all its rows whenever a
batch adds one, and nothing else is.

Few rows are asked by DuckDB, in the driver and without a job of Spark; many by Spark, whose tasks write the files. The
text keeps to what both understand. `MACROS` gives DuckDB the functions that Spark has under other names. Results are
equal where the text computes in integers or decimals and puts rows in a total order.

A commit replaces the touched windows and carries the query and the batch: repeated, it changes nothing.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pipeline.schemas import HISTORY
from pipeline.session import rows_of_files
from pipeline.tables.delta import StoredFile, Table, TableSpec, stored_files
from pipeline.tables.files import DAY, DataFile, write_files
from pipeline.tables.lake import BASE_SPECS
from pipeline.tables.tasks import write_in_tasks

FEW_ROWS = 250_000
"""Rows of sources up to which DuckDB is asked: it has them in a second and some hundred megabytes."""
MEMORY_LIMIT = "1GB"
MACROS = (
    "CREATE MACRO unix_millis(moment) AS epoch_ms(moment)",
    "CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000)",
)
WINDOW = ("farm", "window_start")


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A derived table and the SQL that makes it. Its columns have `farm`, `window_start` and `day` among them."""

    spec: TableSpec
    sql: str
    sources: tuple[str, ...]
    reach_ms: int = 0


@dataclass(frozen=True, slots=True)
class Touched:
    """Windows of farms that have new rows: `farm`, `window_start` (`WINDOWS` of `pipeline/tables/tasks.py`)."""

    windows: pa.Table
    window_ms: int

    def table(self) -> pa.Table:
        """With the end of each window."""
        starts = self.windows.column("window_start").cast(pa.timestamp("us", tz="UTC"))
        width = pa.scalar(timedelta(milliseconds=self.window_ms), pa.duration("us"))
        return pa.table(
            {"farm": self.windows.column("farm"), "window_start": starts, "window_end": pc.add(starts, width)}
        )


def refresh(
    output: Path, table: Table, gold: GoldTable, touched: Touched, query: str, batch: int, session: SparkSession | None
) -> bool:
    """Makes the touched windows anew; False if this batch is in it already. Without a session DuckDB does all."""
    if not touched.windows.num_rows or table.committed(query) >= batch:
        return False
    windows = touched.table()
    reach = timedelta(milliseconds=gold.reach_ms)
    begin, end = pc.min(windows.column("window_start")).as_py(), pc.max(windows.column("window_end")).as_py()
    files = {
        name: [each for each in stored_files(output / name) if _has_rows(each, begin - reach, end + reach)]
        for name in gold.sources
    }
    rows = sum(each.rows for listed in files.values() for each in listed)
    replaced = [each for each in table.files() if _has_rows(each, begin, end)]
    kept = without(table.rows(replaced), windows)
    if session is None or rows <= FEW_ROWS:
        made = _by_duckdb(output, gold, windows, files)
        added = write_files(table.root, table.spec.schema, _sorted(pa.concat_tables([kept, made]), table.spec))
    else:
        added = _by_spark(session, output, table, gold, windows, files)
        added += write_files(table.root, table.spec.schema, _sorted(kept, table.spec))
    return table.commit(query, batch, added, replaced)


def without(rows: pa.Table, windows: pa.Table) -> pa.Table:
    """The rows that lie in none of these windows."""
    return rows.join(windows.select(WINDOW), WINDOW, join_type="left anti").select(rows.column_names)


def _by_duckdb(output: Path, gold: GoldTable, windows: pa.Table, files: dict[str, list[StoredFile]]) -> pa.Table:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET temp_directory = ''")
        for macro in MACROS:
            connection.execute(macro)
        connection.register("touched", windows)
        for name, listed in files.items():
            schema = _source_schema(name)
            connection.register(f"_{name}", schema.empty_table())
            paths = [str(output / name / each.path) for each in listed]
            # The empty table tells columns that old files lack.
            read = "UNION ALL BY NAME SELECT * FROM read_parquet($paths, union_by_name = true)" if paths else ""
            told = ", ".join(f'"{column}"' for column in schema.names)
            text = f"CREATE TABLE {name} AS SELECT {told} FROM (SELECT * FROM _{name} {read})"  # noqa: S608 - own names
            connection.execute(text, {"paths": paths} if paths else {})
        found = connection.execute(_of_touched(gold)).to_arrow_table()
    return _shaped(found, gold.spec.schema)


def _by_spark(
    session: SparkSession,
    output: Path,
    table: Table,
    gold: GoldTable,
    windows: pa.Table,
    files: dict[str, list[StoredFile]],
) -> list[DataFile]:
    session.createDataFrame(windows).createOrReplaceTempView("touched")
    for name, listed in files.items():
        rows = rows_of_files(session, HISTORY[name], (output / name / each.path for each in listed))
        rows.drop(DAY).createOrReplaceTempView(name)
    made = session.sql(_of_touched(gold)).orderBy(*gold.spec.sorted_by)
    return write_in_tasks(
        made.selectExpr(*(f"`{each.name}`" for each in gold.spec.schema)), table.root, gold.spec.schema
    )


def _of_touched(gold: GoldTable) -> str:
    """The table's SQL, kept to the touched windows, with the day of each window."""
    return (
        f"SELECT made.*, CAST(made.window_start AS DATE) AS {DAY} FROM ({gold.sql.strip().removesuffix(';')}) AS made"  # noqa: S608 - own text
        " JOIN touched ON made.farm = touched.farm AND made.window_start = touched.window_start"
    )


def _source_schema(name: str) -> pa.Schema:
    return pa.schema([each for each in BASE_SPECS[name].schema if each.name != DAY])


def _shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return rows.select(schema.names).cast(schema)


def _sorted(rows: pa.Table, spec: TableSpec) -> pa.Table:
    return rows.sort_by([(each, "ascending") for each in spec.sorted_by])


def _has_rows(file: StoredFile, begin: datetime, end: datetime) -> bool:
    """Whether rows of the file may lie in this time, its end excluded."""
    return file.oldest is not None and file.youngest is not None and file.youngest >= begin and file.oldest < end
