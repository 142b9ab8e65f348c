"""`router detect` finds the routers of a machine, and changes a node's file after one question."""

import errno
import json
import os
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click import Context
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.cli.router.detect import router
from bridge.node.detecting.found import FoundRouter, ServiceState
from bridge.node.detecting.machine import MachineFiles
from bridge.node.detecting.node_file import USER_FILE, default_node_file, read_node_file
from bridge.node.detecting.proposal import detect_routers
from bridge.node.router.link import Software
from bridge.node.security.key_files import save_signing_key
from bridge.wire.i2p.destination_keys import new_master_key, parse_signing_key, signing_key_text
from bridge.wire.i2p.structures import DESTINATION_HEAD_BYTES
from bridge.wire.routers.text_file import FILE_LIMIT_BYTES
from tests.node import fake_i2cp_router
from tests.node.fake_i2cp_router import NOW_S, FakeRouter
from tests.node.fake_i2pcontrol import FakeControl
from tests.node.router_files import HOME, I2PD_COMMAND, I2PD_CONF, JAVA_COMMAND, USER_ID, RouterFiles
from tests.node.test_router_checks import behind_ports

I2CP_ON = "\n[i2cp]\nenabled = true\n"
WEB, SSH = ("web", "port = 8080"), ("ssh", "port = 22")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RouterFiles:
    made = RouterFiles(tmp_path / "machine")
    (tmp_path / "machine").mkdir()
    monkeypatch.setattr("bridge.cli.router.detect.MachineFiles", made.machine)
    return made


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the path of a node's configuration, with a comment."""
    path = tmp_path / "node" / "node.toml"
    path.parent.mkdir()
    path.write_text('# my node\nname = "site-a"\n\n[log]\nlevel = "info"   # enough\n')
    return path


def detect(node: Path, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, ["router", "detect", "--config", str(node), *arguments], input=answer)


def found_in(files: RouterFiles) -> FoundRouter:
    (found,) = detect_routers(files.machine()).routers
    return found


def table_of(node: Path) -> dict[str, Any]:
    return tomllib.loads(node.read_text())


def states(router: FoundRouter) -> tuple[str, ...]:
    return tuple(each.state.value for each in router.services)


def test_debian_i2pd_is_found_without_process(files: RouterFiles) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    web = files.key("/var/lib/i2pd/web.dat")
    found = found_in(files)
    assert (found.software, found.process, str(found.directory)) == (Software.I2PD, None, "/var/lib/i2pd")
    assert states(found) == ("off", "off", "not listening")
    (tunnel,) = found.tunnels
    assert (tunnel.destination, tunnel.tunnel.port, tunnel.is_usable) == (web, 8080, True)


def test_running_i2pd_shows_services_and_restart(files: RouterFiles) -> None:
    files.debian_i2pd(I2PD_CONF + I2CP_ON)
    files.run(71, I2PD_COMMAND, "i2pd.service")
    user = files.path("/proc/71").stat().st_uid
    files.ports = [(7654, user), (7656, user + 1)]
    found = found_in(files)
    assert states(found) == ("on", "off", "not listening")
    assert found.restart == "run `sudo systemctl restart i2pd.service`"
    assert "restart i2pd.service" in found.sam.action


def test_switched_off_service_names_its_line(files: RouterFiles) -> None:
    files.debian_i2pd("[i2cp]\nport = 7000\nenabled = false\n")
    found = found_in(files)
    assert found.i2cp.link.port == 7000
    assert found.i2cp.action == "run `sudo sed -i '3s/=.*/= true/' /etc/i2pd/i2pd.conf`"
    assert found.i2pcontrol.lines == ("[i2pcontrol]", "enabled = true")
    command = found.i2cp.action.removeprefix("run `sudo ").removesuffix("`")
    subprocess.run(["/bin/sh", "-c", command.replace("/etc/", f"{files.path('/etc')}/")], check=True, timeout=60)
    assert found_in(files).i2cp.state is ServiceState.NOT_LISTENING


def test_i2pd_of_user_is_found_by_its_command_line(files: RouterFiles) -> None:
    files.write("/srv/r/my.conf", "tunconf = t.conf\n[i2cp]\nenabled = false\n")
    files.write("/srv/r/t.conf", "[a]\ntype = server\nhost = ::1\nport = 9\nkeys = /abs/a.dat\n")
    destination = files.key("/srv/r/abs/a.dat")
    files.run(9, "/opt/i2pd --datadir=/srv/r --conf /srv/r/my.conf --i2cp.enabled=true --tunconf=/srv/r/t.conf")
    found = found_in(files)
    assert (str(found.directory), found.tunnels[0].destination) == ("/srv/r", destination)
    assert found.i2cp.state is ServiceState.NOT_LISTENING


def test_service_off_by_command_line_is_set_to_true_there(files: RouterFiles) -> None:
    """Without the option, I2CP and I2PControl are off by default, and SAM is off by its line in `i2pd.conf`."""
    files.debian_i2pd("[sam]\nenabled = false\n")
    names = ("i2cp", "i2pcontrol", "sam")
    files.run(70, " ".join((I2PD_COMMAND, *(f"--{name}.enabled=false" for name in names))))
    found = found_in(files)
    assert [each.action for each in found.services] == [
        f"set --{name}.enabled=true on the command line of i2pd" for name in names
    ]
    files.run(70, " ".join((I2PD_COMMAND, *(f"--{name}.enabled=true" for name in names))))
    assert states(found_in(files)) == ("not listening",) * 3


@pytest.mark.parametrize("software", Software)
def test_router_below_home_variable_is_found(files: RouterFiles, software: Software) -> None:
    """$HOME differs from the home of the account, for example in a container."""
    if software is Software.I2PD:
        files.write("/data/home/.i2pd/i2pd.conf", I2PD_CONF)
    else:
        files.java("/data/home/.i2p")
    assert not detect_routers(files.machine()).routers
    files.home_variable = Path("/data/home")
    assert files.machine().homes == (HOME, Path("/data/home"))
    assert found_in(files).software is software


@pytest.mark.parametrize(("value", "home"), [("/data/home", Path("/data/home")), ("data", None), ("", None)])
def test_home_variable_counts_only_if_absolute(monkeypatch: pytest.MonkeyPatch, value: str, home: Path | None) -> None:
    monkeypatch.setenv("HOME", value)
    machine = MachineFiles()
    assert machine.home_variable == home
    assert machine.home_of(machine.user_id) in machine.homes


def test_java_router_is_found_with_split_files(files: RouterFiles) -> None:
    files.java("/var/lib/i2p/i2p-config")
    files.write(
        "/var/lib/i2p/i2p-config/i2ptunnel.config.d/00-eepsite-i2ptunnel.config",
        "type=httpserver\nname=eepsite\ntargetHost=127.0.0.1\ntargetPort=7658\nprivKeyFile=eepsite/eepPriv.dat\n",
    )
    destination = files.key("/var/lib/i2p/i2p-config/eepsite/eepPriv.dat")
    files.ports = [(7654, 120), (7657, 120)]
    found = found_in(files)
    assert found.software is Software.JAVA
    assert states(found) == ("on", "on", "off")
    assert [each.destination for each in found.tunnels] == [destination]


def test_certificate_of_java_i2cp_is_copied(files: RouterFiles, node: Path) -> None:
    files.java(str(HOME / ".i2p"))
    files.write(str(HOME / ".i2p/router.config"), "i2cp.SSL=true\ni2cp.auth=true\ni2cp.hostname=localhost\n")
    assert found_in(files).requires_login
    refused = detect(node, "--yes")
    assert "its certificate below /home/user/.i2p is not readable" in refused.stderr
    files.write(str(HOME / ".i2p/certificates/i2cp/i2cp.local.crt"), "a certificate\n")
    detect(node, "--yes")
    assert table_of(node)["router"]["i2cp_certificate"] == "router-i2cp.crt"
    assert (node.parent / "router-i2cp.crt").read_text() == "a certificate\n"


def test_running_router_with_i2cp_comes_first(files: RouterFiles) -> None:
    files.debian_i2pd()
    files.java(str(HOME / ".i2p"))
    files.run(70, JAVA_COMMAND)
    files.ports = [(7654, files.path("/proc/70").stat().st_uid)]
    routers = detect_routers(files.machine()).routers
    assert [each.software.value for each in routers] == ["java", "i2pd"]


def test_router_of_another_person_is_not_considered(files: RouterFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.run(70, "i2pd --datadir=/home/mallory/x")
    monkeypatch.setattr("bridge.node.detecting.machine.SYSTEM_USERS", 0)
    detection = detect_routers(files.machine())
    assert detection.routers == ()
    (unread,) = detection.unread
    assert "another user" in unread.reason


def test_key_file_is_read_for_destination_only(files: RouterFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    destination = files.key("/var/lib/i2pd/web.dat")
    read: list[int] = []
    real = os.read

    def counted(descriptor: int, size: int) -> bytes:
        data = real(descriptor, size)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "web.dat":
            read.append(len(data))
        return data

    monkeypatch.setattr(os, "read", counted)
    assert found_in(files).tunnels[0].destination == destination
    assert read == [DESTINATION_HEAD_BYTES, len(destination.encoded)]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 900])
def test_wrong_key_file_is_a_problem_of_its_tunnel(files: RouterFiles, content: bytes) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    files.write("/var/lib/i2pd/web.dat", "")
    files.path("/var/lib/i2pd/web.dat").write_bytes(content)
    assert "is not a private key file" in found_in(files).tunnels[0].problem


def test_missing_key_file_is_a_problem_of_its_tunnel(files: RouterFiles) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    assert "/var/lib/i2pd/web.dat: it does not exist" in found_in(files).tunnels[0].problem


def test_special_and_large_files_are_reported(files: RouterFiles) -> None:
    files.debian_i2pd("a" * (FILE_LIMIT_BYTES + 1))
    files.path("/etc/i2pd/tunnels.conf").unlink()
    os.mkfifo(files.path("/etc/i2pd/tunnels.conf"))
    unread = {str(each.path): each.reason for each in detect_routers(files.machine()).unread}
    assert unread == {
        "/etc/i2pd/i2pd.conf": f"it has more than {FILE_LIMIT_BYTES} bytes",
        "/etc/i2pd/tunnels.conf": "it is not a file",
    }


def test_settings_are_written_after_one_question(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    web = files.key("/var/lib/i2pd/web.dat")
    node.chmod(0o604)
    before = node.read_text()
    done = detect(node, answer="\n")
    assert "Write this router and 1 leaf into" in done.stderr
    assert done.stderr.count("?") == 1
    assert node.read_text().startswith(before.rstrip("\n"))
    assert stat.S_IMODE(node.stat().st_mode) == 0o604
    table = table_of(node)
    assert table["router"] == {
        "kind": "i2cp", "software": "i2pd", "i2cp": "127.0.0.1:7654", "sam": "127.0.0.1:7656"
    }  # fmt: skip
    assert table["leaf"] == [{"destination": web.base64, "probe": "127.0.0.1:8080"}]


def test_refused_question_leaves_the_file(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    files.key("/var/lib/i2pd/web.dat")
    before = node.read_text()
    done = detect(node, answer="n\n")
    assert (done.exit_code, node.read_text()) == (1, before)
    assert [each.name for each in node.parent.iterdir()] == ["node.toml"]


def test_interruption_reports_state_of_configuration(
    files: RouterFiles, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    files.key("/var/lib/i2pd/web.dat")

    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    for place, state in (
        ("bridge.cli.failure.ask_yes_or_no", "is unchanged. To continue"),
        ("bridge.cli.router.attaching.router_checks", "has the settings. To check them"),
    ):
        with monkeypatch.context() as typed:
            typed.setattr(place, interrupt)
            done = detect(node, *(["--yes"] if "checks" in place else []))
        assert (done.exit_code, f"{node} {state}, repeat the command." in done.stderr) == (130, True), done.output


def test_missing_services_have_lines_to_add(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd()
    files.run(70, I2PD_COMMAND, "i2pd.service")
    files.ports = [(7656, files.path("/proc/70").stat().st_uid)]
    done = detect(node, "--yes")
    assert done.exit_code == 1
    assert (
        "To switch I2CP and I2PControl on, add these lines to /etc/i2pd/i2pd.conf:\n    [i2cp]\n    enabled = true\n"
        "    [i2pcontrol]\n    enabled = true\nFor instance: printf '%s\\n' '' '[i2cp]' 'enabled = true' '[i2pcontrol]'"
        " 'enabled = true' | sudo tee -a /etc/i2pd/i2pd.conf\nThen run `sudo systemctl restart i2pd.service`, and"
        " run `garlicfarm router detect` again.\n"
    ) in done.stdout
    assert "problem " not in done.stdout, "a closed port is not reported as another problem"
    assert "does not accept a node yet" in done.stderr


def test_advice_is_wrapped_without_lines_to_copy(
    files: RouterFiles, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped: list[str] = []
    monkeypatch.setattr("bridge.cli.router.screen.echo", lambda text="", **_: wrapped.append(text))
    files.debian_i2pd()
    files.run(70, I2PD_COMMAND, "i2pd.service")
    files.ports = [(7656, files.path("/proc/70").stat().st_uid)]
    detect(node, "--yes")
    assert any(each.startswith("Then run `sudo systemctl") for each in wrapped)
    assert not any("printf" in each or "[i2cp]" in each for each in wrapped)


def test_stopped_router_is_started_in_one_step(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF + I2CP_ON)
    assert "To switch I2CP and SAM on, start i2pd\n" in detect(node, "--yes").stdout


def test_tunnels_to_several_services_need_a_choice(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB, SSH)
    files.key("/var/lib/i2pd/web.dat")
    ssh = files.key("/var/lib/i2pd/ssh.dat")
    refused = detect(node, "--yes")
    assert (refused.exit_code, "leaf" in table_of(node)) == (1, False)
    assert "--tunnel: web, ssh" in refused.stderr
    detect(node, answer="2\n")
    assert [each["destination"] for each in table_of(node)["leaf"]] == [ssh.base64]


def test_wrong_choice_leaves_the_file(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB, SSH)
    files.key("/var/lib/i2pd/web.dat")
    files.key("/var/lib/i2pd/ssh.dat")
    done = detect(node, answer="1, 3\n")
    assert "'3' is not one of 1 web, 2 ssh" in done.stderr
    assert "router" not in table_of(node)


def test_named_tunnel_becomes_leaf(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB, SSH)
    files.key("/var/lib/i2pd/web.dat")
    ssh = files.key("/var/lib/i2pd/ssh.dat")
    assert "does not have a server tunnel 'irc'; there are web, ssh" in detect(node, "--tunnel", "irc").stderr
    detect(node, "--tunnel", "ssh", "--yes")
    assert [each["destination"] for each in table_of(node)["leaf"]] == [ssh.base64]


def test_hostile_name_cannot_move_the_cursor(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, ("\x1b[2Jx\u202e", "port = 1"), ("\x9b2J", "port = 2"))
    done = detect(node, answer="0\n")
    assert not set("\x1b\x9b\u202e") & set(done.output + done.stderr)
    assert "\\x1b[2Jx\\u202e (http)" in done.stdout


def test_second_run_does_not_add_the_other_tunnel(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB, SSH)
    files.key("/var/lib/i2pd/web.dat")
    files.key("/var/lib/i2pd/ssh.dat")
    files.run(70, I2PD_COMMAND, "i2pd.service")
    files.ports = [(7654, files.path("/proc/70").stat().st_uid)]
    done = detect(node, "--tunnel", "web", "--yes")
    assert "To use the settings, start the node again: " in done.stdout
    written = node.read_text()
    again = detect(node, "--yes")
    assert node.read_text() == written
    assert "If the node does not use these settings yet, start it again: " in again.stdout
    assert "has these settings already" in again.stderr
    assert "not chosen: it is a leaf already" in again.stdout


def test_tunnel_with_address_of_the_farm_is_refused(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    destination = files.key("/var/lib/i2pd/web.dat")
    node.write_text(f'[[master]]\ndestination = "{destination.base64}"\n')
    assert "has the address of the farm itself" in detect(node, "--yes").stdout
    assert "leaf" not in table_of(node)
    assert "cannot be a leaf" in detect(node, "--tunnel", "web").stderr


def test_address_of_a_signing_key_counts_as_master(files: RouterFiles, node: Path) -> None:
    key = new_master_key().sign_transient(NOW_S)
    save_signing_key(node.parent / "a.key", key)
    assert parse_signing_key(signing_key_text(key)).destination == key.destination
    node.write_text('[publishing]\nsigning_key = "a.key"\n')
    files.debian_i2pd(I2PD_CONF, WEB)
    files.write("/var/lib/i2pd/web.dat", "")
    files.path("/var/lib/i2pd/web.dat").write_bytes(key.destination.encoded + bytes(288))
    assert "has the address of the farm itself" in detect(node, "--yes").stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('router = {kind = "file"}\n', 'add these values there:\n      [router]\n      kind = "i2cp"'),
        ("demo = true\n", "a demonstration's keys never reach a real router"),
        ("[router\n", "is not TOML"),
        ('[router]\nuser = "x"\n', "no such setting"),
    ],
)
def test_file_that_cannot_be_changed_stays(files: RouterFiles, node: Path, text: str, reason: str) -> None:
    files.debian_i2pd()
    node.write_text(text)
    done = detect(node, "--yes")
    assert (done.exit_code, node.read_text()) == (1, text)
    assert reason in done.stderr


def test_file_changed_by_others_stays(files: RouterFiles, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.debian_i2pd()

    def changed(*_: object, **__: object) -> None:
        node.write_text("# changed\n")

    monkeypatch.setattr("bridge.cli.router.detect.confirm", changed)
    done = detect(node)
    assert "has changed since this command read it" in done.stderr
    assert node.read_text() == "# changed\n"


def test_file_of_a_user_is_the_default(files: RouterFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bridge.node.detecting.node_file.PACKAGE_FILE", tmp_path / "absent")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    files.debian_i2pd()
    missing = CliRunner().invoke(cli, ["router", "detect", "--yes"])
    assert "name the node's configuration with --config FILE" in missing.stderr
    (tmp_path / "node.toml").touch()
    assert default_node_file([tmp_path / "home"]) == Path("node.toml")
    (tmp_path / "home" / USER_FILE).parent.mkdir(parents=True)
    (tmp_path / "home" / USER_FILE).touch()
    assert default_node_file([tmp_path / "none", tmp_path / "home"]) == tmp_path / "home" / USER_FILE
    own = tmp_path / "config" / "garlicfarm" / "node.toml"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr("bridge.node.settings.places.UNIT", "absent.service")
    assert default_node_file([tmp_path / "home"]) == own


def test_missing_file_is_made(files: RouterFiles, tmp_path: Path) -> None:
    files.debian_i2pd()
    detect(tmp_path / "new.toml", "--yes")
    assert table_of(tmp_path / "new.toml")["router"]["software"] == "i2pd"


def test_machine_without_router_is_refused(files: RouterFiles, node: Path) -> None:
    done = detect(node)
    assert (done.exit_code, "no I2P router was found" in done.stderr) == (1, True)
    files.ports = [(7654, 0)]
    assert "(in a container?)" in detect(node).stderr


def test_unreadable_files_have_one_action(files: RouterFiles, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.debian_i2pd(I2PD_CONF, WEB)
    files.key("/var/lib/i2pd/web.dat")
    real = os.open

    def closed(path: Path, *arguments: Any, **named: Any) -> int:
        if str(path).startswith(str(files.path("/var/lib/i2pd"))):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", closed)
    done = detect(node, answer="n\n")
    assert "not chosen: /var/lib/i2pd/web.dat: permission denied" in done.stdout
    assert (
        "not read  /var/lib/i2pd/web.dat: permission denied\n          -> run this command with `sudo`" in done.stdout
    )


def test_tunnels_complete_in_a_shell(files: RouterFiles) -> None:
    files.debian_i2pd(I2PD_CONF, WEB, SSH)
    files.key("/var/lib/i2pd/web.dat")
    (option,) = (each for each in router.commands["detect"].params if each.name == "names")
    offered = option.shell_complete(Context(router.commands["detect"]), "w")
    assert [(each.value, each.help) for each in offered] == [("web", "127.0.0.1:8080")]


def test_kind_of_router_can_be_chosen(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd()
    files.java(str(HOME / ".i2p"))
    detect(node, "--software", "java", "--yes")
    assert table_of(node)["router"]["software"] == "java"


def test_configuration_that_links_to_itself_raises_oserror(tmp_path: Path) -> None:
    """The commands report an OSError with its path."""
    (tmp_path / "node.toml").symlink_to("node.toml")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        read_node_file(tmp_path / "node.toml")


def test_json_does_not_write_without_yes(files: RouterFiles, node: Path) -> None:
    files.debian_i2pd(I2PD_CONF.replace("# enabled = false", "password = hunter2", 1), WEB)
    web = files.key("/var/lib/i2pd/web.dat")
    before = node.read_text()
    done = detect(node, "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, node.read_text(), document["written"]) == (0, before, False)
    assert document["settings"]["leaf"] == [{"destination": web.base64, "probe": "127.0.0.1:8080"}]
    assert document["routers"][0]["tunnels"][0]["address"] == web.address
    assert "hunter2" not in done.output


@pytest.fixture
def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clocks of the node and of the fake router."""
    monkeypatch.setattr(fake_i2cp_router, "clock_now_ms", lambda: NOW_S * 1000)
    monkeypatch.setattr("bridge.node.router.i2cp_connection.clock_ms", lambda: NOW_S * 1000)


@pytest.mark.usefixtures("same_clock")
def test_written_settings_are_checked_with_the_router(files: RouterFiles, node: Path) -> None:
    control = FakeControl(password="itoopie")  # noqa: S106 - the published one
    with behind_ports(FakeRouter(), control) as (i2cp_port, control_port):
        files.java("/var/lib/i2p/i2p-config", i2cp_port=i2cp_port, console_port=control_port)
        files.ports = [(i2cp_port, USER_ID), (control_port, USER_ID)]
        done = detect(node, "--yes")
    assert done.exit_code == 0, done.output
    assert "router status" in done.stdout
    assert "I2PControl has its published password" in done.stdout
    password = node.parent / "i2pcontrol.password"
    assert (password.read_text(), stat.S_IMODE(password.stat().st_mode)) == ("itoopie\n", 0o600)
    assert table_of(node)["router"]["i2pcontrol"] == f"http://127.0.0.1:{control_port}"


@pytest.mark.usefixtures("same_clock")
def test_unknown_password_is_taken_from_its_file(files: RouterFiles, node: Path) -> None:
    with behind_ports(FakeRouter(), FakeControl()) as (i2cp_port, control_port):
        files.java("/var/lib/i2p/i2p-config", i2cp_port=i2cp_port, console_port=control_port)
        files.ports = [(i2cp_port, USER_ID), (control_port, USER_ID)]
        refused = detect(node, "--yes")
        assert "i2pcontrol" not in table_of(node)["router"]
        assert f"Write its password into {node.parent / 'i2pcontrol.password'}, mode 0600" in refused.stdout
        (node.parent / "i2pcontrol.password").write_text("word\n")
        (node.parent / "i2pcontrol.password").chmod(0o600)
        detect(node, "--yes")
    assert table_of(node)["router"].items() >= {("i2pcontrol_password_file", "i2pcontrol.password")}
