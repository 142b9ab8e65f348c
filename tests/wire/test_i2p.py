"""Destinations, base64, addresses, mappings and routing keys, compared with bytes recorded from Java I2P's classes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.wire.i2p.structures import (
    ED25519,
    I2pError,
    address_of,
    base64_decode,
    base64_encode,
    destination_from_base64,
    destination_from_bytes,
    ed25519_destination,
    encode_mapping,
    read_destination,
    read_mapping,
)
from tests.effort import each_case

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "meta-ls2.json").read_text())
KEYS = VECTORS["keys"]
ENCODED = bytes.fromhex(KEYS["dest_hex"])


def test_destination_from_key_and_padding_equals_recording() -> None:
    built = ed25519_destination(bytes.fromhex(KEYS["ed25519_pub"]), ENCODED[:32])
    assert built.encoded == ENCODED
    assert len(built.encoded) == 391


def test_destination_has_recorded_hash_base64_and_address() -> None:
    parsed = destination_from_bytes(ENCODED)
    assert parsed.hash.hex() == KEYS["dest_hash_hex"]
    assert base64_encode(parsed.hash) == KEYS["dest_hash_b64"]
    assert parsed.base64 == KEYS["dest_b64"]
    assert parsed.address == address_of(parsed.hash) == KEYS["b32"]
    assert destination_from_base64(KEYS["dest_b64"]) == parsed


def test_signing_key_is_right_justified_in_key_fields() -> None:
    parsed = destination_from_bytes(ENCODED)
    assert parsed.signature_type == ED25519
    assert parsed.signing_key.hex() == KEYS["ed25519_pub"]


def test_null_certificate_means_dsa_key() -> None:
    parsed = destination_from_bytes(bytes(384) + bytes(3))
    assert (parsed.signature_type, len(parsed.signing_key)) == (0, 128)


def test_long_key_continues_in_certificate() -> None:
    excess = b"\x11\x22\x33\x44"
    parsed = destination_from_bytes(b"\xaa" * 384 + b"\x05\x00\x08\x00\x03\x00\x00" + excess)
    assert parsed.signature_type == 3
    assert parsed.signing_key == b"\xaa" * 128 + excess


def test_reading_stops_at_end_of_destination() -> None:
    parsed, end = read_destination(b"\xff" + ENCODED + b"rest", 1)
    assert parsed.encoded == ENCODED
    assert end == 1 + 391


@each_case(
    "data",
    [
        b"",
        ENCODED[:-1],
        ENCODED + b"\x00",
        ENCODED[:384] + b"\x05\xff\xff" + bytes(4),
        ENCODED[:384] + b"\x05\x00\x02\x00\x07",
        ENCODED[:384] + b"\x03\x00\x00",
        ENCODED[:384] + b"\x05\x00\x04\x00\x03\x00\x00",
    ],
    ids=["empty", "cut", "trailing", "certificate beyond the end", "short key certificate", "odd type", "no excess"],
)
def test_invalid_destination_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(I2pError):
        destination_from_bytes(data)


@each_case("text", ["+A==", "/A==", "AB==", "A", "AA", "AAA==", "ÄA==", "AA==\n", "A=A="])
def test_base64_text_in_another_spelling_is_refused(text: str) -> None:
    with pytest.raises(I2pError, match="base64"):
        base64_decode(text)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_base64_round_trips(data: bytes) -> None:
    assert base64_decode(base64_encode(data)) == data


@settings(deadline=None)
@given(st.text(max_size=60))
def test_arbitrary_text_raises_i2p_error(text: str) -> None:
    with pytest.raises(I2pError):
        destination_from_base64(text)


def test_long_destination_text_is_refused_before_decoding() -> None:
    with pytest.raises(I2pError, match="fewer than"):
        destination_from_base64("A" * 100_000)


def test_key_or_padding_of_wrong_length_is_refused() -> None:
    with pytest.raises(I2pError, match="public key"):
        ed25519_destination(bytes(31), bytes(32))
    with pytest.raises(I2pError, match="padding seed"):
        ed25519_destination(bytes(32), bytes(31))


def test_mapping_is_sorted_with_length_prefixes() -> None:
    assert encode_mapping({"b": "2", "a": "1"}).hex() == "000c" + "01613d01313b" + "01623d01323b"
    assert encode_mapping({}) == b"\x00\x00"


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=30), st.text(st.characters(codec="utf-8"))))
def test_mapping_round_trips(pairs: dict[str, str]) -> None:
    try:
        encoded = encode_mapping(pairs)
    except I2pError as error:
        assert "at most 255" in str(error)  # noqa: PT017 - whether it raises depends on the drawn text
        return
    assert read_mapping(b"xx" + encoded + b"rest", 2) == (pairs, 2 + len(encoded))


def test_mapping_keys_sort_by_utf_16_units_as_in_java() -> None:
    beyond_basic_plane, private_use = "\U00010000", "\ue000"
    assert sorted([beyond_basic_plane, private_use]) == [private_use, beyond_basic_plane]
    encoded = encode_mapping({private_use: "", beyond_basic_plane: ""})
    assert encoded.index(beyond_basic_plane.encode()) < encoded.index(private_use.encode())


@each_case(
    "hexadecimal",
    [
        "",
        "00",
        "0001",
        "000c" + "01623d01323b" + "01613d01313b",
        "000c" + "01613d01313b" + "01613d01323b",
        "0006" + "01613b01313b",
        "0006" + "01613d01313d",
        "0006" + "01ff3d01313b",
        "0003" + "01613d",
        "0006" + "ff613d01313b",
    ],
)
def test_invalid_mapping_bytes_are_refused(hexadecimal: str) -> None:
    with pytest.raises(I2pError):
        read_mapping(bytes.fromhex(hexadecimal))


def test_text_beyond_mapping_limits_is_refused() -> None:
    with pytest.raises(I2pError, match="at most 255"):
        encode_mapping({"k": "x" * 256})
    with pytest.raises(I2pError, match="Unicode"):
        encode_mapping({"k": "\ud800"})
    with pytest.raises(I2pError, match="65535"):
        encode_mapping({f"{number:04}": "x" * 255 for number in range(300)})
