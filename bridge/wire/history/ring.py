"""The ring of regions in the history file: the writes for a new record, and the readable parts of a file.

    file = 8 regions of 250,000 bytes          the region with the highest sequence number is written
    a record does not fit ──▶ the next region, which has the oldest records, is begun again

A region begins with the present state of every row. So a region can be read without earlier regions. When the oldest
region is overwritten, states that began in it are still known.

Pure code: `bridge.node.history.history_file` writes the bytes. A record and the end after it are one write. If the
process is killed within it, the record is invalid, and the next start cuts it off.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from bridge.core.history.records import Break, Record, Row, Sample, State, StateRecord
from bridge.wire.history.records import (
    END,
    HEADER_BYTES,
    NUMBERS_MAX,
    Region,
    RegionError,
    decode_region,
    encode_header,
    encode_record,
    encode_row,
    stored,
)

REGION_BYTES: Final = 250_000
REGIONS: Final = 8
FILE_BYTES: Final = REGION_BYTES * REGIONS


class Write(Struct, frozen=True):
    """Bytes for one place of the file."""

    offset: int
    data: bytes


class Stored(Struct, frozen=True):
    """The readable content of a file."""

    parts: tuple[tuple[Record, ...], ...]
    """Records, oldest first, in parts. Between two parts the node did not record, or a region is damaged."""
    last: Region | None
    """The newest region; None in a new file."""
    cut_off: int
    """Number of regions with an invalid header or record; the remainder of such a region is not read."""


def read_ring(data: bytes) -> Stored:
    """Return the content of a file; raise `RegionError` if it is not a history."""
    regions: list[Region] = []
    errors: list[RegionError] = []
    cut_off = 0
    for place in range(REGIONS):
        try:
            region = _region_at(data, place)
        except RegionError as error:
            errors.append(error)
            continue
        if region is not None:
            regions.append(region)
            cut_off += region.is_cut
    if errors and not regions:
        raise errors[0]
    regions.sort(key=lambda each: each.sequence)
    return Stored(_parts(regions), regions[-1] if regions else None, cut_off + len(errors))


def _region_at(data: bytes, place: int) -> Region | None:
    region_bytes = data[place * REGION_BYTES : (place + 1) * REGION_BYTES]
    if region_bytes == bytes(len(region_bytes)):
        return None
    region = decode_region(region_bytes)
    if (region.sequence - 1) % REGIONS != place:
        raise RegionError(f"region {region.sequence} is at another place")
    return region


def _parts(regions: Sequence[Region]) -> tuple[tuple[Record, ...], ...]:
    """Join the records of regions without a gap between them."""
    parts: list[list[Record]] = []
    before: Region | None = None
    for region in regions:
        if before is None or before.is_cut or before.sequence + 1 != region.sequence:
            parts.append([])
        parts[-1] += region.records
        before = region
    return tuple(tuple(each) for each in parts)


class RingWriter:
    """Position of the next record in the file. Each call assumes that the caller has made the previous writes."""

    def __init__(self, last: Region | None) -> None:
        """Continue after the last region of a file; None: begin a new file."""
        self._sequence = 0 if last is None else last.sequence
        self._end = REGION_BYTES if last is None else last.end
        self._numbers = {} if last is None else dict(last.numbers)
        self._next_number = 1 + max(self._numbers.values(), default=-1)
        self._states: dict[Row, State] = {}
        """Present states, for the beginning of the next region."""
        self._last_ms = 1

    def append(self, records: Iterable[Record]) -> list[Write]:
        """Return the writes for these records, in their order."""
        writes: list[Write] = []
        pending = bytearray()
        for record in map(_stored_form, records):
            found = self._encoded(record)
            if found is None:
                self._flush(pending, writes)
                pending = self._begin()
                found = self._encoded(record) or b""
            pending += found
            self._apply(record)
        self._flush(pending, writes)
        return writes

    def _flush(self, pending: bytearray, writes: list[Write]) -> None:
        """Add a write of the pending bytes, with the end mark after them if the mark fits."""
        if not pending:
            return
        start = (self._sequence - 1) % REGIONS * REGION_BYTES + self._end - len(pending)
        end = END[: REGION_BYTES - self._end]
        writes.append(Write(start, bytes(pending) + end))

    def _encoded(self, record: Record) -> bytes | None:
        """Return a record with the definitions of its rows; None if they do not fit into the region."""
        added = [row for row in _rows_of(record) if row not in self._numbers]
        numbers = self._numbers | {row: self._next_number + place for place, row in enumerate(added)}
        defined = b"".join(encode_row(self._sequence, numbers[row], row) for row in added)
        data = defined + encode_record(self._sequence, record, numbers)
        if self._end + len(data) > REGION_BYTES or self._next_number + len(added) > NUMBERS_MAX:
            return None
        self._numbers = numbers
        self._next_number += len(added)
        self._end += len(data)
        return data

    def _begin(self) -> bytearray:
        """Return the beginning of the next region: its header and all present states."""
        self._sequence += 1
        self._end = HEADER_BYTES
        self._numbers, self._next_number = {}, 0
        data = bytearray(encode_header(self._sequence))
        for row, state in self._states.items():
            data += self._encoded(StateRecord(self._last_ms, row, state)) or b""
        return data

    def _apply(self, record: Record) -> None:
        self._last_ms = record.time_ms
        match record:
            case StateRecord(_, row, state):
                self._states.pop(row, None)
                if state is not None:
                    self._states[row] = state
            case Break():
                self._states.clear()
            case Sample():
                pass


def _rows_of(record: Record) -> tuple[Row, ...]:
    match record:
        case StateRecord(_, row, _):
            return (row,)
        case Sample(_, _, values):
            return tuple(row for row, _ in values)
        case Break():
            return ()


def _stored_form(record: Record) -> Record:
    """Return the record with the names that the file keeps."""
    match record:
        case StateRecord(time_ms, row, state):
            return StateRecord(time_ms, stored(row), state)
        case Sample(time_ms, minute, values):
            return Sample(time_ms, minute, tuple({stored(row): value for row, value in values}.items()))
        case Break():
            return record
