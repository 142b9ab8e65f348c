"""Entries and snapshots in Kafka's form. Recorded data of its controllers round-trips, and damaged data is refused."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consensus.core.entry_data import configuration_entry, decode_configuration, decode_no_op, no_op_entry
from consensus.core.model import Configuration, Entry, EntryKind, LogId, NoOp, ReplicaKey, Server
from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.codec import decode_response
from consensus.protocols.kafka.wire.limits import KafkaWireError, Limits
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from consensus.protocols.kraft.wire.control_records import KRAFT_VERSION, KRAFT_VERSION_1, control_key
from consensus.protocols.kraft.wire.entries import (
    batch_continues_after,
    batches_for_replicas,
    batches_of,
    control_data,
    control_value,
    data_of,
    entries_of,
    entry_head,
    fetched_entries,
    leader_head,
)
from consensus.protocols.kraft.wire.snapshot_form import KafkaSnapshotForm
from consensus.storage.checksum import crc32c
from consensus.storage.records import RecordError
from consensus.storage.snapshot_form import SnapshotReading
from tests.effort import each_case
from tests.wire.record_batches import encode_batch

RECORDINGS: Final[dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "kraft.json").read_text(encoding="utf-8")
)["stories"]
VOTERS: Final = tuple(
    Server(ReplicaKey(number, bytes([number]) * 16), where, (("CONTROLLER", where),))
    for number, where in enumerate(("10.0.0.1:9093", "10.0.0.2:9093", "10.0.0.3:9093"), 1)
)
IPV6: Final = replace(VOTERS[0], endpoint="[::1]:9", listeners=(("CONTROLLER", "[::1]:9"), ("OTHER", "host:65535")))
HEAD: Final = leader_head(1_000)
FORM: Final = KafkaSnapshotForm(lambda: 1_795_467_470_087)
BATCH: Final = RecordBatch(
    0, 1, (Record(5, b"k", b"v", (("h", b"x"),)), Record(4, None, None)), producer_id=7, producer_epoch=1
)


def stored_files(suffix: str) -> list[Any]:
    """Return the recorded files of the metadata log with this suffix, by story and name."""
    return [
        pytest.param(bytes.fromhex(data), id=f"{story} {name}")
        for story, recording in RECORDINGS.items()
        for name, data in recording["files"].items()
        if name.startswith("__cluster_metadata") and name.endswith(suffix)
    ]


def fetched_records() -> list[Any]:
    found = []
    for story in ("static quorum", "dynamic quorum"):
        for number, exchange in enumerate(RECORDINGS[story]["exchanges"]):
            if exchange["api"] == ApiKey.FETCH:
                _, answer = decode_response(ApiKey.FETCH, exchange["version"], bytes.fromhex(exchange["response"]))
                records = [part.records for topic in answer.responses for part in topic.partitions if part.records]
                found += [pytest.param(data, id=f"{story} {number}") for data in records]
    return found


def entries(data: bytes) -> tuple[Entry, ...]:
    """Return all entries of some batches, from their first offset on."""
    return entries_of(data, LogId(int.from_bytes(data[:8]), 0))


def entries_of_client_batch(*, term: int = 1, **fields: Any) -> tuple[Entry, ...]:
    return tuple(Entry.command(term, data) for data in data_of(replace(BATCH, **fields)))


@each_case("data", [*stored_files(".log"), *fetched_records()])
def test_batches_of_kafka_controller_round_trip(data: bytes) -> None:
    found = entries(data)
    assert batches_of(int.from_bytes(data[:8]) + 1, found) == data
    assert len(found) == sum(len(batch.records) for batch in read_batches(data))


def test_control_records_become_no_op_and_configuration() -> None:
    log = RECORDINGS["dynamic quorum"]["files"][f"__cluster_metadata-0/{0:020}.log"]
    no_op, version, voters, *_ = entries(bytes.fromhex(log))
    assert decode_no_op(no_op.data) == NoOp(
        ReplicaKey(1), (ReplicaKey(1), ReplicaKey(2), ReplicaKey(3)), (ReplicaKey(2), ReplicaKey(1))
    )
    assert version.kind is EntryKind.CONTROL
    configuration = decode_configuration(voters.data)
    assert [server.server_id.id for server in configuration.voters if isinstance(server.server_id, ReplicaKey)] == [
        1,
        2,
        3,
    ]
    assert all(server.listeners == (("CONTROLLER", server.endpoint),) for server in configuration.voters)


@pytest.mark.parametrize("data", stored_files(".checkpoint"))
def test_kafka_snapshot_yields_voters_and_batches(data: bytes) -> None:
    announced = Configuration((replace(VOTERS[0], server_id=ReplicaKey(1)),))
    reading = FORM.reading(LogId(27, 1), announced)
    state = b"".join(part for at in range(0, len(data), 100) for part in reading.feed(data[at : at + 100]))
    found = reading.finish()
    assert found.size_bytes == len(data)
    assert len(entries_of(state, LogId(0, 0))) == sum(
        len(batch.records) for batch in read_batches(data) if not batch.is_control
    )
    is_dynamic = bytes(control_key(6)) in data
    assert len(found.configuration.voters) == (3 if is_dynamic else 1)
    writing = FORM.writing(found.last, found.configuration)
    again = writing.begin() + writing.blocks(state) + writing.end()
    assert writing.description.configuration == found.configuration
    assert [replace(batch, leader_epoch=0, records=()) for batch in read_batches(again)] == [
        replace(batch, leader_epoch=0, records=()) for batch in read_batches(data)
    ]


@pytest.mark.parametrize("configuration", [Configuration(VOTERS), Configuration((IPV6,))])
def test_snapshot_round_trips_in_chunks_of_any_size(configuration: Configuration) -> None:
    state = batches_of(1, entries_of_client_batch() + entries_of_client_batch(term=2)) + batches_of(
        5, entries_of_client_batch(term=2)
    )
    writing = FORM.writing(LogId(40, 3), configuration)
    data = writing.begin() + writing.blocks(state) + writing.end()
    random = Random(1)
    for _ in range(20):
        reading = FORM.reading(LogId(40, 3), Configuration(VOTERS[:1]))
        found, at = b"", 0
        while at < len(data):
            size = random.randint(1, 90)
            found += b"".join(reading.feed(data[at : at + size]))
            at += size
        assert reading.finish() == writing.description
        assert found == state


def damaged_variants(data: bytes) -> Iterator[bytes]:
    """Yield each prefix of `data`, and `data` with each byte changed."""
    for at in range(len(data)):
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 0x21]) + data[at + 1 :]


def read_snapshot(data: bytes) -> None:
    reading: SnapshotReading = FORM.reading(LogId(9, 3), Configuration(VOTERS))
    for part in reading.feed(data):
        entries_of(part, LogId(int.from_bytes(part[:8]), 0))
    reading.finish()


def test_damaged_snapshot_is_refused() -> None:
    """Every kind of damage is detected except a changed batch epoch."""
    writing = FORM.writing(LogId(9, 3), Configuration(VOTERS))
    data = writing.begin() + writing.blocks(batches_of(1, entries_of_client_batch())) + writing.end()
    read_snapshot(data)
    refused = 0
    for each in damaged_variants(data):
        try:
            read_snapshot(each)
        except RecordError:
            refused += 1
    epochs = 4 * len(read_batches(data))
    assert refused >= 2 * len(data) - epochs
    for extra in (data + data, data + b"\x00" * 70, batches_of(1, entries_of_client_batch()) + data):
        with pytest.raises(RecordError):
            read_snapshot(extra)


def test_damaged_batches_give_prefix_of_entries_or_wire_error() -> None:
    log = (
        no_op_entry(1, NoOp(ReplicaKey(1), (ReplicaKey(1),), (ReplicaKey(1),)), HEAD),
        Entry(1, EntryKind.CONTROL, control_data(KRAFT_VERSION, KRAFT_VERSION_1, 1_000)),
        configuration_entry(1, Configuration(VOTERS), HEAD),
        *entries_of_client_batch(),
    )
    data = batches_of(1, log)
    assert entries_of(data, LogId(0, 0)) == log
    for each in damaged_variants(data):
        try:
            found = entries_of(each, LogId(0, 0))
        except KafkaWireError:
            continue
        assert [entry.data for entry in found] == [entry.data for entry in log[: len(found)]]


_FIELD = st.none() | st.binary(max_size=20)
_RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(-1, 2**45),
        _FIELD,
        _FIELD,
        st.lists(st.tuples(st.text(max_size=5), _FIELD), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
).map(tuple)
_PRODUCERS = st.sampled_from([(-1, -1, -1), (5, 0, 0), (5, 0, 2**31 - 2), (2**62, 3, 17), (9, 0, -1)])
_BATCHES = st.lists(st.tuples(_RECORDS, _PRODUCERS, st.integers(0, 2), st.sampled_from(Compression)), max_size=6)


@given(_BATCHES, st.booleans(), st.integers(0, 2**40))
def test_entries_keep_contents_of_batch(
    drawn: list[tuple[tuple[Record, ...], tuple[int, int, int], int, Compression]],
    is_log_append_time: bool,  # noqa: FBT001
    first: int,
) -> None:
    """Kept: times, keys, values, headers, producers, epochs and ends of batches.

    Not kept: the compression and the log-append-time flag.
    """
    batches, offset, epoch = [], first, 1
    for records, (producer_id, producer_epoch, sequence), rise, compression in drawn:
        epoch += rise
        batches.append(
            RecordBatch(
                offset,
                epoch,
                records,
                compression=compression,
                log_append_time=is_log_append_time,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
            )
        )
        offset += len(records)
    data = b"".join(map(encode_batch, batches))
    found = entries_of(data, LogId(first, 0))
    again = batches_of(first + 1, found)
    assert read_batches(again) == [
        replace(batch, compression=Compression.NONE, log_append_time=False) for batch in read_batches(data)
    ]
    assert entries_of(again, LogId(first, 0)) == found
    # Kafka's leaders reply with complete batches, even to a replica that has the first records of one
    if batches and len(batches[0].records) > 1:
        assert entries_of(data, LogId(first + 1, 0)) == found[1:]


@each_case(
    "entry",
    [
        configuration_entry(3, Configuration(VOTERS), HEAD),
        configuration_entry(3, Configuration((IPV6,)), HEAD),
        configuration_entry(3, Configuration((replace(VOTERS[0], server_id=ReplicaKey(0)),)), HEAD),
        configuration_entry(3, Configuration((Server(ReplicaKey(4), ""),)), HEAD),
        configuration_entry(3, Configuration(VOTERS), HEAD + b"\x00\x00\x00\x02"),
        configuration_entry(3, Configuration(VOTERS), HEAD + b"\x00\x00\x00\x02" * 2 + b"\x00\x01\x00\x02"),
        no_op_entry(3, NoOp(ReplicaKey(2), (ReplicaKey(1), ReplicaKey(2)), ()), HEAD),
        no_op_entry(3, NoOp(), HEAD),
        Entry(3, EntryKind.CONTROL, control_data(1_000, b"", 5)),
        Entry(3, EntryKind.CONTROL, HEAD + b"\x01\x01\x00"),
        Entry(3, EntryKind.CONTROL, HEAD + b"\x08\x00\x00\x00\x02\x01\x00"),
    ],
)
def test_control_record_round_trips(entry: Entry) -> None:
    data = batches_of(8, (entry,))
    assert entries_of(data, LogId(7, 3)) == (entry,)
    assert [batch.is_control for batch in read_batches(data)] == [True]


@each_case(
    "entry",
    [
        configuration_entry(1, Configuration(VOTERS, learners=VOTERS[:1]), HEAD),
        configuration_entry(1, Configuration(VOTERS, VOTERS[:1]), HEAD),
        configuration_entry(1, Configuration((Server(5, "tcp://a"),)), HEAD),
        configuration_entry(1, Configuration((replace(VOTERS[0], endpoint="other:1"),)), HEAD),
        configuration_entry(1, Configuration((replace(VOTERS[0], endpoint="x", listeners=(("C", "x"),)),)), HEAD),
        configuration_entry(
            1, Configuration((replace(VOTERS[0], endpoint="x:99999", listeners=(("C", "x:99999"),)),)), HEAD
        ),
        configuration_entry(1, Configuration(VOTERS)),
        configuration_entry(1, Configuration(VOTERS), HEAD + b"\x00\x00\x00\x02" * 2),
        no_op_entry(1, NoOp(7), HEAD),
        no_op_entry(1, NoOp(ReplicaKey(2**31)), HEAD),
        no_op_entry(1, NoOp()),
        Entry.command(1, b""),
        Entry.command(1, HEAD),
        Entry(1, EntryKind.CONFIGURATION, b"none"),
    ],
)
def test_entry_without_kafka_form_is_refused(entry: Entry) -> None:
    with pytest.raises(KafkaWireError):
        batches_of(1, (entry,))


def voters_record(*, change: Callable[[bytes], bytes], version: int = 0) -> bytes:
    [batch] = read_batches(batches_of(1, (configuration_entry(1, Configuration(VOTERS), HEAD),)))
    [record] = batch.records
    key = version.to_bytes(2) + (6).to_bytes(2)
    return encode_batch(replace(batch, records=(replace(record, key=key, value=change(record.value or b"")),)))


@each_case(
    ("data", "words"),
    [
        (voters_record(change=lambda value: value, version=1), "version 1"),
        (voters_record(change=lambda value: b"\x00\x01" + value[2:]), "version 1"),
        (voters_record(change=lambda value: value[:-1] + b"\x01\x00\x00"), "later version"),
        (voters_record(change=lambda value: value + b"\x00"), "trail"),
        (voters_record(change=lambda _: b"\x00\x00\x01\x00"), "is empty"),
        (voters_record(change=lambda value: value[:2] + b"\xff\xff\xff\xff\x07" + value[3:]), "elements"),
        (
            voters_record(change=lambda value: value.replace(b"\x00\x00\x00\x02\x02", b"\x00\x00\x00\x01\x02")),
            "duplicate",
        ),
    ],
)
def test_invalid_voters_record_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(KafkaWireError, match=words):
        entries_of(data, LogId(0, 0))


def test_leader_change_with_extra_fields_stays_raw_control_entry() -> None:
    [batch] = read_batches(batches_of(1, (no_op_entry(1, NoOp(ReplicaKey(1)), HEAD),)))
    [record] = batch.records
    data = encode_batch(replace(batch, records=(replace(record, value=(record.value or b"")[:-1] + b"\x01\x09\x01x"),)))
    [entry] = entries_of(data, LogId(0, 0))
    assert entry.kind is EntryKind.CONTROL
    assert batches_of(1, (entry,)) == data


@pytest.mark.parametrize(
    ("times", "is_read"),
    [
        ((0, 2**62, 2**62 - 2**63 + 1), True),
        ((0, 2**62, 2**62 - 2**63), False),
        ((2**63 - 1, 0), True),
        ((2**63 - 1, -1), False),
    ],
)
def test_times_of_read_batch_fit_into_later_batches(times: tuple[int, ...], *, is_read: bool) -> None:
    data = encode_batch(RecordBatch(0, 1, tuple(Record(each, None, b"v") for each in times)))
    if not is_read:
        with pytest.raises(KafkaWireError, match="the records of a batch have times"):
            read_batches(data)
        return
    [batch] = read_batches(data)
    entries = tuple(Entry(1, EntryKind.COMMAND, each) for each in data_of(batch))
    for first in range(len(entries)):
        part = batches_of(first + 1, entries[first:])
        assert entries_of(part, LogId(first, 1)) == entries[first:]


def test_append_time_below_range_is_refused() -> None:
    data = encode_batch(RecordBatch(0, 1, (Record(-(2**63), None, b"v"),), log_append_time=True))
    with pytest.raises(KafkaWireError, match="have times from -9223372036854775808"):
        read_batches(_with_first_time(data, 0))


def _with_first_time(data: bytes, time_ms: int) -> bytes:
    """Return a batch with another time of its first record."""
    content = data[21:27] + time_ms.to_bytes(8, signed=True) + data[35:]
    return data[:17] + crc32c(content).to_bytes(4) + content


@pytest.mark.parametrize("position", [LogId(6, 1), LogId(9, 1), LogId(7, 4)])
def test_batches_for_another_position_are_refused(position: LogId) -> None:
    """In order: a gap, records already in the log, and an epoch later than the epoch of the batch."""
    data = batches_of(8, entries_of_client_batch(term=3))
    assert len(entries_of(data, LogId(7, 3))) == 2
    with pytest.raises(KafkaWireError):
        entries_of(data, position)


def test_gap_or_overlap_between_batches_is_refused() -> None:
    data = batches_of(1, entries_of_client_batch())
    for first in (2, 4):
        with pytest.raises(KafkaWireError, match="follows"):
            entries_of(data + batches_of(first, entries_of_client_batch()), LogId(0, 0))


def test_decreasing_or_negative_epoch_is_refused() -> None:
    for epoch in (1, -1):
        data = batches_of(1, entries_of_client_batch(term=2)) + encode_batch(
            replace(BATCH, base_offset=2, leader_epoch=epoch)
        )
        with pytest.raises(KafkaWireError, match="epoch"):
            entries_of(data, LogId(0, 0))


def test_batch_ends_before_incompatible_entry() -> None:
    """A new batch starts at an incompatible entry, even if the previous entry marks its batch as continued.

    Incompatible: a different epoch, kind, producer, sequence or transactional flag, or an entry beyond the limits.
    """
    open_entry = entries_of_client_batch()[0]
    others = (
        entries_of_client_batch(term=2)[1],
        entries_of_client_batch(producer_id=8)[1],
        entries_of_client_batch(base_sequence=5)[1],
        entries_of_client_batch(is_transactional=True)[1],
    )
    for other in (*others, Entry(1, EntryKind.CONTROL, control_data(9, b"", 1))):
        assert len(read_batches(batches_of(1, (open_entry, other)))) == 2
    whole = entries_of_client_batch()
    assert len(read_batches(batches_of(1, whole))) == 1
    assert len(read_batches(batches_of(1, whole, Limits(max_batch_records=1)))) == 2
    assert len(read_batches(batches_of(1, whole, Limits(max_batch_bytes=30)))) == 2


def test_replicas_receive_incomplete_batch_only_if_alone() -> None:
    first, second = entries_of_client_batch(), entries_of_client_batch()
    assert batch_continues_after(first[0])
    assert not batch_continues_after(first[1])
    assert batches_for_replicas(1, (*first, second[0])) == batches_of(1, first)
    assert batches_for_replicas(1, first[:1]) == batches_of(1, first[:1])


def test_fetched_entries_are_limited() -> None:
    """Only complete batches within the limits count, because compressed batches can inflate to gigabytes."""
    bomb = entries_of_client_batch(records=(Record(1, None, bytes(1_000)),), producer_id=-1, producer_epoch=-1)
    data = b"".join(
        encode_batch(replace(batch, compression=Compression.GZIP)) for batch in read_batches(batches_of(1, bomb * 50))
    )
    assert len(fetched_entries(data, LogId(0, 0))) == 50
    assert len(fetched_entries(data, LogId(0, 0), Limits(max_fetched_bytes=9_500))) == 10
    assert len(fetched_entries(data, LogId(0, 0), Limits(max_fetched_entries=3))) == 3
    assert fetched_entries(data, LogId(0, 0), Limits(max_fetched_entries=1)) == entries_of(data, LogId(0, 0))[:1]


def test_entry_head_has_fields_of_its_batch() -> None:
    first, second = entries_of_client_batch()
    assert entry_head(first.data) != entry_head(second.data)
    heads = [entry_head(each.data) for each in (first, second)]
    assert [(head.timestamp_ms, head.producer_id, head.sequence, head.batch_continues) for head in heads if head] == [
        (5, 7, -1, True),
        (4, 7, -1, False),
    ]
    assert entry_head(b"\x00" * 8) is entry_head(b"\x02" + b"\x00" * 20) is None


@given(st.binary(max_size=300), st.integers(0, 2**15 - 1), st.binary(max_size=20))
def test_control_value_round_trips(value: bytes, control_type: int, other: bytes) -> None:
    data = control_data(control_type, value, 3)
    assert control_value(data, control_type) == value
    assert control_value(data, control_type ^ 1) is None
    for damage in (data[:-1], data + b"\x00", other, data[:9] + other):
        assert control_value(damage, control_type) in (None, value)
