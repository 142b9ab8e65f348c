"""Which files a history table consists of, and how small ones are merged without losing or doubling a row in a crash.

    <table>/batch_id=17/part-….parquet       what micro-batch 17 wrote
    <table>/batch_id=0-16/merged.parquet     what batches 0 to 16 wrote, merged
    <table>/_manifest.json                   which merged directories count, and through which batch they reach

A micro-batch a second leaves 86,400 directories a day. Merging them must not break exactly-once, which rests on a
repeated batch overwriting its own directory, and must survive a SIGKILL between any two instructions:

    1. write the merged file under a name that begins with `.`, fsync, rename the directory
    2. write the manifest anew beside the old one, fsync, rename over it        ◀── here, and only here, it is merged
    3. remove the directories that were merged

The table is what the manifest lists, and the directories of batches that it does not reach. A crash before 2 leaves
a merged directory that is not listed, a crash after 2 leaves directories that are reached; `merge` begins by removing
both.
Only batches before the running one are merged, which Spark never repeats; should a checkpoint that was put back
repeat one all the same, `reached` says that its rows are there already.

Several merged files are merged again by size, like the digits of a binary counter: a file is taken up when it is no
more than twice what is merged so far. So each row is rewritten a logarithmic number of times, and files stop growing at
`FULL_BYTES`, or when they span a day of log time. Retention drops whole merged files, by the age of their youngest row.

Another program that lists the directory itself sees rows twice between 2 and 3, for milliseconds. `live_files` does
not.
"""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

MANIFEST = "_manifest.json"
BATCH = "batch_id="
MERGED = "merged.parquet"
DONE = "_SUCCESS"
MERGE_FROM_BATCHES = 32
FULL_BYTES = 128 * 1024 * 1024
DAY_MS = 86_400_000
ROWS_PER_STEP = 65_536
_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    DoubleType: pa.float64(),
    BooleanType: pa.bool_(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    DateType: pa.date32(),
}
_READING = threading.Lock()
TIME_COLUMNS = ("log_time", "at", "window_start")


FROM_THE_LOG = "restore it from a backup, or make the tables anew from the log in another output directory"
"""What to do about a damaged table that nothing else can be made of."""


class TableDamagedError(OSError):
    """A table's file cannot be read: which, and what to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """One merged directory."""

    directory: str
    first: int
    last: int
    rows: int
    size_bytes: int
    oldest_ms: int | None
    youngest_ms: int | None
    """Log time of its youngest row; None if no row of it has one."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was merged: `parts` in order, and all batches up to `reached` (-1: none)."""

    reached: int = -1
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of a table, and the log time of its oldest and of its youngest row."""

    rows: int
    oldest_ms: int
    youngest_ms: int


def load_manifest(table: Path) -> Manifest:
    """The table's manifest; an empty one where nothing was merged yet. Raises TableDamagedError."""
    path = table / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(int(document["reached"]), tuple(Part(**part) for part in document["parts"]))
    except FileNotFoundError:
        return Manifest()
    except (ValueError, KeyError, TypeError) as error:
        raise TableDamagedError(f"{path} is damaged ({error!r}): {FROM_THE_LOG}") from error


@contextmanager
def damage_told(file: Path, remedy: str = FROM_THE_LOG) -> Iterator[None]:
    """While the block reads this file: one that is no Parquet is a TableDamagedError with the `remedy`."""
    try:
        yield
    except pa.ArrowException as error:
        # In one line: it may pass through the JVM, whose report is read by lines.
        raise TableDamagedError(f"{file} is damaged ({' '.join(str(error).split())}): {remedy}") from error


def rows_in(file: Path) -> int:
    """How many rows a file has, by its end. Raises TableDamagedError."""
    with damage_told(file):
        return int(pq.read_metadata(file).num_rows)


@contextmanager
def reading() -> Iterator[None]:
    """While the block runs, this process merges nothing: the files that were listed stay where they are."""
    with _READING:
        yield


def live_files(table: Path, through: int | None = None) -> list[Path]:
    """The files that make up the table now, oldest batch first; `through`: without those of later batches."""
    while True:
        manifest = load_manifest(table)
        merged = [table / part.directory / MERGED for part in manifest.parts]
        files = merged + _pending_files(table, manifest, through)
        # A merge by another process meanwhile has removed directories that this manifest does not reach.
        if load_manifest(table) == manifest:
            return files


def pending(table: Path, manifest: Manifest) -> list[tuple[int, Path]]:
    """Finished batches that were not merged yet, in order."""
    return [
        (batch, directory)
        for batch, directory in sorted(_batches(table))
        if batch > manifest.reached and (directory / DONE).exists()
    ]


def files_within(table: Path, from_ms: int, before_ms: int, through: int | None = None) -> list[Path]:
    """The files that may hold rows of this log time: merged ones by what the manifest says, and all that are not."""
    manifest = load_manifest(table)
    merged = [
        table / part.directory / MERGED
        for part in manifest.parts
        if part.oldest_ms is not None
        and part.youngest_ms is not None
        and part.youngest_ms >= from_ms
        and part.oldest_ms < before_ms
    ]
    return merged + _pending_files(table, manifest, through)


def span_of(table: Path, through: int | None = None) -> Span | None:
    """How many rows the table has and what log time they cover; None if no row has one."""
    manifest = load_manifest(table)
    seen_ms = {end for part in manifest.parts for end in (part.oldest_ms, part.youngest_ms) if end is not None}
    rows = sum(part.rows for part in manifest.parts)
    for file in _pending_files(table, manifest, through):
        with damage_told(file):
            metadata = pq.read_metadata(file)
        rows += int(metadata.num_rows)
        seen_ms |= _ends_of_footer_ms(metadata)
    return Span(rows, min(seen_ms), max(seen_ms)) if seen_ms else None


def reached(table: Path, batch_id: int) -> bool:
    """Whether the rows of this batch are in a merged file (or were dropped for their age)."""
    return batch_id <= load_manifest(table).reached


def merge(
    table: Path,
    schema: StructType,
    before_batch: int,
    *,
    keep_ms: int | None = None,
    from_batches: int = MERGE_FROM_BATCHES,
) -> Manifest:
    """Merges what batches before `before_batch` left, if they are many; drops what is older than `keep_ms`.

    While the tables are read (`reading`), it leaves that to the next batch.
    """
    if not _READING.acquire(blocking=False):
        return load_manifest(table)
    try:
        return _merged(table, schema, before_batch, keep_ms, from_batches)
    finally:
        _READING.release()


def _merged(table: Path, schema: StructType, before_batch: int, keep_ms: int | None, from_batches: int) -> Manifest:
    manifest = load_manifest(table)
    _tidy(table, manifest)
    ready = [(batch, directory) for batch, directory in pending(table, manifest) if batch < before_batch]
    if len(ready) < from_batches:
        return manifest
    kept = list(manifest.parts)
    size_bytes = sum(file.stat().st_size for _, directory in ready for file in _data_files(directory))
    taken: list[Part] = []
    while kept and _may_grow(kept[-1], size_bytes, keep_ms):
        size_bytes += kept[-1].size_bytes
        taken.insert(0, kept.pop())
    sources = [table / part.directory / MERGED for part in taken]
    sources += [file for _, directory in ready for file in _data_files(directory)]
    first, last = (taken[0].first if taken else ready[0][0]), ready[-1][0]
    kept.append(_write_part(table, sources, arrow_schema(schema), first, last))
    manifest = Manifest(last, tuple(_young(kept, keep_ms)))
    write_durably(table / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    _tidy(table, manifest)
    return manifest


def arrow_schema(schema: StructType) -> pa.Schema:
    """A table's schema as Arrow's."""
    return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in schema.fields])


def arrow_type(kind: DataType) -> pa.DataType:
    """A column's type as Arrow's."""
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    return _ARROW_TYPES[type(kind)]


def write_durably(path: Path, text: str) -> None:
    """The file has the old text or the new one, whatever happens."""
    aside = path.with_name(f".{path.name}.new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    _sync_directory(path.parent)


def _write_part(table: Path, sources: list[Path], schema: pa.Schema, first: int, last: int) -> Part:
    name = f"{BATCH}{first}-{last}"
    aside = table / f".{name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    rows = 0
    seen_ms: set[int] = set()
    time_column = next((column for column in TIME_COLUMNS if column in schema.names), None)
    with pq.ParquetWriter(aside / MERGED, schema, compression="zstd") as writer:
        for source in sources:
            for batch in _record_batches(source, schema):
                writer.write_batch(batch)
                rows += batch.num_rows
                if time_column is not None:
                    seen_ms |= _ends_ms(batch.column(time_column))
    with (aside / MERGED).open("rb") as file:
        os.fsync(file.fileno())
    shutil.rmtree(table / name, ignore_errors=True)
    aside.rename(table / name)
    _sync_directory(table)
    size_bytes = (table / name / MERGED).stat().st_size
    return Part(name, first, last, rows, size_bytes, min(seen_ms, default=None), max(seen_ms, default=None))


def _record_batches(source: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file that this or an earlier version wrote: a column that it lacks is NULL."""
    with damage_told(source), pq.ParquetFile(source) as file:
        for batch in file.iter_batches(ROWS_PER_STEP):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _ends_ms(column: pa.Array) -> set[int]:
    ends = pc.min_max(column).as_py().values()
    return {int(moment.timestamp() * 1000) for moment in ends if moment is not None}


def _ends_of_footer_ms(metadata: pq.FileMetaData) -> set[int]:
    ends: set[int] = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(place) for place in range(group.num_columns))
        told = next((column.statistics for column in columns if column.path_in_schema in TIME_COLUMNS), None)
        if told is not None and told.has_min_max:
            ends |= {int(end.timestamp() * 1000) for end in (told.min, told.max)}
    return ends


def _may_grow(part: Part, by_bytes: int, keep_ms: int | None) -> bool:
    span_ms = DAY_MS if keep_ms is None else min(DAY_MS, keep_ms // 8)
    if part.oldest_ms is not None and part.youngest_ms is not None and part.youngest_ms - part.oldest_ms >= span_ms:
        return False
    return part.size_bytes <= 2 * by_bytes and part.size_bytes + by_bytes <= FULL_BYTES


def _young(parts: list[Part], keep_ms: int | None) -> list[Part]:
    """Without those whose youngest row is older than `keep_ms` before the youngest of all. The last one stays."""
    now_ms = max((part.youngest_ms for part in parts if part.youngest_ms is not None), default=None)
    if keep_ms is None or now_ms is None:
        return parts
    return [part for part in parts if part.youngest_ms is None or part.youngest_ms >= now_ms - keep_ms]


def _tidy(table: Path, manifest: Manifest) -> None:
    """Removes what a crash left: directories that the manifest reaches or does not list, and unfinished ones."""
    listed = {part.directory for part in manifest.parts}
    for batch, directory in _batches(table):
        if batch <= manifest.reached:
            shutil.rmtree(directory, ignore_errors=True)
    for directory in table.glob(f"{BATCH}*-*"):
        if directory.name not in listed:
            shutil.rmtree(directory, ignore_errors=True)
    for directory in table.glob(f".{BATCH}*"):
        shutil.rmtree(directory, ignore_errors=True)


def _pending_files(table: Path, manifest: Manifest, through: int | None) -> list[Path]:
    return [
        file
        for batch, directory in pending(table, manifest)
        if through is None or batch <= through
        for file in _data_files(directory)
    ]


def _batches(table: Path) -> Iterator[tuple[int, Path]]:
    for directory in table.glob(f"{BATCH}*"):
        number = directory.name.removeprefix(BATCH)
        if number.isdecimal():
            yield int(number), directory


def _data_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.glob("*.parquet") if not file.name.startswith(("_", ".")))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
