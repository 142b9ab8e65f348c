"""The four compressions of Kafka's record batches, only read, with a bound on the decompressed size.

    gzip      one or more members (RFC 1952)
    snappy    xerial's framing: magic of 8 bytes │ version 4 │ compatible 4 │ (length 4 │ raw block) …
              or one raw block   (from librdkafka and others)
    lz4       one or more frames
    zstd      one or more frames

A declared length never causes an allocation before it is checked. Gzip is read up to the bound. Snappy declares its
length; it must not exceed the possible growth of its bytes. LZ4 and zstd write into a memory map of the bound's size,
whose pages exist only when they are written. A `bytearray` would be filled with zeros first. Data beyond the bound are
refused. More members or blocks than any producer writes are also refused, because an empty one takes only a few bytes.

cramjam is loaded with the first compressed batch.
"""

import struct
import zlib
from mmap import mmap
from typing import Any, Final, assert_never

from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.records import Compression

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">I")
_GZIP_WINDOW: Final = 31
_MAX_MEMBERS: Final = 64
"""Limit of gzip members; producers write one. The data after a member are copied."""
_MIN_BLOCK_BYTES: Final = 1024
"""Least average size of snappy blocks; Java writes blocks of 32 KiB, and its smallest setting is this size."""
_FREE_BLOCKS: Final = 16
_MAX_SNAPPY_GROWTH: Final = 22
"""Maximum growth of a byte of snappy: three bytes copy at most 64."""


def decompress(data: bytes, compression: Compression, max_bytes: int) -> bytes:
    """Return the records of a batch; raises `KafkaWireError`, also if they would be longer than `max_bytes`."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _gunzip(data, max_bytes)
        case Compression.SNAPPY:
            return _unsnappy(data, max_bytes)
        case Compression.LZ4:
            return _into_buffer(_cramjam().lz4.decompress_into, data, max_bytes, "LZ4")
        case Compression.ZSTD:
            return _into_buffer(_cramjam().zstd.decompress_into, data, max_bytes, "zstd")
        case _:
            assert_never(compression)


def _cramjam() -> Any:
    import cramjam  # noqa: PLC0415 - most logs are not compressed

    return cramjam


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = max_bytes
    try:
        while data:
            if len(parts) == _MAX_MEMBERS:
                raise KafkaWireError(f"the gzip data of a batch have more than {_MAX_MEMBERS} members")
            reader = zlib.decompressobj(wbits=_GZIP_WINDOW)
            part = reader.decompress(data, left + 1)
            left -= len(part)
            if left < 0:
                raise _too_long("gzip", max_bytes)
            if not reader.eof:
                raise KafkaWireError("the gzip data of a batch are cut off")
            parts.append(part)
            data = reader.unused_data
    except zlib.error as error:
        raise KafkaWireError(f"the gzip data of a batch are damaged: {error}") from error
    return b"".join(parts)


def _unsnappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, max_bytes)
    parts: list[bytes] = []
    at, left = _XERIAL_HEAD_BYTES, max_bytes
    max_blocks = _FREE_BLOCKS + max_bytes // _MIN_BLOCK_BYTES
    if len(data) < at:
        raise KafkaWireError("the snappy data of a batch end within their head")
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            raise KafkaWireError("the snappy data of a batch end within a block's length")
        if len(parts) == max_blocks:
            raise KafkaWireError(f"the snappy data of a batch have more than {max_blocks} blocks")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise KafkaWireError("the snappy data of a batch end within a block")
        parts.append(_unsnappy_block(data[at : at + length], left))
        left -= len(parts[-1])
        at += length
    return b"".join(parts)


def _unsnappy_block(data: bytes, max_bytes: int) -> bytes:
    """Decompress a snappy block; its declared length is checked before any allocation."""
    cramjam = _cramjam()
    try:
        length = cramjam.snappy.decompress_raw_len(data)
        if length > max_bytes:
            raise _too_long("snappy", max_bytes)
        if length > _MAX_SNAPPY_GROWTH * len(data):
            raise KafkaWireError(f"a snappy block of {len(data)} bytes has the announced length {length}")
        buffer = bytearray(length)
        written = cramjam.snappy.decompress_raw_into(data, buffer)
    except cramjam.DecompressionError as error:
        raise KafkaWireError(f"the snappy data of a batch are damaged: {error}") from error
    if written != length:
        raise KafkaWireError("a snappy block of a batch does not have its announced length")
    return bytes(buffer)


def _into_buffer(decompress_into: Any, data: bytes, max_bytes: int, name: str) -> bytes:
    with mmap(-1, max_bytes + 1) as buffer:
        try:
            written = decompress_into(data, buffer)
        except _cramjam().DecompressionError as error:
            reason = f"the {name} data of a batch are damaged, or more than {max_bytes} bytes: {error}"
            raise KafkaWireError(reason) from error
        if written > max_bytes:
            raise _too_long(name, max_bytes)
        return buffer[:written]


def _too_long(name: str, max_bytes: int) -> KafkaWireError:
    return KafkaWireError(f"the {name} data of a batch would be more than {max_bytes} bytes")
