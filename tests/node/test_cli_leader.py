"""Commands that only the leader executes: each finds the leader from any given node, and nodes are given by name."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from bridge.api.control import ClusterAnswer, NodeEvicted
from bridge.api.control_routes import NODES_EVICT
from bridge.api.requests import NodeRequest
from bridge.cli.main import cli
from bridge.cli.node_queries import find_control_socket
from bridge.node.control.client import ControlError
from bridge.node.control.routes import Call
from tests.node.test_cli_commands import Node, served

EVICTED = NodeEvicted("11" * 8, 2, 2, "node-9", 9, keys_replaced=True, left_out=(), votes_still=False)


class Member(Node):
    """A node that considers `leader` the leader in `term`."""

    def __init__(self, raft_id: int, leader: int | None, term: int) -> None:
        super().__init__()
        self.reported = ClusterAnswer("demo", "c0", raft_id, term, 9, leader, f"node-{leader}", "tcp://10.0.0.9:7669")
        self.evicted: list[str] = []
        self.answer = EVICTED

    async def cluster(self) -> ClusterAnswer:
        """Return this node's view of the cluster."""
        return self.reported

    async def evict(self, call: Call[NodeRequest]) -> NodeEvicted:
        """Evict a node; a node that does not lead first takes over leadership."""
        self.evicted.append(call.body.node)
        return self.answer


@dataclass
class Farm:
    """Nodes in sibling directories, and a command."""

    directory: Path
    stack: ExitStack

    def add(self, name: str, raft_id: int, leader: int | None, term: int = 2) -> Member:
        """Start a node, and return it."""
        place = self.directory / name
        place.mkdir(mode=0o700, parents=True)
        member = Member(raft_id, leader, term)
        handlers = {**member.handlers, NODES_EVICT: member.evict}
        self.stack.enter_context(served(place / "control.sock", handlers))
        return member

    @staticmethod
    def evict(*nodes: str) -> Result:
        """Run the command with these nodes."""
        named = [text for node in nodes for text in ("--node", node)]
        return CliRunner().invoke(cli, ["node", "evict", "node-9", "--yes", *named])


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield Farm(tmp_path / "farm-state", stack)


def test_command_to_follower_continues_at_leader(farm: Farm) -> None:
    farm.add("node-1", 1, 2)
    leader = farm.add("node-2", 2, 2)
    result = farm.evict("node-1")
    assert (result.exit_code, leader.evicted) == (0, ["node-9"])
    assert "node-2 leads; the command continues there." in result.stderr


def test_printed_commands_after_eviction_remove_client_keys(farm: Farm) -> None:
    leader = farm.add("node-2", 2, 2)
    leader.answer = msgspec.structs.replace(EVICTED, client_keys=("script",), client_keys_of_unknown=("old.key",))
    result = farm.evict("node-2")
    printed = [line.split() for line in result.stdout.splitlines() if line.startswith("  garlicfarm ")]
    assert printed == [["garlicfarm", "node", "remove-client", name] for name in ("script", "old.key")]
    for _, *arguments in printed:
        typed = CliRunner().invoke(cli, [*arguments, "--node", "node-2"], input="y\n")
        assert typed.exit_code == 0, typed.stderr
    assert leader.commands == [{"client": {"name": name, "admitted": False}} for name in ("script", "old.key")]


def test_unresponsive_node_is_skipped(farm: Farm, tmp_path: Path) -> None:
    leader = farm.add("node-2", 2, 2)
    result = farm.evict(str(tmp_path / "dead.sock"), "node-2")
    assert (result.exit_code, leader.evicted) == (0, ["node-9"])


def test_leader_of_older_term_is_not_the_leader(farm: Farm) -> None:
    old = farm.add("node-1", 1, 1, term=2)
    new = farm.add("node-2", 2, 2, term=3)
    assert farm.evict("node-1").exit_code == 0
    assert (old.evicted, new.evicted) == ([], ["node-9"])


def test_order_with_leader_elsewhere_goes_to_the_queried_node(farm: Farm) -> None:
    node = farm.add("node-1", 1, 3)
    result = farm.evict("node-1")
    assert (result.exit_code, node.evicted) == (0, ["node-9"])
    assert result.stderr == "node-3 leads; for this command, the queried node takes over leadership.\n"


def test_first_reason_is_reported_if_no_node_replies(farm: Farm, tmp_path: Path) -> None:
    farm.directory.mkdir()
    result = farm.evict(str(tmp_path / "dead.sock"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"garlicfarm: no node runs at {tmp_path / 'dead.sock'}")


def test_node_in_sibling_directory_is_found_by_name(farm: Farm) -> None:
    farm.add("node-1", 1, 2)
    farm.add("node-2", 2, 2)
    result = CliRunner().invoke(cli, ["submit", "{}", "--node", "node-2", "--json"])
    assert result.exit_code == 0, result.stderr
    assert "no node runs at node-7" in CliRunner().invoke(cli, ["submit", "{}", "--node", "node-7"]).stderr


def test_missing_node_in_shared_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode of the directory is not reported: /tmp must be writable for all."""
    tmp_path.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["status", "--node", "node-7"])
    assert (result.exit_code, result.stderr) == (
        1,
        "garlicfarm: no node runs at node-7; start one, or name another with --node\n",
    )


def test_unusable_path_is_reported_as_missing_node() -> None:
    result = CliRunner().invoke(cli, ["status", "--node", "n" * 300], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (1, f"garlicfarm: no node runs at {'n' * 300}: File name too long\n")


def test_node_of_another_user_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", "/others")

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(ControlError, match="/others may only be used by the node's user"):
        find_control_socket("/others", {})


def test_state_directory_of_another_user_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.stat

    def stat(path: str | Path, **options: Any) -> os.stat_result:
        """Refuse paths in the directory, as the system does for a user who may not enter it."""
        if os.fspath(path).startswith(f"{tmp_path}/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return whole(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(ControlError, match="may only be used by the node's user"):
        find_control_socket(str(tmp_path), {})
