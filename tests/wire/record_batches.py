"""Whole record batches of Kafka as bytes, and back; servers write batches by `encode_tails`, without compression."""

import gzip
import struct
from collections.abc import Iterator
from typing import assert_never

import cramjam

from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError, Limits
from consensus.protocols.kafka.wire.record_batches import (
    BATCH_HEAD,
    batch_heads,
    encode_tail,
    encode_tails,
    read_batches,
)
from consensus.protocols.kafka.wire.records import Compression, RecordBatch
from consensus.storage.checksum import crc32c

_ATTRIBUTES = struct.Struct(">h")
_LOG_APPEND_TIME = 0x08
_CHECKED_FROM = 21
"""Start of the attributes: the checksum covers the bytes from here on."""
_BLOCK_BYTES = 32 * 1024


def encode_batch(batch: RecordBatch) -> bytes:
    """Return the bytes of a batch; raises `KafkaWireError` for unsupported values."""
    plain = encode_tails(
        batch.base_offset,
        batch.leader_epoch,
        [(each.timestamp_ms, encode_tail(each.key, each.value, each.headers)) for each in batch.records],
        is_control=batch.is_control,
        is_transactional=batch.is_transactional,
        producer=(batch.producer_id, batch.producer_epoch, batch.base_sequence),
    )
    (attributes,) = _ATTRIBUTES.unpack_from(plain, _CHECKED_FROM)
    attributes |= batch.compression | (_LOG_APPEND_TIME if batch.log_append_time else 0)
    records = compress(plain[BATCH_HEAD.size :], batch.compression)
    checked = _ATTRIBUTES.pack(attributes) + plain[_CHECKED_FROM + _ATTRIBUTES.size : BATCH_HEAD.size] + records
    length, crc = struct.pack(">i", len(checked) + 9), struct.pack(">I", crc32c(checked))
    return plain[:8] + length + plain[12:17] + crc + checked


def compress(data: bytes, compression: Compression) -> bytes:
    """Return the bytes of a batch's records as a producer compresses them; snappy in xerial's framing, as in Java."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return gzip.compress(data, mtime=0)
        case Compression.SNAPPY:
            return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(_snappy_blocks(data))
        case Compression.LZ4:
            return bytes(cramjam.lz4.compress(data))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data))
        case _:
            assert_never(compression)


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _BLOCK_BYTES]))
        yield struct.pack(">I", len(block)) + block


def decode_batch(data: bytes, limits: Limits = DEFAULT_LIMITS) -> RecordBatch:
    """Decode exactly one batch; raises `KafkaWireError`."""
    if [head.size_bytes for _, head in batch_heads(data, limits)] != [len(data)]:
        raise KafkaWireError("not exactly one record batch")
    return read_batches(data, limits)[0]
