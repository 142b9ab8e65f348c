"""Record batches of Kafka's message format 2, read and written; older formats are refused.

    batch  = base offset 8 │ length 4 │ leader epoch 4 │ magic 1 (2) │ CRC32C 4 │ attributes 2
             │ last offset delta 4 │ first timestamp 8 │ highest timestamp 8 │ producer id 8 │ producer epoch 2
             │ base sequence 4 │ count 4 │ record …                      the records may be compressed together
    record = length │ attributes 1 (0) │ timestamp delta │ offset delta │ tail
    tail   = key length (-1: null) │ key │ value length │ value │ headers │ (name length │ name │ length │ value) …

Lengths and deltas in records are varints of Protocol Buffers, zigzag. The checksum covers the bytes after it, so a
leader sets the epoch and the base offset without a new checksum. Attributes: compression (bits 0 to 2), log append time
(3), transactional (4), control (5). The records of a batch are numbered without gaps: only Kafka's cleaner makes gaps.

A log stores tails unchanged (`entries`), so there are two layers. `decode_tails` and `encode_tails` do not build
records, but `decode_tails` checks each of them.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from consensus.protocols.kafka.wire.compression import decompress
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from consensus.storage.checksum import crc32c

BATCH_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
LENGTH_AND_BEFORE: Final = 12
_CHECKED_FROM: Final = 21
_MAGIC: Final = 2
_COMPRESSION_BITS: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_CHECKED: Final = struct.Struct(">hiqqqhii")
_BEFORE: Final = struct.Struct(">qiibI")
_VARINT_BITS: Final = 64
_MORE: Final = 0x80
"""The bit of a varint's byte that marks a further byte."""
_MAX_NUMBER: Final = 2**63 - 1


class BatchHead(Struct, frozen=True):
    """The head of a batch, before its records."""

    base_offset: int
    size_bytes: int
    """Size of the whole batch."""
    leader_epoch: int
    crc: int
    attributes: int
    count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def last_offset(self) -> int:
        """Return the offset of the batch's last record."""
        return self.base_offset + self.count - 1

    @property
    def is_control(self) -> bool:
        """Return True if the records of the batch belong to the protocol."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Return True if the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def log_append_time(self) -> bool:
        """Return True if all records of the batch have the highest timestamp."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def compression(self) -> Compression:
        """Return the compression of the batch's records."""
        return Compression(self.attributes & _COMPRESSION_BITS)


def batch_heads(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Iterator[tuple[int, BatchHead]]:
    """Yield offset and head of each whole batch; ignore a partial one at the end. Raises `KafkaWireError`."""
    at, end = 0, len(data)
    while end - at >= LENGTH_AND_BEFORE:
        (length,) = struct.unpack_from(">i", data, at + 8)
        size = LENGTH_AND_BEFORE + length
        if not BATCH_HEAD.size <= size <= limits.max_batch_bytes:
            raise KafkaWireError(f"a record batch announces {size} bytes, the limit is {limits.max_batch_bytes}")
        if end - at > LENGTH_AND_BEFORE + 4 and data[at + 16] != _MAGIC:
            raise KafkaWireError(f"a record batch has format {data[at + 16]}; only format 2 is read")
        if size > end - at:
            return
        yield at, _head(data, at, size, limits)
        at += size


def _head(data: bytes, at: int, size: int, limits: Limits) -> BatchHead:
    base, _, epoch, _, crc, attributes, last_delta, first, highest, producer, producer_epoch, sequence, count = (
        BATCH_HEAD.unpack_from(data, at)
    )
    if not 0 < count <= limits.max_batch_records or last_delta != count - 1:
        raise KafkaWireError(f"a record batch announces {count} records, with the last at {last_delta}")
    if not 0 <= base <= _MAX_NUMBER - count or epoch < -1:
        raise KafkaWireError(f"a record batch begins at offset {base} in epoch {epoch}")
    if attributes & _COMPRESSION_BITS > Compression.ZSTD:
        raise KafkaWireError(f"a record batch is compressed by method {attributes & _COMPRESSION_BITS}, unknown here")
    return BatchHead(base, size, epoch, crc, attributes, count, first, highest, producer, producer_epoch, sequence)


def decode_tails(data: bytes, at: int, head: BatchHead, limits: Limits = DEFAULT_LIMITS) -> list[tuple[int, bytes]]:
    """Return timestamp in ms and tail of each record of the batch at `at`; raises `KafkaWireError`."""
    end = at + head.size_bytes
    if crc32c(data[at + _CHECKED_FROM : end]) != head.crc:
        raise KafkaWireError(f"the record batch at offset {head.base_offset} does not match its checksum")
    compression = head.compression
    body = decompress(data[at + BATCH_HEAD.size : end], compression, limits.max_batch_bytes)
    try:
        tails, position = _split(body, head, limits)
    except IndexError as error:
        raise KafkaWireError("a record batch ends within a record") from error
    if position != len(body):
        raise KafkaWireError("bytes trail the records of a batch")
    if head.log_append_time:
        tails = [(head.max_timestamp_ms, tail) for _, tail in tails]
    times = [time for time, _ in tails]
    least, most = min(times), max(times)
    # A reply may begin a batch at any of these records, so the time between any two of them must fit into 64 bits.
    if least < -_MAX_NUMBER or most > _MAX_NUMBER or most - least > _MAX_NUMBER:
        raise KafkaWireError(f"the records of a batch have times from {least} to {most} ms")
    return tails


def _split(body: bytes, head: BatchHead, limits: Limits) -> tuple[list[tuple[int, bytes]], int]:
    """Split all records. Short fields are read in place, since a call would double the cost."""
    tails: list[tuple[int, bytes]] = []
    position, first, headers_left = 0, head.first_timestamp_ms, limits.max_batch_headers
    for index in range(head.count):
        length, position = read_varint(body, position)
        end = position + length
        if length <= 0 or end > len(body) or length > limits.max_record_bytes:
            raise KafkaWireError(f"a record announces {length} bytes")
        if body[position]:
            raise KafkaWireError(f"a record has the attributes {body[position]}; Kafka defines none")
        delta = body[position + 1]
        position += 2
        if delta < _MORE:
            delta = (delta >> 1) ^ -(delta & 1)
        else:
            delta, position = read_varint(body, position - 1)
        offset = body[position]
        position += 1
        if offset < _MORE:
            offset >>= 1
        else:
            offset, position = read_varint(body, position - 1)
        if offset != index:
            raise KafkaWireError(f"record {index} of a batch has the offset {offset}")
        tail = body[position:end]
        headers_left -= check_tail(tail, limits)
        if headers_left < 0:
            raise KafkaWireError(f"a record batch has more than {limits.max_batch_headers} headers")
        tails.append((first + delta, tail))
        position = end
    return tails, position


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and its end; raises `IndexError` at the end, `KafkaWireError` beyond 64 bits."""
    byte = data[at]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < _MORE:
            break
        shift += 7
        if shift >= _VARINT_BITS:
            raise KafkaWireError("a number in a record has more than 64 bits")
    if number >> _VARINT_BITS:
        raise KafkaWireError("a number in a record has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at + 1


def write_varint(number: int) -> bytes:
    """Return a number in zigzag form."""
    number = (number << 1) ^ (number >> 63)
    if number < _MORE:
        return _ONE_BYTE[number]
    parts = bytearray()
    while number >= _MORE:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_ONE_BYTE: Final = [bytes([number]) for number in range(128)]


def check_tail(tail: bytes, limits: Limits = DEFAULT_LIMITS) -> int:
    """Return the number of headers in a record's tail; raises `KafkaWireError` for other bytes."""
    try:
        length, at = read_varint(tail, 0)
        at += max(length, 0)
        value_length, at = read_varint(tail, at)
        at += max(value_length, 0)
        if length >= -1 <= value_length and tail[at:] == b"\x00":
            return 0
    except IndexError as error:
        raise KafkaWireError("a record ends within its key or value") from error
    return len(decode_tail(tail, limits)[2])


def decode_tail(
    tail: bytes, limits: Limits = DEFAULT_LIMITS
) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """Return key, value and headers of a record; raises `KafkaWireError`."""
    try:
        key, at = _field(tail, 0)
        value, at = _field(tail, at)
        count, at = read_varint(tail, at)
        if not 0 <= count <= limits.max_headers:
            raise KafkaWireError(f"a record announces {count} headers, the limit is {limits.max_headers}")
        headers = []
        for _ in range(count):
            name, at = _field(tail, at)
            header, at = _field(tail, at)
            if name is None:
                raise KafkaWireError("a header of a record lacks a name")
            headers.append((name.decode(), header))
    except (IndexError, UnicodeDecodeError) as error:
        raise KafkaWireError("a record is cut off, or the name of a header is not text") from error
    if at != len(tail):
        raise KafkaWireError("bytes trail a record")
    return key, value, tuple(headers)


def _field(tail: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(tail, at)
    if length < 0:
        if length != -1:
            raise KafkaWireError(f"a field of a record has the length {length}")
        return None, at
    end = at + length
    if end > len(tail):
        raise KafkaWireError("a record ends within a field")
    return tail[at:end], end


def encode_tail(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> bytes:
    """Encode the values that `decode_tail` returns."""
    parts = [*_field_parts(key), *_field_parts(value), write_varint(len(headers))]
    for name, header in headers:
        parts += (*_field_parts(name.encode()), *_field_parts(header))
    return b"".join(parts)


def _field_parts(field: bytes | None) -> tuple[bytes, bytes]:
    return (b"\x01", b"") if field is None else (write_varint(len(field)), field)


def encode_tails(
    base_offset: int,
    leader_epoch: int,
    tails: Sequence[tuple[int, bytes]],
    *,
    is_control: bool = False,
    is_transactional: bool = False,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return one batch of these timestamps in ms and tails; raises `KafkaWireError` for unsupported values."""
    if not tails:
        raise KafkaWireError("a record batch has at least one record")
    first = tails[0][0]
    parts: list[bytes] = []
    varint = write_varint
    for index, (timestamp, tail) in enumerate(tails):
        deltas = b"\x00" + varint(timestamp - first) + varint(index)
        parts += (varint(len(deltas) + len(tail)), deltas, tail)
    attributes = (_TRANSACTIONAL if is_transactional else 0) | (_CONTROL if is_control else 0)
    highest = max(tails)[0]
    count = len(tails)
    try:
        checked = _CHECKED.pack(attributes, count - 1, first, highest, *producer, count) + b"".join(parts)
        length = len(checked) + _CHECKED_FROM - LENGTH_AND_BEFORE
        return _BEFORE.pack(base_offset, length, leader_epoch, _MAGIC, crc32c(checked)) + checked
    except struct.error as error:
        raise KafkaWireError(f"a record batch at offset {base_offset} cannot be encoded: {error}") from error


def read_batches(data: bytes, limits: Limits = DEFAULT_LIMITS) -> list[RecordBatch]:
    """Return all whole batches; ignore a partial one at the end. Raises `KafkaWireError`."""
    return [_batch(data, at, head, limits) for at, head in batch_heads(data, limits)]


def _batch(data: bytes, at: int, head: BatchHead, limits: Limits) -> RecordBatch:
    return RecordBatch(
        head.base_offset,
        head.leader_epoch,
        tuple([Record(when, *decode_tail(tail, limits)) for when, tail in decode_tails(data, at, head, limits)]),
        is_control=head.is_control,
        is_transactional=head.is_transactional,
        compression=head.compression,
        log_append_time=head.log_append_time,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch,
        base_sequence=head.base_sequence,
    )
