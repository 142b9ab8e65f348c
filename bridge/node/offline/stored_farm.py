"""A farm's committed log, from the directory of a stopped or running node, or from a backup; without a lock.

    DIR/raft/…             the log and its snapshot (DIR may also be this directory itself, or one moved by `recover`)
    DIR/formation.json     the cluster, and the log time of the empty log; absent in some backups
    DIR/committed.json     the node's known commit index

Callers end a read at `commit_index`, the greatest of three indexes. `committed.json` contains the first, and the
snapshot has the second, because it contains only applied entries. An operator may give the third for a properly stopped
farm.

Log time is not stored with each entry. It is the greatest clock value so far, or the time of a later correction. Both
are used as written, without the limit by the majority's clocks (`bridge.core.log.voter_clocks`): only a state machine
that applies the whole log knows this limit. A correct leader never writes a time above the limit.

A read from the middle of the log needs log time there. Decoding all earlier entries would be too slow. So a search in
the bytes finds the JSON key of clock entries, at the speed of a memory scan. Each position that it finds can be an
anchor: a position in a file, with log time before it.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import trio
from msgspec import Struct, field

from bridge.api.log import EntryKind, log_entry
from bridge.core.log.records import Clock, Correction
from bridge.core.state.farm_state import LOG_TIME_LIMIT_MS
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.raft.commit_store import read_commit_index
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory
from bridge.wire.log.entries import decode, encode
from bridge.wire.log.snapshot import FarmSnapshot, FarmSnapshotError, decode_farm
from bridge.wire.membership.formation_state import (
    FORMATION_STATE_LIMIT_BYTES,
    FormationStateError,
    decode_formation_state,
)
from consensus import COMMAND, Entry, Index
from consensus import EntryKind as EntryKindInLog
from consensus.storage import (
    SEGMENT_HEADER_BYTES,
    Place,
    StorageError,
    StoredEntry,
    StoredLog,
    StoredSegment,
    open_stored_log,
)

_CLOCK_KEY = b'"clock"'
_APPLICATION = EntryKind.APPLICATION.value
_OTHER_SOURCE = "read the control endpoint of a running node, or the state directory of another node"


class StoredFarmError(Exception):
    """The directory cannot be read as a farm's log; the text contains the reason and the remedy."""


StoredRow = tuple[int, int, str, int | None, bytes]
"""One entry, as from the control endpoint: index, term, kind, log time, bytes.

A plain tuple: a reader makes millions of them, and a frozen dataclass costs more.
"""


class Anchor(Struct, frozen=True):
    """A position in the log with log time before it. Picklable: a reader in another process continues from here."""

    file: str
    offset_bytes: int
    index: Index
    log_time_ms: int | None


class KnownTime(Struct, frozen=True):
    """Log time before the entry at `index`."""

    index: Index
    log_time_ms: int


class _Clocks(Struct):
    """The clock entries of one segment: their positions, and log time after each without the earlier segments.

    From place `corrected` of the arrays on, the value is log time itself, because a correction replaces log time.
    """

    indexes: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    times_ms: "array[int]" = field(default_factory=lambda: array("q"))
    corrected: int | None = None
    complete: bool = False
    searched_bytes: int = SEGMENT_HEADER_BYTES

    def take(self, entry: StoredEntry) -> None:
        """Add a clock entry or a correction, unless it is known: a partly committed group is read twice."""
        offset_bytes, index, _, kind, value = entry
        if kind != COMMAND or _CLOCK_KEY not in value or (self.indexes and index <= self.indexes[-1]):
            return
        time_ms = _later(self.times_ms[-1] if self.times_ms else None, value)
        if time_ms is None:
            return
        if self.corrected is None and _is_correction(value):
            self.corrected = len(self.times_ms)
        self.indexes.append(index)
        self.offsets.append(offset_bytes)
        self.times_ms.append(time_ms)

    def time_after(self, place: int, before_ms: int | None) -> int:
        """Return log time after the entry at `place`; `before_ms` is log time before the segment."""
        if before_ms is None or (self.corrected is not None and place >= self.corrected):
            return self.times_ms[place]
        return max(before_ms, self.times_ms[place])


class StoredFarm:
    """The log of one directory, and its commit index. Each method may raise StoredFarmError."""

    def __init__(self, directory: Path, committed_through: Index | None = None) -> None:
        """Open the log; an operator sets `committed_through` for a directory without `committed.json`."""
        self.directory = directory
        self._given_commit = committed_through
        own = directory / RAFT_DIRECTORY
        self._raft = own if own.is_dir() else directory
        # A storage that `recover` moved to `raft.of-…` is next to notes that belong to the new cluster.
        parents = (self._raft.parent,) if self._raft.name == RAFT_DIRECTORY else ()
        self._notes = tuple(dict.fromkeys((directory, *parents)))
        self._clocks: dict[str, _Clocks] = {}
        self._decoded: tuple[Index, FarmSnapshot] | None = None
        self._log = self._open()
        self.cluster_id, self._base_ms = self._founding()

    def refresh(self) -> None:
        """Read again: a running node may have appended entries, or another cluster may have replaced this storage."""
        before = self._log.binding
        self._log = self._open()
        self.cluster_id, self._base_ms = self._founding()
        if self._log.binding != before:
            self._clocks.clear()
            self._decoded = None

    @property
    def first_index(self) -> Index:
        """The first stored entry."""
        return self._log.start.index + 1

    @property
    def commit_index(self) -> Index:
        """The last index known to be committed."""
        snapshot = 0 if self._log.snapshot is None else self._log.snapshot.last.index
        noted = max(read_commit_index(place) or 0 for place in self._notes)
        return max(snapshot, noted, self._given_commit or 0)

    def anchor(self, index: Index, known: KnownTime | None = None) -> Anchor:
        """Return the nearest position for a read of the entry at `index`, at or before it.

        `known` is log time at an earlier entry. With it, the segments before that entry are not searched.
        """
        segment = self._segment_of(index)
        log_time_ms = self._time_before(segment, known)
        clocks = self._search(segment)
        place = bisect_right(clocks.indexes, index) - 1
        if place < 0:
            return Anchor(segment.file, SEGMENT_HEADER_BYTES, segment.first, log_time_ms)
        if place > 0:
            log_time_ms = clocks.time_after(place - 1, log_time_ms)
        return Anchor(segment.file, clocks.offsets[place], clocks.indexes[place], log_time_ms)

    def log_time_before(self, index: Index, known: KnownTime | None = None) -> int | None:
        """Return log time before the entry at `index`, which need not exist yet; `known` shortens the search."""
        if index <= self.first_index:
            return self._time_at_start()
        segment = self._segment_of(index)
        log_time_ms = self._time_before(segment, known)
        clocks = self._search(segment)
        place = bisect_right(clocks.indexes, index - 1) - 1
        return log_time_ms if place < 0 else clocks.time_after(place, log_time_ms)

    def holds(self, index: Index) -> bool:
        """Return True if the entry at `index` is stored and undamaged."""
        try:
            start = self._place_before(index)
            return any(each == index for _, each, _, _, _ in self._log.entries(start, index + 1))
        except StorageError:
            return False

    def rows(self, anchor: Anchor, first: Index, end: Index) -> Iterator[StoredRow]:
        """Yield entries with first <= index < end, read from `anchor` on."""
        log_time_ms = anchor.log_time_ms
        try:
            place = Place(anchor.file, anchor.offset_bytes, anchor.index)
            for _, index, term, kind, value in self._log.entries(place, end):
                if kind == COMMAND and _CLOCK_KEY in value:
                    log_time_ms = _later(log_time_ms, value)
                if index >= first:
                    yield _row(index, term, kind, value, log_time_ms)
        except StorageError as error:
            raise StoredFarmError(str(error)) from error

    def check(self, first: Index, end: Index) -> None:
        """Raise StoredFarmError if an entry with first <= index < end is missing or damaged."""
        try:
            deque(self._log.entries(self._place_before(first), end), maxlen=0)
        except StorageError as error:
            raise StoredFarmError(str(error)) from error

    def snapshot_rows(self) -> tuple[Index, list[StoredRow]]:
        """Return the index of the snapshot, and one row for the last report of each server."""
        description, snapshot = self._log.snapshot, self._snapshot()
        if description is None or snapshot is None:
            raise StoredFarmError(f"'{self._raft}' does not contain a snapshot: begin with the oldest entry instead")
        last, farm = description.last, snapshot.farm
        rows: list[StoredRow] = [
            (last.index, last.term, "snapshot", farm.log_time_ms, encode(server.report))
            for _, server in sorted(farm.servers.items())
        ]
        return last.index, rows

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _open(self) -> StoredLog:
        try:
            check_state_directory(self._raft)
            return open_stored_log(self._raft)
        except (StorageError, UntrustedPathError) as error:
            raise StoredFarmError(str(error)) from error

    def _founding(self) -> tuple[str, int | None]:
        for place in self._notes:
            try:
                with (place / FORMATION_FILE).open("rb") as file:
                    state = decode_formation_state(file.read(FORMATION_STATE_LIMIT_BYTES + 1))
            except OSError:
                continue
            except FormationStateError as error:
                raise StoredFarmError(f"'{place / FORMATION_FILE}' cannot be read: {error}; {_OTHER_SOURCE}") from error
            founding = state.founding or state.known
            if founding is not None:
                return founding.cluster_id.hex(), founding.log_time_base_ms
        # Without a cluster id, a checkpoint is bound to the storage of this one log.
        return f"storage-{self._log.binding.storage_id.hex()}", None

    def _segment_of(self, index: Index) -> StoredSegment:
        try:
            return self._log.segment_of(index)
        except StorageError as error:
            raise StoredFarmError(str(error)) from error

    def _place_before(self, index: Index) -> Place:
        segment = self._log.segment_of(index)
        clocks = self._search(segment)
        place = bisect_right(clocks.indexes, index) - 1
        if place < 0:
            return self._log.beginning(segment)
        return Place(segment.file, clocks.offsets[place], clocks.indexes[place])

    def _time_before(self, segment: StoredSegment, known: KnownTime | None) -> int | None:
        """Return log time before the first entry of a segment, or the known time if its entry is in the segment.

        The caller then applies all clock entries of the segment to the returned time. Clock entries before the known
        index do not change the result, because log time already includes them.
        """
        place, begin = self._log.segments.index(segment), 0
        if known is None or known.index < self.first_index:
            log_time_ms = self._time_at_start()
        else:
            log_time_ms, begin = known.log_time_ms, self._log.segments.index(self._segment_of(known.index))
        for earlier in self._log.segments[begin:place]:
            clocks = self._search(earlier)
            if clocks.times_ms:
                log_time_ms = clocks.time_after(len(clocks.times_ms) - 1, log_time_ms)
        return log_time_ms

    def _time_at_start(self) -> int | None:
        start = self._log.start.index
        if start == 0:
            return self._base_ms
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        place = bisect_right(snapshot.moment_indexes, start) - 1
        return snapshot.moment_times_ms[place] if place >= 0 else None

    def _search(self, segment: StoredSegment) -> _Clocks:
        """Return all committed clock entries of a segment; earlier results are not searched again.

        Uncommitted entries are not kept: a new leader may replace them.
        """
        clocks = self._clocks.setdefault(segment.file, _Clocks())
        if segment is not self._log.segments[-1] and clocks.complete:
            return clocks
        committed = self.commit_index
        try:
            for end_bytes, entries in self._log.groups_holding(segment, _CLOCK_KEY, clocks.searched_bytes):
                for entry in entries:
                    if entry[1] > committed:
                        return clocks
                    clocks.take(entry)
                clocks.searched_bytes = end_bytes
        except StorageError as error:
            raise StoredFarmError(str(error)) from error
        clocks.complete = segment is not self._log.segments[-1]
        return clocks

    def _snapshot(self) -> FarmSnapshot | None:
        if self._log.snapshot is None:
            return None
        if self._decoded is None or self._decoded[0] != self._log.snapshot.last.index:

            async def chunks() -> AsyncIterator[bytes]:
                for chunk in self._log.snapshot_chunks():
                    yield chunk

            async def whole() -> FarmSnapshot:
                return await decode_farm(chunks())

            try:
                self._decoded = self._log.snapshot.last.index, trio.run(whole)
            except (StorageError, FarmSnapshotError) as error:
                raise StoredFarmError(
                    f"the snapshot in '{self._raft}' cannot be read: {error}; {_OTHER_SOURCE}"
                ) from error
        return self._decoded[1]


def _row(index: Index, term: int, kind: int, value: bytes, log_time_ms: int | None) -> StoredRow:
    if kind == COMMAND:
        return index, term, _APPLICATION, log_time_ms, value
    try:
        shown = log_entry(index, Entry(term, EntryKindInLog(kind), value), log_time_ms)
    except ValueError as error:
        raise StoredFarmError(f"entry {index} cannot be read: {error}; {_OTHER_SOURCE}") from error
    return index, term, shown.kind.value, log_time_ms, shown.data


def _later(log_time_ms: int | None, value: bytes) -> int | None:
    """Return log time after an entry that may be a clock entry."""
    match decode(value):
        case Clock(time_ms=time_ms) if time_ms <= LOG_TIME_LIMIT_MS:
            return time_ms if log_time_ms is None else max(log_time_ms, time_ms)
        case Correction(time_ms=time_ms):
            return time_ms
        case _:
            return log_time_ms


def _is_correction(value: bytes) -> bool:
    return isinstance(decode(value), Correction)
