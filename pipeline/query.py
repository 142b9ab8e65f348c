"""`garlicfarm pipeline query "SQL"`: DuckDB over the tables of an output directory. No JVM is started.

    history and derived tables   views over the Parquet files that count at this moment (`table_files.live_files`)
    current_…                    the rows of `current.sqlite`, with times as times

Nothing can be changed by a query: the connection is in memory, may read files below the output directory only, may not
have its settings changed, and takes one statement that selects. DuckDB is told all this itself, since SQL is too large
a language to be searched for bad words.

While the pipeline runs, files are merged and derived tables exchanged; a query that loses a file in the middle is asked
again with the files of then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline import current_state
from pipeline.schemas import DERIVED, FLOODFILLS, HISTORY, TRANSITIONS
from pipeline.table_files import TableDamagedError, arrow_schema, live_files

ATTEMPTS = 3
MEMORY_LIMIT = "1GB"
PARQUET_TABLES: dict[str, StructType] = {
    **HISTORY,
    **DERIVED,
    "transitions": TRANSITIONS,
    "closest_floodfills": FLOODFILLS,
}
_CURRENT_SCHEMAS: dict[str, StructType] = {
    "routers": HISTORY["reports"],
    "destinations": HISTORY["destination_reports"],
    "publishers": HISTORY["publications"],
    "watched": TRANSITIONS,
}
_FARM = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("log_time", pa.timestamp("us", tz="UTC")),
        ("leader_id", pa.int64()),
        ("period_ms", pa.int64()),
        ("batch_id", pa.int64()),
    ]
)


class QueryError(Exception):
    """The query was not answered: why, in words for whoever asked it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Names of the columns, and the rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def documents(self) -> list[dict[str, Any]]:
        """The rows as objects."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def query(output: Path, sql: str) -> Answer:
    """Answers one SELECT over the tables below `output`. Raises QueryError."""
    if not output.is_dir():
        raise QueryError(f"there are no tables in {output}; make them with `garlicfarm pipeline run --output {output}`")
    lost: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            with _connected(output) as connection:
                return _answer(connection, sql)
        except duckdb.IOException as error:
            lost = error
        except (duckdb.Error, TableDamagedError) as error:
            raise QueryError(_words(error)) from error
    raise QueryError(f"a file of the tables could not be read: {lost}") from lost


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type not in {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
        raise QueryError("a query is one statement that selects; the tables can only be read")
    found = connection.execute(statements[0])
    columns = tuple(column[0] for column in found.description or ())
    return Answer(columns, found.fetchall())


@contextmanager
def _connected(output: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        for name, schema in PARQUET_TABLES.items():
            _make_view(connection, output / name, name, schema)
        for table, schema in _CURRENT_SCHEMAS.items():
            connection.register(f"current_{table}", _arrow(current_state.read(output, table), arrow_schema(schema)))
        connection.register("current_farm", _arrow(current_state.read(output, "farm"), _FARM))
        connection.execute("SET allowed_directories = [$directory]", {"directory": f"{output.resolve()}/"})
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _make_view(connection: duckdb.DuckDBPyConnection, table: Path, name: str, schema: StructType) -> None:
    files = [str(file.resolve()) for file in _files(table, name)]
    empty = arrow_schema(schema).empty_table()
    connection.register(f"_{name}", empty)
    if files:
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        # The empty table tells columns that old files lack.
        columns = ", ".join(f'"{column}"' for column in schema.names)
        source = (
            f"SELECT {columns} FROM (SELECT * FROM _{name} UNION ALL BY NAME"  # noqa: S608 - own names
            f" SELECT * FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false))"
        )
    else:
        source = f"SELECT * FROM _{name}"  # noqa: S608 - own names
    connection.execute(f"CREATE VIEW {name} AS {source}")


def _files(table: Path, name: str) -> list[Path]:
    if name in HISTORY or name == "transitions":
        return live_files(table)
    return sorted(file for file in table.glob("*.parquet") if not file.name.startswith(("_", ".")))


def _arrow(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if pa.types.is_timestamp(field.type):
            values = [None if value is None else datetime.fromisoformat(value) for value in values]
        elif pa.types.is_boolean(field.type):
            values = [None if value is None else bool(value) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _words(error: Exception) -> str:
    return str(error).strip().split("\n\n", maxsplit=1)[0]
