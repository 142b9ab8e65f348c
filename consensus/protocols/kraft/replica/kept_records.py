"""The records in a snapshot of a voter's log: all of them, or the effective ones of Kafka's metadata.

*Any log* (`KeptRecords`). Only the application can interpret its records, so none can be omitted.

*The metadata of Kafka's controllers* (`KeptMetadata`), for our voters in a quorum with Kafka's. A controller of Kafka
stops if a snapshot contains the marks of a transaction. Kafka's log has these marks from the first batch on. So these
records are interpreted:

    BeginTransaction   the following records are undecided: no snapshot until the transaction ends (`is_settled`)
    EndTransaction     they are effective
    AbortTransaction   they are omitted
    NoOp               also omitted: an idle controller writes two each second

All other records are kept unchanged and in order, so a controller reads the snapshot like the log.

*Clients' records in such a log* (`metadata_objection`). Every controller, even a standby, reads every record, and stops
permanently at the first unreadable one. So the controllers' requirements are checked before a record is accepted. A
record must not have a key or headers, its value must begin like metadata, and a batch must have a single time.

    value = 1 │ type │ version of the type │ …       numbers are varints without zigzag
"""

from typing import Final

from consensus.core.model import Entry
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.record_batches import decode_tail
from consensus.protocols.kafka.wire.records import RecordBatch
from consensus.protocols.kraft.wire.entries import BATCH_CONTINUES, entry_tail

_FRAME_VERSION: Final = 1
_SHORTEST_FRAME: Final = 3
_ONE_BYTE: Final = 0x80
"""Numbers from here on take a second byte. The types of Kafka's records are lower."""
_NO_OP: Final = 20
_BEGIN: Final = 23
_END: Final = 24
_ABORT: Final = 25
_NOT_IN_A_SNAPSHOT: Final = frozenset({_NO_OP, _BEGIN, _END, _ABORT})


def metadata_type(value: bytes | None) -> int | None:
    """Return the type of a record of Kafka's metadata; None for any other value."""
    if value is None or len(value) < _SHORTEST_FRAME or value[0] != _FRAME_VERSION or value[1] >= _ONE_BYTE:
        return None
    return value[1]


def metadata_objection(batch: RecordBatch) -> str | None:
    """Return the known reason why these records would stop Kafka's controllers; None without one."""
    if batch.producer_id >= 0:
        return "the producer is idempotent, and the record of its id would end Kafka's controllers"
    if len({record.timestamp_ms for record in batch.records}) > 1:
        return "its records have different times"
    if any(record.key is not None or record.headers for record in batch.records):
        return "a record has a key or headers"
    if any(metadata_type(record.value) is None for record in batch.records):
        return "a value does not begin as a record of Kafka's metadata does"
    return None


class KeptRecords:
    """The records of a log, up to a number of bytes.

    Beyond the limit, all records are dropped, and later ones are not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.size_bytes = 0
        self.is_whole = True
        """True if no record was dropped."""
        self._max_bytes = max_bytes
        self._entries: list[Entry] = []

    def keep(self, entry: Entry) -> None:
        """Keep a committed record."""
        self._add(entry)

    @property
    def is_settled(self) -> bool:
        """Return True if all records are effective."""
        return True

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The records, in order."""
        return tuple(self._entries)

    def clear(self) -> None:
        """Drop all records."""
        self._entries, self.size_bytes, self.is_whole = [], 0, True

    def _add(self, entry: Entry) -> None:
        if not self.is_whole:
            return
        self._entries.append(entry)
        self.size_bytes += len(entry.data)
        if self.size_bytes > self._max_bytes:
            self._entries, self.size_bytes, self.is_whole = [], 0, False


class KeptMetadata(KeptRecords):
    """The records of the metadata of Kafka's controllers."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._transaction_start: int | None = None
        """Number of kept records at the start of the open transaction."""

    def keep(self, entry: Entry) -> None:
        """See `KeptRecords.keep`."""
        found = _type_of(entry)
        if found not in _NOT_IN_A_SNAPSHOT:
            self._add(entry)
            return
        if found == _BEGIN:
            self._transaction_start = len(self._entries)
        elif found == _ABORT and self._transaction_start is not None:
            self._cut(self._transaction_start)
        if found in (_END, _ABORT):
            self._transaction_start = None
        self._end_batch()

    @property
    def is_settled(self) -> bool:
        """See `KeptRecords.is_settled`."""
        return self._transaction_start is None

    def clear(self) -> None:
        """See `KeptRecords.clear`."""
        super().clear()
        self._transaction_start = None

    def _cut(self, count: int) -> None:
        self.size_bytes -= sum([len(entry.data) for entry in self._entries[count:]])
        del self._entries[count:]

    def _end_batch(self) -> None:
        """End the batch at the newest record, since later records of it are omitted."""
        if self._entries and self._entries[-1].data[0] & BATCH_CONTINUES:
            newest = self._entries[-1]
            self._entries[-1] = Entry(
                newest.term, newest.kind, bytes([newest.data[0] & ~BATCH_CONTINUES]) + newest.data[1:]
            )


def kept_records(max_bytes: int, *, metadata: bool) -> KeptRecords:
    """Return the records of a log with Kafka's metadata, or of any other."""
    return KeptMetadata(max_bytes) if metadata else KeptRecords(max_bytes)


def _type_of(entry: Entry) -> int | None:
    try:
        _, value, _ = decode_tail(entry_tail(entry.data))
    except KafkaWireError:
        return None
    return metadata_type(value)
