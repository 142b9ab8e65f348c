"""Identity and generation on disk: durable, private, and never silently begun anew."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gossip.core.member import NodeId
from gossip.node.state_files import (
    GENERATION_FILE,
    IDENTITY_FILE,
    StateError,
    begin_generation,
    exclusive,
    keep_generation,
    load_identity,
)

NODE = NodeId(b"\x01" * 8)


def test_an_identity_is_made_once_and_found_again(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "gossip"
    made = load_identity(directory)
    found = load_identity(directory)
    assert found.node_id == made.node_id
    assert found.key.private_bytes_raw() == made.key.private_bytes_raw()
    assert load_identity(tmp_path / "other").node_id != made.node_id


def test_the_key_file_is_private_and_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_identity(tmp_path)
    path = tmp_path / IDENTITY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        load_identity(tmp_path)


def test_a_key_file_that_is_damaged_stops_the_node_and_is_left_as_it_is(tmp_path: Path) -> None:
    foreign = X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    load_identity(tmp_path)
    path = tmp_path / IDENTITY_FILE
    for damaged in (b"", b"rubbish", path.read_bytes()[:-40], os.urandom(10_000), foreign):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=r"restore"):
            load_identity(tmp_path)
        assert path.read_bytes() == damaged


def test_a_private_key_is_not_printed(tmp_path: Path) -> None:
    identity = load_identity(tmp_path)
    assert repr(identity) == f"NodeIdentity({identity.node_id.hex()})"


def test_every_life_has_a_higher_generation(tmp_path: Path) -> None:
    assert [begin_generation(tmp_path, NODE) for _ in range(3)] == [1, 2, 3]
    keep_generation(tmp_path, NODE, 41)
    assert begin_generation(tmp_path, NODE) == 42


def test_the_generation_is_synced_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        story.append("fsync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        real_fsync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        story.append("rename")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    begin_generation(tmp_path, NODE)
    assert story == ["fsync file", "rename", "fsync directory"]


def test_a_crash_while_writing_leaves_the_old_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_generation(tmp_path, NODE, 7)
    with monkeypatch.context() as crash:
        crash.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(StateError, match="Input/output error"):
            begin_generation(tmp_path, NODE)
    assert begin_generation(tmp_path, NODE) == 8


@pytest.mark.parametrize(
    "damaged", ["", "\n", "x", "-1 00", "1e3", "9" * 30, "0 0101010101010101", "\u0661 01", "9007199254740991 01"]
)
def test_a_damaged_generation_stops_the_node_instead_of_beginning_again(tmp_path: Path, damaged: str) -> None:
    (tmp_path / GENERATION_FILE).write_text(damaged)
    with pytest.raises(StateError, match="does not contain a generation"):
        begin_generation(tmp_path, NODE)
    assert (tmp_path / GENERATION_FILE).read_text() == damaged


def test_a_generation_of_another_node_is_refused(tmp_path: Path) -> None:
    begin_generation(tmp_path, NodeId(b"\x02" * 8))
    with pytest.raises(StateError, match="come from two nodes"):
        begin_generation(tmp_path, NODE)


def test_a_directory_serves_one_process_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(StateError, match="in use by another process"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for use in (load_identity, lambda directory: exclusive(directory).__enter__()):
        with pytest.raises(StateError, match="file/state"):
            use(tmp_path / "file" / "state")
