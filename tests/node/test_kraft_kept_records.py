"""The metadata log of Kafka controllers: records kept in a snapshot, and records refused from clients."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace

from consensus.core.model import Entry, LogId
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from consensus.protocols.kraft.replica.kept_records import KeptMetadata, KeptRecords, metadata_objection, metadata_type
from consensus.protocols.kraft.replica.state_machine import QuorumLog
from consensus.protocols.kraft.wire.entries import batches_of, data_of, entries_of
from tests.effort import each_case

VECTORS = Path(__file__).parents[1] / "vectors" / "kraft.json"
NO_OP, BEGIN, END, ABORT = (bytes([1, number, 0, 0]) for number in (20, 23, 24, 25))
ONE, TWO, THREE = (bytes([1, 12, 0, number]) for number in (1, 2, 3))
LIMIT = 10_000


def entries(*values: bytes, timestamp_ms: int = 5) -> tuple[Entry, ...]:
    batch = RecordBatch(0, -1, tuple(Record(timestamp_ms, None, value) for value in values))
    return tuple(Entry.command(1, data) for data in data_of(batch))


def snapshot_values(*batches: tuple[Entry, ...]) -> list[list[bytes | None]]:
    """Return the values in a snapshot after these batches, batch by batch."""
    records = KeptMetadata(LIMIT)
    for entry in sum(batches, ()):
        records.keep(entry)
    assert records.size_bytes == sum(len(entry.data) for entry in records.entries)
    return [[record.value for record in batch.records] for batch in read_batches(batches_of(1, records.entries))]


def test_records_of_other_logs_are_all_kept() -> None:
    records = KeptRecords(LIMIT)
    for entry in entries(BEGIN, ONE, END):
        records.keep(entry)
    assert records.entries == entries(BEGIN, ONE, END)


def test_transaction_marks_and_no_ops_are_omitted() -> None:
    assert snapshot_values(entries(BEGIN, ONE), entries(TWO, END), entries(NO_OP), entries(THREE)) == [
        [ONE],
        [TWO],
        [THREE],
    ]


def test_aborted_records_are_omitted() -> None:
    assert snapshot_values(entries(ONE, BEGIN, TWO), entries(TWO, ABORT), entries(THREE)) == [[ONE], [THREE]]


def test_batch_ends_at_omitted_record() -> None:
    """The next record may have another timestamp, and controllers do not accept two timestamps within a batch."""
    assert snapshot_values(entries(ONE, NO_OP), entries(TWO, timestamp_ms=9)) == [[ONE], [TWO]]


async def test_snapshot_waits_for_end_of_transaction() -> None:
    machine = QuorumLog(LIMIT, metadata=True)
    await machine.apply(1, entries(BEGIN, ONE))
    assert machine.snapshot_index() == 0
    await machine.apply(3, entries(TWO))
    assert machine.snapshot_index() == 0
    await machine.apply(4, entries(END))
    assert machine.snapshot_index() == 4
    state = b"".join(machine.snapshot())

    async def chunks() -> AsyncIterator[bytes]:
        yield state

    restored = QuorumLog(LIMIT, metadata=True)
    await restored.restore(LogId(4, 1), chunks())
    assert b"".join(restored.snapshot()) == state


def test_records_beyond_limit_are_not_kept() -> None:
    records = KeptMetadata(40)
    for _ in range(4):
        records.keep(entries(ONE)[0])
    assert not records.is_whole
    assert records.entries == ()
    assert records.size_bytes == 0
    records.clear()
    records.keep(entries(ONE)[0])
    assert records.is_whole


def test_records_of_kafka_controller_are_accepted() -> None:
    files = json.loads(VECTORS.read_text(encoding="utf-8"))["stories"]["static quorum"]["files"]
    for name, data in files.items():
        if name.endswith(".log"):
            for batch in read_batches(bytes.fromhex(data)):
                assert batch.is_control or metadata_objection(batch) is None
    log = bytes.fromhex(files[f"__cluster_metadata-0/{0:020}.log"])
    found = [metadata_type(record.value) for record in read_batches(log)[1].records]
    assert (found[0], found[1], found[-1]) == (23, 12, 24)
    machine = KeptMetadata(LIMIT)
    for entry in entries_of(log, LogId(0, 0))[1:8]:
        machine.keep(entry)
    assert len(machine.entries) == 5


@each_case(
    ("batch", "objection"),
    [
        (RecordBatch(0, -1, (Record(1, None, ONE), Record(2, None, ONE))), "times"),
        (RecordBatch(0, -1, (Record(1, b"key", ONE),)), "key"),
        (RecordBatch(0, -1, (Record(1, None, ONE, (("name", b""),)),)), "headers"),
        (RecordBatch(0, -1, (Record(1, None, b""),)), "value"),
        (RecordBatch(0, -1, (Record(1, None, None),)), "value"),
        (RecordBatch(0, -1, (Record(1, None, b"text"),)), "value"),
        (RecordBatch(0, -1, (Record(1, None, b"\x01\xff\x7f\x00"),)), "value"),
        (RecordBatch(0, -1, (Record(1, None, ONE),), producer_id=3), "idempotent"),
    ],
)
def test_records_that_stop_kafka_controllers_are_refused(batch: RecordBatch, objection: str) -> None:
    assert objection in (metadata_objection(batch) or "")
    assert metadata_objection(replace(batch, producer_id=-1, records=(Record(1, None, ONE),))) is None
