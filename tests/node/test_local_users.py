"""Other users of the same machine: their access to a node's files, and the refusal of files that they could change.

If a test needs a second user, it replaces the facts of the operating system, so that the tests work under any user.
If root runs them, a real second user (id 65534) is also tested.
"""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from click.testing import CliRunner

from bridge.cli.main import cli
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.routes import ControlEvent
from bridge.node.control.server import ControlServer
from bridge.node.local.farm_files import LocalFarmError, locked
from bridge.node.security.key_files import KeyFileError, load_farm_key, save_farm_key
from bridge.node.security.local_trust import (
    Facts,
    UntrustedPathError,
    check_control_socket,
    check_node_user,
    check_state_directory,
    facts_about_node,
    make_state_directory,
    peer_user_id,
)
from bridge.wire.keys.farm_key import new_farm_key
from consensus.storage.directory import Directory
from consensus.storage.disk import StorageError
from gossip.node.state_files import StateError, load_identity, read_limited, write_durably
from pipeline.source.endpoint import check_answering_user
from tests.effort import each_case

ME, OTHER_USER = 1000, 1001
DIRECTORY, LINK, SOCKET = stat.S_IFDIR, stat.S_IFLNK, stat.S_IFSOCK


class Machine:
    """A file system with owners, modes and links only."""

    def __init__(self) -> None:
        self._known = {Path("/"): (0, DIRECTORY | 0o755), Path("/tmp"): (0, DIRECTORY | 0o1777)}  # noqa: S108
        self._links: dict[Path, str] = {}
        self.private_group = False
        for path in ("/home", "/var"):
            self.add(path, 0)
        self.add("/home/me", ME)

    def add(self, path: str, owner: int, mode: int = 0o755, kind: int = DIRECTORY) -> "Machine":
        self._known[Path(path)] = (owner, kind | mode)
        return self

    def link(self, path: str, target: str, owner: int) -> "Machine":
        """Add a symbolic link."""
        self._links[Path(path)] = target
        return self.add(path, owner, 0o777, LINK)

    def facts(self, user_id: int = ME) -> Facts:
        """Return the facts that a process of that user reads."""
        return Facts(user_id, self._status, lambda path: self._links[path], lambda *_: self.private_group)

    def _status(self, path: Path) -> os.stat_result:
        if path not in self._known:
            raise FileNotFoundError(path)
        owner, mode = self._known[path]
        return cast("os.stat_result", SimpleNamespace(st_uid=owner, st_gid=owner, st_mode=mode))


@each_case(
    "machine",
    [
        Machine().add("/home/me/state", ME, 0o700),
        Machine(),
        Machine().add("/tmp/mine", ME, 0o700).link("/home/me/state", "/tmp/mine", ME),  # noqa: S108
        Machine().add("/home/me/real", ME, 0o700).link("/home/me/state", "real", 0),
        Machine().add("/home/me/state", 0, 0o755),
    ],
    ids=["own", "missing", "own link into a sticky directory", "relative link", "of root"],
)
def test_private_state_directory_is_used(machine: Machine) -> None:
    check_state_directory(Path("/home/me/state"), machine.facts())


@each_case(
    ("machine", "reason"),
    [
        (Machine().add("/home/me/state", ME, 0o777), "chmod go-w /home/me/state"),
        (Machine().add("/home/me/state", ME, 0o770), "chmod go-w /home/me/state"),
        (Machine().add("/home/me/state", ME, 0o1777), "Name another directory, which only its owner can write"),
        (Machine().add("/home/me", ME, 0o775).add("/home/me/state", ME, 0o700), "chmod go-w /home/me`"),
        (Machine().add("/home/me", ME, 0o777), "chmod go-w /home/me`"),
        (Machine().add("/home/me/state", OTHER_USER, 0o700), "sudo -u '#1001'"),
        (Machine().add("/home/me", OTHER_USER, 0o755).add("/home/me/state", ME, 0o700), "belongs to user"),
        (Machine().add("/tmp/x", OTHER_USER, 0o755).link("/home/me/state", "/tmp/x", ME), "of user id 1001 in /tmp"),  # noqa: S108
        (Machine().add("/home", 0, 0o1777).link("/home/me", "/var", OTHER_USER), "a file of user id 1001 in /home"),
        (Machine().link("/home/me/state", "state", ME), "more than 40 links"),
    ],
    ids=[
        "writable by others", "writable by group", "sticky bit on the directory itself", "parent writable by group",
        "future parent writable by all", "of other user", "below other user's", "link to other user's",
        "other user's link", "endless links",
    ],
)  # fmt: skip
def test_state_directory_writable_by_others_is_refused(machine: Machine, reason: str) -> None:
    with pytest.raises(UntrustedPathError) as refused:
        check_state_directory(Path("/home/me/state"), machine.facts())
    assert reason in str(refused.value)


def test_group_of_owner_alone_may_write() -> None:
    machine = Machine().add("/home/me", ME, 0o775).add("/home/me/state", ME, 0o770)
    machine.private_group = True
    check_state_directory(Path("/home/me/state"), machine.facts())


def test_root_does_not_use_state_of_other_user() -> None:
    """The owner of the directory could make root write to any place through a link."""
    with pytest.raises(UntrustedPathError, match="run it as"):
        check_state_directory(Path("/home/me/state"), Machine().add("/home/me/state", ME, 0o700).facts(0))


def test_state_directory_is_made_private(tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir(mode=0o755)
    for path in (tmp_path / "a" / "new", older):
        make_state_directory(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def _open_to_all(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    (path / "raft").mkdir(parents=True)
    path.chmod(0o777)
    return path


@each_case(
    "command",
    [
        "run --config {config}",
        "up --state-dir {state}",
        "status --node {state}",
        "backup --from {state} {out}",
        "restore {state} --state-dir {out}",
        "recover --from {state} --yes",
        "log verify {state}",
    ],
)
def test_commands_refuse_state_directory_writable_by_others(command: str, tmp_path: Path) -> None:
    """Each refusal of mode 0777 names the reason and the command that repairs it."""
    state, config = _open_to_all(tmp_path), tmp_path / "node.toml"
    save_farm_key(tmp_path / "farm.key", new_farm_key(1))
    config.write_text(f'farm_key = "farm.key"\nstate_dir = "{state}"\n[gossip]\nbind = "127.0.0.1:7668"\n')
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(state / "control.sock"))
        done = CliRunner().invoke(cli, command.format(state=state, config=config, out=tmp_path / "out").split())
    assert done.exit_code == 1
    assert f"chmod go-w {state}" in done.output


def test_up_lock_does_not_follow_link(tmp_path: Path) -> None:
    state, victim = tmp_path / "farm", tmp_path / "victim"
    victim.write_text("precious")
    state.mkdir(mode=0o700)
    (state / "up.lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"symbolic|loop"), locked(state):
        pass
    assert victim.read_text() == "precious"


def test_up_names_chmod_for_directory_writable_by_others(tmp_path: Path) -> None:
    with pytest.raises(LocalFarmError, match="chmod go-w"), locked(_open_to_all(tmp_path)):
        pass


def test_key_and_lock_files_are_not_opened_through_links(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    save_farm_key(tmp_path / "farm.key", new_farm_key(1))
    (tmp_path / "link.key").symlink_to(tmp_path / "farm.key")
    with pytest.raises(KeyFileError, match="is a link"):
        load_farm_key(tmp_path / "link.key")
    load_identity(directory)
    (directory / "identity.pem").rename(tmp_path / "identity.pem")
    (directory / "identity.pem").symlink_to(tmp_path / "identity.pem")
    with pytest.raises((StateError, OSError), match=r"symbolic|loop|cannot use"):
        load_identity(directory)
    (directory / "lock").symlink_to(tmp_path / "anything")
    with pytest.raises(StorageError, match="move it away"):
        Directory(directory)
    assert not (tmp_path / "anything").exists()


def test_temporary_file_does_not_follow_link(tmp_path: Path) -> None:
    """A link under the name of the temporary file leaves its target unchanged."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "generation.new").symlink_to(victim)
    write_durably(tmp_path / "generation", b"7")
    assert victim.read_bytes() == b"precious"
    assert read_limited(tmp_path / "generation") == b"7"


def test_secret_readable_by_others_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "identity.pem"
    secret.write_bytes(b"x")
    secret.chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        read_limited(secret, secret=True)


async def test_client_refuses_socket_of_other_user(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "control.sock"
    await nursery.start(ControlServer(path, {}).run)
    with pytest.raises(ControlError, match="neither this user nor root"):
        await ControlClient(path, user_of=lambda _: os.geteuid() + 1).view()


async def test_node_refuses_connection_of_other_user(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "control.sock"
    server = ControlServer(path, {}, user_of=lambda _: os.geteuid() + 1)
    await nursery.start(server.run)
    with pytest.raises(ControlError, match="without a reply"):
        await ControlClient(path).view()
    assert server.counters[ControlEvent.UNAUTHORIZED] > 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_client_refuses_socket_file_of_other_user() -> None:
    machine = Machine().add("/home/me/state", ME, 0o700).add("/home/me/state/control.sock", OTHER_USER, 0o600, SOCKET)
    with pytest.raises(UntrustedPathError, match="belongs to user"):
        check_control_socket(Path("/home/me/state/control.sock"), machine.facts())


def test_root_may_use_socket_of_packaged_service() -> None:
    service, directory = 107, Path("/var/garlicfarm")
    machine = Machine().add("/var/garlicfarm", service, 0o700)
    machine.add("/var/garlicfarm/control.sock", service, 0o600, SOCKET)
    socket_path, elsewhere = directory / "control.sock", Path("/home/me/state/control.sock")
    facts = facts_about_node(socket_path, directory, machine.facts(0))
    check_control_socket(socket_path, facts)
    check_node_user(socket_path, service, facts.user_id)
    with pytest.raises(UntrustedPathError, match="neither this user nor root"):
        check_node_user(socket_path, OTHER_USER, facts.user_id)
    assert facts_about_node(elsewhere, directory, machine.facts(0)).user_id == 0
    assert facts_about_node(socket_path, directory, machine.facts(ME)).user_id == ME
    assert facts_about_node(socket_path, directory, Machine().facts(0)).user_id == 0


def test_service_directory_made_by_other_user_is_refused() -> None:
    directory = Path("/home/me/garlicfarm")
    machine = Machine().add(str(directory), OTHER_USER, 0o700)
    facts = facts_about_node(directory / "control.sock", directory, machine.facts(0))
    with pytest.raises(UntrustedPathError, match="belongs to user"):
        check_control_socket(directory / "control.sock", facts)


def test_pipeline_checks_user_of_control_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        check_answering_user(ours, "control.sock")
        if peer_user_id(ours) not in {None, 0}:
            with pytest.raises(PermissionError, match="neither this user nor root"):
                check_answering_user(ours, "control.sock", os.geteuid() + 1)


def test_replying_process_must_belong_to_user_or_root() -> None:
    for trusted in (ME, 0, None):
        check_node_user(Path("control.sock"), trusted, ME)
    with pytest.raises(UntrustedPathError, match="1001"):
        check_node_user(Path("control.sock"), OTHER_USER, ME)


_PROBE = """
import os, socket, sys
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.settimeout(10)
    client.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: node\\r\\n\\r\\n")
    try:
        print(len(client.recv(100)))
    except ConnectionResetError:
        print(0)
"""


async def test_kernel_names_real_second_user() -> None:
    """A probe connects to an abstract socket, which all users may open, and the kernel reports the probe's user.

    As root, the probe changes its user to 65534; otherwise it keeps the user of the test.
    """
    found: list[int] = []
    with socket.socket(socket.AF_UNIX) as listening:
        address = f"\0garlicfarm-{os.getpid()}"
        listening.bind(address)
        listening.listen()
        child = subprocess.Popen(  # noqa: ASYNC220 -- this interpreter, a line of ours; it is waited for below
            [sys.executable, "-c", _PROBE.replace("sys.argv[1]", repr(address))], stdout=subprocess.PIPE
        )
        connected, _ = await trio.to_thread.run_sync(listening.accept)
        with connected:
            found.append(peer_user_id(connected) or 0)
        child.communicate(timeout=60)
    assert found == ([65534] if os.geteuid() == 0 else [os.geteuid()])
