"""The work of each Spark task on its part of a micro-batch: everything, in one pass.

    entries of the log ──▶ a task ──▶ rows of the base tables   sent to the driver if few, otherwise in files
                                 ├──▶ the last row of each server, destination and master
                                 ├──▶ the rows for the watch and the feedback        (if they are on)
                                 ├──▶ the windows of each farm with new rows
                                 └──▶ the counts of entries and rows (`pipeline/tables/ranges.py`)

With Spark a batch is one job without a shuffle: the driver collects a few Arrow tables, each under a name, and commits.
Results that need all rows in one place, such as the last row of a server, are reduced in each task first.

The process that reads and decodes entries of a farm's log does all of it (the data source `farm_tables`). With
`mapInArrow`, each row of the source `farm` would go to the JVM, become a Spark row there, and return to another Python
process. Only rows of other sources, such as Kafka, are processed in that way.

The driver reads one result at a time: a batch of 100,000 entries has 70 MB of results, or 12 MB compressed.

A task keeps up to `FEW_ROWS` rows of base tables before it begins files. So a live batch leaves one file per table,
which the driver writes, instead of one per task. A backfill uses every core of Spark, on every machine, with a few
megabytes of memory for each core.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pipeline.decode.columns import BYTES_PER_RECORD_BATCH, ROWS_PER_RECORD_BATCH
from pipeline.decode.entries import SNAPSHOT
from pipeline.output.buckets import Output, output_of
from pipeline.schemas import ENTRIES, arrow_schema
from pipeline.source.farm import FarmDataSource, FarmStreamReader
from pipeline.tables.current import FROM_BASE, KEYS, last_rows
from pipeline.tables.files import PLAIN_ROWS, DataFile, PartWriter
from pipeline.tables.offset_shards import OffsetShards
from pipeline.tables.ranges import merged, range_rows
from pipeline.tables.recent import newest, recent_rows
from pipeline.tables.rows import BASE, Pseudonyms, base_rows, last_known

FEW_ROWS = 20_000
GROUP_ROWS = 65_536
"""After the first files, a task writes its rows when all base tables together have more than this number."""
OUTCOME = StructType([StructField("name", StringType()), StructField("content", BinaryType())])
_PLAN, _SALT = "plan", "secretSalt"
CHECKPOINT = "checkpoint"
"""The option with the directory of the checkpoint, for the offsets of many farms."""
ROWS, FILES, LAST = "rows/", "files/", "last/"
FARMS, RANGES, WINDOWS, SEEN, RECENT = "farms", "ranges", "windows", "seen", "recent"
REQUEST_MAX = 128
"""The maximum length of `request` in the rows for the watch, in characters. A longer value becomes empty."""
_SEEN_KINDS = pa.array(["report", "clock"])
_SEEN_OF_REPORT = ("attached", "uptime_ms", "job_lag_ms", "destinations", "healthy_destinations")
_OUTCOME, _ENTRIES = arrow_schema(OUTCOME), arrow_schema(ENTRIES)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The parameters of a task. `window_ms`: the width of the windows of derived tables."""

    output: str
    salt: str
    window_ms: int
    watch: bool
    feedback: bool
    period_range_ms: tuple[int, int]
    few_rows: int = FEW_ROWS


class Results(Mapping[str, pa.Table]):
    """The results of several tasks by name, as the tasks sent them. Each access decodes and merges the rows."""

    def __init__(self, parts: Mapping[str, Sequence[pa.Buffer]]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> pa.Table:
        # Parts of an array's memory begin anywhere, and Arrow prints a warning for unaligned numbers.
        options = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
        return _made_small(name, [pa.ipc.open_stream(each, options=options).read_all() for each in self._parts[name]])

    def get(self, name: str, default: Any = None) -> Any:
        """Return the rows, or the default without any. An inherited `get` would hide a KeyError of the merge."""
        return self[name] if name in self._parts else default

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of tasks: rows by name, and files by table."""

    rows: Mapping[str, pa.Table]
    files: Mapping[str, Sequence[DataFile]] = field(default_factory=dict)

    def current(self) -> list[str]:
        """Return the names of the parts of the current state that have last rows."""
        return [name.removeprefix(LAST) for name in self.rows if name.startswith(LAST)]

    def count(self, table: str) -> int:
        """Return the number of rows of a base table, in memory and in files."""
        rows = self.rows.get(ROWS + table)
        return (0 if rows is None else rows.num_rows) + sum(file.rows for file in self.files.get(table, ()))


class FarmTablesSource(FarmDataSource):
    """The data source `farm_tables`: the log, read like the source `farm`, with the tasks' results as rows.

    It takes the options of `farm`, the checkpoint, and the task's plan. Spark does not print the salt, because the name
    of its option contains `secret`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "farm_tables"

    def schema(self) -> StructType:
        """Return the schema of named results."""
        return OUTCOME

    # Spark's name.
    def streamReader(self, schema: StructType) -> "TablesReader":  # noqa: N802
        """Return a reader of entries as they are committed."""
        del schema
        fields = json.loads(self.options[_PLAN])
        plan = TaskPlan(salt=self.options[_SALT], **{**fields, "period_range_ms": tuple(fields["period_range_ms"])})
        return TablesReader(plan, *self._source())

    def entries_reader(self) -> FarmStreamReader:
        """Return a reader of the entries themselves, with the same offsets."""
        return FarmStreamReader(*self._source())

    def _source(self) -> tuple[Any, ...]:
        offsets = OffsetShards(output_of(self.options[CHECKPOINT]))
        return self.farms(), self._selection(), self._sizes(), self._next_entries(), offsets


class TablesReader(FarmStreamReader):
    """A reader that plans like the source `farm`, and runs `work` in its tasks."""

    def __init__(self, plan: TaskPlan, *source: Any) -> None:
        super().__init__(*source)
        self._plan = plan

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plan": self._plan}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the results of one task."""
        return work(self._plan, super().read(partition))


def found_in_log(session: SparkSession, source: Mapping[str, str], plan: TaskPlan) -> DataFrame:
    """Return the tasks' results from a farm's log, as a stream; `source`: options of the source `farm`."""
    session.dataSource.register(FarmTablesSource)
    return session.readStream.format(FarmTablesSource.name()).options(**_options(source, plan)).load()


def tables_source(source: Mapping[str, str], plan: TaskPlan) -> FarmTablesSource:
    """Return the data source for use without Spark."""
    return FarmTablesSource(_options(source, plan))


def _options(source: Mapping[str, str], plan: TaskPlan) -> dict[str, str]:
    fields = {name: value for name, value in asdict(plan).items() if name != "salt"}
    return {**source, _PLAN: json.dumps(fields), _SALT: plan.salt}


def read_in_tasks(
    session: SparkSession, tag: str, reader: FarmStreamReader, partitions: Sequence[InputPartition]
) -> list[pa.RecordBatch]:
    """Read partitions, each in one of Spark's tasks, without Spark's checkpoint.

    `tag`: the tag of all jobs of the calling thread, for `cancelJobsWithTag`.
    """
    session.sparkContext.addJobTag(tag)
    tasks = session.sparkContext.parallelize(partitions, max(1, len(partitions)))
    return list(tasks.flatMap(reader.read).collect())


def found_in_rows(entries: DataFrame, plan: TaskPlan) -> DataFrame:
    """Return the tasks' results from a stream of rows with the columns of the source `farm`."""
    return entries.mapInArrow(partial(work, plan), OUTCOME)


def outcome_of(results: Iterable[pa.RecordBatch]) -> Outcome:
    """Return the results of several tasks."""
    parts, files = dict[str, list[pa.Buffer]](), dict[str, list[DataFile]]()
    for each in results:
        for name, content in zip(each.column("name").to_pylist(), _buffers(each.column("content")), strict=True):
            if name.startswith(FILES):
                found = files.setdefault(name.removeprefix(FILES), [])
                found += [DataFile(**file) for file in json.loads(content.to_pybytes())]
            else:
                parts.setdefault(name, []).append(content)
    return Outcome(Results(parts), files)


def _buffers(contents: pa.BinaryArray) -> Iterator[pa.Buffer]:
    """Yield each value as a part of the array's memory; a scalar would be a copy."""
    _, offsets, data = contents.buffers()
    ends = pa.Int32Array.from_buffers(pa.int32(), len(contents) + 1, [None, offsets], offset=contents.offset)
    return (data.slice(begin, end - begin) for begin, end in pairwise(ends.to_pylist()))


def newest_rows(plan: TaskPlan, batches: Iterable[pa.RecordBatch]) -> Outcome:
    """Return the last rows of servers, destinations and masters in some entries, without the other results."""
    pseudonyms = Pseudonyms(plan.salt)
    entries = pa.Table.from_batches(batches, _ENTRIES)
    found = _last_rows(base_rows(entries, pseudonyms, frozenset(FROM_BASE)), entries, pseudonyms)
    return Outcome({LAST + current: rows for current, rows in found})


def work(plan: TaskPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task; yield its results, each under its name (`Outcome`)."""
    worker = _Worker(plan)
    for entries in _grouped(batches):
        worker.take(entries)
    names, contents = [], []
    for name, content in worker.found():
        names.append(name)
        contents.append(content)
    yield pa.RecordBatch.from_arrays([pa.array(names, pa.string()), pa.array(contents, pa.binary())], schema=_OUTCOME)


def write_in_tasks(rows: DataFrame, root: Output, schema: pa.Schema) -> list[DataFile]:
    """Write rows with a table's columns as its files, in Spark's tasks; they count when they are committed."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = PartWriter(root, schema)
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]).cast(schema))
        files = json.dumps([asdict(each) for each in writer.close()]).encode()
        yield pa.RecordBatch.from_arrays([pa.array([FILES]), pa.array([files])], schema=_OUTCOME)

    return [*outcome_of(rows.mapInArrow(write, OUTCOME).toArrow().to_batches()).files.get("", ())]


class _Worker:
    """One task's rows, and, when there are many, their files."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._pseudonyms = Pseudonyms(plan.salt)
        self._rows: dict[str, list[pa.Table]] = {}
        self._kept = 0
        self._writers: dict[str, PartWriter] = {}
        self._collected: dict[str, list[pa.Table]] = {}

    def take(self, entries: pa.Table) -> None:
        """Process some thousand entries."""
        found = base_rows(entries, self._pseudonyms)
        for current, rows in _last_rows(found, entries, self._pseudonyms):
            self._collect(LAST + current, rows)
        self._collect(FARMS, farm_rows(entries, self._plan.period_range_ms))
        self._collect(RANGES, range_rows(entries, found))
        self._collect(WINDOWS, window_rows(entries, self._plan.window_ms))
        if self._plan.watch:
            self._collect(SEEN, watch_rows(entries))
        if self._plan.feedback:
            self._collect(RECENT, recent_rows(entries))
        for name, rows in found.items():
            self._rows.setdefault(name, []).append(rows.select(BASE[name].names))
            self._kept += rows.num_rows
        if self._kept > (GROUP_ROWS if self._writers else self._plan.few_rows):
            self._flush()

    def found(self) -> Iterator[tuple[str, bytes]]:
        """Yield all results; no entries may follow."""
        if self._writers:
            self._flush()
            for name, writer in self._writers.items():
                yield FILES + name, json.dumps([asdict(each) for each in writer.close()]).encode()
        for name, tables in self._rows.items():
            yield ROWS + name, _packed(pa.concat_tables(tables))
        for name, tables in self._collected.items():
            yield name, _packed(_made_small(name, tables))

    def _collect(self, name: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self._collected.setdefault(name, []).append(rows)

    def _flush(self) -> None:
        for name, tables in self._rows.items():
            if name not in self._writers:
                self._writers[name] = PartWriter(output_of(self._plan.output) / name, BASE[name])
            self._writers[name].write(pa.concat_tables(tables))
        self._rows.clear()
        self._kept = 0


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield all rows; combine small batches, because the cost of a batch hardly depends on its number of rows."""
    group, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        # Arrow computes this number from each buffer of each column, so it is requested once per batch.
        batch_size = batch.nbytes
        is_full = rows + batch.num_rows > ROWS_PER_RECORD_BATCH or size + batch_size > BYTES_PER_RECORD_BATCH
        if group and is_full:
            yield pa.Table.from_batches(group).combine_chunks()
            group, rows, size = [], 0, 0
        if batch.num_rows:
            group.append(batch)
            rows, size = rows + batch.num_rows, size + batch_size
    if group:
        yield pa.Table.from_batches(group).combine_chunks()


def _last_rows(
    found: Mapping[str, pa.Table], entries: pa.Table, pseudonyms: Pseudonyms
) -> Iterator[tuple[str, pa.Table]]:
    """Yield each part of the current state with its last rows, from base rows and from reports of a snapshot."""
    snapshot = last_known(entries, pseudonyms)
    for name, current in FROM_BASE.items():
        parts = [tables[name] for tables in (found, snapshot) if name in tables]
        if parts:
            yield current, last_rows(pa.concat_tables(parts), KEYS[current])


def farm_rows(entries: pa.Table, period_range_ms: tuple[int, int]) -> pa.Table:
    """Return per farm the number of these entries, their range, and the figures of their last clock entry."""
    # A report from a snapshot is not an entry.
    is_entry = pc.not_equal(entries.column("entry"), SNAPSHOT)
    counted = entries.select(["farm", "farm_name", "index", "term", "log_time"]).append_column(
        "entry_index", pc.if_else(is_entry, entries.column("index"), pa.scalar(None, pa.int64()))
    )
    reach = counted.group_by("farm", use_threads=False).aggregate(
        [
            *((name, "max") for name in ("farm_name", "index", "term")),
            # A correction can set log time back.
            ("log_time", "last"),
            ("entry_index", "min"),
            ("entry_index", "count"),
        ]
    )
    clocks = entries.filter(pc.equal(entries.column("entry"), "clock"))
    leaders, periods = dict[str, int | None](), dict[str, int]()
    clock_rows = zip(
        clocks.column("farm").to_pylist(),
        clocks.column("server_id").to_pylist(),
        pc.struct_field(clocks.column("clock"), "period_ms").to_pylist(),
        strict=True,
    )
    least_ms, most_ms = period_range_ms
    for farm, leader, period_ms in clock_rows:
        leaders[farm] = leader
        # The farm itself accepts only such periods in a clock entry; an entry without a period does not change the
        # period.
        if period_ms is not None and least_ms <= period_ms <= most_ms:
            periods[farm] = period_ms
    farms = reach.column("farm").to_pylist()
    return pa.table(
        {
            "farm": reach.column("farm"),
            "index": reach.column("index_max"),
            "term": reach.column("term_max"),
            "log_time": reach.column("log_time_last"),
            "name": reach.column("farm_name_max"),
            "first_index": reach.column("entry_index_min"),
            "entries": reach.column("entry_index_count"),
            "leader_id": pa.array([leaders.get(farm) for farm in farms], pa.int64()),
            "period_ms": pa.array([periods.get(farm) for farm in farms], pa.int64()),
        }
    )


def window_rows(entries: pa.Table, window_ms: int) -> pa.Table:
    """Return `farm`, `window_start`: the windows of log time that contain these entries."""
    timed = entries.filter(pc.is_valid(entries.column("log_time")))
    at_ms = timed.column("log_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    starts = pc.multiply(pc.divide(at_ms, window_ms), window_ms)
    windows = pa.table({"farm": timed.column("farm"), "window_start": starts.cast(pa.timestamp("ms", tz="UTC"))})
    return windows.group_by(["farm", "window_start"], use_threads=False).aggregate([])


def watch_rows(entries: pa.Table) -> pa.Table:
    """Return the rows for the watch: reports, and clock entries (for the reporting period), if they have a log time."""
    is_selected = pc.and_(pc.is_in(entries.column("entry"), _SEEN_KINDS), pc.is_valid(entries.column("log_time")))
    rows = entries.filter(is_selected)
    request = rows.column("request")
    named = pc.if_else(pc.less_equal(pc.utf8_length(request), REQUEST_MAX), request, "")
    report, members = rows.column("report"), [each.name for each in entries.schema.field("report").type]
    return pa.table(
        {
            "farm": rows.column("farm"),
            "index": rows.column("index"),
            "at_ms": rows.column("log_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()),
            "entry": rows.column("entry"),
            "server_id": rows.column("server_id"),
            "request": pc.fill_null(named, ""),
            **{name: pc.struct_field(report, [members.index(name)]) for name in _SEEN_OF_REPORT},
            "period_ms": pc.struct_field(rows.column("clock"), "period_ms"),
        }
    )


def _made_small(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Merge parts of a result, from one task or from all tasks; each part is reduced already."""
    rows = pa.concat_tables(parts)
    if len(parts) == 1:
        return rows
    if name.startswith(LAST):
        return last_rows(rows, KEYS[name.removeprefix(LAST)])
    if name == RANGES:
        return merged(rows)
    if name == WINDOWS:
        return rows.group_by(["farm", "window_start"], use_threads=False).aggregate([])
    return newest(rows) if name == RECENT else rows


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if rows.num_rows > PLAIN_ROWS else None)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
