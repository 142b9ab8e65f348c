"""Entries of the farm's log as Kafka's record batches, an entry a record.

    application entry                    ──▶ record          key KIND/SERVER or KIND, value the entry's bytes,
                                                             timestamp log time, header `term`
    configuration, no-op                 ─┐
    copy, request out of time or order   ─┼▶ an offset without a record, or a control record
    producers and offsets of groups      ─┘

The key is the kind as `bridge.core.log.kinds` names it, with the Raft id of the server that a report, a clock entry
or a publication speaks for: `report/3`. An entry of users is `foreign`. The kind is read from the JSON, but only of an
entry whose bytes have a member that could tell one. Of a log of users' entries nothing is decoded, which is what makes
a cold read quick.

Without control records the offsets that readers see have gaps, as in a topic of Kafka's that is compacted. That is how
all clients read it alike: some do not filter control records, and give them to their programs.

Offsets of groups must not be records: a consumer that commits its position would read its own commit as news, and
commit again.

A batch has entries of one term and one sort. Writing many of them would keep Raft from its timers, so other tasks get
their turn in between.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

import trio

from bridge.core.log.kinds import kind_of
from bridge.core.log.records import ServerRecord
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.entries import decode, is_plainly_foreign
from consensus import Entry, EntryKind, Index
from consensus.protocols.kafka import encode_tail, encode_tails

BATCH_RECORDS: Final = 2_000
BATCH_BYTES: Final = 128 * 1024
"""A batch that is as large as this is ended; the last entry may have 64 KiB more."""
BREATH_ENTRIES: Final = 256
NO_TIMESTAMP: Final = -1
TERM_HEADER: Final = "term"
FOREIGN_KEY: Final = b"foreign"
CONTROL_TYPE: Final = 1_100
"""Of control records. Kafka's own have small numbers, and its clients skip those that they do not know."""
CONTROL_KEY: Final = struct.pack(">hh", 1, CONTROL_TYPE)
"""Of a control record. Its version is none of Kafka's, so librdkafka passes over the record.

A control record of version 0 moves the position of a consumer of librdkafka also when it is dropped with the records
before it, unread, because the consumer closes. It commits that position, and its group skips those records:
https://github.com/confluentinc/librdkafka/issues/3400
"""
_CONTROL_TAIL: Final = encode_tail(CONTROL_KEY, b"")
EPOCH_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class _Batch:
    """What is gathered of the next batch."""

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
    """Whole batches of these adjacent entries, all of which are applied; `first` is the index of the first.

    Without `control_records` there is nothing of entries that are not for readers.
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
        if place % BREATH_ENTRIES == BREATH_ENTRIES - 1:
            await trio.lowlevel.checkpoint()
    if batch is not None:
        done.append(batch.encoded())
    return b"".join(done)


def epoch_of(term: int) -> int:
    """A term as Kafka's epoch, which has 31 bits."""
    return min(term, EPOCH_MAX)


def timestamp_of(index: Index, applied_state: AppliedState) -> int:
    """Log time at the entry, or Kafka's word for none where that is too long ago."""
    log_time_ms = applied_state.moments.time_at(index)
    return NO_TIMESTAMP if log_time_ms is None else log_time_ms


def key_of(index: Index, entry: Entry, applied_state: AppliedState) -> bytes | None:
    """The key of an entry's record; None for an entry that is none."""
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
