"""The Spark data source `farm_events`: events of the nodes, from their traces (`pipeline/schemas.py`, EVENTS).

    spark.readStream.format("farm_events").option("node", "a/control.sock,b/control.sock").load()
    spark.read.format("farm_events").option("files", "traces/*.jsonl").load()

A trace is not a log. It is a ring in a node's memory, which a restart empties; each node dates its events by its own
clock. So, unlike `farm`, *all* nodes are read, not the first that replies. An offset has the generation of each node,
which a restart raises, and the next cursor (number of an event) in it. docs/reference/pipeline-sources.md, 'The source
`farm_events`', describes lost events, repeated batches and columns.

`clock_offset_ms` is the node's clock minus log time, both from one view. The source requests the view when it plans a
batch.

`files` are lines of JSON, each an event from `/v1/events`; an offset in a file is a number of bytes.

Options: `node` or `files`, separated by commas; `tokenFile` and `certificate` as for `farm`. With `files`, `farm` is
the cluster id of their farm, because the lines do not contain it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.decode.columns import BYTES_PER_RECORD_BATCH
from pipeline.schemas import EVENTS, arrow_schema
from pipeline.source.daemon_pool import DaemonPool
from pipeline.source.log_client import FarmLogError, credentials_of
from pipeline.source.traces import EventRow, FileTrace, NodeTrace, Stretch, Trace, same_place

ROWS_PER_RECORD_BATCH = 10_000
QUERIES_AT_ONCE = 16
_ARROW_SCHEMA = arrow_schema(EVENTS)


class StretchOfTrace(InputPartition):
    """A part of one node's trace, or of one file."""

    def __init__(self, trace: Trace, stretch: Stretch) -> None:
        super().__init__((trace.name, stretch))
        self.trace = trace
        self.stretch = stretch


class FarmEventsDataSource(DataSource):
    """The data source `farm_events`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "farm_events"

    def schema(self) -> StructType:
        """Return the schema of an event."""
        return EVENTS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the current content of the traces."""
        del schema
        return FarmEventsBatchReader(self._traces())

    # Spark looks the method up by this name.
    def streamReader(self, schema: StructType) -> "FarmEventsStreamReader":  # noqa: N802
        """Return a reader of events as they happen."""
        del schema
        return FarmEventsStreamReader(self._traces(), self._traces)

    def _traces(self) -> tuple[Trace, ...]:
        nodes, files = (_parts(self.options.get(option, "")) for option in ("node", "files"))
        if bool(nodes) == bool(files):
            raise FarmLogError("the source 'farm_events' needs one of the options 'node' and 'files'")
        if files:
            found = [path for pattern in files for path in _matching(pattern)]
            if not found:
                raise FarmLogError(f"no file matches {', '.join(files)}")
            return tuple(FileTrace(str(path), self.options.get("farm")) for path in found)
        credentials = credentials_of(self.options)
        return tuple(NodeTrace(address, credentials) for address in nodes)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    root = Path(path.anchor)
    inside = path.relative_to(root)
    return sorted(root.glob(str(inside))) if inside.parts else []


class _TraceReader:
    def __init__(self, traces: tuple[Trace, ...], load: Callable[[], tuple[Trace, ...]] | None = None) -> None:
        self._traces = traces
        self._load = load
        """Returns the traces with the present credentials."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one stretch."""
        if partition.value is None:
            return  # Spark's partition for an empty plan
        if not isinstance(partition, StretchOfTrace):
            raise FarmLogError(f"the source 'farm_events' cannot read the partition {partition!r}")
        rows: list[EventRow] = []
        size_bytes, farm = 0, partition.stretch.farm
        for row in partition.trace.rows(partition.stretch):
            rows.append(row)
            size_bytes += len(row[-1])
            if len(rows) == ROWS_PER_RECORD_BATCH or size_bytes >= BYTES_PER_RECORD_BATCH:
                yield _record_batch(rows, farm)
                rows, size_bytes = [], 0
        if rows:
            yield _record_batch(rows, farm)

    def _ends(self, start: dict[str, str]) -> dict[str, str]:
        """Return the end of each trace, unchanged for an unresponsive node."""

        def end(trace: Trace) -> str | None:
            return trace.end(start.get(trace.name))

        # All nodes are queried concurrently, because a hanging node takes ten seconds.
        with DaemonPool(QUERIES_AT_ONCE) as pool:
            found = [*zip(self._traces, pool.map(end, self._traces), strict=True)]
        if self._load is not None and any(where is None for _, where in found):
            # The node may have refused the credentials, and an operator may have corrected the files.
            with suppress(FarmLogError):
                self._traces = self._load()
        return {**start, **{trace.name: where for trace, where in found if where is not None}}

    def _between(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        return [
            StretchOfTrace(trace, trace.stretch(start.get(trace.name), end[trace.name]))
            for trace in self._traces
            if trace.name in end and start.get(trace.name) != end[trace.name]
        ]


class FarmEventsBatchReader(_TraceReader, DataSourceReader):
    """The traces at the time of planning."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each trace."""
        return self._between({}, self._ends({}))


class FarmEventsStreamReader(_TraceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The traces as an unbounded table. The names below are Spark's."""

    def __init__(self, traces: tuple[Trace, ...], load: Callable[[], tuple[Trace, ...]] | None = None) -> None:
        super().__init__(traces, load)
        self._available_now = False
        self._until: dict[str, str] | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        """Return the empty offset, before all events in the traces."""
        return {}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        """Return the end of each trace. Rings are small, so a batch takes all new events."""
        del limit
        if not self._available_now:
            return self._ends(start)
        if self._until is None:
            self._until = self._ends(start)
        moved = {name: end for name, end in self._until.items() if not same_place(start.get(name, ""), end)}
        return {**start, **moved}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run when its first batch is planned.

        Without this method Spark makes one batch of such a run. Then, if a crash interrupts that batch, the next run
        repeats it and does not read the events after it.
        """
        self._available_now = True

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Return one partition for each trace with new events."""
        return self._between(start, end)


def _record_batch(rows: list[EventRow], farm: str | None) -> pa.RecordBatch:
    nodes, cursors, times_ms, log_times_ms, offsets_ms, kinds, data = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(farm, pa.string()), len(rows)),
            pa.array(nodes, pa.string()),
            pa.array(cursors, pa.int64()),
            pa.array(times_ms, pa.int64()),
            pa.array(log_times_ms, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            pa.array(offsets_ms, pa.int64()),
            pa.array(kinds, pa.string()),
            pa.array(data, pa.string()),
        ],
        schema=_ARROW_SCHEMA,
    )
