"""The format of a snapshot on disk and between servers: the image.

    preface   4   CRC-32C of the rest up to the configuration's end
              8   magic "GFSNAPSH"
              2   version
              8   last included index
              8   last included term
              4   length of the configuration, then its bytes
    block     4   CRC-32C of the length and the data
              4   length, then that many bytes of the state machine         as many blocks as needed
    trailer   4   CRC-32C of the rest
              4   zero: no block has this length
              8   size of the image, the trailer included
              4   CRC-32C of everything before the trailer

Each block has a checksum. The trailer has the size and checksum of the whole image: only they detect a missing or
repeated block. The preface has the last included index and term, and the configuration in force there (Raft section 7).
`ImageReader` reads an image in chunks of any size, and holds at most one block and one chunk. It checks each length
before it waits for that many bytes. It raises only `RecordError`.
"""

import struct
from collections.abc import Iterator

from consensus.core.entry_data import EntryDataError, decode_configuration, encode_configuration
from consensus.core.model import Configuration, LogId, SnapshotDescription
from consensus.storage.checksum import crc32c
from consensus.storage.records import RecordError

BLOCK_LIMIT_BYTES = 1024 * 1024
_CONFIGURATION_LIMIT_BYTES = 1024 * 1024
_MAGIC = b"GFSNAPSH"
_VERSION = 1
_PREFACE = struct.Struct(">8sHQQI")
_CHECKSUM = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_END = struct.Struct(">IQI")
_HEAD_BYTES = _CHECKSUM.size + _LENGTH.size
_TRAILER_BYTES = _CHECKSUM.size + _END.size


def begins_image(data: bytes) -> bool:
    """Return True if `data` begins like an image. The first 12 bytes decide."""
    return data[_CHECKSUM.size :][: len(_MAGIC)] == _MAGIC


class CountedSnapshot:
    """A snapshot being made or read: the size and the checksum of its bytes so far."""

    def __init__(self, last: LogId, configuration: Configuration) -> None:
        self._last = last
        self._configuration = configuration
        self._size_bytes = 0
        self._checksum = 0

    @property
    def description(self) -> SnapshotDescription:
        """Return the description of the bytes so far."""
        return SnapshotDescription(self._last, self._configuration, self._size_bytes, self._checksum)

    def _count(self, data: bytes) -> bytes:
        self._size_bytes += len(data)
        self._checksum = crc32c(data, self._checksum)
        return data


class ImageWriter(CountedSnapshot):
    """Writer of an image in steps: `begin`, any number of `blocks`, `end`; then `description` is complete."""

    def begin(self) -> bytes:
        """Return the preface."""
        configuration = encode_configuration(self._configuration)
        body = _PREFACE.pack(_MAGIC, _VERSION, self._last.index, self._last.term, len(configuration)) + configuration
        return self._count(_CHECKSUM.pack(crc32c(body)) + body)

    def blocks(self, data: bytes) -> bytes:
        """Return `data` as blocks."""
        parts = []
        for start in range(0, len(data), BLOCK_LIMIT_BYTES):
            block = data[start : start + BLOCK_LIMIT_BYTES]
            body = _LENGTH.pack(len(block)) + block
            parts.append(_CHECKSUM.pack(crc32c(body)) + body)
        return self._count(b"".join(parts))

    def end(self) -> bytes:
        """Return the trailer."""
        body = _END.pack(0, self._size_bytes + _TRAILER_BYTES, self._checksum)
        trailer = _CHECKSUM.pack(crc32c(body)) + body
        self._size_bytes += len(trailer)
        return trailer


class ImageReader:
    """Reader of an image in chunks: `feed` yields the state machine's bytes, `finish` returns the description."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        self._size_bytes = 0
        self._checksum = 0
        self._last: LogId | None = None
        self._configuration: Configuration | None = None
        self._ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Process the next chunk; yield the data of each complete block. Raise `RecordError` at the first damage."""
        self._buffer, self._at = self._buffer[self._at :] + data, 0
        if self._last is None and not self._take_preface():
            return
        while (size := self._next_size()) and len(self._buffer) - self._at >= size:
            body = self._checked(size, "a block of the snapshot")
            if _LENGTH.unpack_from(body)[0]:
                yield body[_LENGTH.size :]
            else:
                self._take_trailer(body)

    def finish(self) -> SnapshotDescription:
        """Return the description after the last chunk; raise `RecordError` unless the image is complete."""
        if not self._ended or self._last is None or self._configuration is None:
            raise RecordError("the snapshot ends too early")
        return SnapshotDescription(self._last, self._configuration, self._size_bytes, self._checksum)

    def _next_size(self) -> int:
        """Return the size of the next block with its head; 0 until its head is complete."""
        left = len(self._buffer) - self._at
        if self._ended and left:
            raise RecordError("bytes trail the snapshot")
        if left < _HEAD_BYTES:
            return 0
        (length,) = _LENGTH.unpack_from(self._buffer, self._at + _CHECKSUM.size)
        if length > BLOCK_LIMIT_BYTES:
            raise RecordError(f"a block of the snapshot claims {length} bytes")
        return _HEAD_BYTES + int(length) if length else _TRAILER_BYTES

    def _take_preface(self) -> bool:
        head = _CHECKSUM.size + _PREFACE.size
        if len(self._buffer) < head:
            return False
        magic, version, index, term, length = _PREFACE.unpack_from(self._buffer, _CHECKSUM.size)
        if magic != _MAGIC:
            raise RecordError("no snapshot begins here")
        if version != _VERSION:
            raise RecordError(f"written by another version of this program (format {version}, not {_VERSION})")
        if length > _CONFIGURATION_LIMIT_BYTES:
            raise RecordError(f"the snapshot claims a configuration of {length} bytes")
        if len(self._buffer) < head + length:
            return False
        body = self._checked(head + length, "the beginning of the snapshot")
        try:
            self._configuration = decode_configuration(body[_PREFACE.size :])
        except EntryDataError as error:
            raise RecordError(str(error)) from error
        self._last = LogId(index, term)
        return True

    def _take_trailer(self, body: bytes) -> None:
        _, size, checksum = _END.unpack(body)
        before = self._size_bytes - _TRAILER_BYTES
        if size != self._size_bytes or checksum != self._checksum:
            raise RecordError(f"the snapshot as a whole does not match its trailer after {before} bytes")
        self._ended = True

    def _checked(self, size: int, what: str) -> bytes:
        """Consume `size` bytes; return them without their checksum, which must match."""
        block = self._buffer[self._at : self._at + size]
        self._at += size
        body = block[_CHECKSUM.size :]
        if crc32c(body) != _CHECKSUM.unpack_from(block)[0]:
            raise RecordError(f"the checksum of {what} does not match")
        self._size_bytes += size
        if size != _TRAILER_BYTES or _LENGTH.unpack_from(body)[0] != 0:
            self._checksum = crc32c(block, self._checksum)
        return body
