"""The service of the Debian package on a scratch machine: its unit's command, started as systemd starts it.

    unit ─▶ ExecStartPre as root ─▶ ExecStart as its user, with its environment and a socket for notifications

Such a machine does not run systemd. `systemd-analyze` checks the other settings of the unit elsewhere: its file system
and its filter of system calls.
"""

import os
import shlex
import signal
import socket
import subprocess
from typing import Self

from tests.packages.machine import Machine, child_of, clean_environment

READY_BOUND_S = 60.0
END_BOUND_S = 30.0


class Unit:
    """The parts of the service's unit that a start without systemd needs."""

    def __init__(self, text: str) -> None:
        self._lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]

    def all(self, key: str) -> list[str]:
        return [value for name, _, value in self._lines if name == key]

    def one(self, key: str) -> str:
        """Return the value of a key that occurs once."""
        (value,) = self.all(key)
        return value


class Service:
    """The unit's command, started as systemd does: with its user, its environment and a socket for notifications."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.unit = Unit((machine.root / "lib/systemd/system/garlicfarm.service").read_text())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        unit, machine = self.unit, self._machine
        path = machine.root / "run/notify"
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        path.chmod(0o777)
        for before in unit.all("ExecStartPre"):
            assert before.startswith("+"), "it runs as root"
            machine.run(*shlex.split(before[1:]))
        environment = {
            **dict(each.split("=", 1) for each in unit.all("Environment")),
            "NOTIFY_SOCKET": "/run/notify",
            "WATCHDOG_USEC": str(int(unit.one("WatchdogSec")) * 1_000_000 // 8),
        }
        user = unit.one("User")
        as_user = ["setpriv", f"--reuid={user}", f"--regid={unit.one('Group')}", "--clear-groups", "--no-new-privs"]
        command = [*as_user, "--bounding-set=-all", *shlex.split(unit.one("ExecStart"))]
        with (machine.root / "srv/service.log").open("a") as log:
            self._process = subprocess.Popen(
                machine.command(command), stdout=log, stderr=subprocess.STDOUT, env=clean_environment(environment)
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._socket.close()
        print((self._machine.root / "srv/service.log").read_text())  # noqa: T201 - shown if the test fails

    def wait_for_notification(self, expected: str, timeout_s: float) -> list[str]:
        """Return the notifications of the service up to the expected one (first lines of datagrams)."""
        self._socket.settimeout(timeout_s)
        found: list[str] = []
        while not found or found[-1] != expected:
            assert self._process is not None
            found.append(self._socket.recv(4096).decode().partition("\n")[0])
        return found

    def kill(self) -> None:
        """Send SIGKILL to the node, as the kernel does when memory is full; wait until it has ended."""
        assert self._process is not None
        os.kill(child_of(self._process.pid), signal.SIGKILL)
        self._process.wait(END_BOUND_S)

    def stop(self) -> int:
        """Send SIGTERM to the node, as systemd does; return its exit status."""
        assert self._process is not None
        os.kill(child_of(self._process.pid), signal.SIGTERM)
        return self._process.wait(END_BOUND_S)
