"""Users: the farm key defines them for the whole cluster, and files define them for one server."""

import errno
import os
from pathlib import Path

import pytest

from bridge.api.alarms import USERS
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.users import Users, read_files, read_password
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import KeyFileError, load_farm_key, save_farm_key
from bridge.wire.keys.farm_key import new_farm_key
from consensus.protocols.garlic_farm.wire.digest import Credentials


@pytest.fixture
def farm_keys(tmp_path: Path) -> FarmKeys:
    save_farm_key(tmp_path / "farm.key", new_farm_key(3))
    return FarmKeys(tmp_path / "farm.key", load_farm_key(tmp_path / "farm.key"))


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_users_without_files_come_from_farm_key(farm_keys: FarmKeys) -> None:
    users = Users(farm_keys, read_files())
    (own,) = users.credentials()
    assert users.password_of(own.user) == own.password
    assert users.password_of("unknown") is None
    assert users.login("10.0.0.1:7669") is None


def test_users_file_replaces_farm_key_users(tmp_path: Path, farm_keys: FarmKeys) -> None:
    users_file = private(tmp_path / "users", "# nodes of the north\nnorth:one:two\n\nclient:three\n")
    logins_file = private(tmp_path / "logins", "10.0.0.1:7669 north:secret\nname.b32.i2p:7669  south:words\n")
    users = Users(farm_keys, read_files(users_file=users_file, logins_file=logins_file))
    assert (users.password_of("north"), users.password_of("client")) == ("one:two", "three")
    assert users.password_of(users.credentials()[0].user) is None
    assert users.login("10.0.0.1:7669") == Credentials("north", "secret")
    assert users.login("name.b32.i2p:7669") == Credentials("south", "words")
    assert users.login("10.0.0.2:7669") is None


def test_login_address_outside_ascii_is_refused_with_its_line(tmp_path: Path) -> None:
    logins_file = private(tmp_path / "logins", "# comments may be (ä)\nname\u0435:7669 north:secret\n")
    with pytest.raises(KeyFileError, match=r"line 2: 'name\u0435:7669' has characters outside ASCII"):
        read_files(logins_file=logins_file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("north", "line 1: expected user:password"),
        ("# x\n:secret", "line 2"),
        ("a:b\nc:\n", "line 2"),
        ("ä:b", "ASCII"),
    ],
)
def test_invalid_line_is_reported_with_its_number(tmp_path: Path, farm_keys: FarmKeys, text: str, message: str) -> None:
    with pytest.raises(KeyFileError, match=message):
        Users(farm_keys, read_files(users_file=private(tmp_path / "users", text)))


def test_password_files_must_exist_and_be_private(tmp_path: Path, farm_keys: FarmKeys) -> None:
    open_to_all = private(tmp_path / "users", "a:b")
    open_to_all.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Users(farm_keys, read_files(users_file=open_to_all))
    with pytest.raises(KeyFileError, match="does not exist"):
        read_password(tmp_path / "nothing")
    with pytest.raises(KeyFileError, match="one line"):
        read_password(private(tmp_path / "two", "one\ntwo\n"))
    assert read_password(private(tmp_path / "one", "one\n")) == "one"


async def test_unchanged_users_files_are_opened_once(
    tmp_path: Path, farm_keys: FarmKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms, opened = Alarms(EventLog("node", lambda: 0)), list[object]()
    users_file, logins_file = private(tmp_path / "users", "north:one\n"), private(tmp_path / "logins", "a:1 b:c\n")
    later_ns = logins_file.stat().st_ctime_ns + 3 * 10**9
    monkeypatch.setattr("bridge.node.security.key_files.time_ns", lambda: later_ns)
    users = Users(farm_keys, read_files(users_file, logins_file))

    def recorded(path: Path, *arguments: int) -> int:
        opened.append(path)
        return os_open(path, *arguments)

    os_open = os.open
    monkeypatch.setattr(os, "open", recorded)
    for _ in range(3):
        await users.reload(alarms)
    assert opened == [users_file, logins_file]
    private(logins_file, "a:1 b:d\n")
    await users.reload(alarms)
    assert users.login("a:1") == Credentials("b", "d")


async def test_failed_reading_is_retried_without_another_change(
    tmp_path: Path, farm_keys: FarmKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms = Alarms(EventLog("node", lambda: 0))
    users = Users(farm_keys, read_files(users_file=private(tmp_path / "users", "north:one\n")))
    await users.reload(alarms)
    private(tmp_path / "users", "south:two\n")
    failures = [OSError(errno.EIO, "Input/output error")]

    def failing(path: Path, *arguments: int) -> int:
        if failures:
            raise failures.pop()
        return os_open(path, *arguments)

    os_open = os.open
    monkeypatch.setattr(os, "open", failing)
    await users.reload(alarms)
    assert [each.kind for each in alarms.active()] == [USERS.kind]
    await users.reload(alarms)
    assert alarms.active() == ()
    assert users.password_of("south") == "two"


async def test_invalid_users_file_keeps_previous_users(tmp_path: Path, farm_keys: FarmKeys) -> None:
    alarms = Alarms(EventLog("node", lambda: 0))
    users_file = private(tmp_path / "users", "north:one\nsouth:two\n")
    users = Users(farm_keys, read_files(users_file=users_file))
    private(users_file, "south:two\n")
    await users.reload(alarms)
    assert (users.password_of("north"), users.password_of("south")) == (None, "two")
    private(users_file, "rubbish")
    await users.reload(alarms)
    assert users.password_of("south") == "two"
    assert [each.kind for each in alarms.active()] == [USERS.kind]
    private(users_file, "north:one\n")
    await users.reload(alarms)
    assert users.password_of("north") == "one"
    assert alarms.active() == ()
