"""The log on disk, as a planner: it keeps the place of every record and plans writes, but touches no file.

    plan_append(first, entries …) ▶ [WriteBytes, SyncFile]              one sync for a group of entries
                                    … + [WriteBytes, SyncFile, RenameFile, SyncDirectory]   at a roll-over
    plan_preparation() ──────────▶ [WriteBytes (zeros), SyncFile]       one step of the next segment
    plan_compact(first_kept) ────▶ [RemoveFile, SyncDirectory …]        whole segments that a snapshot covers
    plan_truncate(first_removed) ─▶ [RemoveFile …, SyncDirectory, WriteBytes (zeros) …, SyncFile]
    done()                          the planned operations were performed: all planned entries are durable

The log is a row of *segments*: files of a fixed size, zero-filled before use and named after their first index. The
next one is zero-filled in `SPARE`. One group is under way at a time. The reasons for segments, the spare, the
distinction of a torn tail from rot, truncation and compaction are in docs/explanation/storage.md.

*A truncation* follows `Storage`'s note `truncating_from` in the hard state file. If only the later entries of a group
are removed, a record called a *cut* after the group shortens it (`records`).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from consensus.core.entry_data import ENTRY_HEAD, encode_group
from consensus.core.log import TermRun
from consensus.core.model import ORIGIN, Entry, Index, LogId
from consensus.storage.disk import (
    CreateFile,
    DiskOperation,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.records import (
    ENTRY_LIMIT_BYTES,
    GROUP_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Binding,
    RecordError,
    SegmentHeader,
    encode_cut,
    encode_record,
    encode_segment_header,
)

SEGMENT_SUFFIX = ".segment"
NEW_SUFFIX = ".new"
SPARE = "spare" + SEGMENT_SUFFIX + NEW_SUFFIX
"""The next segment, while it is being filled with zeros."""
STEP_BYTES = 512 * 1024
"""Usual bytes of one preparation step. The next group may have to wait for a step, 50 ms on a disk of 10 MB/s.

Half of this size needs twice as many syncs. For 40 MB of log, whose groups took 10 s, these syncs took 1.1 s instead of
0.6 s.
"""
SMALL_SEGMENT_BYTES = 1024 * 1024
"""The least size of an adopted spare. With `prepares_ahead`, also the size of a segment that a group makes itself."""
ZEROS_AT_ONCE_BYTES = 1024 * 1024


def segment_file(first: Index) -> str:
    """Return the name of the segment whose first entry has index `first`; names sort like indexes."""
    return f"{first:020d}{SEGMENT_SUFFIX}"


def plan_zeros(file: str, start_bytes: int, end_bytes: int) -> list[DiskOperation]:
    """Erase [start, end) in pieces, so that a plan does not contain zeros for a whole segment."""
    return [
        WriteBytes(file, offset, bytes(min(ZEROS_AT_ONCE_BYTES, end_bytes - offset)))
        for offset in range(start_bytes, end_bytes, ZEROS_AT_ONCE_BYTES)
    ]


@dataclass(slots=True)
class Segment:
    """One file of the log. Group i has the entries from `firsts[i]` up to the first entry of the next group.

    The record of group i begins at `offsets[i]` and ends at `ends[i]`; a cut may follow it. The index of the last entry
    is `last`, and all records end at `end_bytes`.
    """

    file: str
    previous: LogId
    size_bytes: int
    end_bytes: int = SEGMENT_HEADER_BYTES
    last: Index = field(init=False)
    firsts: "array[int]" = field(default_factory=lambda: array("Q"))
    offsets: "array[int]" = field(default_factory=lambda: array("I"))
    ends: "array[int]" = field(default_factory=lambda: array("I"))

    def __post_init__(self) -> None:
        self.last = self.previous.index

    @property
    def first(self) -> Index:
        """Index of the first entry, also before that entry is written."""
        return self.previous.index + 1

    def add(self, count: int, size_bytes: int) -> None:
        """Add a group of `count` entries, whose record has `size_bytes`."""
        self.firsts.append(self.last + 1)
        self.offsets.append(self.end_bytes)
        self.end_bytes += size_bytes
        self.ends.append(self.end_bytes)
        self.last += count

    def group_of(self, index: Index) -> int:
        """Return the number of the group that holds the entry at `index`."""
        return bisect_right(self.firsts, index) - 1

    def offset_of(self, index: Index) -> int:
        """Return the offset of the record with the entry at `index`; after the last index, the end of the records."""
        return self.end_bytes if index > self.last else self.offsets[self.group_of(index)]

    def remove_from(self, first_removed: Index) -> bool:
        """Drop the entries from `first_removed` on; return True if a part of a group stays, which needs a cut."""
        kept_count = bisect_left(self.firsts, first_removed)
        next_first = self.firsts[kept_count] if kept_count < len(self.firsts) else self.last + 1
        is_cut = kept_count > 0 and first_removed < next_first
        if is_cut:
            self.end_bytes = self.ends[kept_count - 1]
        elif kept_count < len(self.firsts):
            self.end_bytes = self.offsets[kept_count]
        del self.firsts[kept_count:], self.offsets[kept_count:], self.ends[kept_count:]
        self.last = max(self.previous.index, min(self.last, first_removed - 1))
        return is_cut


class Extent(Struct, frozen=True):
    """A run of whole records in one file, with `count` of their entries from `first` on."""

    file: str
    offset_bytes: int
    length_bytes: int
    first: Index
    count: int


class Journal:
    """The row of segments, at first empty; recovery adds the segments that it has read (`restore`)."""

    def __init__(self, binding: Binding, segment_bytes: int) -> None:
        self._binding = binding
        self._seed = binding.seed
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._runs: list[TermRun] = []
        self._begin = ORIGIN
        self._durable: Index = 0
        self.prepares_ahead = False
        """True if a caller carries out `plan_preparation`."""
        self._spare_bytes = 0
        self._step_bytes = 0
        self._unprepared_bytes = 0
        """Bytes of the records written since the last step of preparation."""
        self._no_space = False

    @property
    def binding(self) -> Binding:
        """The owner of the records."""
        return self._binding

    @property
    def last(self) -> LogId:
        """Return the position of the last entry, planned or durable."""
        index = self._segments[-1].last if self._segments else self._begin.index
        return LogId(index, self._runs[-1].term if self._runs else self.start.term)

    @property
    def start(self) -> LogId:
        """The place before the first entry."""
        return self._segments[0].previous if self._segments else self._begin

    @property
    def durable(self) -> Index:
        """The index of the last durable entry."""
        return self._durable

    @property
    def segments(self) -> Sequence[Segment]:
        """The files, oldest first."""
        return self._segments

    def restore(self, start: LogId, segments: Sequence[Segment], runs: Sequence[TermRun]) -> None:
        """Adopt the log that recovery found; it is durable after recovery's operations."""
        self._begin = start
        self._segments = list(segments)
        self._runs = list(runs)
        self._durable = self.last.index

    def plan_append(self, first: Index, entries: Sequence[Entry], encoded: bytes = b"") -> list[DiskOperation]:
        """Write `entries` at the end of the log and make them durable, with one sync unless a roll-over needs more.

        `encoded` are their bytes, if available. Raises `RecordError`, and plans no operation, for an entry that cannot
        be stored.
        """
        last = self.last
        if first != last.index + 1:
            raise ValueError(f"entries from {first} on cannot follow a log that ends at {last.index}")
        groups = self._groups(entries, encoded or encode_group(entries))
        operations: list[DiskOperation] = []
        pending: list[bytes] = []
        segment = self._segments[-1] if self._segments else None
        at = 0
        for count, payload in groups:
            previous_term = entries[at - 1].term if at else last.term
            record = encode_record(self._seed, first + at, previous_term, self._durable, count, payload)
            needed_bytes = len(record) + RECORD_HEADER_BYTES  # leave room for a cut after the group
            if segment is None or segment.end_bytes + needed_bytes > segment.size_bytes:
                operations += self._plan_flush(pending)
                operations += self._plan_segment(needed_bytes)
                segment = self._segments[-1]
            self._note_terms(first + at, entries[at : at + count])
            segment.add(count, len(record))
            self._unprepared_bytes += len(record)
            pending.append(record)
            at += count
        return operations + self._plan_flush(pending)

    def _groups(self, entries: Sequence[Entry], encoded: bytes) -> list[tuple[int, bytes | memoryview]]:
        """Return the number of entries and the bytes of each record: small parts of a segment, or single entries."""
        limit_bytes = min(GROUP_BYTES, self._segment_bytes // 8)
        if len(encoded) <= limit_bytes:
            return [(len(entries), encoded)]
        groups: list[tuple[int, bytes | memoryview]] = []
        view = memoryview(encoded)
        count = begin = end = 0
        for entry in entries:
            if len(entry.data) > ENTRY_LIMIT_BYTES:
                raise RecordError(f"an entry has {len(entry.data)} bytes; at most {ENTRY_LIMIT_BYTES} can be stored")
            size_bytes = ENTRY_HEAD.size + len(entry.data)
            if count and end + size_bytes - begin > limit_bytes:
                groups.append((count, view[begin:end]))
                count, begin = 0, end
            count, end = count + 1, end + size_bytes
        return [*groups, (count, view[begin:end])]

    def _note_terms(self, first: Index, entries: Sequence[Entry]) -> None:
        term = self._runs[-1].term if self._runs else None
        if entries[-1].term == term:
            return
        for index, entry in enumerate(entries, start=first):
            if entry.term != term:
                term = entry.term
                self._runs.append(TermRun(index, term))

    def plan_preparation(self) -> list[DiskOperation]:
        """Return the next step of preparing the next segment; empty if enough is prepared.

        Do not call it while a group is under way.
        """
        if self._no_space and self._unprepared_bytes < self._segment_bytes // 16:
            return []
        target_bytes = self._segment_bytes
        if self._segments and self._segments[-1].size_bytes >= self._segment_bytes:
            target_bytes = min(target_bytes, 2 * self._segments[-1].end_bytes)
        missing_bytes = target_bytes - self._spare_bytes
        if missing_bytes <= 0 or (missing_bytes < STEP_BYTES and target_bytes < self._segment_bytes):
            return []
        begin_bytes = self._spare_bytes
        # With large groups, small steps would not keep ahead of the log. So a step has up to twice the bytes of the
        # records written since the last step.
        keeps_pace = self._unprepared_bytes <= STEP_BYTES
        self._step_bytes = min(missing_bytes, STEP_BYTES if keeps_pace else 2 * self._unprepared_bytes)
        self._unprepared_bytes, self._no_space = 0, False
        if not begin_bytes:
            return [CreateFile(SPARE, self._step_bytes), SyncFile(SPARE)]
        return [*plan_zeros(SPARE, begin_bytes, begin_bytes + self._step_bytes), SyncFile(SPARE)]

    def prepared(self, *, given_up: bool) -> None:
        """Record that the step was performed, or that the disk was full and the spare is removed for now."""
        self._spare_bytes = 0 if given_up else self._spare_bytes + self._step_bytes
        self._no_space = given_up

    def plan_truncate(self, first_removed: Index) -> list[DiskOperation]:
        """Erase the entry at `first_removed` and all later entries, so that they cannot resurface."""
        operations: list[DiskOperation] = []
        while len(self._segments) > 1 and self._segments[-1].first >= first_removed:
            operations.append(RemoveFile(self._segments.pop().file))
        if operations:
            operations.append(SyncDirectory())
        segment = self._segments[-1]
        end_bytes = segment.end_bytes
        is_cut = segment.remove_from(first_removed)
        while self._runs and self._runs[-1].first > self.last.index:
            self._runs.pop()
        self._durable = min(self._durable, self.last.index)
        if is_cut:
            operations.append(self._plan_cut(segment))
        if is_cut or segment.end_bytes < end_bytes:
            operations += [*plan_zeros(segment.file, segment.end_bytes, end_bytes), SyncFile(segment.file)]
        return operations

    def _plan_cut(self, segment: Segment) -> DiskOperation:
        last = self.last
        record = encode_cut(self._seed, last.index + 1, last.term, self._durable)
        segment.end_bytes += len(record)
        return WriteBytes(segment.file, segment.end_bytes - len(record), record)

    def plan_compact(self, first_kept: Index) -> list[DiskOperation]:
        """Remove the segments whose entries all precede `first_kept`; a snapshot must cover them.

        The operations remove one segment after another, the oldest first. Each removal is durable before the next, so
        that a crash does not leave a hole.
        """
        operations: list[DiskOperation] = []
        while len(self._segments) > 1 and self._segments[0].last < first_kept:
            operations += [RemoveFile(self._segments.pop(0).file), SyncDirectory()]
        first = self.start.index + 1
        while len(self._runs) > 1 and self._runs[1].first <= first:
            self._runs.pop(0)
        if self._runs and self._runs[0].first < first:
            self._runs[0] = TermRun(first, self._runs[0].term)
        return operations

    def plan_replace(self, start: LogId) -> list[DiskOperation]:
        """Remove everything: the log is empty and continues after `start`. A crash may leave any of the files."""
        operations: list[DiskOperation] = [RemoveFile(segment.file) for segment in self._segments]
        self._segments.clear()
        self._runs.clear()
        self._begin = start
        self._durable = start.index
        return [*operations, SyncDirectory()]

    def size_after(self, index: Index) -> int:
        """Return the size of the records after the record of `index`."""
        return sum(
            segment.end_bytes - segment.offset_of(max(index + 1, segment.first))
            for segment in self._segments
            if segment.last > index
        )

    def first_within(self, last: Index, limit_bytes: int) -> Index:
        """Return the first entry of the oldest segment within `limit_bytes` before `last`, or `last` + 1."""
        first, size_bytes = last + 1, 0
        for segment in reversed(self._segments):
            if segment.first > last:
                continue
            size_bytes += segment.offset_of(min(last, segment.last) + 1) - SEGMENT_HEADER_BYTES
            if size_bytes > limit_bytes:
                break
            first = segment.first
        return first

    def done(self) -> None:
        """Record that the planned operations were performed."""
        self._durable = self.last.index

    def extents(self, first: Index, last: Index, limit_bytes: int) -> list[Extent]:
        """Return the places of the entries [first, last]: whole groups, enough for `limit_bytes` of entries."""
        extents: list[Extent] = []
        left = limit_bytes
        index = first
        position = max(0, bisect_right(self._segments, first, key=_first_of) - 1)
        for segment in self._segments[position:]:
            stop = min(last, segment.last)
            if not segment.first <= index <= stop:
                break
            group, newest = segment.group_of(index), segment.group_of(stop)
            start_bytes = segment.offsets[group]
            # The first group does not count, because perhaps only its last entry is requested.
            counted_from = start_bytes if extents else segment.ends[group]
            group = min(newest, bisect_left(segment.ends, counted_from + left, group))
            end = stop if group == newest else segment.firsts[group + 1] - 1
            length_bytes = segment.ends[group] - start_bytes
            extents.append(Extent(segment.file, start_bytes, length_bytes, index, end - index + 1))
            left -= segment.ends[group] - counted_from
            index = end + 1
            if end < stop or left <= 0:
                break
        return extents

    def _plan_flush(self, pending: list[bytes]) -> list[DiskOperation]:
        if not pending:
            return []
        segment = self._segments[-1]
        data = b"".join(pending)
        pending.clear()
        return [WriteBytes(segment.file, segment.end_bytes - len(data), data), SyncFile(segment.file)]

    def _plan_segment(self, record_bytes: int) -> list[DiskOperation]:
        previous = self.last
        file = segment_file(previous.index + 1)
        needed_bytes = SEGMENT_HEADER_BYTES + record_bytes
        small_bytes = max(min(self._segment_bytes, SMALL_SEGMENT_BYTES), needed_bytes)
        operations: list[DiskOperation] = []
        if self._spare_bytes >= small_bytes:
            made, size_bytes = SPARE, self._spare_bytes
            self._spare_bytes = self._unprepared_bytes = 0
        else:
            made = file + NEW_SUFFIX
            size_bytes = small_bytes if self.prepares_ahead else max(self._segment_bytes, needed_bytes)
            operations.append(CreateFile(made, size_bytes))
        header = encode_segment_header(SegmentHeader(self._binding, previous, size_bytes))
        self._segments.append(Segment(file, previous, size_bytes))
        return [*operations, WriteBytes(made, 0, header), SyncFile(made), RenameFile(made, file), SyncDirectory()]


def _first_of(segment: Segment) -> Index:
    return segment.first
