"""The settings of `[router]`: the addresses of a real router, errors with their place, and passwords in files."""

from pathlib import Path

import pytest
import trio

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.local_node import begin, make_router, structure_files
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.i2cp_router import I2cpRouter
from bridge.node.router.link import Link, Software
from bridge.node.router.router import FileRouter
from bridge.node.security.key_files import KeyFileError, write_private_file
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.router import ControlUrl, I2cpRouterSettings
from tests.effort import each_case
from tests.node import written_settings


def load(tmp_path: Path, router: str, first: str = "") -> NodeConfiguration:
    return written_settings.load(tmp_path, f"{first}\n[router]\n{router}")


def problems(tmp_path: Path, router: str, first: str = "") -> str:
    return written_settings.problems(tmp_path, f"{first}\n[router]\n{router}")


def i2cp(tmp_path: Path, more: str = "") -> I2cpRouterSettings:
    found = load(tmp_path, f'kind = "i2cp"\n{more}').router
    assert isinstance(found, I2cpRouterSettings)
    return found


def test_local_java_router_needs_only_kind(tmp_path: Path) -> None:
    assert i2cp(tmp_path) == I2cpRouterSettings(
        software=Software.JAVA, i2cp=Link("127.0.0.1", 7654), sam=Link("127.0.0.1", 7656)
    )


@each_case(
    ("more", "sam"),
    [
        ("", Link("127.0.0.1", 7656)),
        ('i2cp = "10.0.0.2:7655"', Link("10.0.0.2", 7656)),
        ('i2cp = "8.8.8.8:7655"\ni2cp_certificate = "router.pem"', None),
        ('sam = "off"', None),
        ('sam = "[::1]:7656"', Link("::1", 7656)),
        ('sam = "192.168.7.2:17656"', Link("192.168.7.2", 17656)),
    ],
)
def test_sam_bridge_is_at_host_of_router_by_default(tmp_path: Path, more: str, sam: Link | None) -> None:
    (tmp_path / "router.pem").write_text("a certificate")
    assert i2cp(tmp_path, more).sam == sam


@pytest.mark.parametrize("sam", ["8.8.8.8:7656", "router.example:7656", "on", "127.0.0.1"])
def test_sam_bridge_elsewhere_is_refused(tmp_path: Path, sam: str) -> None:
    assert problems(tmp_path, f'kind = "i2cp"\nsam = "{sam}"').startswith("router.sam: ")


def test_router_of_kind_file_uses_sam_only_if_set(tmp_path: Path) -> None:
    assert load(tmp_path, 'kind = "file"').router.sam is None
    assert load(tmp_path, 'kind = "file"\nsam = "off"').router.sam is None
    demo = load(tmp_path, 'kind = "file"\nsam = "127.0.0.1:7656"', "demo = true")
    assert demo.router.sam == Link("127.0.0.1", 7656)


def test_file_with_all_settings_is_read(tmp_path: Path) -> None:
    (tmp_path / "router.pem").write_text("a certificate")
    found = i2cp(
        tmp_path,
        'software = "i2pd"\ni2cp = "10.0.0.2:7655"\ni2cp_certificate = "router.pem"\n'
        'i2cp_username = "farm"\ni2cp_password_file = "i2cp.password"\n'
        'i2pcontrol = "https://127.0.0.1:7650"\ni2pcontrol_password_file = "control.password"\n',
    )
    assert found == I2cpRouterSettings(
        software=Software.I2PD,
        i2cp=Link("10.0.0.2", 7655),
        i2cp_certificate=tmp_path / "router.pem",
        i2cp_username="farm",
        i2cp_password_file=tmp_path / "i2cp.password",
        i2pcontrol=ControlUrl(Link("127.0.0.1", 7650), is_encrypted=True, path="/"),
        i2pcontrol_password_file=tmp_path / "control.password",
        sam=Link("10.0.0.2", 7656),
    )


@pytest.mark.parametrize(
    ("software", "url", "path"),
    [
        ("java", "http://127.0.0.1:7657", "/jsonrpc/"),
        ("java", "http://127.0.0.1:7657/", "/jsonrpc/"),
        ("java", "http://127.0.0.1:7657/i2pcontrol/", "/i2pcontrol/"),
        ("i2pd", "https://[::1]:7650", "/"),
    ],
)
def test_i2pcontrol_path_defaults_by_software(tmp_path: Path, software: str, url: str, path: str) -> None:
    text = f'software = "{software}"\ni2pcontrol = "{url}"\ni2pcontrol_password_file = "word"'
    found = i2cp(tmp_path, text).i2pcontrol
    assert found is not None
    assert found.path == path


@each_case(
    ("settings", "problem"),
    [
        ('directory = "x"', "router.directory: no such setting"),
        ('software = "kovri"', "router.software: 'kovri' is not one of 'java', 'i2pd'"),
        ('i2cp = "router.lan:7654"', "is not a numeric address"),
        ('i2cp = "203.0.113.5:7654"', "router.i2cp: 203.0.113.5 is not a private address"),
        ('i2cp_username = "farm"', "router.i2cp_username: i2cp_username and i2cp_password_file belong together"),
        ('i2cp_certificate = "absent.pem"', "absent.pem does not exist"),
        ('i2pcontrol = "https://127.0.0.1:7650"', "i2pcontrol and i2pcontrol_password_file belong together"),
        ('i2pcontrol_password_file = "word"', "i2pcontrol and i2pcontrol_password_file belong together"),
        (
            'i2pcontrol = "127.0.0.1:7650"',
            "router.i2pcontrol: '127.0.0.1:7650' is not of the form https://127.0.0.1:7650",
        ),
        ('i2pcontrol = "http://10.0.0.2:7657"', "send it over plain http to loopback only"),
        ('i2pcontrol = "https://10.0.0.2:7650"', "on another machine it needs a known certificate"),
        ('password = "secret"', "router.password: no such setting"),
    ],
)
def test_invalid_setting_is_named_with_place(tmp_path: Path, settings: str, problem: str) -> None:
    assert problem in problems(tmp_path, f'kind = "i2cp"\n{settings}')


def test_i2cp_setting_is_refused_without_i2cp_kind(tmp_path: Path) -> None:
    assert "router.i2cp: no such setting" in problems(tmp_path, 'i2cp = "127.0.0.1:7654"')


def test_demonstration_refuses_real_router(tmp_path: Path) -> None:
    assert "never reach a real router" in problems(tmp_path, 'kind = "i2cp"', "demo = true")


def test_pace_of_files_is_refused_for_router(tmp_path: Path) -> None:
    text = problems(tmp_path, 'kind = "i2cp"\n[publishing]\npace = "reporting-period"')
    assert 'publishing.pace: "reporting-period" is for files' in text


def test_passwords_are_read_from_private_files(tmp_path: Path) -> None:
    write_private_file(tmp_path / "word", "secret\n")
    settings = i2cp(tmp_path, 'i2pcontrol = "https://127.0.0.1:7650"\ni2pcontrol_password_file = "word"')
    control = settings.access().control
    assert control is not None
    assert control.password == "secret"  # noqa: S105 - not the password of a real router
    (tmp_path / "word").chmod(0o644)
    with pytest.raises(KeyFileError, match="can be read by others"):
        settings.access()


@pytest.mark.parametrize("content", ["", "\n", "two\nlines\n", "x" * 256])
def test_password_file_has_one_line(tmp_path: Path, content: str) -> None:
    write_private_file(tmp_path / "word", content)
    settings = i2cp(tmp_path, 'i2cp_username = "farm"\ni2cp_password_file = "word"')
    with pytest.raises(KeyFileError, match="one line with the password"):
        settings.access()


def test_router_class_follows_settings(tmp_path: Path) -> None:
    alarms = Alarms(EventLog("node-1", lambda: 0))
    real = make_router(load(tmp_path, 'kind = "i2cp"'), HostSampler(), LoopLag(), alarms, ())
    assert isinstance(real, I2cpRouter)
    assert structure_files(real, ()) == {}
    assert isinstance(make_router(load(tmp_path, ""), HostSampler(), LoopLag(), alarms, ()), FileRouter)


def test_start_removes_files_of_killed_writers(tmp_path: Path) -> None:
    configuration = load(tmp_path, "")
    configuration.state_dir.mkdir(mode=0o700)
    left = (configuration.state_dir / ".any.killed_0.tmp", tmp_path / ".farm.key.killed_0.tmp")
    foreign_file = tmp_path / ".other.killed_0.tmp"
    for each in (*left, foreign_file):
        each.write_text("secret")
    trio.run(begin, configuration)
    assert [each.exists() for each in (*left, foreign_file)] == [False, False, True]
