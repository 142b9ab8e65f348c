"""The frames of ØMQ Raft as its specification defines them: round trips, limits, and refused frames."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from consensus.core.entry_data import configuration_entry, configuration_head, no_op_entry
from consensus.core.model import Configuration, Entry, EntryKind, NoOp, Server
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import (
    decode_broadcast,
    decode_reply,
    decode_request,
    encode_broadcast,
    encode_reply,
    encode_request,
)
from consensus.protocols.zmq_raft.wire.entries import configuration_of, entry_frame, entry_frames, read_entries
from consensus.protocols.zmq_raft.wire.frames import (
    DEFAULT_LIMITS,
    MAX_UINT,
    FrameLimits,
    ZmqRaftError,
    bool_frame,
    json_frame,
    read_bool,
    read_json,
    read_nuint,
    read_uint,
    string_frame,
    uint_frame,
)
from consensus.protocols.zmq_raft.wire.messages import Peer
from tests.effort import each_case

REQUEST_ID = bytes.fromhex("5956dc8826f27e10dcccab20")
IDENT = b"testcluster"
PEERS = (Peer("1", "tcp://127.0.0.1:8047"), Peer("2", "tcp://127.0.0.1:8147"))
UPDATE = Entry(42, EntryKind.COMMAND, REQUEST_ID + b"foo")
CHECKPOINT = no_op_entry(43, NoOp())
JOINT = configuration_entry(7, configuration_of(PEERS, PEERS[:1]), REQUEST_ID)
FINAL = configuration_entry(7, configuration_of(PEERS))

REQUIRED_OF_REQUESTS = (
    (wire.RequestVoteRpc(message_id=1, ident=IDENT, candidate="1", term=2, last_index=3, last_term=2), 7),
    (
        wire.AppendEntriesRpc(
            message_id=1,
            ident=IDENT,
            leader="1",
            term=50,
            previous_index=3,
            previous_term=2,
            commit=3,
            entries=(UPDATE, JOINT, CHECKPOINT),
        ),
        8,
    ),
    (
        wire.InstallSnapshotRpc(
            message_id=1,
            ident=IDENT,
            leader="1",
            term=2,
            last_index=3,
            last_term=2,
            offset=0,
            total_bytes=5,
            data=b"image",
        ),
        10,
    ),
    (wire.ConfigRequest(b"\x01", IDENT), 3),
    (wire.UpdateRequest(REQUEST_ID, IDENT, b"data"), 4),
    (wire.ChangeRequest(REQUEST_ID, IDENT, PEERS), 4),
    (wire.EntriesRequest(request_id=b"\x01", ident=IDENT, previous_index=5, count=6, snapshot_offset=7), 4),
    (wire.LogInfoRequest(b"\x01", IDENT), 3),
    (wire.UrlRequest(b"\x01", IDENT), 3),
    (wire.CustomRequest(request_id=b"\x01", message_type=b"my", ident=IDENT, frames=(b"frame",)), 3),
)
"""A request of each type, and its minimum number of frames."""
REQUIRED_OF_REPLIES: tuple[tuple[type[wire.Request], wire.Reply, int], ...] = (
    (wire.RequestVoteRpc, wire.RequestVoteResponse(1, 2, granted=True), 3),
    (wire.AppendEntriesRpc, wire.AppendEntriesResponse(message_id=1, term=2, success=False, conflict_index=3), 3),
    (wire.InstallSnapshotRpc, wire.InstallSnapshotResponse(1, 2, 3), 2),
    (wire.ConfigRequest, wire.ConfigReply(request_id=b"\x01", is_leader=True, leader="1", peers=PEERS), 3),
    (wire.UpdateRequest, wire.UpdateCommitted(REQUEST_ID, 5), 2),
    (wire.ChangeRequest, wire.ChangeCommitted(REQUEST_ID, 5), 2),
    (wire.ChangeRequest, wire.ChangeRedirect(REQUEST_ID, "1"), 2),
    (wire.ChangeRequest, wire.ChangeRefused(REQUEST_ID, "Error", "no"), 3),
    (wire.EntriesRequest, wire.EntriesBatch(request_id=b"\x01", is_last=True, last_index=5, entries=(UPDATE,)), 4),
    (
        wire.EntriesRequest,
        wire.SnapshotPiece(request_id=b"\x01", last_index=5, last_term=4, offset=0, total_bytes=5, data=b"image"),
        5,
    ),
    (wire.EntriesRequest, wire.EntriesRedirect(b"\x01", "1"), 3),
    (
        wire.LogInfoRequest,
        wire.LogInfoReply(
            request_id=b"\x01",
            is_leader=True,
            leader="1",
            term=1,
            first_index=2,
            last_applied=3,
            commit=4,
            last_index=5,
            snapshot_bytes=6,
            prune_index=7,
        ),
        10,
    ),
    (wire.UrlRequest, wire.UrlReply(b"\x01", "tcp://127.0.0.1:8048"), 1),
    (wire.CustomRequest, wire.CustomReply(b"\x01", (b"frame",)), 1),
)


@each_case(("number", "frame"), [(0, "00"), (255, "ff"), (256, "0001"), (MAX_UINT, "ffffffffffff1f"), (300, "2c01")])
def test_number_has_specified_bytes(number: int, frame: str) -> None:
    assert uint_frame(number).hex() == frame
    assert read_uint(bytes.fromhex(frame), "number") == number


@pytest.mark.parametrize("frame", ["", "000000000000000000", "00000000000020", "ffffffffffffffff"])
def test_number_beyond_javascript_range_is_refused(frame: str) -> None:
    with pytest.raises(ZmqRaftError, match="the term"):
        read_uint(bytes.fromhex(frame), "term")


def test_number_may_have_trailing_zeros() -> None:
    assert read_uint(bytes.fromhex("0100000000000000"), "number") == 1
    assert read_nuint(b"", "count") is None
    assert read_nuint(b"\0", "count") == 0
    with pytest.raises(ZmqRaftError):
        uint_frame(-1)
    with pytest.raises(ZmqRaftError):
        uint_frame(MAX_UINT + 1)


def test_strings_booleans_and_json_have_specified_bytes() -> None:
    assert string_frame("foo", "text", 3).hex() == "666f6f"
    assert (bool_frame(value=False), bool_frame(value=True)) == (b"", b"\x01")
    assert [read_bool(frame) for frame in (b"", b"\0", b"\x01", b"\0\x01")] == [False, False, True, False]
    assert json_frame(None).hex() == "c0"
    assert json_frame([42, "foo", False]).hex() == "932aa3666f6fc2"
    assert read_json(bytes.fromhex("932aa3666f6fc2"), "value", 100) == [42, "foo", False]


def test_log_entries_have_specified_bytes() -> None:
    assert entry_frame(UPDATE).hex() == "5956dc8826f27e10dcccab20" + "00" + "2a000000000000" + "666f6f"
    assert read_entries([entry_frame(UPDATE)])[0] == UPDATE
    assert entry_frame(CHECKPOINT).hex() == "00" * 12 + "02" + "2b000000000000" + "c0"
    assert read_entries([entry_frame(CHECKPOINT)])[0] == CHECKPOINT


def test_entries_of_several_terms_and_types_round_trip() -> None:
    entries = (UPDATE, replace_term(UPDATE, 43), JOINT, UPDATE, FINAL, CHECKPOINT, replace_term(UPDATE, 43))
    assert read_entries(entry_frames(entries)) == entries


def test_configuration_keeps_id_of_its_request() -> None:
    assert entry_frame(JOINT)[:12] == REQUEST_ID
    assert configuration_head(read_entries([entry_frame(JOINT)])[0].data) == REQUEST_ID


def test_configuration_without_request_has_id_of_zeros() -> None:
    assert entry_frame(FINAL)[:12] == bytes(12)
    assert configuration_head(read_entries([entry_frame(FINAL)])[0].data) == b""
    assert entry_frame(configuration_entry(7, configuration_of(PEERS), bytes(12))) == entry_frame(FINAL)


@each_case(
    ("entry", "reason"),
    [
        (Entry(1, EntryKind.COMMAND, REQUEST_ID), "lacks data"),
        (Entry(1, EntryKind.COMMAND, b""), "lacks data"),
        (Entry(MAX_UINT + 1, EntryKind.COMMAND, UPDATE.data), "term"),
        (no_op_entry(1, NoOp("1", ("1",))), "NO_OP"),
        (Entry(1, EntryKind.CONTROL, b"x"), "CONTROL"),
        (Entry(1, EntryKind.CONFIGURATION, b"x"), "cannot be read"),
        (configuration_entry(1, Configuration(())), "at least one peer"),
        (configuration_entry(1, Configuration((Server(1, "tcp://127.0.0.1:1"),))), "server 1"),
        (configuration_entry(1, Configuration((Server("1", "memory"),))), "protocol must be tcp"),
        (configuration_entry(1, Configuration((Server("1", PEERS[0].url),), (), (Server("2", "x"),))), "learners"),
        (configuration_entry(1, configuration_of(PEERS), b"short"), "12 bytes"),
        (configuration_entry(1, configuration_of(PEERS[:1], (Peer("1", PEERS[1].url),))), "consistent"),
    ],
)
def test_entry_that_would_crash_package_is_not_encoded(entry: Entry, reason: str) -> None:
    with pytest.raises(ZmqRaftError, match=reason):
        entry_frame(entry)


@each_case(
    ("frame", "reason"),
    [
        (bytes(20), "20 bytes"),
        (b"", "0 bytes"),
        (bytes(12) + b"\x03" + bytes(8), "type 3"),
        (bytes(12) + b"\0" + b"\xff" * 7 + b"x", "term"),
        (bytes(12) + b"\x02" + bytes(7) + b"x", "checkpoint"),
        (REQUEST_ID + b"\x02" + bytes(7) + b"\xc0", "checkpoint"),
        (bytes(12) + b"\x01" + bytes(7) + b"\xc1", "MessagePack"),
        (bytes(12) + b"\x01" + bytes(7) + json_frame(None), "array"),
        (bytes(12) + b"\x01" + bytes(7) + json_frame({"new": [["1", PEERS[0].url]]}), "array"),
        (bytes(20) + bytes(10 * 1024 * 1024 + 1), "10485781"),
    ],
)
def test_invalid_entry_is_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(ZmqRaftError, match=reason):
        read_entries([frame])[0]


@each_case(("request_", "required"), REQUIRED_OF_REQUESTS)
def test_request_with_too_few_frames_is_refused(request_: wire.Request, required: int) -> None:
    frames = encode_request(request_)
    assert decode_request(frames) == request_
    for count in range(required):
        with pytest.raises(ZmqRaftError, match=f"{count} frames"):
            decode_request(frames[:count])
    for count in range(required, len(frames)):
        assert type(decode_request(frames[:count])) is type(request_)


@each_case(("request_type", "reply", "required"), REQUIRED_OF_REPLIES)
def test_reply_with_too_few_frames_is_refused(
    request_type: type[wire.Request], reply: wire.Reply, required: int
) -> None:
    frames = encode_reply(reply)
    assert decode_reply(request_type, frames) == reply
    for count in range(required):
        with pytest.raises(ZmqRaftError):
            decode_reply(request_type, frames[:count])
    for count in range(required, len(frames)):
        assert decode_reply(request_type, frames[:count]) != reply


def test_broadcast_with_wrong_frame_count_is_refused() -> None:
    broadcast = wire.StateBroadcast(ident=IDENT, term=42, last_applied=1, entries=(UPDATE,))
    frames = encode_broadcast(broadcast)
    assert decode_broadcast(frames) == broadcast
    with pytest.raises(ZmqRaftError, match="2 frames"):
        decode_broadcast(frames[:2])
    with pytest.raises(ZmqRaftError, match="2 entries end at index 1"):
        decode_broadcast([*frames, frames[-1]])


ENDING: tuple[wire.Request, ...] = tuple(
    [each for each, _ in REQUIRED_OF_REQUESTS if not isinstance(each, wire.AppendEntriesRpc | wire.CustomRequest)]
)
"""Requests with a fixed last frame."""


@each_case("request_", ENDING)
def test_frames_after_last_frame_of_request_are_ignored(request_: wire.Request) -> None:
    assert decode_request([*encode_request(request_), b"more"]) == request_


def test_entries_request_omits_unset_last_frames() -> None:
    plain = wire.EntriesRequest(request_id=b"\x01", ident=IDENT, previous_index=5)
    assert encode_request(plain)[3:] == [b"\x05"]
    assert encode_request(replace(plain, count=0))[3:] == [b"\x05", b"\0"]
    assert encode_request(replace(plain, snapshot_offset=256))[3:] == [b"\x05", b"", b"\0\x01"]
    assert decode_request([b"\x01", b"<", IDENT, b"\x05", b""]) == plain
    with pytest.raises(ZmqRaftError, match="offset"):
        decode_request([b"\x01", b"<", IDENT, b"\x05", b"\x01", b""])


@each_case("kind", [b"?", b"+", b"$"])
@each_case("message_id", [b"", b"\x01\0\0\0"])
def test_message_id_of_peer_has_one_to_three_bytes(kind: bytes, message_id: bytes) -> None:
    with pytest.raises(ZmqRaftError, match="message's id"):
        decode_request([message_id, kind, IDENT, b"1", *[b"\0"] * 5, b""])
    with pytest.raises(ZmqRaftError, match="ids are 0 to 16777215"):
        encode_reply(wire.RequestVoteResponse(2**24, 1, granted=True))


@each_case("length", [*range(16)])
def test_request_id_of_client_has_at_most_twelve_bytes(length: int) -> None:
    request_id = bytes(length)
    for message in (
        wire.UpdateRequest(request_id, IDENT, b"data"),
        wire.ChangeRequest(request_id, IDENT, PEERS),
        wire.ConfigRequest(request_id, IDENT),
        wire.CustomRequest(request_id=request_id, message_type=b"my", ident=IDENT, frames=()),
    ):
        whole = isinstance(message, wire.UpdateRequest | wire.ChangeRequest)
        frames = [request_id, *encode_request(replace(message, request_id=REQUEST_ID))[1:]]
        if length == 12 or (length < 12 and not whole):
            assert decode_request(frames) == message
            assert encode_request(message) == frames
        else:
            with pytest.raises(ZmqRaftError, match=f"{length} bytes"):
                decode_request(frames)
            with pytest.raises(ZmqRaftError, match=f"{length} bytes"):
                encode_request(message)


@each_case("number", [2.0**31, 0.0, -0.0, float(MAX_UINT), 7.0])
def test_integral_float_is_read_as_index(number: float) -> None:
    committed = decode_reply(wire.UpdateRequest, [REQUEST_ID, b"\x01", json_frame(number)])
    assert committed == wire.UpdateCommitted(REQUEST_ID, int(number))
    piece = [b"\x01", b"\x03", json_frame([number, 2.0**53 - 1, 1.0]), b"\x05", b""]
    decoded = decode_reply(wire.EntriesRequest, piece)
    assert decoded == wire.SnapshotPiece(
        request_id=b"\x01", last_index=5, last_term=1, offset=int(number), total_bytes=MAX_UINT, data=b""
    )


@each_case("value", [math.nan, math.inf, -math.inf, 1.5, -1, -1.0, 2**53, 2.0**53, 2**64 - 1, True, "1", None, [1], {}])
def test_invalid_index_is_refused(value: wire.MessageId) -> None:
    for request_type in (wire.UpdateRequest, wire.ChangeRequest):
        with pytest.raises(ZmqRaftError, match="index"):
            decode_reply(request_type, [REQUEST_ID, b"\x01", json_frame(value)])
    with pytest.raises(ZmqRaftError, match="position"):
        decode_reply(wire.EntriesRequest, [b"\x01", b"\x03", json_frame([0, value, 1]), b"\x05", b""])


@each_case(
    ("request_type", "frames"),
    [
        (wire.UpdateRequest, [REQUEST_ID, b"", json_frame(5)]),
        (wire.UpdateRequest, [REQUEST_ID, b"", b"\xc1"]),
        (wire.UpdateRequest, [REQUEST_ID, b"", json_frame("")]),
        (wire.UpdateRequest, [REQUEST_ID, b"", json_frame("x" * 129)]),
        (wire.UpdateRequest, [REQUEST_ID, b"", json_frame("\u202e")]),
        (wire.ChangeRequest, [REQUEST_ID, b"\x05"]),
        (wire.ChangeRequest, [REQUEST_ID, b"\x02", json_frame("no")]),
        (wire.ChangeRequest, [REQUEST_ID, b"\x02", json_frame({"name": "Error"})]),
        (wire.EntriesRequest, [b"\x01", b"\x04", b"\xc0", b"\x01"]),
        (wire.EntriesRequest, [b"\x01", b"\x03", json_frame([0, 5]), b"\x01", b"image"]),
        (wire.EntriesRequest, [b"\x01", b"\x03", json_frame([1, 5, 1]), b"\x01", b"image"]),
        (wire.ConfigRequest, [b"\x01", b"", b"\xc0", json_frame([["1", "ipc:///x"]])]),
        (wire.ConfigRequest, [b"\x01", b"", b"\xc0", json_frame([])]),
        (wire.UrlRequest, [b"\x01", b""]),
        (wire.UrlRequest, [b"\x01", b"\xff"]),
        (wire.UrlRequest, []),
    ],
)
def test_invalid_reply_is_refused(request_type: type[wire.Request], frames: Sequence[bytes]) -> None:
    with pytest.raises(ZmqRaftError):
        decode_reply(request_type, frames)


def test_reserved_frame_of_entries_batch_is_ignored() -> None:
    batch = wire.EntriesBatch(request_id=b"\x01", is_last=False, last_index=5)
    for ignored in (b"\xc0", b"\xc1", b"", json_frame(["1"]), json_frame("\n")):
        assert decode_reply(wire.EntriesRequest, [b"\x01", b"\x02", ignored, b"\x05"]) == batch


@each_case(
    "request_",
    [
        wire.UpdateRequest(REQUEST_ID, IDENT, b""),
        wire.CustomRequest(request_id=b"", message_type=b"m", ident=IDENT, frames=()),
        wire.ChangeRequest(REQUEST_ID, IDENT, wire.MalformedPeers("Error", "no")),
        wire.ChangeRequest(REQUEST_ID, IDENT, (Peer("\ud800", "x"),)),
        wire.RequestVoteRpc(message_id=1, ident=IDENT, candidate="", term=1, last_index=1, last_term=1),
        wire.RequestVoteRpc(message_id=1, ident=IDENT, candidate="\ud800", term=1, last_index=1, last_term=1),
        wire.RequestVoteRpc(message_id=1, ident=IDENT, candidate="1", term=-1, last_index=1, last_term=1),
        wire.AppendEntriesRpc(
            message_id=1, ident=IDENT, leader="1", term=1, previous_index=MAX_UINT + 1, previous_term=1, commit=1
        ),
        wire.InstallSnapshotRpc(
            message_id=1, ident=IDENT, leader="1", term=1, last_index=1, last_term=1, offset=1, total_bytes=1, data=b"x"
        ),
    ],
)
def test_invalid_request_is_not_encoded(request_: wire.Request) -> None:
    with pytest.raises(ZmqRaftError):
        encode_request(request_)


@each_case(
    "reply",
    [
        wire.UpdateCommitted(REQUEST_ID, MAX_UINT + 1),
        wire.UpdateCommitted(b"\x01", 1),
        wire.UpdateRedirect(REQUEST_ID, ""),
        wire.ConfigReply(request_id=b"", is_leader=True, leader=None, peers=(Peer("1", "x"),)),
        wire.EntriesBatch(request_id=b"", is_last=True, last_index=0, entries=(UPDATE,)),
        wire.SnapshotPiece(request_id=b"", last_index=1, last_term=1, offset=1, total_bytes=1, data=b"x"),
        wire.UrlReply(b"", ""),
        wire.ChangeRefused(REQUEST_ID, "\ud800", ""),
    ],
)
def test_invalid_reply_is_not_encoded(reply: wire.Reply) -> None:
    with pytest.raises(ZmqRaftError):
        encode_reply(reply)


@each_case(
    "limits",
    [
        FrameLimits(max_frames=8),
        FrameLimits(max_message_bytes=100),
        FrameLimits(max_entry_data_bytes=99),
        FrameLimits(max_peer_id_bytes=4),
        FrameLimits(max_ident_bytes=10),
    ],
)
def test_message_beyond_limit_is_refused(limits: FrameLimits) -> None:
    append = wire.AppendEntriesRpc(
        message_id=1,
        ident=IDENT,
        leader="peer1",
        term=1,
        previous_index=0,
        previous_term=0,
        commit=0,
        entries=(Entry(1, EntryKind.COMMAND, bytes(112)),),
    )
    frames = encode_request(append)
    assert decode_request(frames, DEFAULT_LIMITS) == append
    with pytest.raises(ZmqRaftError):
        decode_request(frames, limits)


def test_total_size_of_configurations_is_limited() -> None:
    frame = entry_frame(JOINT)
    limits = FrameLimits(max_configurations_bytes=3 * len(frame))
    assert read_entries([frame, entry_frame(UPDATE)] * 3, limits) == (JOINT, UPDATE) * 3
    with pytest.raises(ZmqRaftError, match="configurations"):
        read_entries([frame] * 4, limits)


def test_last_index_of_entries_is_limited() -> None:
    append = wire.AppendEntriesRpc(
        message_id=1,
        ident=IDENT,
        leader="1",
        term=1,
        previous_index=MAX_UINT - 1,
        previous_term=1,
        commit=0,
        entries=(UPDATE,),
    )
    assert decode_request(encode_request(append)) == append
    with pytest.raises(ZmqRaftError, match="beyond"):
        decode_request(encode_request(replace(append, previous_index=MAX_UINT)))


def test_deep_or_long_messagepack_is_refused() -> None:
    for data in (
        b"\x91" * 60_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc0" * 65_537,
        b"\xc7\x01\x05a",
    ):
        with pytest.raises(ZmqRaftError):
            decode_request([REQUEST_ID, b"&", IDENT, data])


def replace_term(entry: Entry, term: int) -> Entry:
    return Entry(term, entry.kind, entry.data)


NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, MAX_UINT))
MESSAGE_IDS = st.integers(0, 2**24 - 1)
IDS = st.binary(max_size=12)
FULL_IDS = st.binary(min_size=12, max_size=12)
PEER_IDS = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=30)
URLS = st.builds(
    lambda ip, port: f"tcp://[{ip}]:{port}" if ip.version == 6 else f"tcp://{ip}:{port}",
    st.ip_addresses().filter(lambda ip: not ip.is_unspecified),
    st.integers(1, 65_535),
)
PEER_LISTS = st.lists(
    st.builds(Peer, PEER_IDS, URLS),
    min_size=1,
    max_size=6,
    unique_by=(lambda peer: peer.peer_id, lambda peer: peer.url),
).map(tuple)
ENTRIES = st.lists(
    st.one_of(
        st.builds(Entry, NUMBERS, st.just(EntryKind.COMMAND), st.binary(min_size=13, max_size=40)),
        st.builds(
            configuration_entry,
            NUMBERS,
            PEER_LISTS.map(configuration_of),
            st.one_of(st.just(b""), FULL_IDS.filter(any)),
        ),
        st.builds(lambda term, peers: configuration_entry(term, configuration_of(peers, peers)), NUMBERS, PEER_LISTS),
        st.builds(no_op_entry, NUMBERS, st.just(NoOp())),
    ),
    max_size=5,
).map(tuple)
LEADERS = st.one_of(st.none(), PEER_IDS)
BY_NAME = {
    "message_id": MESSAGE_IDS,
    "candidate": PEER_IDS,
    "entries": ENTRIES,
    "leader": LEADERS,
    "conflict_index": st.one_of(st.none(), NUMBERS),
    "wanted_offset": st.one_of(st.none(), NUMBERS),
    "count": st.one_of(st.none(), NUMBERS),
    "snapshot_offset": st.one_of(st.none(), NUMBERS),
    "url": st.one_of(st.none(), URLS),
    "total_bytes": st.integers(MAX_UINT, MAX_UINT),
    "offset": st.integers(0, MAX_UINT - 100),
    "previous_index": st.integers(0, MAX_UINT - 10),
    "data": st.binary(min_size=1, max_size=100),
    "message_type": st.binary(min_size=2, max_size=8),
    "frames": st.lists(st.binary(max_size=8), max_size=4).map(tuple),
    "ident": st.binary(max_size=20),
    "peers": PEER_LISTS,
    "name": st.text(max_size=10),
    "message": st.text(max_size=40),
}


def strategy_for(
    message: type[wire.Request] | type[wire.Reply] | type[wire.StateBroadcast],
) -> st.SearchStrategy[object]:
    whole = message.__name__.startswith(("Update", "Change"))
    values: dict[str, st.SearchStrategy[object]] = {}
    for field in fields(message):
        if field.name == "request_id":
            values[field.name] = FULL_IDS if whole else IDS
        elif field.type is bool:
            values[field.name] = st.booleans()
        elif field.name == "leader" and message in (wire.AppendEntriesRpc, wire.InstallSnapshotRpc):
            values[field.name] = PEER_IDS
        elif field.name in ("last_index", "last_applied"):
            values[field.name] = st.integers(10, MAX_UINT)
        else:
            values[field.name] = BY_NAME.get(field.name, NUMBERS)
    return st.builds(message, **values)


@given(st.one_of([strategy_for(type(request)) for request, _ in REQUIRED_OF_REQUESTS]))
def test_request_round_trips(request_: wire.Request) -> None:
    assert decode_request(encode_request(request_)) == request_


REPLY_TYPES: dict[type[wire.Request], tuple[type[wire.Reply], ...]] = {
    wire.RequestVoteRpc: (wire.RequestVoteResponse,),
    wire.AppendEntriesRpc: (wire.AppendEntriesResponse,),
    wire.InstallSnapshotRpc: (wire.InstallSnapshotResponse,),
    wire.ConfigRequest: (wire.ConfigReply,),
    wire.UpdateRequest: (wire.UpdateAccepted, wire.UpdateCommitted, wire.UpdateRedirect, wire.UpdateExpired),
    wire.ChangeRequest: (
        *(wire.ChangeAccepted, wire.ChangeCommitted, wire.ChangeRedirect, wire.ChangeRefused),
        *(wire.ChangeBusy, wire.ChangeExpired),
    ),
    wire.EntriesRequest: (wire.EntriesBatch, wire.SnapshotPiece, wire.EntriesRedirect),
    wire.LogInfoRequest: (wire.LogInfoReply,),
    wire.UrlRequest: (wire.UrlReply,),
    wire.CustomRequest: (wire.CustomReply,),
}


@given(
    st.one_of(
        [
            st.tuples(st.just(request_type), strategy_for(reply))
            for request_type, replies in REPLY_TYPES.items()
            for reply in replies
        ]
    )
)
def test_reply_round_trips(request_and_reply: tuple[type[wire.Request], wire.Reply]) -> None:
    request_type, reply = request_and_reply
    assert decode_reply(request_type, encode_reply(reply)) == reply


@given(strategy_for(wire.StateBroadcast))
def test_broadcast_round_trips(broadcast: wire.StateBroadcast) -> None:
    assert decode_broadcast(encode_broadcast(broadcast)) == broadcast
