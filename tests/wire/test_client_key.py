"""Files of client keys: the farm and the pipeline read a written file, and refuse damaged files."""

from pathlib import Path

import pytest

from bridge.node.security.key_files import KeyFileError, load_client_key, save_client_key
from bridge.wire.keys.client_key import client_key_text, new_client_key, parse_client_key
from bridge.wire.keys.text import KeyTextError
from bridge.wire.log.proof import proven
from gossip.wire.identity import node_id_of
from pipeline.feedback import client_key as of_pipeline
from tests.effort import each_case

CLUSTER = bytes(range(16))
FACTORS = {"factors": {"throughIndex": 7, "formula": "strain-1", "factors": {"a" * 52: 1.1}}}


def test_key_file_is_readable_only_by_owner(tmp_path: Path) -> None:
    made, path = new_client_key("pipeline"), tmp_path / "client.key"
    save_client_key(path, made)
    assert path.stat().st_mode & 0o777 == 0o600
    read = load_client_key(path)
    assert (read.name, read.public_key) == (made.name, made.public_key)
    with pytest.raises(KeyFileError, match="exists already"):
        save_client_key(path, new_client_key("another"))
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="can be read by others"):
        load_client_key(path)
    with pytest.raises(of_pipeline.ClientKeyError, match="other users can read"):
        of_pipeline.load_client_key(path)


def test_pipeline_signatures_are_proven_with_rising_numbers(tmp_path: Path) -> None:
    made, path = new_client_key("pipeline"), tmp_path / "client.key"
    save_client_key(path, made)
    key = of_pipeline.load_client_key(path)
    proofs = [proven(key.sign(FACTORS, CLUSTER.hex()), CLUSTER) for _ in range(3)]
    numbers = [proof.number for proof in proofs if proof is not None]
    assert {proof.author for proof in proofs if proof is not None} == {
        node_id_of(made.key.public_key().public_bytes_raw())
    }
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 3
    assert proven(key.sign(FACTORS, CLUSTER[::-1].hex()), CLUSTER) is None


@each_case("name", ["", "-x", "x" * 33, "a b", "a\n", "a\u202e"])
def test_invalid_key_name_is_refused(name: str) -> None:
    with pytest.raises(KeyTextError, match="1 to 32"):
        new_client_key(name)


@each_case(
    ("change", "reason"),
    [
        (("version = 1", "version = 2"), "version 2"),
        (('name = "n"', 'name = "-"'), "was changed"),
        (('public_key = "', 'public_key = "A'), "was changed"),
        (('private_key = "', 'private_key = "AAAA'), "35 bytes where 32 belong"),
        (("name", "nome"), "unknown field"),
        (("version", '"'), "not TOML"),
    ],
)
def test_damaged_file_error_does_not_show_key(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    made = new_client_key("n")
    text = client_key_text(made).replace("\n" + change[0], "\n" + change[1])
    secret = client_key_text(made).rpartition('"')[0].rpartition('"')[2]
    with pytest.raises(KeyTextError, match=reason) as refused:
        parse_client_key(text)
    assert secret[:20] not in str(refused.value)
    path = tmp_path / "damaged.key"
    path.write_text("no key at all")
    path.chmod(0o600)
    with pytest.raises(of_pipeline.ClientKeyError, match="is not a client key file"):
        of_pipeline.load_client_key(path)


def test_repr_does_not_show_private_key() -> None:
    made = new_client_key("n")
    secret = client_key_text(made).rpartition('"')[0].rpartition('"')[2]
    assert secret not in repr(made)
