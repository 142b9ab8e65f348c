"""The network namespace of the closed I2P network: its requirements, its entrance and its isolation.

`python -m tests.interop.i2p` runs pytest in new namespaces for network and processes. There pytest is the first
process, so the kernel ends all routers and nodes with it, even after SIGKILL. The namespace has only the loopback
device; `isolate` gives it the addresses of the routers, after a check that no route leads elsewhere.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

BUILD: Final = Path(__file__).parents[3] / "build" / "interop-i2p"
I2PD: Final = BUILD / "root" / "usr" / "sbin" / "i2pd"
JARS: Final = BUILD / "jars"
CLASSES: Final = BUILD / "classes"
_PROGRAMS: Final = ("ip", "unshare", "java")
_IP_TIMEOUT_S: Final = 10.0


def missing() -> str | None:
    """Return a description of the missing requirement, or None."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"the program {program} is missing"
    for path in (I2PD, JARS / "router-2.7.0.jar", CLASSES / "NetworkRouter.class"):
        if not path.is_file():
            return f"{path} is missing; `make interop-i2p` makes it (Debian, Maven, a Java development kit)"
    return None


def program(name: str) -> str:
    """Return the path of a program that `missing` found."""
    path = shutil.which(name)
    assert path is not None
    return path


def entrance(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` in new namespaces; its end, for any reason, ends all processes in them."""
    return ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


def outside() -> str | None:
    """Return the reason why this process is not in a namespace of `entrance`, or None."""
    devices = [name for _, name in socket.if_nameindex()]
    if devices != ["lo"] or os.getpid() != 1:
        return "not in a network namespace; `make interop-i2p` enters one"
    return None


def isolate(addresses: Sequence[str]) -> None:
    """Start the loopback device with these addresses. Raises AssertionError if a route leads to another device."""
    _ip("link", "set", "lo", "up")
    for address in addresses:
        _ip("address", "replace", f"{address}/32", "dev", "lo")
    routes = [line for family in ("-4", "-6") for line in _ip(family, "route", "show", "table", "all").splitlines()]
    leaving = [line for line in routes if "dev lo" not in line]
    assert not leaving, f"a route leaves the namespace: {leaving}"


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        [program("ip"), *arguments], capture_output=True, text=True, timeout=_IP_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def run(arguments: Sequence[str]) -> int:
    """Run pytest, in a namespace if all requirements are present; return its exit code."""
    if outside() is not None and missing() is None:
        command = entrance([sys.executable, "-m", "tests.interop.i2p", *arguments])
        os.execvp(command[0], command)
    # The kernel ignores SIGTERM to the first process of a namespace unless the process handles it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return pytest.main(list(arguments))
