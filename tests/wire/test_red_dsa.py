"""RedDSA (type 11) signatures made from the definition, and the exact rule for a valid signature.

The rule of a Java router: S is below the group's order, and the equation holds without the cofactor, by comparing R's
bytes. A looser rule here would let `lease-set show` accept a structure that routers refuse.
"""

import json
from functools import cache
from hashlib import sha512
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from bridge.wire.i2p.meta_lease_set import (
    LeaseSetError,
    MetaLease,
    MetaLeaseSet,
    OfflineSignature,
    Verdict,
    build,
    decode,
    encode,
    sign,
    verify,
)
from bridge.wire.i2p.structures import ED25519, RED_DSA, Destination, destination_from_bytes, ed25519_destination
from tests.effort import each_case
from tests.wire.edwards_by_hand import BASE, NEUTRAL, OF_ORDER_TWO, ORDER, holds_with_cofactor, point_at, red_dsa_sign

JUDGED: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "meta-ls2-judged.json").read_text())[
    "meta_lease_sets"
]
PUBLISHED_S = 1_767_225_600
LEASES = (MetaLease(b"leaf" * 8, cost=7, ends_s=PUBLISHED_S + 900),)
SECRET = int.from_bytes(b"no clamped hash, a bare scalar..", "little") % ORDER
RANDOMNESS = bytes(range(80))
TRANSIENT = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@cache
def red_key() -> bytes:
    return (SECRET * BASE).encode()


def destination_of(key: bytes, signature_type: int) -> Destination:
    ed25519 = ed25519_destination(key, bytes(32)).encoded
    return destination_from_bytes(ed25519[:-4] + signature_type.to_bytes(2, "big") + b"\x00\x00")


def sign_red(unsigned: MetaLeaseSet) -> MetaLeaseSet:
    return replace(unsigned, signature=red_dsa_sign(SECRET, red_key(), unsigned.signed_part, RANDOMNESS))


def test_handwritten_arithmetic_agrees_with_library() -> None:
    """RFC 8032, section 5.1: B's y is 4/5; B has order L; a library's public key is a clamped scalar times B."""
    assert (ORDER * BASE) == NEUTRAL
    assert OF_ORDER_TWO + OF_ORDER_TWO == NEUTRAL
    assert point_at(BASE.y, 0) == BASE
    clamped = bytearray(sha512(bytes(range(32))).digest()[:32])
    clamped[0] &= 248
    clamped[31] = clamped[31] & 127 | 64
    assert (int.from_bytes(clamped, "little") * BASE).encode() == TRANSIENT.public_key().public_bytes_raw()


def test_red_dsa_destination_signs_structure() -> None:
    destination = destination_of(red_key(), RED_DSA)
    structure = sign_red(build(destination, PUBLISHED_S, LEASES))
    decoded = decode(encode(structure))
    assert decoded.destination.signature_type == RED_DSA
    assert verify(decoded).holds
    assert verify(replace(decoded, published_s=PUBLISHED_S + 1)).verdict is Verdict.BROKEN


def test_red_dsa_destination_signs_ed25519_transient_key() -> None:
    destination = destination_of(red_key(), RED_DSA)
    block = OfflineSignature(PUBLISHED_S + 86_400, ED25519, TRANSIENT.public_key().public_bytes_raw(), b"")
    block = replace(block, signature=red_dsa_sign(SECRET, red_key(), block.signed_part, RANDOMNESS))
    structure = sign(build(destination, PUBLISHED_S, LEASES, offline=block), TRANSIENT)
    assert verify(decode(encode(structure))).holds
    forged = sign(replace(structure, offline=replace(block, expires_s=block.expires_s + 1)), TRANSIENT)
    assert verify(forged).reason == "the destination did not sign this transient key"


def test_ed25519_destination_signs_red_dsa_transient_key() -> None:
    destination = destination_of(TRANSIENT.public_key().public_bytes_raw(), ED25519)
    block = OfflineSignature(PUBLISHED_S + 86_400, RED_DSA, red_key(), b"")
    block = replace(block, signature=TRANSIENT.sign(block.signed_part))
    structure = sign_red(build(destination, PUBLISHED_S, LEASES, offline=block))
    assert decode(encode(structure)).signature_type == RED_DSA
    assert verify(structure).holds


def test_signing_with_red_dsa_is_refused() -> None:
    unsigned = build(destination_of(TRANSIENT.public_key().public_bytes_raw(), RED_DSA), PUBLISHED_S, LEASES)
    with pytest.raises(LeaseSetError, match="does not belong"):
        sign(unsigned, TRANSIENT)


def test_second_form_of_signature_is_refused() -> None:
    """S + L also satisfies the equation: any reader could turn one published structure into another with it."""
    structure = sign_red(build(destination_of(red_key(), RED_DSA), PUBLISHED_S, LEASES))
    scalar = int.from_bytes(structure.signature[32:], "little")
    second = structure.signature[:32] + (scalar + ORDER).to_bytes(32, "little")
    assert verify(replace(structure, signature=second)).verdict is Verdict.BROKEN


def test_signature_valid_only_with_cofactor_is_refused() -> None:
    unsigned = build(destination_of(red_key(), RED_DSA), PUBLISHED_S, LEASES)
    shifted = red_dsa_sign(SECRET, red_key(), unsigned.signed_part, RANDOMNESS, shift=OF_ORDER_TWO)
    assert holds_with_cofactor(red_key(), unsigned.signed_part, shifted)
    assert verify(replace(unsigned, signature=shifted)).verdict is Verdict.BROKEN


@pytest.mark.parametrize("key", [b"\xff" * 32, (2).to_bytes(32, "little")], ids=["beyond the field", "off the curve"])
def test_public_key_off_the_curve_is_refused(key: bytes) -> None:
    unsigned = build(destination_of(key, RED_DSA), PUBLISHED_S, LEASES)
    assert verify(replace(unsigned, signature=bytes(64))).verdict is Verdict.BROKEN


@each_case("judged", JUDGED, ids=lambda judged: judged["name"])
def test_verdict_equals_recorded_verdict_of_java(judged: dict[str, Any]) -> None:
    data = bytes.fromhex(judged["hex"])
    structure = decode(data)
    assert encode(structure) == data
    assert verify(structure).holds == judged["verifies"]
