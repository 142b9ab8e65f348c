"""The list of keys accepted by the ØMQ endpoint: names and scopes, changes at runtime, and refused lists."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.api.alarms import ZMQ_KEYS
from bridge.cli.main import cli
from bridge.core.log.records import Exclusion, Factors
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.client_scopes import CommitScope, needed_scope
from bridge.node.security.key_files import KeyFileError, load_curve_key
from bridge.node.zmq.listed_keys import ListedKeys, own_key, read_listed_keys
from bridge.wire.keys.curve_key import CurveKey, new_curve_key, to_z85
from bridge.wire.log.entries import encode
from tests.authored import signed
from tests.effort import each_case

READER, WRITER, RENEWED = new_curve_key("reader"), new_curve_key("writer"), new_curve_key("writer")
LINES = f"# the keys\n\nreader {to_z85(READER.public)}\nwriter\t{to_z85(WRITER.public)} submit weights\n"


def user_of(key: CurveKey) -> str:
    return key.public.hex()


def write_list(path: Path, text: str = LINES) -> Path:
    file = path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_line_contains_name_key_and_scopes(tmp_path: Path) -> None:
    file = write_list(tmp_path)
    keys = ListedKeys(file, read_listed_keys(file))
    assert keys.is_listed(READER.public)
    assert not keys.is_listed(bytes(32))
    assert [keys.may(user_of(WRITER), each) for each in CommitScope] == [True, True, False]
    assert not any(
        keys.may(user, each) for user in (user_of(READER), "00" * 32, "writer", None) for each in CommitScope
    )


@each_case(
    ("text", "message"),
    [
        ("reader", "line 1: expected NAME KEY"),
        ("reader abc", "line 1: expected NAME KEY"),
        (LINES + f"two/words {to_z85(bytes(32))}", "line 5: expected NAME KEY"),
        (f"reader {to_z85(READER.public)} write", "line 1: no scope 'write'; there are submit, weights, operator"),
        (LINES + f"reader {to_z85(bytes(32))}", "lists a name twice"),
        (LINES + f"other {to_z85(READER.public)}", "lists a key twice"),
    ],
    ids=["no key", "key too short", "name with a slash", "unknown scope", "name twice", "key twice"],
)
def test_invalid_list_refused_with_line_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(KeyFileError, match=message):
        read_listed_keys(write_list(tmp_path, text))


def test_list_accessible_to_others_refused(tmp_path: Path) -> None:
    file = write_list(tmp_path)
    file.chmod(0o622)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_listed_keys(file)


async def test_changed_list_in_force_unless_invalid(tmp_path: Path) -> None:
    file, alarms = write_list(tmp_path), Alarms(EventLog("node", lambda: 0))
    keys = ListedKeys(file, read_listed_keys(file))
    file.write_text("reader")
    await keys.reload(alarms)
    assert [alarm.kind for alarm in alarms.active()] == [ZMQ_KEYS.kind]
    assert keys.may(user_of(WRITER), CommitScope.SUBMIT)
    file.write_text(f"reader {to_z85(READER.public)} submit\n")
    await keys.reload(alarms)
    assert alarms.active() == ()
    assert keys.may(user_of(READER), CommitScope.SUBMIT)
    assert not keys.may(user_of(WRITER), CommitScope.SUBMIT)
    assert not keys.is_listed(WRITER.public)


async def test_replaced_key_may_not_write_over_open_connection(tmp_path: Path) -> None:
    # Given: a connection with a listed key
    file = write_list(tmp_path)
    keys = ListedKeys(file, read_listed_keys(file))
    connection = user_of(WRITER)
    assert keys.may(connection, CommitScope.SUBMIT)
    # When: the operator gives the name a new key
    file.write_text(f"writer {to_z85(RENEWED.public)} submit\n")
    await keys.reload(Alarms(EventLog("node", lambda: 0)))
    # Then: only the new key may write
    assert not keys.may(connection, CommitScope.SUBMIT)
    assert keys.may(user_of(RENEWED), CommitScope.SUBMIT)


def test_entry_needs_scope_of_its_kind() -> None:
    exclusion = encode(Exclusion("a" * 52, excluded=True))
    assert needed_scope(b'{"note":1}') is CommitScope.SUBMIT
    assert needed_scope(encode(Factors(1, "x", {}))) is CommitScope.WEIGHTS
    assert needed_scope(exclusion) is CommitScope.OPERATOR
    assert needed_scope(signed(exclusion)) is CommitScope.SUBMIT, "the farm judges it by its author"


def test_own_key_of_endpoint_created_once(tmp_path: Path) -> None:
    created = own_key(tmp_path)
    assert own_key(tmp_path) == created
    assert (tmp_path / "zmq.key").stat().st_mode & 0o777 == 0o600


def test_commands_create_key_and_show_only_public_half(tmp_path: Path) -> None:
    file = tmp_path / "reader.key"
    created = CliRunner().invoke(cli, ["keys", "new-curve", str(file), "--name", "reader"])
    key = load_curve_key(file)
    assert created.output == f"reader {to_z85(key.public)}\n"
    shown = CliRunner().invoke(cli, ["keys", "show-curve", str(file), "--json"])
    assert to_z85(key.public) in shown.output
    assert to_z85(key.secret) not in created.output + shown.output
    again = CliRunner().invoke(cli, ["keys", "new-curve", str(file), "--name", "reader"])
    assert again.exit_code == 1
