"""A secret that root created: the error names the command that makes the file readable.

A service runs the node as a separate user, and its operator is root. The tests do the same in a child process.
"""

import errno
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bridge.api.alarms import CORRECT_FILE, FARM_KEY_FILE, SIGNING_KEY
from bridge.core.log.records import PublishConfig
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.events.event_log import EventLog
from bridge.node.kafka.listed_users import read_listed_users
from bridge.node.raft.users import read_files
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import (
    KeyFileError,
    load_farm_key,
    load_signing_key,
    read_password,
    save_farm_key,
    save_signing_key,
    write_private_file,
)
from bridge.node.security.signing_keys import PublishingKey, judge_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from consensus.net import x509_files  # noqa: F401 - the second user may not read the modules of this one
from consensus.net.tls import CertificateError, operator_certificate, server_context
from consensus.protocols.kraft.operators.quorum_directory import QuorumDirectoryError, format_directory, read_directory
from consensus.protocols.kraft.operators.settings import VoterSettings, parse_properties, voter_settings
from consensus.storage import StorageError, StorageOptions, access_advice
from consensus.storage.directory import check_place
from consensus.storage.directory import open_directory as open_storage
from tests.effort import each_case

OTHER_USER = 65534
USER_NAME = pwd.getpwuid(OTHER_USER).pw_name
NOW_S = 1_767_225_600
FILES = Path(__file__).parents[2] / "deploy" / "debian"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")

READERS: dict[str, Callable[[Path], object]] = {
    "farm": load_farm_key,
    "signing": load_signing_key,
    "password": read_password,
    "users": read_files,
    "kafka": lambda file: read_listed_users(file, by_certificate=False),
    "certificate": operator_certificate,
    "chain": server_context,
    "storage": lambda path: open_storage(path, b"node-one", None, StorageOptions())[0].close(),
    "place": check_place,
    "kraft": lambda path: read_directory(kraft_settings(path)).read_state(),
}


def kraft_settings(path: Path) -> VoterSettings:
    return voter_settings(parse_properties(f"node.id=1\nlog.dirs={path}\ncontroller.quorum.voters=1@localhost:9093"))


def read_as_other_user(kind: str, path: Path) -> str:
    """Return the error of this kind of reader, run as a second user, or an empty text."""
    output, written = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            try:
                READERS[kind](path)
            except (KeyFileError, CertificateError, StorageError, QuorumDirectoryError) as error:
                os.write(written, str(error).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(written)
    with os.fdopen(output) as file:
        text = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return text


def commands_in(text: str) -> list[list[str]]:
    return [shlex.split(each) for each in re.findall(r"`(ch[^`]+)`", text)]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Yield a directory that another user may enter, like /etc/garlicfarm; pytest's own directories are private."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@needs_root
@pytest.mark.parametrize("kind", ["farm", "signing", "password", "users", "kafka", "certificate", "chain"])
def test_advice_for_file_of_root_makes_it_readable(open_directory: Path, kind: str) -> None:
    """The secret has root's mode 0600; after the command of the error, the user can read it."""
    path = open_directory / "a secret"
    path.write_text("text\n")
    path.chmod(0o600)
    error = read_as_other_user(kind, path)
    [command] = commands_in(error)
    assert command[0] == "chown"
    subprocess.run(command, check=True, timeout=60)
    assert "Permission denied" not in read_as_other_user(kind, path)


@needs_root
@pytest.mark.parametrize("kind", ["storage", "place", "kraft"])
def test_advice_for_state_of_root_makes_it_readable(open_directory: Path, kind: str) -> None:
    """Given files of root in the user's directory, then each error has the command for one file."""
    path = open_directory / "state"
    if kind == "kraft":
        format_directory(kraft_settings(path), "AAAAAAAAAAAAAAAAAAAAAQ")
    else:
        open_storage(path, b"node-one", None, StorageOptions())[0].close()
    files = [each for each in path.rglob("*") if each.is_file() and each.name != "lock"]
    for each in (path, *path.rglob("*")):
        os.chown(each, *((0, 0) if each in files else (OTHER_USER, OTHER_USER)))
    for each in files:
        each.chmod(0o600)
    while error := read_as_other_user(kind, path):
        [command] = commands_in(error)
        assert command[:2] == ["chown", USER_NAME]
        assert Path(command[2]) in files
        subprocess.run(command, check=True, timeout=10)
        files.remove(Path(command[2]))
    assert files == []


@needs_root
def test_closed_directory_is_named(open_directory: Path) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    (closed / "secret").write_text("x")
    assert "may not enter" in read_as_other_user("password", closed / "secret")


def test_missing_directory_of_new_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=f"the directory {tmp_path}/none does not exist: name another place"):
        write_private_file(tmp_path / "none" / "farm.key", "")


def test_refused_new_file_names_its_directory(tmp_path: Path) -> None:
    """A user without the right to write gets this error, and root gets it for an immutable directory."""
    for place in (tmp_path / "farm.key", tmp_path / "missing" / "farm.key"):
        advice = access_advice(place, PermissionError(errno.EPERM, "Operation not permitted"))
        assert f"may not make files in {tmp_path}: name another place" in advice


def test_other_failure_omits_advice_about_owner(tmp_path: Path) -> None:
    assert access_advice(tmp_path, FileNotFoundError(2, "No such file")) == ""


@pytest.fixture
def make_unreadable(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that makes a file unreadable for this process, like a file of another user."""

    def refuse(path: Path) -> None:
        real = os.open

        def opened(name: str, *rest: int, **more: int) -> int:
            if str(name) == str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return real(name, *rest, **more)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)

    return refuse


def test_unreadable_renewed_key_is_not_reported_as_missing(
    tmp_path: Path, make_unreadable: Callable[[Path], None]
) -> None:
    path, master = tmp_path / "signing.key", new_master_key()
    save_signing_key(path, master.sign_transient(NOW_S))
    key = PublishingKey.load(path, PublishConfig.AUTO)
    path.rename(tmp_path / "old.key")
    save_signing_key(path, master.sign_transient(NOW_S))
    make_unreadable(path)
    alarms = Alarms(EventLog("node-1", lambda: 0))
    key.renew(NOW_S)
    judge_key(key, NOW_S, SharedAlarm(alarms, SIGNING_KEY))
    [alarm] = alarms.active()
    assert f"`chown {USER_NAME} {path}`" in alarm.text
    assert alarm.action == CORRECT_FILE


def test_unreadable_farm_key_is_not_reported_as_foreign(
    tmp_path: Path, make_unreadable: Callable[[Path], None]
) -> None:
    path, key = tmp_path / "farm.key", new_farm_key(3)
    save_farm_key(path, key)
    keys = FarmKeys(path, key)
    make_unreadable(path)
    alarms = Alarms(EventLog("node-1", lambda: 0))
    keys.judge_file(keys.filed_now(), alarms)
    [alarm] = alarms.active()
    assert alarm.kind == FARM_KEY_FILE.kind
    assert f"`chown {USER_NAME} {path}`" in alarm.text
    assert "another farm" not in alarm.text


# -- the service of the package ----------------------------------------------------------------------------------------


def unit_commands(key: str) -> list[str]:
    lines = (FILES / "garlicfarm.service").read_text().splitlines()
    return [line.removeprefix(f"{key}=") for line in lines if line.startswith(f"{key}=")]


@needs_root
@pytest.mark.parametrize("key", ["ExecStartPre", "ExecReload"])
def test_service_changes_owner_of_private_files(open_directory: Path, key: str) -> None:
    """Start and reload give root's secrets, with any name, to the service's user; other files keep their owner."""
    [command] = unit_commands(key)
    assert command.startswith("+"), "it runs as root"
    secrets = ("farm.key", "signing.key", "i2pcontrol.password", "users", "control.pem", "kafka.users", "sub/x.pem")
    (open_directory / "sub").mkdir()
    for name in secrets:
        (open_directory / name).write_text("x")
        (open_directory / name).chmod(0o600)
    (open_directory / "node.toml").write_text("x")
    (open_directory / "node.toml").chmod(0o644)
    here = command[1:].replace("/etc/garlicfarm", str(open_directory)).replace("garlicfarm:", str(OTHER_USER))
    here = here.replace("-user garlicfarm", f"-user {OTHER_USER}")
    subprocess.run(shlex.split(here), check=True, timeout=60)
    assert {name for name in secrets if (open_directory / name).stat().st_uid == OTHER_USER} == set(secrets)
    assert (open_directory / "node.toml").stat().st_uid == 0


_SYSTEMCTL = """#!/bin/sh
echo "systemctl $*" >> "$CALLS"
case "$*" in *is-active*) echo "$STATE"; [ "$STATE" = active ];; esac
"""


def run_script(tmp_path: Path, name: str, *arguments: str, state: str, marked: bool) -> tuple[list[str], bool]:
    """Run a maintainer's script with stubs of its programs; return the calls, and True if the mark then exists."""
    stubs, mark, systemd, calls = (tmp_path / each for each in ("bin", "mark", "systemd", "calls"))
    stubs.mkdir(exist_ok=True)
    systemd.mkdir(exist_ok=True)
    calls.write_text("")
    for stub in ("systemctl", "deb-systemd-invoke", "deb-systemd-helper", "getent", "install", "adduser"):
        text = _SYSTEMCTL if stub == "systemctl" else f'#!/bin/sh\necho "{stub} $*" >> "$CALLS"\n'
        (stubs / stub).write_text(text)
        (stubs / stub).chmod(0o755)
    mark.unlink(missing_ok=True)
    if marked:
        mark.touch()
    script = (FILES / name).read_text().replace("/run/garlicfarm.was-stopped", str(mark))
    script = script.replace("/run/systemd/system", str(systemd)).replace("/usr/lib/garlicfarm", str(tmp_path / "lib"))
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "CALLS": str(calls), "STATE": state}
    subprocess.run(
        ["/bin/sh", "-c", script, name, *arguments], check=True, timeout=60, env=environment, capture_output=True
    )
    return calls.read_text().splitlines(), mark.exists()


@each_case(
    ("arguments", "marked", "starts"),
    [
        (("configure", ""), False, True),
        (("configure", ""), True, True),
        (("configure", "0.1.0-1"), True, False),
        (("configure", "0.1.0-1"), False, True),
        (("abort-upgrade", "0.2.0-1"), True, False),
        (("abort-upgrade", "0.2.0-1"), False, True),
    ],
    ids=["first", "again", "stopped", "running", "abort-stopped", "abort-running"],
)
def test_upgrade_starts_node_unless_it_was_stopped(
    tmp_path: Path, *, arguments: tuple[str, ...], marked: bool, starts: bool
) -> None:
    calls, mark = run_script(tmp_path, "postinst", *arguments, state="inactive", marked=marked)
    assert ("deb-systemd-invoke start garlicfarm.service" in calls) is starts
    assert not mark


@pytest.mark.parametrize("state", ["active", "activating", "reloading"])
@pytest.mark.parametrize("script", ["old", "new"])
def test_first_upgrade_starts_node_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, state: str
) -> None:
    """The old prerm script does not leave a mark of a stopped node, so the new postinst script starts the node."""
    if script == "old":
        old = tmp_path / "files"
        old.mkdir()
        (old / "prerm").write_text("#!/bin/sh\nset -e\ndeb-systemd-invoke stop garlicfarm.service >/dev/null || true\n")
        (old / "postinst").write_text((FILES / "postinst").read_text())
        monkeypatch.setattr(f"{__name__}.FILES", old)
    calls, mark = run_script(tmp_path, "prerm", "upgrade", "0.2.0-1", state=state, marked=False)
    assert "deb-systemd-invoke stop garlicfarm.service" in calls
    calls, mark = run_script(tmp_path, "postinst", "configure", "0.1.0-1", state="inactive", marked=mark)
    assert "deb-systemd-invoke start garlicfarm.service" in calls


@each_case(
    ("state", "marks"),
    [("active", False), ("activating", False), ("inactive", True), ("deactivating", True), ("failed", True)],
)
@each_case("before", [False, True])
def test_upgrade_marks_stopped_node(tmp_path: Path, *, state: str, marks: bool, before: bool) -> None:
    calls, mark = run_script(tmp_path, "prerm", "upgrade", "0.2.0-1", state=state, marked=before)
    assert mark is marks
    assert "deb-systemd-invoke stop garlicfarm.service" in calls
