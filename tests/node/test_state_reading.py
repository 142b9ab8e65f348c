"""The farm state read offline, from the directory of a stopped node or from a backup."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.main import cli
from bridge.core.formation.founding import FormationState, Promise, founding_of
from bridge.core.log.records import Admission, Clock
from bridge.core.membership.admission import Admitted
from bridge.core.state.farm_state import FarmTuning
from bridge.node.events.event_log import EventLog
from bridge.node.membership.forming import FILE_NAME
from bridge.node.offline.state_reading import FarmOnDisk, StateReadingError, read_state
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.wire.keys.backup import BackupError, decode_backup, encode_backup
from bridge.wire.log.entries import encode
from bridge.wire.membership.formation_state import encode_formation_state
from consensus.core.effects import Compact, Persist
from consensus.core.entry_data import configuration_entry
from consensus.core.model import MAX_NUMBER, Configuration, Entry, HardState, LogId, Server
from consensus.storage.directory import LOCK_FILE, Directory, open_directory
from consensus.storage.planner import StorageOptions
from consensus.storage.snapshots import SnapshotWriter
from tests.authored import node_id, signed

FIRST, SECOND = sorted((1, 2), key=node_id)
A, B, C = node_id(FIRST), node_id(SECOND), node_id(3)
BASE_MS = 1_700_000_000_000
PROMISES = {each: Promise((A, B), BASE_MS, each * 2) for each in (A, B)}
FOUNDING = founding_of(PROMISES)
GROWN = Configuration(tuple(Server(number, f"tcp://127.0.0.1:700{number}") for number in (1, 2, 3)))
ADMITTED_C = signed(Admission(C, "c", server_id=3), FIRST, FOUNDING.cluster_id)


def clock(after_ms: int) -> bytes:
    return signed(encode(Clock(BASE_MS + after_ms, 1, 2_000)), FIRST, FOUNDING.cluster_id)


ENTRIES = (
    configuration_entry(1, GROWN),
    Entry.command(1, signed(Admission(A, "a", server_id=1), FIRST, FOUNDING.cluster_id)),
    Entry.command(1, clock(3_000)),
    Entry.command(2, ADMITTED_C),
    Entry.command(2, clock(6_000)),
)


def node_directory(path: Path) -> Path:
    """Create the directory of founder A, which stopped after the last of ENTRIES."""
    path.mkdir()
    formation = FormationState(promise=PROMISES[A], founding=FOUNDING)
    (path / FILE_NAME).write_bytes(encode_formation_state(formation))
    directory, recovery = open_directory(path / RAFT_DIRECTORY, A, 1, StorageOptions(segment_bytes=64 * 1024))
    directory.perform_all(
        recovery.storage.plan(
            [Persist(number=1, hard_state=HardState(2, 1), truncate_from=None, first=1, entries=ENTRIES)]
        )
    )
    recovery.storage.done()
    directory.close()
    return path


async def compacted_directory(path: Path, covered: int) -> Path:
    """Create the directory with a snapshot instead of the first entries."""
    node_directory(path)
    applied_state = AppliedState(
        FOUNDING.log_time_base_ms, EventLog("a", lambda: 0), FOUNDING.founders, FOUNDING.cluster_id
    )
    await applied_state.apply(1, ENTRIES[:covered])
    directory, recovery = open_directory(path / RAFT_DIRECTORY, A, 2, StorageOptions(segment_bytes=64 * 1024))
    writer = SnapshotWriter(LogId(covered, ENTRIES[covered - 1].term), GROWN)
    state = b"".join(applied_state.snapshot())
    directory.perform_all(writer.plan_begin() + writer.plan(state) + writer.plan_end())
    change = Compact(writer.description, covered + 1)
    directory.perform_all(recovery.storage.plan([Persist(number=1, snapshot=change)]))
    recovery.storage.done()
    directory.close()
    return path


def check(found_there: FarmOnDisk) -> None:
    """Check that `found_there` is the farm of ENTRIES."""
    assert (found_there.node_id, found_there.founding, found_there.configuration) == (A, FOUNDING, GROWN)
    assert found_there.last == LogId(5, 2)
    assert found_there.period_ms == 2_000 != FarmTuning().period_ms
    assert found_there.farm.log_time_ms == BASE_MS + 6_000
    assert {number: each.node_id for number, each in found_there.farm.admitted.items()} == {1: A, 2: B, 3: C}
    assert replace(found_there.farm.admitted[3], unseen_since_ms=None) == Admitted(C, "c", entry=ADMITTED_C)


async def test_whole_log_of_stopped_node_is_read(tmp_path: Path) -> None:
    check(await read_state(node_directory(tmp_path / "node")))


async def test_snapshot_with_later_log_gives_same_farm(tmp_path: Path) -> None:
    whole = await read_state(node_directory(tmp_path / "whole"))
    for covered in (2, 5):
        found_there = await read_state(await compacted_directory(tmp_path / f"covered-{covered}", covered))
        check(found_there)
        assert found_there.farm == whole.farm


async def test_reading_leaves_copied_directory_unchanged(tmp_path: Path) -> None:
    original = node_directory(tmp_path / "node")
    copy = tmp_path / "copy"
    await trio.run_process(["cp", "-a", str(original), str(copy)])
    before = {path.name: path.read_bytes() for path in (copy / RAFT_DIRECTORY).iterdir()}
    check(await read_state(copy))
    assert {path.name: path.read_bytes() for path in (copy / RAFT_DIRECTORY).iterdir()} == before


async def test_backup_reads_like_its_directory(tmp_path: Path) -> None:
    read = await read_state(node_directory(tmp_path / "node"))
    content = encode_backup(read.backup)
    (tmp_path / "farm.backup").write_bytes(content)
    again = await read_state(tmp_path / "farm.backup")
    check(again)
    assert replace(again, source=read.source) == read


async def test_backup_allows_largest_term_and_index(tmp_path: Path) -> None:
    backup = (await read_state(node_directory(tmp_path / "node"))).backup
    last = LogId(MAX_NUMBER, MAX_NUMBER)
    late = dataclasses.replace(backup, head=replace(backup.head, last=last))
    assert decode_backup(encode_backup(late)).head.last == last


@pytest.mark.parametrize("cluster", ["../x", "a\0b", "\x1b[2J"])
async def test_backup_with_name_outside_form_is_refused(tmp_path: Path, cluster: str) -> None:
    """`garlicfarm backup DIR` puts the name of the farm into the name of the file."""
    backup = (await read_state(node_directory(tmp_path / "node"))).backup
    named = dataclasses.replace(backup, head=replace(backup.head, cluster="farm-1"))
    assert decode_backup(encode_backup(named)).head.cluster == "farm-1"
    with pytest.raises(BackupError, match="no version could read its head"):
        encode_backup(dataclasses.replace(backup, head=replace(backup.head, cluster=cluster)))


async def test_unreadable_state_is_refused_with_remedy(tmp_path: Path) -> None:
    used = node_directory(tmp_path / "used")
    lock = Directory(used / RAFT_DIRECTORY)
    with pytest.raises(StateReadingError, match=r"runs: stop it first"):
        await read_state(used)
    lock.close()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StateReadingError, match="give the state directory of a node that belonged to a farm"):
        await read_state(tmp_path / "empty")
    with pytest.raises(StateReadingError, match=r"cannot be read: .*; give the state directory of a node"):
        await read_state(tmp_path / "nothing")
    never = tmp_path / "never"
    never.mkdir()
    (never / FILE_NAME).write_bytes(encode_formation_state(FormationState()))
    with pytest.raises(StateReadingError, match="never belonged to a farm: give the state directory of a node that"):
        await read_state(never)
    shutil.rmtree(used / RAFT_DIRECTORY)
    with pytest.raises(StateReadingError, match=r"never received the farm's log: give .* for example the backup"):
        await read_state(used)
    closed = node_directory(tmp_path / "closed") / RAFT_DIRECTORY / LOCK_FILE
    closed.unlink()
    closed.mkdir()
    with pytest.raises(StateReadingError, match=r"able to write there\. Or copy the directory, and name the copy"):
        await read_state(tmp_path / "closed")


async def test_damaged_backup_is_refused(tmp_path: Path) -> None:
    read = await read_state(node_directory(tmp_path / "node"))
    content = encode_backup(read.backup)
    assert decode_backup(content).image == read.image
    for place in (0, 25, 90, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 0x01
        with pytest.raises(BackupError):
            decode_backup(bytes(damaged))
    for end in (0, 30, 200, len(content) - 1):
        with pytest.raises(BackupError):
            decode_backup(content[:end])


@pytest.mark.parametrize("kind", ["directory", "backup"])
async def test_unreadable_table_of_reqids_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("bridge.core.state.reqids.Reqids.dump", lambda _: b"\xff")
    path = await compacted_directory(tmp_path / "node", 2)
    if kind == "backup":
        path = tmp_path / "farm.backup"
        read = await read_state(node_directory(tmp_path / "whole"))
        path.write_bytes(encode_backup(read.backup))
    with pytest.raises(StateReadingError, match="a table of reqids has format 255"):
        await read_state(path)


async def test_backup_of_later_feature_level_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = await read_state(node_directory(tmp_path / "node"))
    path = tmp_path / "farm.backup"
    path.write_bytes(encode_backup(read.backup))
    monkeypatch.setattr("bridge.node.raft.applied_state.SUPPORTED_LEVEL", -1)
    with pytest.raises(StateReadingError, match=r"Install a newer version of garlicfarm.*use another survivor"):
        await read_state(path)


def test_restore_accepts_empty_root_of_file_system(tmp_path: Path) -> None:
    command = ["restore", str(node_directory(tmp_path / "old")), "--state-dir", str(tmp_path / "new")]
    (tmp_path / "new").mkdir(mode=0o700)
    (tmp_path / "new" / "lost+found").mkdir()
    assert CliRunner().invoke(cli, command).exit_code == 0
    again = CliRunner().invoke(cli, command)
    assert again.exit_code == 1
    assert "new is not empty: name a new directory" in again.stderr
