"""The state of a simulated KRaft server: the store of all strategies, and the production state of a voter.

The bytes of a snapshot are complete record batches, as Kafka's format requires. The first are the batches of
`QuorumLog` with all records and the producer table. The last batch has the store.
"""

from collections.abc import Callable

from msgspec.structs import replace

from consensus.core.effects import Apply
from consensus.core.model import Entry, EntryKind, Index, SnapshotDescription
from consensus.protocols.kafka.wire.record_batches import batch_heads
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica.state_machine import Producer, QuorumLog
from consensus.sessions.table import SessionLimits
from consensus.storage.snapshot_form import SnapshotForm
from tests.simulation.consensus.kafka_node import command_in
from tests.simulation.consensus.state import StateMachine, finish, finish_in_turns, stream
from tests.wire.record_batches import decode_batch, encode_batch

_RECORD_BYTES = 300
_MAX_BYTES = 2**30


class KafkaStateMachine(StateMachine):
    """The state machine of one run.

    `on_records_restored` reports to the judge the records and producers restored from a snapshot.
    """

    def __init__(
        self,
        limits: SessionLimits,
        on_applied: Callable[[Apply], None],
        on_executed: Callable[[Index, int], None],
        on_restored: Callable[[SnapshotDescription, int], None],
        form: SnapshotForm,
        on_records_restored: Callable[[Index, QuorumLog], None],
    ) -> None:
        super().__init__(limits, on_applied, on_executed, on_restored, form, 0)
        self._on_records_restored = on_records_restored
        self.log = QuorumLog(_MAX_BYTES)

    def _command_of(self, entry: Entry) -> Entry:
        return replace(entry, data=command_in(entry.data)) if entry.kind == EntryKind.COMMAND else entry

    def _took(self, effect: Apply) -> None:
        finish_in_turns(self.log.apply(effect.first, effect.entries))

    @property
    def captured_index(self) -> Index:
        """Return the index of a snapshot taken now."""
        return self.log.snapshot_index()

    def _state(self) -> bytes:
        data = b"".join(self.machine.snapshot())
        values = [data[start : start + _RECORD_BYTES] for start in range(0, len(data), _RECORD_BYTES)]
        records = tuple(Record(0, b"store", value) for value in values)
        return b"".join(self.log.snapshot()) + encode_batch(RecordBatch(0, self.term, records))

    def _blocks(self, data: bytes) -> list[bytes]:
        return [data[at : at + head.size_bytes] for at, head in batch_heads(data)]

    def _restore_state(self, snapshot: SnapshotDescription, data: bytes) -> None:
        *_, store = batch_heads(data)
        at, _ = store
        image = b"".join(record.value or b"" for record in decode_batch(data[at:]).records)
        finish(self.machine.restore(snapshot.last, stream(image)))
        finish_in_turns(self.log.restore(snapshot.last, stream(data[:at])))
        self._on_records_restored(snapshot.last.index, self.log)


def content_of(log: QuorumLog) -> tuple[list[Entry], dict[int, Producer]]:
    return list(log.records), dict(log.producers)
