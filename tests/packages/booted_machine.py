"""A scratch machine that runs a real systemd as its first process.

    overlay over `/` ─▶ its own /proc, /sys, cgroup, /dev, /run, network ─▶ pivot_root ─▶ systemd

The control group is a new one of version 2, so systemd has its own tree, without controllers. The machine ends with the
process that made it. It needs root, a kernel that allows new namespaces, and the package `systemd` on this machine.
"""

import json
import secrets
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.packages.machine import Machine, child_of

SYSTEMD = Path("/lib/systemd/systemd")
BOOT_BOUND_S = 90.0
POLL_S = 0.2
SETUP = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/merged"
cd "$1/merged"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for each in null zero full random urandom tty; do touch dev/$each; mount --bind /dev/$each dev/$each; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 tmpfs run
ip link set lo up
echo "$3" | tee etc/hostname >/proc/sys/kernel/hostname
rm -rf etc/machine-id etc/systemd/system/*.wants var/log/journal
echo "$2" >etc/machine-id
mkdir -p .former var/log/journal
pivot_root . .former
umount -l /.former
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
"""


class BootedMachine(Machine):
    """A machine with systemd, which exists within the block."""

    def __enter__(self) -> Self:
        namespaces = ["--mount", "--net", "--uts", "--pid", "--ipc", "--cgroup", "--fork", "--kill-child"]
        arguments = [str(self._scratch), secrets.token_hex(16), self._name or "booted"]
        self._first = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", SETUP, "sh", *arguments],  # noqa: S607 - found on the path
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + BOOT_BOUND_S
        while not self._has_booted():
            assert self._first.poll() is None, self._first.stderr.read() if self._first.stderr else ""
            assert time.monotonic() < deadline, f"systemd did not start within {BOOT_BOUND_S:g} s"
            time.sleep(POLL_S)
        return self

    def _has_booted(self) -> bool:
        assert self._first is not None
        try:
            self._pid = child_of(self._first.pid)
        except (OSError, IndexError):
            return False
        if Path(f"/proc/{self._pid}/comm").read_text().strip() != "systemd":
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in {"running", "degraded"}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._first is not None:
            # Its first process ends with this one, and with it all others.
            self._first.kill()
            self._first.wait(BOOT_BOUND_S)
            if self._first.stderr is not None:
                self._first.stderr.close()

    def property(self, name: str, unit: str = "garlicfarm.service") -> str:
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def wait_until(self, name: str, value: str, timeout_s: float, unit: str = "garlicfarm.service") -> None:
        """Wait until a property of a unit has this value."""
        deadline = time.monotonic() + timeout_s
        while (found := self.property(name, unit)) != value:
            assert time.monotonic() < deadline, f"{name} is {found}, not {value}\n{self.journal()}"
            time.sleep(POLL_S)

    def journal(self) -> str:
        """Return the last lines of the service in the journal."""
        return self.run("journalctl", "--no-pager", "--lines=40", "--unit=garlicfarm", check=False).stdout

    def current_journal(self) -> str:
        """Return the lines of the service in the present file of the journal."""
        current = "--file=/var/log/journal/*/system.journal"
        return self.run("journalctl", "--no-pager", current, "--unit=garlicfarm", check=False).stdout

    def wait_for_line(self, *parts: str, timeout_s: float) -> None:
        """Wait until a line of the current journal has these parts."""
        deadline = time.monotonic() + timeout_s
        while not any(all(each in line for each in parts) for line in self.current_journal().splitlines()):
            assert time.monotonic() < deadline, f"no line with {parts}\n{self.current_journal()}"
            time.sleep(POLL_S)

    def view(self) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads(self.run("garlicfarm", "status", "--json", check=False).stdout)
        return found
