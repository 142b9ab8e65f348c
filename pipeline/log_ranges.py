"""Ranges of the log as Spark's partitions: how they are planned, and how each becomes rows, for both places of reading.

    NodeRanges        control endpoints of running nodes      a range is all that a reader needs
    DirectoryRanges   a directory                             a range carries the place in the file, and log time there

Everything here is pickled: a partition goes to the process that reads it, and so does the object that reads.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from pipeline.endpoint import Credentials
from pipeline.envelope import Row
from pipeline.log_client import FarmLog, FarmLogError
from pipeline.stored_log import StoredLog, StoredPlace


class LogRange(InputPartition):
    """Entries with first <= index < end, to be read by one task."""

    def __init__(self, first: int, end: int, cluster: str, place: StoredPlace | None = None) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end
        self.cluster = cluster
        self.place = place


class SnapshotRange(InputPartition):
    """What the snapshot at index `covered` holds."""

    def __init__(self, covered: int) -> None:
        super().__init__(covered)
        self.covered = covered


class LogRanges(Protocol):
    """Where the log is read. Raises FarmLogError from every method."""

    def cluster_id(self) -> str:
        """Whose log it is."""

    def bounds(self) -> tuple[int, int]:
        """The first index that is there, and the commit index."""

    def oldest(self) -> int:
        """The first index that can be had anywhere."""

    def snapshot_index(self) -> int:
        """The index at which the snapshot stands."""

    def plan(self, first: int, end: int, cluster: str) -> LogRange:
        """The partition for [first, end)."""

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """The rows of one partition."""


class NodeRanges:
    """Control endpoints."""

    def __init__(self, addresses: tuple[str, ...], credentials: Credentials, page_size: int) -> None:
        self._log = FarmLog(addresses, credentials)
        self._page_size = page_size

    def cluster_id(self) -> str:
        """Whose log it is."""
        return self._log.cluster_id()

    def bounds(self) -> tuple[int, int]:
        """As the first node that answers says."""
        return self._log.bounds()

    def oldest(self) -> int:
        """Of all nodes that answer."""
        return self._log.oldest()

    def snapshot_index(self) -> int:
        """A node gives entries only."""
        raise FarmLogError(
            "a control endpoint gives entries, no snapshot: name a state directory or a copy of one with --directory,"
            " or begin with the oldest entry that is left",
        )

    def plan(self, first: int, end: int, cluster: str) -> LogRange:
        """A range stands for itself."""
        return LogRange(first, end, cluster)

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Asked for page by page."""
        if isinstance(partition, SnapshotRange):
            raise FarmLogError("a control endpoint gives no snapshot")
        entries = self._log.range(partition.first, partition.end, page_size=self._page_size, cluster=partition.cluster)
        for entry in entries:
            body = entry.body.encode("utf-8", "replace") if entry.encoding == "text" else base64.b64decode(entry.body)
            yield entry.index, entry.term, entry.kind, entry.log_time_ms, body


class DirectoryRanges:
    """A directory. It is opened when it is first asked for, in whichever process that is."""

    def __init__(self, directory: Path, committed_through: int | None) -> None:
        self._directory = directory
        self._committed_through = committed_through
        self._opened: StoredLog | None = None

    def __getstate__(self) -> tuple[Path, int | None]:
        return self._directory, self._committed_through

    def __setstate__(self, state: tuple[Path, int | None]) -> None:
        self._directory, self._committed_through = state
        self._opened = None

    @property
    def _log(self) -> StoredLog:
        if self._opened is None:
            self._opened = StoredLog(self._directory, self._committed_through)
        return self._opened

    def cluster_id(self) -> str:
        """Whose log it is."""
        return self._log.cluster_id()

    def bounds(self) -> tuple[int, int]:
        """As of now."""
        return self._log.bounds()

    def oldest(self) -> int:
        """There is one place only."""
        return self._log.bounds()[0]

    def snapshot_index(self) -> int:
        """The index at which the snapshot stands."""
        return self._log.snapshot()[0]

    def plan(self, first: int, end: int, cluster: str) -> LogRange:
        """A range with the place where its reader begins."""
        return LogRange(first, end, cluster, self._log.place(first))

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Read from the file."""
        if isinstance(partition, SnapshotRange):
            covered, rows = self._log.snapshot()
            if covered != partition.covered:
                raise FarmLogError(
                    f"the snapshot at {partition.covered} was replaced by one at {covered} while it was to be read;"
                    " start again with a new output directory, or read a copy of the state directory",
                )
            yield from rows
        elif partition.place is not None:
            yield from self._log.rows(partition.place, partition.first, partition.end)
