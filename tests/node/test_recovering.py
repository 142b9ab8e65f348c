"""`recover` creates a new cluster from a surviving node's state directory, on a real disk."""

import json
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from bridge.cli.recover import recover
from bridge.core.membership.admission import Admitted
from bridge.node.membership.admissions import FILE_NAME as ADMISSIONS_FILE
from bridge.node.membership.forming import load_formation
from bridge.node.offline.recovering import LOST_TERMS, RecoveryError, carry_out, plan_recovery, plan_recovery_of_backup
from bridge.node.offline.state_reading import read_directory
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.wire.keys.backup import encode_backup
from consensus.core.model import LogId
from consensus.storage.directory import Directory, open_directory
from consensus.storage.planner import StorageOptions
from consensus.storage.verification import StorageVerdict, verify_storage
from gossip.node.state_files import begin_generation, load_identity
from tests.node.test_state_reading import BASE_MS, FOUNDING, A, B, C, node_directory


async def test_new_cluster_has_only_survivor_with_whole_state(tmp_path: Path) -> None:
    directory = node_directory(tmp_path / "node")
    plan = await plan_recovery(directory)
    await carry_out(plan)
    made = await read_directory(directory)
    assert made.founding == plan.formation.founding
    assert made.founding is not None
    assert made.founding.founders == (A,)
    assert made.cluster_id == plan.new_cluster_id != FOUNDING.cluster_id
    assert made.configuration.voter_ids == {1}
    assert made.last == LogId(5, 2)
    assert made.farm.log_time_ms == BASE_MS + 6_000
    assert made.farm.admitted == {1: Admitted(A, "a")}
    assert made.period_ms == 2_000


async def test_node_starts_in_new_cluster_and_keeps_old_storage(tmp_path: Path) -> None:
    directory = node_directory(tmp_path / "node")
    (directory / ADMISSIONS_FILE).write_text("the old cluster's")
    plan = await plan_recovery(directory)
    await carry_out(plan)
    assert load_formation(directory, A).founding == plan.formation.founding
    assert not (directory / ADMISSIONS_FILE).exists()
    assert verify_storage(directory / RAFT_DIRECTORY).verdict is StorageVerdict.SOUND
    opened, recovery = open_directory(directory / RAFT_DIRECTORY, A, 7, StorageOptions(segment_bytes=64 * 1024))
    opened.close()
    assert recovery.log.snapshot is not None
    assert recovery.hard_state.term == 2 + LOST_TERMS
    assert plan.aside is not None
    assert plan.aside.name == f"raft.of-{FOUNDING.cluster_id.hex()[:8]}"
    assert verify_storage(plan.aside).verdict is StorageVerdict.SOUND


async def test_backup_becomes_farm_of_one_new_node(tmp_path: Path) -> None:
    backup = await backup_in(tmp_path)
    plan = await plan_recovery_of_backup(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    await carry_out(plan)
    # given its directory, a node starts as the only voter of another cluster, with the farm's state
    identity = load_identity(tmp_path / "new")
    made = await read_directory(tmp_path / "new")
    assert made.node_id == identity.node_id not in {A, B, C}
    assert made.cluster_id == plan.new_cluster_id != FOUNDING.cluster_id
    assert made.configuration.voter_ids == {1}
    assert made.last == LogId(5, 2)
    assert made.farm.admitted == {1: Admitted(identity.node_id)}
    assert (made.farm.log_time_ms, made.period_ms) == (BASE_MS + 6_000, 2_000)
    generation = begin_generation(tmp_path / "new", identity.node_id)
    opened, recovery = open_directory(
        tmp_path / "new" / RAFT_DIRECTORY, identity.node_id, generation, StorageOptions(segment_bytes=64 * 1024)
    )
    opened.close()
    assert recovery.hard_state.term == 2 + LOST_TERMS
    assert (tmp_path / "new" / "identity.pem").stat().st_mode & 0o777 == 0o600


async def test_backup_needs_new_directory_and_valid_file(tmp_path: Path) -> None:
    backup = await backup_in(tmp_path)
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    with pytest.raises(RecoveryError, match="name a new directory"):
        await plan_recovery_of_backup(backup, tmp_path)
    with pytest.raises(RecoveryError, match="not a usable backup"):
        await plan_recovery_of_backup(tmp_path / "rubbish", tmp_path / "new")


async def backup_in(directory: Path) -> Path:
    read = await read_directory(node_directory(directory / "node"))
    (directory / "farm.backup").write_bytes(encode_backup(read.backup))
    return directory / "farm.backup"


async def test_recoveries_of_one_farm_are_separate_clusters(tmp_path: Path) -> None:
    one, other = [await plan_recovery(node_directory(tmp_path / name)) for name in ("one", "other")]
    assert one.new_cluster_id != other.new_cluster_id


async def test_directory_of_running_node_is_unchanged(tmp_path: Path) -> None:
    directory = node_directory(tmp_path / "node")
    plan = await plan_recovery(directory)
    directory_lock = Directory(directory / RAFT_DIRECTORY)
    try:
        with pytest.raises(RecoveryError, match="stop it"):
            await plan_recovery(directory)
        with pytest.raises(RecoveryError, match="another process"):
            await carry_out(plan)
    finally:
        directory_lock.close()
    assert (await read_directory(directory)).founding == FOUNDING


def called(*arguments: str | Path, answer: str = "") -> tuple[int, str]:
    """Return the exit code and output of the command."""
    done = CliRunner().invoke(recover, [str(each) for each in arguments], input=answer)
    return done.exit_code, done.output


def test_command_names_left_out_nodes_and_needs_confirmation(tmp_path: Path) -> None:
    directory = node_directory(tmp_path / "node")
    code, output = called("--from", directory, answer="n\n")
    assert code == 1
    assert "Servers left out: server 2, c." in output
    assert f"{directory} without server 2 and c, and lose all entries that only they acknowledged?" in output
    assert "nothing was done" in output
    assert trio.run(read_directory, directory).founding == FOUNDING
    code, output = called("--from", directory, answer="y\n")
    assert code == 0, output
    assert "mv STATE_DIR STATE_DIR.old" in output


def test_question_with_backup_names_all_later_entries(tmp_path: Path) -> None:
    backup = trio.run(backup_in, tmp_path)
    code, output = called("--from", backup, "--state-dir", tmp_path / "new", answer="n\n")
    assert code == 1
    assert "and c, and lose all entries after entry 5, the last one in the backup?" in output


def test_yes_option_prints_left_out_nodes_without_prompt(tmp_path: Path) -> None:
    directory = node_directory(tmp_path / "node")
    code, output = called("--from", directory, "--yes")
    assert code == 0, output
    assert "Servers left out: server 2, c." in output
    assert "[y/N]" not in output
    code, output = called("--from", directory, "--yes")
    assert code == 0, output
    assert "left out" not in output


def test_json_output_needs_yes_option_and_has_both_cluster_ids(tmp_path: Path) -> None:
    directory = node_directory(tmp_path / "node")
    code, output = called("--from", directory, "--json")
    assert (code, "--yes" in output) == (1, True)
    code, output = called("--from", directory, "--json", "--yes")
    assert code == 0, output
    report = json.loads(output)
    assert report["oldClusterId"] == FOUNDING.cluster_id.hex() != report["newClusterId"]
    assert report["leftBehind"] == ["server 2", "c"]
    assert Path(report["oldStorage"]).is_dir()


def test_command_with_backup_needs_state_directory(tmp_path: Path) -> None:
    backup = trio.run(backup_in, tmp_path)
    code, output = called("--from", backup, "--yes")
    assert (code, "--state-dir" in output) == (1, True)
    code, output = called("--from", tmp_path / "node", "--state-dir", tmp_path / "new", "--yes")
    assert (code, "needs a backup" in output) == (1, True)
    code, output = called("--from", backup, "--state-dir", tmp_path / "new", "--yes", "--json")
    assert code == 0, output
    report = json.loads(output)
    assert (report["stateDirectory"], report["oldStorage"]) == (str(tmp_path / "new"), None)
    assert report["leftBehind"] == ["a", "server 2", "c"]


def test_directory_without_farm_is_refused(tmp_path: Path) -> None:
    code, output = called("--from", tmp_path, "--yes")
    assert code == 1
    assert "formation.json" in output
