"""Private key files in the layout of I2P routers become master keys that reproduce a router's recorded signature."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bridge.wire.i2p.destination_keys import DestinationKeyError
from bridge.wire.i2p.key_file import FILE_LIMIT_BYTES, parse_i2p_key_file
from bridge.wire.i2p.meta_lease_set import decode, encode
from tests.effort import each_case

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "meta-ls2.json").read_text())
RECORDED = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in VECTORS["meta_lease_sets"]}
DESTINATION = bytes.fromhex(VECTORS["keys"]["dest_hex"])
SEED = bytes.fromhex(VECTORS["keys"]["ed25519_seed"])
ENCRYPTION_KEY = b"e" * 256
CONTENT = DESTINATION + ENCRYPTION_KEY + SEED


def test_key_from_file_reproduces_recorded_java_signature() -> None:
    key = parse_i2p_key_file(CONTENT)
    assert key.destination.encoded == DESTINATION
    assert not key.demo
    recorded = decode(RECORDED["one entry"])
    again = key.as_signing_key().sign(recorded.published_s, recorded.leases)
    assert encode(again) == RECORDED["one entry"]


def test_file_with_x25519_encryption_key_gives_key() -> None:
    x25519 = DESTINATION[:-2] + b"\x00\x04"
    key = parse_i2p_key_file(x25519 + ENCRYPTION_KEY[:32] + SEED)
    assert key.destination.encoded == x25519


@each_case(
    ("content", "reason"),
    [
        (b"", "not a private key file of an I2P destination: a destination has at least 387 bytes"),
        (CONTENT + b"x", "more bytes follow"),
        (DESTINATION + ENCRYPTION_KEY + bytes(32) + bytes(200), "only a transient key of .*b32.i2p: the file with"),
        (DESTINATION + ENCRYPTION_KEY + SEED[::-1], "does not belong to .*b32.i2p: the file is damaged"),
        (DESTINATION[:-4] + b"\0\1\0\0" + ENCRYPTION_KEY + SEED, "signs with ECDSA-SHA256-P256; only an Ed25519"),
        (DESTINATION[:-4] + b"\0\x63\0\0" + ENCRYPTION_KEY + SEED, "signs with type 99"),
        (DESTINATION[:-2] + b"\0\x63" + ENCRYPTION_KEY + SEED, "encryption key of type 99 is not known"),
        (bytes(FILE_LIMIT_BYTES + 1), "8193 bytes"),
    ],
)
def test_unusable_key_file_is_refused_with_reason(content: bytes, reason: str) -> None:
    with pytest.raises(DestinationKeyError, match=reason):
        parse_i2p_key_file(content)


def test_truncated_key_file_is_refused() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(DestinationKeyError):
            parse_i2p_key_file(CONTENT[:length])


def test_mutated_key_file_is_refused_or_keeps_signing_key() -> None:
    random = Random(5)
    for _ in range(2_000):
        data = bytearray(CONTENT)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(340, len(data))] = random.randrange(256)
        try:
            key = parse_i2p_key_file(bytes(data))
        except DestinationKeyError:
            continue
        assert key.destination.signing_key == DESTINATION[352:384]
