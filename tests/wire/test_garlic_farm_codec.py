"""Garlic Farm messages: recorded bytes, hand-checked bytes, and invalid bytes."""

import gzip
import json
import struct
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.core.entry_data import ENTRY_HEAD
from consensus.core.model import Entry
from consensus.protocols.garlic_farm.wire import messages
from consensus.protocols.garlic_farm.wire.codec import (
    ReplyReader,
    RequestReader,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from consensus.protocols.garlic_farm.wire.entries import decode_entries, decode_value, encode_value
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.limits import MessageLimits
from consensus.protocols.garlic_farm.wire.log_pack import decode_log_pack, encode_log_pack
from consensus.protocols.garlic_farm.wire.values import (
    ClusterServer,
    Configuration,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
    Value,
    ValueType,
    WireEntry,
)
from tests.effort import each_case

VECTORS_PATH = Path(__file__).parent.parent / "vectors"
RECORDED: list[dict[str, Any]] = json.loads((VECTORS_PATH / "garlic-farm.json").read_text())["messages"]
BY_HAND: list[dict[str, Any]] = json.loads((VECTORS_PATH / "garlic-farm-by-hand.json").read_text())["messages"]
VECTORS = [*RECORDED, *BY_HAND]
VECTOR_IDS = [f"{number}-{vector['msg']}" for number, vector in enumerate(VECTORS)]


def described_entry(term: int, kind: str, value: Any) -> WireEntry:
    return (
        Entry.command(term, value.encode()) if kind == "Application" else LogEntry(term, described_value(kind, value))
    )


def described_value(kind: str, value: Any) -> Value:
    match kind:
        case "Configuration":
            servers = tuple(ClusterServer(server_id, endpoint) for server_id, endpoint in value["servers"])
            return Configuration(value["logIndex"], value["lastLogIndex"], servers)
        case "ClusterServer":
            return ClusterServer(value["id"], value.get("endpoint"))
        case "LogPack":
            return LogPack(value["index"][0], tuple(described_entry(*record) for record in value["entries"]))
        case "SnapshotSyncRequest":
            configuration = described_value("Configuration", value["configuration"])
            assert isinstance(configuration, Configuration)
            last, data = (value["lastLogIndex"], value["lastLogTerm"]), bytes.fromhex(value["data"])
            return SnapshotSyncRequest(*last, configuration, value["offset"], data, done=value["done"] == 1)
        case _:
            raise AssertionError(kind)


def described_message(vector: dict[str, Any]) -> messages.Message:
    message_class = getattr(messages, vector["msg"])
    if "nextIndex" in vector:
        reply: messages.Reply = message_class(
            source=vector["src"],
            destination=vector["dst"],
            term=vector["term"],
            next_index=vector["nextIndex"],
            accepted=vector["accepted"] == 1,
        )
        return reply
    request: messages.Request = message_class(
        source=vector["src"],
        destination=vector["dst"],
        term=vector["term"],
        last_log_term=vector["lastLogTerm"],
        last_log_index=vector["lastLogIndex"],
        commit_index=vector["commit"],
        entries=tuple(described_entry(entry["term"], entry["type"], entry["value"]) for entry in vector["entries"]),
    )
    return request


def encode(message: messages.Message) -> bytes:
    return encode_reply(message) if isinstance(message, messages.Reply) else encode_request(message)


def decode(data: bytes, like: messages.Message) -> messages.Message:
    return decode_reply(data) if isinstance(like, messages.Reply) else decode_request(data)


@each_case("vector", VECTORS, ids=VECTOR_IDS)
def test_recorded_message_decodes_to_described_meaning(vector: dict[str, Any]) -> None:
    expected = described_message(vector)
    found = decode(bytes.fromhex(vector["hex"]), expected)
    assert found == expected
    assert type(found).__name__ == vector["msg"]


@each_case("vector", VECTORS, ids=VECTOR_IDS)
def test_described_message_encodes_to_recorded_bytes(vector: dict[str, Any]) -> None:
    assert encode(described_message(vector)).hex() == vector["hex"]


@each_case("vector", BY_HAND, ids=lambda vector: vector["msg"])
def test_parts_of_handwritten_message_form_it(vector: dict[str, Any]) -> None:
    assert "".join(part for part, _ in vector["parts"]) == vector["hex"]
    assert all(meaning for _, meaning in vector["parts"])
    sizes = [len(part) // 2 for part, _ in vector["parts"]]
    layout = [1, 4, 4, 8, 8, 1] if "nextIndex" in vector else [1, 4, 4, 8, 8, 8, 8, 4]
    assert sizes[: len(layout)] == layout


def test_documented_message_types_have_vectors() -> None:
    found = {messages.MessageType(int(vector["hex"][:2], 16)) for vector in VECTORS}
    assert found == {each for each in messages.MessageType if each <= messages.MessageType.INSTALL_SNAPSHOT_RESPONSE}


# Written by hand from the layouts; spaces separate the fields.
ID_AND_TERM = "00000001 00000002 0000000000000003"
NO_LOG = "00000000"
HAND_CHECKED: list[tuple[messages.Message, str]] = [
    (
        messages.AddServerRequest(entries=(LogEntry(0, ClusterServer(4, "tcp://localhost:9004")),)),
        (
            "06 00000000 00000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 00000029"
            "0000000000000000 03 0000001c 00000004 00000014 7463703a2f2f6c6f63616c686f73743a39303034"
        ),
    ),
    (
        messages.AddServerResponse(source=1, destination=2, term=3, next_index=20, accepted=True),
        f"07 {ID_AND_TERM} 0000000000000014 01",
    ),
    (
        messages.LeaveClusterRequest(source=1, destination=2, term=3, last_log_index=19, commit_index=19),
        f"0e {ID_AND_TERM} 0000000000000000 0000000000000013 0000000000000013 {NO_LOG}",
    ),
    (
        messages.InstallSnapshotRequest(
            source=1,
            destination=2,
            term=3,
            last_log_term=2,
            last_log_index=100,
            commit_index=105,
            entries=(
                LogEntry(
                    3,
                    SnapshotSyncRequest(
                        100, 2, Configuration(18, 1, (ClusterServer(1, "a"),)), 4096, b"\xca\xfe", done=True
                    ),
                ),
            ),
        ),
        (
            f"10 {ID_AND_TERM} 0000000000000002 0000000000000064 0000000000000069 00000049"
            "0000000000000003 05 0000003c 0000000000000064 0000000000000002 00000019"
            "0000000000000012 0000000000000001 00000001 00000001 61"
            "0000000000001000 00000002 cafe 01"
        ),
    ),
    (
        messages.InstallSnapshotResponse(source=2, destination=1, term=3, next_index=4098, accepted=True),
        "11 00000002 00000001 0000000000000003 0000000000001002 01",
    ),
    (
        messages.PreVoteRequest(source=1, destination=2, term=3, last_log_term=2, last_log_index=9),
        f"40 {ID_AND_TERM} 0000000000000002 0000000000000009 0000000000000000 {NO_LOG}",
    ),
    (
        messages.PreVoteResponse(source=2, destination=1, term=3, next_index=0, accepted=False),
        "41 00000002 00000001 0000000000000003 0000000000000000 00",
    ),
    (
        messages.TimeoutNowRequest(source=1, destination=2, term=3),
        f"42 {ID_AND_TERM} 0000000000000000 0000000000000000 0000000000000000 {NO_LOG}",
    ),
    (
        messages.TimeoutNowResponse(source=2, destination=1, term=3, next_index=0, accepted=True),
        "43 00000002 00000001 0000000000000003 0000000000000000 01",
    ),
    (
        messages.TransferVoteRequest(source=1, destination=2, term=3, last_log_term=2, last_log_index=9),
        f"44 {ID_AND_TERM} 0000000000000002 0000000000000009 0000000000000000 {NO_LOG}",
    ),
    (
        messages.TransferVoteResponse(source=2, destination=1, term=3, next_index=0, accepted=True),
        "45 00000002 00000001 0000000000000003 0000000000000000 01",
    ),
    (
        messages.ReadIndexRequest(),
        "46 00000000 00000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 00000000",
    ),
    (
        messages.ReadIndexResponse(source=2, destination=2, term=3, next_index=10, accepted=True),
        "47 00000002 00000002 0000000000000003 000000000000000a 01",
    ),
    (
        messages.AppendEntriesResponse(source=2, destination=-1, term=3, next_index=0, accepted=False),
        "04 00000002 ffffffff 0000000000000003 0000000000000000 00",
    ),
]


@each_case(("message", "hexadecimal"), HAND_CHECKED, ids=lambda value: type(value).__name__)
def test_hand_checked_message_has_bytes_of_its_layout(message: messages.Message, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert encode(message).hex() == data.hex()
    assert decode(data, message) == message


def test_message_types_have_recorded_or_hand_checked_vectors() -> None:
    known = {vector["msg"] for vector in VECTORS} | {type(message).__name__ for message, _ in HAND_CHECKED}
    assert known == {kind.__name__ for kind in (*messages.REQUEST_TYPES, *messages.REPLY_TYPES)}
    assert len(known) == 17 + 8


def test_message_numbers_equal_document() -> None:
    names = """
        RequestVoteRequest RequestVoteResponse AppendEntriesRequest AppendEntriesResponse ClientRequest
        AddServerRequest AddServerResponse RemoveServerRequest RemoveServerResponse SyncLogRequest SyncLogResponse
        JoinClusterRequest JoinClusterResponse LeaveClusterRequest LeaveClusterResponse InstallSnapshotRequest
        InstallSnapshotResponse
    """
    for number, name in enumerate(names.split(), start=1):
        assert (messages.REQUEST_TYPES | messages.REPLY_TYPES)[getattr(messages, name)] == number


def test_header_has_45_bytes_and_reply_26() -> None:
    assert (
        len(
            encode_request(
                messages.RequestVoteRequest(
                    source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6
                )
            )
        )
        == 45
    )
    assert (
        len(encode_reply(messages.RequestVoteResponse(source=1, destination=2, term=3, next_index=4, accepted=False)))
        == 26
    )


APPLICATION = Entry.command(1, b"{}")
CONFIGURATION = LogEntry(1, Configuration(1, 0, ()))
ADDED = LogEntry(1, ClusterServer(4, "tcp://localhost:9004"))
REMOVED = LogEntry(1, ClusterServer(4, None))
PACK = LogEntry(1, LogPack(7, (Entry.command(1, b"x"),)))
CHUNK = LogEntry(1, SnapshotSyncRequest(9, 1, Configuration(1, 0, ()), 0, b"s", done=False))
EVERY_VALUE = (APPLICATION, CONFIGURATION, ADDED, REMOVED, PACK, CHUNK)


def numbered_request(kind: type[messages.Request], entry: Entry | LogEntry) -> messages.Request:
    return kind(source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6, entries=(entry,))


@each_case(
    ("request_class", "permitted"),
    [
        (messages.RequestVoteRequest, ()),
        (messages.AppendEntriesRequest, (APPLICATION, CONFIGURATION)),
        (messages.ClientRequest, (APPLICATION,)),
        (messages.AddServerRequest, (ADDED,)),
        (messages.RemoveServerRequest, (REMOVED,)),
        (messages.SyncLogRequest, (PACK,)),
        (messages.JoinClusterRequest, (CONFIGURATION,)),
        (messages.LeaveClusterRequest, ()),
        (messages.InstallSnapshotRequest, (CHUNK,)),
        (messages.PreVoteRequest, ()),
        (messages.TimeoutNowRequest, ()),
        (messages.TransferVoteRequest, ()),
        (messages.ReadIndexRequest, ()),
    ],
)
def test_request_carries_only_documented_entries(
    request_class: type[messages.Request], permitted: tuple[LogEntry, ...]
) -> None:
    type_byte = messages.REQUEST_TYPES[request_class]
    for entry in EVERY_VALUE:
        request = numbered_request(request_class, entry)
        carrier = next(kind for kind, rule in messages.EXCHANGES.items() if rule.permits((entry,)))
        data = bytes((type_byte,)) + encode_request(numbered_request(messages.EXCHANGES[carrier].request, entry))[1:]
        if entry in permitted:
            assert decode_request(data) == request
        else:
            with pytest.raises(GarlicFarmError, match="must carry"):
                decode_request(data)
            with pytest.raises(GarlicFarmError, match="must carry"):
                encode_request(request)


@pytest.mark.parametrize("entries", [(), (PACK, PACK)])
def test_sync_log_request_carries_exactly_one_pack(entries: tuple[WireEntry, ...]) -> None:
    with pytest.raises(GarlicFarmError, match="one log pack"):
        encode_request(
            messages.SyncLogRequest(
                source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6, entries=entries
            )
        )


def test_truncated_message_is_refused_or_incomplete() -> None:
    for vector in VECTORS:
        data = bytes.fromhex(vector["hex"])
        message = described_message(vector)
        for length in range(len(data)):
            with pytest.raises(GarlicFarmError):
                decode(data[:length], message)
            if not isinstance(message, messages.Reply):
                reader = RequestReader()
                reader.feed(data[:length])
                assert reader.next() is None


def test_mutated_values_decode_or_raise_garlic_farm_error() -> None:
    seed = 7
    random = Random(seed)
    samples = [encode_value(entry.value) for entry in EVERY_VALUE if isinstance(entry, LogEntry)]
    for round_number in range(20_000):
        value_type, original = random.choice(samples)
        data = bytearray(original)
        for _ in range(random.randrange(3)):
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
        del data[random.randrange(len(data) + 1) :]
        try:
            decode_value(value_type, bytes(data))
        except GarlicFarmError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed} round {round_number}: {value_type} {data.hex()}") from error


LONGS = st.integers(0, 2**63 - 1)
IDS = st.integers(-(2**31), 2**31 - 1)
SERVERS = st.builds(ClusterServer, IDS, st.text(max_size=40))
CONFIGURATIONS = st.builds(Configuration, LONGS, LONGS, st.lists(SERVERS, max_size=5).map(tuple))
ENTRIES = st.builds(Entry.command, LONGS, st.binary(max_size=200)) | st.builds(LogEntry, LONGS, CONFIGURATIONS)


@given(LONGS, IDS, st.lists(ENTRIES, max_size=6).map(tuple))
def test_append_entries_round_trips(long: int, server_id: int, entries: tuple[WireEntry, ...]) -> None:
    request = messages.AppendEntriesRequest(
        source=server_id,
        destination=server_id,
        term=long,
        last_log_term=long,
        last_log_index=long,
        commit_index=long,
        entries=entries,
    )
    assert decode_request(encode_request(request)) == request


@given(st.integers(0, 2**40), st.lists(ENTRIES, min_size=1, max_size=8).map(tuple))
def test_log_packs_round_trip(first_offset: int, entries: tuple[WireEntry, ...]) -> None:
    pack = LogPack(first_offset, entries)
    assert decode_log_pack(encode_log_pack(pack)) == pack


@pytest.mark.parametrize("value", [-1, 2**63, 2**64])
def test_term_of_2_to_63_is_not_encoded(value: int) -> None:
    with pytest.raises(GarlicFarmError, match="2\\^63"):
        encode_request(messages.RequestVoteRequest(source=1, destination=2, term=value))


def test_term_of_2_to_63_is_not_decoded() -> None:
    data = bytearray(
        encode_reply(messages.RequestVoteResponse(source=1, destination=2, term=3, next_index=4, accepted=True))
    )
    data[9] = 0x80
    with pytest.raises(GarlicFarmError, match="2\\^63"):
        decode_reply(bytes(data))
    request = bytearray(encode_request(messages.RequestVoteRequest(source=1, destination=2, term=3)))
    request[9] = 0x80
    with pytest.raises(GarlicFarmError, match=f"header {2**63 + 3} is outside"):
        decode_request(bytes(request))


def test_gzip_bomb_is_refused_at_limit() -> None:
    bomb = gzip.compress(bytes(8 * 2**20), mtime=0)
    assert len(bomb) < 10_000
    with pytest.raises(GarlicFarmError, match="inflates to more than") as refusal:
        decode_log_pack(bomb, MessageLimits(inflated_bytes=2**20))
    assert refusal.value.fault is Fault.TOO_LARGE


def test_second_log_pack_is_refused_before_inflation() -> None:
    pack = encode_log_pack(LogPack(0, (Entry.command(1, bytes(2**20)),)))
    entry = ENTRY_HEAD.pack(1, ValueType.LOG_PACK, len(pack)) + pack
    tracemalloc.start()
    try:
        with pytest.raises(GarlicFarmError, match="more than one log pack"):
            decode_entries(entry * 500)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_reader_frees_large_request_after_its_last_byte() -> None:
    """Otherwise an idle connection would hold the bytes of its last request, which no budget counts any more."""
    data = encode_request(messages.ClientRequest(destination=1, entries=(Entry.command(1, bytes(2**20)),)))
    reader = RequestReader()
    tracemalloc.start()
    try:
        reader.feed(data + data[:9])
        assert reader.next() is not None
        assert tracemalloc.get_traced_memory()[0] < 2**16
        reader.feed(data[9:])
        assert reader.next() == decode_request(data)
    finally:
        tracemalloc.stop()


def pack(index: list[int], log: bytes) -> bytes:
    # Without a time: these bytes are test ids, and every process must compute the same ids.
    return gzip.compress(struct.pack(f">II{len(index)}Q", 8 * len(index), len(log), *index) + log, mtime=0)


RECORD = struct.pack(">QB", 1, 1) + b"value"


@each_case(
    ("data", "complaint"),
    [
        (b"", "gzip"),
        (b"rubbish", "gzip"),
        (gzip.compress(b"\0" * 7, mtime=0), "shorter"),
        (gzip.compress(b"\0\0\0\7\0\0\0\1" + b"\0" * 8, mtime=0), "announces"),
        (pack([], RECORD), "no index"),
        (pack([10, 9], RECORD * 2), "outside"),
        (pack([0, 2**62], RECORD * 2), "outside"),
        (pack([0, 3], RECORD), "shorter"),
        (pack([0], RECORD[:8] + b"\3" + b"1234"), "no log contains"),
        (pack([0], RECORD)[:-3], "one gzip member"),
        (pack([0], RECORD) + b"more", "one gzip member"),
        (pack([0], RECORD) * 2, "one gzip member"),
    ],
)
def test_inconsistent_log_pack_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(GarlicFarmError, match=complaint):
        decode_log_pack(data)


SMALL = MessageLimits(log_bytes=100, entry_bytes=50, entries=3, servers=2, endpoint_bytes=10)


@each_case(
    "entries",
    [
        (Entry.command(1, bytes(51)),),
        tuple(Entry.command(1, b"x") for _ in range(4)),
        tuple(Entry.command(1, bytes(30)) for _ in range(3)),
        (LogEntry(1, Configuration(1, 0, tuple(ClusterServer(1, "") for _ in range(3)))),),
        (LogEntry(1, Configuration(1, 0, (ClusterServer(1, "tcp://localhost"),))),),
    ],
    ids=["entry", "entries", "log", "servers", "endpoint"],
)
def test_limits_apply_to_encoder_and_decoder(entries: tuple[WireEntry, ...]) -> None:
    request = messages.AppendEntriesRequest(
        source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6, entries=entries
    )
    with pytest.raises(GarlicFarmError) as refused_by_encoder:
        encode_request(request, SMALL)
    with pytest.raises(GarlicFarmError) as refused_by_decoder:
        decode_request(encode_request(request), SMALL)
    assert refused_by_encoder.value.fault is refused_by_decoder.value.fault is Fault.TOO_LARGE


def test_reader_finds_messages_in_chunks_of_any_size() -> None:
    requests = [message for vector in VECTORS if not isinstance(message := described_message(vector), messages.Reply)]
    stream = b"".join(encode_request(request) for request in requests)
    for seed in range(20):
        random, reader, found, at = Random(seed), RequestReader(), [], 0
        while at < len(stream):
            step = random.randrange(1, 300)
            reader.feed(stream[at : at + step])
            at += step
            while (request := reader.next()) is not None:
                found.append(request)
        assert found == requests, f"seed {seed}"
        assert reader.buffered_bytes == 0


def test_reader_refuses_announced_size_before_bytes_arrive() -> None:
    reader = RequestReader(SMALL)
    reader.feed(
        encode_request(
            messages.AppendEntriesRequest(
                source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6
            )
        )[:-4]
        + b"\x7f\xff\xff\xff"
    )
    with pytest.raises(GarlicFarmError, match="announces 2147483647"):
        reader.next()


def test_reader_refuses_more_bytes_than_its_limit() -> None:
    reader = ReplyReader()
    fed = 0
    while fed < 65_500:
        reader.feed(bytes(100))
        fed += 100
    with pytest.raises(GarlicFarmError, match="more bytes"):
        reader.feed(bytes(100))


def test_reader_refuses_message_of_other_direction() -> None:
    requests, replies = RequestReader(), ReplyReader()
    requests.feed(bytes((messages.MessageType.APPEND_ENTRIES_RESPONSE,)))
    replies.feed(bytes((messages.MessageType.CLIENT_REQUEST,)))
    for reader in (requests, replies):
        with pytest.raises(GarlicFarmError, match="arrived instead of") as refusal:
            reader.next()
        assert refusal.value.fault is Fault.OUT_OF_TURN


def test_value_numbers_equal_document_with_one_extension() -> None:
    assert [kind.value for kind in ValueType] == [1, 2, 3, 4, 5, 66]
