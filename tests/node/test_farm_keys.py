"""The farm's keys at a running node: its credentials, the credentials that it accepts, and an outdated key file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.api.alarms import FARM_KEY_FILE
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import KeyFileError, load_farm_key, replace_farm_key, save_farm_key
from bridge.wire.keys.farm_key import FarmKey, new_farm_key
from gossip.core.keyring import Keyring

NEW = b"a new key of thirty-two bytes..."


class Following:
    """A replacement for the gossip agent: it has only a keyring, which the test changes."""

    def __init__(self, chain: Keyring) -> None:
        self.keyring = chain


def farm_keys(directory: Path, filed: FarmKey, keyring: Callable[[], Keyring | None] = lambda: None) -> FarmKeys:
    save_farm_key(directory / "farm.key", filed)
    return FarmKeys(directory / "farm.key", filed, keyring)


def users(keys: FarmKeys) -> list[str]:
    """Return the user names of a node's own credentials, best first."""
    return [each.user for each in keys.credentials()]


def test_credentials_follow_ring_through_rotation(tmp_path: Path) -> None:
    filed = new_farm_key(3)
    agent = Following(filed.key_ring)
    keys = farm_keys(tmp_path, filed, lambda: agent.keyring)
    old = keys.credentials()[0]
    assert keys.password_of(old.user) == old.password

    agent.keyring = agent.keyring.install(NEW)
    assert users(keys)[0] == old.user, "the new key is accepted before it is used"
    new = keys.credentials()[1]
    assert keys.password_of(new.user) == new.password

    agent.keyring = agent.keyring.use(NEW)
    assert users(keys) == [new.user, old.user], "the new key is used, the old key is still accepted"

    agent.keyring = agent.keyring.remove(filed.gossip_keys[0])
    assert users(keys) == [new.user]
    assert keys.password_of(old.user) is None, "a removed key is refused"
    assert keys.password_of("unknown") is None


def test_credentials_of_key_are_equal_on_all_members(tmp_path: Path) -> None:
    filed = new_farm_key(3)
    rotated = filed.key_ring.install(NEW).use(NEW)
    by_gossip, by_file = farm_keys(tmp_path, filed, lambda: rotated), tmp_path / "other"
    by_file.mkdir()
    assert farm_keys(by_file, filed.following(rotated)).credentials() == by_gossip.credentials()


def alarm_text(alarms: Alarms) -> str:
    return " ".join(f"{each.text}; {each.action}" for each in alarms.active() if each.kind == FARM_KEY_FILE.kind)


def test_outdated_key_file_raises_alarm_until_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filed = new_farm_key(3)
    keys = farm_keys(tmp_path, filed, lambda: filed.key_ring.install(NEW).use(NEW))
    alarms = Alarms(EventLog("node-1", lambda: 0))
    with monkeypatch.context() as patched:
        patched.setattr("bridge.node.security.key_files.time_ns", lambda: keys.path.stat().st_ctime_ns + 3 * 10**9)
        assert keys.filed_now() is keys.filed_now(), "an unchanged file is not read again"
    keys.judge_file(keys.filed_now(), alarms)
    assert f"epoch 3, the farm key file {keys.path} has epoch 1" in alarm_text(alarms)
    assert f"garlicfarm keys export --replace {keys.path}" in alarm_text(alarms)
    replace_farm_key(keys.path, keys.current)
    assert keys.path.stat().st_mode & 0o777 == 0o600
    keys.judge_file(keys.filed_now(), alarms)
    assert alarms.active() == ()


def test_unusable_key_file_raises_alarm_with_remedy(tmp_path: Path) -> None:
    filed = new_farm_key(3)
    keys = farm_keys(tmp_path, filed)
    alarms = Alarms(EventLog("node-1", lambda: 0))
    keys.judge_file(new_farm_key(3), alarms)
    assert "belongs to another farm" in alarm_text(alarms)
    assert f"`mv {keys.path} {keys.path}.old`, then `garlicfarm keys export {keys.path}`" in alarm_text(alarms)
    keys.judge_file(filed.following(filed.key_ring.install(NEW).use(NEW)), alarms)
    assert "restart this node" in alarm_text(alarms)
    keys.path.chmod(0o644)
    assert isinstance(keys.filed_now(), KeyFileError), "others can read it, so a restart would fail"
    keys.judge_file(keys.filed_now(), alarms)
    assert f"`chmod 600 {keys.path}`" in alarm_text(alarms)
    keys.path.unlink()
    keys.judge_file(keys.filed_now(), alarms)
    assert f"; `garlicfarm keys export {keys.path}`" in alarm_text(alarms)


def test_key_file_with_other_cluster_raises_alarm(tmp_path: Path) -> None:
    mine, other = bytes(16), bytes(15) + b"1"
    filed, cluster_ids = replace(new_farm_key(3), cluster_id=other), [None, mine]
    save_farm_key(tmp_path / "farm.key", filed)
    keys = FarmKeys(tmp_path / "farm.key", filed, cluster_id=lambda: cluster_ids[0])
    board = Alarms(EventLog("a", lambda: 0))
    keys.judge_file(keys.filed_now(), board)
    assert board.active() == ()
    cluster_ids.pop(0)
    keys.judge_file(keys.filed_now(), board)
    assert "names another cluster" in board.active()[0].text
    assert "garlicfarm keys export --replace" in board.active()[0].action
    assert keys.exported.cluster_id == mine
    replace_farm_key(keys.path, keys.exported)
    keys.judge_file(keys.filed_now(), board)
    assert board.active() == ()


def test_newer_or_foreign_key_file_is_not_replaced(tmp_path: Path) -> None:
    filed = new_farm_key(3)
    later = filed.following(filed.key_ring.install(NEW).use(NEW))
    path = tmp_path / "farm.key"
    save_farm_key(path, later)
    with pytest.raises(KeyFileError, match="has epoch 3, later than epoch 1"):
        replace_farm_key(path, filed)
    with pytest.raises(KeyFileError, match="is not overwritten: choose another name"):
        replace_farm_key(path, new_farm_key(3))
    assert load_farm_key(path) == later
    path.write_text("a shopping list")
    with pytest.raises(KeyFileError, match="farm key file"):
        replace_farm_key(path, later)
    assert path.read_text() == "a shopping list"
