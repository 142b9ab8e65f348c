"""Ranges of the log as Spark's partitions: their planning, and their rows, for both places of a log.

    NodeRanges        control endpoints of running nodes   a range has its indexes only
    DirectoryRanges   a directory                          a range also has its place in a file, and log time there

All objects here are pickled: a partition goes to another process, together with its reader.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from pipeline.decode.columns import Row
from pipeline.source.endpoint import Credentials
from pipeline.source.log_client import OTHER_CLUSTER, FarmLog, FarmLogError, LogStatus, first_without_gap
from pipeline.source.stored_log import KnownTime, StoredLog, StoredPlace

LOOK_AROUND_SECONDS = 10.0
"""The time without new entries before all nodes are queried."""
LOOK_AROUND_PATIENCE_SECONDS = 1.0
"""The maximum delay by a hanging node when all nodes are queried. A slower node is queried again the next time."""


class LogRange(InputPartition):
    """Entries with first <= index < end, for one task."""

    def __init__(
        self, first: int, end: int, cluster: str, *, place: StoredPlace | None = None, addresses: tuple[str, ...] = ()
    ) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end
        self.cluster = cluster
        self.place = place
        self.addresses = addresses


class SnapshotRange(InputPartition):
    """The content of the snapshot at index `covered`."""

    def __init__(self, covered: int, cluster: str) -> None:
        super().__init__(covered)
        self.covered = covered
        self.cluster = cluster


class LogRanges(Protocol):
    """A place of the log. Every method raises FarmLogError."""

    def status(self, cluster: str | None = None, *, of_all: bool = False) -> LogStatus:
        """Return the status of the log of `cluster`, or of any; `of_all`: of the node with the most entries."""

    def oldest(self, cluster: str) -> int:
        """Return the first index of the log, from all nodes together."""

    def snapshot_index(self) -> int:
        """Return the index of the snapshot."""

    def time_before(self, index: int, known: KnownTime | None) -> int | None:
        """Return the log time before an entry, if a place in the log needs it; `known`: an earlier entry's time."""

    def plan(self, first: int, end: int, cluster: str, known: KnownTime | None = None) -> LogRange:
        """Return the partition for [first, end). `known`: the log time at an earlier entry."""

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Yield the rows of one partition."""


class NodeRanges:
    """Control endpoints.

    The last node that replied is queried first, so a node that is gone or hangs costs its timeout once, not in each
    batch. A node that is cut off from its farm also replies, but does not get new entries. So after a while without new
    entries, all nodes are queried, and the node with the most entries is first from then on.
    """

    def __init__(self, addresses: tuple[str, ...], credentials: Credentials, page_size: int) -> None:
        self._log = FarmLog(addresses, credentials)
        self._page_size = page_size
        self._commit_index = 0
        self._moved_at = time.monotonic()

    def status(self, cluster: str | None = None, *, of_all: bool = False) -> LogStatus:
        """Return the status of the node with the most entries, among the queried nodes."""
        looks_around = time.monotonic() - self._moved_at > LOOK_AROUND_SECONDS
        statuses = self._log.statuses(cluster) if of_all else [self._log.status(cluster)]
        if looks_around and not of_all:
            statuses += self._others(statuses[0])
        most = max(statuses, key=lambda each: each.commit_index)
        found = replace(most, first_index=first_without_gap(statuses))
        if of_all or looks_around:
            self._moved_at = time.monotonic()
        if found.commit_index > self._commit_index:
            self._commit_index, self._moved_at = found.commit_index, time.monotonic()
        others = tuple(address for address in self._log.addresses if address != found.address)
        self._log = FarmLog((found.address, *others), self._log.credentials)
        return found

    def _others(self, known: LogStatus) -> list[LogStatus]:
        """Return the status of the other nodes that reply soon."""
        others = tuple(address for address in self._log.addresses if address != known.address)
        try:
            return FarmLog(others, self._log.credentials).statuses(known.cluster, LOOK_AROUND_PATIENCE_SECONDS)
        except FarmLogError:
            return []

    def oldest(self, cluster: str) -> int:
        """Return the start of the range without gaps in the logs of the responsive nodes."""
        return self._log.oldest(cluster)

    def snapshot_index(self) -> int:
        """Raise FarmLogError, since a node serves entries only."""
        raise FarmLogError(
            "a control endpoint does not serve snapshots: name a state directory or a copy of one with --directory, or"
            " begin with the oldest remaining entry",
        )

    def time_before(self, index: int, known: KnownTime | None) -> None:
        """Return None, since a node sends log time with each entry."""

    def plan(self, first: int, end: int, cluster: str, known: KnownTime | None = None) -> LogRange:
        """Return a range, with the order of the nodes."""
        del known
        return LogRange(first, end, cluster, addresses=self._log.addresses)

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Request the entries page by page."""
        if isinstance(partition, SnapshotRange):
            raise FarmLogError("a control endpoint does not serve snapshots")
        log = FarmLog(partition.addresses or self._log.addresses, self._log.credentials)
        for entry in log.range(partition.first, partition.end, page_size=self._page_size, cluster=partition.cluster):
            yield entry.index, entry.term, entry.kind, entry.log_time_ms, entry.body


class DirectoryRanges:
    """A directory. It is opened at its first use, in any process."""

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

    def status(self, cluster: str | None = None, *, of_all: bool = False) -> LogStatus:
        """Return the current status; there is one place only."""
        del of_all
        first, commit = self._log.bounds()
        if cluster is not None:
            self._check_cluster(cluster)
        return LogStatus(self._log.cluster_id(), first, commit)

    def oldest(self, cluster: str) -> int:
        """Return the first index; there is one place only."""
        return self.status(cluster).first_index

    def snapshot_index(self) -> int:
        """Return the index of the snapshot."""
        return self._log.snapshot()[0]

    def check(self, first: int, end: int) -> None:
        """Raise FarmLogError if an entry with first <= index < end is missing or damaged."""
        self._log.check(first, end)

    def time_before(self, index: int, known: KnownTime | None) -> int | None:
        """Return log time before the entry, found by the clock entries between."""
        return self._log.log_time_before(index, known)

    def plan(self, first: int, end: int, cluster: str, known: KnownTime | None = None) -> LogRange:
        """Return a range with the place of its first entry."""
        # A repeated batch is planned by its recorded ends alone, without the current end of the log.
        self._check_cluster(cluster)
        return LogRange(first, end, cluster, place=self._log.place(first, known))

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Yield the rows from the file."""
        if isinstance(partition, SnapshotRange):
            covered, rows = self._log.snapshot()
            if covered != partition.covered:
                raise FarmLogError(
                    f"the snapshot at {partition.covered} was replaced by the snapshot at {covered} before it was"
                    " read; start again with a new output directory, or read a copy of the state directory",
                )
            yield from rows
        elif partition.place is not None:
            self._check_cluster(partition.cluster)
            yield from self._log.rows(partition.place, partition.first, partition.end)

    def _check_cluster(self, cluster: str) -> None:
        found = self._log.cluster_id()
        if found != cluster:
            raise FarmLogError(
                f"the tables contain the cluster {cluster}, and '{self._directory}' contains {found}: {OTHER_CLUSTER}"
            )
