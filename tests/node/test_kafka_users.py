"""The users file of the Kafka listener: names, credentials and scopes, and the errors of an invalid file."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.api.alarms import KAFKA_USERS
from bridge.cli.main import cli
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.kafka.listed_users import ListedUsers, read_listed_users
from bridge.node.raft.client_scopes import CommitScope
from bridge.node.security.key_files import KeyFileError
from bridge.wire.keys.scram_text import MAX_ITERATIONS, credential_in, new_credential, new_password
from consensus.protocols.kafka import Mechanism, scram_credential
from tests.effort import each_case

SHA_512 = Mechanism.SCRAM_SHA_512
WORD = new_credential(SHA_512, "secret")
B64 = b64encode(bytes(64)).decode()


def users_file(directory: Path, text: str) -> Path:
    path = directory / "users"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_credential_round_trips(mechanism: Mechanism) -> None:
    password = new_password()
    read = credential_in(new_credential(mechanism, password))
    assert read is not None
    assert read[0] is mechanism
    assert read[1] == scram_credential(mechanism, password, read[1].salt, read[1].iterations)


@each_case(
    "word",
    [
        "",
        "SCRAM-SHA-1$4096:AAAA$AAAA:AAAA",
        WORD.replace("SHA-512", "SHA-256"),
        WORD.replace("$4096:", "$1024:"),
        WORD.replace("$4096:", f"${MAX_ITERATIONS + 1}:"),
        WORD[:-2],
        f"SCRAM-SHA-512$4096:AAA${B64}:{B64}",
        f"SCRAM-SHA-512$4096:AAAA${B64}:",
    ],
)
def test_other_text_is_not_a_credential(word: str) -> None:
    assert credential_in(word) is None


def test_listed_users_have_mechanism_and_scopes(tmp_path: Path) -> None:
    path = users_file(tmp_path, f"# readers\nreader {WORD}\n\nwriter {WORD} submit weights\n")
    users = ListedUsers(path, read_listed_users(path, by_certificate=False), by_certificate=False)
    assert users.scram(SHA_512, "reader") is not None
    assert users.scram(Mechanism.SCRAM_SHA_256, "reader") is None
    assert users.scram(SHA_512, "stranger") is None
    assert users.scopes_of("User:writer") == {CommitScope.SUBMIT, CommitScope.WEIGHTS}
    assert users.scopes_of("User:reader") == users.scopes_of("User:stranger") == users.scopes_of(None) == frozenset()
    assert users.scopes_of("writer") == frozenset()


def test_nodes_with_same_users_send_equal_salt_for_unknown_name(tmp_path: Path) -> None:
    lines = [f"reader {WORD}\n", f"writer {WORD} submit\n"]
    found = []
    for number, order in enumerate((lines, lines[::-1])):
        (node := tmp_path / str(number)).mkdir()
        path = users_file(node, "".join(order))
        found.append(ListedUsers(path, read_listed_users(path, by_certificate=False), by_certificate=False))
    one, other = (each.unknown.credential(SHA_512, "stranger") for each in found)
    assert one == other
    assert one.salt != found[0].unknown.credential(SHA_512, "another stranger").salt


def test_certificate_lines_map_subjects_to_scopes(tmp_path: Path) -> None:
    path = users_file(tmp_path, '"CN=the collector,O=Example" certificate submit\nCN=reader certificate\n')
    users = ListedUsers(path, read_listed_users(path, by_certificate=True), by_certificate=True)
    assert users.scopes_of("User:CN=the collector,O=Example") == {CommitScope.SUBMIT}
    assert users.scopes_of("User:CN=reader") == frozenset()
    assert users.scram(SHA_512, "CN=reader") is None


@each_case(
    ("text", "by_certificate", "message"),
    [
        (f"reader {WORD} admin", False, "line 1: no scope 'admin'; there are submit, weights, operator"),
        ("reader", False, "line 1: expected NAME CREDENTIAL"),
        (f"CN=x {WORD}", False, "line 1: expected NAME CREDENTIAL"),
        ("reader certificate submit", False, "line 1: expected NAME CREDENTIAL"),
        ("\n'CN=x certificate", True, "line 2: No closing quotation"),
        (f"reader {WORD}", True, 'line 1: expected "SUBJECT" certificate'),
        ("'' certificate", True, 'line 1: expected "SUBJECT" certificate'),
        (f"reader {WORD}\nreader {WORD}", False, "lists a user twice"),
        ("".join(f"u{n} {WORD}\n" for n in range(1_025)), False, "lists 1025 users, at most 1024"),
    ],
)
def test_invalid_line_is_reported_with_its_number(
    tmp_path: Path, text: str, message: str, *, by_certificate: bool
) -> None:
    with pytest.raises(KeyFileError) as caught:
        read_listed_users(users_file(tmp_path, text), by_certificate=by_certificate)
    assert message in str(caught.value)


def test_kafka_user_command_prints_line_without_password(tmp_path: Path) -> None:
    file = tmp_path / "writer.password"
    command = ["keys", "kafka-user", str(file), "--name", "writer", "--scope", "submit", "--scope", "weights"]
    made = CliRunner().invoke(cli, command)
    password = file.read_text().strip()
    assert (made.exit_code, file.stat().st_mode & 0o777, len(password)) == (0, 0o600, 32)
    assert password not in made.output
    path = users_file(tmp_path, made.output)
    [user] = read_listed_users(path, by_certificate=False)
    assert user.name == "writer"
    assert user.scopes == {CommitScope.SUBMIT, CommitScope.WEIGHTS}
    assert user.credential is not None
    mechanism, kept = user.credential
    assert kept == scram_credential(mechanism, password, kept.salt, kept.iterations)
    # An existing password file is used, and its password is not printed
    again = CliRunner().invoke(cli, [*command, "--mechanism", "SCRAM-SHA-256", "--json"])
    assert json.loads(again.output)["line"].startswith("writer SCRAM-SHA-256$4096:")
    assert file.read_text().strip() == password
    refused = CliRunner().invoke(cli, ["keys", "kafka-user", str(file), "--name", "no name"])
    assert refused.exit_code == 1
    assert "1 to 32 letters" in refused.output


def test_list_readable_by_other_users_is_refused(tmp_path: Path) -> None:
    path = users_file(tmp_path, f"reader {WORD}")
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="can be read by others"):
        read_listed_users(path, by_certificate=False)


async def test_reload_keeps_old_list_on_error(tmp_path: Path) -> None:
    alarms = Alarms(EventLog("node", lambda: 0))
    path = users_file(tmp_path, f"reader {WORD} submit\n")
    users = ListedUsers(path, read_listed_users(path, by_certificate=False), by_certificate=False)
    path.write_text("nonsense")
    await users.reload(alarms)
    assert users.scopes_of("User:reader") == {CommitScope.SUBMIT}
    assert [alarm.kind for alarm in alarms.active()] == [KAFKA_USERS.kind]
    path.write_text(f"other {WORD}\n")
    await users.reload(alarms)
    assert users.scram(SHA_512, "reader") is None
    assert alarms.active() == ()
