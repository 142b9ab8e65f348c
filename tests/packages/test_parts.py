"""The parts of packages, without building one: manual pages, example configuration, unit, Containerfile."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from bridge.cli.connect.command import connect
from bridge.cli.main import cli
from bridge.node.settings.configuration import SETTINGS, load_configuration
from bridge.node.settings.machine import Machine, Network
from deploy import deb, example_configuration, man_pages, platforms
from deploy.environment import MACHINES, RELEASES, PackagingError, own_wheel, supported_target
from deploy.oci import lay_out
from gossip import Address
from gossip.node import LanInterface
from tests.effort import each_case
from tests.structure.sources import ROOT

UNIT = ROOT / "deploy" / "debian" / "garlicfarm.service"
CLIENT_UNIT = UNIT.with_name("garlicfarm-connect.service")
CONTAINERFILE = ROOT / "deploy" / "oci" / "Containerfile"
PAGES = man_pages.pages()


def groff(page: str, *options: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("groff") is None:
        pytest.skip("no groff here (Debian: apt-get install groff)")
    command = ["groff", "-man", "-Tutf8", "-Kutf8", "-rLL=100n", *options]
    return subprocess.run(command, input=page, capture_output=True, text=True, check=True)


def plain_text(page: str) -> str:
    """Return a page without troff markup."""
    return re.sub(r"\\f[BIR]", "", page).replace(r"\-", "-")


# -- manual pages ------------------------------------------------------------------------------------------------------


def test_commands_and_configuration_have_manual_pages() -> None:
    assert set(PAGES) == {"garlicfarm.1", "garlicfarm.toml.5", *(f"garlicfarm-{name}.1" for name in cli.lazy_commands)}


def test_manual_pages_pass_troff_without_warning() -> None:
    assert groff("".join(PAGES.values()), "-ww", "-z").stderr == ""


@each_case("name", [each for each in cli.lazy_commands if each not in man_pages.HANDED_ON])
def test_manual_page_has_all_options_of_its_command(name: str) -> None:
    page = plain_text(PAGES[f"garlicfarm-{name}.1"])
    waiting = [cli.get_command(click.Context(cli), name)]
    while waiting:
        command = waiting.pop()
        assert command is not None
        if isinstance(command, click.Group):
            waiting += command.commands.values()
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        missing = [each.opts[0] for each in options if each.opts[0] not in page]
        assert missing == [], f"{command.name} in garlicfarm-{name}.1"


def test_manual_page_of_configuration_has_all_settings() -> None:
    page = plain_text(PAGES["garlicfarm.toml.5"])
    assert [key for key in SETTINGS if key not in page] == []
    assert "`" not in page
    assert "](" not in page


# -- the packaged configuration ----------------------------------------------------------------------------------------


def test_example_configuration_is_valid_on_lan(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(example_configuration.text())
    lan = Network(lambda: [LanInterface("eth0", "192.168.1.10", "192.168.1.255")])
    configuration = load_configuration(file, machine=Machine(network=lan))
    assert str(configuration.farm_key) == "/etc/garlicfarm/farm.key"
    assert str(configuration.state_dir) == "/var/lib/garlicfarm"


def test_example_configuration_has_all_settings_once() -> None:
    text = example_configuration.text()
    table = tomllib.loads(re.sub(r"^#(?=[\w\[])", "", text, flags=re.MULTILINE))

    def keys(node: dict[str, object], path: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in node.items():
            match value:
                case dict():
                    found |= keys(value, f"{path}{name}.")
                case [dict(first), *_]:
                    found |= keys(first, f"{path}{name}.")
                case _:
                    found.add(f"{path}{name}")
        return found

    assert keys(table) == set(SETTINGS)


def test_commented_settings_have_valid_values() -> None:
    table = tomllib.loads(re.sub(r"^#(?=[\w\[])", "", example_configuration.text(), flags=re.MULTILINE))
    assert table["gossip"]["capacity"] == SETTINGS["gossip.capacity"].value
    assert table["gossip"]["seeds"] == ["192.168.1.11:7668", "192.168.1.12:7668"]
    assert table["demo"] is False


# -- the service -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "manager"), [(UNIT, "--system"), (CLIENT_UNIT, "--user")], ids=["node", "client"])
def test_systemd_accepts_unit(unit: Path, manager: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    # systemd-analyze checks that the unit's programs exist, and this machine may lack them.
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/usr/bin/garlicfarm", "/bin/true"))
    command = ["systemd-analyze", manager, "verify", "--man=no", str(copy)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert [line for line in done.stderr.splitlines() if "garlicfarm" in line] == []
    assert done.returncode == 0


def test_unit_passes_systemd_security_threshold(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    unit = tmp_path / "garlicfarm.service"
    unit.write_text(UNIT.read_text())
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_unit_and_configuration_name_same_paths() -> None:
    unit, text = UNIT.read_text(), example_configuration.text()
    assert f"--config /{deb.CONFIGURATION}" in unit
    assert f'farm_key = "{re.findall("ConditionPathExists=(.*)", unit)[0]}"' in text
    assert f'state_dir = "/var/lib/{re.findall("StateDirectory=(.*)", unit)[0]}"' in text


def test_client_unit_has_a_valid_command() -> None:
    (command,) = re.findall("^ExecStart=/usr/bin/garlicfarm connect (.*)", CLIENT_UNIT.read_text(), re.MULTILINE)
    given = connect.make_context("connect", command.split()).params
    assert given["links_file"] == Path("%E/garlicfarm/connect.links")
    assert given["http"] == Address("127.0.0.1", 8118)
    assert f"ConditionPathExists={given['links_file']}\n" in CLIENT_UNIT.read_text()


@pytest.mark.parametrize("script", deb.SCRIPTS)
def test_maintainer_script_is_valid_and_stops_at_failure(script: str) -> None:
    path = ROOT / "deploy" / "debian" / script
    subprocess.run(["sh", "-n", path], check=True)  # noqa: S607
    assert "\nset -e\n" in path.read_text()


def test_maintainer_scripts_do_not_remove_keys_or_state() -> None:
    for script in deb.SCRIPTS:
        lines = (ROOT / "deploy" / "debian" / script).read_text().splitlines()
        removing = [line for line in lines if re.search(r"\brm -", line) and "echo" not in line]
        kept = [line for line in removing if "__pycache__" not in line and " /run/garlicfarm.was-stopped" not in line]
        assert kept == [], script


# -- targets -----------------------------------------------------------------------------------------------------------


def test_unsupported_target_is_refused_with_supported_ones() -> None:
    for python, architecture in (("3.9", "amd64"), ("3.11", "s390x")):
        with pytest.raises(PackagingError, match=r"3\.11 \(Debian 12\).*amd64, arm64"):
            supported_target(python, architecture)


def test_armhf_target_is_refused_with_sentence_of_page() -> None:
    with pytest.raises(PackagingError) as refused:
        supported_target("3.11", "armhf")
    assert str(refused.value) in platforms.PAGE.read_text(encoding="utf-8")


def test_missing_wheel_error_names_command(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match="make dist"):
        own_wheel(tmp_path)
    wheel = tmp_path / "garlicfarm-0.1.0-py3-none-any.whl"
    wheel.touch()
    assert own_wheel(tmp_path) == wheel


def test_platforms_page_lists_pinned_packages_and_machines() -> None:
    page = platforms.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9.-]+) \| (\S+) \|", page, re.MULTILINE)
    assert [row for row in rows if row[0] != "package"] == platforms.pinned(), "make requirements"
    assert f"| package | version | {' | '.join(MACHINES)} |" in page
    assert all(f"{each.name} (Python {each.python})" in page for each in RELEASES.values())


# -- the image ---------------------------------------------------------------------------------------------------------


def test_containerfile_has_user_volume_and_health_check() -> None:
    steps = dict(re.findall(r"^([A-Z]+) (.+)$", CONTAINERFILE.read_text(), re.MULTILINE))
    assert steps["USER"] == "7668:7668"
    assert steps["VOLUME"] == "/var/lib/garlicfarm"
    assert "HEALTHCHECK" in steps
    release = RELEASES["3.11"].name.split()[1]
    assert steps["FROM"] == {"12": "debian:bookworm-slim"}[release]


def test_image_context_contains_package(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match="make dist"):
        lay_out(tmp_path, "amd64")
    (tmp_path / deb.package_name(supported_target("3.11", "amd64"))).write_bytes(b"package")
    context = lay_out(tmp_path, "amd64")
    assert sorted(path.name for path in context.iterdir()) == ["Containerfile", "garlicfarm.deb"]
