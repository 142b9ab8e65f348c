"""The watch of `up` over its nodes: processes restarted by hand, and structures as proof of publication."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from bridge.node.local.farm_files import LocalFarm, NodeFiles
from bridge.node.local.supervisor import Command
from bridge.node.local.watch import LocalWatch
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from bridge.wire.i2p.structures import Destination
from tests.operator_views import farm_view


@dataclass
class EndedChild:
    """A killed process with the pid 4711."""

    command: Command
    pid: int = 4711
    running: bool = False
    exit_text: str = "ended by SIGKILL"


def watch_of(directory: Path, *, running: bool = False) -> LocalWatch:
    node = NodeFiles("node-1", directory / "node-1", 1, 2)
    (node.directory / "published").mkdir(parents=True)
    child = EndedChild(Command("node-1", (), node.log_file), running=running)
    return LocalWatch(LocalFarm(directory, (node,), continued=True), (child,))  # type: ignore[arg-type]  # as a Child


def publish(directory: Path, *, at_s: float) -> Path:
    key = new_master_key(demo=True)
    leaf: Destination = new_master_key().destination
    structure = key.as_signing_key().sign(int(at_s), (MetaLease(leaf.hash, 1, int(at_s) + 900),))
    path = directory / "node-1" / "published" / f"{key.destination.address}.meta-ls2"
    path.write_bytes(encode(structure))
    os.utime(path, (at_s, at_s))
    return path


def test_killed_node_is_shown_as_ended_until_restart(tmp_path: Path) -> None:
    watch = watch_of(tmp_path)
    assert (watch.picture().processes[0].running, watch.picture().processes[0].detail) == (False, "ended by SIGKILL")
    view = farm_view()
    watch._views["node-1"] = replace(view, node=replace(view.node, name="node-1", pid=4712))
    again = watch.picture().processes[0]
    assert (again.running, again.pid, again.detail) == (True, 4712, "started by hand")
    # The exit text of the first process does not apply to the second, which an operator may have stopped normally.
    del watch._views["node-1"]
    ended = watch.picture().processes[0]
    assert (ended.running, ended.detail) == (False, "pid 4712, started by hand, has ended")


def test_structure_of_earlier_run_is_not_published(tmp_path: Path) -> None:
    # given a continued farm, with the structure of its previous run on disk
    before = time.time() - 3_600
    watch = watch_of(tmp_path, running=True)
    view = farm_view()
    report = replace(view.reports[0], healthy_destinations=1)
    watch._views["node-1"] = replace(view, node=replace(view.node, pid=4711), reports=(report,))
    publish(tmp_path, at_s=before)
    assert watch.published() is None
    # when the farm has published in this run, then the new structure counts
    fresh = publish(tmp_path, at_s=time.time() + 1)
    found = watch.published()
    assert found is not None
    assert found.path == fresh
