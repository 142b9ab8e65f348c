"""I2CP messages: their bytes, round trips, and hostile bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.wire.i2p.destination_keys import MasterKey, SigningKey, new_master_key
from bridge.wire.i2p.i2cp import FRAME_LIMIT_BYTES, Frame, FrameReader
from bridge.wire.i2p.i2cp_messages import (
    NO_SESSION,
    CreateLeaseSet2,
    CreateSession,
    DestroySession,
    Disconnect,
    GetDate,
    HostLookup,
    HostReply,
    I2cpError,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Unhandled,
)
from bridge.wire.i2p.i2cp_session import META_SESSION_OPTIONS, decode_session
from bridge.wire.i2p.meta_lease_set import MetaLease
from bridge.wire.i2p.meta_lease_set import encode as encode_structure
from bridge.wire.i2p.structures import I2pError
from tests.destinations import new_demo_leaf
from tests.effort import each_case
from tests.wire.i2cp_router_half import Message, decode, encode, session_is_signed

NOW_S = 1_767_225_600
NOW_MS = NOW_S * 1000
MASTER = new_master_key()
KEYS = (MASTER.as_signing_key(), MASTER.sign_transient(NOW_S))


def structure(key: SigningKey) -> bytes:
    return encode_structure(key.sign(NOW_S, (MetaLease(new_demo_leaf().hash, cost=3, ends_s=NOW_S + 900),)))


def messages() -> list[Message]:
    return [
        GetDate("0.9.64"),
        GetDate("0.9.64", {}),
        GetDate("0.9.64", {"i2cp.username": "farm", "i2cp.password": "secret"}),
        SetDate(NOW_MS),
        SetDate(NOW_MS, "0.9.64"),
        *(CreateSession(key.sign_session(NOW_MS)) for key in KEYS),
        SessionStatus(7, 1),
        DestroySession(7),
        *(CreateLeaseSet2(7, structure(key), private_key_count=counted) for key in KEYS for counted in (False, True)),
        RequestVariableLeaseSet(7, 3),
        HostLookup(NO_SESSION, 99, 15_000, bytes(range(32))),
        HostReply(NO_SESSION, 99, 1),
        HostReply(NO_SESSION, 99, 0, MASTER.destination.encoded),
        Disconnect("good night"),
        Unhandled(31, b"a payload"),
    ]


def frame_of(data: bytes) -> Frame:
    reader = FrameReader()
    reader.feed(data)
    frame = reader.next_frame()
    assert frame is not None
    assert reader.next_frame() is None
    return frame


@each_case("message", messages(), ids=lambda message: type(message).__name__)
def test_message_round_trips(message: Message) -> None:
    assert decode(frame_of(encode(message))) == message


@each_case(
    ("message", "frame"),
    [
        (GetDate("0.9"), "00000004 20 03 302e39"),
        (GetDate("0.9", {"a": "b"}), "0000000c 20 03 302e39 0006 01 61 3d 01 62 3b"),
        (SetDate(0x0102030405060708, "1"), "0000000a 21 0102030405060708 01 31"),
        (SessionStatus(0x1234, 1), "00000003 14 1234 01"),
        (DestroySession(0x1234), "00000002 03 1234"),
        (HostLookup(0xFFFF, 5, 15_000, b"\xaa" * 32), "0000002b 26 ffff 00000005 00003a98 00" + "aa" * 32),
        (HostReply(0xFFFF, 5, 1), "00000007 27 ffff 00000005 01"),
        (Disconnect("no"), "00000003 1e 02 6e6f"),
    ],
)
def test_message_has_specified_bytes(message: Message, frame: str) -> None:
    assert encode(message) == bytes.fromhex(frame)


def test_session_config_has_specified_layout() -> None:
    key = KEYS[0]
    config = key.sign_session(NOW_MS, {"b": "2", "a": "1"})
    body = frame_of(encode(CreateSession(config))).body
    options = bytes.fromhex("000c 01 61 3d 01 31 3b 01 62 3d 01 32 3b")
    assert body == key.destination.encoded + options + NOW_MS.to_bytes(8, "big") + config.signature
    key.private_key.public_key().verify(config.signature, body[:-64])


@pytest.mark.parametrize("key", KEYS, ids=["master", "transient"])
def test_session_is_signed_by_structure_key(key: SigningKey) -> None:
    config = key.sign_session(NOW_MS)
    assert session_is_signed(config)
    assert config.options["i2cp.leaseSetType"] == "7"
    assert ("i2cp.leaseSetTransientPublicKey" in config.options) is (key.offline is not None)


def test_session_with_foreign_transient_key_is_not_signed() -> None:
    other_master: MasterKey = new_master_key()
    stolen = other_master.sign_transient(NOW_S)
    forged = SigningKey(MASTER.destination, stolen.private_key, stolen.offline)
    assert not session_is_signed(forged.sign_session(NOW_MS))


def test_session_signed_by_master_round_trips() -> None:
    session = KEYS[1].session
    assert session is not None
    assert decode_session(session.encoded) == session
    assert session.is_signed_by_destination
    assert session.options == META_SESSION_OPTIONS
    assert not KEYS[1].sign_session(NOW_MS).is_signed_by_destination


@given(data=st.binary(max_size=700), cut=st.integers(0, 700), bit=st.integers(0, 7))
def test_hostile_session_is_refused_or_not_signed(data: bytes, cut: int, bit: int) -> None:
    genuine = KEYS[0].sign_session(NOW_MS).encoded
    place = cut % len(genuine)
    changed = genuine[:place] + bytes([genuine[place] ^ 1 << bit]) + genuine[place + 1 :]
    for hostile in (data, genuine[:place], genuine[:place] + data, genuine + (data or b"x"), changed):
        try:
            session = decode_session(hostile)
        except I2pError:
            continue
        assert hostile == genuine or session.destination != MASTER.destination or not session.is_signed_by_destination


def test_private_key_count_is_appended_only_for_i2pd() -> None:
    plain = encode(CreateLeaseSet2(1, structure(KEYS[0])))
    counted = encode(CreateLeaseSet2(1, plain[8:], private_key_count=True))
    assert plain[5:8] == bytes.fromhex("0001 07")
    assert counted[5:] == plain[5:] + b"\0"


@pytest.mark.parametrize(
    "answer", [SetDate(NOW_MS, "1"), SessionStatus(1, 1), HostReply(1, 2, 1), RequestVariableLeaseSet(1, 1)]
)
def test_bytes_appended_by_later_router_are_ignored(answer: Message) -> None:
    frame = frame_of(encode(answer))
    assert decode(Frame(frame.kind, frame.body + b"later")) == answer


@each_case("message", messages(), ids=lambda message: type(message).__name__)
def test_truncated_message_raises_or_differs(message: Message) -> None:
    frame = frame_of(encode(message))
    for length in range(len(frame.body)):
        try:
            found = decode(Frame(frame.kind, frame.body[:length]))
        except I2cpError:
            continue
        assert found != message


@each_case(
    ("kind", "body", "reason"),
    [
        (33, "00", "end within the date"),
        (33, "0000000000000000 02 ff", "end within the version"),
        (33, "0000000000000000 02 ffff", "not UTF-8"),
        (37, "0001 02 00", "end within the leases"),
        (38, "0001 00000001 00000001 01 0161", "kind 1, not of a hash"),
        (41, "0001 03 00", "store type 3"),
        (41, "0001 07 00", "not a Meta LeaseSet2"),
        (3, "0001 00", "bytes follow a DestroySession"),
    ],
)
def test_invalid_message_raises_with_reason(kind: int, body: str, reason: str) -> None:
    with pytest.raises(I2cpError, match=reason):
        decode(Frame(kind, bytes.fromhex(body)))


@each_case(
    "message",
    [
        SessionStatus(1, 256),
        SetDate(-1),
        Disconnect("x" * 256),
        Disconnect("\udc00"),
        GetDate("1", {"k": "x" * 256}),
        Unhandled(99, bytes(FRAME_LIMIT_BYTES + 1)),
    ],
)
def test_message_beyond_limits_is_not_encoded(message: Message) -> None:
    with pytest.raises(I2cpError):
        encode(message)


@given(cuts=st.lists(st.integers(1, 60), max_size=30))
def test_reader_returns_frames_from_chunks_of_any_size(cuts: list[int]) -> None:
    sent: list[Message] = [SetDate(NOW_MS, "0.9.64"), SessionStatus(1, 1), Unhandled(31, b"p" * 500), Disconnect("bye")]
    stream, reader = b"".join(encode(message) for message in sent), FrameReader()
    received: list[Message] = []
    for size in [*cuts, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        reader.feed(piece)
        while (frame := reader.next_frame()) is not None:
            received.append(decode(frame))
    assert received == sent


def test_announced_length_beyond_limit_is_refused() -> None:
    reader = FrameReader()
    reader.feed((FRAME_LIMIT_BYTES + 1).to_bytes(4, "big") + b"\x21")
    with pytest.raises(I2cpError, match="131073 bytes is announced"):
        reader.next_frame()


def test_repr_of_message_does_not_show_passwords() -> None:
    assert "secret" not in repr(GetDate("1", {"i2cp.password": "secret"}))
