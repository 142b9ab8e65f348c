"""A farm's log from a directory, for the source `farm`: a stopped node's state, a running one's, or a copy of either.

For each parallel reader, the planner finds a place in the log to begin at. A reader opens the directory again, in
another process or on another machine with the same path, and continues from its place. Only this module of the pipeline
reads a log from disk, with `bridge.node.offline.stored_farm`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bridge.node.offline.stored_farm import Anchor, KnownTime, StoredFarm, StoredFarmError
from pipeline.decode.columns import Row
from pipeline.source.log_client import COMPACTED, FarmLogError

__all__ = ["KnownTime", "StoredLog", "StoredPlace"]


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """The start of a read: the nearest clock entry or start of a segment, at or before the reader's first entry."""

    file: str
    offset_bytes: int
    index: int
    log_time_ms: int | None


class StoredLog:
    """The log in `directory`. Methods that read the directory may raise FarmLogError."""

    def __init__(self, directory: Path, committed_through: int | None = None) -> None:
        try:
            self._farm = StoredFarm(directory, committed_through)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        self._checked = 0

    def cluster_id(self) -> str:
        """Return the cluster id of the log; `storage-` and the id of the storage if the directory does not show it."""
        return self._farm.cluster_id

    def bounds(self) -> tuple[int, int]:
        """Return the first index, and the last index that was certainly committed."""
        try:
            self._farm.refresh()
            first, commit = self._farm.first_index, self._farm.commit_index
            if commit > self._checked and commit >= first:
                self._check_end(commit)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        return first, commit

    def _check_end(self, commit: int) -> None:
        """Raise FarmLogError if the log lacks its last committed entry.

        This happens before a checkpoint records the plan: a copy may have a newer `committed.json` than its log.
        """
        if not self._farm.holds(commit):
            # A running node may have updated committed.json after the log was read.
            self._farm.refresh()
        if not self._farm.holds(commit):
            raise FarmLogError(
                f"the log in '{self._farm.directory}' should have entry {commit}, and ends before it: `garlicfarm log"
                " verify` shows its last index. Pass that index with --committed-through INDEX. In a copy of a running"
                " node's directory, committed.json may have a higher index: then delete committed.json from the copy"
            )
        self._checked = commit

    def place(self, index: int, known: KnownTime | None = None) -> StoredPlace:
        """Return the place to begin reading the entry at `index`. `known`: the log time at an earlier entry."""
        if index < (oldest := self._farm.first_index):
            raise FarmLogError(
                f"entries {index} to {oldest - 1} were compacted away before they were read; {COMPACTED}"
            )
        try:
            anchor = self._farm.anchor(index, known)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        return StoredPlace(anchor.file, anchor.offset_bytes, anchor.index, anchor.log_time_ms)

    def log_time_before(self, index: int, known: KnownTime | None) -> int | None:
        """Return log time before the entry at `index`; None if unknown."""
        try:
            return self._farm.log_time_before(index, known)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error

    def check(self, first: int, end: int) -> None:
        """Raise FarmLogError if an entry with first <= index < end is missing or damaged."""
        try:
            self._farm.check(first, end)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error

    def rows(self, place: StoredPlace, first: int, end: int) -> Iterator[Row]:
        """Yield entries with first <= index < end."""
        anchor = Anchor(place.file, place.offset_bytes, place.index, place.log_time_ms)
        try:
            yield from self._farm.rows(anchor, first, end)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error

    def snapshot(self) -> tuple[int, list[Row]]:
        """Return the index of the snapshot, and the last report of each server in it."""
        try:
            last, rows = self._farm.snapshot_rows()
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        return last, [*rows]
