"""The bytes of the history file: round trips, the ring, writes torn at any byte, and arbitrary content."""

import struct
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bridge.core.history.records import (
    ALARMS_MAX,
    LATEST_MS,
    LEAVES_MAX,
    MINUTE_MS,
    NAME_LIMIT_BYTES,
    NODES_MAX,
    ROWS_MAX,
    TEXT_LIMIT_BYTES,
    Break,
    BreakCause,
    Record,
    Row,
    RowKind,
    Sample,
    SeriesKind,
    State,
    StateRecord,
)
from bridge.core.state.farm_state import MASTERS_MAX
from bridge.wire.history.records import HEADER_BYTES, RegionError, decode_region, encode_header, encode_row
from bridge.wire.history.ring import FILE_BYTES, REGION_BYTES, REGIONS, RingWriter, Write, read_ring
from tests.effort import over_seeds

NOW_MS = 1_760_000_000_000
OSLO = Row(RowKind.NODE, "oslo")
LEAF = Row(RowKind.LEAF, "a" * 52 + ".b32.i2p", "oslo")
RTT = Row(SeriesKind.ROUND_TRIP, "kyoto")
ALIVE, DEAD = State("alive", 0), State("dead", 2)
EXAMPLE: tuple[Record, ...] = (
    Break(NOW_MS, BreakCause.START, 0),
    StateRecord(NOW_MS, OSLO, ALIVE),
    StateRecord(NOW_MS, LEAF, State("its service does not answer the probe", 2)),
    Sample(NOW_MS + MINUTE_MS, (NOW_MS + MINUTE_MS) // MINUTE_MS, ((RTT, 1.5),)),
    StateRecord(NOW_MS + MINUTE_MS, OSLO, None),
)
names = some.none() | some.text(max_size=24)
times = some.integers(1, LATEST_MS - 1)
state_rows = some.builds(Row, some.sampled_from(RowKind), names, names)
series_rows = some.builds(Row, some.sampled_from(SeriesKind), names, some.none())
values = some.dictionaries(series_rows, some.integers(0, 2_048).map(float), max_size=5)
records_of_any_kind = (
    some.builds(
        StateRecord, times, state_rows, some.none() | some.builds(State, some.text(max_size=40), some.integers(0, 2))
    )
    | some.builds(Sample, times, some.integers(0, 2**31), values.map(lambda found: tuple(found.items())))
    | some.builds(Break, times, some.sampled_from(BreakCause), some.just(0) | times)
)


def written(data: bytearray, writes: list[Write]) -> bytearray:
    for each in writes:
        assert 0 <= each.offset <= FILE_BYTES - len(each.data)
        data[each.offset : each.offset + len(each.data)] = each.data
    return data


def made(records: tuple[Record, ...]) -> bytes:
    return bytes(written(bytearray(FILE_BYTES), RingWriter(None).append(records)))


def kept(data: bytes) -> list[Record]:
    return [record for part in read_ring(data).parts for record in part]


def test_history_example_returns() -> None:
    assert read_ring(made(EXAMPLE)).parts == (EXAMPLE,)


def test_history_example_has_documented_bytes() -> None:
    data = made(EXAMPLE)
    assert data[4:12] == b"GFARMHIS"
    assert struct.unpack_from(">HHQI", data, 12) == (1, 0, 1, 0)
    assert crc32(data[4:28]) == int.from_bytes(data[:4], "big")
    checksum, length, kind, time_ms, cause, last_ms = struct.unpack_from(">IHBQBQ", data, 28)
    assert (length, kind, time_ms, cause, last_ms) == (18, 5, NOW_MS, 1, 0)
    assert checksum == crc32(data[32:52], 1)
    assert struct.unpack_from(">BHBB4sB", data, 52 + 6) == (1, 0, 5, 4, b"oslo", 255)


@given(some.lists(records_of_any_kind, max_size=20))
def test_history_any_records_return(records: list[Record]) -> None:
    assert kept(made(tuple(records))) == records


def test_history_empty_file_is_new() -> None:
    for data in (b"", bytes(FILE_BYTES)):
        assert read_ring(data) == read_ring(b"")


@pytest.mark.parametrize("data", [b"x", b"#!/bin/sh\n", b"\xff" * FILE_BYTES, b"GFARMHIS" * 100], ids=range(4))
def test_history_foreign_file_is_refused(data: bytes) -> None:
    with pytest.raises(RegionError):
        read_ring(data)


def test_history_other_version_is_refused() -> None:
    header = bytearray(encode_header(1))
    header[13] = 2
    header[:4] = crc32(header[4:]).to_bytes(4, "big")
    with pytest.raises(RegionError, match="version 2"):
        read_ring(bytes(header))


def test_history_torn_last_write_keeps_earlier_records() -> None:
    writer = RingWriter(None)
    before = written(bytearray(FILE_BYTES), writer.append(EXAMPLE[:4]))
    (last,) = writer.append(EXAMPLE[4:])
    whole = written(bytearray(before), [last])
    for size in range(len(last.data)):
        torn = written(bytearray(before), [Write(last.offset, last.data[:size])])
        found = read_ring(bytes(torn))
        assert found.parts == (EXAMPLE if torn == whole else EXAMPLE[:4],)
        assert found.cut_off <= 1
        resumed = written(torn, RingWriter(found.last).append(EXAMPLE[:2]))
        assert kept(bytes(resumed)) == [*found.parts[0], *EXAMPLE[:2]]
        assert read_ring(bytes(resumed)).cut_off == 0


def test_history_ring_drops_oldest_region() -> None:
    writer, data = RingWriter(None), bytearray(FILE_BYTES)
    written(data, writer.append([Break(NOW_MS, BreakCause.START, 0), StateRecord(NOW_MS, LEAF, ALIVE)]))
    count = 3 * FILE_BYTES // 400
    for number in range(count):
        written(data, writer.append([StateRecord(NOW_MS + number, OSLO, State("x" * 190 + str(number % 10), 0))]))
    found = read_ring(bytes(data))
    assert (len(found.parts), found.cut_off) == (1, 0)
    times_ms = [each.time_ms for each in found.parts[0]]
    assert times_ms == sorted(times_ms)
    assert times_ms[-1] == NOW_MS + count - 1
    assert len(times_ms) * 210 > FILE_BYTES * (REGIONS - 1) / REGIONS
    assert any(isinstance(each, StateRecord) and each.row == LEAF for each in found.parts[0]), "a state of every row"


def test_history_start_of_region_has_room_for_all_states() -> None:
    assert 2 + MASTERS_MAX + ALARMS_MAX + NODES_MAX + LEAVES_MAX <= ROWS_MAX
    name, text = "n" * 2 * NAME_LIMIT_BYTES, "t" * 2 * TEXT_LIMIT_BYTES
    rows = [Row(RowKind.LEAF, f"{number}{name}", name) for number in range(ROWS_MAX)]
    writer, data = RingWriter(None), bytearray(FILE_BYTES)
    written(data, writer.append(StateRecord(NOW_MS, row, State(text, 0)) for row in rows))
    for _ in range(REGION_BYTES // 200):
        written(data, writer.append([StateRecord(NOW_MS, rows[0], State(text, 1))]))
    begun = decode_region(bytes(data[REGION_BYTES : 2 * REGION_BYTES]))
    assert len({each.row for each in begun.records if isinstance(each, StateRecord)}) == ROWS_MAX
    assert begun.end < REGION_BYTES


def test_history_restarts_do_not_use_up_ring() -> None:
    data = bytearray(FILE_BYTES)
    for _ in range(100):
        written(data, RingWriter(read_ring(bytes(data[:REGION_BYTES])).last).append(EXAMPLE))
    assert not any(data[REGION_BYTES:])


@over_seeds(400, quick=2)
def test_history_kill_at_any_write_keeps_earlier_writes(seed: int) -> None:
    random, data = Random(seed), bytearray(FILE_BYTES)
    time_ms = durable_ms = NOW_MS
    for _ in range(5):
        found = read_ring(bytes(data))
        times_ms = [record.time_ms for record in kept(bytes(data))]
        assert times_ms == sorted(times_ms), f"seed {seed}"
        assert durable_ms in [NOW_MS, *times_ms], f"seed {seed}"
        writer = RingWriter(found.last)
        for _ in range(random.randrange(1, 40)):
            records: list[Record] = []
            for _ in range(random.choice((1, 2, 600))):
                time_ms += 1
                state = State("x" * random.choice((3, 30, 200)) + str(time_ms % 2), 0)
                records.append(StateRecord(time_ms, Row(RowKind.NODE, f"node-{random.randrange(9)}"), state))
            writes = writer.append(records)
            if random.random() < 0.1:
                number = random.randrange(len(writes))
                torn = writes[number]
                part = Write(torn.offset, torn.data[: random.randrange(len(torn.data))])
                written(data, [*writes[:number], part])
                break
            written(data, writes)
            durable_ms = time_ms


@given(some.binary(max_size=600))
def test_region_of_arbitrary_bytes_is_read_or_refused(data: bytes) -> None:
    for candidate in (data, encode_header(7) + data, encode_header(7) + encode_row(7, 0, OSLO) + data):
        try:
            region = decode_region(candidate)
        except RegionError:
            continue
        assert HEADER_BYTES <= region.end <= max(HEADER_BYTES, len(candidate))


@over_seeds(2_000, quick=20)
def test_region_with_valid_checksum_is_read_or_cut(seed: int) -> None:
    """A record with a correct checksum and any content: the decoder checks each field."""
    random = Random(seed)
    data = encode_header(1) + encode_row(1, 0, OSLO) + encode_row(1, 1, RTT)
    for _ in range(5):
        rest = bytes([random.choice((0, 1, 2, 3, 4, 5, 6, 255))]) + random.randbytes(random.randrange(40))
        if random.random() < 0.5:
            rest = rest[:1] + NOW_MS.to_bytes(8, "big") + rest[1:]
        framed = len(rest).to_bytes(2, "big") + rest
        data += crc32(framed, 1).to_bytes(4, "big") + framed
    region = decode_region(data)
    assert all(0 < each.time_ms < LATEST_MS for each in region.records), f"seed {seed}"


@over_seeds(2_000, quick=20)
def test_history_with_damaged_bytes_is_read_or_refused(seed: int) -> None:
    random, data = Random(seed), bytearray(made(EXAMPLE * 3))
    for _ in range(random.randrange(1, 4)):
        data[random.randrange(400)] ^= random.randrange(1, 256)
    try:
        found = read_ring(bytes(data))
    except RegionError:
        return
    records = [record for part in found.parts for record in part]
    assert records == list(EXAMPLE * 3)[: len(records)], f"seed {seed}"
    assert found.cut_off or len(records) == len(EXAMPLE * 3)
