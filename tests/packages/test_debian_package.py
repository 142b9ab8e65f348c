"""The Debian package: dpkg installs it, the service's command serves and publishes, and keys are never lost.

The tests of this file are one story on one machine; their order matters.
"""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.end_to_end.layout import read_meta_lease_set
from tests.packages.machine import Machine
from tests.packages.monitoring import DASHBOARD, EXAMPLE, RULES
from tests.packages.on_loopback import DEMO, ON_LOOPBACK
from tests.packages.service import END_BOUND_S, READY_BOUND_S, Service, Unit
from tests.structure.sources import ROOT

pytestmark = pytest.mark.packages

CONFIGURATION = "/etc/garlicfarm/node.toml"
PUBLISHED_BOUND_S = 60.0


def test_package_installs_its_parts(machine: Machine) -> None:
    assert "garlicfarm, version" in machine.run("garlicfarm", "--version").stdout
    assert machine.run("stat", "-c", "%U:%G %a", "/var/lib/garlicfarm").stdout.strip() == "garlicfarm:garlicfarm 700"
    assert machine.run("stat", "-c", "%U:%G %a", CONFIGURATION).stdout.strip() == "root:root 644"
    assert machine.run("dpkg", "--verify", "garlicfarm").stdout == ""
    assert (machine.root / "etc/systemd/system/multi-user.target.wants/garlicfarm.service").is_symlink()
    assert "Add, replace and remove nodes" in machine.run("garlicfarm", "help", "servers").stdout
    for path in ("bash-completion/completions/garlicfarm", "zsh/vendor-completions/_garlicfarm"):
        assert "_GARLICFARM_COMPLETE" in (machine.root / "usr/share" / path).read_text()
    assert (machine.root / "usr/share/man/man5/garlicfarm.toml.5.gz").exists()
    assert (machine.root / "usr/lib/systemd/user/garlicfarm-connect.service").exists()
    for file in (DASHBOARD, RULES, EXAMPLE):
        shared = machine.root / "usr/share/garlicfarm" / file.relative_to(ROOT / "deploy")
        assert shared.read_bytes() == file.read_bytes()


def test_environment_is_separate_from_system_python(machine: Machine) -> None:
    code = (
        "import click, sys; print(click.__file__, sys.prefix, [each for each in sys.path if 'dist-packages' in each])"
    )
    output = machine.run("/usr/lib/garlicfarm/bin/python", "-c", code).stdout.split(maxsplit=2)
    assert output[0].startswith("/usr/lib/garlicfarm/lib/")
    assert output[1:] == ["/usr/lib/garlicfarm", "[]\n"]


def test_service_without_key_does_not_start(machine: Machine) -> None:
    unit = Unit((machine.root / "lib/systemd/system/garlicfarm.service").read_text())
    assert unit.one("ConditionPathExists") == "/etc/garlicfarm/farm.key"
    assert not (machine.root / "etc/garlicfarm/farm.key").exists()
    assert "is missing" not in machine.run("garlicfarm", "config", "show", "--help").stdout


def test_service_publishes_until_it_stops(machine: Machine) -> None:
    machine.run("garlicfarm", "keys", "new-farm", "--expect", "1", "--output", "/etc/garlicfarm/farm.key")
    for file in ("/srv/master.key", "/srv/leaf.key"):
        machine.run("garlicfarm", "keys", "new-destination", file)
    signing = ("keys", "offline", "--master", "/srv/master.key", "--out", "/etc/garlicfarm/signing.key")
    machine.run("garlicfarm", *signing)
    leaf = tomllib.loads((machine.root / "srv/leaf.key").read_text())["destination"]
    # Without a router a node publishes only as a demonstration.
    configuration = machine.root / CONFIGURATION.lstrip("/")
    head = configuration.read_text().partition("\n[gossip]\n")[0].replace(*DEMO)
    configuration.write_text(head + ON_LOOPBACK.format(leaf=leaf))
    with Service(machine) as service:
        service.wait_for_notification("READY=1", READY_BOUND_S)
        structure = machine.wait_for("/var/lib/garlicfarm/published/*", PUBLISHED_BOUND_S)
        assert len(read_meta_lease_set(structure).entries) == 1
        view = json.loads(machine.run("garlicfarm", "status", "--json", check=False).stdout)
        assert view["node"]["stateDirectory"] == "/var/lib/garlicfarm"
        assert view["publishing"][0]["publisherName"] == view["node"]["name"]
        service.wait_for_notification("WATCHDOG=1", READY_BOUND_S)
        service.wait_for_notification("WATCHDOG=1", READY_BOUND_S)
        assert service.stop() == 0
        service.wait_for_notification("STOPPING=1", END_BOUND_S)


def test_members_are_completed_from_running_service(machine: Machine) -> None:
    with Service(machine) as service:
        service.wait_for_notification("READY=1", READY_BOUND_S)
        name = json.loads(machine.run("garlicfarm", "status", "--json", check=False).stdout)["node"]["name"]
        line = {"_GARLICFARM_COMPLETE": "bash_complete", "COMP_WORDS": "garlicfarm node evict ", "COMP_CWORD": "3"}
        assert machine.run("garlicfarm", environment=line).stdout == f"plain,{name}\n"
        assert service.stop() == 0


def test_status_for_another_user_names_required_user(machine: Machine) -> None:
    status = machine.run("setpriv", "--reuid=65534", "--clear-groups", "garlicfarm", "status", check=False)
    assert status.returncode == 1
    assert "/var/lib/garlicfarm (which only root may look into)" in status.stderr


def test_upgrade_keeps_configuration_keys_and_state(machine: Machine, package: Path) -> None:
    before = kept_files(machine)
    machine.install(package)
    assert kept_files(machine) == before
    with Service(machine) as service:
        service.wait_for_notification("READY=1", READY_BOUND_S)
        assert service.stop() == 0


def test_removal_keeps_keys_and_deletes_program(machine: Machine) -> None:
    before = kept_files(machine)
    machine.run("dpkg", "--remove", "garlicfarm")
    assert not (machine.root / "usr/lib/garlicfarm").exists()
    assert not (machine.root / "usr/bin/garlicfarm").is_symlink()
    assert kept_files(machine) == before


def test_purge_deletes_configuration_and_names_kept_keys(machine: Machine) -> None:
    before = kept_files(machine)
    output = machine.run("dpkg", "--purge", "garlicfarm").stdout
    assert "/etc/garlicfarm is kept" in output
    assert "/var/lib/garlicfarm is kept" in output
    after = kept_files(machine)
    assert {path: content for path, content in before.items() if not path.endswith(".toml")} == after
    assert machine.run("getent", "passwd", "garlicfarm").stdout.startswith("garlicfarm:")


def kept_files(machine: Machine) -> dict[str, bytes]:
    """Return the files in the directory of the configuration, and the node's identity."""
    found = [*(machine.root / "etc/garlicfarm").iterdir(), *(machine.root / "var/lib/garlicfarm").glob("identity*")]
    assert len(found) >= 3
    return {path.name: path.read_bytes() for path in found}


def test_lintian_reports_no_errors(package: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("no lintian here (Debian: apt-get install lintian)")
    done = subprocess.run(["lintian", "--allow-root", package], capture_output=True, text=True, check=False)  # noqa: S607
    assert [line for line in done.stdout.splitlines() if re.match(r"[EW]: ", line)] == []
