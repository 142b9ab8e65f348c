"""A log pack: a run of log entries, compressed, for a server that catches up.

    gzip( index size 4 │ log size 4 │ index: offset 8 each │ log: records )
    record = term 8 │ value type 1 (1 application, 2 configuration; 66 with the extension) │ value

A record does not contain its size: it ends at the next offset in the index. The index holds absolute offsets in a data
file. Our receiver subtracts the first offset from all. JRaft, the other existing implementation, appends the records to
its data file and the unchanged offsets to its index file. So the first offset of a pack for JRaft must be the present
size of its data file (`records_bytes` of all earlier packs). Records are not the wire form of log entries, although the
document (I2P proposal 150) suggests it.

Compression is DEFLATE at zlib's default level under a gzip header without time or name, which gives the same bytes as
JRaft. Inflating stops at a limit, for any announced size, which bounds the cost of a gzip bomb.
"""

import struct
import zlib
from collections.abc import Sequence

from consensus.core.model import Entry
from consensus.protocols.garlic_farm.wire.configuration import decode_configuration, encode_configuration
from consensus.protocols.garlic_farm.wire.errors import malformed, too_large
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS, MessageLimits
from consensus.protocols.garlic_farm.wire.values import (
    Configuration,
    LogEntry,
    LogPack,
    ValueType,
    WireEntry,
    checked_long,
)

_GZIP_HEAD = bytes.fromhex("1f8b08000000000000ff")
_GZIP_TAIL = struct.Struct("<II")
_SIZES = struct.Struct(">II")
_OFFSET = struct.Struct(">Q")
_RECORD_HEAD = struct.Struct(">QB")
_RAW_DEFLATE = -zlib.MAX_WBITS
_GZIP = zlib.MAX_WBITS | 16


def encode_log_pack(pack: LogPack, limits: MessageLimits = DEFAULT_LIMITS) -> bytes:
    """Return the compressed bytes of a log pack."""
    if len(pack.entries) > limits.entries:
        raise too_large(f"{len(pack.entries)} records in a log pack; the limit is {limits.entries}")
    records = [_encode_record(entry, limits) for entry in pack.entries]
    offset = checked_long(pack.first_offset, "first offset")
    index: list[bytes] = []
    for record in records:
        index.append(_OFFSET.pack(checked_long(offset, "record offset")))
        offset += len(record)
    log = b"".join(records)
    plain = b"".join((_SIZES.pack(_OFFSET.size * len(records), len(log)), *index, log))
    if len(plain) > limits.inflated_bytes:
        raise too_large(f"a log pack of {len(plain)} bytes; the limit is {limits.inflated_bytes}")
    compressor = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _RAW_DEFLATE)
    deflated = compressor.compress(plain) + compressor.flush()
    return b"".join((_GZIP_HEAD, deflated, _GZIP_TAIL.pack(zlib.crc32(plain), len(plain))))


def records_bytes(entries: Sequence[WireEntry], limits: MessageLimits = DEFAULT_LIMITS) -> int:
    """Return the number of bytes that the records of these entries add to a data file."""
    return sum(_RECORD_HEAD.size + len(_packed(entry, limits)[1]) for entry in entries)


def decode_log_pack(data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> LogPack:
    """Decode a log pack from exactly `data`."""
    plain = _inflate(data, limits)
    if len(plain) < _SIZES.size:
        raise malformed(f"a log pack of {len(plain)} bytes is shorter than its {_SIZES.size}-byte head")
    index_size, log_size = _SIZES.unpack_from(plain)
    if index_size % _OFFSET.size or _SIZES.size + index_size + log_size != len(plain):
        raise malformed(f"a log pack of {len(plain)} bytes announces {index_size} of index and {log_size} of log")
    if index_size // _OFFSET.size > limits.entries:
        raise too_large(f"{index_size // _OFFSET.size} records in a log pack; the limit is {limits.entries}")
    log_start = _SIZES.size + index_size
    offsets = [offset for (offset,) in _OFFSET.iter_unpack(plain[_SIZES.size : log_start])]
    if not offsets:
        if log_size:
            raise malformed("a log pack has log data and no index")
        return LogPack(0, ())
    first = checked_long(offsets[0], "first offset")
    ends = [*(checked_long(offset, "record offset") for offset in offsets[1:]), first + log_size]
    entries: list[WireEntry] = []
    for start, end in zip(offsets, ends, strict=True):
        if not first <= start <= end <= first + log_size:
            raise malformed(f"a record of a log pack is at {start} … {end}, outside {first} … {first + log_size}")
        entries.append(_decode_record(plain[log_start + start - first : log_start + end - first], limits))
    return LogPack(first, tuple(entries))


def _inflate(data: bytes, limits: MessageLimits) -> bytes:
    inflater = zlib.decompressobj(_GZIP)
    try:
        plain = inflater.decompress(data, limits.inflated_bytes + 1)
    except zlib.error as error:
        raise malformed(f"a log pack is not gzip: {error}") from error
    if len(plain) > limits.inflated_bytes:
        raise too_large(f"a log pack inflates to more than {limits.inflated_bytes} bytes")
    if not inflater.eof or inflater.unused_data:
        raise malformed("a log pack is not exactly one gzip member")
    return plain


def _packed(entry: WireEntry, limits: MessageLimits) -> tuple[ValueType, bytes]:
    if isinstance(entry, Entry):
        return ValueType.APPLICATION, entry.data
    if not isinstance(entry.value, Configuration):
        raise malformed(f"a log pack has a {type(entry.value).__name__}, which no log contains")
    kind = ValueType.EXTENDED_CONFIGURATION if entry.value.is_extended else ValueType.CONFIGURATION
    return kind, encode_configuration(entry.value, limits)


def _encode_record(entry: WireEntry, limits: MessageLimits) -> bytes:
    value_type, value = _packed(entry, limits)
    if len(value) > limits.entry_bytes:
        raise too_large(f"a log pack's record of {len(value)} bytes; the limit is {limits.entry_bytes}")
    return _RECORD_HEAD.pack(checked_long(entry.term, "record term"), value_type) + value


def _decode_record(record: bytes, limits: MessageLimits) -> WireEntry:
    if len(record) < _RECORD_HEAD.size:
        raise malformed(f"a log pack's record of {len(record)} bytes is shorter than its {_RECORD_HEAD.size}-byte head")
    term, value_type = _RECORD_HEAD.unpack_from(record)
    checked_long(term, "record term")
    value = record[_RECORD_HEAD.size :]
    if len(value) > limits.entry_bytes:
        raise too_large(f"a log pack's record of {len(value)} bytes; the limit is {limits.entry_bytes}")
    match value_type:
        case ValueType.APPLICATION:
            return Entry.command(term, value)
        case ValueType.CONFIGURATION | ValueType.EXTENDED_CONFIGURATION:
            configuration = decode_configuration(value, limits)
            if configuration.is_extended != (value_type == ValueType.EXTENDED_CONFIGURATION):
                raise malformed(f"a log pack has a configuration of the other form under value type {value_type}")
            return LogEntry(term, configuration)
        case _:
            raise malformed(f"a log pack's record has value type {value_type}, which no log contains")
