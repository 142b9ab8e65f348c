"""One Delta table: its current files, and commits that happen once despite repetitions.

    <table>/_delta_log/00000000000000000017.json    the files that commit 17 adds and removes, and its (query, batch)
    <table>/_delta_log/….checkpoint.parquet         the sum of all commits before, every `CHECKPOINT_COMMITS` commits

A commit is one file that must not have existed, so it is atomic. It carries the name of the query and the number of its
batch (`txn`). Before a commit, the writer reads the last batch of that query in the table, and skips a repeated batch.
So each table has each batch once, even after a crash between the commits of two tables.

Each commit also carries the number of rows that the table has after it (`HELD`). Delta Lake accepts an emptied or
replaced commit in the middle of its log; the rows of that commit are then missing without an error. But the number in a
later commit includes them, so writers and readers refuse such a table. On a local disk, the files and the commit are
synced before `exchange` returns.

A writer that has lost its lock could add the entries of a batch twice. So in each version that another program wrote,
it compares the last batches and the number of rows with its own numbers. A merge of files does not change these
numbers. If one has changed, the writer raises `OvertakenError`.

A commit lists the directory of the log twice, and each appended commit makes the table in memory slower. So each
checkpoint deletes the commits older than `LOG_KEPT`, and the table is opened again after it.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pipeline.output.buckets import BucketPath, Output, OvertakenError, bucket_error, delta_options
from pipeline.output.documents import sync
from pipeline.tables.batch_notes import refuse_older
from pipeline.tables.files import (
    BATCH_COLUMNS,
    DAY,
    TIME_COLUMNS,
    DataFile,
    TableDamagedError,
    read_file,
    read_on_disk,
    remedy,
    write_files,
)

Read = TypeVar("Read")
CHECKPOINT_COMMITS = 10
LOG_KEPT = "interval 1 minutes"
"""The lifetime of a commit in the log, in Delta Lake's notation. A checkpoint deletes all older commits before it.

If commits are rare, a checkpoint may delete commits that a reader has just listed. The reader then opens the table
again (`_repeated`).
"""
OPENINGS = 3
"""The attempts of a reader to open a table. The second fails only if `CHECKPOINT_COMMITS` more commits follow."""
NOTHING_COMMITTED = -1
NO_UPKEEP = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Without these properties, delta-rs would delete commits before their checkpoint is durable.

It would also look for such work after each commit.
OPTIMIZE and VACUUM of delta-rs ignore these properties, so the table also sets a checkpoint interval that it never
reaches.
"""
HELD = "rows-held"
"""The application id of a transaction; its version is the number of rows in the table after the commit."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table of this version. `undo`: the lifetime of replaced files, in Delta Lake's notation."""

    name: str
    schema: pa.Schema
    sorted_by: tuple[str, ...]
    undo: str = "interval 1 days"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A current file of the table, with the log times of its oldest and its youngest row, if any row has one."""

    path: str
    size_bytes: int
    rows: int
    day: date | None
    oldest: datetime | None
    youngest: datetime | None
    batch: int | None
    """The newest batch in its rows, in a table with the batch column."""
    first_batch: int | None = None
    """The oldest batch in the rows."""
    first_ms: int | None = None
    """The least `time_ms` of a row, in a table with this column."""
    last_ms: int | None = None
    """The greatest `time_ms` of a row."""
    written_ms: int | None = None
    """The time of writing in milliseconds since the epoch, by the clock of the machine."""
    first_farm: str | None = None
    """The first farm of the rows in alphabetical order."""
    last_farm: str | None = None
    """The last farm of the rows in alphabetical order."""


REQUEST = re.compile("Error performing|HdfsObjectStore error")
"""The words of delta-rs for a failed request to a store."""


class Table:
    """A table that this process writes; it is created if missing, and widened if it lacks a column."""

    def __init__(self, output: Output, spec: TableSpec, *, is_checked: bool = True) -> None:
        """Raise TableDamagedError.

        `is_checked` is False for a repair, which opens a table that lacks rows, and does not change the table before a
        commit.
        """
        self.spec = spec
        self._schema = _delta_schema(spec.schema)
        self.root = output / spec.name
        self._known: dict[str, int] = {}
        """The last batch of each query, and the number of rows (`HELD`), that this process has read or committed last.
        """
        self._files = (NOTHING_COMMITTED, list[StoredFile]())
        """The current files, with the version that has them."""
        with _naming_table_in_errors(self.root):
            found = _repeated(lambda: _opened(self.root))
            self._delta = found or _created(self.root, spec)
            self._is_adapted = False
            if found is None or is_checked:
                self._adapt(NOTHING_COMMITTED if found is None else self._delta.version())
        if is_checked:
            _refuse_lost_rows(self.root, self._recorded_rows(), self.files())

    def committed(self, query: str) -> int:
        """Return the last batch of the query in the table."""
        table = self._fresh()
        if query not in self._known:
            self._known[query] = _batch_of(self.root, table, query)
        return self._known[query]

    def known_batch(self, query: str) -> int:
        """Return the last batch of the query that this process has committed or read, without reading again."""
        return self._known[query] if query in self._known else self.committed(query)

    def append(self, query: str, batch: int, rows: pa.Table | None, files: Sequence[DataFile] = ()) -> bool:
        """Append a batch: rows, and written files. Return False if it is empty or already committed."""
        if (rows is None and not files) or self.known_batch(query) >= batch:
            return False
        self.exchange([(query, batch)], [*files, *(() if rows is None else self.written(rows))])
        return True

    def replace(self, query: str, batch: int, rows: pa.Table) -> bool:
        """Replace all rows of the table."""
        if self.known_batch(query) >= batch:
            return False
        self.exchange([(query, batch)], self.written(rows), self.files())
        return True

    def exchange(
        self,
        batches: Sequence[tuple[str, int]],
        added: Sequence[DataFile] = (),
        removed: Sequence[StoredFile] = (),
    ) -> None:
        """Replace files for several batches; the caller has checked that none is committed."""
        self._commit(added, removed, [Transaction(*each) for each in batches])

    @property
    def is_counted(self) -> bool:
        """True if a commit states the number of rows. A version of the pipeline that does so also records batches."""
        return _transaction(self.root, self._delta, HELD) is not None

    def lacks_rows(self) -> bool:
        """Return True if the files have another number of rows than the last commit states."""
        return self._recorded_rows() != _rows_of(self.files())

    def rewrite(self, removed: Sequence[StoredFile], rows: pa.Table) -> None:
        """Replace files by rows, and record the resulting number of rows, for a repair."""
        if removed or rows.num_rows:
            self._commit(self.written(rows), removed, [], is_recounted=True)

    def recount(self, query: str, batch: int) -> None:
        """Record the present number of rows, and the last batch of a query, for a repair that has corrected rows."""
        committed = self.committed(query)
        if self.lacks_rows() or committed < batch:
            self._commit((), (), [Transaction(query, max(batch, committed))], is_recounted=True)

    def files(self) -> list[StoredFile]:
        """Return the current files of the table."""
        table = self._fresh()
        if self._files[0] != table.version():
            self._files = (table.version(), _files_of(self.root, table))
        return [*self._files[1]]

    def rows(self, files: Iterable[StoredFile] | None = None) -> pa.Table:
        """Return the rows of these files, or all. Raise TableDamagedError."""
        return _read_all(self.root, self.spec.schema, self.files() if files is None else files)

    def merge_small(self, day: date | None, below_bytes: int) -> None:
        """Merge the many small files of a day into few (OPTIMIZE)."""
        filters = [(DAY, "=", "" if day is None else day.isoformat())] if DAY in self.spec.schema.names else None
        with _naming_table_in_errors(self.root):
            before = {each.path for each in self.files()}
            version = self._delta.version()
            self._delta.optimize.compact(partition_filters=filters, target_size=below_bytes)
            if isinstance(self.root, Path):
                # delta-rs does not sync the new files and their directories, and VACUUM deletes the old files.
                merged = [self.root / each.path for each in self.files() if each.path not in before]
                sync(*merged, *{each.parent for each in merged})
            self._sync_after(version)

    def sweep(self, *, full: bool) -> None:
        """Delete files removed longer ago than `undo` (VACUUM); `full`: also files that no commit names."""
        with _naming_table_in_errors(self.root):
            version = self._fresh().version()
            self._delta.vacuum(dry_run=False, full=full)
            self._sync_after(version)

    def written(self, rows: pa.Table) -> list[DataFile]:
        """Write these rows to files, which become part of the table with a commit."""
        in_order = rows.sort_by([(each, "ascending") for each in self.spec.sorted_by])
        return write_files(self.root, self.spec.schema, in_order)

    def _commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[StoredFile],
        transactions: list[Transaction],
        *,
        is_recounted: bool = False,
    ) -> None:
        with _naming_table_in_errors(self.root):
            self._adapt(self._delta.version())
        now_ms, before = time.time_ns() // 1_000_000, self._delta.version()
        rows = _rows_of(self.files()) if is_recounted else self._recorded_rows()
        transactions = [*transactions, Transaction(HELD, rows + _rows_of(added) - _rows_of(removed))]
        # After a failed commit the table is read again: it may have the batch or not.
        known, self._known = self._known, {}
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
            try:
                self._delta.create_write_transaction(
                    [*adds, *removes],
                    "append",
                    self._schema,
                    [DAY] if by_day else [],
                    commit_properties=CommitProperties(app_transactions=transactions),
                    post_commithook_properties=NO_UPKEEP,
                )
            except DeltaError:
                # A store may have made the commit and lost the reply: the client's repetition then fails.
                if not added or all(each.path != added[0].path for each in self.files()):
                    raise
            self._known = known | {each.app_id: each.version for each in transactions}
            self._sync_after(before)

    def _recorded_rows(self) -> int:
        """Return the number of rows by the last commit, or by the files if an earlier version has written the table."""
        if HELD not in self._known:
            found = _transaction(self.root, self._delta, HELD)
            self._known[HELD] = _rows_of(self.files()) if found is None else found
        return self._known[HELD]

    def _sync_after(self, version: int) -> None:
        """Make the commits after a version durable; the data files are durable before (`pipeline/tables/files.py`)."""
        self._update()
        table, log = self._delta, self.root / "_delta_log"
        numbers = range(version + 1, table.version() + 1)
        if isinstance(log, Path) and numbers:
            sync(*(log / _commit_name(each) for each in numbers), log)
        if any(each and each % CHECKPOINT_COMMITS == 0 for each in numbers):
            table.create_checkpoint()
            if isinstance(log, Path):
                # The checkpoint is durable before the commits in it are deleted.
                sync(*log.glob(f"{table.version():020}.checkpoint*.parquet"), log / "_last_checkpoint", log)
            table.cleanup_metadata()
            self._delta = _repeated(lambda: _opened(self.root)) or table
        if self._delta.version() > version + 1:
            self._refuse_overtaken()

    def _fresh(self) -> DeltaTable:
        """Return the current table: another program may have optimized it. Raise OvertakenError."""
        if self._update():
            self._refuse_overtaken()
        return self._delta

    def _update(self) -> bool:
        """Read newer commits; return False without any."""
        # `update_incremental` lists the entire log, and most calls would not find a new commit.
        if not (self.root / "_delta_log" / _commit_name(self._delta.version() + 1)).is_file():
            return False
        with _reading_log(self.root):
            self._delta.update_incremental()
        return True

    def _refuse_overtaken(self) -> None:
        """Raise OvertakenError if newer commits have other batches or rows than this process knows."""
        known, self._known = self._known, {}
        for application, version in known.items():
            if _transaction(self.root, self._delta, application) not in {version, None}:
                raise OvertakenError(
                    f"{self.root} was written by another process in the meantime, and only one pipeline may write"
                    " there: stop the other one, then start this one again"
                )
        self._known = known

    def _adapt(self, before: int) -> None:
        """Add missing columns and properties to a table of an earlier version; sync the commits after `before`."""
        if self._is_adapted:
            return
        has = {each.name for each in self._delta.schema().fields}
        lacking = [each for each in self._schema.fields if each.name not in has]
        if lacking:
            columns = [Field(each.name, each.type, nullable=True) for each in lacking]
            self._delta.alter.add_columns(columns, post_commithook_properties=NO_UPKEEP)
        if _properties(self.spec).items() - self._delta.metadata().configuration.items():
            self._delta.alter.set_table_properties(_properties(self.spec), post_commithook_properties=NO_UPKEEP)
        self._sync_after(before)
        self._is_adapted = True


class StoredTables:
    """The tables of an output directory for a reader, each at its version at the first use. Raise TableDamagedError.

    `noted`: the query and the last batch of each table in the record of batches; an older table is refused.
    """

    def __init__(self, output: Output, noted: Mapping[str, tuple[str, int]] | None = None) -> None:
        self.output = output
        self._noted = noted or {}
        self._read: dict[str, tuple[DeltaTable | None, list[StoredFile], dict[str, int]]] = {}

    def files(self, table: str) -> list[StoredFile]:
        """Return the current files; none without a table."""
        return self._version(table)[1]

    def batch(self, table: str, query: str) -> int:
        """Return the last batch of a query in the table."""
        found, _, batches = self._version(table, query)
        if query not in batches:
            batches[query] = _batch_of(self.output / table, found, query)
        return batches[query]

    def rows(self, spec: TableSpec) -> pa.Table:
        """Return all rows of a small table; none without a table."""
        return _read_all(self.output / spec.name, spec.schema, self.files(spec.name))

    def _version(self, table: str, query: str = "") -> tuple[DeltaTable | None, list[StoredFile], dict[str, int]]:
        """Return a table, its files, and the last batches of queries; the first use reads the batch of `query`."""

        def read() -> tuple[DeltaTable | None, list[StoredFile], dict[str, int]]:
            root = self.output / table
            found = _opened(root)
            files = [] if found is None else _files_of(root, found)
            self._refuse_older(root, found, files)
            if found is None:
                return None, [], {}
            _refuse_lost_rows(root, _transaction(root, found, HELD), files)
            return found, files, {query: _batch_of(root, found, query)} if query else {}

        if table not in self._read:
            self._read[table] = _repeated(read)
        return self._read[table]

    def _refuse_older(self, root: Output, table: DeltaTable | None, files: Iterable[StoredFile]) -> None:
        """Raise TableDamagedError if the table lacks a batch that it had."""
        query, noted = self._noted.get(root.name, ("", NOTHING_COMMITTED))
        # Most tables have a row of their last batch, so delta-rs need not read the log.
        if max((each.batch for each in files if each.batch is not None), default=NOTHING_COMMITTED) < noted:
            refuse_older(root, _batch_of(root, table, query), noted)


def stored_files(root: Output) -> list[StoredFile]:
    """Return the current files of a table, for a reader; none without a table. Raise TableDamagedError."""
    return StoredTables(root.parent).files(root.name)


def stored_version(root: Output) -> int:
    """Return the number of commits after the first one; -1 without a table. Raise TableDamagedError."""
    found = _repeated(lambda: _opened(root))
    return NOTHING_COMMITTED if found is None else int(found.version())


def stored_rows(root: Output, schema: pa.Schema) -> pa.Table:
    """Return all rows of a small table; none without a table. Raise TableDamagedError."""
    return _read_all(root, schema, stored_files(root))


def _repeated(read: Callable[[], Read]) -> Read:
    """Return the result of `read`; retry after damage, because a checkpoint may have deleted the listed commits."""
    for _ in range(OPENINGS - 1):
        with suppress(TableDamagedError):
            return read()
    return read()


def _batch_of(root: Output, table: DeltaTable | None, query: str) -> int:
    batch = None if table is None else _transaction(root, table, query)
    return NOTHING_COMMITTED if batch is None else batch


def _transaction(root: Output, table: DeltaTable, application: str) -> int | None:
    """Return the last version of an application id; delta-rs reads the log for it, which a new table does not need."""
    with _reading_log(root):
        found = table.transaction_version(application) if table.version() else None
    return None if found is None else int(found)


def _read_all(root: Output, schema: pa.Schema, files: Iterable[StoredFile]) -> pa.Table:
    found = [read_file(root, file.path, schema, file.day) for file in files]
    return pa.concat_tables(found) if found else schema.empty_table()


def _commit_name(number: int) -> str:
    return f"{number:020}.json"


@contextmanager
def _naming_table_in_errors(root: Output) -> Iterator[None]:
    """Convert delta-rs errors of the block into OSError with the table's path, or BucketError."""
    try:
        yield
    except OSError as error:
        # delta-rs raises a plain OSError for a failed request. Its text has several lines and colors.
        if isinstance(root, BucketPath) and type(error) is OSError and error.errno is None:
            raise bucket_error(root, error) from error
        raise
    except DeltaError as error:
        if isinstance(root, BucketPath) and REQUEST.search(str(error)):
            raise bucket_error(root, error) from error
        # The text has one line, because it may pass through the JVM, and reports of the JVM are read line by line.
        raise OSError(f"{root} cannot be written: {' '.join(str(error).split())}") from error


def _opened(root: Output) -> DeltaTable | None:
    if isinstance(root, Path) and not (root / "_delta_log").is_dir():
        return None
    with _reading_log(root):
        try:
            return DeltaTable(str(root), storage_options=delta_options(root))
        except TableNotFoundError:
            return None


@contextmanager
def _reading_log(root: Output) -> Iterator[None]:
    """Convert delta-rs errors of the block: BucketError for a failed request, TableDamagedError for a damaged log."""
    try:
        yield
    except (DeltaError, OSError) as error:
        text = " ".join(str(error).split())
        is_request = isinstance(error, OSError) or (REQUEST.search(text) is not None and "404 Not Found" not in text)
        if isinstance(root, BucketPath) and is_request:
            raise bucket_error(root, error) from error
        if isinstance(error, OSError):
            raise
        raise TableDamagedError(f"{root} is damaged ({text}): {remedy(root)}") from error


def _created(root: Output, spec: TableSpec) -> DeltaTable:
    root.mkdir(parents=True, exist_ok=True)
    made = DeltaTable.create(
        str(root),
        _delta_schema(spec.schema),
        mode="ignore",
        partition_by=[DAY] if DAY in spec.schema.names else None,
        configuration={**_properties(spec)},
        storage_options=delta_options(root),
        post_commithook_properties=NO_UPKEEP,
    )
    if isinstance(root, Path):
        sync(root, root.parent)
    return made


def _properties(spec: TableSpec) -> dict[str, str]:
    return {
        "delta.checkpointInterval": "1000000000",
        "delta.logRetentionDuration": LOG_KEPT,
        "delta.deletedFileRetentionDuration": spec.undo,
    }


def _files_of(root: Output, delta: DeltaTable) -> list[StoredFile]:
    with _reading_log(root):
        actions = pa.table(delta.get_add_actions(flatten=True))
    names = frozenset(actions.column_names)
    time_column = next((each for each in TIME_COLUMNS if f"min.{each}" in names), None)
    batch_column = next((each for each in BATCH_COLUMNS if f"min.{each}" in names), None)

    def values(name: str) -> list[Any]:
        return actions.column(name).to_pylist() if name in names else [None] * actions.num_rows

    columns = (
        values("path"),
        values("size_bytes"),
        [
            _counted(root, path) if rows is None else rows
            for path, rows in zip(values("path"), values("num_records"), strict=True)
        ],
        values(f"partition.{DAY}"),
        values(f"min.{time_column}"),
        values(f"max.{time_column}"),
        values(f"max.{batch_column}"),
        values(f"min.{batch_column}"),
        values("min.time_ms"),
        values("max.time_ms"),
        values("modification_time"),
        values("min.farm"),
        values("max.farm"),
    )
    return [StoredFile(*each) for each in zip(*columns, strict=True)]


def _counted(root: Output, path: str) -> int:
    """Return the rows of a file that another program added without statistics."""
    return read_on_disk(root, path, lambda file: int(pq.read_metadata(file).num_rows))


def _refuse_lost_rows(root: Output, held: int | None, files: Iterable[StoredFile]) -> None:
    """Raise TableDamagedError if the files have another number of rows than the last commit states."""
    found = _rows_of(files)
    if held is not None and held != found:
        raise TableDamagedError(
            f"{root} should have {held} row{'' if held == 1 else 's'} and has {found}: a commit was lost, emptied or"
            f" undone, or another program changed its rows; {remedy(root)}"
        )


def _rows_of(files: Iterable[DataFile | StoredFile]) -> int:
    return sum(each.rows for each in files)


def _delta_schema(schema: pa.Schema) -> Schema:
    return Schema.from_arrow(pa.schema([each.with_nullable(nullable=True) for each in schema]))


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
