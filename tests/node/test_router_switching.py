"""`router detect` and `init` switch on services of i2pd, restart it, and restore its configuration after a failure."""

import dataclasses
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridge.cli import main
from bridge.cli.main import cli
from bridge.cli.router import attaching
from bridge.node.detecting.control_login import PASSWORD_FILE, Login
from bridge.node.detecting.found import FoundRouter
from bridge.node.detecting.proposal import detect_routers
from bridge.node.detecting.switching import SwitchError, plan_switch
from bridge.node.security.key_files import load_master_key
from bridge.node.settings.configuration import load_configuration
from bridge.wire.routers.i2pd_files import read_i2pd_conf
from tests.node.router_files import I2PD_COMMAND, I2PD_CONF, RouterFiles

WEB = ("web", "port = 8080")
CONF = "/etc/i2pd/i2pd.conf"
COPY = f"{CONF}.before-garlicfarm"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RouterFiles:
    """Return the machine of root, with a running i2pd of Debian that has one tunnel."""
    made = RouterFiles(tmp_path / "machine", user_id=0)
    made.debian_i2pd(I2PD_CONF, WEB)
    made.key("/var/lib/i2pd/web.dat")
    made.run(70, I2PD_COMMAND, "i2pd.service")
    for module in ("detect", "attaching"):
        monkeypatch.setattr(f"bridge.cli.router.{module}.MachineFiles", made.machine)
    monkeypatch.setattr(attaching, "ROUTER_START_S", 0.0)
    monkeypatch.setattr(attaching, "is_managed", lambda: True)
    return made


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text('name = "site-a"\n')
    return path


@pytest.fixture
def restarts(files: RouterFiles, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the calls of systemctl; a restart opens the ports."""
    calls: list[tuple[str, ...]] = []

    def restart(*arguments: str) -> str:
        calls.append(arguments)
        user = files.path("/proc/70").stat().st_uid
        files.ports = [(each, user) for each in (7650, 7654, 7656)]
        return ""

    monkeypatch.setattr(attaching, "systemctl_problem", restart)
    monkeypatch.setattr("bridge.node.detecting.proposal.find_login", lambda *_: "not asked in this test")
    return calls


def found(files: RouterFiles) -> FoundRouter:
    (router,) = detect_routers(files.machine()).routers
    return router


def detect(node: Path, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, ["router", "detect", "--config", str(node), *arguments], input=answer)


def test_detect_switches_i2pd_on_after_one_question(
    files: RouterFiles, node: Path, restarts: list[tuple[str, ...]]
) -> None:
    files.path(CONF).chmod(0o640)
    done = detect(node, answer="\n")
    assert done.stderr.count("?") == 1
    assert (
        "Switch I2CP and I2PControl on in /etc/i2pd/i2pd.conf, restart i2pd.service, and write this router and 1 leaf"
        in done.stderr
    )
    assert restarts == [("restart", "i2pd.service")]
    assert files.path(COPY).read_text() == I2PD_CONF
    text = files.path(CONF).read_text()
    assert text.startswith(I2PD_CONF.rstrip("\n"))
    options = read_i2pd_conf(text.encode())
    assert (options["i2cp.enabled"].value, options["i2pcontrol.enabled"].value) == ("true", "true")
    assert len(password := options["i2pcontrol.password"].value) == 24
    assert password not in done.output + done.stderr
    assert stat.S_IMODE(files.path(CONF).stat().st_mode) == 0o640
    assert (
        "    [i2cp]\n    enabled = true\n    [i2pcontrol]\n    enabled = true\n    password = (random)" in done.stdout
    )
    assert 'i2cp = "127.0.0.1:7654"' in node.read_text()
    assert "[[leaf]]" in node.read_text()


def test_login_is_repeated_while_i2pd_starts(
    node: Path, restarts: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[Login | str] = ["nothing answers within 5 s", Login("word", PASSWORD_FILE, is_new=True)]
    monkeypatch.setattr("bridge.node.detecting.proposal.find_login", lambda *_: replies.pop(0))
    monkeypatch.setattr(attaching, "ROUTER_START_S", 60.0)
    monkeypatch.setattr(attaching, "LOGIN_POLL_S", 0.0)
    done = detect(node, "--yes")
    assert 'i2pcontrol = "https://127.0.0.1:7650"' in node.read_text(), done.output
    assert (node.parent / PASSWORD_FILE).read_text() == "word\n"
    assert (replies, len(restarts)) == ([], 1)


def test_new_password_is_readable_for_i2pd_only(
    files: RouterFiles, node: Path, restarts: list[tuple[str, ...]]
) -> None:
    conf, group = files.path(CONF), 4_711 if os.geteuid() == 0 else os.getegid()
    conf.chmod(0o644)
    os.chown(files.path("/proc/70"), -1, group)
    done = detect(node, "--yes")
    assert (stat.S_IMODE(conf.stat().st_mode), conf.stat().st_gid) == (0o640, group)
    copy = files.path(COPY).stat()
    assert (stat.S_IMODE(copy.st_mode), copy.st_gid) == (0o644, os.getegid())
    assert "Every user" not in done.stdout
    assert len(restarts) == 1


def test_password_of_stopped_i2pd_is_reported_as_readable(files: RouterFiles, node: Path) -> None:
    shutil.rmtree(files.path("/proc/70"))
    files.path(CONF).chmod(0o644)
    done = detect(node, "--yes")
    assert "Every user of this machine can read its password" in done.stdout
    assert stat.S_IMODE(files.path(CONF).stat().st_mode) == 0o644


def test_declined_question_keeps_all_files(files: RouterFiles, node: Path, restarts: list[tuple[str, ...]]) -> None:
    done = detect(node, answer="n\n")
    assert (done.exit_code, restarts, node.read_text()) == (1, [], 'name = "site-a"\n')
    assert files.path(CONF).read_text() == I2PD_CONF
    assert not files.path(COPY).exists()


def test_failed_restart_restores_the_file(files: RouterFiles, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "systemctl_problem", lambda *_: "")
    mode = stat.S_IMODE(files.path(CONF).stat().st_mode)
    done = detect(node, "--yes")
    assert done.exit_code == 1
    assert "nothing listens at 127.0.0.1:7654, 127.0.0.1:7650" in done.stderr
    assert "i2pd.service runs with its former configuration again" in done.stderr
    assert files.path(CONF).read_text() == I2PD_CONF
    assert stat.S_IMODE(files.path(CONF).stat().st_mode) == mode
    assert node.read_text() == 'name = "site-a"\n'


def test_kill_before_restart_is_repaired_by_repetition(
    files: RouterFiles, node: Path, restarts: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a command killed between the change of the file and the restart
    switch = plan_switch(files.machine(), found(files))
    assert switch is not None
    switch.write()
    changed = files.path(CONF).read_bytes()
    assert plan_switch(files.machine(), found(files)) is None
    # When the command is repeated, then its question includes the restart, and a failure keeps the file.
    with monkeypatch.context() as failing:
        failing.setattr(attaching, "systemctl_problem", lambda *_: "")
        done = detect(node, "--yes")
    assert "nothing listens at 127.0.0.1:7654, 127.0.0.1:7650 within 0 s. `journalctl" in done.stderr
    done = detect(node, answer="\n")
    assert "Restart i2pd.service, and write this router and 1 leaf" in done.stderr
    assert (restarts, files.path(CONF).read_bytes()) == ([("restart", "i2pd.service")], changed)
    assert "[[leaf]]" in node.read_text()


def test_switching_without_systemd_prints_restart_command(
    files: RouterFiles, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "is_managed", lambda: False)
    done = detect(node, "--yes")
    assert "on, run `sudo systemctl restart i2pd.service`\nThen the node connects." in done.stdout
    options = read_i2pd_conf(files.path(CONF).read_bytes())
    assert (node.parent / "i2pcontrol.password").read_text() == f"{options['i2pcontrol.password'].value}\n"
    assert 'i2pcontrol = "https://127.0.0.1:7650"' in node.read_text()


def test_disabled_line_is_changed_and_password_kept(files: RouterFiles) -> None:
    files.write(CONF, "[i2cp]\nenabled = false\n[i2pcontrol]\nenabled=false\npassword = mine\n")
    switch = plan_switch(files.machine(), found(files))
    assert switch is not None
    assert switch.after == b"[i2cp]\nenabled = true\n[i2pcontrol]\nenabled= true\npassword = mine\n"
    assert "mine" not in repr(switch)


def test_first_copy_is_never_overwritten(files: RouterFiles) -> None:
    files.write(COPY, "older")
    switch = plan_switch(files.machine(), found(files))
    assert switch is not None
    switch.write()
    assert files.path(COPY).read_text() == "older"
    with pytest.raises(SwitchError, match="has changed since"):
        switch.write()


def test_file_named_by_other_system_user_is_not_changed(files: RouterFiles) -> None:
    files.write("/etc/other.conf", "")
    debian = found(files)
    assert debian.process is not None
    other = replace(debian.process, user_id=33)
    assert plan_switch(files.machine(), dataclasses.replace(debian, process=other)) is not None
    named = dataclasses.replace(debian, process=other, configuration=Path("/etc/other.conf"))
    assert plan_switch(files.machine(), named) is None
    files.user_id = 5_000
    assert plan_switch(files.machine(), debian) is None


def test_link_is_not_followed(files: RouterFiles) -> None:
    files.path(CONF).rename(files.path("/etc/real"))
    files.path(CONF).symlink_to(files.path("/etc/real"))
    assert plan_switch(files.machine(), found(files)) is None


@pytest.fixture
def garlicfarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command of a user whose home is `tmp_path`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def call(*arguments: str, answer: str = "") -> Result:
        line = ["init", "--bind", "127.0.0.1:17668", "--no-start", *arguments]
        return CliRunner().invoke(cli, line, input=answer)

    return call


def test_init_attaches_router_and_makes_address(
    garlicfarm: Callable[..., Result], tmp_path: Path, restarts: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "has_user", lambda: True)
    done = garlicfarm(answer="\n\n")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("[Y/n]") == 2
    [line] = done.stdout.splitlines()
    assert line.startswith("garlicfarm join ")
    assert len(restarts) == 1
    configuration = load_configuration(tmp_path / ".config/garlicfarm/node.toml", try_files=True)
    assert len(configuration.leaves) == 1
    [own] = configuration.masters
    assert own.signing_key is not None
    assert own.signing_key.stem == load_master_key(tmp_path / "master.key").destination.address[:8]


@pytest.mark.parametrize("key", [KeyboardInterrupt, EOFError], ids=["Ctrl-C", "Ctrl-D"])
def test_interrupted_question_ends_init_until_repeated(
    key: type[BaseException],
    garlicfarm: Callable[..., Result],
    files: RouterFiles,
    tmp_path: Path,
    restarts: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given the key at each of the two questions
    monkeypatch.setattr(attaching, "has_user", lambda: True)
    asked: list[str] = []

    def interrupt_last(question: str) -> str:
        asked.append(question)
        if len(asked) in {1, 3}:
            raise key
        return ""

    line = ["garlicfarm", "init", "--bind", "127.0.0.1:17668", "--no-start"]
    for name in ("guard_streams", "guard_output", "_forbid_core_dumps"):
        monkeypatch.setattr(main, name, lambda: None)
    with monkeypatch.context() as typed:
        typed.setattr("click.termui.visible_prompt_func", interrupt_last)
        typed.setattr("sys.argv", line)
        # Then the command ends each time, and does not treat the key as a no
        for attached in (0, 1):
            with pytest.raises(SystemExit) as ended:
                main.main()
            assert (ended.value.code, len(restarts)) == (130, attached)
            assert "farm.key are kept. To continue, repeat the command." in capsys.readouterr().err
    assert not (tmp_path / "master.key").exists()
    # And the same command continues, without the answered question.
    done = garlicfarm(answer="\n")
    assert (done.exit_code, done.stderr.count("[Y/n]")) == (0, 1), done.output
    assert done.stdout.startswith("garlicfarm join ")
    assert (tmp_path / "master.key").exists()
    assert files.path(COPY).read_text() == I2PD_CONF


def test_init_with_declined_router_continues_without_it(
    garlicfarm: Callable[..., Result], files: RouterFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "has_user", lambda: True)
    done = garlicfarm(answer="n\n")
    assert done.exit_code == 0
    assert "`garlicfarm router detect` attaches it later" in done.stderr
    assert done.stdout.startswith("garlicfarm join ")
    assert files.path(CONF).read_text() == I2PD_CONF
    assert not (tmp_path / "master.key").exists()


def test_init_without_terminal_does_not_prompt(
    garlicfarm: Callable[..., Result], restarts: list[tuple[str, ...]], tmp_path: Path
) -> None:
    done = garlicfarm("--master", "own.key")
    assert (done.exit_code, done.stderr.count("[Y/n]"), restarts) == (0, 0, [])
    assert "An I2P router is on this machine" in done.stderr
    assert (tmp_path / "own.key").exists()


def test_init_with_yes_does_everything(
    garlicfarm: Callable[..., Result], restarts: list[tuple[str, ...]], tmp_path: Path
) -> None:
    done = garlicfarm("--yes")
    assert (done.exit_code, len(restarts)) == (0, 1), done.output
    assert (tmp_path / "master.key").exists()
    assert "Spare keys: 2." in done.stderr
