"""A scratch copy of this machine: a file system, a network and processes of its own, which leave nothing behind.

    mount namespace     an overlay over `/`, whose upper layer is a tmpfs: everything can be written, nothing stays
    network namespace   a loopback interface, and no other
    process namespace   ends with the first process, which ends with the test's pipe
    host name           its own, and a machine id, if it is given a name
    /run                empty, so that maintainer scripts find no service manager

So a package can be installed by dpkg itself, with its maintainer scripts, without a second Debian. It needs root, and a
kernel that lets this process make namespaces; where one is missing the tests are skipped with the reason.
"""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

TOOLS = ("unshare", "nsenter", "mount", "ip", "setpriv")
START_BOUND_S = 20.0
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
# Ready is said from inside: until then the first process, by which its files are reached, has this machine's root.
exec chroot "$1/merged" sh -c 'echo ready; exec cat'
"""


def why_not() -> str:
    """Why no such machine can be made here; empty if one can."""
    missing = [each for each in TOOLS if shutil.which(each) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: apt-get install util-linux mount iproute2)"
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    with suppress(OSError):
        tried = subprocess.run(["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"], check=False)  # noqa: S607
        if tried.returncode == 0:
            return ""
    return "this kernel or container lets no process make namespaces"


class Machine:
    """Made when the block begins, gone when it ends."""

    def __init__(self, scratch: Path, lower: Path = Path("/"), name: str = "") -> None:
        """`scratch`: an empty directory; `lower`: the file system that is copied, this machine's unless told."""
        self._scratch = scratch
        self._name = name
        self._lower = lower
        self._first: subprocess.Popen[str] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        namespaces = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]
        arguments = [self._scratch, self._lower, self._name, secrets.token_hex(16)]
        self._first = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", SETUP, "sh", *map(str, arguments)],  # noqa: S607 - wherever it lies
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
        """Of its first process, by which its namespaces are named."""
        return self._pid

    @property
    def root(self) -> Path:
        """The machine's `/`, as this process reaches it; what is written there must never reach this machine's."""
        root = Path(f"/proc/{self._pid}/root")
        assert not root.samefile("/"), "the scratch machine is not there yet, or no longer"
        return root

    def command(self, arguments: Sequence[str | Path], *, network: bool = False) -> list[str]:
        """What runs `arguments` in it, as root. `network`: with this machine's network in place of its own."""
        into = ["nsenter", f"--target={self._pid}", "--mount", "--uts", "--pid", "--root", *["--net"] * (not network)]
        return [*into, "env", "--chdir=/", *map(str, arguments)]

    def run(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        network: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in it to its end."""
        done = subprocess.run(
            self.command(arguments, network=network),
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            env=clean_environment(environment or {}),
        )
        assert done.returncode == 0 or not check, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def wait_for(self, path: str, timeout_s: float) -> Path:
        """Until a file is there; its path as this process reaches it."""
        deadline = time.monotonic() + timeout_s
        while not (found := sorted(self.root.glob(path.lstrip("/")))):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {path}"
            time.sleep(0.05)
        return found[0]


def child_of(pid: int) -> int:
    """The process that a waiting `unshare` or `nsenter` has forked."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """What a service is started with: nothing of the user's."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **more}
