"""A farm's log out of a directory, for the source `farm`: a stopped node's state, a running one's, or a copy of either.

The planner finds the places at which parallel readers begin; a reader opens the directory anew, in another process or
on another machine that sees the same path, and goes on from its place. This is the only module of the pipeline that
reads a log from disk, by `bridge.node.offline.stored_farm`.
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
    """Where a reader begins."""

    file: str
    offset_bytes: int
    index: int
    log_time_ms: int | None


class StoredLog:
    """The log in `directory`. Raises FarmLogError from every method."""

    def __init__(self, directory: Path, committed_through: int | None = None) -> None:
        try:
            self._farm = StoredFarm(directory, committed_through)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        self._looked = False

    def cluster_id(self) -> str:
        """Whose log it is."""
        return self._farm.cluster_id

    def bounds(self) -> tuple[int, int]:
        """The first index that is there, and the last that is known to be committed."""
        try:
            self._farm.refresh()
            first, commit = self._farm.first_index, self._farm.commit_index
            if not self._looked and commit >= first:
                self._check_end(commit)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        return first, commit

    def _check_end(self, commit: int) -> None:
        """What is planned is noted in a checkpoint, so a wrong end is refused before."""
        if not self._farm.holds(commit):
            # A running node's note may be newer than the log that was read just before.
            self._farm.refresh()
        if not self._farm.holds(commit):
            raise FarmLogError(
                f"the log in '{self._farm.directory}' should have entry {commit}, and ends before it: `garlicfarm log"
                " verify` shows its end. Give that with --committed-through INDEX; if committed.json has a higher"
                " index, as in a copy of a running node's directory, remove this file there"
            )
        self._looked = True

    def place(self, index: int, known: KnownTime | None = None) -> StoredPlace:
        """Where to begin in order to read the entry at `index`. `known`: log time at an earlier one."""
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
        """Log time before the entry at `index`, None if nothing is known of it."""
        try:
            return self._farm.log_time_before(index, known)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error

    def rows(self, place: StoredPlace, first: int, end: int) -> Iterator[Row]:
        """Entries with first <= index < end."""
        anchor = Anchor(place.file, place.offset_bytes, place.index, place.log_time_ms)
        try:
            yield from self._farm.rows(anchor, first, end)
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error

    def snapshot(self) -> tuple[int, list[Row]]:
        """The index at which the snapshot stands, and the last report of each server in it."""
        try:
            last, rows = self._farm.snapshot_rows()
        except StoredFarmError as error:
            raise FarmLogError(str(error)) from error
        return last, [*rows]
