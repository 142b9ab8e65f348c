"""Durable state in real files: restart, lock, modes, foreign and copied directories, a full disk."""

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from bridge.cli.failure import reason_of
from consensus.core.effects import Persist, ReadEntries
from consensus.core.model import Entry, HardState, ReplicaKey, ServerId
from consensus.storage.directory import Directory, OutOfSpaceError, open_directory
from consensus.storage.disk import (
    CreateFile,
    DamagedStorageError,
    ForeignStorageError,
    StorageError,
    StorageInUseError,
    SyncDirectory,
    SyncFile,
    WriteBytes,
)
from consensus.storage.planner import Recovery, StorageOptions, read_extents
from consensus.storage.verification import StorageVerdict, verify_storage
from tests.effort import each_case

NODE = b"node-one"
SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=1_000)


def commands(count: int, term: int = 1, size: int = 1_000) -> tuple[Entry, ...]:
    return tuple(Entry.command(term, n.to_bytes(4, "big") * (size // 4)) for n in range(count))


def write(directory: Directory, recovery: Recovery, *persists: Persist) -> None:
    directory.perform_all(recovery.storage.plan(persists))
    recovery.storage.done()


def stored(path: Path, entries: tuple[Entry, ...] = (), generation: int = 1) -> Recovery:
    """Store entries in a new directory of this node, and close it."""
    directory, recovery = open_directory(path, NODE, generation, SMALL)
    if entries:
        write(directory, recovery, Persist(number=1, hard_state=HardState(1), first=1, entries=entries))
    directory.close()
    return recovery


def test_restart_recovers_hard_state_and_several_segments(tmp_path: Path) -> None:
    directory, recovery = open_directory(tmp_path / "raft", NODE, 1, SMALL)
    entries = commands(200)
    write(directory, recovery, Persist(number=1, hard_state=HardState(1, 2), first=1, entries=entries))
    assert recovery.storage.segment_count > 2
    directory.close()

    directory, recovery = open_directory(tmp_path / "raft", NODE, 2, SMALL)
    assert recovery.hard_state == HardState(1, 2)
    assert recovery.log.tail == entries
    request = ReadEntries(request_id=1, first=50, last=149, limit_bytes=10**9)
    assert (
        read_extents(directory, recovery.storage.binding, recovery.storage.extents(request), 10**6) == entries[49:149]
    )
    directory.close()
    found = verify_storage(tmp_path / "raft")
    assert (found.verdict, found.entries) == (StorageVerdict.SOUND, 200)


@each_case("vote", [2, 2**40, "peer-2", ReplicaKey(2), ReplicaKey(2, bytes(range(16)))], ids=repr)
def test_restart_recovers_vote_for_any_kind_of_id(tmp_path: Path, vote: ServerId) -> None:
    """If a shorter vote follows a longer vote, the remaining bytes in the slot are ignored."""
    for generation, voted_for in enumerate((vote, "x", None, vote, 3, vote), start=1):
        directory, recovery = open_directory(tmp_path / "raft", NODE, generation, SMALL)
        write(directory, recovery, Persist(number=1, hard_state=HardState(generation, voted_for)))
        directory.close()
        directory, recovery = open_directory(tmp_path / "raft", NODE, generation, SMALL)
        directory.close()
        assert recovery.hard_state == HardState(generation, voted_for)


def test_directory_and_its_files_are_private(tmp_path: Path) -> None:
    stored(tmp_path / "raft", commands(1))
    assert stat.S_IMODE((tmp_path / "raft").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "raft").iterdir()} == {0o600}


def test_second_process_cannot_open_directory(tmp_path: Path) -> None:
    directory, _ = open_directory(tmp_path / "raft", NODE, 1, SMALL)
    with pytest.raises(StorageInUseError, match="Stop the other process"):
        open_directory(tmp_path / "raft", NODE, 2, SMALL)
    directory.close()
    open_directory(tmp_path / "raft", NODE, 2, SMALL)[0].close()


def test_file_system_without_locks_is_named_as_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="No locks available; name a place on a local disk") as raised:
        Directory(tmp_path)
    assert not isinstance(raised.value, StorageInUseError)


def test_copy_on_file_system_without_locks_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    stored(tmp_path / "raft", commands(3))
    monkeypatch.setattr(fcntl, "flock", refuse)
    found = verify_storage(tmp_path / "raft")
    assert (found.verdict, found.live) == (StorageVerdict.SOUND, False)


def test_copied_directory_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "raft")
    shutil.copytree(tmp_path / "raft", tmp_path / "copy")
    with pytest.raises(ForeignStorageError, match="is a copy"):
        open_directory(tmp_path / "copy", NODE, 2, SMALL)


def test_moved_directory_opens(tmp_path: Path) -> None:
    stored(tmp_path / "raft")
    (tmp_path / "raft").rename(tmp_path / "moved")
    open_directory(tmp_path / "moved", NODE, 2, SMALL)[0].close()


def test_directory_of_other_node_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "raft")
    with pytest.raises(ForeignStorageError, match="belongs to node"):
        open_directory(tmp_path / "raft", b"node-two", 2, SMALL)


def test_older_generation_than_stored_one_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "raft", generation=7)
    with pytest.raises(ForeignStorageError, match="generation 7"):
        open_directory(tmp_path / "raft", NODE, 6, SMALL)


def test_missing_hard_state_file_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "raft", commands(1))
    (tmp_path / "raft" / "ballot").unlink()
    with pytest.raises(DamagedStorageError, match="the vote of this server is lost"):
        open_directory(tmp_path / "raft", NODE, 2, SMALL)
    found = verify_storage(tmp_path / "raft")
    assert found.verdict is StorageVerdict.DAMAGED
    assert ["the vote of this server is lost" in fault for fault in found.faults] == [True]


def test_path_that_is_not_a_directory_raises_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be opened"):
        open_directory(tmp_path / "file", NODE, 1, SMALL)


def test_verification_leaves_files_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "raft"
    directory, recovery = open_directory(path, NODE, 1, SMALL)
    write(
        directory,
        recovery,
        Persist(number=1, hard_state=HardState(1), first=1, entries=commands(3)),
    )
    operations = recovery.storage.plan(
        [Persist(number=2, hard_state=None, first=4, entries=commands(2, size=3_000)[1:])]
    )
    written = operations[0]
    assert isinstance(written, WriteBytes)
    directory.perform(WriteBytes(written.file, written.offset_bytes, written.data[:1_000]))
    directory.close()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    found = verify_storage(path)
    assert (found.verdict, found.entries) == (StorageVerdict.REPAIRABLE, 3)
    assert ["an unfinished write" in repair for repair in found.repairs] == [True]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_verification_counts_one_file_in_singular(tmp_path: Path) -> None:
    path = tmp_path / "raft"
    stored(path, commands(1))
    for name in ("received.snapshot.new", "notes"):
        (path / name).write_bytes(b"")
    found = verify_storage(path)
    assert found.repairs == ["the next start would remove 1 unfinished file ('received.snapshot.new' …)"]
    assert "1 unknown file ('notes' …), harmless for the log" in found.found


class FullAfter(Directory):
    """A directory on a disk with space for `left` operations that need space."""

    left = 10**9

    def perform(self, operation: object) -> None:
        """Fail like a full disk."""
        if isinstance(operation, CreateFile | WriteBytes):
            if self.left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= 1
        super().perform(operation)  # type: ignore[arg-type]  # any operation of the planner


class Failing(Directory):
    """A directory on a failing disk, whose errors do not name the file."""

    def perform(self, operation: object) -> None:
        del operation
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_error_of_failing_disk_names_file_and_remedy(tmp_path: Path) -> None:
    failing = Failing(tmp_path / "raft")
    for operation, path in ((SyncFile("state"), failing.path / "state"), (SyncDirectory(), failing.path)):
        with pytest.raises(OSError, match="Input/output") as caught:
            failing.perform_all([operation])
        assert reason_of(caught.value).startswith(f"{path}: Input/output error: the disk fails; look for its faults")
    failing.close()


@each_case("left", range(9))
def test_group_is_finished_after_full_disk(tmp_path: Path, left: int) -> None:
    path = tmp_path / "raft"
    recovery = stored(path, commands(70))
    full = FullAfter(path)
    entries = commands(100, term=2)
    operations = recovery.storage.plan(
        [Persist(number=2, hard_state=HardState(2), truncate_from=60, first=60, entries=entries)]
    )
    full.left = left
    with pytest.raises(OutOfSpaceError) as caught:
        full.perform_all(operations)
    if caught.value.resume_at > 0:
        assert isinstance(operations[caught.value.resume_at - 1], SyncFile | SyncDirectory)
    full.left = 10**9
    full.perform_all(operations, caught.value.resume_at)
    recovery.storage.done()
    full.close()
    directory, recovery = open_directory(path, NODE, 2, SMALL)
    assert recovery.log.tail == commands(70)[:59] + entries
    directory.close()


@pytest.mark.parametrize("refused", ["lock", "directory"])
def test_read_only_file_system_is_named_as_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    real = os.open

    def opened(path: str | Path, flags: int, *more: int, **options: int) -> int:
        if (refused == "directory") == bool(flags & os.O_DIRECTORY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(StorageError, match="Read-only file system; mount the file system for writing"):
        Directory(tmp_path)
