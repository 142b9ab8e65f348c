"""What packages are made of, without building one: manual pages, example configuration, unit, Containerfile."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from bridge.cli.main import cli
from bridge.node.settings.configuration import SETTINGS, load_configuration
from bridge.node.settings.machine import Machine, Network
from deploy import deb, example_configuration, man_pages, platforms
from deploy.environment import MACHINES, RELEASES, PackagingError, own_wheel, target
from deploy.oci import lay_out
from gossip.node import LanInterface
from tests.structure.sources import ROOT

UNIT = ROOT / "deploy" / "debian" / "garlicfarm.service"
CONTAINERFILE = ROOT / "deploy" / "oci" / "Containerfile"
PAGES = man_pages.pages()


def groff(page: str, *options: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("groff") is None:
        pytest.skip("no groff here (Debian: apt-get install groff)")
    command = ["groff", "-man", "-Tutf8", "-Kutf8", "-rLL=100n", *options]
    return subprocess.run(command, input=page, capture_output=True, text=True, check=True)


def shown(page: str) -> str:
    """A page without the marks of troff."""
    return re.sub(r"\\f[BIR]", "", page).replace(r"\-", "-")


# -- manual pages ------------------------------------------------------------------------------------------------------


def test_every_command_and_the_configuration_has_a_page() -> None:
    assert set(PAGES) == {"garlicfarm.1", "garlicfarm.toml.5", *(f"garlicfarm-{name}.1" for name in cli.lazy_commands)}


def test_troff_takes_every_page_without_a_warning() -> None:
    for name, page in PAGES.items():
        assert groff(page, "-ww", "-z").stderr == "", name


@pytest.mark.parametrize("name", [each for each in cli.lazy_commands if each not in man_pages.HANDED_ON])
def test_a_page_has_every_option_of_its_command(name: str) -> None:
    page = shown(PAGES[f"garlicfarm-{name}.1"])
    waiting = [cli.get_command(click.Context(cli), name)]
    while waiting:
        command = waiting.pop()
        assert command is not None
        if isinstance(command, click.Group):
            waiting += command.commands.values()
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        missing = [each.opts[0] for each in options if each.opts[0] not in page]
        assert missing == [], f"{command.name} in garlicfarm-{name}.1"


def test_the_page_of_the_configuration_has_every_setting() -> None:
    page = shown(PAGES["garlicfarm.toml.5"])
    assert [key for key in SETTINGS if key not in page] == []
    assert "`" not in page
    assert "](" not in page


# -- the configuration that comes along --------------------------------------------------------------------------------


def test_the_configuration_needs_no_change_on_a_lan(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(example_configuration.text())
    lan = Network(lambda: [LanInterface("eth0", "192.168.1.10", "192.168.1.255")])
    configuration = load_configuration(file, machine=Machine(network=lan))
    assert str(configuration.farm_key) == "/etc/garlicfarm/farm.key"
    assert str(configuration.state_dir) == "/var/lib/garlicfarm"


def test_the_configuration_names_every_setting_once_and_is_toml_without_its_marks() -> None:
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


def test_a_line_without_its_mark_is_a_default_or_an_example_of_the_right_kind() -> None:
    table = tomllib.loads(re.sub(r"^#(?=[\w\[])", "", example_configuration.text(), flags=re.MULTILINE))
    assert table["gossip"]["capacity"] == SETTINGS["gossip.capacity"].value
    assert table["gossip"]["seeds"] == ["192.168.1.11:7668", "192.168.1.12:7668"]
    assert table["demo"] is False


# -- the service -------------------------------------------------------------------------------------------------------


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    # It looks for the programs that a unit names, and this machine need not have them.
    unit = tmp_path / "garlicfarm.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/garlicfarm", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)  # noqa: S607
    assert [line for line in done.stderr.splitlines() if "garlicfarm" in line] == []
    assert done.returncode == 0


def test_the_unit_leaves_the_service_no_more_than_it_needs(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    unit = tmp_path / "garlicfarm.service"
    unit.write_text(UNIT.read_text())
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_unit_and_the_configuration_name_the_same_places() -> None:
    unit, text = UNIT.read_text(), example_configuration.text()
    assert f"--config /{deb.CONFIGURATION}" in unit
    assert f'farm_key = "{re.findall("ConditionPathExists=(.*)", unit)[0]}"' in text
    assert f'state_dir = "/var/lib/{re.findall("StateDirectory=(.*)", unit)[0]}"' in text


@pytest.mark.parametrize("script", deb.SCRIPTS)
def test_a_maintainer_script_is_one_that_sh_reads_and_ends_at_a_failure(script: str) -> None:
    path = ROOT / "deploy" / "debian" / script
    subprocess.run(["sh", "-n", path], check=True)  # noqa: S607
    assert "\nset -e\n" in path.read_text()


def test_no_maintainer_script_removes_keys_or_state() -> None:
    for script in deb.SCRIPTS:
        lines = (ROOT / "deploy" / "debian" / script).read_text().splitlines()
        removing = [line for line in lines if re.search(r"\brm -", line) and "echo" not in line]
        kept = [line for line in removing if "__pycache__" not in line and " /run/garlicfarm.was-stopped" not in line]
        assert kept == [], script


# -- targets -----------------------------------------------------------------------------------------------------------


def test_a_target_without_packages_is_refused_with_those_that_there_are() -> None:
    for python, architecture in (("3.9", "amd64"), ("3.11", "s390x")):
        with pytest.raises(PackagingError, match=r"3\.11 \(Debian 12\).*amd64, arm64"):
            target(python, architecture)


def test_the_compiled_wheel_is_taken_where_it_fits_and_the_pure_one_elsewhere(tmp_path: Path) -> None:
    pure = tmp_path / "garlicfarm-0.1.0-py3-none-any.whl"
    compiled = tmp_path / "garlicfarm-0.1.0-cp311-cp311-linux_x86_64.whl"
    with pytest.raises(PackagingError, match="make dist"):
        own_wheel(target("3.11", "amd64"), tmp_path)
    pure.touch()
    compiled.touch()
    assert own_wheel(target("3.11", "amd64"), tmp_path) == compiled
    assert own_wheel(target("3.11", "arm64"), tmp_path) == pure
    assert own_wheel(target("3.13", "amd64"), tmp_path) == pure


def test_the_page_of_platforms_has_the_packages_of_the_base_and_every_machine() -> None:
    page = platforms.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9.-]+) \| (\S+) \|", page, re.MULTILINE)
    assert [row for row in rows if row[0] != "package"] == platforms.pinned(), "make requirements"
    assert f"| package | version | {' | '.join(MACHINES)} |" in page
    assert all(f"{each.name} (Python {each.python})" in page for each in RELEASES.values())


# -- the image ---------------------------------------------------------------------------------------------------------


def test_the_image_runs_as_a_user_of_its_own_with_a_volume_and_a_check() -> None:
    steps = dict(re.findall(r"^([A-Z]+) (.+)$", CONTAINERFILE.read_text(), re.MULTILINE))
    assert steps["USER"] == "7668:7668"
    assert steps["VOLUME"] == "/var/lib/garlicfarm"
    assert "HEALTHCHECK" in steps
    release = RELEASES["3.11"].name.split()[1]
    assert steps["FROM"] == {"12": "debian:bookworm-slim"}[release]


def test_the_context_of_the_image_has_the_package(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match="make dist"):
        lay_out(tmp_path, "amd64")
    (tmp_path / deb.package_name(target("3.11", "amd64"))).write_bytes(b"package")
    context = lay_out(tmp_path, "amd64")
    assert sorted(path.name for path in context.iterdir()) == ["Containerfile", "garlicfarm.deb"]
