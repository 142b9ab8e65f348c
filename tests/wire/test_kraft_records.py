"""Record batches of Kafka's format 2: against kafka-python's own, round trips, and damaged or hostile bytes."""

import gzip
import warnings

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.protocols.kraft.wire.compression import compress, decompress
from consensus.protocols.kraft.wire.limits import KafkaWireError, Limits
from consensus.protocols.kraft.wire.record_batches import decode_batch, encode_batch, read_batches
from consensus.protocols.kraft.wire.records import Compression, Record, RecordBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of kafka-python's own, while it loads its schemas
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
def test_a_batch_reads_back_as_it_was_written(
    records: tuple[Record, ...],
    compression: Compression,
    is_control: bool,  # noqa: FBT001
) -> None:
    """Whatever its records are and however they are compressed."""
    batch = RecordBatch(2**40, 9, records, compression=compression, is_control=is_control, base_sequence=4)
    assert decode_batch(encode_batch(batch)) == batch


@given(_RECORDS)
def test_kafka_python_reads_what_we_write(records: tuple[Record, ...]) -> None:
    """Offsets, timestamps, keys, values and headers; the checksum holds."""
    theirs = MemoryRecords(encode_batch(RecordBatch(17, 2, records))).next_batch()
    assert theirs.validate_crc()
    found = [(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in theirs]
    assert found == [
        (17 + index, each.timestamp_ms, each.key, each.value, each.headers) for index, each in enumerate(records)
    ]


@given(_RECORDS)
def test_we_read_what_kafka_python_writes(records: tuple[Record, ...]) -> None:
    """The same bytes as ours for the same records."""
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


def test_every_cut_and_every_changed_byte_is_refused() -> None:
    """Only offset and epoch lie outside the checksum."""
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


def test_a_partial_batch_at_the_end_is_ignored() -> None:
    """A Fetch answer ends where its bytes do."""
    data = encode_batch(_SMALL)
    assert read_batches(data + data[:-1]) == [_SMALL]


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_refused(magic: int) -> None:
    """By their magic byte."""
    data = bytearray(encode_batch(_SMALL))
    data[16] = magic
    with pytest.raises(KafkaWireError, match="only format 2"):
        read_batches(bytes(data))


@pytest.mark.parametrize("compression", [each for each in Compression if each])
def test_a_decompression_bomb_is_refused(compression: Compression) -> None:
    """A batch of a few kilobytes that would become a hundred thousand."""
    bomb = compress(bytes(100_001), compression)
    assert decompress(bomb, compression, 100_001) == bytes(100_001)
    with pytest.raises(KafkaWireError):
        decompress(bomb, compression, 100_000)
    with pytest.raises(KafkaWireError):
        decompress(bomb[:-5], compression, 200_000)


def test_other_framings_are_read() -> None:
    """A raw block of snappy, as librdkafka writes it, and two members of gzip."""
    data = b"garlic" * 99
    assert decompress(bytes(cramjam.snappy.compress_raw(data)), Compression.SNAPPY, 1_000) == data
    assert decompress(gzip.compress(data) * 2, Compression.GZIP, 2_000) == data * 2


@pytest.mark.parametrize(
    ("data", "compression", "text"),
    [
        (gzip.compress(b"") * 100, Compression.GZIP, "more than 64 members"),
        (XERIAL + b"\x00\x00\x00\x01\x00" * 100, Compression.SNAPPY, "more than 17 blocks"),
        (b"\xff\x07\x00a", Compression.SNAPPY, "says that it becomes 1023"),
    ],
    ids=["members", "blocks", "announced"],
)
def test_empty_members_and_announced_lengths_cost_nothing(data: bytes, compression: Compression, text: str) -> None:
    """A few bytes make an empty member or block, and any length."""
    with pytest.raises(KafkaWireError, match=text):
        decompress(data, compression, 1_024)


def test_the_headers_of_all_records_of_a_batch_have_a_limit() -> None:
    """Each record alone is within its own."""
    batch = RecordBatch(0, 0, (Record(0, None, None, (("h", None),) * 6),) * 5)
    assert decode_batch(encode_batch(batch), Limits(max_headers=6, max_batch_headers=30)) == batch
    with pytest.raises(KafkaWireError, match="more than 29 headers"):
        decode_batch(encode_batch(batch), Limits(max_headers=6, max_batch_headers=29))


def test_the_limits_hold_on_the_size_of_a_batch_and_on_its_records() -> None:
    """Each is refused with the limit in the text."""
    data = encode_batch(_SMALL)
    for limits in (Limits(max_batch_bytes=70), Limits(max_batch_records=1), Limits(max_headers=0)):
        with pytest.raises(KafkaWireError):
            decode_batch(data, limits)
