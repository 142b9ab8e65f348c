"""The service of the Debian package under a real systemd: notification, watchdog, restart, journal, upgrade.

The tests of this file are one story on one machine; their order matters.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.booted_machine import SYSTEMD, BootedMachine
from tests.packages.on_loopback import DEMO

pytestmark = pytest.mark.packages

START_BOUND_S = 60.0
WATCHDOG_S = 4
RESTART_BOUND_S = 60.0
LINE_BOUND_S = 20.0
DROP_IN = f"[Service]\nWatchdogSec={WATCHDOG_S}\nRestartSec=1\n"


@pytest.fixture(scope="module")
def booted(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    """Return a machine with systemd and the installed package."""
    if not SYSTEMD.exists():
        pytest.skip("needs systemd (Debian: apt-get install systemd)")
    with BootedMachine(tmp_path_factory.mktemp("booted")) as made:
        made.install(package)
        yield made


def test_service_without_key_is_skipped_by_systemd(booted: BootedMachine) -> None:
    booted.run("systemctl", "start", "garlicfarm")
    assert booted.property("ActiveState") == "inactive"
    assert booted.property("ConditionResult") == "no"


def test_started_service_is_active_after_its_notification(booted: BootedMachine) -> None:
    """`systemctl start` returns when the node is ready; all restrictions of the unit apply."""
    booted.run("garlicfarm", "keys", "new-farm", "--expect", "1", "--output", "/etc/garlicfarm/farm.key")
    configuration = booted.root / "etc/garlicfarm/node.toml"
    head = configuration.read_text().partition("\n[gossip]\n")[0].replace(*DEMO)
    configuration.write_text(f'{head}\n[gossip]\nbind = "127.0.0.1:7670"\ntiming = "local"\n')
    drop_in = booted.root / "etc/systemd/system/garlicfarm.service.d/test.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(DROP_IN)
    booted.run("systemctl", "daemon-reload")
    started = booted.run("systemctl", "start", "garlicfarm", check=False)
    assert started.returncode == 0, booted.journal()
    assert (booted.property("ActiveState"), booted.property("SubState")) == ("active", "running")
    assert (booted.property("Type"), booted.property("User")) == ("notify", "garlicfarm")
    assert booted.view()["node"]["stateDirectory"] == "/var/lib/garlicfarm"


def test_watchdog_restarts_hanging_node(booted: BootedMachine) -> None:
    before, pid = int(booted.property("NRestarts")), booted.property("MainPID")
    booted.run("kill", "-STOP", pid)
    booted.wait_until("NRestarts", str(before + 1), WATCHDOG_S + RESTART_BOUND_S)
    booted.wait_until("SubState", "running", START_BOUND_S)
    assert booted.property("MainPID") != pid
    assert "Watchdog timeout" in booted.journal()


def test_killed_node_is_restarted_with_its_identity(booted: BootedMachine) -> None:
    before, node_id = int(booted.property("NRestarts")), booted.view()["node"]["nodeId"]
    booted.run("kill", "-KILL", booted.property("MainPID"))
    booted.wait_until("NRestarts", str(before + 1), RESTART_BOUND_S)
    booted.wait_until("SubState", "running", START_BOUND_S)
    assert booted.view()["node"]["nodeId"] == node_id


def test_log_continues_after_rotation_of_the_journal(booted: BootedMachine) -> None:
    """The node logs to the journal, which systemd rotates; the node does not have a log file to rotate."""
    pid = booted.property("MainPID")
    booted.run("journalctl", "--rotate")
    assert "user-event" not in booted.current_journal()
    booted.run("garlicfarm", "event", "after-rotation")
    booted.wait_for_line("user-event: ", "after-rotation", timeout_s=LINE_BOUND_S)
    assert booted.property("MainPID") == pid, "the node was not restarted"


def test_upgrade_of_running_service_keeps_its_identity(booted: BootedMachine, package: Path) -> None:
    node_id = booted.view()["node"]["nodeId"]
    booted.install(package)
    booted.run("systemctl", "restart", "garlicfarm")
    booted.wait_until("SubState", "running", START_BOUND_S)
    assert booted.view()["node"]["nodeId"] == node_id


def test_stopped_service_ends_without_failure(booted: BootedMachine) -> None:
    booted.run("systemctl", "stop", "garlicfarm")
    assert (booted.property("ActiveState"), booted.property("Result")) == ("inactive", "success")
