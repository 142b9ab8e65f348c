"""The state of a voter's log: the opaque records themselves, and their producers.

    committed entries ─▶ records kept, in order           ─┬─▶ snapshot: whole record batches
                      ─▶ producer id: epoch, sequences    ─┘

*Records.* A snapshot has all records, up to `max_bytes` (docs/reference/kraft.md, 'Snapshots'). A snapshot never
ends within a batch: a server that begins from it would read the records as two batches.

*Producers.* A client without a reply repeats its batch, possibly to another leader. So the written batches of each
producer are replicated state: the last `BATCHES`, as in Kafka. A producer expires after `PRODUCER_EXPIRY_MS` of the
log's time without a write. If there are too many, the user with the most producers loses the least recent one, so a
user cannot displace another user's producers. The log's time is the latest timestamp of a control record or of a record
with a producer, so each server drops the same ones.

*Producer ids* are in docs/reference/kraft.md, 'Producer ids'.
"""

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Final

import trio
from msgspec import Struct, field
from msgspec.structs import astuple

from consensus.core.model import Entry, EntryKind, Index, LogId
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kraft.replica.kept_records import kept_records
from consensus.protocols.kraft.wire.entries import (
    EntryHead,
    batch_continues_after,
    batches_of,
    control_data,
    control_value,
    entries_by_batch,
    entry_head,
    next_sequence,
    timestamp_of,
)
from consensus.storage.disk import StorageError

BATCHES: Final = 5
"""Batches per producer: the maximum number of requests that a Kafka producer has under way."""
PRODUCER_EXPIRY_MS: Final = 86_400_000
"""Kafka's `producer.id.expiration.ms`."""
MAX_PRODUCERS: Final = 10_000
_OWNER_DIGITS: Final = 32
_ID_BYTES: Final = 8
_OWNER_PURPOSE: Final = b"quorum producer\x00"
NEW_PRODUCER: Final = 1_000
"""The type of the control record that requests a producer id."""
PRODUCER_OWNER: Final = 1_002
"""The type of the control record that assigns a producer id without an owner to the user of its first write."""
PRODUCER_TABLE: Final = 1_001
"""The type of the control record of a snapshot that has the producers."""
_WRITTEN_ENTRIES: Final = 1_024
_TABLE_ROWS: Final = 512
"""Number of rows of the table to encode or decode before other tasks run."""


class WrittenBatch(Struct, frozen=True):
    """A batch of a producer: its sequences, both ends included, and the offset of the first record."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class Producer(Struct):
    """The last writes of one producer."""

    epoch: int
    seen_ms: int
    batches: list[WrittenBatch] = field(default_factory=list)
    owner: str = ""
    """User of the producer, by `owner_of`; empty without a login.

    Also empty before the first write, if another server passed on the request for its id.
    """


def owner_of(principal: str | None) -> str:
    """Return the user's name in the log, a hash of fixed length that readers cannot reverse; empty without a name."""
    return "" if principal is None else hashlib.sha256(_OWNER_PURPOSE + principal.encode()).hexdigest()[:_OWNER_DIGITS]


def owner_data(producer_id: int, owner: str) -> bytes:
    """Return the value of a control record `PRODUCER_OWNER`."""
    return producer_id.to_bytes(_ID_BYTES) + owner.encode()


def _owner_in(data: bytes) -> str:
    return data.decode("ascii", "replace") if len(data) == _OWNER_DIGITS else ""


_Row = tuple[int, int, int, str, list[WrittenBatch]]


class QuorumLog:
    """The state machine (`consensus.server.interfaces.StateMachine`)."""

    def __init__(self, max_bytes: int, *, metadata: bool = False) -> None:
        """Make an empty log; with `metadata` for the records of Kafka's controllers (`kept_records`)."""
        self.producers: OrderedDict[int, Producer] = OrderedDict()
        """Producers by id, the least recent first. In a plain dict, removed keys would slow the search for the
        first."""
        self._producers_of: Counter[str] = Counter()
        """Number of producers of each owner."""
        self._records = kept_records(max_bytes, metadata=metadata)
        self._applied: Index = 0
        self._applied_ms = 0
        self.captured_ms = 0
        """Timestamp of the last entry in the newest snapshot."""
        self._is_within_batch = False
        self._clock_ms = 0
        self._open: WrittenBatch | None = None

    @property
    def records(self) -> tuple[Entry, ...]:
        """Return the records of the log for a snapshot."""
        return self._records.entries

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """See `StateMachine.apply`."""
        for index, entry in enumerate(entries, first):
            self._apply(index, entry)
        self._applied, self._applied_ms = first + len(entries) - 1, timestamp_of(entries[-1])
        self._is_within_batch = batch_continues_after(entries[-1])

    def snapshot_index(self) -> Index:
        """Return the index of a possible snapshot, the newest entry; 0 if none is possible now."""
        is_settled = self._records.is_whole and self._records.is_settled and not self._is_within_batch
        return self._applied if is_settled else 0

    def snapshot(self) -> Iterator[bytes]:
        """See `StateMachine.snapshot`; a snapshot consists of whole record batches."""
        self.captured_ms = self._applied_ms
        return self._written(self._rows(), self._clock_ms, self.records)

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """See `StateMachine.restore`."""
        data = b"".join([chunk async for chunk in state])
        self.producers = OrderedDict()
        self._producers_of.clear()
        self._records.clear()
        self._is_within_batch, self._open, self._clock_ms = False, None, 0
        try:
            await self._read_snapshot(data)
        except KafkaWireError as error:
            raise StorageError(
                f"the snapshot of entry {last.index} cannot be read: {error}. Start the version of garlicfarm that"
                " wrote it, or move the directory away and let the server join again as a new server"
            ) from error
        self._applied = last.index

    async def _read_snapshot(self, data: bytes) -> None:
        for batch in entries_by_batch(data, LogId(0, 0)):
            await trio.lowlevel.checkpoint()
            for entry in batch:
                if entry.kind is EntryKind.CONTROL:
                    table = control_value(entry.data, PRODUCER_TABLE)
                    if table is not None:
                        await self._read_table(table)
                elif entry.kind is EntryKind.COMMAND:
                    self._records.keep(entry)

    def _apply(self, index: Index, entry: Entry) -> None:
        if entry.kind is EntryKind.COMMAND:
            head = entry_head(entry.data)
            if head is not None and head.producer_id >= 0:
                self._wrote(index, head)
            self._records.keep(entry)
        elif entry.kind is EntryKind.CONTROL and (head := entry_head(entry.data)) is not None:
            if (owner := control_value(entry.data, NEW_PRODUCER)) is not None:
                self._note(index, Producer(0, 0, owner=_owner_in(owner)), head.timestamp_ms)
            elif (claim := control_value(entry.data, PRODUCER_OWNER)) is not None:
                producer_id, owner = int.from_bytes(claim[:_ID_BYTES]), claim[_ID_BYTES:]
                self._assign(producer_id, _owner_in(owner), head.timestamp_ms)

    def _assign(self, producer_id: int, owner: str, timestamp_ms: int) -> None:
        """Set the owner of a producer without one."""
        producer = self.producers.get(producer_id)
        if producer is not None and not producer.owner:
            self._drop(producer_id)
            producer.owner = owner
            self._note(producer_id, producer, timestamp_ms)

    def _wrote(self, index: Index, head: EntryHead) -> None:
        """Record a committed record of a producer: it opens a batch, or continues the open one."""
        producer = self.producers.get(head.producer_id)
        if producer is None or producer.epoch != head.producer_epoch:
            producer = Producer(head.producer_epoch, 0, owner="" if producer is None else producer.owner)
        written = self._open
        is_next = written is not None and producer.batches[-1:] == [written]
        if written is None or not is_next or next_sequence(written.last_sequence) != head.sequence:
            self._open = WrittenBatch(head.sequence, head.sequence, index - 1)
            producer.batches = [*producer.batches, self._open][-BATCHES:]
        else:
            # Replace it instead of changing it, because a snapshot may hold the old one.
            self._open = WrittenBatch(written.first_sequence, head.sequence, written.base_offset)
            producer.batches = [*producer.batches[:-1], self._open]
        if not head.batch_continues:
            self._open = None
        self._note(head.producer_id, producer, head.timestamp_ms)

    def _note(self, producer_id: int, producer: Producer, timestamp_ms: int) -> None:
        self._clock_ms = max(self._clock_ms, timestamp_ms)
        producer.seen_ms = self._clock_ms
        if producer_id not in self.producers:
            self._producers_of[producer.owner] += 1
        self.producers[producer_id] = producer
        self.producers.move_to_end(producer_id)
        while self._is_oldest_expired():
            self._drop(next(iter(self.producers)))
        if len(self.producers) > MAX_PRODUCERS:
            most = max(self._producers_of.values())
            crowding = min(owner for owner, count in self._producers_of.items() if count == most)
            self._drop(next(number for number, each in self.producers.items() if each.owner == crowding))

    def _drop(self, producer_id: int) -> None:
        owner = self.producers.pop(producer_id).owner
        self._producers_of[owner] -= 1
        if not self._producers_of[owner]:
            del self._producers_of[owner]

    def _is_oldest_expired(self) -> bool:
        return next(iter(self.producers.values())).seen_ms + PRODUCER_EXPIRY_MS <= self._clock_ms

    def _rows(self) -> list[_Row]:
        return [(number, each.epoch, each.seen_ms, each.owner, each.batches) for number, each in self.producers.items()]

    async def _read_table(self, value: bytes) -> None:
        try:
            self._clock_ms, rows = json.loads(value)
            for start in range(0, len(rows), _TABLE_ROWS):
                await trio.lowlevel.checkpoint()
                for number, epoch, seen_ms, batches, *owner in rows[start : start + _TABLE_ROWS]:
                    written = [WrittenBatch(*map(int, batch)) for batch in batches]
                    made = Producer(int(epoch), int(seen_ms), written, "".join(owner))
                    self.producers[int(number)] = made
                    self._producers_of[made.owner] += 1
        except (ValueError, TypeError, RecursionError) as error:
            raise KafkaWireError(f"the snapshot's table of producers cannot be read: {error}") from error

    @staticmethod
    def _written(rows: list[_Row], clock_ms: int, entries: tuple[Entry, ...]) -> Iterator[bytes]:
        """Yield a snapshot, in parts that each take little time."""
        if rows:
            parts: list[str] = []
            for start in range(0, len(rows), _TABLE_ROWS):
                part = [_written_row(row) for row in rows[start : start + _TABLE_ROWS]]
                parts.append(json.dumps(part, separators=(",", ":"))[1:-1])
                yield b""
            value = f"[{clock_ms},[{','.join(parts)}]]".encode()
            term = entries[0].term if entries else 1
            table = Entry(term, EntryKind.CONTROL, control_data(PRODUCER_TABLE, value, clock_ms))
            yield batches_of(1, (table,))
        first = 0
        while first < len(entries):
            end = min(len(entries), first + _WRITTEN_ENTRIES)
            while end < len(entries) and batch_continues_after(entries[end - 1]):
                end += 1
            yield batches_of(first + 1 + bool(rows), entries[first:end])
            first = end


def _written_row(row: _Row) -> tuple[object, ...]:
    """Return the form in a snapshot; a row without an owner has the form of earlier versions."""
    number, epoch, seen_ms, owner, batches = row
    return (number, epoch, seen_ms, [*map(astuple, batches)], *([owner] if owner else []))
