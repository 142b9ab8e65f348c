"""`garlicfarm pipeline query "SQL"`: DuckDB over the tables of an output directory. No JVM is started.

Each table is a view over the Parquet files that its Delta log lists as current.

A query cannot change anything. The connection is in memory, has locked settings, and accepts one SELECT statement. It
may open only the files of the tables, not their neighbors (`names.sqlite`, the salt of the pseudonyms). DuckDB's own
settings enforce this, because a search for forbidden words cannot cover all of SQL. Only the kind of the statement is
checked here, because EXPLAIN ANALYZE executes its statement.

Rows are passed on as they are found: an answer may be larger than the memory. DuckDB's own memory, for sorting or
grouping, is limited to `MEMORY_LIMIT` and never moved to the disk.

While the pipeline runs, files are merged and replaced. A query that loses a file before its first row is repeated with
the current files. A report has many queries, and its page must show one moment. So `of_one_version` opens the log of
each table once, and runs all queries on one connection. An empty answer lists the empty tables among the tables of its
query. An answer for people also shows the gaps of these tables (`gaps.py`).

A table from a backup is refused. A run records a batch, commits it in the tables, and then records the last batch of
each table. So a table must have every batch of a record that was read before it. A record that is read after a table
must have every batch of the table. The record may be missing only if `Table.is_counted` is false for each table.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from pipeline.gold.sources import MEMORY_LIMIT, OWN_FAULTS, database, list_of
from pipeline.output.buckets import Output
from pipeline.output.data_files import CACHE_BYTES, cache_directory, files_on_disk, free_bytes, place_on_disk
from pipeline.schemas import DERIVED, FLOODFILLS, arrow_schema
from pipeline.serve.gaps import Gap, concerns, gaps_of
from pipeline.source.daemon_pool import DaemonPool
from pipeline.tables.batch_notes import NotedBatches, noted_batches, refuse_record
from pipeline.tables.current import SPECS
from pipeline.tables.delta import HELD, NOTHING_COMMITTED, StoredFile, StoredTables, stored_files
from pipeline.tables.files import DAY, TableDamagedError, check_files
from pipeline.tables.specs import (
    ALERTS_SPEC,
    BASE_SPECS,
    EVENTS,
    EVENTS_SPEC,
    LOG,
    RANGES_SPEC,
    STATES_SPEC,
    TRANSITIONS_SPEC,
)
from pipeline.tables.upkeep import MIB

Read = TypeVar("Read")
SqlQuery: TypeAlias = Callable[[str], list[dict[str, Any]]]
"""Returns the rows of a small answer to one SELECT."""
ATTEMPTS = 5
_IS_GONE = (duckdb.IOException, FileNotFoundError)
_RECORDED = {LOG: (*BASE_SPECS, RANGES_SPEC.name), EVENTS: (EVENTS,)}
"""Tables that show a lost record of a query. The log's tables are compared even if only derived tables are read."""
_WITHOUT_LOG = frozenset({EVENTS, ALERTS_SPEC.name, STATES_SPEC.name})
LISTED_AT_ONCE = 8
ROWS_AT_ONCE = 4_096
TABLES: dict[str, pa.Schema] = {
    spec.name: spec.schema
    for spec in (
        *(*BASE_SPECS.values(), EVENTS_SPEC, RANGES_SPEC, TRANSITIONS_SPEC),
        *(ALERTS_SPEC, STATES_SPEC, *SPECS.values()),
    )
}
TABLES |= {name: arrow_schema(columns) for name, columns in (DERIVED | {"closest_floodfills": FLOODFILLS}).items()}


class QueryError(Exception):
    """The query was not answered; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Names of the columns, each once, and the rows, which can be iterated once."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    empty: tuple[str, ...] = ()
    """The empty tables that the query reads."""
    has_rows: bool = True
    gaps: tuple[Gap, ...] = ()
    """The entries that the tables of the query lack."""

    def documents(self) -> Iterator[dict[str, Any]]:
        """Return the rows as objects."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


def documents(output: Output, sql: str) -> list[dict[str, Any]]:
    """Return all rows of a small answer. Raises QueryError."""
    with query_result(output, sql) as answer:
        return list(answer.documents())


def stored_gaps(output: Output) -> tuple[Gap, ...]:
    """Return the entries that the tables lack. Raises QueryError."""
    return gaps_of(output, lambda sql: documents(output, sql))


def of_one_version(output: Output, read: Callable[[SqlQuery], Read]) -> Read:
    """Return the result of `read`, whose queries all see one version of each table. Raises QueryError."""
    with _retried(
        output, frozenset(TABLES), lambda tables: read(lambda sql: [*tables.answer(sql).documents()])
    ) as result:
        return result


def refuse_without_tables(output: Output) -> None:
    """Raise QueryError if no run has made a table there."""
    if (isinstance(output, Path) and not output.is_dir()) or not any(each.name in TABLES for each in output.iterdir()):
        raise QueryError(
            f"{output} does not contain tables; make them with `garlicfarm pipeline run --output"
            f" {shlex.quote(str(output))}`"
        )


@contextmanager
def query_result(output: Output, sql: str, *, with_gaps: bool = False) -> Iterator[Answer]:
    """Yield the answer to one SELECT over the tables below `output`. Raises QueryError, also while rows are taken."""
    named = _read_by(sql)
    names, is_concerned = named or frozenset(TABLES), with_gaps and concerns(named)

    def answered(tables: "_OpenTables") -> Answer:
        # Read before the query, because a query ends the rows of an earlier query on the same connection.
        gaps = gaps_of(output, lambda each: [*tables.answer(each).documents()]) if is_concerned else ()
        return replace(tables.answer(sql), gaps=gaps)

    # `completeness`, and other queries that read `ranges` with base tables, show the missing rows themselves.
    compared = frozenset(BASE_SPECS) if RANGES_SPEC.name in named else frozenset[str]()
    all_names = {*names, RANGES_SPEC.name} if is_concerned else names
    with _retried(output, all_names, answered, compared) as answer:
        yield answer


@contextmanager
def _retried(
    output: Output,
    names: Collection[str],
    begin: Callable[["_OpenTables"], Read],
    compared: Collection[str] = frozenset(),
) -> Iterator[Read]:
    """Yield the result of `begin`, repeated with newer versions of the tables when a file is gone.

    Tables older than the record of batches are refused, except those in `compared`.
    """
    refuse_without_tables(output)
    lost: Exception | None = None
    for _ in range(ATTEMPTS):
        with database(MEMORY_LIMIT) as connection:
            try:
                result = begin(_OpenTables(connection, output, names, compared))
            except (duckdb.Error, FileNotFoundError, TableDamagedError) as error:
                is_bucket, is_gone = not isinstance(output, Path), isinstance(error, _IS_GONE)
                if is_bucket or not is_gone:
                    # This downloads bad copies of a bucket again.
                    _refuse_damaged(output, names, error)
                if not is_gone and (not is_bucket or isinstance(error, OWN_FAULTS)):
                    raise QueryError(_words(error)) from error
                lost = error
                continue
            try:
                yield result
            except duckdb.Error as error:
                _refuse_damaged(output, names, error)
                raise QueryError(_words(error)) from error
            return
    _refuse_damaged(output, names, lost)
    raise QueryError(f"a file of the tables could not be read: {lost}") from lost


def _refuse_damaged(output: Output, names: Collection[str], error: Exception | None) -> None:
    """Raise QueryError with the file and the remedy if a file of these tables is the cause of this error."""
    if isinstance(error, OWN_FAULTS):
        return
    try:
        for root in (output.resolve() / name for name in names if name in TABLES):
            check_files(root, (file.path for file in stored_files(root) if _is_checked(root, file.path)))
    except (TableDamagedError, OSError) as damage:
        raise QueryError(_words(damage)) from error


def _is_checked(root: Output, path: str) -> bool:
    """Return False for an existing object without a copy: no query has read it, and a check would download it."""
    return isinstance(root, Path) or place_on_disk(root, path).exists() or not (root / path).is_file()


class _OpenTables:
    """Tables on one connection, each at its version at the time of construction.

    The first query of a table makes its view: making all views would open every file of every table.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        output: Output,
        names: Collection[str],
        compared: Collection[str] = frozenset(),
    ) -> None:
        self._connection = connection
        self._roots = {name: output.resolve() / name for name in TABLES if name in names}
        self._files = _listed(output.resolve(), [*self._roots], compared)
        self._downloaded_bytes = 0
        self._without_view = set(self._files)
        _lock(
            connection,
            [str(place_on_disk(root, each.path)) for name, root in self._roots.items() for each in self._files[name]],
        )

    def answer(self, sql: str) -> Answer:
        """Answer one SELECT. Raises QueryError or duckdb.Error; taking rows raises duckdb.Error."""
        named = _read_by(sql)
        statements = self._connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryError("a query must be one SELECT statement: the tables can only be read")
        needed = self._without_view & (named or self._files.keys())
        self._refuse_large_download(needed)
        for name in needed:
            files = files_on_disk(self._roots[name], [each.path for each in self._files[name]])
            self._connection.execute(f"CREATE VIEW {name} AS {_rows(name, files)}")
            self._without_view.remove(name)
        empty = tuple(name for name, files in self._files.items() if name in named and not files)
        with _interruptible():
            found = self._connection.execute(statements[0])

        def next_rows() -> list[tuple[Any, ...]]:
            with _interruptible():
                return found.fetchmany(ROWS_AT_ONCE)

        columns = _distinct_names([column[0] for column in found.description or ()])
        # Only the first rows show whether all files exist.
        first = next_rows()
        rest = iter(next_rows, [])
        return Answer(columns, chain(first, chain.from_iterable(rest)), empty, bool(first))

    def _refuse_large_download(self, names: Collection[str]) -> None:
        """Raise QueryError if a query would download too much of a bucket: a WHERE does not exclude files."""
        missing = sum(
            each.size_bytes
            for name in names
            for each in self._files[name]
            if not isinstance(self._roots[name], Path) and not place_on_disk(self._roots[name], each.path).exists()
        )
        if not missing:
            return
        free = free_bytes()
        self._downloaded_bytes += missing
        if self._downloaded_bytes <= CACHE_BYTES and missing <= free:
            return
        reason = (
            f"only {free / MIB:,.0f} MiB are free in {cache_directory()}: set XDG_CACHE_HOME to a larger disk"
            if missing > free
            else f"the limit is {CACHE_BYTES / MIB:,.0f} MiB: copy these tables into a directory with a client of the"
            " store, and query it with --output"
        )
        raise QueryError(
            f"{', '.join(sorted(names))}: {missing / MIB:,.0f} MiB must be downloaded for this query, and {reason}"
        )


def _listed(output: Output, names: Sequence[str], compared: Collection[str]) -> dict[str, list[StoredFile]]:
    """Return the files of these tables; a bucket gets the requests for several tables at a time.

    Raise TableDamagedError for a table older than the record of batches, except those in `compared`.
    """
    records = {query: noted_batches(output, query) for query in (LOG, EVENTS)}
    noted = {
        name: (query, batch)
        for query, record in records.items()
        for name, batch in ({} if record is None else record.tables | record.derived).items()
        if name not in compared
    }
    tables = StoredTables(output, noted)
    if isinstance(output, Path):
        found = dict(zip(names, map(tables.files, names), strict=True))
    else:
        with DaemonPool(LISTED_AT_ONCE) as pool:
            found = dict(zip(names, pool.map(tables.files, names), strict=True))
    _refuse_other_record(tables, records, found)
    return found


def _refuse_other_record(
    tables: StoredTables, records: Mapping[str, NotedBatches | None], found: Mapping[str, Iterable[StoredFile]]
) -> None:
    """Raise TableDamagedError if a table has a batch that its record lacks."""
    for query, name in ((LOG, RANGES_SPEC.name), (EVENTS, EVENTS)):
        if (record := records[query]) is None:
            # A table of another query does not need this record.
            needs_record = not found.keys() <= _WITHOUT_LOG if query == LOG else EVENTS in found
            names = _RECORDED[query] if needs_record else ()
            # Versions without a record of batches did not state the number of rows either.
            counted = (tables.batch(each, query) for each in names if tables.batch(each, HELD) != NOTHING_COMMITTED)
            last = max(counted, default=NOTHING_COMMITTED)
        else:
            batches = (each.batch for each in found.get(name, ()) if each.batch is not None)
            last = max(batches, default=NOTHING_COMMITTED)
        if last > (NOTHING_COMMITTED if record is None else record.begun):
            # A run may have written the record in the meantime.
            refuse_record(tables.output, query, noted_batches(tables.output, query), last)


@lru_cache(maxsize=64)
def _read_by(sql: str) -> frozenset[str]:
    """Return the tables that a query names; none if DuckDB cannot parse it, or it reads files. Raises QueryError."""
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise QueryError("the query is not text in UTF-8") from error
    with _parser().cursor() as apart:
        try:
            return frozenset(name.lower() for name in apart.get_table_names(sql))
        except duckdb.Error:
            return frozenset()


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    """Return an instance of DuckDB without views, which would hide names, and without access to files."""
    instance = database()
    instance.execute("SET enable_external_access = false")
    return instance


@contextmanager
def _interruptible() -> Iterator[None]:
    """Convert DuckDB's error for Ctrl-C back into KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" not in str(error).lower():
            raise
        raise KeyboardInterrupt from error


def _distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns, with a number after repeated ones."""
    taken: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in range(2, len(names) + 2))
        taken.append(next(each for each in chain([name], numbered) if each not in taken))
    return tuple(taken)


def _lock(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> None:
    """Limit the connection to these files, and lock its settings."""
    connection.execute(f"SET allowed_paths = {list_of(files)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _rows(name: str, files: Sequence[Path]) -> str:
    """Return SQL for the rows of these files of a table; it has NULL for columns that old files lack."""
    if not files:
        return no_rows(name)
    columns = TABLES[name].names
    selected = ", ".join(f'"{column}"' for column in columns)
    # The day is not in the files: their directories name it.
    hive = f"true, hive_types = {{'{DAY}': DATE}}" if DAY in columns else "false"
    return (
        f"SELECT {selected} FROM ({no_rows(name)} UNION ALL BY NAME"  # noqa: S608 - own names
        f" SELECT * FROM read_parquet({list_of(files)}, union_by_name = true, hive_partitioning = {hive}))"
    )


@cache
def no_rows(name: str) -> str:
    """Return SQL for the columns of a table, without rows."""
    schema = TABLES[name]
    with _parser().cursor() as apart:
        types = apart.from_arrow(schema.empty_table()).types
    columns = (f'CAST(NULL AS {kind}) AS "{column}"' for column, kind in zip(schema.names, types, strict=True))
    return f"SELECT {', '.join(columns)} WHERE false"


def _words(error: Exception) -> str:
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more than {MEMORY_LIMIT} of memory: select fewer columns or a shorter time, or group"
    lines = str(error).strip().split("\n\n", maxsplit=1)[0].splitlines()
    # DuckDB suggests names of its internal catalog, and a query here cannot use them.
    own = [line.strip() for line in lines if not line.startswith('Did you mean "pg_')]
    is_table = isinstance(error, duckdb.CatalogException) and own[0].startswith("Catalog Error: Table")
    return " ".join([*own, f"There are {', '.join(TABLES)}"] if is_table else own)
