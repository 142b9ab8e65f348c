"""A farm from a version without certified foundings: a real node refuses it, and starts from its backup.

tests/node/test_made_before.py describes the origin of the recorded files.
"""

import json
import shutil
import socket
from pathlib import Path

from bridge.api.view import RaftRole
from bridge.node.security.key_files import load_farm_key, save_farm_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.end_to_end.farm import END_BOUND_S, START_BOUND_S, Farm, call, tail
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml

RECORDED = Path(__file__).parents[1] / "vectors" / "made-before"
EXCLUDED = "4wgsjfafa5poif2bqhkzzbmj6traiolh4opliclb32ywk5frjtdq"


def test_older_farm_is_refused_but_its_backup_starts(tmp_path: Path) -> None:
    key_file = tmp_path / "farm.key"
    save_farm_key(key_file, new_farm_key(3))
    addresses = [f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
    node = node_toml(tmp_path / "node-1", farm_key=key_file, gossip=addresses[0], consensus=addresses[1], seeds=[])
    node.directory.chmod(0o700)
    with Farm(tmp_path, [node]) as farm:
        # Given a state directory of that version, the node ends, and its last line names the remedy
        shutil.copy(RECORDED / "formation.json", node.directory)
        assert node.start().wait_end(END_BOUND_S) == 1
        last_line = tail(node.log_file).splitlines()[-1]
        assert "run `garlicfarm backup FILE` with the old version on one of its nodes" in last_line
        # When the backup is restored
        configuration = node.configuration.read_text()
        node.directory.rename(tmp_path / "old")
        restored = call("restore", RECORDED / "farm.backup", "--state-dir", node.directory, "--json")
        assert restored.returncode == 0, restored.stderr
        node.configuration.write_text(configuration)
        node.start()

        # Then the node leads a new cluster alone, with the decisions of the old farm
        def leads() -> bool:
            view = node.view()
            return view.raft.role is RaftRole.LEADER and view.raft.commit_index > 28 and bool(view.reports)

        farm.wait_until(leads, START_BOUND_S, "the restored node leads alone")
        assert node.view().farm.cluster_id == json.loads(restored.stdout)["clusterId"]
        assert EXCLUDED in call("farm", "--json", "--node", node.directory).stdout
        assert call("keys", "export", "--replace", key_file, "--node", node.directory).returncode == 0
        named = load_farm_key(key_file).cluster_id
        assert named is not None
        assert named.hex() == json.loads(restored.stdout)["clusterId"]
