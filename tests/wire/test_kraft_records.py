"""Record batches of Kafka's format 2: compared with kafka-python and kio, round trips, and damaged or hostile bytes.

`tests/interop/kafka/test_librdkafka_batches.py` compares them with librdkafka's, with each compression.
"""

import datetime as dt
import gzip
import io
import warnings

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records import schema as kio_schema
from kio.records.readers import read_batch
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from consensus.protocols.kafka.wire.compression import decompress
from consensus.protocols.kafka.wire.limits import KafkaWireError, Limits
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from tests.wire.record_batches import compress, decode_batch, encode_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python raises it while it loads its schemas
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder

_FIELD = st.none() | st.binary(max_size=40)
_RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(0, 2**45),
        _FIELD,
        _FIELD,
        st.lists(st.tuples(st.text(max_size=9), _FIELD), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=150,
).map(tuple)
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_SMALL = RecordBatch(
    7, 3, (Record(1_000, b"k", b"v" * 200, (("h", b"x"),)), Record(990, None, None)), producer_id=5, producer_epoch=0
)


@given(_RECORDS, st.sampled_from(Compression), st.booleans())
def test_batch_round_trips(
    records: tuple[Record, ...],
    compression: Compression,
    is_control: bool,  # noqa: FBT001
) -> None:
    batch = RecordBatch(2**40, 9, records, compression=compression, is_control=is_control, base_sequence=4)
    assert decode_batch(encode_batch(batch)) == batch


@given(_RECORDS)
def test_kafka_python_reads_encoded_batch(records: tuple[Record, ...]) -> None:
    """Compared: offsets, timestamps, keys, values, headers and the checksum."""
    theirs = MemoryRecords(encode_batch(RecordBatch(17, 2, records))).next_batch()
    assert theirs.validate_crc()
    found = [(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in theirs]
    assert found == [
        (17 + index, each.timestamp_ms, each.key, each.value, each.headers) for index, each in enumerate(records)
    ]


@given(_RECORDS)
def test_batch_of_kafka_python_decodes(records: tuple[Record, ...]) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10**9,
    )
    for index, each in enumerate(records):
        builder.append(index, each.timestamp_ms, each.key, each.value, list(each.headers))
    assert decode_batch(bytes(builder.build())).records == records


@given(_RECORDS)
def test_kio_reads_encoded_batch(records: tuple[Record, ...]) -> None:
    """Compared: offsets, keys, values, headers, and timestamps in seconds, because kio does not keep milliseconds."""
    data = encode_batch(RecordBatch(17, 2, records, producer_id=5, producer_epoch=1, base_sequence=9))
    theirs, size = read_batch(data, 0)
    assert size == len(data)
    assert (theirs.base_offset, theirs.partition_leader_epoch, theirs.last_offset_delta) == (17, 2, len(records) - 1)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 1, 9)
    for offset, (ours, read) in enumerate(zip(records, theirs.records, strict=True), 17):
        headers = tuple(((each.key or b"").decode(), each.value) for each in read.headers)
        assert (read.offset, read.key, read.value, headers) == (offset, ours.key, ours.value, ours.headers)
        assert int(read.timestamp.timestamp()) == ours.timestamp_ms // 1000


@given(_RECORDS)
def test_batch_of_kio_decodes(records: tuple[Record, ...]) -> None:
    """The timestamps are whole seconds, because kio does not keep milliseconds."""
    whole = tuple(Record(each.timestamp_ms // 1000 * 1000, each.key, each.value, each.headers) for each in records)
    buffer = io.BytesIO()
    write_new_batch(
        buffer,
        kio_schema.NewRecordBatch(
            producer_id=i64(5),
            producer_epoch=i16(1),
            partition_leader_epoch=i32(2),
            base_sequence=i32(9),
            attributes=i16(0),
            records=tuple(_of_kio(offset, each) for offset, each in enumerate(whole, 17)),
        ),
    )
    ours = decode_batch(buffer.getvalue())
    assert ours == RecordBatch(17, 2, whole, producer_id=5, producer_epoch=1, base_sequence=9)


def _of_kio(offset: int, record: Record) -> kio_schema.Record:
    return kio_schema.Record(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(dt.datetime.fromtimestamp(record.timestamp_ms / 1000, dt.UTC)),
        offset=i64(offset),
        key=record.key,
        value=record.value,
        headers=tuple(kio_schema.RecordHeader(key=name.encode(), value=value) for name, value in record.headers),
    )


def test_damaged_batch_is_refused() -> None:
    """Only a changed offset or epoch is not detected."""
    data = encode_batch(_SMALL)
    for length in range(len(data)):
        with pytest.raises(KafkaWireError):
            decode_batch(data[:length])
    for at in range(len(data)):
        if 8 <= at < 12 or at >= 16:
            changed = bytearray(data)
            changed[at] ^= 0x11
            with pytest.raises(KafkaWireError):
                decode_batch(bytes(changed))


def test_partial_batch_at_end_is_ignored() -> None:
    """A Fetch response may end within a batch, at its limit of bytes."""
    data = encode_batch(_SMALL)
    assert read_batches(data + data[:-1]) == [_SMALL]


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_refused(magic: int) -> None:
    data = bytearray(encode_batch(_SMALL))
    data[16] = magic
    with pytest.raises(KafkaWireError, match="only format 2"):
        read_batches(bytes(data))


@pytest.mark.parametrize("compression", [each for each in Compression if each])
def test_decompression_bomb_is_refused(compression: Compression) -> None:
    """A batch of a few kilobytes that would inflate to a hundred thousand bytes."""
    bomb = compress(bytes(100_001), compression)
    assert decompress(bomb, compression, 100_001) == bytes(100_001)
    with pytest.raises(KafkaWireError):
        decompress(bomb, compression, 100_000)
    with pytest.raises(KafkaWireError):
        decompress(bomb[:-5], compression, 200_000)


def test_other_compression_framings_are_read() -> None:
    """The examples are a raw block of snappy, as librdkafka writes it, and a gzip file of two members."""
    data = b"garlic" * 99
    assert decompress(bytes(cramjam.snappy.compress_raw(data)), Compression.SNAPPY, 1_000) == data
    assert decompress(gzip.compress(data) * 2, Compression.GZIP, 2_000) == data * 2


@pytest.mark.parametrize(
    ("data", "compression", "text"),
    [
        (gzip.compress(b"") * 100, Compression.GZIP, "more than 64 members"),
        (XERIAL + b"\x00\x00\x00\x01\x00" * 100, Compression.SNAPPY, "more than 17 blocks"),
        (b"\xff\x07\x00a", Compression.SNAPPY, "has the announced length 1023"),
    ],
    ids=["members", "blocks", "announced"],
)
def test_empty_members_and_announced_lengths_are_limited(data: bytes, compression: Compression, text: str) -> None:
    """A few bytes suffice for an empty member or block, or for any announced length."""
    with pytest.raises(KafkaWireError, match=text):
        decompress(data, compression, 1_024)


def test_headers_of_batch_are_limited() -> None:
    """Each record alone is within the limit per record."""
    batch = RecordBatch(0, 0, (Record(0, None, None, (("h", None),) * 6),) * 5)
    assert decode_batch(encode_batch(batch), Limits(max_headers=6, max_batch_headers=30)) == batch
    with pytest.raises(KafkaWireError, match="more than 29 headers"):
        decode_batch(encode_batch(batch), Limits(max_headers=6, max_batch_headers=29))


def test_size_and_record_count_of_batch_are_limited() -> None:
    data = encode_batch(_SMALL)
    for limits in (Limits(max_batch_bytes=70), Limits(max_batch_records=1), Limits(max_headers=0)):
        with pytest.raises(KafkaWireError):
            decode_batch(data, limits)
