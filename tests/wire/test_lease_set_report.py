"""The description of a Meta LeaseSet2 for operators, and the two forms of a file that contains it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.api.json import encode
from bridge.api.lease_set_report import describe, read_structure
from bridge.wire.i2p.meta_lease_set import LeaseSetError, decode
from tests.effort import each_case

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "meta-ls2.json").read_text())
HEXADECIMAL = {vector["name"]: vector["hex"] for vector in VECTORS["meta_lease_sets"]}
PUBLISHED_S = 1_767_225_600


def report_of(name: str, now_s: int = PUBLISHED_S) -> dict[str, Any]:
    report = describe(decode(read_structure(HEXADECIMAL[name].encode())), now_s)
    found: dict[str, Any] = json.loads(encode(report))
    return found


def test_report_has_documented_keys() -> None:
    report = report_of("five entries", PUBLISHED_S + 60)
    assert list(report) == [
        "schema",
        "destination",
        "published",
        "expires",
        "flags",
        "unpublished",
        "blinded",
        "demo",
        "offline",
        "options",
        "entries",
        "revocations",
        "signature",
        "acceptable",
        "sizeBytes",
    ]
    assert report["destination"]["address"] == VECTORS["keys"]["b32"]
    assert report["destination"]["signatureTypeName"] == "EdDSA-SHA512-Ed25519"
    assert report["entries"][1]["cost"] == 5
    assert report["entries"][1]["typeName"] == "MetaLeaseSet"
    assert report["entries"][0]["remaining"] == 3_600 - 60
    assert report["signature"] == {
        "verified": True,
        "verdict": "holds",
        "reason": "signed by the destination",
        "signedBy": "destination",
    }
    assert report["acceptable"] == {"javaRouter": True, "reasons": []}
    assert report["sizeBytes"] == len(HEXADECIMAL["five entries"]) // 2


def test_tampered_structure_is_described_as_unverified() -> None:
    report = report_of("tampered")
    assert report["signature"]["verified"] is False
    assert report["signature"]["verdict"] == "broken"
    assert report["acceptable"]["reasons"] == ["the signature is not the destination's"]


def test_offline_signature_is_shown_with_its_expiry() -> None:
    offline = report_of("offline signature")["offline"]
    assert offline["expires"] == 0xF4865700
    assert offline["expired"] is False
    assert report_of("offline signature", 0xF4865700)["offline"]["expired"] is True
    assert report_of("offline signature")["signature"]["signedBy"] == "transient key"


@each_case(
    "form",
    [
        bytes.fromhex,
        lambda text: text.encode(),
        lambda text: text.upper().encode() + b"\n",
        lambda text: b"0x" + text.encode(),
        lambda text: b" " + bytes.fromhex(text).hex(":").encode(),
        lambda text: b"\r\n".join(text[at : at + 64].encode() for at in range(0, len(text), 64)),
    ],
    ids=["binary", "hex", "upper case", "0x", "colons", "lines"],
)
def test_file_may_contain_bytes_or_hexadecimal_text(form: Any) -> None:
    text = HEXADECIMAL["one entry"]
    assert read_structure(form(text)) == bytes.fromhex(text)


def test_invalid_file_raises_lease_set_error() -> None:
    for content, reason in (
        (b"", "empty"),
        (b" \n", "empty"),
        (b"abc", "odd number"),
        (bytes(300_000), "300000 bytes"),
    ):
        with pytest.raises(LeaseSetError, match=reason):
            read_structure(content)


@settings(deadline=None)
@given(st.binary(max_size=600))
def test_arbitrary_content_raises_lease_set_error(content: bytes) -> None:
    with pytest.raises(LeaseSetError):
        decode(read_structure(content))
