"""Proofs of entries: only the author's exact bytes have a valid one.

The test also builds the format by hand, from its description in `docs/reference/application-json.md`.
"""

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.core.log.fields import BRACKETS_LIMIT, ENTRY_LIMIT_BYTES
from bridge.wire.log.proof import NUMBER_LIMIT, Proof, ends_like_proof, proven, sign_entry
from gossip.core.member import NodeId
from tests.effort import each_case

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PUBLIC_KEY = KEY.public_key().public_bytes_raw()
AUTHOR = NodeId(hashlib.sha256(PUBLIC_KEY).digest()[:8])
CLUSTER = bytes(range(16))
ENTRY = b'{"force":{"master":"x"},"request":"r"}'
SIGNED = sign_entry(ENTRY, KEY, CLUSTER, 7)
BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def base64url(value: bytes) -> bytes:
    return base64.b64encode(value, b"-_").rstrip(b"=")


def signed_by_hand(before_proof: bytes, number: bytes, *, end: bytes = b'"}', name: bytes = b'"proof":"') -> bytes:
    unsigned = before_proof + b"," + name + base64url(PUBLIC_KEY) + b"." + number + b"."
    return unsigned + base64url(KEY.sign(b"garlic farm entry 1\x00" + CLUSTER + unsigned)) + end


def test_proof_has_documented_format() -> None:
    by_hand = signed_by_hand(ENTRY[:-1], b"7")
    assert by_hand == SIGNED
    assert proven(by_hand, CLUSTER) == Proof(AUTHOR, PUBLIC_KEY, 7)


@given(st.binary(min_size=16, max_size=16), st.integers(1, NUMBER_LIMIT - 1), st.text(max_size=40))
def test_signed_entry_is_proven_only_for_its_farm(cluster: bytes, number: int, text: str) -> None:
    entry = b'{ "t" : "' + text.encode("unicode_escape").replace(b"\\", b"/").replace(b'"', b"'") + b'" }'
    signed = sign_entry(entry, KEY, cluster, number)
    assert proven(signed, cluster) == Proof(AUTHOR, PUBLIC_KEY, number)
    assert proven(signed, bytes([cluster[0] ^ 1]) + cluster[1:]) is None


@given(st.integers(0, len(SIGNED) - 1), st.integers(0, 255))
def test_entry_with_replaced_byte_is_unproven(place: int, value: int) -> None:
    mutated = SIGNED[:place] + bytes([value]) + SIGNED[place + 1 :]
    assert (proven(mutated, CLUSTER) is None) == (mutated != SIGNED)


@given(st.integers(0, len(SIGNED)), st.integers(0, 255))
def test_entry_with_inserted_or_removed_byte_is_unproven(place: int, value: int) -> None:
    assert proven(SIGNED[:place] + bytes([value]) + SIGNED[place:], CLUSTER) is None
    assert proven(SIGNED[:place] + SIGNED[place + 1 :], CLUSTER) is None or place == len(SIGNED)


def test_entry_with_flipped_bit_is_unproven() -> None:
    for place in range(8 * len(SIGNED)):
        flipped = bytearray(SIGNED)
        flipped[place // 8] ^= 1 << place % 8
        assert proven(bytes(flipped), CLUSTER) is None, place


@given(st.binary(max_size=300))
@example(b'"}')
@example(b"[" * 100_000)
def test_arbitrary_bytes_are_unproven(data: bytes) -> None:
    for each in (data, b"{" + data + b"}", SIGNED[:-88] + data + b'"}', data + b"\x00" + SIGNED):
        assert proven(each, CLUSTER) is None


@given(st.text(BASE64URL, min_size=43, max_size=43), st.text(BASE64URL, min_size=86, max_size=86), st.integers(1))
@example("A" * 43, "A" * 86, 1)
@example("_" * 43, "_" * 86, 2**53)
def test_random_signature_is_refused(key: str, signature: str, number: int) -> None:
    assert proven(ENTRY[:-1] + f',"proof":"{key}.{number}.{signature}"}}'.encode(), CLUSTER) is None


@each_case(
    ("data", "why"),
    [
        (signed_by_hand(b'{"a":1,"proof":1', b"7"), "a second member of that name"),
        (signed_by_hand(b'{"\\u0070roof":1', b"7"), "an escaped second member of that name"),
        (signed_by_hand(b'{"a":1', b"7", name=b'"\\u0070roof":"'), "an escaped name"),
        (signed_by_hand(b'{"a":1', b"7", name=b' "proof":"'), "a space before the member"),
        (signed_by_hand(b'{"a":1', b"7", end=b'" }'), "a space after it"),
        (signed_by_hand(b'{"a":1', b"7", end=b'"}\n'), "a line end after the object"),
        (signed_by_hand(b'{"a":1', b"7", end=b'","b":2}'), "a member after it"),
        (signed_by_hand(b'{"a":1', b"07"), "a leading zero"),
        (signed_by_hand(b'{"a":1', b"0"), "number zero"),
        (signed_by_hand(b'{"a":1', b"+7"), "a sign"),
        (signed_by_hand(b'{"a":1', str(NUMBER_LIMIT).encode()), "a number that JSON does not hold"),
        (signed_by_hand(b'{"a":{"b":1', b"7"), "inside of another object"),
        (signed_by_hand(b'{"a":"', b"7"), "inside of a text"),
        (signed_by_hand(b"[1", b"7", end=b'"}'), "no object"),
        (signed_by_hand(b"{", b"7"), "no member before it"),
        (signed_by_hand(b'{"a":' + b"[" * BRACKETS_LIMIT + b"]" * BRACKETS_LIMIT, b"7"), "nested too deeply"),
        (signed_by_hand(b'{"a":"' + b"x" * ENTRY_LIMIT_BYTES + b'"', b"7"), "longer than any entry"),
    ],
)
def test_proof_with_other_spelling_or_place_is_refused(data: bytes, why: str) -> None:
    assert proven(data, CLUSTER) is None, why


@pytest.mark.parametrize("part", [0, 2])
def test_base64_with_stray_bits_is_refused(part: int) -> None:
    texts = SIGNED[: -len('"}')].rpartition(b'"')[2].split(b".")
    last = BASE64URL.index(chr(texts[part][-1]))
    again = texts[part][:-1] + BASE64URL[last + 1].encode()
    assert base64.urlsafe_b64decode(again + b"==") == base64.urlsafe_b64decode(texts[part] + b"==")
    assert proven(SIGNED.replace(texts[part], again), CLUSTER) is None


@each_case("sign_bit", [0, 0x80])
@each_case(
    "point",
    [
        0,
        1,
        2**255 - 20,
        2**255 - 19,
        2**255 - 18,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D6A7017C7,
    ],
)
def test_key_of_small_order_is_refused(point: int, sign_bit: int) -> None:
    """OpenSSL accepts keys of small order: a signature of zero bits is valid for one text in two to eight."""
    key = (point | sign_bit << 248).to_bytes(32, "little")
    for number in range(1, 40):
        for signature in (bytes(64), b"\x01" + bytes(63)):
            text = base64url(key) + b".%d." % number + base64url(signature)
            assert proven(ENTRY[:-1] + b',"proof":"' + text + b'"}', CLUSTER) is None


def test_proof_naming_another_key_is_refused() -> None:
    theirs = base64url(OTHER_KEY.public_key().public_bytes_raw())
    assert proven(SIGNED.replace(base64url(PUBLIC_KEY), theirs), CLUSTER) is None


def test_proof_of_another_entry_is_refused() -> None:
    proof = SIGNED[len(ENTRY) - 1 :]
    assert proven(b'{"force":{"master":"y"},"request":"r"' + proof, CLUSTER) is None


@each_case(
    ("entry", "number"),
    [
        (b"{}", 1),
        (b"[1]", 1),
        (b"1}", 1),
        (b'{"a":1}\n', 1),
        (b'{"a":1,"proof":1}', 1),
        (SIGNED, 8),
        (ENTRY, 0),
        (ENTRY, NUMBER_LIMIT),
        (b'{"a":"' + b"x" * (ENTRY_LIMIT_BYTES - 20) + b'"}', 1),
    ],
)
def test_unreadable_entry_is_not_signed(entry: bytes, number: int) -> None:
    with pytest.raises(ValueError, match=r"number of an entry|can be signed|limit is"):
        sign_entry(entry, KEY, CLUSTER, number)


def test_ends_like_proof_checks_end_of_entry() -> None:
    assert ends_like_proof(SIGNED)
    assert not ends_like_proof(ENTRY)
    assert not ends_like_proof(SIGNED + b" ")
