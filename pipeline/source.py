"""The Spark data source `farm`: committed entries of a farm's log, as a batch or as a stream.

    spark.read.format("farm").option("node", "farm-state/node-1/control.sock").load()
    spark.readStream.format("farm").option("node", …).load()

A stream's offset is `{"next": first index not yet read, "cluster": cluster id}`. Indexes never change their entry once
committed, so a range that is read again after a crash gives the same rows: replay is exact by construction, and no
acknowledgement to the farm is needed. Rows are an envelope with the entry's text as `body`; parsing happens in the JVM,
so one malformed entry cannot stop the source.

The planner's calls run in one long-lived process and `read` in others: what a reader remembers in `latestOffset` is not
there in `read`, so a partition carries all that it needs.

Options: `node` (one or more control sockets, separated by commas; the first that answers is used), `pageSize` (entries
per request), `maxEntriesPerBatch` (admission limit of a stream).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from pipeline.log_client import FarmLog, FarmLogError, LogEntry

SCHEMA = StructType(
    [
        StructField("index", LongType(), nullable=False),
        StructField("term", LongType(), nullable=False),
        StructField("kind", StringType(), nullable=False),
        StructField("log_time", TimestampType(), nullable=True),
        StructField("body", StringType(), nullable=False),
        StructField("encoding", StringType(), nullable=False),
        StructField("body_bytes", IntegerType(), nullable=False),
    ]
)
_ARROW_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("log_time", pa.timestamp("us", tz="UTC"), nullable=True),
        pa.field("body", pa.string(), nullable=False),
        pa.field("encoding", pa.string(), nullable=False),
        pa.field("body_bytes", pa.int32(), nullable=False),
    ]
)
ROWS_PER_RECORD_BATCH = 10_000
DEFAULT_PAGE_SIZE = 1_000
DEFAULT_ENTRIES_PER_BATCH = 100_000
ENTRIES_PER_PARTITION = 50_000


@dataclass
class LogRange(InputPartition):
    """Entries with first <= index < end, to be read by one task."""

    first: int
    end: int

    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end


class FarmDataSource(DataSource):
    """The data source `farm`."""

    @classmethod
    def name(cls) -> str:
        """The name by which `format()` finds it."""
        return "farm"

    def schema(self) -> StructType:
        """The envelope of an entry."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """All that is committed now."""
        del schema
        return FarmBatchReader(self._log(), self._positive("pageSize", DEFAULT_PAGE_SIZE))

    # Spark looks the method up by this name.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """What is committed, as it comes."""
        del schema
        return FarmStreamReader(
            self._log(),
            self._positive("pageSize", DEFAULT_PAGE_SIZE),
            self._positive("maxEntriesPerBatch", DEFAULT_ENTRIES_PER_BATCH),
        )

    def _log(self) -> FarmLog:
        addresses = tuple(part.strip() for part in self.options.get("node", "").split(",") if part.strip())
        if not addresses:
            raise FarmLogError("the source 'farm' needs the option 'node': the path of a node's control socket")
        return FarmLog(addresses)

    def _positive(self, option: str, default: int) -> int:
        text = self.options.get(option, str(default))
        if not text.isascii() or not text.isdecimal() or int(text) < 1:
            raise FarmLogError(f"the option {option!r} of the source 'farm' must be a positive number, not {text!r}")
        return int(text)


class FarmBatchReader(DataSourceReader):
    """The committed log at the time of planning."""

    def __init__(self, log: FarmLog, page_size: int) -> None:
        self._log = log
        self._page_size = page_size

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges that cover everything from the first entry left to the commit index."""
        first, commit = self._log.bounds()
        return _ranges(first, commit + 1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one range."""
        return _read(self._log, partition, self._page_size)


class FarmStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The committed log as an unbounded table."""

    def __init__(self, log: FarmLog, page_size: int, entries_per_batch: int) -> None:
        self._log = log
        self._page_size = page_size
        self._entries_per_batch = entries_per_batch
        self._stop_before: int | None = None

    # The names below are Spark's.
    def initialOffset(self) -> dict[str, int | str]:  # noqa: N802
        """The oldest entry that the log still holds."""
        first, _ = self._log.bounds()
        return {"next": max(first, 1), "cluster": self._log.cluster_id()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The admission limit."""
        return ReadMaxRows(self._entries_per_batch)

    def latestOffset(self, start: dict[str, int | str], limit: ReadLimit) -> dict[str, int | str]:  # noqa: N802
        """How far a batch that begins at `start` may go."""
        cluster = self._log.cluster_id()
        if cluster != start["cluster"]:
            raise FarmLogError(
                f"the checkpoint is of the cluster {start['cluster']} and the node belongs to {cluster};"
                " use another output directory for another farm",
            )
        following = int(start["next"])
        first, commit = self._log.bounds()
        if following < first:
            raise FarmLogError(
                f"entries {following} to {first - 1} were compacted away while the pipeline was down;"
                " start again with a new output directory, from the oldest entry that is left",
            )
        end = commit + 1
        if self._stop_before is not None:
            end = min(end, self._stop_before)
        if isinstance(limit, ReadMaxRows) and not isinstance(limit, ReadAllAvailable):
            end = min(end, following + limit.max_rows)
        return {"next": max(following, end), "cluster": cluster}

    def reportLatestOffset(self) -> dict[str, int | str]:  # noqa: N802
        """The commit index, for the query's progress."""
        _, commit = self._log.bounds()
        return {"next": commit + 1, "cluster": self._log.cluster_id()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes where a run with `availableNow` ends."""
        _, commit = self._log.bounds()
        self._stop_before = commit + 1

    def partitions(self, start: dict[str, int | str], end: dict[str, int | str]) -> Sequence[InputPartition]:
        """Ranges that cover [start, end)."""
        return _ranges(int(start["next"]), int(end["next"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one range."""
        return _read(self._log, partition, self._page_size)


def _ranges(first: int, end: int) -> list[InputPartition]:
    return [
        LogRange(start, min(start + ENTRIES_PER_PARTITION, end)) for start in range(first, end, ENTRIES_PER_PARTITION)
    ]


def _read(log: FarmLog, partition: InputPartition, page_size: int) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LogRange):
        raise FarmLogError(f"the source 'farm' cannot read the partition {partition!r}")
    rows: list[LogEntry] = []
    for entry in log.range(partition.first, partition.end, page_size=page_size):
        rows.append(entry)
        if len(rows) == ROWS_PER_RECORD_BATCH:
            yield _record_batch(rows)
            rows = []
    if rows:
        yield _record_batch(rows)


def _record_batch(rows: list[LogEntry]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.index for row in rows], pa.int64()),
            pa.array([row.term for row in rows], pa.int64()),
            pa.array([row.kind for row in rows], pa.string()),
            pa.array(
                [None if row.log_time_ms is None else row.log_time_ms * 1_000 for row in rows],
                pa.timestamp("us", tz="UTC"),
            ),
            pa.array([row.body for row in rows], pa.string()),
            pa.array([row.encoding for row in rows], pa.string()),
            pa.array([len(row.body.encode("utf-8", "surrogatepass")) for row in rows], pa.int32()),
        ],
        schema=_ARROW_SCHEMA,
    )
