"""Reads the log of another server's directory, without a lock, a repair or a change.

    open_stored_log(path) ──▶ StoredLog: its segments, the start of the log, the snapshot
    .entries(place, end)  ──▶ (place of its group, index, term, kind, data) … from a place on, every checksum verified
    .groups_holding(b"…") ──▶ only the groups that hold these bytes, found at the speed of a search

Recovery (`consensus.storage.recovery`) reads everything and classifies the end of the log, because a server that starts
must find all acknowledged entries. An outside reader requests only committed entries, so a missing or unreadable entry
means that the directory is damaged. A reader without the commit index reads all sound entries (`StoredLog.end`).

A reader does not need the hard state: the segments' own headers name the owner of the records. So a backup without hard
state is readable. A running server may remove a segment during the read; the error reports it as removed.

Bytes alone do not show the beginning of a record. But a header's checksum starts from the storage's own id, so a writer
of entries cannot forge a valid header. So the search is reliable: from a hit it goes back to the nearest valid header
of a record that contains the hit.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from consensus.core.entry_data import EntryDataError, heads
from consensus.core.model import ORIGIN, Index, LogId, SnapshotDescription, Term
from consensus.storage.disk import StorageError
from consensus.storage.journal import SEGMENT_SUFFIX
from consensus.storage.records import (
    CHUNK_BYTES,
    CUT,
    PAYLOAD_LIMIT_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RECORD_MAGIC_OFFSET,
    SEGMENT_HEADER_BYTES,
    Binding,
    RecordError,
    RecordHeader,
    check_payload,
    decode_record_header,
    decode_segment_header,
    records_in,
)
from consensus.storage.snapshot_image import ImageReader
from consensus.storage.snapshots import HEADER_BYTES as SNAPSHOT_HEADER_BYTES
from consensus.storage.snapshots import SNAPSHOT_SUFFIX, snapshot_file, snapshot_owner, stored_snapshot
from consensus.storage.verification import ReadOnlyDirectory

LOOKS = 5
"""Limit of attempts to read a directory while a server removes files from it."""
_LOOK = "check it with `garlicfarm log verify`; if a node runs there, read from its control endpoint instead"

StoredEntry = tuple[int, Index, Term, int, bytes]
"""An entry: the offset of its group's record in the file; its index, term, kind (as a number) and data.

A plain tuple: a reader makes millions of them.
"""


class _Group(Struct):
    """One record, and the number of its entries in the log; a cut after the record may have removed the later ones."""

    offset_bytes: int
    end_bytes: int
    header: RecordHeader
    payload: memoryview
    count: int

    def entries(self) -> list[StoredEntry]:
        """Return its entries; raises `RecordError`."""
        offset, payload = self.offset_bytes, bytes(self.payload)
        found: list[StoredEntry] = []
        try:
            for index, (term, kind, begin, end) in enumerate(heads(payload), start=self.header.first):
                found.append((offset, index, term, kind, payload[begin:end]))
        except EntryDataError as error:
            raise RecordError(f"the group from entry {self.header.first} on cannot be read: {error}") from error
        if len(found) != self.header.count:
            raise RecordError(f"the group from entry {self.header.first} on has {len(found)} entries")
        return found[: self.count]


class StoredSegment(Struct, frozen=True):
    """One file of the log; its first entry comes after `previous`."""

    file: str
    previous: LogId
    size_bytes: int

    @property
    def first(self) -> Index:
        """Index of its first entry."""
        return self.previous.index + 1


class Place(Struct, frozen=True):
    """The place of the record that holds the entry at `index`."""

    file: str
    offset_bytes: int
    index: Index


class StoredLog:
    """The log in a directory. Made by `open_stored_log`."""

    def __init__(
        self, path: Path, binding: Binding, segments: tuple[StoredSegment, ...], snapshot: SnapshotDescription | None
    ) -> None:
        self.path = path
        self.segments = segments
        self.snapshot = snapshot
        self.binding = binding
        self._seed = binding.seed

    @property
    def start(self) -> LogId:
        """The place before the first entry."""
        if self.segments:
            return self.segments[0].previous
        return ORIGIN if self.snapshot is None else self.snapshot.last

    def end(self) -> Index:
        """Return the index after the last sound entry; reads the newest segment."""
        if not self.segments:
            return self.start.index + 1
        newest = self.segments[-1]
        end = newest.first
        for group in self._groups_of(self.beginning(newest)):
            end = group.header.first + group.count
        return end

    def segment_of(self, index: Index) -> StoredSegment:
        """Return the file for the entry at `index`; raises `StorageError`."""
        place = bisect_right(self.segments, index, key=lambda segment: segment.first) - 1
        if place < 0:
            raise StorageError(
                f"entry {index} is no longer in '{self.path}': its log begins at {self.start.index + 1}, and a"
                " snapshot replaces the earlier entries"
            )
        return self.segments[place]

    def beginning(self, segment: StoredSegment) -> Place:
        """Return the place of a segment's first record."""
        return Place(segment.file, SEGMENT_HEADER_BYTES, segment.first)

    def entries(self, place: Place, end: Index) -> Iterator[StoredEntry]:
        """Yield entries from `place` up to before `end`, across segments; raises `StorageError` if one is missing."""
        index = place.index
        while index < end:
            for group in self._groups_of(place):
                first, last = group.header.first, group.header.first + group.count - 1
                if first > index:
                    raise self._damaged(place.file, group.offset_bytes, index)
                if last < index:
                    continue
                for entry in self._entries_of(place.file, group)[index - first :]:
                    yield entry
                    index += 1
                    if index == end:
                        return
            next_segment = self.segment_of(index)
            if next_segment.first != index or next_segment.file == place.file:
                raise self._damaged(place.file, None, index)
            place = self.beginning(next_segment)

    def groups_holding(
        self, segment: StoredSegment, pattern: bytes, start_bytes: int
    ) -> Iterator[tuple[int, list[StoredEntry]]]:
        """Yield end and entries of each group with `pattern` in one segment, from `start_bytes` on."""
        try:
            with (self.path / segment.file).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self._unreadable(segment.file, error) from error
        with content:
            hit = content.find(pattern, start_bytes)
            while hit >= 0:
                found = self._group_around(content, hit, start_bytes)
                if found is None:
                    hit = content.find(pattern, hit + 1)
                    continue
                yield found.end_bytes, self._entries_of(segment.file, found)
                hit = content.find(pattern, found.end_bytes)

    def snapshot_chunks(self) -> Iterator[bytes]:
        """Yield the state machine's bytes in the snapshot image, if there is one."""
        if self.snapshot is None:
            return
        image, file = ImageReader(), snapshot_file(self.snapshot.last)
        try:
            with (self.path / file).open("rb") as opened:
                opened.seek(SNAPSHOT_HEADER_BYTES)
                while chunk := opened.read(CHUNK_BYTES):
                    yield from image.feed(chunk)
            image.finish()
        except (OSError, RecordError) as error:
            raise self._unreadable(file, error) from error

    def _groups_of(self, place: Place) -> Iterator[_Group]:
        """Yield valid groups of one file, in order, up to the first invalid record.

        A group is yielded after the check for a cut that follows it.
        """
        group: _Group | None = None
        for offset, header, payload in self._records_of(place):
            if header.kind == CUT and group is not None:
                group.count = min(group.count, max(0, header.first - group.header.first))
                group.end_bytes = offset + header.size_bytes
                continue
            if group is not None:
                yield group
            group = _Group(offset, offset + header.size_bytes, header, payload, header.count)
        if group is not None:
            yield group

    def _records_of(self, place: Place) -> Iterator[tuple[int, RecordHeader, memoryview]]:
        """Yield valid records of one file, in order, up to the first invalid one."""
        try:
            with (self.path / place.file).open("rb") as file:
                yield from records_in(partial(_read, file), self._seed, place.offset_bytes)
        except OSError as error:
            raise self._unreadable(place.file, error) from error

    def _group_around(self, content: mmap.mmap, hit: int, start_bytes: int) -> _Group | None:
        """Return the group whose payload contains `hit`."""
        lowest = max(start_bytes, SEGMENT_HEADER_BYTES, hit - RECORD_HEADER_BYTES - PAYLOAD_LIMIT_BYTES)
        magic = content.rfind(RECORD_MAGIC, lowest + RECORD_MAGIC_OFFSET, hit)
        while magic >= 0:
            offset = magic - RECORD_MAGIC_OFFSET
            header = self._header_at(content, offset)
            if header is not None and offset + RECORD_HEADER_BYTES <= hit < offset + header.size_bytes:
                return self._group_at(content, offset, header)
            if header is not None:
                return None
            magic = content.rfind(RECORD_MAGIC, lowest + RECORD_MAGIC_OFFSET, magic)
        return None

    def _group_at(self, content: mmap.mmap, offset: int, header: RecordHeader) -> _Group | None:
        end = offset + header.size_bytes
        payload = memoryview(content[offset + RECORD_HEADER_BYTES : end])
        try:
            check_payload(self._seed, header, payload)
        except RecordError:
            return None
        group = _Group(offset, end, header, payload, header.count)
        next_header = self._header_at(content, end)
        if next_header is not None and next_header.kind == CUT:
            group.count = min(group.count, max(0, next_header.first - header.first))
            group.end_bytes = end + next_header.size_bytes
        return group

    def _header_at(self, content: mmap.mmap, offset: int) -> RecordHeader | None:
        try:
            return decode_record_header(self._seed, content[offset : offset + RECORD_HEADER_BYTES])
        except RecordError:
            return None

    def _entries_of(self, file: str, group: _Group) -> list[StoredEntry]:
        try:
            return group.entries()
        except RecordError as error:
            raise self._unreadable(file, error) from error

    def _damaged(self, file: str, offset: int | None, index: Index) -> StorageError:
        where = "the end" if offset is None else f"byte {offset}"
        return StorageError(f"entry {index} is missing or damaged at {where} of '{self.path / file}': {_LOOK}")

    def _unreadable(self, file: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return StorageError(f"'{self.path / file}' went away while it was being read: a node runs there; {_LOOK}")
        return StorageError(f"'{self.path / file}' cannot be read ({error}): {_LOOK}")


def open_stored_log(path: Path) -> StoredLog:
    """Open the directory `path`; raises `StorageError` if it does not contain a server's log.

    If a running server removes a segment or a snapshot during this, the directory is read again.
    """
    reader = ReadOnlyDirectory(path)
    looks = LOOKS
    while True:
        looks -= 1
        try:
            return _looked_at(path, reader)
        except (OSError, RecordError) as error:
            if looks and isinstance(error, FileNotFoundError):
                continue
            raise StorageError(f"the log in '{path}' cannot be read ({error}): {_LOOK}") from error


def _looked_at(path: Path, reader: ReadOnlyDirectory) -> StoredLog:
    files = sorted(reader.files())
    names = [file for file in files if file.endswith(SEGMENT_SUFFIX)]
    segments, binding = [], None
    for name in names:
        header = decode_segment_header(reader.read(name, 0, SEGMENT_HEADER_BYTES))
        if binding is not None and header.binding != binding:
            raise StorageError(f"the segments in '{path}' belong to different storages: files were mixed; {_LOOK}")
        binding = header.binding
        segments.append(StoredSegment(name, header.previous, header.size_bytes))
    if binding is None:
        binding = _owner_of_snapshot(reader, files)
    if binding is None:
        raise StorageError(f"'{path}' does not contain the log of a server: name a node's state directory or a backup")
    snapshot, _ = stored_snapshot(reader, binding)
    return StoredLog(path, binding, tuple(segments), snapshot)


def _owner_of_snapshot(reader: ReadOnlyDirectory, files: list[str]) -> Binding | None:
    names = [file for file in files if file.endswith(SNAPSHOT_SUFFIX)]
    return snapshot_owner(reader, names[-1]) if names else None


def _read(file: BufferedReader, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
