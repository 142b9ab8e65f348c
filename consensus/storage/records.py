"""The bytes of a log on disk: a segment's header, and one record for each group of entries.

A segment file is one header block followed by records without gaps, then zeros up to its end. The fields of both are
listed in docs/reference/storage.md, 'Bytes of a segment'; docs/explanation/storage.md has the reasons.

A *group* has the entries of one write, or a part of them. Its payload is their bytes as the leader encoded them
(`entry_data.encode_group`). So a follower writes the received bytes, with one checksum per group. A *cut* is a record
without payload after a group whose later part was truncated. It contains the first removed index.

Each record contains an index `durable`: the entries up to it were durable when the record was written. Recovery refuses
damage to these entries as rot, and does not cut it off as a torn tail.

Both checksums of a record start from a value derived from the ids of the node and of the storage. Decoders raise
`RecordError` and nothing else.
"""

import struct
from collections.abc import Callable, Iterator
from math import inf

from msgspec import Struct

from consensus.core.entry_data import ENTRY_HEAD, EntryDataError, decode_group
from consensus.core.features import COMMAND_LIMIT_BYTES
from consensus.core.model import Entry, Index, LogId, Term
from consensus.storage.checksum import crc32c

ENTRY_LIMIT_BYTES = COMMAND_LIMIT_BYTES + 64
"""Size limit of a command of any protocol with the head before it (`Features.max_command_bytes`)."""
GROUP_BYTES = 256 * 1024
"""Size limit of a group's payload, unless it is a single entry: reading one entry reads its whole group."""
SEGMENT_HEADER_BYTES = 4096
CHUNK_BYTES = 1024 * 1024
"""Bytes read from a file at a time."""
RECORD_MAGIC = b"\xe7\x9d"

_SEGMENT_MAGIC = b"GFARMLOG"
_SEGMENT_VERSION = 2
_SEGMENT = struct.Struct(">8sH8s16sQQQ")
_CHECKSUM = struct.Struct(">I")
_RECORD = struct.Struct(">II2sBBIIQQQ")
_RECORD_CHECKED = struct.Struct(">I2sBBIIQQQ")
PAYLOAD_LIMIT_BYTES = ENTRY_HEAD.size + ENTRY_LIMIT_BYTES

RECORD_HEADER_BYTES = _RECORD.size
RECORD_MAGIC_OFFSET = 8

GROUP = 1
CUT = 2
_NO_RECORD = bytes(RECORD_HEADER_BYTES)


OTHER_FORMAT = (
    "The storage is not damaged. Run the version that wrote it, or move the directory away and let the node join again"
    " as a new server, if the other servers have the log. A node of a farm can also take its state to this version:"
    " make a backup with that version (`garlicfarm backup`), and restore it into a new directory with this one"
    " (`garlicfarm restore`)"
)
"""The remedy for a `FormatError`."""


class RecordError(Exception):
    """Invalid bytes of a record; the text is the reason."""


class FormatError(RecordError):
    """These bytes were written by a version of this program with another format."""


class Binding(Struct, frozen=True):
    """The owner of stored bytes: the node, and its one storage."""

    node_id: bytes
    storage_id: bytes

    @property
    def seed(self) -> int:
        """Return the start value for the checksums of this storage's records."""
        return crc32c(self.node_id + self.storage_id)


class SegmentHeader(Struct, frozen=True):
    """The header of a segment, whose first index comes after `previous`."""

    binding: Binding
    previous: LogId
    size_bytes: int


class RecordHeader(Struct, frozen=True):
    """The header of a record. A cut does not have entries: `first` is the first index that it removes.

    All entries up to `durable` were durable when it was written.
    """

    kind: int
    count: int
    length_bytes: int
    payload_checksum: int
    first: Index
    previous_term: Term
    durable: Index

    @property
    def size_bytes(self) -> int:
        """Bytes that the whole record takes."""
        return RECORD_HEADER_BYTES + self.length_bytes


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return one header block."""
    body = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        _SEGMENT_VERSION,
        header.binding.node_id,
        header.binding.storage_id,
        header.previous.index + 1,
        header.previous.term,
        header.size_bytes,
    ).ljust(SEGMENT_HEADER_BYTES - _CHECKSUM.size, b"\0")
    return _CHECKSUM.pack(crc32c(body)) + body


def decode_segment_header(block: bytes) -> SegmentHeader:
    """Decode the result of `encode_segment_header`; raises `RecordError`."""
    if len(block) != SEGMENT_HEADER_BYTES:
        raise RecordError(f"the header block has {len(block)} bytes instead of {SEGMENT_HEADER_BYTES}")
    (checksum,) = _CHECKSUM.unpack_from(block)
    if crc32c(block[_CHECKSUM.size :]) != checksum:
        raise RecordError("the header's checksum does not match")
    magic, version, node_id, storage_id, first, term, size_bytes = _SEGMENT.unpack_from(block, _CHECKSUM.size)
    if magic != _SEGMENT_MAGIC:
        raise RecordError("not a log segment")
    if version != _SEGMENT_VERSION:
        raise FormatError(f"written by another version of this program (format {version}, not {_SEGMENT_VERSION})")
    if first == 0:
        raise RecordError("the header lacks the first index")
    return SegmentHeader(Binding(node_id, storage_id), LogId(first - 1, term), size_bytes)


def encode_record(
    seed: int, first: Index, previous_term: Term, durable: Index, count: int, payload: bytes | memoryview
) -> bytes:
    """Return the record of a group: `count` entries from index `first` on, whose bytes are `payload`.

    Raises `RecordError` if that is too much for one record.
    """
    if len(payload) > PAYLOAD_LIMIT_BYTES:
        raise RecordError(
            f"a group from entry {first} on has {len(payload)} bytes; at most {PAYLOAD_LIMIT_BYTES} can be stored"
        )
    return _encode_header(seed, GROUP, first, previous_term, durable, count, payload) + payload


def encode_cut(seed: int, first: Index, previous_term: Term, durable: Index) -> bytes:
    """Return the record that removes the entries from `first` on in the group before it."""
    return _encode_header(seed, CUT, first, previous_term, durable, 0, b"")


def _encode_header(
    seed: int, kind: int, first: Index, previous_term: Term, durable: Index, count: int, payload: bytes | memoryview
) -> bytes:
    checked = _RECORD_CHECKED.pack(
        crc32c(payload, seed), RECORD_MAGIC, kind, 0, len(payload), count, first, previous_term, durable
    )
    return _CHECKSUM.pack(crc32c(checked, seed)) + checked


def decode_record_header(seed: int, buffer: bytes, offset: int = 0) -> RecordHeader | None:
    """Return the header at `offset`; None for unused space (all zeros); raises `RecordError`."""
    end = offset + RECORD_HEADER_BYTES
    if offset < 0 or end > len(buffer):
        raise RecordError("the bytes end within a record's header")
    checksum, payload_checksum, magic, kind, zero, length_bytes, count, first, previous_term, durable = (
        _RECORD.unpack_from(buffer, offset)
    )
    if magic != RECORD_MAGIC or zero != 0:
        if buffer[offset:end] == _NO_RECORD:
            return None
        raise RecordError("no record begins here")
    if crc32c(buffer[offset + _CHECKSUM.size : end], seed) != checksum:
        raise RecordError("the checksum of a record's header does not match")
    if length_bytes > PAYLOAD_LIMIT_BYTES or count * ENTRY_HEAD.size > length_bytes:
        raise RecordError(f"a record claims {count} entries in {length_bytes} bytes")
    if (kind, count > 0, length_bytes > 0) not in ((GROUP, True, True), (CUT, False, False)):
        raise RecordError(f"a record of kind {kind} claims {count} entries in {length_bytes} bytes")
    return RecordHeader(kind, count, length_bytes, payload_checksum, first, previous_term, durable)


def check_payload(seed: int, header: RecordHeader, payload: bytes | memoryview) -> None:
    """Raise `RecordError` unless `payload` belongs to the header."""
    if len(payload) != header.length_bytes:
        raise RecordError("the bytes end within a record")
    if crc32c(payload, seed) != header.payload_checksum:
        raise RecordError(f"the checksum of the group from entry {header.first} on does not match")


def decode_payload(seed: int, header: RecordHeader, payload: bytes) -> tuple[Entry, ...]:
    """Return the entries of a group whose header is known; raises `RecordError`."""
    check_payload(seed, header, payload)
    try:
        entries = decode_group(payload)
    except EntryDataError as error:
        raise RecordError(f"the group from entry {header.first} on cannot be read: {error}") from error
    if len(entries) != header.count:
        raise RecordError(f"the group from entry {header.first} on has {len(entries)} entries, not {header.count}")
    return entries


def records_in(
    read: Callable[[int, int], bytes], seed: int, offset: int, end_bytes: float = inf
) -> Iterator[tuple[int, RecordHeader, memoryview]]:
    """Yield the valid records of one file from `offset` on, in order, up to the first invalid one.

    `read(offset, size)` returns `size` bytes from `offset` on, or fewer at the end of the file.
    """
    start, chunk = offset, b""
    view = memoryview(chunk)
    while offset + RECORD_HEADER_BYTES <= end_bytes:
        try:
            if offset - start + RECORD_HEADER_BYTES > len(chunk):
                start, chunk = offset, read(offset, CHUNK_BYTES)
                view = memoryview(chunk)
            header = decode_record_header(seed, chunk, offset - start)
            if header is None or offset + header.size_bytes > end_bytes:
                return
            if offset - start + header.size_bytes > len(chunk):
                start, chunk = offset, read(offset, max(CHUNK_BYTES, header.size_bytes))
                view = memoryview(chunk)
            payload = view[offset - start + RECORD_HEADER_BYTES : offset - start + header.size_bytes]
            check_payload(seed, header, payload)
        except RecordError:
            return
        yield offset, header, payload
        offset += header.size_bytes
