"""The bytes of one region of the history file: a header, then records without gaps (`docs/reference/history.md`).

    header   4 CRC-32 of the other 24 bytes │ 8 "GFARMHIS" │ 2 version │ 2 zero │ 8 sequence │ 4 zero
    record   4 CRC-32 of the rest, started with the sequence │ 2 length of the rest, without itself │ 1 kind │ payload
    end      6 zero bytes, or the end of the region

The checksum of a record starts with the region's sequence number, so a record of the region's earlier use is not valid
now. A record that is incomplete, damaged or impossible ends the region: later records could depend on it.

The only error is `RegionError`. Every number of a record is checked, and a record cannot refer to an unknown row.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import Struct, field

from bridge.core.history.records import (
    LATEST_MS,
    MINUTE_MS,
    NAME_LIMIT_BYTES,
    SERIES_MAX,
    SEVERITIES,
    TEXT_LIMIT_BYTES,
    Break,
    BreakCause,
    Record,
    Row,
    RowKind,
    Sample,
    SeriesKind,
    State,
    StateRecord,
    cut,
)

MAGIC: Final = b"GFARMHIS"
VERSION: Final = 1
HEADER: Final = struct.Struct(">I8sHHQI")
HEADER_BYTES: Final = HEADER.size
END: Final = bytes(6)
_HEAD: Final = struct.Struct(">IH")
_ROW, _STATE, _ENDED, _SAMPLE, _BREAK = range(1, 6)
_ROW_FIELDS: Final = struct.Struct(">BHB")
_STATE_FIELDS: Final = struct.Struct(">BQHB")
_ENDED_FIELDS: Final = struct.Struct(">BQH")
_SAMPLE_FIELDS: Final = struct.Struct(">BQIH")
_VALUE: Final = struct.Struct(">1H1e")
_BREAK_FIELDS: Final = struct.Struct(">BQBQ")
_ABSENT: Final = 255
"""Length of a missing name."""
VALUE_MAX: Final = 65_504.0
"""The largest number of binary16."""
NUMBERS_MAX: Final = 2**16
KINDS: Final[dict[int, RowKind | SeriesKind]] = {
    1: RowKind.VERDICT,
    2: RowKind.LEADER,
    3: RowKind.PUBLISHER,
    4: RowKind.ALARM,
    5: RowKind.NODE,
    6: RowKind.LEAF,
    64: SeriesKind.ROUND_TRIP,
    65: SeriesKind.COMMIT_LAG,
    66: SeriesKind.FOLLOWER_LAG,
}
CAUSES: Final = {1: BreakCause.START, 2: BreakCause.CLOCK_BACK, 3: BreakCause.PAUSE}
_BYTE_OF: Final[dict[RowKind | SeriesKind | BreakCause, int]] = {
    each: byte for table in (KINDS, CAUSES) for byte, each in table.items()
}


class RegionError(ValueError):
    """The bytes are not a region of a history."""


class Region(Struct):
    """The readable content of a region."""

    sequence: int
    """Number of the region since the file was made, from 1 on."""
    records: list[Record] = field(default_factory=list)
    numbers: dict[Row, int] = field(default_factory=dict)
    """Number of each row that the region defines."""
    end: int = HEADER_BYTES
    """Bytes up to the end of the last valid record."""
    is_cut: bool = False
    """True if an invalid record follows."""


def encode_header(sequence: int) -> bytes:
    """Return the header of a region."""
    header = HEADER.pack(0, MAGIC, VERSION, 0, sequence, 0)
    return crc32(header[4:]).to_bytes(4, "big") + header[4:]


def encode_row(sequence: int, number: int, row: Row) -> bytes:
    """Return the record that gives a row its number within the region."""
    fields = _ROW_FIELDS.pack(_ROW, number, _BYTE_OF[row.kind])
    return _record(sequence, fields + _name_bytes(row.name) + _name_bytes(row.owner))


def encode_record(sequence: int, record: Record, numbers: dict[Row, int]) -> bytes:
    """Return the bytes of a record; `numbers` has its rows."""
    match record:
        case StateRecord(time_ms, row, state):
            if state is None:
                return _record(sequence, _ENDED_FIELDS.pack(_ENDED, time_ms, numbers[row]))
            fields = _STATE_FIELDS.pack(_STATE, time_ms, numbers[row], state.severity)
            return _record(sequence, fields + _text_bytes(state.text, TEXT_LIMIT_BYTES))
        case Sample(time_ms, minute, values):
            fields = _SAMPLE_FIELDS.pack(_SAMPLE, time_ms, minute, len(values))
            return _record(
                sequence, fields + b"".join(_VALUE.pack(numbers[row], _bounded(each)) for row, each in values)
            )
        case Break(time_ms, cause, last_ms):
            return _record(sequence, _BREAK_FIELDS.pack(_BREAK, time_ms, _BYTE_OF[cause], last_ms))


def stored(row: Row) -> Row:
    """Return the row in its stored form, with a long name cut."""
    name, owner = (None if each is None else _text_bytes(each, NAME_LIMIT_BYTES).decode() for each in row[1:])
    return Row(row.kind, name, owner)


def sequence_of(data: bytes) -> int:
    """Return the sequence number in a region's header; raise `RegionError` if it is not one."""
    if len(data) < HEADER_BYTES:
        raise RegionError(f"{len(data)} bytes, less than a header")
    checksum, magic, version, zero, sequence, other = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise RegionError("it does not begin with the mark of a history")
    if checksum != crc32(data[4:HEADER_BYTES]):
        raise RegionError("the header is damaged")
    if version != VERSION or zero or other or not 0 < sequence < 2**63:
        raise RegionError(f"it has version {version}, this program reads version {VERSION}")
    return int(sequence)


def decode_region(data: bytes) -> Region:
    """Return the content of a region up to its first invalid record; raise `RegionError` without a header."""
    region = Region(sequence_of(data))
    rows = _Rows({}, {})
    while data[region.end : region.end + len(END)].strip(b"\0"):
        try:
            rest = _rest_of(data, region.end, region.sequence)
            record = _decode(rest, rows)
        except (RegionError, struct.error, KeyError, UnicodeDecodeError):
            region.is_cut = True
            break
        if record is not None:
            region.records.append(record)
        region.end += _HEAD.size + len(rest)
    region.numbers = {row: number for table in (rows.of_states, rows.of_figures) for number, row in table.items()}
    return region


def _record(sequence: int, rest: bytes) -> bytes:
    length = len(rest).to_bytes(2, "big")
    return crc32(length + rest, sequence & 0xFFFFFFFF).to_bytes(4, "big") + length + rest


def _rest_of(data: bytes, offset: int, sequence: int) -> bytes:
    checksum, length = _HEAD.unpack_from(data, offset)
    end = offset + _HEAD.size + length
    if not length or end > len(data) or checksum != crc32(data[offset + 4 : end], sequence & 0xFFFFFFFF):
        raise RegionError("a record is incomplete or damaged")
    return data[offset + _HEAD.size : end]


class _Rows(NamedTuple):
    """The defined rows by number; a missing number is a KeyError."""

    of_states: dict[int, Row]
    of_figures: dict[int, Row]

    def define(self, number: int, row: Row) -> None:
        if number in self.of_states or number in self.of_figures:
            raise RegionError(f"row {number} is defined again")
        table = self.of_states if isinstance(row.kind, RowKind) else self.of_figures
        table[number] = row


def _decode(rest: bytes, rows: _Rows) -> Record | None:
    """Return the record; None for the definition of a row, a new item of `rows`."""
    match rest[0]:
        case 1:
            _, number, kind = _ROW_FIELDS.unpack_from(rest)
            name, owner = _names(rest[_ROW_FIELDS.size :])
            rows.define(number, Row(KINDS[kind], name, owner))
            return None
        case 2:
            _, time_ms, number, severity = _STATE_FIELDS.unpack_from(rest)
            text = rest[_STATE_FIELDS.size :]
            if severity >= SEVERITIES or len(text) > TEXT_LIMIT_BYTES:
                raise RegionError(f"severity {severity}, {len(text)} bytes of text")
            return StateRecord(_time(time_ms), rows.of_states[number], State(text.decode(), severity))
        case 3:
            _, time_ms, number = _ENDED_FIELDS.unpack(rest)
            return StateRecord(_time(time_ms), rows.of_states[number], None)
        case 4:
            _, time_ms, minute, count = _SAMPLE_FIELDS.unpack_from(rest)
            if count > SERIES_MAX or minute * MINUTE_MS >= LATEST_MS:
                raise RegionError(f"{count} values in minute {minute}")
            return Sample(_time(time_ms), minute, _values(rest[_SAMPLE_FIELDS.size :], count, rows.of_figures))
        case 5:
            _, time_ms, cause, last_ms = _BREAK_FIELDS.unpack(rest)
            return Break(_time(time_ms), CAUSES[cause], 0 if not last_ms else _time(last_ms))
        case kind:
            raise RegionError(f"kind {kind}")


def _values(data: bytes, count: int, rows: dict[int, Row]) -> tuple[tuple[Row, float], ...]:
    values = tuple((rows[number], value) for number, value in _VALUE.iter_unpack(data))
    # NaN is not in any range.
    if len(values) != count or not all(0 <= value <= VALUE_MAX for _, value in values):
        raise RegionError(f"{len(data)} bytes for {count} values")
    return values


def _time(time_ms: int) -> int:
    if not 0 < time_ms < LATEST_MS:
        raise RegionError(f"time {time_ms}")
    return time_ms


def _names(data: bytes) -> tuple[str | None, str | None]:
    found: list[str | None] = []
    offset = 0
    for _ in range(2):
        length = data[offset] if offset < len(data) else NAME_LIMIT_BYTES + 1
        offset += 1
        if length == _ABSENT:
            found.append(None)
        elif length > NAME_LIMIT_BYTES or offset + length > len(data):
            raise RegionError("the name of a row is incomplete")
        else:
            found.append(data[offset : offset + length].decode())
            offset += length
    if offset != len(data):
        raise RegionError("bytes after the names of a row")
    name, owner = found
    return name, owner


def _name_bytes(name: str | None) -> bytes:
    if name is None:
        return bytes([_ABSENT])
    encoded = _text_bytes(name, NAME_LIMIT_BYTES)
    return bytes([len(encoded)]) + encoded


def _text_bytes(text: str, limit_bytes: int) -> bytes:
    return cut(text, limit_bytes).encode(errors="backslashreplace")


def _bounded(value: float) -> float:
    return min(max(value, 0.0), VALUE_MAX)
