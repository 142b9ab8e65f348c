"""One Delta table: what is in it now, and commits that happen once, whatever is repeated.

    <table>/_delta_log/00000000000000000017.json    what commit 17 adds and removes, and (query, batch) of it
    <table>/_delta_log/….checkpoint.parquet         the sum of the commits up to there, made now and then

A commit is one file that must not have been there, so it happens as a whole or not at all. It carries the name of the
query and the number of its batch (`txn`). Before a commit the table is asked which batch of that query it has: a batch
that is repeated after a crash finds itself there, and is left out. So each table has each batch once, also if a crash
came between the commits of two tables.

Everything here is done by delta-rs, without a JVM, for small batches and for large ones, whose files Spark's tasks have
written: there is one implementation that commits, and one process, which `pipeline/lake.py` sees to.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pipeline.tables.files import (
    BATCH,
    DAY,
    FROM_THE_LOG,
    TIME_COLUMNS,
    DataFile,
    TableDamagedError,
    read_file,
    write_files,
)

CHECKPOINT_COMMITS = 50
NOTHING_COMMITTED = -1


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table as this version writes it. `undo`: how long what was replaced can still be read, as Delta Lake has it."""

    name: str
    schema: pa.Schema
    sorted_by: tuple[str, ...]
    undo: str = "interval 1 days"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the table as it is now, with the log times of its oldest and its youngest row, if any row has one."""

    path: str
    size_bytes: int
    rows: int
    day: date | None
    oldest: datetime | None
    youngest: datetime | None
    batch: int | None
    """The newest batch that a row names, in a table whose rows do."""
    first_batch: int | None = None
    """The oldest one."""
    first_ms: int | None = None
    """The least `time_ms` of a row, in a table that has this column."""
    last_ms: int | None = None
    """The greatest one."""
    written_ms: int | None = None
    """Milliseconds since the epoch when the file was written, by the clock of the machine."""


class Table:
    """A table that this process writes; made if it is not there, and widened if it lacks a column."""

    def __init__(self, output: Path, spec: TableSpec) -> None:
        self.spec = spec
        self.root = output / spec.name
        with _naming_table_in_errors(self.root):
            self._delta = _opened(self.root) or _created(self.root, spec)
            self._widen()
        self._known: dict[str, int] = {}

    def committed(self, query: str) -> int:
        """The last batch of the query that is in the table."""
        found = self._fresh().transaction_version(query)
        self._known[query] = NOTHING_COMMITTED if found is None else int(found)
        return self._known[query]

    def known_batch(self, query: str) -> int:
        """Return the last batch of the query as this process has committed or read it, without reading again."""
        return self._known[query] if query in self._known else self.committed(query)

    def append(self, query: str, batch: int, rows: pa.Table | None, files: Sequence[DataFile] = ()) -> bool:
        """Adds what a batch says: rows, and files that were written; False if it had been added, or says nothing."""
        if (rows is None and not files) or self.committed(query) >= batch:
            return False
        self.commit(query, batch, [*files, *(() if rows is None else self._written(rows))])
        return True

    def replace(self, query: str, batch: int, rows: pa.Table) -> bool:
        """The table holds these rows instead of all that it held."""
        if self.committed(query) >= batch:
            return False
        self.commit(query, batch, self._written(rows), self.files())
        return True

    def replace_at(self, batches: Sequence[tuple[str, int]], rows: pa.Table | None) -> None:
        """The same for batches of several queries, which the caller has seen not to be there; None: the rows stay."""
        added, removed = ([], []) if rows is None else (self._written(rows), self.files())
        self._commit(added, removed, [Transaction(*each) for each in batches])

    def commit(self, query: str, batch: int, added: Sequence[DataFile], removed: Sequence[StoredFile] = ()) -> None:
        """Takes up files that were written, and gives up others. The caller has seen that the batch is not there."""
        self._commit(added, removed, [Transaction(query, batch)])

    def drop(self, removed: Sequence[StoredFile]) -> None:
        """Gives up files, without anything in their place."""
        if removed:
            self._commit((), removed, [])

    def files(self) -> list[StoredFile]:
        """What the table consists of now."""
        return _files_of(self._fresh())

    def rows(self, files: Iterable[StoredFile] | None = None) -> pa.Table:
        """The rows of these files, or all. Raises TableDamagedError."""
        wanted = self.files() if files is None else files
        schema = self.spec.schema
        found = [read_file(self.root / file.path, schema, file.day) for file in wanted]
        return pa.concat_tables(found) if found else schema.empty_table()

    def merge_small(self, day: date | None, below_bytes: int) -> None:
        """Makes few files of the many small ones of a day (OPTIMIZE)."""
        filters = [(DAY, "=", "" if day is None else day.isoformat())] if DAY in self.spec.schema.names else None
        self._fresh().optimize.compact(partition_filters=filters, target_size=below_bytes)

    def sweep(self, *, full: bool) -> None:
        """Removes files that the table gave up longer ago than `undo` (VACUUM); `full`: and those that it never had."""
        self._fresh().vacuum(dry_run=False, full=full)

    def _written(self, rows: pa.Table) -> list[DataFile]:
        in_order = rows.sort_by([(each, "ascending") for each in self.spec.sorted_by])
        return write_files(self.root, self.spec.schema, in_order)

    def _commit(
        self, added: Sequence[DataFile], removed: Sequence[StoredFile], transactions: list[Transaction]
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._known |= {each.app_id: each.version for each in transactions}
        by_day = DAY in self.spec.schema.names
        adds = [
            AddAction(
                each.path,
                each.size_bytes,
                {DAY: each.day} if by_day else {},
                now_ms,
                data_change=True,
                stats=each.stats,
            )
            for each in added
        ]
        removes = [
            RemoveAction(
                each.path,
                data_change=True,
                deletion_timestamp=now_ms,
                size=each.size_bytes,
                partition_values={DAY: _iso(each.day)} if by_day else {},
            )
            for each in removed
        ]
        with _naming_table_in_errors(self.root):
            self._delta.create_write_transaction(
                [*adds, *removes],
                "append",
                _delta_schema(self.spec.schema),
                [DAY] if by_day else [],
                commit_properties=CommitProperties(app_transactions=transactions),
            )

    def _fresh(self) -> DeltaTable:
        """The table as it is now: another program may have optimized it."""
        self._delta.update_incremental()
        return self._delta

    def _widen(self) -> None:
        has = {each.name for each in self._delta.schema().fields}
        lacking = [each for each in _delta_schema(self.spec.schema).fields if each.name not in has]
        if lacking:
            self._delta.alter.add_columns([Field(each.name, each.type, nullable=True) for each in lacking])


def stored_files(root: Path) -> list[StoredFile]:
    """What a table consists of now, for a program that reads; none if there is no table. Raises TableDamagedError."""
    found = _opened(root)
    return [] if found is None else _files_of(found)


def stored_version(root: Path) -> int:
    """How many commits a table has after the one that made it; -1 if there is no table. Raises TableDamagedError."""
    found = _opened(root)
    return NOTHING_COMMITTED if found is None else int(found.version())


def stored_batch(root: Path, query: str) -> int:
    """The last batch of a query that is in a table, for a program that reads. Raises TableDamagedError."""
    found = _opened(root)
    batch = None if found is None else found.transaction_version(query)
    return NOTHING_COMMITTED if batch is None else int(batch)


def stored_rows(root: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a small table; none if there is no table. Raises TableDamagedError."""
    found = [read_file(root / file.path, schema, file.day) for file in stored_files(root)]
    return pa.concat_tables(found) if found else schema.empty_table()


@contextmanager
def _naming_table_in_errors(root: Path) -> Iterator[None]:
    """While the block writes this table: what delta-rs could not do is an OSError with the table's name."""
    try:
        yield
    except DeltaError as error:
        # In one line: it may pass through the JVM, whose report is read by lines.
        raise OSError(f"{root} cannot be written: {' '.join(str(error).split())}") from error


def _opened(root: Path) -> DeltaTable | None:
    if not (root / "_delta_log").is_dir():
        return None
    try:
        return DeltaTable(root)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise TableDamagedError(f"{root} is damaged ({' '.join(str(error).split())}): {FROM_THE_LOG}") from error


def _created(root: Path, spec: TableSpec) -> DeltaTable:
    root.mkdir(parents=True, exist_ok=True)
    return DeltaTable.create(
        root,
        _delta_schema(spec.schema),
        mode="ignore",
        partition_by=[DAY] if DAY in spec.schema.names else None,
        configuration={
            "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
            "delta.logRetentionDuration": spec.undo,
            "delta.deletedFileRetentionDuration": spec.undo,
        },
    )


def _files_of(delta: DeltaTable) -> list[StoredFile]:
    told = pa.table(delta.get_add_actions(flatten=True))
    time_column = next((each for each in TIME_COLUMNS if f"min.{each}" in told.column_names), None)

    def values(name: str) -> list[Any]:
        return told.column(name).to_pylist() if name in told.column_names else [None] * told.num_rows

    columns = (
        values("path"),
        values("size_bytes"),
        values("num_records"),
        values(f"partition.{DAY}"),
        values(f"min.{time_column}"),
        values(f"max.{time_column}"),
        values(f"max.{BATCH}"),
        values(f"min.{BATCH}"),
        values("min.time_ms"),
        values("max.time_ms"),
        values("modification_time"),
    )
    return [StoredFile(*each) for each in zip(*columns, strict=True)]


def _delta_schema(schema: pa.Schema) -> Schema:
    return Schema.from_arrow(pa.schema([each.with_nullable(nullable=True) for each in schema]))


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
