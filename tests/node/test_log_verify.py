"""`garlicfarm log verify` for intact, torn, damaged, incomplete, copied, mixed, empty and live directories."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.main import cli
from consensus.core.effects import Compact, Persist
from consensus.core.entry_data import ENTRY_HEAD
from consensus.core.model import Configuration, Entry, HardState, LogId, Server
from consensus.storage.directory import Directory, open_directory
from consensus.storage.planner import Storage, StorageOptions
from consensus.storage.records import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from consensus.storage.snapshots import SnapshotWriter
from tests.effort import each_case

SMALL = StorageOptions(segment_bytes=64 * 1024)
ALONE = Configuration((Server(1, "tcp://127.0.0.1:7001"),))
PAYLOAD_BYTES = 1_000
RECORD_BYTES = RECORD_HEADER_BYTES + ENTRY_HEAD.size + PAYLOAD_BYTES


def write(directory: Directory, storage: Storage, *persists: Persist) -> None:
    directory.perform_all(storage.plan(persists))
    storage.done()


def made(path: Path, count: int = 150, node: bytes = b"node-one") -> Path:
    """Write a stopped directory with `count` entries in several segments."""
    directory, recovery = open_directory(path, node, 1, SMALL)
    storage = recovery.storage
    write(directory, storage, Persist(number=1, hard_state=HardState(3, 1)))
    for index in range(1, count + 1):
        write(
            directory,
            storage,
            Persist(
                number=index + 1,
                hard_state=None,
                truncate_from=None,
                first=index,
                entries=(Entry.command(3, bytes(PAYLOAD_BYTES)),),
            ),
        )
    directory.perform_all(storage.plan_close())
    directory.close()
    return path


def compacted(path: Path) -> Path:
    """Write a stopped directory with a snapshot of entry 100, and without the segments before it."""
    made(path)
    directory, recovery = open_directory(path, b"node-one", 2, SMALL)
    writer = SnapshotWriter(LogId(100, 3), ALONE)
    directory.perform_all(writer.plan_begin() + writer.plan(b"the state" * 1_000) + writer.plan_end())
    write(directory, recovery.storage, Persist(number=1, snapshot=Compact(writer.description, 101)))
    directory.close()
    return path


def verify(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["log", "verify", str(path)])
    return result.exit_code, " ".join(result.output.split())


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x40
    file.write_bytes(data)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.segment"))


def test_intact_directory_is_reported_with_counts_unchanged(tmp_path: Path) -> None:
    path = made(tmp_path / "raft")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    code, output = verify(path)
    assert code == 0
    assert "Sound." in output
    assert "150 entries, 1 to 150, in 3 segments" in output
    assert "term 3, vote for server 1" in output
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_state_directory_of_node_is_accepted(tmp_path: Path) -> None:
    made(tmp_path / "raft")
    assert verify(tmp_path)[0] == 0


def test_snapshot_with_shorter_log_is_sound(tmp_path: Path) -> None:
    code, output = verify(compacted(tmp_path / "raft"))
    assert code == 0
    assert "covers the log up to index 100 of term 3" in output
    assert "59 to 150" in output


def test_torn_tail_is_reported_as_repairable(tmp_path: Path) -> None:
    path = made(tmp_path / "raft", count=10)
    directory, recovery = open_directory(path, b"node-one", 2, SMALL)
    write(
        directory,
        recovery.storage,
        Persist(
            number=1, hard_state=None, truncate_from=None, first=11, entries=(Entry.command(3, bytes(PAYLOAD_BYTES)),)
        ),
    )
    directory.close()
    flip(segments(path)[0], SEGMENT_HEADER_BYTES + 10 * RECORD_BYTES + 60)
    code, output = verify(path)
    assert code == 0
    assert "to be repaired: an unfinished write" in output
    assert "index 11" in output


def test_damaged_entry_is_reported_with_place_and_remedy(tmp_path: Path) -> None:
    path = made(tmp_path / "raft")
    flip(segments(path)[0], SEGMENT_HEADER_BYTES + 4 * RECORD_BYTES + 60)
    code, output = verify(path)
    assert code == 1
    assert "entry 5 at byte" in output
    assert "join again as a new server" in output


@each_case(("lost", "reason"), [(1, "is damaged or missing"), (0, "no snapshot covers the earlier entries")])
def test_missing_segment_is_damage(lost: int, reason: str, tmp_path: Path) -> None:
    path = made(tmp_path / "raft")
    segments(path)[lost].unlink()
    code, output = verify(path)
    assert (code, reason in output) == (1, True)


@pytest.mark.parametrize("place", [10, 4096 + 6, 4096 + 200, -1])
def test_damaged_snapshot_is_reported(tmp_path: Path, place: int) -> None:
    path = compacted(tmp_path / "raft")
    (snapshot,) = path.glob("*.snapshot")
    flip(snapshot, place)
    code, output = verify(path)
    assert code == 1
    assert "the snapshot '" in output
    assert "join again as a new server" in output


def test_missing_snapshot_is_damage(tmp_path: Path) -> None:
    path = compacted(tmp_path / "raft")
    (snapshot,) = path.glob("*.snapshot")
    snapshot.unlink()
    assert verify(path)[0] == 1


def test_hard_state_is_repairable_with_one_intact_slot(tmp_path: Path) -> None:
    path = made(tmp_path / "raft", count=3)
    flip(path / "ballot", 20)
    code, output = verify(path)
    assert code == 0
    assert "to be repaired: one of the hard state's two slots" in output
    flip(path / "ballot", 4096 + 20)
    assert verify(path)[0] == 1


def test_mixed_and_copied_directories_are_reported(tmp_path: Path) -> None:
    path, other = made(tmp_path / "raft"), made(tmp_path / "other", node=b"node-two")
    shutil.copytree(path, tmp_path / "copy")
    assert "this directory is a copy" in verify(tmp_path / "copy")[1]
    shutil.copyfile(segments(other)[1], segments(path)[1])
    code, output = verify(path)
    assert code == 1
    assert "files of two directories were mixed" in output


def test_directory_without_log_exits_with_status_2(tmp_path: Path) -> None:
    assert verify(tmp_path) == (2, f"{tmp_path}: Empty. the directory is empty: a server would make a new log in it")
    (tmp_path / "letter.txt").write_text("hello")
    assert verify(tmp_path)[0] == 2
    code, output = verify(tmp_path / "nowhere")
    assert code == 2
    assert "No such file" in output


def test_live_directory_is_verified_with_notice(tmp_path: Path) -> None:
    path = made(tmp_path / "raft")
    directory, _ = open_directory(path, b"node-one", 2, SMALL)
    try:
        code, output = verify(path)
    finally:
        directory.close()
    assert code == 0
    assert "A process has this directory open" in output


def test_json_output_has_verdict_and_figures(tmp_path: Path) -> None:
    path = compacted(tmp_path / "raft")
    found = json.loads(CliRunner().invoke(cli, ["log", "verify", str(path), "--json"]).stdout)
    assert found["verdict"] == "sound"
    assert (found["entries"], found["firstIndex"], found["lastIndex"], found["snapshotIndex"]) == (92, 59, 150, 100)
    assert found["faults"] == []
