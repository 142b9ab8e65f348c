"""Snapshots on disk, as a planner: which files there are, and what to write so that a crash leaves one of them whole.

    taking       SnapshotWriter.plan(data) … plan_end()  ──▶  a `.new` file, written and synced piece by piece
    receiving    plan_chunk(chunk) …                      ──▶  a `.new` file, each piece synced before it is answered
    either       plan_adopt(snapshot, file)               ──▶  header, sync, rename, directory sync: it is stored

A snapshot's file is a header block, which says whose it is and what it should hold, and the image
(`consensus.storage.snapshot_image`). The header is written last. A file gets its name only when everything in it is
durable, so whatever is wrong with a named file has rotted, and is refused. The one before is removed afterwards; if a
crash comes first, the next start finds both and keeps the newer. Unfinished files are removed at the next start.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from consensus.core.effects import StoreChunk
from consensus.core.model import Configuration, LogId, SnapshotDescription
from consensus.storage.disk import (
    CreateFile,
    DamagedStorageError,
    DiskOperation,
    DiskReader,
    RemoveFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.journal import NEW_SUFFIX
from consensus.storage.records import Binding, RecordError
from consensus.storage.snapshot_image import ImageReader, ImageWriter

SNAPSHOT_SUFFIX = ".snapshot"
INCOMING = "received" + SNAPSHOT_SUFFIX + NEW_SUFFIX
HEADER_BYTES = 4096
PIECE_BYTES = 256 * 1024

_MAGIC = b"GFSNAPFL"
_VERSION = 1
_HEADER = struct.Struct(">8sH8s16sQQQI")
_CHECKSUM = struct.Struct(">I")


def snapshot_file(last: LogId) -> str:
    """The name of the snapshot of `last`; names sort like positions."""
    return f"{last.index:020d}-{last.term:020d}{SNAPSHOT_SUFFIX}"


def taking_file(last: LogId) -> str:
    """The name that the snapshot of `last` has while it is being written."""
    return snapshot_file(last) + NEW_SUFFIX


class SnapshotWriter:
    """Plans how the state machine's bytes become a file, as much at a time as the caller likes."""

    def __init__(self, last: LogId, configuration: Configuration) -> None:
        self.file = taking_file(last)
        self._image = ImageWriter(last, configuration)
        self._end_bytes = HEADER_BYTES

    @property
    def description(self) -> SnapshotDescription:
        """What was written, after `plan_end`."""
        return self._image.description

    def plan_begin(self) -> list[DiskOperation]:
        """An empty file, which grows."""
        return [CreateFile(self.file, 0), self._write(self._image.begin())]

    def plan(self, data: bytes) -> list[DiskOperation]:
        """Some more of the state."""
        return [self._write(self._image.blocks(data)), SyncFile(self.file)]

    def plan_end(self) -> list[DiskOperation]:
        """Everything is there."""
        return [self._write(self._image.end()), SyncFile(self.file)]

    def _write(self, data: bytes) -> WriteBytes:
        start_bytes, self._end_bytes = self._end_bytes, self._end_bytes + len(data)
        return WriteBytes(self.file, start_bytes, data)


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a piece of a stored image lies."""

    file: str
    offset_bytes: int
    length_bytes: int
    done: bool


class SnapshotFiles:
    """The stored snapshot, if there is one."""

    def __init__(self, binding: Binding, stored: SnapshotDescription | None) -> None:
        self._binding = binding
        self.stored = stored

    def plan_chunk(self, chunk: StoreChunk) -> list[DiskOperation]:
        """Keep a received piece."""
        begin: list[DiskOperation] = [] if chunk.offset else [CreateFile(INCOMING, 0)]
        return [*begin, WriteBytes(INCOMING, HEADER_BYTES + chunk.offset, chunk.data), SyncFile(INCOMING)]

    def plan_adopt(self, snapshot: SnapshotDescription, file: str) -> list[DiskOperation]:
        """What `file` holds becomes the stored snapshot."""
        header = _encode_header(self._binding, snapshot)
        self.stored = snapshot
        return [
            WriteBytes(file, 0, header),
            SyncFile(file),
            RenameFile(file, snapshot_file(snapshot.last)),
            SyncDirectory(),
        ]

    def piece(self, last: LogId, offset: int, limit_bytes: int) -> Piece | None:
        """Where to read the image of `last` from `offset` on; None if that is not the stored snapshot (any more)."""
        if self.stored is None or self.stored.last != last or offset > self.stored.size_bytes:
            return None
        length_bytes = min(limit_bytes, self.stored.size_bytes - offset)
        done = offset + length_bytes == self.stored.size_bytes
        return Piece(snapshot_file(last), HEADER_BYTES + offset, length_bytes, done)


def received_snapshot(reader: DiskReader) -> SnapshotDescription | None:
    """What the received pieces are together; None if they are damaged or no snapshot."""
    if INCOMING not in reader.files():
        return None
    try:
        return _read_image(reader, INCOMING)
    except RecordError:
        return None


def received_state(reader: DiskReader) -> Iterator[bytes]:
    """The state machine's bytes in the received pieces, which `received_snapshot` has found to be whole."""
    image = ImageReader()
    for piece in _pieces(reader, INCOMING):
        yield from image.feed(piece)


def stored_snapshot(reader: DiskReader, binding: Binding) -> tuple[SnapshotDescription | None, list[str]]:
    """The newest snapshot, checked whole, and the names of older ones; raises `DamagedStorageError`."""
    files = sorted(file for file in reader.files() if file.endswith(SNAPSHOT_SUFFIX))
    if not files:
        return None, []
    return _check_file(reader, files[-1], binding), files[:-1]


def _check_file(reader: DiskReader, file: str, binding: Binding) -> SnapshotDescription:
    again = (
        "Stop here is on purpose: the entries that it stands for are gone from this server's log. Move the directory "
        "away and let the node join again as a new server; the other servers give it what it lacks"
    )
    try:
        owner, last, size_bytes, checksum = _decode_header(reader.read(file, 0, HEADER_BYTES))
    except RecordError as error:
        raise DamagedStorageError(f"the snapshot '{file}' cannot be read: {error}. {again}") from error
    if owner != binding:
        raise DamagedStorageError(
            f"the snapshot '{file}' was written for another storage (node {owner.node_id.hex()}, storage "
            f"{owner.storage_id.hex()}): files of two directories were mixed. Put the right files back, or move the "
            "directory away and let the node join again as a new server"
        )
    try:
        found = _read_image(reader, file)
    except RecordError as error:
        raise DamagedStorageError(f"the snapshot '{file}' has rotted: {error}. {again}") from error
    if (found.last, found.size_bytes, found.checksum) != (last, size_bytes, checksum) or snapshot_file(last) != file:
        raise DamagedStorageError(
            f"the snapshot '{file}' is of index {found.last.index} and {found.size_bytes} bytes, but should be of "
            f"index {last.index} and {size_bytes} bytes: it was replaced or renamed. {again}"
        )
    return found


def _read_image(reader: DiskReader, file: str) -> SnapshotDescription:
    image = ImageReader()
    for piece in _pieces(reader, file):
        for _ in image.feed(piece):
            pass
    return image.finish()


def _pieces(reader: DiskReader, file: str) -> Iterator[bytes]:
    for offset_bytes in range(HEADER_BYTES, reader.size(file), PIECE_BYTES):
        yield reader.read(file, offset_bytes, PIECE_BYTES)


def _encode_header(binding: Binding, snapshot: SnapshotDescription) -> bytes:
    body = _HEADER.pack(
        _MAGIC,
        _VERSION,
        binding.node_id,
        binding.storage_id,
        snapshot.last.index,
        snapshot.last.term,
        snapshot.size_bytes,
        snapshot.checksum,
    ).ljust(HEADER_BYTES - _CHECKSUM.size, b"\0")
    return _CHECKSUM.pack(crc32c(body)) + body


def _decode_header(block: bytes) -> tuple[Binding, LogId, int, int]:
    if len(block) != HEADER_BYTES:
        raise RecordError(f"the header block has {len(block)} bytes instead of {HEADER_BYTES}")
    if crc32c(block[_CHECKSUM.size :]) != _CHECKSUM.unpack_from(block)[0]:
        raise RecordError("the header's checksum does not match")
    magic, version, node_id, storage_id, index, term, size_bytes, checksum = _HEADER.unpack_from(block, _CHECKSUM.size)
    if magic != _MAGIC:
        raise RecordError("not a snapshot")
    if version != _VERSION:
        raise RecordError(f"written by another version of this program (format {version}, not {_VERSION})")
    return Binding(node_id, storage_id), LogId(index, term), size_bytes, checksum


def snapshot_owner(reader: DiskReader, file: str) -> Binding:
    """Whose snapshot it is, by its header; raises `RecordError`."""
    return _decode_header(reader.read(file, 0, HEADER_BYTES))[0]


def plan_removal(files: list[str]) -> list[DiskOperation]:
    """Snapshots that a newer one replaces."""
    return [RemoveFile(file) for file in files]
