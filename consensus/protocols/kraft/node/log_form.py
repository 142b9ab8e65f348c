"""Entries of the log as record batches, and back: the functions of the wire that the parts of a voter share.

    LogForm   write (entries to batches), read (batches to entries), data_of (a client's batch to commands), snapshot

And what an entry's data begin with, which the state machine and the topic read without decoding a record:

    flags 1 │ timestamp in ms 8 │ producer id 8 │ producer epoch 2 │ sequence 4     the last three with flag 0x02

All integers are big-endian. The first entry of a batch has the batch's base sequence, each further one the next.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from consensus.core.model import Entry, Index, LogId
from consensus.protocols.kraft.wire.records import RecordBatch
from consensus.storage.snapshot_form import SnapshotForm

GOES_ON: Final = 0x01
_HAS_PRODUCER: Final = 0x02
_SEQUENCES: Final = 2**31
_HEAD: Final = struct.Struct(">Bq")
_PRODUCER: Final = struct.Struct(">qhi")
_CONTROL_KEY: Final = struct.Struct(">bhh")
_KEY_LENGTH: Final = 8
"""The variable-length number for a key of 4 bytes: lengths are zigzag numbers."""


@dataclass(frozen=True, slots=True)
class LogForm:
    """The functions of the wire."""

    write: Callable[[Index, tuple[Entry, ...]], bytes]
    read: Callable[[bytes, LogId], tuple[Entry, ...]]
    data_of: Callable[[RecordBatch], tuple[bytes, ...]]
    snapshot: SnapshotForm


@dataclass(frozen=True, slots=True)
class EntryHead:
    """What an entry's data begin with. Without a producer the last three are -1."""

    goes_on: bool
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1


def entry_head(data: bytes) -> EntryHead | None:
    """The head of a command's or control record's data; None if they are too short to have one."""
    if len(data) < _HEAD.size:
        return None
    flags, timestamp_ms = _HEAD.unpack_from(data)
    if not flags & _HAS_PRODUCER:
        return EntryHead(bool(flags & GOES_ON), timestamp_ms)
    if len(data) < _HEAD.size + _PRODUCER.size:
        return None
    return EntryHead(bool(flags & GOES_ON), timestamp_ms, *_PRODUCER.unpack_from(data, _HEAD.size))


def leader_head(timestamp_ms: int) -> bytes:
    """The head of what a leader appends by itself: a batch of one record."""
    return _HEAD.pack(0, timestamp_ms)


def control_data(control_type: int, value: bytes, timestamp_ms: int) -> bytes:
    """The data of a control record that stands alone in its batch."""
    key = _CONTROL_KEY.pack(_KEY_LENGTH, 0, control_type)
    return leader_head(timestamp_ms) + key + _varint(len(value)) + value + b"\x00"


def control_value(data: bytes, control_type: int) -> bytes | None:
    """The value of a control record that `control_data` made; None: it is another."""
    if len(data) < _HEAD.size + _CONTROL_KEY.size or data[0]:
        return None
    if _CONTROL_KEY.unpack_from(data, _HEAD.size) != (_KEY_LENGTH, 0, control_type):
        return None
    at, shift, zigzag = _HEAD.size + _CONTROL_KEY.size, 0, 0
    while at < len(data) and shift < 35:  # noqa: PLR2004 - five bytes of seven bits
        zigzag |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            break
    length = zigzag >> 1
    return data[at : at + length] if not zigzag & 1 and at + length + 1 == len(data) else None


def next_sequence(sequence: int, count: int = 1) -> int:
    """The sequence `count` records later; numbers of 31 bits come round."""
    return (sequence + count) % _SEQUENCES


def _varint(number: int) -> bytes:
    zigzag, parts = number << 1, bytearray()
    while zigzag > 0x7F:  # noqa: PLR2004 - seven bits in a byte
        parts.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    parts.append(zigzag)
    return bytes(parts)
