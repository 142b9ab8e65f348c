"""The files of a local farm: created once, then reused at each start."""

import errno
import fcntl
import os
import socket
import stat
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import up as up_command
from bridge.cli.main import cli
from bridge.core.formation.founding import FormationState, Promise, founding_of
from bridge.node.local import farm_files
from bridge.node.local.farm_files import LOOPBACK, LocalFarm, LocalFarmError, locked, prepare
from bridge.node.security.key_files import (
    load_farm_key,
    load_master_key,
    load_signing_key,
    save_master_key,
    save_signing_key,
)
from bridge.node.settings.configuration import Overrides, load_configuration
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.membership.formation_state import encode_formation_state
from tests.effort import each_case


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def ports(farm: LocalFarm) -> list[int]:
    return [port for node in farm.nodes for port in (node.gossip_port, node.consensus_port)]


def test_node_configurations_can_be_loaded(tmp_path: Path) -> None:
    directory = tmp_path / 'a farm "of mine" \\ \x7f äöü 🧄'
    directory.mkdir()
    farm = prepare(directory, 3)
    assert not farm.continued
    for node in farm.nodes:
        configuration = load_configuration(node.configuration_file, Overrides())
        assert configuration.name == node.name
        assert configuration.demo
        assert configuration.gossip is not None
        assert (configuration.gossip.bind.host, configuration.gossip.bind.port) == (LOOPBACK, node.gossip_port)
        assert configuration.consensus.bind.port == node.consensus_port
        assert configuration.state_dir == node.directory.resolve()
        assert sorted(configuration.gossip.seeds) == sorted(
            f"{LOOPBACK}:{each.gossip_port}" for each in farm.nodes if each is not node
        )
        assert load_farm_key(configuration.farm_key).expect == 3
        assert len(configuration.leaves) == 1
    assert len({load_configuration(node.configuration_file, Overrides()).leaves for node in farm.nodes}) == 3


def test_key_files_are_private(tmp_path: Path) -> None:
    prepare(tmp_path, 2)
    keys = [*tmp_path.glob("*.key"), *tmp_path.glob("*/*.key")]
    assert len(keys) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("node-*")} == {0o700}


def test_continued_farm_keeps_all_files(tmp_path: Path) -> None:
    first = prepare(tmp_path, 3)
    before = contents(tmp_path)
    second = prepare(tmp_path, 3)
    assert second.continued
    assert second.nodes == first.nodes
    assert contents(tmp_path) == before


def test_key_file_names_cluster_after_founding(tmp_path: Path) -> None:
    farm = prepare(tmp_path, 2)
    founders = (b"a" * 8, b"b" * 8)
    promises = {each: Promise(founders, 5, each * 2) for each in founders}
    prepare(tmp_path, 2)
    assert load_farm_key(tmp_path / "farm.key").cluster_id is None
    state = FormationState(promise=promises[founders[0]], founding=founding_of(promises))
    (farm.nodes[0].directory / "formation.json").write_bytes(encode_formation_state(state))
    (farm.nodes[1].directory / "formation.json").write_bytes(b"damaged")
    prepare(tmp_path, 2)
    assert load_farm_key(tmp_path / "farm.key").cluster_id == founding_of(promises).cluster_id


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["gossip", "consensus"])
def test_local_farm_replaces_only_port_in_use(tmp_path: Path, kind: socket.SocketKind) -> None:
    first = prepare(tmp_path, 3)
    taken = first.nodes[1].gossip_port if kind is socket.SOCK_DGRAM else first.nodes[1].consensus_port
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind((LOOPBACK, taken))
        if kind is socket.SOCK_STREAM:
            other.listen()
        second = prepare(tmp_path, 3)
    changed = [(was, now) for was, now in zip(ports(first), ports(second), strict=True) if was != now]
    assert [was for was, _ in changed] == [taken]


def test_new_ports_are_outside_the_range_of_connections(tmp_path: Path) -> None:
    assert set(ports(prepare(tmp_path, 3))) <= set(farm_files.PORTS)


def test_port_is_found_although_the_range_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as reserved:
        taken = farm_files.hold_free_port(reserved, socket.SOCK_STREAM)
        monkeypatch.setattr(farm_files, "PORTS", [taken])
        monkeypatch.setattr(farm_files, "PORT_ATTEMPTS", 1)
        assert farm_files.hold_free_port(reserved, socket.SOCK_STREAM) not in {0, taken}


def test_duplicate_ports_in_files_are_replaced(tmp_path: Path) -> None:
    first = prepare(tmp_path, 3)
    text = first.nodes[0].configuration_file.read_text(encoding="utf-8")
    for node in first.nodes[1:]:
        node.configuration_file.write_text(text, encoding="utf-8")
    farm = prepare(tmp_path, 3)
    assert len({node.gossip_port for node in farm.nodes}) == len({node.consensus_port for node in farm.nodes}) == 3
    assert (farm.nodes[0].gossip_port, farm.nodes[0].consensus_port) == (ports(first)[0], ports(first)[1])


@each_case(
    "text",
    ["", "[gossip", "gossip = 1", "[gossip]\nbind = 5", '[gossip]\nbind = "127.0.0.1:99999999"\n', "\x00"],
    ids=["empty", "cut", "number", "no-address", "no-port", "binary"],
)
def test_damaged_configuration_is_rewritten(tmp_path: Path, text: str) -> None:
    farm = prepare(tmp_path, 1)
    farm.nodes[0].configuration_file.write_text(text, encoding="utf-8")
    again = prepare(tmp_path, 1)
    assert load_configuration(again.nodes[0].configuration_file, Overrides()).name == "node-1"


def test_farm_of_other_size_is_refused_unchanged(tmp_path: Path) -> None:
    prepare(tmp_path, 3)
    before = contents(tmp_path)
    with pytest.raises(LocalFarmError, match="holds a farm of 3 nodes, not of 5: start it with --nodes 3"):
        prepare(tmp_path, 5)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["formation.json", "node.toml", "master.key", "invitations.json"])
def test_directory_of_real_node_or_master_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_command, "_run", fail_at_start)
    save_master_key(tmp_path / name, new_master_key())
    before = contents(tmp_path)
    result = CliRunner().invoke(cli, ["up", "--state-dir", str(tmp_path)])
    assert (result.exit_code, f"{name} does not belong to a demonstration" in result.stderr) == (1, True)
    assert contents(tmp_path) == before


async def fail_at_start(_: object) -> None:
    pytest.fail("the farm starts")


def test_directory_outside_utf_8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "\udcff"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)
    monkeypatch.chdir(place)
    for named in (Path("farm"), tmp_path / "link"):
        with pytest.raises(LocalFarmError, match="TOML cannot name it; choose a place in UTF-8 with --state-dir"):
            prepare(named, 1)
    assert not list(place.iterdir())


def test_second_up_in_same_directory_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "farm"
    with locked(directory):
        with pytest.raises(LocalFarmError, match="another `garlicfarm up` runs on"), locked(directory):
            pytest.fail("two at a time")
        with locked(tmp_path / "another"):
            pass
    with locked(directory):
        pass


def test_up_on_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: object, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LocalFarmError, match="No locks available; name a place on a local disk"), locked(tmp_path):
        pytest.fail("entered without the lock")


def test_unusable_signing_key_is_replaced(tmp_path: Path) -> None:
    farm = prepare(tmp_path, 3)
    paths = [node.directory / "signing.key" for node in farm.nodes]
    before = [path.read_bytes() for path in paths]
    paths[0].unlink()
    save_signing_key(paths[0], load_master_key(tmp_path / "master.key").sign_transient(int(time.time()), 3_600))
    prepare(tmp_path, 3)
    assert load_signing_key(paths[0]).can_sign_until_s > time.time() + 7 * 86_400
    assert [path.read_bytes() for path in paths[1:]] == before[1:]

    (tmp_path / "master.key").unlink()
    prepare(tmp_path, 3)
    master = load_master_key(tmp_path / "master.key")
    assert {load_signing_key(path).destination for path in paths} == {master.destination}
