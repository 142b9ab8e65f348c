"""`garlicfarm keys master`: a signing key for this node, spare keys for invited nodes, and its refusals."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from click.testing import CliRunner, Result

from bridge.api.outputs import Check
from bridge.cli import config as config_command
from bridge.cli.founding import init as init_command
from bridge.cli.founding import join as join_command
from bridge.cli.founding import new_files
from bridge.cli.keys import master as master_command
from bridge.cli.keys import receive as receiving
from bridge.cli.main import cli
from bridge.node.inviting.redeeming import JoinError
from bridge.node.inviting.spare_keys import SpareKeys
from bridge.node.membership.own_name import note_name, remembered_name
from bridge.node.security.key_files import load_farm_key, load_master_key, load_signing_key, save_signing_key
from bridge.node.security.local_trust import facts_about_node
from bridge.node.settings.bundle import bundle_text
from bridge.node.settings.configuration import load_configuration
from bridge.node.settings.places import Places, node_places
from bridge.node.settings.toml_editor import add_tables
from bridge.wire.i2p.destination_keys import TRANSIENT_LIFE_S, SigningKey, new_master_key, signing_key_text
from bridge.wire.keys.farm_key import FarmKey, new_farm_key
from bridge.wire.keys.invitation import Granted, InviterAddress, RefusalCode, Token
from gossip.node import NodeIdentity, load_identity
from tests.node.test_cli_founding import STEPS_MAX, STRIDE, killed

Call = Callable[..., Result]
SERVICE_USER = 65_534


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


@pytest.mark.search
def test_master_is_repeated_after_kill_at_each_step(garlicfarm: Call, tmp_path: Path) -> None:
    places, file = node_places(), tmp_path / "master.key"
    before = places.configuration.read_text()
    for step in range(0, STEPS_MAX, STRIDE):
        for each in (file, *places.directory.glob("????????.key"), *SpareKeys(places.state_dir).free()):
            each.unlink(missing_ok=True)
        places.configuration.write_text(before)
        if not killed(lambda: garlicfarm("keys", "master", str(file)), step):
            break
        if not load_configuration(places.configuration).masters:
            done = garlicfarm("keys", "master", str(file))
            assert (done.exit_code, "Spare keys: 2." in done.stdout) == (0, True), (step, done.output)
        assert len(SpareKeys(places.state_dir).free()) == 2
        [own] = load_configuration(places.configuration, try_files=True).masters
        assert own.signing_key is not None
        assert load_signing_key(own.signing_key).destination == load_master_key(file).destination
    else:
        pytest.fail("it has more steps than expected")
    assert step > 5


def test_spare_keys_are_added_with_master_key(garlicfarm: Call, tmp_path: Path) -> None:
    file, other = tmp_path / "master.key", tmp_path / "other.key"
    assert garlicfarm("keys", "master", str(file), "--spare", "0").exit_code == 0
    assert garlicfarm("keys", "new-destination", str(other)).exit_code == 0
    before = node_places().configuration.read_text()
    refused = garlicfarm("keys", "master", str(other), "--spare", "2")
    assert "is not the master key of this node" in refused.stderr
    missing = garlicfarm("keys", "master", str(tmp_path / "missing.key"), "--spare", "2")
    assert "missing.key does not exist" in missing.stderr
    spare = SpareKeys(node_places().state_dir)
    (spare.directory / "2026 old.key").touch()
    done = garlicfarm("keys", "master", str(file), "--spare", "2")
    assert done.exit_code == 0
    assert "Spare keys: 2." in done.stdout
    assert [each.name for each in spare.free()] == ["1.key", "2.key"]
    assert node_places().configuration.read_text() == before


def granting(monkeypatch: pytest.MonkeyPatch, farm_key: FarmKey, *keys: SigningKey) -> str:
    """Make the inviting node reply with these keys, and return a token."""

    async def redeem(_: Token, identity: NodeIdentity, name: str) -> Granted:
        await trio.lowlevel.checkpoint()
        assert identity.node_id == load_identity(node_places().state_dir).node_id
        assert name == remembered_name(load_configuration(node_places().configuration)).name
        return Granted(bundle_text(farm_key, {}), "site-a", tuple(map(signing_key_text, keys)))

    monkeypatch.setattr(receiving, "redeem", redeem)
    return str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16)))


def test_joined_node_receives_its_signing_key(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    master, now_s = new_master_key(), int(time.time())
    token = granting(monkeypatch, load_farm_key(node_places().farm_key), master.sign_transient(now_s, TRANSIENT_LIFE_S))
    note_name(node_places().state_dir, "renamed")
    done = garlicfarm("keys", "receive", token)
    assert done.exit_code == 0, done.output
    assert master.destination.address in done.stdout
    [own] = load_configuration(node_places().configuration, try_files=True).masters
    assert own.signing_key is not None
    assert load_signing_key(own.signing_key).destination == master.destination
    again = garlicfarm("keys", "receive", token)
    assert (again.exit_code, "has a master already" in again.stderr) == (1, True)


def test_received_key_replaces_destination_of_its_master(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joined while the inviter lacked spare keys serves the master without a key.

    The node has the key of another master already.
    """
    key, other, own, file = new_master_key(), new_master_key(), new_master_key(), node_places().configuration
    masters = [{"destination": each.destination.base64, "publish": "auto"} for each in (other, key)]
    file.write_text(add_tables(file.read_text(), "master", [*masters, {"signing_key": "own.key"}]))
    keys = [each.sign_transient(int(time.time()), TRANSIENT_LIFE_S) for each in (own, key)]
    save_signing_key(file.with_name("own.key"), keys[0])
    token = granting(monkeypatch, load_farm_key(node_places().farm_key), *keys)
    refused = garlicfarm("keys", "master", str(file.with_name("new.key")))
    assert "gets one with `garlicfarm keys receive`" in refused.stderr
    done = garlicfarm("keys", "receive", token)
    assert done.exit_code == 0, done.output
    first, second, third = load_configuration(file, try_files=True).masters
    assert first.destination == other.destination
    assert third.signing_key == file.with_name("own.key")
    assert second.destination is None
    assert second.signing_key is not None
    assert load_signing_key(second.signing_key).destination == key.destination


def test_taken_name_of_joined_node_refers_to_its_setting(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    async def redeem(*_: object) -> Granted:
        raise JoinError("a running node has this name: choose another name", RefusalCode.NAME_TAKEN)

    monkeypatch.setattr(receiving, "redeem", redeem)
    refused = garlicfarm("keys", "receive", str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16))))
    assert refused.exit_code == 1
    assert f"choose another name, set `name` in {node_places().configuration}, start" in refused.stderr


def test_unfit_configuration_is_refused_before_token(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    token = str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16)))
    monkeypatch.setattr(receiving, "redeem", None)
    file = node_places().configuration
    file.write_text(f"master = []\n{file.read_text()}")
    refused = garlicfarm("keys", "receive", token)
    assert (refused.exit_code, "master" in refused.stderr) == (1, True)


def test_key_is_not_received_without_a_node(garlicfarm: Call) -> None:
    node_places().configuration.unlink()
    refused = garlicfarm("keys", "receive", "token")
    assert (refused.exit_code, "run `garlicfarm join`" in refused.stderr) == (1, True)


def test_key_of_other_farm_is_not_received(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    before = node_places().configuration.read_text()
    token = granting(monkeypatch, new_farm_key(3))
    assert "belongs to another farm" in garlicfarm("keys", "receive", token).stderr
    token = granting(monkeypatch, load_farm_key(node_places().farm_key))
    assert "garlicfarm keys master FILE --spare 1" in garlicfarm("keys", "receive", token).stderr
    assert node_places().configuration.read_text() == before


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """Yield the places of a service with its own user (this one, if the tests do not run as root)."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        made = Places(root / "etc", root / "state", is_service=True)
        made.directory.mkdir()
        made.state_dir.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(made.state_dir, SERVICE_USER, SERVICE_USER)
        made.configuration.write_text(f'state_dir = "{made.state_dir}"\nfarm_key = "farm.key"\n')
        for module in (init_command, join_command, master_command):
            monkeypatch.setattr(module, "node_places", lambda: made)
        monkeypatch.setattr(
            new_files, "facts_about_node", lambda *_: facts_about_node(made.state_dir / "x", root / "state")
        )
        monkeypatch.setattr(master_command, "restart_service", lambda _: True)
        yield made


def test_failed_join_of_service_can_be_repeated(service: Places) -> None:
    """The identity belongs to the user of the service after the first attempt."""
    token = str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16)))
    for _ in range(2):
        refused = CliRunner().invoke(cli, ["join", token, "--bind", "127.0.0.1:17668"])
        assert "127.0.0.1:9: Connection refused" in refused.stderr
    owner = service.state_dir.stat().st_uid
    assert {each.stat().st_uid for each in service.state_dir.rglob("*")} == {owner}


def test_master_reads_farm_key_of_service_user(service: Places, tmp_path: Path) -> None:
    """At its first start the systemd unit makes its user the owner of the key file, which root can still read."""
    assert CliRunner().invoke(cli, ["init", "--bind", "127.0.0.1:17668", "--no-start"]).exit_code == 0
    owner = service.state_dir.stat()
    os.chown(service.farm_key, owner.st_uid, owner.st_gid)
    done = CliRunner().invoke(cli, ["keys", "master", str(tmp_path / "master.key")])
    assert done.exit_code == 0, done.output
    assert "Spare keys: 2." in done.stdout
    assert {each.stat().st_uid for each in service.state_dir.rglob("*")} == {owner.st_uid}
    assert (os.geteuid(), os.getegid()) == (os.getuid(), os.getgid())


def test_doctor_of_root_checks_as_service_user(service: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_command, "node_places", lambda: service)
    assert CliRunner().invoke(cli, ["init", "--bind", "127.0.0.1:17668", "--no-start"]).exit_code == 0
    owner, users = service.state_dir.stat(), list[int]()
    os.chown(service.farm_key, owner.st_uid, owner.st_gid)

    def check(*_: object) -> list[Check]:
        users.append(os.geteuid())
        return []

    monkeypatch.setattr(config_command, "check_machine", check)
    for configuration in (str(service.configuration), "other.toml"):
        assert CliRunner().invoke(cli, ["doctor", "--config", configuration]).exit_code == 0
    assert users == [owner.st_uid, os.getuid()]


def test_service_user_cannot_redirect_spare_keys(service: Places, tmp_path: Path) -> None:
    """The command follows a link instead of a directory only with the rights of the service's user."""
    assert CliRunner().invoke(cli, ["init", "--bind", "127.0.0.1:17668", "--no-start"]).exit_code == 0
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (service.state_dir / "spare-keys").symlink_to(outside)
    done = CliRunner().invoke(cli, ["keys", "master", str(tmp_path / "master.key")])
    if os.geteuid() == 0:
        assert done.exit_code == 1
        assert list(outside.iterdir()) == []
    assert outside.stat().st_uid == os.geteuid()


def test_master_without_init_is_refused(garlicfarm: Call, tmp_path: Path) -> None:
    node_places().configuration.unlink()
    refused = garlicfarm("keys", "master", str(tmp_path / "master.key"))
    assert refused.exit_code == 1
    assert "garlicfarm init" in refused.stderr
    assert not (tmp_path / "master.key").exists()


@pytest.mark.parametrize("now_s", [0, 2**32])
def test_master_with_wrong_clock_is_refused(
    garlicfarm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now_s: int
) -> None:
    monkeypatch.setattr("bridge.cli.keys.master.time", SimpleNamespace(time=lambda: now_s))
    refused = garlicfarm("keys", "master", str(tmp_path / "master.key"))
    assert refused.exit_code == 1
    assert "the clock of this machine is wrong: set it" in refused.stderr
    assert not (tmp_path / "master.key").exists()
