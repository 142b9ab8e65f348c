"""Meta LeaseSet2, compared with bytes recorded from Java I2P's classes and with the layout computed by hand."""

import json
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.wire.i2p.meta_lease_set import (
    LeaseSetError,
    MetaLease,
    MetaLeaseSet,
    OfflineSignature,
    Verdict,
    build,
    check_acceptable_to_java_router,
    decode,
    encode,
    sign,
    verify,
)
from bridge.wire.i2p.structures import destination_from_bytes, ed25519_destination
from tests.effort import each_case

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "meta-ls2.json").read_text())
RECORDED = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in VECTORS["meta_lease_sets"]}
VERIFIES = {vector["name"]: vector["verifies"] for vector in VECTORS["meta_lease_sets"]}
KEY = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["keys"]["ed25519_seed"]))
DESTINATION = destination_from_bytes(bytes.fromhex(VECTORS["keys"]["dest_hex"]))
TRANSIENT = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLISHED_S = 1_767_225_600


def lease(number: int, *, cost: int = 0, after_s: int = 900) -> MetaLease:
    return MetaLease(sha256(b"leaf %d" % number).digest(), cost=cost, ends_s=PUBLISHED_S + after_s)


def offline_signature(expires_s: int = PUBLISHED_S + 86_400) -> OfflineSignature:
    unsigned = OfflineSignature(expires_s, 7, TRANSIENT.public_key().public_bytes_raw(), b"")
    return replace(unsigned, signature=KEY.sign(unsigned.signed_part))


def signed_structure(*leases: MetaLease) -> MetaLeaseSet:
    return sign(build(DESTINATION, PUBLISHED_S, leases or (lease(1),)), KEY)


@each_case("name", RECORDED)
def test_recorded_structure_is_encoded_to_same_bytes(name: str) -> None:
    assert encode(decode(RECORDED[name])) == RECORDED[name]


@each_case("name", RECORDED)
def test_recorded_structure_verifies_as_in_java(name: str) -> None:
    assert verify(decode(RECORDED[name])).holds == VERIFIES[name]


def test_recordings_verify_except_tampered_one() -> None:
    assert {name for name, verifies in VERIFIES.items() if not verifies} == {"tampered"}


def test_recorded_fields_are_decoded() -> None:
    five = decode(RECORDED["five entries"])
    assert five.destination == DESTINATION
    assert five.published_s == PUBLISHED_S
    assert five.expires_after_s == 6_000
    assert [entry.cost for entry in five.leases] == [0, 5, 10, 15, 20]
    assert [entry.store_type for entry in five.leases] == [3, 7, 1, 5, 0]
    assert five.leases[-1].ends_s == PUBLISHED_S + five.expires_after_s
    assert decode(RECORDED["options mapping"]).options == {"alpha": "b=c;d", "zeta": "1"}
    offline = decode(RECORDED["offline signature"]).offline
    assert offline is not None
    assert offline.expires_s == 0xF4865700
    assert offline.signature_type == 7


def test_ed25519_makes_recorded_signature() -> None:
    recorded = decode(RECORDED["one entry"])
    rebuilt = sign(build(DESTINATION, PUBLISHED_S, recorded.leases), KEY)
    assert encode(rebuilt) == RECORDED["one entry"]


def test_structure_verifies_by_hand_from_layout() -> None:
    """Recompute everything with `cryptography` and byte offsets only, without code of the encoder."""
    made = encode(signed_structure(lease(1, cost=3), lease(2, cost=200, after_s=1_200)))
    assert made[:391] == DESTINATION.encoded
    assert made[391:395] == PUBLISHED_S.to_bytes(4, "big")
    assert made[395:397] == (1_200).to_bytes(2, "big")
    assert made[397:399] == b"\x00\x00"
    assert made[399:401] == b"\x00\x00"
    assert made[401] == 2
    first, second = made[402:442], made[442:482]
    assert first == sha256(b"leaf 1").digest() + b"\x00\x00\x03" + b"\x03" + (PUBLISHED_S + 900).to_bytes(4, "big")
    assert second == sha256(b"leaf 2").digest() + b"\x00\x00\x03" + b"\xc8" + (PUBLISHED_S + 1_200).to_bytes(4, "big")
    assert made[482] == 0
    assert len(made) == 483 + 64
    public_key = made[391 - 7 - 32 : 391 - 7]
    Ed25519PublicKey.from_public_bytes(public_key).verify(made[-64:], b"\x07" + made[:-64])


def test_offline_chain_verifies_by_hand_from_layout() -> None:
    unsigned = build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature())
    made = encode(sign(unsigned, TRANSIENT))
    assert made[397:399] == b"\x00\x01"
    block, block_signature = made[399 : 399 + 38], made[437 : 437 + 64]
    assert block[:6] == (PUBLISHED_S + 86_400).to_bytes(4, "big") + b"\x00\x07"
    Ed25519PublicKey.from_public_bytes(made[352:384]).verify(block_signature, block)
    Ed25519PublicKey.from_public_bytes(block[6:]).verify(made[-64:], b"\x07" + made[:-64])


def test_changed_bit_breaks_signature_or_layout() -> None:
    good = encode(signed_structure(lease(1), lease(2)))
    random = Random(7)
    for position in random.sample(range(len(good)), 200):
        changed = bytearray(good)
        changed[position] ^= 1 << random.randrange(8)
        try:
            assert not verify(decode(bytes(changed))).holds, f"byte {position}"
        except LeaseSetError:
            continue


def test_verify_reports_expiry_of_transient_key() -> None:
    structure = sign(build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature()), TRANSIENT)
    verification = verify(structure)
    assert verification.holds
    assert verification.signed_by == "transient key"
    assert verification.transient_expires_s == PUBLISHED_S + 86_400


def test_transient_key_without_valid_signature_breaks_chain() -> None:
    forged = replace(offline_signature(), expires_s=PUBLISHED_S + 10**6)
    structure = sign(build(DESTINATION, PUBLISHED_S, (lease(1),), offline=forged), TRANSIENT)
    verification = verify(structure)
    assert verification.verdict is Verdict.BROKEN
    assert verification.reason == "the destination did not sign this transient key"


def test_signature_by_another_key_is_refused() -> None:
    unsigned = build(DESTINATION, PUBLISHED_S, (lease(1),))
    with pytest.raises(LeaseSetError, match="does not belong"):
        sign(unsigned, TRANSIENT)
    forged = replace(unsigned, signature=TRANSIENT.sign(unsigned.signed_part))
    assert verify(decode(encode(forged))).verdict is Verdict.BROKEN


@pytest.mark.parametrize(("signature_type", "signature_bytes", "name"), [(1, 64, "P256"), (99, 33, "type 99")])
def test_unknown_signature_type_is_decoded_but_cannot_verify(
    signature_type: int, signature_bytes: int, name: str
) -> None:
    strange = destination_from_bytes(DESTINATION.encoded[:-4] + signature_type.to_bytes(2, "big") + b"\x00\x00")
    structure = replace(build(strange, PUBLISHED_S, (lease(1),)), signature=bytes(signature_bytes))
    decoded = decode(encode(structure))
    assert decoded == structure
    verification = verify(decoded)
    assert verification.verdict is Verdict.CANNOT_VERIFY
    assert not verification.holds
    assert name in verification.reason


def test_offline_block_of_unknown_length_is_refused() -> None:
    encoded = encode(sign(build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature()), TRANSIENT))
    strange = encoded[:403] + b"\x00\x63" + encoded[405:]
    with pytest.raises(LeaseSetError, match="type 99 is unknown"):
        decode(strange)


def test_unpublished_structure_has_flag() -> None:
    structure = sign(build(DESTINATION, PUBLISHED_S, (lease(1),), unpublished=True), KEY)
    made = encode(structure)
    assert made[397:399] == b"\x00\x02"
    assert decode(made).is_unpublished
    assert not decode(made).is_blinded
    assert check_acceptable_to_java_router(structure, PUBLISHED_S) == [
        "it is marked unpublished: a floodfill does not hand it out"
    ]
    both = build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature(), unpublished=True)
    assert encode(sign(both, TRANSIENT))[397:399] == b"\x00\x03"
    assert not signed_structure().is_unpublished


def test_fields_of_wrong_length_are_not_encoded() -> None:
    good = signed_structure()
    offline = sign(build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature()), TRANSIENT)
    block = offline_signature()
    for structure, reason in (
        (replace(good, revocations=(bytes(31),)), "a revocation has 32 bytes"),
        (replace(good, revocations=(bytes(32),) * 256), "cannot be written"),
        (replace(good, flags=1), "do not agree"),
        (replace(good, flags=1 << 16), "does not fit"),
        (replace(good, published_s=-1), "does not fit"),
        (replace(good, signature=bytes(63)), "not signed"),
        (replace(offline, offline=replace(block, transient_key=bytes(31))), "length of its type"),
        (replace(offline, offline=replace(block, signature=b"")), "length of its type"),
        (replace(offline, offline=replace(block, signature_type=99)), "length of its type"),
    ):
        with pytest.raises(LeaseSetError, match=reason):
            encode(structure)


def test_refresh_at_pace_of_farm_is_acceptable_to_java_router() -> None:
    """The farm republishes after at most five and a half minutes. Entries end fifteen minutes after that."""
    first = signed_structure(lease(1, after_s=330 + 900))
    second = sign(build(DESTINATION, PUBLISHED_S + 330, (lease(1, after_s=2 * 330 + 900),)), KEY)
    assert check_acceptable_to_java_router(first, PUBLISHED_S + 330) == []
    assert check_acceptable_to_java_router(second, PUBLISHED_S + 330, first) == []


def test_build_refuses_structure_beyond_router_limits() -> None:
    with pytest.raises(LeaseSetError, match="1 to 16 entries, not 0"):
        build(DESTINATION, PUBLISHED_S, ())
    with pytest.raises(LeaseSetError, match="not 17"):
        build(DESTINATION, PUBLISHED_S, tuple(lease(number) for number in range(17)))
    with pytest.raises(LeaseSetError, match="twice"):
        build(DESTINATION, PUBLISHED_S, (lease(1), lease(1)))
    with pytest.raises(LeaseSetError, match="65536 s after"):
        build(DESTINATION, PUBLISHED_S, (lease(1, after_s=65_536),))
    with pytest.raises(LeaseSetError, match="0 s after"):
        build(DESTINATION, PUBLISHED_S, (lease(1, after_s=0),))
    with pytest.raises(LeaseSetError, match="does not fit"):
        build(DESTINATION, PUBLISHED_S, (lease(1, cost=256),))
    with pytest.raises(LeaseSetError, match="32 bytes, not 1"):
        build(DESTINATION, PUBLISHED_S, (MetaLease(b"x", 0, PUBLISHED_S + 1),))
    with pytest.raises(LeaseSetError, match="at most 255"):
        build(DESTINATION, PUBLISHED_S, (lease(1),), options={"k": "x" * 256})
    with pytest.raises(LeaseSetError, match="expired"):
        build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature(PUBLISHED_S))
    with pytest.raises(LeaseSetError, match="not signed"):
        encode(build(DESTINATION, PUBLISHED_S, (lease(1),)))


def test_fresh_structure_is_acceptable_to_java_router() -> None:
    assert check_acceptable_to_java_router(signed_structure(), PUBLISHED_S) == []


def test_refusals_of_java_router_are_named() -> None:
    good = signed_structure(lease(1), lease(2, after_s=65_535))

    def reasons(structure: MetaLeaseSet, now_s: int = PUBLISHED_S, previous: MetaLeaseSet | None = None) -> list[str]:
        resigned = replace(structure, signature=KEY.sign(structure.signed_part))
        return check_acceptable_to_java_router(resigned, now_s, previous)

    assert reasons(replace(good, leases=())) == ["it has 0 entries; 1 to 16 are allowed"]
    assert reasons(replace(good, leases=tuple(lease(n) for n in range(17)))) == [
        "it has 17 entries; 1 to 16 are allowed"
    ]
    assert reasons(good, PUBLISHED_S + 600) == []
    assert reasons(good, PUBLISHED_S + 601) == ["its publication or its earliest end is more than 10 minutes ago"]
    assert reasons(good, PUBLISHED_S - 60) == []
    assert reasons(good, PUBLISHED_S - 61) == [
        "it is published 61 s from now, more than 60 s",
        "its latest end is too far in the future",
    ]
    soon_over = signed_structure(lease(1, after_s=900))
    assert reasons(soon_over, PUBLISHED_S - 61) == ["it is published 61 s from now, more than 60 s"]
    later = replace(good, published_s=PUBLISHED_S + 1)
    assert reasons(later, previous=good) == []
    assert reasons(good, previous=good) == ["its timestamp is not after the timestamp of the replaced structure"]
    assert reasons(replace(good, revocations=(bytes(32),))) == ["it has revocations, so a Java router cannot verify it"]
    assert reasons(replace(good, leases=(replace(lease(1), flags=0x010003),))) == [
        "an entry has upper flag bits, so a Java router cannot verify it"
    ]
    assert reasons(replace(good, options={"k": "\u00fc"})) == [
        "an option is not plain ASCII, so a Java router cannot verify it"
    ]
    tampered = decode(RECORDED["tampered"])
    assert check_acceptable_to_java_router(tampered, PUBLISHED_S) == ["the signature is not the destination's"]
    offline = sign(build(DESTINATION, PUBLISHED_S, (lease(1),), offline=offline_signature(PUBLISHED_S + 9)), TRANSIENT)
    assert check_acceptable_to_java_router(offline, PUBLISHED_S + 9) == ["the transient key that signed it has expired"]


@each_case("name", RECORDED)
def test_truncated_or_extended_structure_is_refused(name: str) -> None:
    data = RECORDED[name]
    for length in range(len(data)):
        with pytest.raises(LeaseSetError):
            decode(data[:length])
    with pytest.raises(LeaseSetError, match="65 bytes remain"):
        decode(data + b"\x00")


def test_oversized_structure_is_refused_before_decoding() -> None:
    with pytest.raises(LeaseSetError, match="at most 65536 bytes"):
        decode(bytes(65_537))


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            MetaLease,
            st.binary(min_size=32, max_size=32),
            st.integers(0, 255),
            st.integers(PUBLISHED_S + 1, PUBLISHED_S + 65_535),
        ),
        min_size=1,
        max_size=16,
        unique_by=lambda entry: entry.destination_hash,
    ),
    st.dictionaries(st.text("abc=;", max_size=5), st.text("xyz", max_size=5), max_size=4),
)
def test_built_structure_round_trips_and_verifies(leases: list[MetaLease], options: dict[str, str]) -> None:
    made = sign(build(DESTINATION, PUBLISHED_S, tuple(leases), options=options), KEY)
    assert decode(encode(made)) == made
    assert verify(made).holds


def test_structure_moved_to_another_destination_is_invalid() -> None:
    second = ed25519_destination(DESTINATION.signing_key, bytes(32))
    moved = replace(signed_structure(), destination=second)
    assert not verify(moved).holds
