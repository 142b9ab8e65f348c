"""`garlicfarm keys master`: a signing key for this node, spare keys for invited nodes, and its refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.node.inviting.spare_keys import SpareKeys
from bridge.node.security.key_files import load_master_key, load_signing_key
from bridge.node.settings.configuration import load_configuration
from bridge.node.settings.places import node_places

Call = Callable[..., Result]


@pytest.fixture
def garlicfarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command of a user whose home is `tmp_path`, after `init`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments)

    assert call("init", "--expect", "3", "--bind", "127.0.0.1:17668", "--no-start").exit_code == 0
    return call


def test_master_makes_keys_for_node_and_invited_nodes(garlicfarm: Call, tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    done = garlicfarm("keys", "master", str(file), "--json")
    assert done.exit_code == 0
    found, key = json.loads(done.stdout), load_master_key(file)
    assert found["address"] == key.destination.address
    configuration = load_configuration(node_places().configuration, try_files=True)
    [own] = configuration.masters
    assert own.signing_key is not None
    assert str(own.signing_key) == found["signingKey"]
    signing = load_signing_key(own.signing_key)
    assert signing.destination == key.destination
    spare = SpareKeys(configuration.state_dir)
    assert found["spareKeys"] == len(spare.free()) == 2
    numbers = {load_signing_key(each).private_key.private_bytes_raw() for each in (own.signing_key, *spare.free())}
    assert len(numbers) == 3
    assert load_signing_key(own.signing_key).offline is not None


def test_master_uses_existing_key_file(garlicfarm: Call, tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    assert garlicfarm("keys", "new-destination", str(file)).exit_code == 0
    before = file.read_bytes()
    done = garlicfarm("keys", "master", str(file), "--spare", "0")
    assert done.exit_code == 0
    assert file.read_bytes() == before
    assert "off the nodes" in done.stdout
    assert "garlicfarm run" in done.stdout


def test_second_master_is_refused_without_change(garlicfarm: Call, tmp_path: Path) -> None:
    assert garlicfarm("keys", "master", str(tmp_path / "master.key")).exit_code == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused = garlicfarm("keys", "master", str(tmp_path / "other.key"))
    assert refused.exit_code == 1
    assert "has a master already" in refused.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_master_without_init_is_refused(garlicfarm: Call, tmp_path: Path) -> None:
    node_places().configuration.unlink()
    refused = garlicfarm("keys", "master", str(tmp_path / "master.key"))
    assert refused.exit_code == 1
    assert "garlicfarm init" in refused.stderr
    assert not (tmp_path / "master.key").exists()
