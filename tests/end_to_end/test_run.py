"""`garlicfarm run`: the start of one node, its errors, its log format, its service manager, and its end."""

import json
import os
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bridge.api.view import Phase
from bridge.node.security.key_files import save_farm_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.end_to_end.farm import END_BOUND_S, START_BOUND_S, Farm, Node, call, tail
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml


def single(directory: Path, *, gossip_port: int = 0, consensus_port: int = 0) -> Farm:
    save_farm_key(directory / "farm.key", new_farm_key(1))
    gossip = gossip_port or free_port(socket.SOCK_DGRAM)
    consensus = consensus_port or free_port(socket.SOCK_STREAM)
    node = node_toml(
        directory / "alone",
        farm_key=directory / "farm.key",
        gossip=f"{LOOPBACK}:{gossip}",
        consensus=f"{LOOPBACK}:{consensus}",
        seeds=[],
    )
    return Farm(directory, [node])


def farm_events(node: Node) -> list[str]:
    """Return the events of the node's start that concern its farm."""
    return [each.kind for each in node.ask(lambda client: client.events()).events if each.kind.startswith("farm-")]


def test_run_without_key_names_command_to_create_one(tmp_path: Path) -> None:
    ended = call("run", "--state-dir", tmp_path)
    assert ended.returncode == 1
    assert "make it with `garlicfarm init` on the first machine" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_run_names_all_configuration_errors(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('nmae = "a"\nfarm_key = "farm.key"\n[gossip]\nbind = "127.0.0.1:99999"\ncapacity = "many"\n')
    ended = call("run", "--config", file)
    assert ended.returncode == 1
    for wrong in ("nmae", "gossip.bind", "gossip.capacity", str(file)):
        assert wrong in ended.stderr
    file.write_text("name = \n")
    assert "not TOML" in call("run", "--config", file).stderr


def test_run_with_missing_key_file_names_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('farm_key = "nowhere.key"\nstate_dir = "state"\n[gossip]\nbind = "127.0.0.1:7668"\n')
    ended = call("run", "--config", file)
    assert ended.returncode == 1
    assert f"{tmp_path / 'nowhere.key'} does not exist" in ended.stderr


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_run_with_port_in_use_names_setting(tmp_path: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind((LOOPBACK, 0))
        if kind is socket.SOCK_STREAM:
            other.listen()
        port = other.getsockname()[1]
        gossip = kind is socket.SOCK_DGRAM
        with single(tmp_path, **{"gossip_port" if gossip else "consensus_port": port}) as farm:
            node = farm.nodes[0].start()
            assert node.wait_end(END_BOUND_S) == 1
            assert ("bind" if gossip else "consensus.bind") in tail(node.log_file)
            assert f"{LOOPBACK}:{port}" in tail(node.log_file)
            assert "Traceback" not in tail(node.log_file)
            # Gossip starts after the Raft port is open: other members do not see a node that ends immediately.
            assert gossip or not (node.directory / "generation").exists()


def test_json_log_has_one_record_per_line(tmp_path: Path) -> None:
    with single(tmp_path) as farm:
        # Given a node that creates a farm, is stopped, and cannot start again because of its key file.
        node = farm.nodes[0]
        with node.configuration.open("a") as file:
            file.write('\n[log]\nformat = "json"\n')
        node.start()
        farm.wait_until(farm.leader, START_BOUND_S, "the node leads")
        assert node.stop() == 0
        key = tmp_path / "farm.key"
        key.chmod(0o644)
        assert node.start().wait_end(END_BOUND_S) == 1
        # When each line of its log is parsed.
        lines = node.log_file.read_text(encoding="ascii").splitlines()
        found = [json.loads(line) for line in lines]
    # Then each is a complete record, sorted by time, and the last one is the reason of the end.
    assert all(list(each) == ["time", "level", "node", "event", "text", "fields"] for each in found)
    times = [datetime.fromisoformat(each["time"]) for each in found]
    assert all(each.tzinfo is UTC for each in times)
    assert times == sorted(times)
    events = [each["event"] for each in found]
    assert {"node-started", "farm-founded", "leader-elected", "node-stopping"} <= set(events)
    assert next(each["fields"]["term"] for each in found if each["event"] == "leader-elected") >= 1
    assert {each["level"] for each in found} == {"info", "warning", "error"}
    assert (events[-1], found[-1]["level"]) == ("node-ended", "error")
    assert str(key) in found[-1]["text"]


@pytest.mark.parametrize("level", ["warning", "error"])
def test_log_level_omits_less_severe_records(tmp_path: Path, level: str) -> None:
    with single(tmp_path) as farm:
        node = farm.nodes[0]
        with node.configuration.open("a") as file:
            file.write(f'\n[log]\nformat = "json"\nlevel = "{level}"\n')
        node.start()
        farm.wait_until(farm.leader, START_BOUND_S, "the node leads")
        assert node.stop() == 0
        levels = {json.loads(line)["level"] for line in node.log_file.read_text(encoding="ascii").splitlines()}
    assert levels == ({"warning"} if level == "warning" else set())


def test_node_notifies_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, single(tmp_path) as farm:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(START_BOUND_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1500000")
        node = farm.nodes[0].start()
        messages: list[str] = []
        while messages.count("WATCHDOG=1") < 3 or "READY=1" not in messages:
            messages.append(manager.recv(4096).decode().partition("\n")[0])
        assert node.view().node.pid == node.pid
        assert node.stop() == 0
        while messages[-1] != "STOPPING=1":
            messages.append(manager.recv(4096).decode().partition("\n")[0])
        assert messages.count("READY=1") == messages.count("STOPPING=1") == 1


def test_single_node_creates_farm_and_stops(tmp_path: Path) -> None:
    with single(tmp_path) as farm:
        node = farm.nodes[0].start()

        def leads() -> bool:
            view = node.view()
            return view.node.phase is Phase.FOUNDED and view.raft.commit_index > 0

        farm.wait_until(leads, START_BOUND_S, "the node leads a farm of one")
        assert farm_events(node) == ["farm-founded"]
        second = Node(node.configuration)
        result = call("run", "--config", second.configuration)
        assert result.returncode == 1
        assert "a node already runs with the state directory" in result.stderr
        result = call("submit", '{"mark": "alone"}', "--json", "--node", node.directory)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["outcome"] == "committed"
        os.kill(node.pid, signal.SIGINT)
        assert node.wait_end(END_BOUND_S) == 0
        assert not node.socket.exists()

        node.start()
        farm.wait_until(leads, START_BOUND_S, "the restarted node leads")
        assert node.view().node.generation == 2
        assert farm_events(node) == ["farm-resumed"]
        assert call("leave", "--yes", "--node", node.directory).returncode == 0
        assert node.wait_end(END_BOUND_S) == 0
        assert "Traceback" not in tail(node.log_file)
    assert call("status", "--node", node.directory).returncode == 1


def test_farm_without_publisher_is_reported_as_not_published(tmp_path: Path) -> None:
    with single(tmp_path) as farm:
        [node] = farm.nodes
        node.start()

        def alarmed() -> bool:
            return any(alarm.kind == "not-published" for alarm in node.view().alarms)

        farm.wait_until(alarmed, START_BOUND_S, "the alarm not-published")
        done = call("status", "--node", node.directory)
        assert done.stdout.startswith("Not published: no server names a master\n")
        assert done.returncode == 4
        assert node.ask(lambda client: client.request("GET", "/healthz"))[0] == 200
        assert node.ask(lambda client: client.request("GET", "/readyz"))[0] == 503
