"""Entries of the core as Kafka's record batches, and back; and the head of an entry's data.

docs/reference/kraft.md, 'The log', maps entries to records and explains the stored ends of batches. The data of a
COMMAND or CONTROL entry are a head and the record's tail (`record_batches`). So key, value and headers are never
decoded on their way. The head has the record's fields outside the tail. All integers are big-endian:

    flags 1 │ timestamp in ms 8 │ producer id 8 │ producer epoch 2 │ sequence 4     the last three with flag 0x02

    flags   0x01 the batch continues after this record      0x04 the batch is transactional

The first record of a batch has its base sequence, each further one the next. No-ops and configurations have the same
head (`no_op_head`, `configuration_head`); the head of a configuration also contains unusual versions of its voters
(`voters_of`).

A replica gets whole batches (`batches_for_replicas`), because it would treat a part of a batch as a separate batch.
`entries_of` restores the leader's entries byte for byte.

*Trust.* `fetched_entries` checks that a leader's batches have offsets without a gap, epochs that do not fall, and valid
records. It raises `KafkaWireError` and nothing else. The first batch may begin before the position, and the last may be
cut off.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct

from consensus.core.entry_data import (
    EntryDataError,
    configuration_entry,
    configuration_head,
    decode_configuration,
    decode_no_op,
    no_op_entry,
    no_op_head,
)
from consensus.core.model import COMMAND, Entry, EntryKind, Index, LogId
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, MAX_EPOCH, KafkaWireError, Limits
from consensus.protocols.kafka.wire.record_batches import (
    BatchHead,
    batch_heads,
    decode_tail,
    decode_tails,
    encode_tail,
    encode_tails,
    read_varint,
)
from consensus.protocols.kafka.wire.records import RecordBatch
from consensus.protocols.kraft.wire.control_records import (
    LEADER_CHANGE,
    VOTERS,
    control_key,
    control_type_of,
    leader_change_value,
    no_op_of,
    voters_of,
    voters_value,
)

BATCH_CONTINUES: Final = 0x01
_HAS_PRODUCER: Final = 0x02
_TRANSACTIONAL: Final = 0x04
_SEQUENCES: Final = 2**31
_HEAD: Final = struct.Struct(">Bq")
_HEAD_BYTES: Final = _HEAD.size
_PRODUCER: Final = struct.Struct(">qhi")
_LONG_HEAD_BYTES: Final = _HEAD.size + _PRODUCER.size
_NO_PRODUCER: Final = (-1, -1, -1)


class EntryHead(Struct, frozen=True):
    """The head of an entry's data. Without a producer the last three fields are -1."""

    batch_continues: bool
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1


def entry_head(data: bytes) -> EntryHead | None:
    """Return the head of a command's or control record's data; None if they are too short to have one."""
    if len(data) < _HEAD_BYTES:
        return None
    flags, timestamp_ms = _HEAD.unpack_from(data)
    if not flags & _HAS_PRODUCER:
        return EntryHead(bool(flags & BATCH_CONTINUES), timestamp_ms)
    if len(data) < _LONG_HEAD_BYTES:
        return None
    return EntryHead(bool(flags & BATCH_CONTINUES), timestamp_ms, *_PRODUCER.unpack_from(data, _HEAD_BYTES))


def entry_tail(data: bytes) -> bytes:
    """Return key, value and headers: the data of a command or control record, without the head."""
    return data[_LONG_HEAD_BYTES if data[:1] and data[0] & _HAS_PRODUCER else _HEAD_BYTES :]


def leader_head(timestamp_ms: int) -> bytes:
    """Return the head of a leader's own entry: a batch of one record."""
    return _HEAD.pack(0, timestamp_ms)


def batch_continues_after(entry: Entry) -> bool:
    """Return True if the batch of this entry continues after it."""
    head = _head_of(entry)
    return bool(head) and bool(head[0] & BATCH_CONTINUES)


def next_sequence(sequence: int, count: int = 1) -> int:
    """Return the sequence `count` records later; numbers of 31 bits wrap."""
    return (sequence + count) % _SEQUENCES


def timestamp_of(entry: Entry) -> int:
    """Return the timestamp of an entry of any kind; 0 if it does not have one. Raises `KafkaWireError`."""
    head = entry_head(_head_of(entry))
    return 0 if head is None else head.timestamp_ms


def control_data(control_type: int, value: bytes, timestamp_ms: int) -> bytes:
    """Return the data of a control record that is alone in its batch."""
    return leader_head(timestamp_ms) + encode_tail(control_key(control_type), value)


def control_value(data: bytes, control_type: int) -> bytes | None:
    """Return the value of a control record that `control_data` made; None for others."""
    tail, prefix = entry_tail(data), encode_tail(control_key(control_type), b"")[:-2]
    if data[:1] != b"\x00" or not tail.startswith(prefix):
        return None
    try:
        length, at = read_varint(tail, len(prefix))
    except (IndexError, KafkaWireError):
        return None
    return tail[at:-1] if at + length + 1 == len(tail) and tail[-1:] == b"\x00" else None


def data_of(batch: RecordBatch) -> tuple[bytes, ...]:
    """Return a client's batch as commands, one for each record."""
    last = len(batch.records) - 1
    flags = _TRANSACTIONAL if batch.is_transactional else 0
    heads = _heads(
        flags,
        [record.timestamp_ms for record in batch.records],
        (batch.producer_id, batch.producer_epoch, batch.base_sequence),
        range(last + 1),
        last,
    )
    tails = [encode_tail(record.key, record.value, record.headers) for record in batch.records]
    return tuple([head + tail for head, tail in zip(heads, tails, strict=True)])


def batches_of(first: Index, entries: Sequence[Entry], limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return record batches of entries from index `first` on. Raises `KafkaWireError` for unsupported entries."""
    batches: list[bytes] = []
    at = 0
    while at < len(entries):
        end, tails, flags, producer = _next_batch(entries, at, limits)
        batches.append(
            encode_tails(
                first - 1 + at,
                entries[at].term,
                tails,
                is_control=entries[at].kind is not COMMAND,
                is_transactional=bool(flags & _TRANSACTIONAL),
                producer=producer,
            )
        )
        at = end
    return b"".join(batches)


def batches_for_replicas(first: Index, entries: tuple[Entry, ...]) -> bytes:
    """Return record batches without an incomplete last one, unless it is the only one."""
    end = len(entries)
    while end and batch_continues_after(entries[end - 1]):
        end -= 1
    return batches_of(first, entries[:end] or entries)


def entries_of(data: bytes, position: LogId, limits: Limits = DEFAULT_LIMITS) -> tuple[Entry, ...]:
    """Return the entries of record batches after a position; raises `KafkaWireError`."""
    return tuple(chain.from_iterable(entries_by_batch(data, position, limits)))


def fetched_entries(data: bytes, position: LogId, limits: Limits = DEFAULT_LIMITS) -> tuple[Entry, ...]:
    """Return the entries in the reply to a Fetch. Batches beyond the limits are fetched again.

    A few bytes of compressed batches can contain any number of entries.
    """
    entries: list[Entry] = []
    size_bytes = 0
    for batch in entries_by_batch(data, position, limits):
        entries += batch
        size_bytes += sum([len(entry.data) for entry in batch])
        if len(entries) >= limits.max_fetched_entries or size_bytes >= limits.max_fetched_bytes:
            break
    return tuple(entries)


def entries_by_batch(data: bytes, position: LogId, limits: Limits = DEFAULT_LIMITS) -> Iterator[list[Entry]]:
    """Yield the result of `entries_of`, one batch at a time, so that other tasks can run between two batches."""
    expected, epoch, is_first = position.index, position.term, True
    for at, head in batch_heads(data, limits):
        if head.base_offset > expected or head.last_offset < expected or not (is_first or head.base_offset == expected):
            raise KafkaWireError(
                f"a record batch holds the offsets {head.base_offset} to {head.last_offset} where {expected} follows"
            )
        if not epoch <= head.leader_epoch <= MAX_EPOCH:
            raise KafkaWireError(f"a record batch of epoch {head.leader_epoch} follows one of epoch {epoch}")
        tails = decode_tails(data, at, head, limits)
        yield _entries_in(head, tails, skipped=expected - head.base_offset)
        expected, epoch, is_first = head.last_offset + 1, head.leader_epoch, False


def _entries_in(head: BatchHead, tails: list[tuple[int, bytes]], skipped: int) -> list[Entry]:
    """Return the entries of one batch, without `skipped` ones at its beginning."""
    flags = _TRANSACTIONAL if head.is_transactional else 0
    producer = head.producer_id, head.producer_epoch, head.base_sequence
    term, last = head.leader_epoch, head.count - 1
    if producer == _NO_PRODUCER and not head.is_control:
        pack, middle = _HEAD.pack, flags | BATCH_CONTINUES
        entries = [Entry(term, COMMAND, pack(middle, timestamp) + tail) for timestamp, tail in tails]
        timestamp, tail = tails[last]
        entries[last] = Entry(term, COMMAND, pack(flags, timestamp) + tail)
        return entries[skipped:] if skipped else entries
    heads = _heads(flags, [timestamp for timestamp, _ in tails], producer, range(skipped, last + 1), last)
    if head.is_control:
        return [_control_entry(term, each, tail) for each, (_, tail) in zip(heads, tails[skipped:], strict=True)]
    return [Entry(term, COMMAND, each + tail) for each, (_, tail) in zip(heads, tails[skipped:], strict=True)]


def _heads(flags: int, timestamps: list[int], producer: tuple[int, int, int], places: range, last: int) -> list[bytes]:
    """Return the heads of the records at these places of a batch, which ends at `last`."""
    producer_id, producer_epoch, base = producer
    flags |= 0 if producer == _NO_PRODUCER else _HAS_PRODUCER
    try:
        heads = [_HEAD.pack(flags | (BATCH_CONTINUES if place < last else 0), timestamps[place]) for place in places]
        if flags & _HAS_PRODUCER:
            sequences = [base if base < 0 else next_sequence(base, place) for place in places]
            heads = [
                head + _PRODUCER.pack(producer_id, producer_epoch, sequence)
                for head, sequence in zip(heads, sequences, strict=True)
            ]
    except struct.error as error:
        raise KafkaWireError(f"a record's time or producer is out of range: {error}") from error
    return heads


def _control_entry(term: int, head: bytes, tail: bytes) -> Entry:
    key, value, headers = decode_tail(tail)
    named = None if headers or value is None else control_type_of(key)
    if value is None or named is None:
        return Entry(term, EntryKind.CONTROL, head + tail)
    control_type, version = named
    try:
        if control_type == VOTERS:
            configuration, features = voters_of(version, value)
            return configuration_entry(term, configuration, head + features)
        no_op = no_op_of(value) if named == (LEADER_CHANGE, 0) else None
        return Entry(term, EntryKind.CONTROL, head + tail) if no_op is None else no_op_entry(term, no_op, head)
    except EntryDataError as error:
        raise KafkaWireError(f"a control record cannot be kept: {error}") from error


def _head_of(entry: Entry) -> bytes:
    """Return the head of an entry of any kind; raises `KafkaWireError`."""
    try:
        match entry.kind:
            case EntryKind.NO_OP:
                return no_op_head(entry.data)
            case EntryKind.CONFIGURATION:
                return configuration_head(entry.data)
            case _:
                return entry.data
    except EntryDataError as error:
        raise KafkaWireError(f"an entry cannot be stored in Kafka's log: {error}") from error


def _record_data(entry: Entry) -> bytes:
    """Return head and tail of an entry's record; raises `KafkaWireError`."""
    if entry.kind in (COMMAND, EntryKind.CONTROL):
        return entry.data
    head = _head_of(entry)
    size = _LONG_HEAD_BYTES if head[:1] and head[0] & _HAS_PRODUCER else _HEAD_BYTES
    try:
        if entry.kind is EntryKind.NO_OP:
            return head + encode_tail(control_key(LEADER_CHANGE), leader_change_value(decode_no_op(entry.data)))
        value = voters_value(decode_configuration(entry.data), head[size:])
    except EntryDataError as error:
        raise KafkaWireError(f"an entry cannot be stored in Kafka's log: {error}") from error
    return head[:size] + encode_tail(control_key(VOTERS), value)


def _next_batch(
    entries: Sequence[Entry], at: int, limits: Limits
) -> tuple[int, list[tuple[int, bytes]], int, tuple[int, int, int]]:
    """Return end, records, flags, and producer with base sequence of the batch that begins at entry `at`.

    A batch ends at its end mark, or before an entry that cannot belong to it.
    """
    first, tails, size_bytes = entries[at], list[tuple[int, bytes]](), 0
    term, is_command, unpack = first.term, first.kind is COMMAND, _HEAD.unpack_from
    flags, producer = _batch_fields(_head_of(first))
    head_bytes = _LONG_HEAD_BYTES if flags & _HAS_PRODUCER else _HEAD_BYTES
    for end in range(at, min(len(entries), at + limits.max_batch_records)):
        entry = entries[end]
        if entry.term != term or (entry.kind is COMMAND) is not is_command:
            break
        data = entry.data if is_command else _record_data(entry)
        if len(data) <= head_bytes:
            raise KafkaWireError("an entry cannot be stored in Kafka's log: it does not contain a record")
        mark, timestamp = unpack(data)
        if mark & ~BATCH_CONTINUES != flags or (flags & _HAS_PRODUCER and not _continues(data, producer, end - at)):
            break
        size_bytes += len(data)
        if tails and size_bytes > limits.max_batch_bytes:
            break
        tails.append((timestamp, data[head_bytes:]))
        if not mark & BATCH_CONTINUES:
            break
    return at + len(tails), tails, flags, producer


def _batch_fields(head: bytes) -> tuple[int, tuple[int, int, int]]:
    found = entry_head(head)
    if found is None:
        raise KafkaWireError("an entry cannot be stored in Kafka's log: it lacks a timestamp")
    return head[0] & ~BATCH_CONTINUES, (found.producer_id, found.producer_epoch, found.sequence)


def _continues(data: bytes, producer: tuple[int, int, int], place: int) -> bool:
    """Return True if this is the producer's record at that place of the batch."""
    producer_id, producer_epoch, base = producer
    sequence = base if base < 0 else next_sequence(base, place)
    return data[_HEAD_BYTES:_LONG_HEAD_BYTES] == _PRODUCER.pack(producer_id, producer_epoch, sequence)
