"""The exchange between client and directory: exact bytes, and one error for all others."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.wire.i2p.destination_keys import MasterKey
from bridge.wire.i2p.meta_lease_set import MetaLease, MetaLeaseSet, encode
from bridge.wire.i2p.structure_exchange import (
    CLOCK_FUDGE_S,
    REPLY_HEADER_BYTES,
    REPLY_LIMIT_BYTES,
    REQUEST_BYTES,
    STRUCTURE_LIMIT_BYTES,
    ExchangeError,
    ReplyStatus,
    StructureReply,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    reply_bytes_missing,
    verified_structure,
)
from bridge.wire.i2p.structures import ed25519_destination
from tests.effort import each_case

STATUSES = st.sampled_from([status for status in ReplyStatus if status is not ReplyStatus.STRUCTURE])
REPLIES = st.builds(StructureReply, STATUSES) | st.builds(
    StructureReply, st.just(ReplyStatus.STRUCTURE), st.binary(min_size=1, max_size=2_000)
)
NOW_S = 1_767_225_600
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MASTER = MasterKey(ed25519_destination(KEY.public_key().public_bytes_raw(), bytes(32)), KEY)
ADDRESS = MASTER.destination.hash


def signed(published_s: int = NOW_S, *, transient_life_s: int | None = None) -> MetaLeaseSet:
    key = MASTER.as_signing_key()
    if transient_life_s is not None:
        key = MASTER.sign_transient(published_s, transient_life_s)
    return key.sign(published_s, (MetaLease(b"leaf" * 8, cost=5, ends_s=published_s + 900),))


def test_request_and_reply_have_documented_bytes() -> None:
    assert encode_request(b"h" * 32) == b"\x01" + b"h" * 32
    assert encode_reply(StructureReply(ReplyStatus.STRUCTURE, b"abc")) == b"\x01\x00\x00\x03abc"
    assert encode_reply(StructureReply(ReplyStatus.TOO_MANY_REQUESTS)) == b"\x01\x03\x00\x00"


@given(st.binary(min_size=32, max_size=32))
def test_request_is_decoded_to_same_hash(address_hash: bytes) -> None:
    assert decode_request(encode_request(address_hash)) == address_hash


@given(REPLIES)
def test_reply_is_decoded_to_same_reply(reply: StructureReply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


@given(REPLIES, st.data())
def test_partial_reply_misses_remaining_bytes(reply: StructureReply, data: st.DataObject) -> None:
    encoded = encode_reply(reply)
    received = data.draw(st.integers(0, len(encoded)), label="bytes received")
    goal = len(encoded) if received >= REPLY_HEADER_BYTES else REPLY_HEADER_BYTES
    assert reply_bytes_missing(encoded[:received]) == goal - received


@pytest.mark.parametrize("data", [b"", b"\x01" + bytes(31), b"\x01" + bytes(33), b"\x02" + bytes(32)])
def test_wrong_request_is_refused(data: bytes) -> None:
    with pytest.raises(ExchangeError):
        decode_request(data)


@each_case(
    ("data", "reason"),
    [
        (b"HTTP", "version 72"),
        (b"\x01\x04", "status 4 of the reply is unknown"),
        (b"\x01\x00\x00\x00", "announces 0 bytes"),
        (b"\x01\x01\x00\x01x", "status 1 announces 1 bytes"),
        (b"\x01\x02\x00\x00x", "1 bytes follow"),
    ],
)
def test_wrong_header_of_reply_is_refused_early(data: bytes, reason: str) -> None:
    with pytest.raises(ExchangeError, match=reason):
        reply_bytes_missing(data)


def test_largest_structure_fits_reply_limit() -> None:
    reply = StructureReply(ReplyStatus.STRUCTURE, bytes(STRUCTURE_LIMIT_BYTES))
    assert len(encode_reply(reply)) == REPLY_LIMIT_BYTES
    with pytest.raises(ExchangeError, match="at most 65535"):
        StructureReply(ReplyStatus.STRUCTURE, bytes(STRUCTURE_LIMIT_BYTES + 1))


def test_reply_of_contradicting_parts_is_refused() -> None:
    with pytest.raises(ExchangeError):
        StructureReply(ReplyStatus.STRUCTURE)
    with pytest.raises(ExchangeError):
        StructureReply(ReplyStatus.UNKNOWN_ADDRESS, b"x")


def test_request_for_short_hash_is_refused() -> None:
    with pytest.raises(ExchangeError, match="32 bytes"):
        encode_request(bytes(20))
    assert REQUEST_BYTES == 33


@each_case("transient_life_s", [None, 3_600])
@each_case("later_s", [-CLOCK_FUDGE_S, 0, 899])
def test_valid_structure_is_verified(transient_life_s: int | None, later_s: int) -> None:
    structure = signed(transient_life_s=transient_life_s)
    assert verified_structure(ADDRESS, encode(structure), NOW_S + later_s) == structure


@each_case(
    ("data", "later_s", "reason"),
    [
        (b"x" * 500, 0, "not a Meta LeaseSet2"),
        (encode(replace(signed(), signature=bytes(64))), 0, "does not hold"),
        (encode(replace(signed(), published_s=NOW_S + 1)), 0, "does not hold"),
        (encode(signed(transient_life_s=300)), 300, "ended 0 s ago"),
        (encode(signed()), -CLOCK_FUDGE_S - 1, "61 s from now"),
        (encode(signed()), 900, "expired 0 s ago"),
    ],
)
def test_invalid_structure_is_refused_with_reason(data: bytes, later_s: int, reason: str) -> None:
    with pytest.raises(ExchangeError, match=reason):
        verified_structure(ADDRESS, data, NOW_S + later_s)


def test_structure_of_other_address_is_refused() -> None:
    with pytest.raises(ExchangeError, match="the structure is for"):
        verified_structure(bytes(32), encode(signed()), NOW_S)
