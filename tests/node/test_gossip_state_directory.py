"""Identity and generation on disk are durable and belong to one process; the key file is private.

A damaged or foreign file raises an error, and stays unchanged.
"""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gossip.core.keyring import LABEL_BYTES
from gossip.core.member import NodeId
from gossip.node.state_files import (
    GENERATION_FILE,
    IDENTITY_FILE,
    KEYS_FILE,
    StateError,
    begin_generation,
    exclusive,
    keep_generation,
    known_keyring,
    load_identity,
)
from tests.effort import each_case

NODE = NodeId(b"\x01" * 8)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_at_start_is_reported_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    for module in ("os.open", "gossip.node.state_files.write_durably"):
        monkeypatch.setattr(module, full)
    with pytest.raises(StateError, match="free space there, then try again"):
        keep_generation(tmp_path, NODE, 1)
    with pytest.raises(StateError, match="free space there, then try again"), exclusive(tmp_path / "lock"):
        pytest.fail("the directory is locked")


def test_identity_is_made_once_then_loaded(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "gossip"
    made = load_identity(directory)
    found = load_identity(directory)
    assert found.node_id == made.node_id
    assert found.key.private_bytes_raw() == made.key.private_bytes_raw()
    assert load_identity(tmp_path / "other").node_id != made.node_id


@pytest.mark.parametrize("change", [(b"\n", b"\r\n"), (b"-----BEGIN", b"comment\n-----BEGIN")])
def test_key_file_with_crlf_or_comment_has_same_identity(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    made, path = load_identity(tmp_path), tmp_path / IDENTITY_FILE
    path.write_bytes(path.read_bytes().replace(*change))
    assert load_identity(tmp_path).node_id == made.node_id


def test_key_file_is_private_or_refused(tmp_path: Path) -> None:
    load_identity(tmp_path)
    path = tmp_path / IDENTITY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        load_identity(tmp_path)


def test_damaged_key_file_raises_and_stays_unchanged(tmp_path: Path) -> None:
    foreign = X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    load_identity(tmp_path)
    path = tmp_path / IDENTITY_FILE
    for damaged in (b"", b"rubbish", path.read_bytes()[:-40], os.urandom(10_000), foreign):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=r"restore"):
            load_identity(tmp_path)
        assert path.read_bytes() == damaged


def test_private_key_is_not_printed(tmp_path: Path) -> None:
    identity = load_identity(tmp_path)
    assert repr(identity) == f"NodeIdentity({identity.node_id.hex()})"


def test_generation_increases_with_each_run(tmp_path: Path) -> None:
    assert [begin_generation(tmp_path, NODE) for _ in range(3)] == [1, 2, 3]
    keep_generation(tmp_path, NODE, 41)
    assert begin_generation(tmp_path, NODE) == 42


def test_generation_is_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("fsync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        real_fsync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    begin_generation(tmp_path, NODE)
    assert steps == ["fsync file", "rename", "fsync directory"]


def test_failed_rename_keeps_old_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_generation(tmp_path, NODE, 7)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(StateError, match="Input/output error"):
            begin_generation(tmp_path, NODE)
    assert begin_generation(tmp_path, NODE) == 8


@each_case(
    "damaged", ["", "\n", "x", "-1 00", "1e3", "9" * 30, "0 0101010101010101", "\u0661 01", "9007199254740991 01"]
)
def test_damaged_generation_stops_node(tmp_path: Path, damaged: str) -> None:
    (tmp_path / GENERATION_FILE).write_text(damaged)
    with pytest.raises(StateError, match="does not contain a generation"):
        begin_generation(tmp_path, NODE)
    assert (tmp_path / GENERATION_FILE).read_text() == damaged


def test_generation_of_another_node_is_refused(tmp_path: Path) -> None:
    begin_generation(tmp_path, NodeId(b"\x02" * 8))
    with pytest.raises(StateError, match="come from two nodes"):
        begin_generation(tmp_path, NODE)


def test_state_directory_serves_one_process(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(StateError, match="in use by another process"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_file_system_without_locks_is_named_as_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StateError, match="No locks available; name a directory on a local disk"), exclusive(tmp_path):
        pytest.fail("entered without the lock")


@pytest.mark.parametrize("name", [IDENTITY_FILE, GENERATION_FILE, KEYS_FILE])
def test_file_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Given files of root in the node's directory, then the error names what to give to the node's user."""
    real = os.open

    def opened(path: Path, *rest: int, **more: int) -> int:
        if path == tmp_path / name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", opened)

    def start() -> None:
        begin_generation(tmp_path, load_identity(tmp_path).node_id)
        known_keyring(tmp_path, bytes(LABEL_BYTES))

    with pytest.raises(StateError, match=f"denied; give {tmp_path} to the user of this process"):
        start()
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(StateError, match=f"denied; give {tmp_path / name} to the user of this process"):
        start()


def test_unusable_state_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for use in (load_identity, lambda directory: exclusive(directory).__enter__()):
        with pytest.raises(StateError, match="file/state"):
            use(tmp_path / "file" / "state")
