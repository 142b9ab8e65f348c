"""`lease-set show`: its output, its input formats, and exit code 0 only for a valid signature."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.main import cli
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, build, decode, encode, sign
from bridge.wire.i2p.structures import destination_from_bytes
from tests.destinations import new_demo_leaf

PUBLISHED_S = int(time.time())


@pytest.fixture
def structure() -> bytes:
    signing_key = new_master_key(demo=True).sign_transient(PUBLISHED_S)
    leases = tuple(MetaLease(new_demo_leaf().hash, cost, PUBLISHED_S + 900) for cost in (10, 20))
    return encode(signing_key.sign(PUBLISHED_S, leases))


@pytest.mark.parametrize("form", ["binary", "hex", "stdin"])
def test_verified_structure_exits_with_zero(tmp_path: Path, structure: bytes, form: str) -> None:
    path = tmp_path / "file.ls2"
    content = structure.hex().encode() if form == "hex" else structure
    path.write_bytes(content)
    named = "-" if form == "stdin" else str(path)
    result = CliRunner().invoke(cli, ["lease-set", "show", named, "--json"], input=content)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == 1
    assert found["signature"]["verified"] is True
    assert [entry["cost"] for entry in found["entries"]] == [10, 20]


def test_text_shows_address_entries_verdict(tmp_path: Path, structure: bytes) -> None:
    path = tmp_path / "file.ls2"
    path.write_bytes(structure)
    result = CliRunner().invoke(cli, ["lease-set", "show", str(path)])
    assert result.exit_code == 0
    assert "signature          valid" in result.stdout
    assert "marked             demo" in result.stdout
    assert result.stdout.count(".b32.i2p") == 3


def test_text_shows_all_fields_of_structure(tmp_path: Path) -> None:
    """The structure has an offline block, options, marks, unusual flags of an entry and a revocation."""
    key = new_master_key().sign_transient(PUBLISHED_S)
    leases = (MetaLease(b"a" * 32, 7, PUBLISHED_S + 900, flags=0x020003), MetaLease(b"b" * 32, 255, PUBLISHED_S + 60))
    unsigned = build(
        key.destination, PUBLISHED_S, leases, offline=key.offline, options={"name": "value\x1b[2J"}, unpublished=True
    )
    unsigned = replace(unsigned, revocations=(b"r" * 32,), flags=unsigned.flags | 0x8004)
    path = tmp_path / "file.ls2"
    path.write_bytes(encode(sign(unsigned, key.private_key)))
    result = CliRunner().invoke(cli, ["lease-set", "show", str(path)])
    assert result.exit_code == 0, result.output
    for text in (
        key.destination.hash.hex(),
        "EdDSA-SHA512-Ed25519 (type 7)",
        "0x8007: offline signature, unpublished, blinded, 0x8000 without a meaning",
        key.private_key.public_key().public_bytes_raw().hex(),
        "which ends ",
        r"name = value\x1b[2J",
        f"revoked            {(b'r' * 32).hex()}",
        "valid: signed by the transient key",
        "LeaseSet2, flags 0x0200  7 ",
        "upper flag bits",
        "marked unpublished",
    ):
        assert text in result.stdout, text
    assert "\x1b" not in result.stdout


def test_unsupported_signature_is_reported_as_unknown(tmp_path: Path, structure: bytes) -> None:
    decoded = decode(structure)
    p256 = destination_from_bytes(decoded.destination.encoded[:-4] + b"\0\1\0\0")
    path = tmp_path / "file.ls2"
    path.write_bytes(encode(replace(decoded, destination=p256, offline=None, flags=0)))
    result = CliRunner().invoke(cli, ["lease-set", "show", str(path)])
    assert result.exit_code == 1
    assert "UNKNOWN: cannot verify signatures of ECDSA-SHA256-P256" in result.stdout
    assert "cannot verify signatures of ECDSA-SHA256-P256" in result.stderr
    assert "invalid" not in result.output


def test_tampered_structure_is_shown_with_exit_code_one(tmp_path: Path, structure: bytes) -> None:
    path = tmp_path / "file.ls2"
    path.write_bytes(structure[:-1] + bytes([structure[-1] ^ 1]))
    result = CliRunner().invoke(cli, ["lease-set", "show", str(path)])
    assert result.exit_code == 1
    assert "INVALID" in result.stdout
    assert "the signature is invalid" in result.stderr


def test_several_files_must_all_verify(tmp_path: Path, structure: bytes) -> None:
    good, bad = tmp_path / "good.ls2", tmp_path / "bad.ls2"
    good.write_bytes(structure)
    bad.write_bytes(structure[:-1] + bytes([structure[-1] ^ 1]))
    both = CliRunner().invoke(cli, ["lease-set", "show", str(good), str(good)])
    assert both.exit_code == 0, both.output
    assert both.stdout.count("signature          valid") == 2
    mixed = CliRunner().invoke(cli, ["lease-set", "show", str(bad), str(tmp_path / "absent"), str(good)])
    assert mixed.exit_code == 1
    assert mixed.stdout.count("signature          valid") == 1
    assert f"{bad}: the signature is invalid" in mixed.stderr
    assert "absent cannot be read" in mixed.stderr


def test_missing_file_exits_with_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["lease-set", "show", str(tmp_path / "absent")])
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr
    assert result.stderr.count("\n") == 1
