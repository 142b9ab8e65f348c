"""Reads the log of a server's directory without being that server: no lock, no repair, nothing changed.

    open_stored_log(path) ──▶ StoredLog: which segments there are, where the log begins, which snapshot covers what
    .records(place, end)  ──▶ (offset, header, payload) … from a place on, every checksum verified
    .records_holding(b"…") ─▶ only the records that hold these bytes, found at the speed of a search

Recovery (`consensus.storage.recovery`) reads everything and judges the end of the log, because a server that starts
must know what it acknowledged. A reader from outside knows up to which index entries are committed and never asks for
more, so it needs no judgement: what it asks for must be there and sound, or the directory is damaged.

It needs no hard state either. To whom the records belong is told by the segments' own headers, so that a backup, which
leaves the hard state out, is read as well. A running server may remove a segment meanwhile; that is told as such.

Bytes alone never tell where a record begins, but a header's checksum starts from the storage's own id, so nobody who
writes entries can make bytes that pass for one. That is what makes the search sound: from a hit it goes back to the
nearest header that checks out and reaches over the hit.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from consensus.core.model import ORIGIN, Index, LogId, SnapshotDescription
from consensus.storage.disk import StorageError
from consensus.storage.journal import SEGMENT_SUFFIX
from consensus.storage.records import (
    ENTRY_LIMIT_BYTES,
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
)
from consensus.storage.snapshot_image import ImageReader
from consensus.storage.snapshots import HEADER_BYTES as SNAPSHOT_HEADER_BYTES
from consensus.storage.snapshots import SNAPSHOT_SUFFIX, snapshot_file, snapshot_owner, stored_snapshot
from consensus.storage.verification import ReadOnlyDirectory

LOOKS = 5
"""How often a directory is looked at while files go away in it."""
_CHUNK_BYTES = 1024 * 1024
_LOOK = "look at it with `garlicfarm log verify`; if a node runs there, read from its control endpoint instead"

Record = tuple[int, RecordHeader, memoryview]
"""Where it begins in its file, what it says of itself, and its content."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """One file of the log; its first entry comes after `previous`."""

    file: str
    previous: LogId
    size_bytes: int

    @property
    def first(self) -> Index:
        """Index of its first entry."""
        return self.previous.index + 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where the record of `index` begins."""

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

    def segment_of(self, index: Index) -> StoredSegment:
        """The file in which the entry at `index` is, if it is anywhere; raises `StorageError`."""
        place = bisect_right(self.segments, index, key=lambda segment: segment.first) - 1
        if place < 0:
            raise StorageError(
                f"entry {index} is not in '{self.path}' any more: its log begins at {self.start.index + 1}, and a "
                "snapshot stands for what was before"
            )
        return self.segments[place]

    def beginning(self, segment: StoredSegment) -> Place:
        """The place of a segment's first record."""
        return Place(segment.file, SEGMENT_HEADER_BYTES, segment.first)

    def records(self, place: Place, end: Index) -> Iterator[Record]:
        """Records from `place` up to the one before `end`, across segments; raises `StorageError` if one is missing."""
        index = place.index
        while index < end:
            for record in self._records_of(place):
                if record[1].index != index:
                    raise self._damaged(place.file, record[0], index)
                yield record
                index += 1
                if index == end:
                    return
            following = self.segment_of(index)
            if following.first != index:
                raise self._damaged(place.file, None, index)
            place = self.beginning(following)

    def records_holding(self, segment: StoredSegment, wanted: bytes, start_bytes: int) -> Iterator[Record]:
        """The records of one segment from `start_bytes` on that hold `wanted` in their content."""
        try:
            with (self.path / segment.file).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self._unreadable(segment.file, error) from error
        with content:
            hit = content.find(wanted, start_bytes)
            while hit >= 0:
                found = self._record_around(content, hit, start_bytes)
                if found is None:
                    hit = content.find(wanted, hit + 1)
                    continue
                yield found
                hit = content.find(wanted, found[0] + found[1].size_bytes)

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The state machine's bytes in the snapshot; nothing if there is none."""
        if self.snapshot is None:
            return
        image, file = ImageReader(), snapshot_file(self.snapshot.last)
        try:
            with (self.path / file).open("rb") as opened:
                opened.seek(SNAPSHOT_HEADER_BYTES)
                while piece := opened.read(_CHUNK_BYTES):
                    yield from image.feed(piece)
            image.finish()
        except (OSError, RecordError) as error:
            raise self._unreadable(file, error) from error

    def _records_of(self, place: Place) -> Iterator[Record]:
        """Valid records of one file, one behind the other; ends at the first place where there is none."""
        seed = self._seed
        offset, start, chunk = place.offset_bytes, place.offset_bytes, b""
        view = memoryview(chunk)
        try:
            with (self.path / place.file).open("rb") as file:
                while True:
                    at = offset - start
                    if at + RECORD_HEADER_BYTES > len(chunk):
                        start, at, chunk = offset, 0, _read(file, offset, _CHUNK_BYTES)
                        view = memoryview(chunk)
                    header = decode_record_header(seed, chunk, at)
                    if header is None:
                        return
                    size_bytes = header.size_bytes
                    if at + size_bytes > len(chunk):
                        start, at, chunk = offset, 0, _read(file, offset, max(_CHUNK_BYTES, size_bytes))
                        view = memoryview(chunk)
                    payload = view[at + RECORD_HEADER_BYTES : at + size_bytes]
                    check_payload(seed, header, payload)
                    yield offset, header, payload
                    offset += size_bytes
        except RecordError:
            return
        except OSError as error:
            raise self._unreadable(place.file, error) from error

    def _record_around(self, content: mmap.mmap, hit: int, start_bytes: int) -> Record | None:
        """The record in whose content `hit` lies."""
        lowest = max(start_bytes, SEGMENT_HEADER_BYTES, hit - RECORD_HEADER_BYTES - ENTRY_LIMIT_BYTES)
        magic = content.rfind(RECORD_MAGIC, lowest + RECORD_MAGIC_OFFSET, hit)
        while magic >= 0:
            offset = magic - RECORD_MAGIC_OFFSET
            try:
                header = decode_record_header(self._seed, content[offset : offset + RECORD_HEADER_BYTES])
            except RecordError:
                header = None
            if header is not None:
                end = offset + header.size_bytes
                payload = memoryview(content[offset + RECORD_HEADER_BYTES : end])
                try:
                    check_payload(self._seed, header, payload)
                except RecordError:
                    return None
                return (offset, header, payload) if offset + RECORD_HEADER_BYTES <= hit < end else None
            magic = content.rfind(RECORD_MAGIC, lowest + RECORD_MAGIC_OFFSET, magic)
        return None

    def _damaged(self, file: str, offset: int | None, index: Index) -> StorageError:
        where = "the end" if offset is None else f"byte {offset}"
        return StorageError(f"entry {index} is missing or damaged at {where} of '{self.path / file}': {_LOOK}")

    def _unreadable(self, file: str, error: Exception) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return StorageError(f"'{self.path / file}' went away while it was being read: a node runs there; {_LOOK}")
        return StorageError(f"'{self.path / file}' cannot be read ({error}): {_LOOK}")


def open_stored_log(path: Path) -> StoredLog:
    """Look at the directory `path`; raises `StorageError` if there is no log of a server in it.

    A server that runs there may remove a segment or a snapshot between two glances: then it is looked at again.
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
            raise StorageError(f"the segments in '{path}' are of different storages: files were mixed; {_LOOK}")
        binding = header.binding
        segments.append(StoredSegment(name, header.previous, header.size_bytes))
    if binding is None:
        binding = _owner_of_snapshot(reader, files)
    if binding is None:
        raise StorageError(f"there is no log of a server in '{path}': name a node's state directory or a backup")
    snapshot, _ = stored_snapshot(reader, binding)
    return StoredLog(path, binding, tuple(segments), snapshot)


def _owner_of_snapshot(reader: ReadOnlyDirectory, files: list[str]) -> Binding | None:
    names = [file for file in files if file.endswith(SNAPSHOT_SUFFIX)]
    return snapshot_owner(reader, names[-1]) if names else None


def _read(file: BufferedReader, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
