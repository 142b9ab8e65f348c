"""Data files of a table with their statistics: the driver or a Spark task writes them, and a commit makes them count.

    rows ──▶ PartWriter ──▶ <table>/day=2026-11-25/part-….parquet ──▶ DataFile: path, size, rows, day, statistics

A file that no commit names is not part of the table: files of a repeated or killed task remain until VACUUM removes
them. So tasks do not need separate directories, and nothing is renamed.

Tables are partitioned by the day of log time alone, in UTC. With a partition for each farm and day, a live batch of a
thousand farms would make a thousand files per table. Rows are sorted by farm, so a reader of one farm skips other files
and row groups by their statistics.
"""

import json
import shlex
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.output.buckets import BucketError, MissingObjectError, Output
from pipeline.output.data_files import files_on_disk, make_durable, make_folder, place_on_disk, refresh_copy, shown

Read = TypeVar("Read")
DAY = "day"
UNKNOWN_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The name of the directory of rows with a NULL partition, from Hive."""
COMPRESSION = "zstd"
PLAIN_ROWS = 200
"""The greatest number of rows in a file without compression. Compression would double the time to write such a file,
and upkeep merges small files anyway.
"""
TIME_COLUMNS = ("log_time", "at", "window_start")
BATCH = "batch_id"
"""The column of a table whose rows name the batch that added them."""
BATCH_COLUMNS = (BATCH, "batch")
"""`BATCH`, and the column of `gold_windows`."""
FROM_BACKUP = "restore it from a backup, or make the tables again from the log in another output directory"
ALL_FROM_BACKUP = (
    "restore the entire output directory from one backup, or read the log again into another output directory"
)
"""The remedy if the other tables depend on the lost data."""
OF_WATCH = frozenset({"transitions", "watch_state", "current_watched"})
NOT_REPAIRED = frozenset({"alerts", "alerting_states", "gold_windows"})
"""Tables that `garlicfarm pipeline repair` does not repair."""
_COUNTED_TEXTS = frozenset({"farm"})
_MILLISECOND = 1_000


class TableDamagedError(OSError):
    """A table's file cannot be read; the text has the file and the remedy."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table. `path` is relative to the table's directory, `stats` JSON in Delta Lake's form."""

    path: str
    size_bytes: int
    rows: int
    day: str | None
    stats: str


class _Part:
    """One open file."""

    def __init__(self, root: Output, day: date | None, schema: pa.Schema, compression: str, *, by_day: bool) -> None:
        self.day = None if day is None else day.isoformat()
        directory = f"{DAY}={self.day or UNKNOWN_DAY}/" if by_day else ""
        self.path = f"{directory}part-{uuid.uuid4()}.parquet"
        self.root, self.file = root, place_on_disk(root, self.path)
        make_folder(root, self.file)
        self.footer: list[pq.FileMetaData] = []
        self.counted = [each.name for each in schema if _is_counted(each)]
        self.writer = pq.ParquetWriter(self.file, schema, compression=compression, metadata_collector=self.footer)

    def write(self, rows: pa.Table) -> None:
        """Write one more row group."""
        self.writer.write_table(rows)

    def close(self) -> DataFile:
        """Complete the file."""
        self.writer.close()
        make_durable(self.root, self.path)
        (footer,) = self.footer
        stats = json.dumps(_statistics(footer, self.counted), ensure_ascii=False)
        return DataFile(self.path, self.file.stat().st_size, footer.num_rows, self.day, stats)


class PartWriter:
    """The writer of a table's rows, with a file per day (or one file, if the table is not partitioned)."""

    def __init__(self, root: Output, schema: pa.Schema, compression: str = COMPRESSION) -> None:
        self._root = root
        self._compression = compression
        self._by_day = DAY in schema.names
        self._schema = pa.schema([each for each in schema if each.name != DAY])
        self._parts: dict[date | None, _Part] = {}

    def write(self, rows: pa.Table) -> None:
        """Add rows, which have all columns of the table."""
        for day, found in self._by_days(rows):
            if day not in self._parts:
                self._parts[day] = _Part(self._root, day, self._schema, self._compression, by_day=self._by_day)
            self._parts[day].write(found.select(self._schema.names).cast(self._schema))

    def close(self) -> list[DataFile]:
        """Return the completed files."""
        return [part.close() for part in self._parts.values()]

    def _by_days(self, rows: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
        if not rows.num_rows:
            return
        if not self._by_day:
            yield None, rows
            return
        days = rows.column(DAY)
        found = pc.unique(days).to_pylist()
        if len(found) == 1:
            # Most batches have one day, and a filter would copy all rows.
            yield found[0], rows
            return
        for day in found:
            of_day = pc.is_null(days) if day is None else pc.equal(days, pa.scalar(day, pa.date32()))
            yield day, rows.filter(of_day)


def write_files(root: Output, schema: pa.Schema, rows: pa.Table) -> list[DataFile]:
    """Write all rows, with a file per day."""
    writer = PartWriter(root, schema, COMPRESSION if rows.num_rows > PLAIN_ROWS else "none")
    writer.write(rows)
    return writer.close()


def check_files(root: Output, paths: Iterable[str]) -> None:
    """Read each data file; raise TableDamagedError for the first missing or unreadable one."""
    for path in paths:
        read_on_disk(root, path, _read_groups, is_current=True)


def _read_groups(file: Path) -> None:
    found = pq.ParquetFile(file)
    for group in range(found.num_row_groups):
        found.read_row_group(group)


def read_on_disk(root: Output, path: str, read: Callable[[Path], Read], *, is_current: bool = False) -> Read:
    """Return the result of `read` for a data file; a bad copy of an object is downloaded again. Raise OSError.

    Copies are not synced, so a power failure may damage them. `is_current`: first compare the copy with its object.
    """
    file = place_on_disk(root, path)
    try:
        if is_current:
            refresh_copy(root, path)
        files_on_disk(root, [path])
        try:
            return read(file)
        except (pa.ArrowException, OSError) as error:
            if isinstance(root, Path) or not isinstance(_damaged(root, file, error), TableDamagedError):
                raise
            file.unlink(missing_ok=True)
            files_on_disk(root, [path])
            return read(file)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(root, file, error) from error


def remedy(root: Output) -> str:
    """Return the remedy for a damaged table."""
    if root.name in OF_WATCH:
        return ALL_FROM_BACKUP
    if root.name in NOT_REPAIRED:
        return FROM_BACKUP
    return f"run `garlicfarm pipeline repair --output {shlex.quote(str(root.parent))}`, {FROM_BACKUP}"


def _damaged(root: Output, file: Path, error: Exception) -> OSError:
    """Return the error for the operator. A failed request or system call, or a removed copy, is not damage."""
    if isinstance(error, FileNotFoundError if isinstance(root, Path) else MissingObjectError):
        return TableDamagedError(f"{shown(file)} is missing: {remedy(root)}")
    if isinstance(error, BucketError) or (isinstance(error, OSError) and error.errno is not None):
        return error
    # The text has one line, because it may pass through the JVM, and reports of the JVM are read line by line.
    return TableDamagedError(f"{shown(file)} is damaged ({' '.join(str(error).split())}): {remedy(root)}")


def read_file(root: Output, path: str, schema: pa.Schema, day: date | None = None) -> pa.Table:
    """Return the rows of a file with the columns of `schema`; a missing column is NULL. Raise TableDamagedError."""
    found = read_on_disk(root, path, lambda file: pq.ParquetFile(file).read())
    columns = []
    for each in schema:
        if each.name == DAY:
            columns.append(pa.repeat(pa.scalar(day, each.type), found.num_rows))
        elif each.name in found.column_names:
            columns.append(found.column(each.name).cast(each.type))
        else:
            columns.append(pa.nulls(found.num_rows, each.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _statistics(footer: pq.FileMetaData, counted: Iterable[str]) -> dict[str, Any]:
    """Return the ranges of these columns in Delta Lake's form, from the statistics of the row groups."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls = dict.fromkeys(counted, 0)
    unknown: set[str] = set()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for column in (group.column(number) for group in groups for number in range(group.num_columns)):
        name, found = column.path_in_schema, column.statistics
        if name in nulls:
            nulls[name] += found.null_count
            if found.has_min_max:
                least[name], most[name] = (
                    min(least.get(name, found.min), found.min),
                    max(most.get(name, found.max), found.max),
                )
            elif found.num_values:
                unknown.add(name)  # Arrow omits the range of texts longer than 4 KiB.
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _in_statistics(each, up=False) for name, each in least.items() if name not in unknown},
        "maxValues": {name: _in_statistics(each, up=True) for name, each in most.items() if name not in unknown},
        "nullCount": nulls,
    }


def _is_counted(field: pa.Field) -> bool:
    kind = field.type
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind)) or field.name in _COUNTED_TEXTS


def _in_statistics(value: Any, *, up: bool) -> Any:
    """Return a value for statistics. They hold moments in milliseconds, so the ends of a range are rounded outwards."""
    if not isinstance(value, datetime):
        return value
    micros = value.microsecond
    whole = -(-micros // _MILLISECOND) if up else micros // _MILLISECOND
    at_ms = int(value.replace(microsecond=0).timestamp()) * 1000 + whole
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
