"""Records and segment headers: round trips, and one error for any damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.core.entry_data import (
    EntryDataError,
    configuration_entry,
    decode_configuration,
    decode_group,
    decode_id,
    decode_no_op,
    encode_configuration,
    encode_group,
    encode_id,
    no_op_entry,
    no_op_head,
)
from consensus.core.model import (
    MAX_ID_CHARACTERS,
    Configuration,
    Entry,
    EntryKind,
    LogId,
    NoOp,
    ReplicaKey,
    Server,
    ServerId,
)
from consensus.storage.records import (
    CUT,
    ENTRY_LIMIT_BYTES,
    GROUP,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Binding,
    RecordError,
    SegmentHeader,
    decode_payload,
    decode_record_header,
    decode_segment_header,
    encode_cut,
    encode_record,
    encode_segment_header,
)
from tests.effort import each_case

BINDING = Binding(b"node-one", bytes(range(16)))
SEED = BINDING.seed

texts = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=MAX_ID_CHARACTERS)
ids = st.one_of(
    st.integers(1, 2**31 - 1),
    st.integers(2**31, 2**63 - 1),
    texts,
    st.builds(ReplicaKey, st.integers(0, 2**63 - 1), st.just(b"") | st.binary(min_size=16, max_size=16)),
)
listeners = st.lists(st.tuples(st.text(max_size=20), st.text(max_size=40)), max_size=3).map(tuple)
servers = st.builds(Server, ids, st.text(max_size=40), st.just(()) | listeners)
lists = st.lists(servers, max_size=7).map(tuple)
terms = st.integers(0, 2**63 - 1)
id_lists = st.lists(ids, max_size=7).map(tuple)
entries = st.one_of(
    st.builds(Entry.command, terms, st.binary(max_size=300)),
    st.builds(configuration_entry, terms, st.builds(Configuration, lists, st.just(()) | lists, st.just(()) | lists)),
    st.builds(Entry, terms, st.just(EntryKind.CONTROL), st.binary(max_size=300)),
    st.builds(no_op_entry, terms, st.builds(NoOp, st.none() | ids, id_lists, id_lists)),
)


groups = st.lists(entries, min_size=1, max_size=5).map(tuple)


def record_of(group: tuple[Entry, ...], first: int = 5, previous_term: int = 1, durable: int = 4) -> bytes:
    return encode_record(SEED, first, previous_term, durable, len(group), encode_group(group))


def decode(record: bytes) -> tuple[Entry, ...] | None:
    header = decode_record_header(SEED, record)
    return None if header is None else decode_payload(SEED, header, record[RECORD_HEADER_BYTES : header.size_bytes])


@given(groups, terms, terms, terms)
def test_group_round_trips(group: tuple[Entry, ...], first: int, before: int, to: int) -> None:
    record = record_of(group, first, before, to)
    header = decode_record_header(SEED, record)
    assert header is not None
    assert (header.kind, header.first, header.count) == (GROUP, first, len(group))
    assert (header.previous_term, header.durable) == (before, to)
    assert header.size_bytes == len(record)
    assert decode(record) == group


def test_cut_names_first_removed_entry() -> None:
    record = encode_cut(SEED, 7, 3, 6)
    header = decode_record_header(SEED, record)
    assert header is not None
    assert (header.kind, header.first, header.previous_term, header.durable) == (CUT, 7, 3, 6)
    assert header.size_bytes == len(record) == RECORD_HEADER_BYTES


@given(groups, st.data())
def test_damaged_record_is_refused(group: tuple[Entry, ...], data: st.DataObject) -> None:
    record = record_of(group)
    bit = data.draw(st.integers(0, len(record) * 8 - 1))
    flipped = bytearray(record)
    flipped[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(RecordError):
        decode(bytes(flipped))
    cut = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(RecordError):
        decode(record[:cut])


@given(entries)
def test_entry_content_round_trips_in_one_form(entry: Entry) -> None:
    """The entries have ids of all kinds, and named endpoints. If two forms existed, equal entries could differ."""
    match entry.kind:
        case EntryKind.CONFIGURATION:
            assert configuration_entry(entry.term, decode_configuration(entry.data)) == entry
        case EntryKind.NO_OP:
            assert no_op_entry(entry.term, decode_no_op(entry.data)) == entry
        case EntryKind.COMMAND | EntryKind.CONTROL:
            pass


def test_integers_of_32_bits_keep_their_stored_form() -> None:
    configuration = Configuration((Server(7, "tcp://a"),), learners=(Server(8, "b"),))
    expected = "0001 00000007 0007 7463703a2f2f61  0000  0001 00000008 0001 62"
    assert encode_configuration(configuration) == bytes.fromhex(expected)
    assert no_op_entry(1, NoOp(1, (1, 2), (2,))).data == bytes.fromhex("00000001 0002 0001 00000001 00000002 00000002")


@each_case(
    "general",
    [
        "ffff 0001 01 0000000000000007 0000 0001 61",  # must have the compact form
        "ffff 0001 03 0000000000000007 05 0000 0001 61",  # a directory of 5 bytes
        "ffff 0001 02 0000 0000 0001 61",  # an empty name
        "ffff 0001 04 0000 0001 61",  # an unknown kind
        "ffff 0001 02 0001 61 0001 0001 61",  # a truncated listener
    ],
)
def test_configuration_in_another_form_is_refused(general: str) -> None:
    with pytest.raises(EntryDataError):
        decode_configuration(bytes.fromhex(general))


@each_case("impossible", ["", "x" * 256, "a\nb", "\ud800", ReplicaKey(1, b"short"), ReplicaKey(-1), 0, -5])
def test_invalid_server_id_is_not_encoded(impossible: ServerId) -> None:
    with pytest.raises(EntryDataError):
        encode_id(impossible)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_record_errors(rubbish: bytes) -> None:
    for decoder in (decode, decode_group, decode_configuration, decode_no_op, decode_id, decode_segment_header):
        try:
            decoder(rubbish)
        except (RecordError, EntryDataError):
            continue


def test_zeros_are_unwritten_space() -> None:
    assert decode_record_header(SEED, bytes(RECORD_HEADER_BYTES)) is None


def test_record_of_another_storage_is_refused() -> None:
    record = record_of((Entry.command(1, b"x"),))
    with pytest.raises(RecordError):
        decode_record_header(Binding(b"node-one", bytes(16)).seed, record)


def test_entry_beyond_limit_is_refused() -> None:
    record_of((Entry.command(1, bytes(ENTRY_LIMIT_BYTES)),))
    with pytest.raises(RecordError, match="at most"):
        record_of((Entry.command(1, bytes(ENTRY_LIMIT_BYTES + 1)),))


def test_endpoint_too_long_for_its_field_is_refused() -> None:
    with pytest.raises(EntryDataError):
        encode_configuration(Configuration((Server(1, "x" * 70_000),)))


def test_segment_header_round_trips_or_is_refused() -> None:
    header = SegmentHeader(BINDING, LogId(41, 3), 65_536)
    block = encode_segment_header(header)
    assert len(block) == SEGMENT_HEADER_BYTES
    assert decode_segment_header(block) == header
    for place in range(0, SEGMENT_HEADER_BYTES, 7):
        damaged = bytearray(block)
        damaged[place] ^= 0x10
        with pytest.raises(RecordError):
            decode_segment_header(bytes(damaged))
    with pytest.raises(RecordError):
        decode_segment_header(block[:-1])


def test_no_op_keeps_head_of_its_protocol() -> None:
    with_keys = NoOp(ReplicaKey(1, b"d" * 16), (ReplicaKey(1, b"d" * 16),), ())
    for no_op in (NoOp(), NoOp(3, (1, 2, 3), (1, 3)), with_keys):
        entry = no_op_entry(4, no_op, b"made at noon")
        assert (decode_no_op(entry.data), no_op_head(entry.data)) == (no_op, b"made at noon")
        assert no_op_head(no_op_entry(4, no_op).data) == b""


@pytest.mark.parametrize("data", [b"\x80\0\0\x01", b"\x80\0\0\x01\0", b"\x80\0\0\x01\x02a", b"\x80\0\0\x01\x01a" * 2])
def test_no_op_with_malformed_head_is_refused(data: bytes) -> None:
    with pytest.raises(EntryDataError):
        decode_no_op(data)
    with pytest.raises(EntryDataError):
        no_op_head(data)


def test_no_op_head_beyond_limit_is_refused() -> None:
    with pytest.raises(EntryDataError, match="256 bytes; at most 255"):
        no_op_entry(1, NoOp(), bytes(256))
