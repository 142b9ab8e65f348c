"""The namespaces of the closed I2P network: its requirements, its entrance, its isolation, and namespaces of clients.

`python -m tests.interop.i2p` runs pytest in new namespaces for network and processes. There pytest is the first
process, so the kernel ends all routers and nodes with it, even after SIGKILL. The namespace has only the loopback
device; `isolate` gives it the addresses of the routers, after a check that no route leads elsewhere.

A `ClientNamespace` is a further network namespace with one open port. All addresses lead to its loopback device, so the
kernel's counters have each attempt of a program to reach another port or host.
"""

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.end_to_end.farm import wait_until
from tests.processes import END_S, child

BUILD: Final = Path(__file__).parents[3] / "build" / "interop-i2p"
PACKAGES: Final = BUILD / "root"
I2PD: Final = PACKAGES / "usr" / "sbin" / "i2pd"
SSHD: Final = I2PD.with_name("sshd")
JARS: Final = BUILD / "jars"
CLASSES: Final = BUILD / "classes"
BRIDGE_CLASSES: Final = BUILD / "sam"
_PROGRAMS: Final = ("ip", "unshare", "nsenter", "java")
_IP_TIMEOUT_S: Final = 10.0
_COPY_BYTES: Final = 65_536
_ALL_LOCAL: Final = ("route", "add", "local", "default", "dev", "lo")
"""A route for all addresses of other hosts."""


def missing() -> str | None:
    if os.geteuid() != 0:
        return "a network namespace needs root"
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"the program {program} is missing"
    for path in (I2PD, SSHD, JARS / "router-2.7.0.jar", CLASSES / "NetworkRouter.class"):
        if not path.is_file():
            return f"{path} is missing; `make interop-i2p` makes it (Debian, Maven, a Java development kit)"
    return None


def program(name: str) -> str:
    """Return the path of a program that `missing` found."""
    path = shutil.which(name)
    assert path is not None
    return path


def library_path() -> str:
    return ":".join(sorted({str(each.parent) for each in PACKAGES.glob("**/*.so.*")}))


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


def with_files(files: Mapping[str, Path], directory: str, command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` with other contents of some files, and with an empty directory below /run.

    A new mount namespace hides both from other processes.
    """
    steps = [["mount", "-t", "tmpfs", "tmpfs", "/run"], ["mkdir", "-m", "755", directory]]
    steps += [["mount", "--bind", str(file), place] for place, file in files.items()]
    script = " && ".join(shlex.join(each) for each in (*steps, ["exec", *command]))
    return ["unshare", "--mount", "sh", "-c", script]


@dataclass(frozen=True)
class ClientNamespace:
    """A network namespace with the loopback device. `holder` is a process in it."""

    holder: int
    accepted: list[socket.socket] = field(default_factory=list)
    """The connections to its open port, if it has one."""

    def inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.holder), "--net", *command]

    def ip(self, *arguments: str) -> None:
        subprocess.run(self.inside([program("ip"), *arguments]), check=True, timeout=_IP_TIMEOUT_S)

    def opened(self) -> dict[str, int]:
        """Return the numbers of TCP connections and UDP datagrams that programs in the namespace have begun to send."""
        net = Path(f"/proc/{self.holder}/net")
        names, values = (line.split()[1:] for line in net.joinpath("snmp").read_text().splitlines() if "Tcp:" in line)
        udp = [line.split() for line in net.joinpath("snmp").read_text().splitlines() if line.startswith("Udp:")]
        udp6 = [line.split() for line in net.joinpath("snmp6").read_text().splitlines()]
        return {
            "tcp": int(dict(zip(names, values, strict=True))["ActiveOpens"]),
            "udp": int(dict(zip(*udp, strict=True))["OutDatagrams"]),
            "udp6": int(dict(udp6)["Udp6OutDatagrams"]),
        }


@contextmanager
def network_namespace() -> Iterator[ClientNamespace]:
    """Make a namespace for the block."""
    with child(["unshare", "--net", "sleep", "infinity"]) as holder:
        found = ClientNamespace(holder.pid)
        own, entered = Path("/proc/self/ns/net"), Path(f"/proc/{holder.pid}/ns/net")
        wait_until(lambda: entered.readlink() != own.readlink(), _IP_TIMEOUT_S, "the process enters a namespace")
        found.ip("link", "set", "lo", "up")
        yield found


@contextmanager
def client_namespace(port: int, target: tuple[str, int]) -> Iterator[ClientNamespace]:
    """Make a namespace whose port of loopback leads to `target` outside, within the block."""
    with network_namespace() as found:
        for family in ("-4", "-6"):
            found.ip(family, *_ALL_LOCAL)
        with _listener_in(found.holder, port) as listener:
            relay = threading.Thread(target=_relay, args=(listener, target, found.accepted), daemon=True)
            relay.start()
            try:
                yield found
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                relay.join(_IP_TIMEOUT_S)


def _listener_in(pid: int, port: int) -> socket.socket:
    """Return a socket that listens in the network namespace of a process. Only the thread enters the namespace."""
    made: list[socket.socket] = []

    def listen() -> None:
        with Path(f"/proc/{pid}/ns/net").open() as entered:
            assert ctypes.CDLL(None, use_errno=True).setns(entered.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        made.append(socket.create_server(("127.0.0.1", port)))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join(_IP_TIMEOUT_S)
    return made[0]


def _relay(listener: socket.socket, target: tuple[str, int], accepted: list[socket.socket]) -> None:
    """Copy both directions of each connection until the listener is shut down."""
    with suppress(OSError):
        while True:
            inner, _ = listener.accept()
            accepted.append(inner)
            outer = socket.create_connection(target)
            threading.Thread(target=_forward, args=(inner, outer), daemon=True).start()


def _forward(inner: socket.socket, outer: socket.socket) -> None:
    with inner, outer:
        replies = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
        replies.start()
        _copy(inner, outer)
        replies.join(END_S)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_COPY_BYTES):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def run(arguments: Sequence[str]) -> int:
    """Run pytest, in a namespace if all requirements are present; return its exit code."""
    if outside() is not None and missing() is None:
        command = entrance([sys.executable, "-m", "tests.interop.i2p", *arguments])
        os.execvp(command[0], command)
    # The kernel ignores SIGTERM to the first process of a namespace unless the process handles it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return pytest.main(list(arguments))
