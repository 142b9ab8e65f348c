"""A scratch copy of this machine: a separate file system, network and processes, without a trace at the end.

    mount namespace     an overlay over `/` with a tmpfs as upper layer: all paths are writable, no change is kept
    network namespace   only a loopback interface
    process namespace   ends with its first process, which ends with the test's pipe
    host name           a separate one, and a machine id, if it has a name
    /run                empty, so that maintainer scripts do not find a service manager

So dpkg itself can install a package, with its maintainer scripts, without a second Debian. This needs root and a kernel
that allows new namespaces; otherwise the tests are skipped with the reason.
"""

import os
import platform
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from deploy.deb import package_name
from deploy.environment import ROOT, supported_target

DIST = ROOT / "dist"
TOOLS = ("unshare", "nsenter", "mount", "ip", "setpriv")
START_BOUND_S = 20.0
COMMAND_BOUND_S = 300
SETUP = """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/merged"
mount -t proc proc "$1/merged/proc"
mount --rbind /dev "$1/merged/dev"
mount -t tmpfs -o mode=755 tmpfs "$1/merged/run"
ip link set lo up
if [ -n "$3" ]; then
    echo "$3" >/proc/sys/kernel/hostname
    echo "$3" >"$1/merged/etc/hostname"
    echo "$4" >"$1/merged/etc/machine-id"
fi
# "ready" is printed inside the new root: until then /proc/PID/root of the first process is this machine's root.
exec chroot "$1/merged" sh -c 'echo ready; exec cat'
"""


def reason_to_skip() -> str:
    """Return the reason why namespaces cannot be made here; empty if they can."""
    missing = [each for each in TOOLS if shutil.which(each) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: apt-get install util-linux mount iproute2)"
    if os.geteuid() != 0:
        return "needs root to make namespaces"
    with suppress(OSError):
        tried = subprocess.run(["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"], check=False)  # noqa: S607
        if tried.returncode == 0:
            return ""
    return "this kernel or container does not allow new namespaces"


def debian_package() -> Path:
    """Return the Debian package for the system's Python (not the Python of the virtual environment)."""
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    try:
        python_version = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a Debian system with its own Python: {error}")
    found = DIST / package_name(supported_target(python_version.stdout.strip(), architecture.stdout.strip()))
    assert found.exists(), f"{found.name} does not exist: `make dist` builds it (on {platform.platform()})"
    return found


class Machine:
    """A scratch machine that exists within the block."""

    def __init__(self, scratch: Path, lower: Path = Path("/"), name: str = "") -> None:
        """Create it in `scratch`, an empty directory, as a copy of `lower`, by default this machine's file system."""
        self._scratch = scratch
        self._name = name
        self._lower = lower
        self._first: subprocess.Popen[str] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        namespaces = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]
        arguments = [self._scratch, self._lower, self._name, secrets.token_hex(16)]
        self._first = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", SETUP, "sh", *map(str, arguments)],  # noqa: S607 - found on the path
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == "ready\n", "the machine could not be made; its messages are above"
        self._pid = child_of(self._first.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._first is not None:
            if self._first.stdin is not None:
                self._first.stdin.close()
            self._first.wait(START_BOUND_S)
            if self._first.stdout is not None:
                self._first.stdout.close()

    @property
    def pid(self) -> int:
        """The process id of its first process, which identifies its namespaces."""
        return self._pid

    @property
    def root(self) -> Path:
        """The machine's `/` as a path of this process. Never the root of this machine, which tests must not change."""
        root = Path(f"/proc/{self._pid}/root")
        assert not root.samefile("/"), "the scratch machine does not exist yet, or has ended"
        return root

    def command(self, arguments: Sequence[str | Path], *, network: bool = False) -> list[str]:
        """Return the command that runs `arguments` on it as root; with `network`, in this machine's network."""
        into = ["nsenter", f"--target={self._pid}", "--mount", "--uts", "--pid", "--root", *["--net"] * (not network)]
        return [*into, "env", "--chdir=/", *map(str, arguments)]

    def run(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        network: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on it and return the result; after `COMMAND_BOUND_S` the command is killed there."""
        # A timeout of `subprocess.run` would kill only nsenter, and the command would continue on the machine.
        bounded = ["timeout", "--signal=KILL", str(COMMAND_BOUND_S), *arguments]
        done = subprocess.run(
            self.command(bounded, network=network),
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_BOUND_S + START_BOUND_S,
            env=clean_environment(environment or {}),
        )
        assert done.returncode == 0 or not check, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def install(self, *packages: Path) -> None:
        """Install packages of this machine; the configuration files of the operator stay."""
        self._install(packages, "dpkg", "--force-confold", "--install")

    def upgrade(self, *packages: Path) -> None:
        """Install packages like the how-to for upgrades: by apt. Other packages stay."""
        self._install(packages, "apt-get", "install", "-y", "--no-remove", "-o", "Dpkg::Options::=--force-confold")

    def _install(self, packages: Sequence[Path], *command: str) -> None:
        for each in packages:
            (self.root / "srv" / each.name).write_bytes(each.read_bytes())
        names = [f"/srv/{each.name}" for each in packages]
        self.run(*command, *names, environment={"DEBIAN_FRONTEND": "noninteractive"})

    def wait_for(self, path: str, timeout_s: float) -> Path:
        """Wait for a file; return its path as seen by this process."""
        deadline = time.monotonic() + timeout_s
        while not (found := sorted(self.root.glob(path.lstrip("/")))):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {path}"
            time.sleep(0.05)
        return found[0]


def child_of(pid: int) -> int:
    """Return the process forked by a waiting `unshare` or `nsenter`."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a service, without variables of the user."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **more}
