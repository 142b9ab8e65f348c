"""Entries of the farm's log as Kafka's record batches, one record per entry.

    application entry                    ──▶ record          key KIND/SERVER or KIND, value the entry's bytes,
                                                             timestamp log time, header `term`
    configuration, no-op                 ─┐
    copy, request out of time or order   ─┼▶ an offset without a record, or a control record
    producers and offsets of groups      ─┘

The key is the kind in `bridge.core.log.kinds`, with the Raft id of the server of a report, a clock entry or a
publication: `report/3`. An entry of users is `foreign`. The kind is read from the JSON, but only if the bytes contain a
member that could determine it. A log of users' entries is not decoded at all, which makes a cold read fast.

Without control records the visible offsets have gaps, as in a compacted topic of Kafka. Some clients do not
filter control records, and deliver them to their programs. Offsets of groups must not be records: a consumer that
commits its position would read its own commit as a new record, and commit again.
"""

import struct
from typing import Final

import trio
from msgspec import Struct, field

from bridge.core.log.kinds import kind_of
from bridge.core.log.records import ServerRecord
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.entries import decode, is_plainly_foreign
from consensus import Entry, EntryKind, Index
from consensus.protocols.kafka import encode_tail, encode_tails

BATCH_RECORDS: Final = 2_000
BATCH_BYTES: Final = 128 * 1024
"""A batch that reaches this size is complete; with its last entry it may exceed the size by 64 KiB."""
CHECKPOINT_ENTRIES: Final = 256
NO_TIMESTAMP: Final = -1
TERM_HEADER: Final = "term"
FOREIGN_KEY: Final = b"foreign"
CONTROL_TYPE: Final = 1_100
"""The type of control records. Kafka's own have small numbers, and its clients skip unknown ones."""
CONTROL_KEY: Final = struct.pack(">hh", 1, CONTROL_TYPE)
"""The key of a control record. Its version, 1, is not Kafka's (0), so librdkafka skips the record.

When a consumer of librdkafka closes, it drops unread records. If a control record of version 0 follows these records,
the consumer still advances its position and commits the new position. So its group would skip the dropped records:
https://github.com/confluentinc/librdkafka/issues/3400
"""
_CONTROL_TAIL: Final = encode_tail(CONTROL_KEY, b"")
EPOCH_MAX: Final = 2**31 - 1


class _Batch(Struct):
    base_offset: int
    term: int
    is_control: bool
    tails: list[tuple[int, bytes]] = field(default_factory=list)
    size_bytes: int = 0

    def encoded(self) -> bytes:
        return encode_tails(self.base_offset, epoch_of(self.term), self.tails, is_control=self.is_control)


async def batches_of(
    first: Index, entries: tuple[Entry, ...], applied_state: AppliedState, *, control_records: bool = True
) -> bytes:
    """Return complete batches of these adjacent, applied entries; `first` is the index of the first.

    Without `control_records`, entries that are not for readers are omitted. All entries of a batch have the same term,
    and are all records or all control records. Encoding many entries would delay Raft's timers, so other tasks run
    after each `CHECKPOINT_ENTRIES` entries.
    """
    done: list[bytes] = []
    batch: _Batch | None = None
    for place, entry in enumerate(entries):
        index = first + place
        key = key_of(index, entry, applied_state)
        is_left_out = key is None and not control_records
        if batch is not None and (
            is_left_out or _is_full(batch) or batch.term != entry.term or batch.is_control is not (key is None)
        ):
            done.append(batch.encoded())
            batch = None
        if not is_left_out:
            if batch is None:
                batch = _Batch(index - 1, entry.term, key is None)
                headers = ((TERM_HEADER, str(entry.term).encode()),)
            tail = _CONTROL_TAIL if key is None else encode_tail(key, entry.data, headers)
            batch.tails.append((timestamp_of(index, applied_state), tail))
            batch.size_bytes += len(tail)
        if place % CHECKPOINT_ENTRIES == CHECKPOINT_ENTRIES - 1:
            await trio.lowlevel.checkpoint()
    if batch is not None:
        done.append(batch.encoded())
    return b"".join(done)


def epoch_of(term: int) -> int:
    """Return a term as Kafka's epoch, which has 31 bits."""
    return min(term, EPOCH_MAX)


def timestamp_of(index: Index, applied_state: AppliedState) -> int:
    """Return log time at the entry; for entries that are too old, Kafka's value for an unknown time."""
    log_time_ms = applied_state.moments.time_at(index)
    return NO_TIMESTAMP if log_time_ms is None else log_time_ms


def key_of(index: Index, entry: Entry, applied_state: AppliedState) -> bytes | None:
    """Return the key of an entry's record; None if the entry is not a record."""
    if entry.kind is not EntryKind.COMMAND:
        return None
    record = None if is_plainly_foreign(entry.data) else decode(entry.data)
    if not applied_state.is_for_readers(index, entry.data, record):
        return None
    if record is None:
        return FOREIGN_KEY
    server = f"/{record.server_id}" if isinstance(record, ServerRecord) else ""
    return f"{kind_of(record).name}{server}".encode()


def _is_full(batch: _Batch) -> bool:
    return len(batch.tails) >= BATCH_RECORDS or batch.size_bytes >= BATCH_BYTES
