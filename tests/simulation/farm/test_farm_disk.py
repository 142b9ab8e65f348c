"""The disk of a simulated machine against the product's storage: a power cut keeps all synced entries."""

import errno
import os
import socket
from pathlib import Path
from random import Random

import pytest

from consensus.core.effects import Persist
from consensus.core.model import Entry, HardState
from consensus.storage.directory import Directory, OutOfSpaceError, open_directory
from consensus.storage.disk import DiskOperation, StorageError, SyncDirectory, SyncFile
from consensus.storage.durable_file import replace_file
from consensus.storage.planner import StorageOptions
from tests.effort import over_seeds
from tests.simulation.farm.disk import Disk, disk_calls

SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=10_000)
RUNS = 6


def persist(number: int, first: int, random: Random) -> Persist:
    entries = tuple(
        Entry.command(number, random.randbytes(random.choice([1, 40, 500, 30_000])))
        for _ in range(random.choice([1, 3]))
    )
    return Persist(number=number, hard_state=HardState(number), truncate_from=None, first=first, entries=entries)


def play(root: Path, seed: int) -> None:
    """Write entries, cut the power within a write, and compare the recovered log with the acknowledged one."""
    random = Random(seed)
    disk = Disk(root)
    kept: list[Entry] = []
    number = 0
    with disk_calls(lambda: disk):
        for generation in range(1, RUNS + 1):
            directory, recovery = open_directory(root, b"node-one", generation, SMALL)
            found = list(recovery.log.tail)
            assert found[: len(kept)] == kept, f"seed {seed}: {len(found)} of {len(kept)} acknowledged entries"
            kept = found
            for _ in range(random.randint(1, 5)):
                number += 1
                group = persist(number, len(kept) + 1, random)
                operations = recovery.storage.plan([group])
                if random.random() < 0.3:
                    directory.perform_all(operations[: random.randint(0, len(operations))])
                    break
                directory.perform_all(operations)
                recovery.storage.done()
                kept += group.entries
            content = disk.durable(random)
            directory.close()
            disk.restore(content)


@over_seeds(200)
def test_power_cut_keeps_acknowledged_entries(seed: int, tmp_path: Path) -> None:
    play(tmp_path / "log", seed)


@pytest.mark.parametrize("kind", [SyncFile, SyncDirectory])
def test_dropped_sync_is_found(kind: type[DiskOperation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Directory.perform
    monkeypatch.setattr(Directory, "perform", lambda self, each: None if isinstance(each, kind) else real(self, each))
    for seed in range(30):
        try:
            play(tmp_path / str(seed), seed)
        except (AssertionError, StorageError):
            return
    raise AssertionError(f"no power cut of 30 seeds finds a missing {kind.__name__}")


def test_disk_that_ignores_syncs_loses_entries(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.ignores_syncs = True
    with disk_calls(lambda: disk):
        disk.flush()
        replace_file(tmp_path / "note", b"new")
        found = [disk.durable(Random(seed)).files for seed in range(20)]
    assert any("note" not in each for each in found)


def test_replaced_file_has_old_or_new_bytes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    path = tmp_path / "note"
    path.write_bytes(b"old" * 1000)
    disk.flush()
    beside = tmp_path / "beside"
    with disk_calls(lambda: disk):
        with beside.open("wb") as file:
            file.write(b"new" * 900)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        found = {disk.durable(Random(seed)).files["note"].data for seed in range(40)}
    assert found == {b"old" * 1000, b"new" * 900}


def test_unsynced_replacement_can_be_torn(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.flush()
    path = tmp_path / "note"
    path.write_bytes(b"x" * 5000)
    found = {
        bytes(each.files["note"].data) for seed in range(60) if "note" in (each := disk.durable(Random(seed))).files
    }
    assert b"x" * 5000 in found
    assert len(found) > 3


def test_failed_sync_drops_its_writes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    path = tmp_path / "note"
    path.write_bytes(b"a" * 1024)
    disk.flush()
    with disk_calls(lambda: disk), path.open("r+b") as file:
        file.write(b"b" * 512)
        file.flush()
        disk.fail = True
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(file.fileno())
        disk.fail = False
        file.seek(512)
        file.write(b"c" * 512)
        file.flush()
        os.fsync(file.fileno())
    assert disk._bytes[path.stat().st_ino] == b"a" * 512 + b"c" * 512


def test_full_disk_refuses_writes_of_its_machine_only(tmp_path: Path) -> None:
    root = tmp_path / "log"
    disk = Disk(root)
    with disk_calls(lambda: disk):
        directory, recovery = open_directory(root, b"node-one", 1, SMALL)
        disk.full = True
        operations = recovery.storage.plan([persist(1, 1, Random(1))])
        with pytest.raises(OutOfSpaceError):
            directory.perform_all(operations)
        replace_file(tmp_path / "elsewhere", b"kept")
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            replace_file(root / "note", b"lost")
        disk.full = False
        directory.perform_all(operations)
        directory.close()


def test_restore_keeps_directories_and_leaves_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("control.sock")
    inode = (tmp_path / "log").stat().st_ino
    content = disk.snapshot()
    (tmp_path / "log" / "a").write_bytes(b"2")
    (tmp_path / "log" / "b").write_bytes(b"2")
    (tmp_path / "new").mkdir()
    (tmp_path / "control.sock").unlink()
    disk.restore(content)
    assert disk.snapshot() == content
    assert (tmp_path / "log").stat().st_ino == inode
    assert (tmp_path / "control.sock").is_socket()


def test_rot_flips_one_durable_bit(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (tmp_path / "a").write_bytes(bytes(100))
    place = disk.rot(Random(1))
    data = (tmp_path / "a").read_bytes()
    assert place.startswith("a at ")
    assert sum(each.bit_count() for each in data) == 1
    assert disk.durable(Random(1)).files["a"].data == data
