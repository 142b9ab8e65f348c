"""A farm of a version without certified foundings is refused with a remedy; its backup continues in a new cluster.

tests/vectors/made-before/ was recorded with commit 9fd374a, the last version of that kind. `garlicfarm up` created a
farm of three nodes on loopback. The operator excluded one leaf and doubled the cost of another one. Then `garlicfarm
backup` copied the state of a running node. formation.json is from that node.
"""

import json
import shutil
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.main import cli
from bridge.node.membership.forming import FILE_NAME, UnusableFormationError, load_formation
from bridge.node.offline.state_reading import StateReadingError, read_backup, read_directory
from bridge.node.security.key_files import load_farm_key, save_farm_key
from bridge.wire.keys.farm_key import new_farm_key

RECORDED = Path(__file__).parents[1] / "vectors" / "made-before"
BACKUP = RECORDED / "farm.backup"
OLD_CLUSTER = "2424bec5d25bd30a78a3e312dbf251b0"
EXCLUDED = "4wgsjfafa5poif2bqhkzzbmj6traiolh4opliclb32ywk5frjtdq"
DEARER = "safvbxhj7vfn2kqae3wasztqjspdcedvgtfxhtsmxtcb4o74bsjq"
NODE_ID = bytes(8)


def test_old_node_is_refused_with_remedy(tmp_path: Path) -> None:
    shutil.copy(RECORDED / FILE_NAME, tmp_path)
    with pytest.raises(UnusableFormationError, match=r"version 1: .* cannot verify .* `garlicfarm backup FILE`"):
        load_formation(tmp_path, NODE_ID)
    with pytest.raises(StateReadingError, match=r"garlicfarm recover --from FILE --state-dir NEW"):
        trio.run(read_directory, tmp_path)


@pytest.mark.parametrize("command", ["restore", "recover"])
def test_old_backup_becomes_new_cluster_with_shared_state(tmp_path: Path, command: str) -> None:
    old = trio.run(read_backup, BACKUP)
    assert (old.cluster_id.hex(), old.founding) == (OLD_CLUSTER, None)
    new = tmp_path / "new"
    arguments = [str(BACKUP)] if command == "restore" else ["--from", str(BACKUP), "--yes"]
    done = CliRunner().invoke(cli, [command, *arguments, "--state-dir", str(new), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    made = trio.run(read_directory, new)
    assert report["oldClusterId"] == OLD_CLUSTER != made.cluster_id.hex()
    assert made.founding is not None
    assert made.founding.founders == (made.node_id,)
    assert made.farm.log_time_ms == old.farm.log_time_ms
    assert (made.farm.weights.excluded, made.farm.weights.costs) == ((EXCLUDED,), {DEARER: 2000})
    assert {each.publication and each.publication.published_s for each in made.farm.masters.values()} == {1795366291}
    assert made.farm.servers == {}, "the reports of the other nodes are dropped with them"
    assert [each.node_id for each in made.farm.admitted.values()] == [made.node_id]


def test_recover_updates_cluster_in_given_key_file(tmp_path: Path) -> None:
    key_file, filed = tmp_path / "farm.key", replace(new_farm_key(3), cluster_id=bytes.fromhex(OLD_CLUSTER))
    save_farm_key(key_file, filed)
    new = tmp_path / "new"
    done = CliRunner().invoke(
        cli, ["recover", "--from", str(BACKUP), "--state-dir", str(new), "--farm-key", str(key_file), "--yes"]
    )
    assert done.exit_code == 0, done.output
    assert load_farm_key(key_file) == replace(filed, cluster_id=trio.run(read_directory, new).cluster_id)


def test_restore_reports_new_cluster_with_advice(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["restore", str(BACKUP), "--state-dir", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert OLD_CLUSTER in done.stdout
    assert "in a new cluster" in done.stdout
    assert "Do this on one node only" in done.stdout
    again = CliRunner().invoke(cli, ["restore", str(BACKUP), "--state-dir", str(tmp_path / "new")])
    assert again.exit_code == 1
