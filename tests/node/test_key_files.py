"""Key files on disk: other users cannot read them, and an existing file is never overwritten."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.node.security.key_files import (
    ChangedFiles,
    KeyFileError,
    load_farm_key,
    load_master_key,
    load_signing_key,
    read_private_file,
    save_farm_key,
    save_master_key,
    save_signing_key,
    write_private_file,
)
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from consensus.storage import replace_file


def test_key_kinds_round_trip_through_files(tmp_path: Path) -> None:
    farm_key, master = new_farm_key(3), new_master_key()
    signing = master.sign_transient(1_767_225_600)
    save_farm_key(tmp_path / "farm.key", farm_key)
    save_master_key(tmp_path / "master.key", master)
    save_signing_key(tmp_path / "signing.key", signing)
    assert load_farm_key(tmp_path / "farm.key") == farm_key
    assert load_master_key(tmp_path / "master.key").destination == master.destination
    assert load_signing_key(tmp_path / "signing.key").offline == signing.offline


def test_new_key_file_is_private_for_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private_file(tmp_path / "key", "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_existing_key_file_is_not_overwritten(tmp_path: Path) -> None:
    write_private_file(tmp_path / "key", "first")
    with pytest.raises(KeyFileError, match="exists already and is not overwritten"):
        write_private_file(tmp_path / "key", "second")
    assert read_private_file(tmp_path / "key") == "first"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_error_of_accessible_key_file_has_chmod_command(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_private_file(path, "secret")
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:04o}.; if it is the right file, `chmod 600 {path}`"):
        read_private_file(path)


def test_unusable_key_file_error_names_cause(tmp_path: Path) -> None:
    binary, large, pipe = tmp_path / "binary", tmp_path / "large", tmp_path / "pipe"
    replace_file(binary, b"\xff\xfe")
    replace_file(large, b"x" * 70_000)
    os.mkfifo(pipe, 0o600)
    for path, cause in (
        (tmp_path / "missing", "does not exist: copy the file there"),
        (tmp_path, "is not a file"),
        (pipe, "is not a file"),
        (binary, "not a text file"),
        (large, "more than 65536 bytes"),
    ):
        with pytest.raises(KeyFileError, match=cause):
            read_private_file(path)


def test_write_to_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be written: No such file or directory"):
        write_private_file(tmp_path / "nowhere" / "key", "secret")


def test_syntax_error_names_file(tmp_path: Path) -> None:
    path = tmp_path / "farm.key"
    write_private_file(path, "expect = 3\n")
    for load in (load_farm_key, load_master_key, load_signing_key):
        with pytest.raises(KeyFileError, match=str(path)):
            load(path)


def test_replacement_keeps_private_mode_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "state"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [lambda path: replace_file(path, b"one"), lambda path: write_private_file(path, "")])
def test_new_file_removes_files_of_killed_writers(tmp_path: Path, write: Callable[[Path], None]) -> None:
    left, used, other = (tmp_path / f".{name}.tmp" for name in ("a[1].killed_0", "a[1].running0", "b.killed_0"))
    for each in (left, used, other):
        each.write_text("secret")
    with used.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(tmp_path / "a[1]")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a[1]", used, other])


def test_second_change_within_one_tick_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list"
    path.write_text("one")
    seen: list[str] = []
    files, status = ChangedFiles(lambda: seen.append(path.read_text()), path), path.stat()
    # Given a file that changes again within the tick of its file system's clock, with the same size
    monkeypatch.setattr(Path, "stat", lambda _: status)
    clock_ns = status.st_mtime_ns + 10**9
    monkeypatch.setattr("bridge.node.security.key_files.time_ns", lambda: clock_ns)
    files.read()
    path.write_text("two")
    # When the next look is later than the longest tick
    clock_ns += 2 * 10**9
    for _ in range(3):
        files.read()
    # Then the file is read once more
    assert seen == ["one", "two"]


def test_failed_replacement_keeps_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    replace_file(path, b"one")

    def broken(descriptor: int) -> None:
        raise OSError(descriptor, "broken disk")

    monkeypatch.setattr("consensus.storage.durable_file.os.fsync", broken)
    with pytest.raises(OSError, match="broken disk") as failure:
        replace_file(path, b"two")
    assert failure.value.filename == str(path)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
