"""The planner of snapshots on disk. After a crash at any point, the old or the new snapshot is complete.

    taking       SnapshotWriter.plan(data) … plan_end()  ──▶  a `.new` file, written and synced chunk by chunk
    receiving    plan_chunk(chunk) …                      ──▶  a `.new` file, each chunk synced before its reply
    both         plan_adopt(snapshot, file)               ──▶  header, sync, rename, directory sync: it is stored

A snapshot's file is a header block with its owner and its description, followed by the bytes in its form
(`consensus.storage.snapshot_form`). The header is written last. A file gets its name only when everything in it is
durable, so a fault in a named file is rot, and is refused. The previous snapshot is removed afterwards; if a crash
comes first, the next start finds both and keeps the newer. Unfinished files are removed at the next start.
"""

import struct
from collections.abc import Iterator

from msgspec import Struct

from consensus.core.effects import StoreChunk
from consensus.core.entry_data import EntryDataError, decode_configuration, encode_configuration
from consensus.core.model import Configuration, LogId, SnapshotDescription
from consensus.storage.checksum import crc32c
from consensus.storage.disk import (
    CreateFile,
    DamagedStorageError,
    DiskOperation,
    DiskReader,
    RemoveFile,
    RenameFile,
    StorageError,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.journal import NEW_SUFFIX
from consensus.storage.records import OTHER_FORMAT, Binding, FormatError, RecordError
from consensus.storage.snapshot_form import IMAGE, IMAGE_FORMAT, PLAIN, SnapshotForm, SnapshotReading
from consensus.storage.snapshot_image import ImageReader

SNAPSHOT_SUFFIX = ".snapshot"
INCOMING = "received" + SNAPSHOT_SUFFIX + NEW_SUFFIX
HEADER_BYTES = 4096
CHUNK_BYTES = 256 * 1024

_MAGIC = b"GFSNAPFL"
_FORMATS = range(IMAGE_FORMAT, 4)
"""Formats of files.

Except for an image, the configuration follows the bytes, and its length and checksum are in the header.
"""
_HEADER = struct.Struct(">8sH8s16sQQQI")
_CONFIGURATION = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")


def snapshot_file(last: LogId) -> str:
    """Return the name of the snapshot of `last`; names sort like positions."""
    return f"{last.index:020d}-{last.term:020d}{SNAPSHOT_SUFFIX}"


def taking_file(last: LogId) -> str:
    """Return the name of the snapshot of `last` while it is being written."""
    return snapshot_file(last) + NEW_SUFFIX


class SnapshotWriter:
    """The plan of a file with the state machine's bytes, which the caller adds in parts of any size."""

    def __init__(self, last: LogId, configuration: Configuration, form: SnapshotForm = IMAGE) -> None:
        self.file = taking_file(last)
        self._image = form.writing(last, configuration)
        self._end_bytes = HEADER_BYTES

    @property
    def description(self) -> SnapshotDescription:
        """Return the description of the written snapshot, after `plan_end`."""
        return self._image.description

    def plan_begin(self) -> list[DiskOperation]:
        """Create an empty file, which grows."""
        return [CreateFile(self.file, 0), self._write(self._image.begin())]

    def plan(self, data: bytes) -> list[DiskOperation]:
        """Append more of the state."""
        return [self._write(self._image.blocks(data)), SyncFile(self.file)]

    def plan_end(self) -> list[DiskOperation]:
        """Complete the file."""
        return [self._write(self._image.end()), SyncFile(self.file)]

    def _write(self, data: bytes) -> WriteBytes:
        start_bytes, self._end_bytes = self._end_bytes, self._end_bytes + len(data)
        return WriteBytes(self.file, start_bytes, data)


class ChunkExtent(Struct, frozen=True):
    """The place of a chunk of a stored snapshot."""

    file: str
    offset_bytes: int
    length_bytes: int
    done: bool


class SnapshotFiles:
    """The stored snapshot, if there is one."""

    def __init__(self, binding: Binding, stored: SnapshotDescription | None, form: SnapshotForm = IMAGE) -> None:
        self._binding = binding
        self.form = form
        self.stored = stored

    def plan_chunk(self, chunk: StoreChunk) -> list[DiskOperation]:
        """Store a received chunk."""
        begin: list[DiskOperation] = [] if chunk.offset else [CreateFile(INCOMING, 0)]
        return [*begin, WriteBytes(INCOMING, HEADER_BYTES + chunk.offset, chunk.data), SyncFile(INCOMING)]

    def plan_adopt(self, snapshot: SnapshotDescription, file: str) -> list[DiskOperation]:
        """Make the content of `file` the stored snapshot."""
        file_format = self.form.file_format
        configuration_bytes = None if file_format == IMAGE_FORMAT else encode_configuration(snapshot.configuration)
        self.stored = snapshot
        return [
            *(
                []
                if configuration_bytes is None
                else [WriteBytes(file, HEADER_BYTES + snapshot.size_bytes, configuration_bytes)]
            ),
            WriteBytes(file, 0, _encode_header(self._binding, snapshot, file_format, configuration_bytes)),
            SyncFile(file),
            RenameFile(file, snapshot_file(snapshot.last)),
            SyncDirectory(),
        ]

    def chunk_extent(self, last: LogId, offset: int, limit_bytes: int) -> ChunkExtent | None:
        """Return the place of the snapshot of `last` from `offset` on; None if another snapshot is stored now."""
        if self.stored is None or self.stored.last != last or offset > self.stored.size_bytes:
            return None
        length_bytes = min(limit_bytes, self.stored.size_bytes - offset)
        done = offset + length_bytes == self.stored.size_bytes
        return ChunkExtent(snapshot_file(last), HEADER_BYTES + offset, length_bytes, done)


def received_snapshot(reader: DiskReader, reading: SnapshotReading) -> SnapshotDescription | None:
    """Return the description of the received chunks; None if they are damaged or not a snapshot."""
    if INCOMING not in reader.files():
        return None
    try:
        return _read_image(reader, INCOMING, reading, reader.size(INCOMING))
    except RecordError:
        return None


def received_state(reader: DiskReader, reading: SnapshotReading) -> Iterator[bytes]:
    """Yield the state machine's bytes in the received chunks, which `received_snapshot` has found complete."""
    for chunk in _chunks(reader, INCOMING, reader.size(INCOMING)):
        yield from reading.feed(chunk)


def stored_snapshot(
    reader: DiskReader, binding: Binding, form: SnapshotForm | None = None
) -> tuple[SnapshotDescription | None, list[str]]:
    """Return the newest snapshot, completely checked, and the names of older ones; raises `DamagedStorageError`.

    With `form`, the snapshot must have this form.
    """
    files = sorted(file for file in reader.files() if file.endswith(SNAPSHOT_SUFFIX))
    if not files:
        return None, []
    return _check_file(reader, files[-1], binding, form), files[:-1]


def _check_file(reader: DiskReader, file: str, binding: Binding, form: SnapshotForm | None) -> SnapshotDescription:
    remedy = (
        "The server stops here on purpose: the log no longer contains the entries of the snapshot. Move the directory"
        " away and let the node join again as a new server; the other servers send it the entries"
    )
    try:
        block = reader.read(file, 0, HEADER_BYTES)
        owner, last, size_bytes, checksum, file_format = _decode_header(block)
    except FormatError as error:
        raise StorageError(f"the snapshot '{file}' cannot be read: {error}. {OTHER_FORMAT}") from error
    except RecordError as error:
        raise DamagedStorageError(f"the snapshot '{file}' cannot be read: {error}. {remedy}") from error
    if owner != binding:
        raise DamagedStorageError(
            f"the snapshot '{file}' was written for another storage (node {owner.node_id.hex()}, storage"
            f" {owner.storage_id.hex()}): files of two directories were mixed. Restore the right files, or move the"
            " directory away and let the node join again as a new server"
        )
    if form is not None and file_format != form.file_format:
        raise DamagedStorageError(f"the snapshot '{file}' was written by a server of another protocol. {remedy}")
    try:
        if file_format == IMAGE_FORMAT:
            found = _read_image(reader, file, ImageReader(), reader.size(file))
        else:
            found = _read_with_configuration(reader, file, block, last, size_bytes)
    except RecordError as error:
        raise DamagedStorageError(f"the snapshot '{file}' has rotted: {error}. {remedy}") from error
    if (found.last, found.size_bytes, found.checksum) != (last, size_bytes, checksum) or snapshot_file(last) != file:
        raise DamagedStorageError(
            f"the snapshot '{file}' has index {found.last.index} and {found.size_bytes} bytes, but should have index"
            f" {last.index} and {size_bytes} bytes: it was replaced or renamed. {remedy}"
        )
    return found


def _read_with_configuration(
    reader: DiskReader, file: str, block: bytes, last: LogId, size_bytes: int
) -> SnapshotDescription:
    length, checksum = _CONFIGURATION.unpack_from(block, _CHECKSUM.size + _HEADER.size)
    end_bytes = HEADER_BYTES + size_bytes
    if reader.size(file) != end_bytes + length:
        raise RecordError("the size of the file does not match its header")
    configuration_bytes = reader.read(file, end_bytes, length)
    if crc32c(configuration_bytes) != checksum:
        raise RecordError("the checksum of the configuration does not match")
    try:
        configuration = decode_configuration(configuration_bytes)
    except EntryDataError as error:
        raise RecordError(str(error)) from error
    return _read_image(reader, file, PLAIN.reading(last, configuration), end_bytes)


def _read_image(reader: DiskReader, file: str, reading: SnapshotReading, end_bytes: int) -> SnapshotDescription:
    for chunk in _chunks(reader, file, end_bytes):
        for _ in reading.feed(chunk):
            pass
    return reading.finish()


def _chunks(reader: DiskReader, file: str, end_bytes: int) -> Iterator[bytes]:
    for offset_bytes in range(HEADER_BYTES, end_bytes, CHUNK_BYTES):
        yield reader.read(file, offset_bytes, min(CHUNK_BYTES, end_bytes - offset_bytes))


def _encode_header(
    binding: Binding, snapshot: SnapshotDescription, file_format: int, configuration_bytes: bytes | None
) -> bytes:
    body = _HEADER.pack(
        _MAGIC,
        file_format,
        binding.node_id,
        binding.storage_id,
        snapshot.last.index,
        snapshot.last.term,
        snapshot.size_bytes,
        snapshot.checksum,
    )
    if configuration_bytes is not None:
        body += _CONFIGURATION.pack(len(configuration_bytes), crc32c(configuration_bytes))
    body = body.ljust(HEADER_BYTES - _CHECKSUM.size, b"\0")
    return _CHECKSUM.pack(crc32c(body)) + body


def _decode_header(block: bytes) -> tuple[Binding, LogId, int, int, int]:
    if len(block) != HEADER_BYTES:
        raise RecordError(f"the header block has {len(block)} bytes instead of {HEADER_BYTES}")
    if crc32c(block[_CHECKSUM.size :]) != _CHECKSUM.unpack_from(block)[0]:
        raise RecordError("the header's checksum does not match")
    magic, file_format, node_id, storage_id, index, term, size_bytes, checksum = _HEADER.unpack_from(
        block, _CHECKSUM.size
    )
    if magic != _MAGIC:
        raise RecordError("not a snapshot")
    if file_format not in _FORMATS:
        known = f"{_FORMATS[0]} to {_FORMATS[-1]}"
        raise FormatError(f"written by another version of this program (format {file_format}, not one of {known})")
    return Binding(node_id, storage_id), LogId(index, term), size_bytes, checksum, file_format


def snapshot_owner(reader: DiskReader, file: str) -> Binding:
    """Return the owner of the snapshot by its header; raises `RecordError`."""
    return _decode_header(reader.read(file, 0, HEADER_BYTES))[0]


def plan_removal(files: list[str]) -> list[DiskOperation]:
    """Remove snapshots that a newer one replaces."""
    return [RemoveFile(file) for file in files]
