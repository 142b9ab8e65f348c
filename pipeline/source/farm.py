"""The Spark data source `farm`: committed entries of a farm's log, as a batch or as a stream.

    spark.read.format("farm").option("node", "farm-state/node-1/control.sock").load()
    spark.readStream.format("farm").option("directory", "backup/node-1").option("start", "5000").load()

A stream's offset is `{"next": first index not yet read, "cluster": cluster id}`. Indexes never change their entry once
committed, so a range that is read again after a crash gives the same rows: replay is exact by construction, and no
acknowledgement to the farm is needed. Rows are what the entries say, in typed columns
(`pipeline.schemas.ENTRIES`).

The planner's calls run in one long-lived process and `read` in others: what a reader remembers in `latestOffset` is
missing in `read`, so a partition carries all that it needs.

Options, of which `node` or `directory` is needed:

    node                 control sockets or https://HOST:PORT, separated by commas: any that answers is read
    tokenFile            the read token of TCP endpoints        certificate   PEM of their certificates
    directory            a state directory or a copy of one     committedThrough   N, where its own note is missing
    start                "oldest" (default), "snapshot" (of a directory), or an index
    end                  the last index to be read; without it there is no end
    pageSize             entries per request                    maxEntriesPerBatch   admission limit of a stream
    entriesPerPartition  how much one task reads
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.decode.columns import record_batches
from pipeline.schemas import ENTRIES
from pipeline.source import log_client
from pipeline.source.endpoint import CredentialError, Credentials, load_credentials
from pipeline.source.log_client import COMPACTED, OTHER_CLUSTER, FarmLogError, FarmSilentError, LogStatus
from pipeline.source.ranges import DirectoryRanges, LogRange, LogRanges, NodeRanges, SnapshotRange

DEFAULT_PAGE_SIZE = 1_000
DEFAULT_ENTRIES_PER_BATCH = 100_000
DEFAULT_ENTRIES_PER_PARTITION = 50_000
DIGITS_MAX = 18
OLDEST, SNAPSHOT = "oldest", "snapshot"

Offset = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What of the log is wanted."""

    start: str
    end: int | None
    entries_per_batch: int
    entries_per_partition: int


class FarmDataSource(DataSource):
    """The data source `farm`."""

    @classmethod
    def name(cls) -> str:
        """The name by which `format()` finds it."""
        return "farm"

    def schema(self) -> StructType:
        """What an entry says."""
        return ENTRIES

    def reader(self, schema: StructType) -> DataSourceReader:
        """All that is committed now."""
        del schema
        return FarmBatchReader(self._ranges(), self._bounds())

    # Spark looks the method up by this name.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """What is committed, as it comes."""
        del schema
        return FarmStreamReader(self._ranges(), self._bounds())

    def _ranges(self) -> LogRanges:
        addresses = tuple(part.strip() for part in self.options.get("node", "").split(",") if part.strip())
        directory = self.options.get("directory")
        if bool(addresses) == bool(directory):
            raise FarmLogError(
                "the source 'farm' needs one of the options 'node' (a node's control endpoint) and 'directory' (a"
                " node's state directory)",
            )
        if directory:
            told = self.options.get("committedThrough")
            return DirectoryRanges(Path(directory), None if told is None else self._positive("committedThrough", 1))
        return NodeRanges(addresses, self._credentials(), self._positive("pageSize", DEFAULT_PAGE_SIZE))

    def _credentials(self) -> Credentials:
        token, certificate = self.options.get("tokenFile"), self.options.get("certificate")
        try:
            return load_credentials(Path(token) if token else None, Path(certificate) if certificate else None)
        except CredentialError as error:
            raise FarmLogError(str(error)) from error

    def _bounds(self) -> Bounds:
        start = self.options.get("start", OLDEST)
        if start not in {OLDEST, SNAPSHOT}:
            self._positive("start", 1)
        return Bounds(
            start,
            self._positive("end", 1) if "end" in self.options else None,
            self._positive("maxEntriesPerBatch", DEFAULT_ENTRIES_PER_BATCH),
            self._positive("entriesPerPartition", DEFAULT_ENTRIES_PER_PARTITION),
        )

    def _positive(self, option: str, default: int) -> int:
        text = self.options.get(option, str(default))
        if not text.isascii() or not text.isdecimal() or len(text) > DIGITS_MAX or int(text) < 1:
            raise FarmLogError(f"the option {option!r} of the source 'farm' must be a positive number, not {text!r}")
        return int(text)


class _Reader:
    """What batch and stream have in common: where to begin, and reading."""

    def __init__(self, ranges: LogRanges, bounds: Bounds) -> None:
        self._ranges = ranges
        self._bounds = bounds

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one range."""
        if partition.value is None:
            return iter(())  # so Spark asks where nothing was planned
        if not isinstance(partition, LogRange | SnapshotRange):
            raise FarmLogError(f"the source 'farm' cannot read the partition {partition!r}")
        return record_batches(self._ranges.rows(partition), partition.cluster)

    def _begin(self) -> Offset:
        """Where a new reader begins."""
        found = self._ranges.status(of_all=True)
        if self._bounds.start == SNAPSHOT:
            covered = self._ranges.snapshot_index()
            return {"next": covered + 1, "cluster": found.cluster, "snapshot": covered}
        if self._bounds.start == OLDEST:
            return {"next": max(found.first_index, 1), "cluster": found.cluster}
        start = int(self._bounds.start)
        self._refuse_compacted(start, found)
        if start > found.commit_index + 1:
            raise FarmLogError(
                f"the log is known to be committed up to entry {found.commit_index}, and reading is to begin with"
                f" {start}: choose an earlier one",
            )
        return {"next": start, "cluster": found.cluster}

    def _end(self, commit: int) -> int:
        """One beyond the last entry that is wanted and committed."""
        return commit + 1 if self._bounds.end is None else min(commit, self._bounds.end) + 1

    def _refuse_compacted(self, following: int, found: LogStatus) -> None:
        if following < found.first_index and following < (oldest := self._ranges.oldest(found.cluster)):
            raise FarmLogError(
                f"entries {following} to {oldest - 1} were compacted away before they were read; {COMPACTED}"
            )

    def _partitions(self, start: Offset, end: int) -> list[InputPartition]:
        step, cluster = self._bounds.entries_per_partition, str(start["cluster"])
        planned: list[InputPartition] = []
        if "snapshot" in start:
            planned.append(SnapshotRange(int(start["snapshot"]), cluster))
        planned += [
            self._ranges.plan(first, min(first + step, end), cluster) for first in range(int(start["next"]), end, step)
        ]
        return planned


class FarmBatchReader(_Reader, DataSourceReader):
    """The committed log at the time of planning."""

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges that cover everything from the first entry wanted to the commit index."""
        start = self._begin()
        commit = self._ranges.status(str(start["cluster"])).commit_index
        return self._partitions(start, self._end(commit))


class FarmStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The committed log as an unbounded table."""

    def __init__(self, ranges: LogRanges, bounds: Bounds) -> None:
        super().__init__(ranges, bounds)
        self._available_now = False
        self._stop_before: int | None = None
        self._silent_since: float | None = None
        self._newest: Offset | None = None

    # The names below are Spark's.
    def initialOffset(self) -> Offset:  # noqa: N802
        """The first entry that is wanted."""
        return self._begin()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The admission limit."""
        return ReadMaxRows(self._bounds.entries_per_batch)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far a batch that begins at `start` may go; no further than `start` while no node answers for a moment."""
        try:
            end = self._latest(start, limit)
        except FarmSilentError:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
            if self._available_now or time.monotonic() - self._silent_since > log_client.SILENCE_SECONDS:
                raise
            return start
        self._silent_since = None
        return end

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        following, cluster = int(start["next"]), str(start["cluster"])
        found = self._ranges.status(cluster, of_all=self._available_now and self._stop_before is None)
        self._newest = {"next": found.commit_index + 1, "cluster": cluster}
        self._refuse_compacted(following, found)
        end = self._fixed_end(found.commit_index) if self._available_now else self._end(found.commit_index)
        if isinstance(limit, ReadMaxRows) and not isinstance(limit, ReadAllAvailable):
            end = min(end, following + limit.max_rows)
        if end <= following and "snapshot" not in start:
            return start
        return {"next": max(end, following), "cluster": cluster}

    def _fixed_end(self, commit: int) -> int:
        """Where a run with `availableNow` ends: where the log ended when its first batch was planned."""
        if self._stop_before is not None:
            return self._stop_before
        if self._bounds.end is not None and commit < self._bounds.end:
            raise FarmLogError(
                f"entries up to {self._bounds.end} are wanted and the log is known to be committed up to {commit} only;"
                " choose an earlier end, or wait",
            )
        self._stop_before = self._end(commit)
        return self._stop_before

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The commit index that was seen last, for the query's progress. Never fails."""
        return self._newest

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The run has an end, which the planning of its first batch fixes."""
        self._available_now = True

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges that cover [start, end).

        Where the first batch of all was interrupted, Spark asks for its beginning once more, and that may be another.
        """
        if start["cluster"] != end["cluster"]:
            raise FarmLogError(
                f"what was read so far is of the cluster {end['cluster']}, and what is there of {start['cluster']}:"
                f" {OTHER_CLUSTER}"
            )
        if int(start["next"]) > int(end["next"]):
            raise FarmLogError(
                f"entries up to {int(end['next']) - 1} were to be read, and compacted away while the run was"
                f" interrupted: what is left begins with {start['next']}; {COMPACTED}"
            )
        return self._partitions(start, int(end["next"]))
