"""Gossip messages and their bytes: round trips, and one error for all other bytes."""

import random

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT, structs

from gossip.core.member import Address, NodeId
from gossip.core.messages import JoinAck, JoinNak, JoinRedirect, KeyringUpdate, Message, Payload, PingRequest
from gossip.wire.codec import Code, DatagramError, decode, encode
from tests.effort import each_case
from tests.memory import peak_bytes
from tests.wire.gossip_messages import ALICE, BORIS, EXAMPLES, VERDICT, messages

by_kind = pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)


@given(messages)
def test_message_round_trips(message: Message) -> None:
    assert decode(encode(message)) == message


def test_first_byte_is_message_code() -> None:
    codes = [encode(message)[0] for message in EXAMPLES]
    assert codes == [63, 66, 65, 64, 69, 67, 68, 250, 70, 71]
    assert sorted(codes) == sorted(Code)


def test_message_bytes_contain_all_fields() -> None:
    left_out_shows = [
        (message, field.name)
        for message in EXAMPLES
        for field in structs.fields(message)
        if field.default is not NODEFAULT and getattr(message, field.name) == field.default
    ]
    assert left_out_shows == [], "an example with a default value cannot show that the field is encoded"
    assert [decode(encode(message)) for message in EXAMPLES] == list(EXAMPLES)


def test_join_nak_has_expected_bytes() -> None:
    nak = bytes.fromhex("4284687377696d6a6f696e19 1bcb43010203 05")
    assert encode(decode(nak)) == nak


def test_addresses_with_one_port_share_its_object() -> None:
    hosts = ("10.0.0.1", "10.0.0.2")
    message = decode(encode(JoinRedirect(tuple(Address(each, 7668) for each in hosts), "swimjoin", 7116)))
    assert isinstance(message, JoinRedirect)
    one, other = message.addresses
    assert one.port is other.port


@by_kind
def test_trailing_bytes_are_refused(message: Message) -> None:
    with pytest.raises(DatagramError):
        decode(encode(message) + b"\x00")


@by_kind
def test_truncated_datagram_is_refused(message: Message) -> None:
    datagram = encode(message)
    for length in range(len(datagram)):
        with pytest.raises(DatagramError):
            decode(datagram[:length])


@by_kind
def test_mutated_datagram_is_refused_or_decodes_to_valid_message(message: Message) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    datagram = encode(message)
    for _ in range(1500):
        mutated = bytearray(datagram)
        for _ in range(dice.randint(1, 3)):
            mutated[dice.randrange(len(mutated))] = dice.randrange(256)
        decoded = decoded_or_none(bytes(mutated))
        assert decoded is None or decode(encode(decoded)) == decoded, f"random seed {seed}"


@given(st.binary(max_size=200), st.sampled_from(sorted(Code)))
def test_random_bytes_raise_only_datagram_error(rubbish: bytes, code: Code) -> None:
    for datagram in (rubbish, bytes([code]) + rubbish):
        decoded = decoded_or_none(datagram)
        assert decoded is None or decode(encode(decoded)) == decoded


def decoded_or_none(datagram: bytes) -> Message | None:
    """Return the message, or None if it is refused. Any other error fails the test."""
    try:
        return decode(datagram)
    except DatagramError:
        return None


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.binary(max_size=9)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.integers(0, 9), inner, max_size=3),
    max_leaves=30,
)


@given(json_like, st.sampled_from(sorted(Code)))
def test_cbor_of_another_shape_raises_only_datagram_error(body: object, code: Code) -> None:
    decoded = decoded_or_none(bytes([code]) + cbor2.dumps(body))
    assert decoded is None or decode(encode(decoded)) == decoded


HOSTILE = {
    "date": "c074323031332d30332d32315432303a30343a30305a",
    "small integer as a big one": "c24101",
    "bytes under a tag": "d82641c3",
    "self-described CBOR": "d9d9f701",
    "reference to an earlier string": "d81900",
    "set": "d9010281 01",
    "network address": "d83444c0a80001",
    "MIME message": "d8246161",
    "text as base64": "6459575a6b",
    "bytes instead of text": "4161",
    "true instead of a number": "f5",
    "array instead of any type": "8101",
    "epoch": "c11a514b67b0",
    "big integer": "c249ffffffffffffffffff",
    "fraction": "d81e820103",
    "regular expression": "d8236228 2b",
    "shared reference to itself": "d81c81d81d00",
    "float": "fb3ff0000000000000",
    "half float NaN": "f97e00",
    "negative": "20",
    "map": "a10102",
    "undefined": "f7",
    "simple value": "f8ff",
    "break alone": "ff",
    "indefinite array": "9f01ff",
    "indefinite bytes": "5f4101ff",
    "array of 2^63": "9b7fffffffffffffff",
    "bytes of 2^63": "5b7fffffffffffffff01",
    "text of 2^32": "7affffffff",
    "array of 2^20 without elements": "9a00100000",
    "text that is not UTF-8": "62c328",
    "reserved length": "1c",
}


NAK = ("d", 1, b"etag", 2)


@each_case("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_cbor_is_refused_as_body_and_as_field(hostile: str) -> None:
    item = bytes.fromhex(hostile)
    right = [cbor2.dumps(field) for field in NAK]
    assert decode(bytes([Code.JOIN_NAK]) + b"\x84" + b"".join(right)) == JoinNak(*NAK)
    bodies = [item, *(b"\x84" + b"".join([*right[:at], item, *right[at + 1 :]]) for at in range(len(NAK)))]
    taken = [body.hex() for body in bodies if decoded_or_none(bytes([Code.JOIN_NAK]) + body) is not None]
    fits_one_field = {"text as base64": 0, "bytes instead of text": 2}
    at = next((at for name, at in fits_one_field.items() if HOSTILE[name] == hostile), None)
    assert taken == ([] if at is None else [bodies[1 + at].hex()])


def test_longer_cbor_spelling_decodes_to_same_message() -> None:
    shortest = bytes([Code.JOIN_NAK]) + cbor2.dumps(NAK)
    longer = bytes([Code.JOIN_NAK]) + bytes.fromhex("9804 7801 64 1900 01 5900 04 65746167 1b0000000000000002")
    assert decode(longer) == decode(shortest) == JoinNak(*NAK)
    assert encode(decode(longer)) == shortest


def test_hostile_datagrams_use_little_memory() -> None:
    nested = bytes([Code.JOIN_REQ]) + b"\x81" * 60_000 + b"\x00"
    wide = bytes([Code.JOIN_REQ]) + b"\x99\xff\xff" + b"\x00" * 65_535
    claims = [bytes([Code.LEAVE]) + bytes.fromhex(hostile) for hostile in HOSTILE.values()]

    def decode_hostile() -> None:
        for datagram in (nested, wide, *claims):
            with pytest.raises(DatagramError):
                decode(datagram)

    assert peak_bytes(decode_hostile) < 1_000_000


def test_ping_over_size_limit_drops_samples_before_updates() -> None:
    ping = PingRequest(
        ALICE.node_id,
        ALICE.incarnation,
        BORIS.node_id,
        BORIS.incarnation,
        seq=1,
        ttl=0,
        payload=Payload((VERDICT,) * 10, sample=(ALICE,) * 20),
    )
    kept = decode(encode(ping, limit_bytes=1000))
    assert isinstance(kept, PingRequest)
    assert kept.payload.updates == ping.payload.updates
    assert 0 < len(kept.payload.sample) < 20
    fewer = decode(encode(ping, limit_bytes=200))
    assert isinstance(fewer, PingRequest)
    assert not fewer.payload.sample
    assert 0 < len(fewer.payload.updates) < 10


def test_message_too_large_for_datagram_raises() -> None:
    with pytest.raises(DatagramError, match="does not fit"):
        encode(JoinAck(ALICE, (BORIS,)), limit_bytes=100)


def test_host_name_as_address_is_refused() -> None:
    with pytest.raises(DatagramError, match="numeric"):
        encode(JoinAck(ALICE.__class__(NodeId(b"n" * 8), Address("router.local", 1), ALICE.incarnation, 1)))


@each_case("head", [0x80, 0x81, 0x82, 0x84, 0x85])
def test_keyring_update_with_other_field_count_is_refused(head: int) -> None:
    datagram = bytearray(encode(next(message for message in EXAMPLES if isinstance(message, KeyringUpdate))))
    assert datagram[1] == 0x83
    datagram[1] = head
    with pytest.raises(DatagramError):
        decode(bytes(datagram))


@pytest.mark.parametrize("code", [0, 2**32 - 1, 2**32, 2**64 - 1])
def test_error_code_of_eight_bytes_round_trips(code: int) -> None:
    for refusal in (JoinNak("elsewhere", code, b"full"), JoinRedirect((), "elsewhere", code)):
        assert decode(encode(refusal)) == refusal
