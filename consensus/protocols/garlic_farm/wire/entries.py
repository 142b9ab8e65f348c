"""Log entries as bytes.

    entry = term 8 │ value type 1 │ size 4 │ value

For an application, the core and the journal keep entries in the same form (`entry_data.encode_group`): received entries
are stored unchanged. A decoder must use every byte of a value. A request carries one log pack at most: each may inflate
to `MessageLimits.inflated_bytes`, and a request has room for hundreds. A snapshot chunk is

    last index 8 │ last term 8 │ length 4 │ configuration │ offset 8 │ length 4 │ data │ done 1
"""

import struct
from collections.abc import Sequence
from typing import assert_never

from consensus.core.entry_data import ENTRY_HEAD
from consensus.core.model import COMMAND, Entry
from consensus.protocols.garlic_farm.wire.configuration import (
    decode_cluster_server,
    decode_configuration,
    encode_cluster_server,
    encode_configuration,
)
from consensus.protocols.garlic_farm.wire.errors import malformed, too_large
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS, LONG_MAX, MessageLimits
from consensus.protocols.garlic_farm.wire.log_pack import decode_log_pack, encode_log_pack
from consensus.protocols.garlic_farm.wire.values import (
    ClusterServer,
    Configuration,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
    Value,
    ValueType,
    WireEntry,
    checked_long,
)

# Nearly all entries are an application's. So both directions check this type first, as a plain number.
APPLICATION = int(ValueType.APPLICATION)
LOG_PACK = int(ValueType.LOG_PACK)
_TWO_LONGS = struct.Struct(">QQ")
_LENGTH = struct.Struct(">I")
_OFFSET_AND_LENGTH = struct.Struct(">QI")


def encode_entries(entries: Sequence[WireEntry], limits: MessageLimits = DEFAULT_LIMITS) -> bytes:
    """Return the log entries of a request, in order."""
    if len(entries) > limits.entries:
        raise too_large(f"{len(entries)} log entries in one request; the limit is {limits.entries}")
    parts: list[bytes] = []
    for entry in entries:
        if isinstance(entry, Entry):
            value_type, value = APPLICATION, entry.data
        else:
            value_type, value = encode_value(entry.value, limits)
        if len(value) > limits.entry_bytes:
            raise too_large(f"a log entry of {len(value)} bytes; the limit is {limits.entry_bytes}")
        parts += (ENTRY_HEAD.pack(checked_long(entry.term, "entry term"), value_type, len(value)), value)
    encoded = b"".join(parts)
    if len(encoded) > limits.log_bytes:
        raise too_large(f"log entries of {len(encoded)} bytes in one request; the limit is {limits.log_bytes}")
    return encoded


def decode_entries(data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> tuple[WireEntry, ...]:
    """Return the log entries of a request; `data` must end with the last of them."""
    entries: list[WireEntry] = []
    at, end, head_bytes, unpack = 0, len(data), ENTRY_HEAD.size, ENTRY_HEAD.unpack_from
    largest, most = limits.entry_bytes, limits.entries
    while at < end:
        if len(entries) == most:
            raise too_large(f"more than {most} log entries in one request")
        begin = at + head_bytes
        if begin > end:
            raise malformed(f"{end - at} bytes left for the {head_bytes}-byte head of a log entry")
        term, value_type, size = unpack(data, at)
        at = begin + size
        if size > largest:
            raise too_large(f"a log entry announces {size} bytes; the limit is {largest}")
        if at > end:
            raise malformed(f"a log entry announces {size} bytes where {end - begin} are left")
        if term > LONG_MAX:
            checked_long(term, "entry term")
        if value_type == APPLICATION:
            entries.append(Entry(term, COMMAND, data[begin:at]))
        else:
            if value_type == LOG_PACK and any(isinstance(_value(entry), LogPack) for entry in entries):
                raise malformed("a request has more than one log pack")
            entries.append(LogEntry(term, decode_value(value_type, data[begin:at], limits)))
    return tuple(entries)


def _value(entry: WireEntry) -> Value | None:
    return None if isinstance(entry, Entry) else entry.value


def encode_value(value: Value, limits: MessageLimits = DEFAULT_LIMITS) -> tuple[ValueType, bytes]:
    """Return a value's type byte and its bytes."""
    match value:
        case Configuration():
            kind = ValueType.EXTENDED_CONFIGURATION if value.is_extended else ValueType.CONFIGURATION
            return kind, encode_configuration(value, limits)
        case ClusterServer():
            return ValueType.CLUSTER_SERVER, encode_cluster_server(value, limits)
        case LogPack():
            return ValueType.LOG_PACK, encode_log_pack(value, limits)
        case SnapshotSyncRequest():
            return ValueType.SNAPSHOT_SYNC_REQUEST, _encode_snapshot_chunk(value, limits)
        case _:
            assert_never(value)


def decode_value(value_type: int, data: bytes, limits: MessageLimits = DEFAULT_LIMITS) -> Value:
    """Decode a value from exactly `data`."""
    match value_type:
        case ValueType.CONFIGURATION | ValueType.EXTENDED_CONFIGURATION:
            configuration = decode_configuration(data, limits)
            if configuration.is_extended != (value_type == ValueType.EXTENDED_CONFIGURATION):
                raise malformed(f"a configuration of the other form under log value type {value_type}")
            return configuration
        case ValueType.CLUSTER_SERVER:
            return decode_cluster_server(data, limits)
        case ValueType.LOG_PACK:
            return decode_log_pack(data, limits)
        case ValueType.SNAPSHOT_SYNC_REQUEST:
            return _decode_snapshot_chunk(data, limits)
        case _:
            raise malformed(f"log value type {value_type} is unknown")


def _encode_snapshot_chunk(chunk: SnapshotSyncRequest, limits: MessageLimits) -> bytes:
    configuration = encode_configuration(chunk.configuration, limits)
    return b"".join(
        (
            _TWO_LONGS.pack(
                checked_long(chunk.last_log_index, "snapshot last log index"),
                checked_long(chunk.last_log_term, "snapshot last log term"),
            ),
            _LENGTH.pack(len(configuration)),
            configuration,
            _OFFSET_AND_LENGTH.pack(checked_long(chunk.offset, "snapshot offset"), len(chunk.data)),
            chunk.data,
            bytes((chunk.done,)),
        )
    )


def _decode_snapshot_chunk(data: bytes, limits: MessageLimits) -> SnapshotSyncRequest:
    try:
        last_log_index, last_log_term = _TWO_LONGS.unpack_from(data)
        (configuration_length,) = _LENGTH.unpack_from(data, _TWO_LONGS.size)
        at = _TWO_LONGS.size + _LENGTH.size
        configuration = data[at : at + configuration_length]
        at += configuration_length
        offset, data_length = _OFFSET_AND_LENGTH.unpack_from(data, at)
        at += _OFFSET_AND_LENGTH.size
    except struct.error as error:
        raise malformed("a snapshot chunk ends inside its head") from error
    if len(data) - at != data_length + 1:
        raise malformed(f"a snapshot chunk announces {data_length} bytes and a flag where {len(data) - at} are left")
    if data[-1] > 1:
        raise malformed(f"a snapshot chunk's done flag is {data[-1]}, neither 0 nor 1")
    return SnapshotSyncRequest(
        checked_long(last_log_index, "snapshot last log index"),
        checked_long(last_log_term, "snapshot last log term"),
        decode_configuration(configuration, limits),
        checked_long(offset, "snapshot offset"),
        data[at:-1],
        done=data[-1] == 1,
    )
