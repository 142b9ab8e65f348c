"""The list of users that the Kafka listener answers: names, credentials and scopes, and what is refused."""

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

SHA_512 = Mechanism.SCRAM_SHA_512
WORD = new_credential(SHA_512, "secret")
B64 = b64encode(bytes(64)).decode()


def users_file(directory: Path, text: str) -> Path:
    path = directory / "users"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_credential_is_read_as_it_was_made(mechanism: Mechanism) -> None:
    password = new_password()
    read = credential_in(new_credential(mechanism, password))
    assert read is not None
    assert read[0] is mechanism
    assert read[1] == scram_credential(mechanism, password, read[1].salt, read[1].iterations)


@pytest.mark.parametrize(
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
def test_another_word_is_no_credential(word: str) -> None:
    assert credential_in(word) is None


def test_listed_users_log_in_by_their_mechanism_and_have_their_scopes(tmp_path: Path) -> None:
    path = users_file(tmp_path, f"# readers\nreader {WORD}\n\nwriter {WORD} submit weights\n")
    users = ListedUsers(path, read_listed_users(path, by_certificate=False), by_certificate=False)
    assert users.scram(SHA_512, "reader") is not None
    assert users.scram(Mechanism.SCRAM_SHA_256, "reader") is None
    assert users.scram(SHA_512, "stranger") is None
    assert users.scopes_of("User:writer") == {CommitScope.SUBMIT, CommitScope.WEIGHTS}
    assert users.scopes_of("User:reader") == users.scopes_of("User:stranger") == users.scopes_of(None) == frozenset()
    assert users.scopes_of("writer") == frozenset()


def test_two_nodes_with_the_same_users_answer_alike_to_an_unknown_name(tmp_path: Path) -> None:
    lines = [f"reader {WORD}\n", f"writer {WORD} submit\n"]
    found = []
    for number, order in enumerate((lines, lines[::-1])):
        (node := tmp_path / str(number)).mkdir()
        path = users_file(node, "".join(order))
        found.append(ListedUsers(path, read_listed_users(path, by_certificate=False), by_certificate=False))
    one, other = (each.unknown.credential(SHA_512, "stranger") for each in found)
    assert one == other
    assert one.salt != found[0].unknown.credential(SHA_512, "another stranger").salt


def test_with_certificates_lines_give_scopes_to_subjects(tmp_path: Path) -> None:
    path = users_file(tmp_path, '"CN=the collector,O=Example" certificate submit\nCN=reader certificate\n')
    users = ListedUsers(path, read_listed_users(path, by_certificate=True), by_certificate=True)
    assert users.scopes_of("User:CN=the collector,O=Example") == {CommitScope.SUBMIT}
    assert users.scopes_of("User:CN=reader") == frozenset()
    assert users.scram(SHA_512, "CN=reader") is None


@pytest.mark.parametrize(
    ("text", "by_certificate", "told"),
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
def test_a_list_that_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, text: str, told: str, *, by_certificate: bool
) -> None:
    with pytest.raises(KeyFileError) as caught:
        read_listed_users(users_file(tmp_path, text), by_certificate=by_certificate)
    assert told in str(caught.value)


def test_a_command_makes_the_line_of_a_user_and_a_password_that_is_not_in_it(tmp_path: Path) -> None:
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
    # The password of a file that is there is taken, and shown nowhere
    again = CliRunner().invoke(cli, [*command, "--mechanism", "SCRAM-SHA-256", "--json"])
    assert json.loads(again.output)["line"].startswith("writer SCRAM-SHA-256$4096:")
    assert file.read_text().strip() == password
    refused = CliRunner().invoke(cli, ["keys", "kafka-user", str(file), "--name", "no name"])
    assert refused.exit_code == 1
    assert "1 to 32 of letters" in refused.output


def test_no_other_user_of_the_machine_may_read_the_list(tmp_path: Path) -> None:
    path = users_file(tmp_path, f"reader {WORD}")
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="can be read by others"):
        read_listed_users(path, by_certificate=False)


async def test_a_changed_list_is_taken_over_and_a_broken_one_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    alarms = Alarms(EventLog("node", lambda: 0))
    path = users_file(tmp_path, f"reader {WORD} submit\n")
    users = ListedUsers(path, read_listed_users(path, by_certificate=False), by_certificate=False)
    path.write_text("nonsense")
    await users.look(alarms)
    assert users.scopes_of("User:reader") == {CommitScope.SUBMIT}
    assert [alarm.kind for alarm in alarms.standing()] == [KAFKA_USERS.kind]
    path.write_text(f"other {WORD}\n")
    await users.look(alarms)
    assert users.scram(SHA_512, "reader") is None
    assert alarms.standing() == ()
