"""A LAN of scratch machines: a bridge in a separate network namespace, and a virtual cable to each machine.

    machine 1: eth0 192.168.77.1/24 ──┐
    machine 2: eth0 192.168.77.2/24 ──┼── bridge
    machine 3: eth0 192.168.77.3/24 ──┘

The bridge disappears with the first process of its namespace, and each cable with its ends.
"""

import subprocess
from types import TracebackType
from typing import Self

from tests.packages.machine import START_BOUND_S, Machine

SETUP = "ip link add lan type bridge && ip link set lan up && echo ready && exec cat"


class Lan:
    """A LAN that exists within the block."""

    def __init__(self) -> None:
        self._switch: subprocess.Popen[str] | None = None
        self._ports = 0

    def __enter__(self) -> Self:
        self._switch = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", SETUP],  # noqa: S607 - found on the path
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ready\n", "the bridge could not be made; its messages are above"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._switch is not None:
            self._switch.communicate(timeout=START_BOUND_S)

    def plug_in(self, machine: Machine) -> str:
        """Connect a machine with a cable, assign the next address to it, and return the address."""
        return self.plug_in_namespace(machine.pid)

    def plug_in_namespace(self, pid: int) -> str:
        """Connect the network namespace of a process."""
        self._ports += 1
        port, address = f"port{self._ports}", f"192.168.77.{self._ports}"
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._ip("link", "set", port, "master", "lan", "up")
        ip_in(pid, "addr", "add", f"{address}/24", "brd", "+", "dev", "eth0")
        ip_in(pid, "link", "set", "eth0", "up")
        return address

    def _ip(self, *arguments: str) -> None:
        assert self._switch is not None
        ip_in(self._switch.pid, *arguments)


def ip_in(pid: int, *arguments: str) -> None:
    """Run `ip` in the network namespace of a process."""
    subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *arguments], check=True)  # noqa: S607 - found on the path
