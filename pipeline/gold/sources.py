"""The sources of derived tables: each table at one version, and one DuckDB instance for all queries of a refresh.

    files of each table, read once ──▶ view `all_NAME` ──▶ SQL of a derived table
    one instance with settings and macros ──▶ a cursor for each derived table, with its own temporary views

A cursor shares the instance, and its views end with it. All derived tables of a refresh see the same files of a source,
even if a batch is written at that time.

`MACROS` gives DuckDB the functions that have other names in Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa

from pipeline.output.buckets import Output
from pipeline.output.data_files import files_on_disk
from pipeline.tables.delta import StoredFile, StoredTables
from pipeline.tables.files import DAY, check_files
from pipeline.tables.specs import BASE_SPECS, EVENTS, EVENTS_SPEC

MEMORY_LIMIT = "1GB"
NO_EXTENSIONS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Settings that keep DuckDB from loading code from a network, for any query."""
OWN_FAULTS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.InterruptException,
    duckdb.OutOfMemoryException,
    duckdb.OutOfRangeException,
    duckdb.ParserException,
    duckdb.SyntaxException,
)
"""DuckDB's errors for a wrong query. Any other may be due to a damaged file, and its text lacks a remedy."""
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
_SOURCES = {**BASE_SPECS, EVENTS: EVENTS_SPEC}


def database(memory_limit: str = MEMORY_LIMIT) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB instance in memory, without files on the disk, with the functions of `MACROS`."""
    instance = duckdb.connect(":memory:", config={**NO_EXTENSIONS, "memory_limit": memory_limit})
    instance.execute(f"SET temp_directory = ''; SET GLOBAL TimeZone = 'UTC'; {'; '.join(MACROS)}")
    return instance


class Sources(StoredTables):
    """The source tables of one refresh, and the DuckDB instance for its queries, until the end of a `with` block."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._instance = database()
        self._viewed: list[tuple[Output, list[str]]] = []
        """The data files of the views of the present connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._instance.close()

    @contextmanager
    def connected(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection with its own temporary views; raise TableDamagedError if one of their files is damaged."""
        self._viewed.clear()
        with self._instance.cursor() as connection:
            try:
                yield connection
            except duckdb.Error as error:
                if not isinstance(error, OWN_FAULTS):
                    for root, paths in self._viewed:
                        check_files(root, paths)
                raise

    def view(self, connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[StoredFile]) -> None:
        """Create `all_NAME`: the rows of these files of a base table, with NULL for columns that an old file lacks."""
        schema = pa.schema([each for each in _SOURCES[name].schema if each.name != DAY])
        connection.register(f"_{name}", schema.empty_table())
        root, paths = self.output / name, [each.path for each in files]
        self._viewed.append((root, paths))
        listed = list_of(files_on_disk(root, paths))
        read = f"UNION ALL BY NAME SELECT * FROM read_parquet({listed}, union_by_name = true)" if files else ""  # noqa: S608 - own
        selected = ", ".join(f'"{column}"' for column in schema.names)
        try:
            connection.execute(f"CREATE TEMP VIEW all_{name} AS SELECT {selected} FROM (SELECT * FROM _{name} {read})")  # noqa: S608 - own
        except duckdb.Error:
            check_files(root, paths)
            raise


def list_of(files: Iterable[Path | str]) -> str:
    """Return a list of files in SQL. With a parameter DuckDB imports pandas, which takes a second and 35 MB."""
    return "[" + ", ".join("'" + str(each).replace("'", "''") + "'" for each in files) + "]"


def literal(moment: datetime) -> str:
    """Return a moment in SQL."""
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"
