"""The network of a run: one network namespace for each node, on a bridge, with faults on each cable.

    node 1: eth0 192.168.77.1 ── port1 ──┐                      nftables in the namespace drops packets
    node 2: eth0 192.168.77.2 ── port2 ──┼── bridge: 192.168.77.100, the clients
    node 3: eth0 192.168.77.3 ── port3 ┈ relay ┈ side3 ─ join3 ──┘    a relay delays and loses frames

The harness runs in new namespaces for network, processes and mounts. There the harness is the first process, so the
kernel ends all nodes and removes all networks with it, even after SIGKILL. No route leads out. If the kernel has
`netem`, it delays the frames; otherwise the relay, a process between the port and the bridge, does.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.soak.jepsen.schedule import NODES

HARNESS_ADDRESS: Final = "192.168.77.100"
PROGRAMS: Final = {
    "ip": "iproute2",
    "nft": "nftables",
    **dict.fromkeys(("unshare", "nsenter", "setpriv"), "util-linux"),
}
INSIDE: Final = "JEPSEN_INSIDE"
_TIMEOUT_S: Final = 10.0


def address(number: int) -> str:
    return f"192.168.77.{number}"


def missing() -> str | None:
    """Return the reason why this machine cannot run it, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"the program {program} is missing (Debian: apt-get install {package})"
    return None


def entrance() -> list[str]:
    """Return the start of a command that runs in new namespaces; when it ends, all processes in them end."""
    # The kernel ends `unshare` also with the process that waits for it.
    namespaces = ("--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces]


class Network:
    """The bridge, the namespaces and the present faults of the packets."""

    def __init__(self, seed: int) -> None:
        """Make the bridge and the namespaces of all nodes."""
        self._seed = seed
        self._rules: dict[int, dict[int, list[str]]] = {number: {} for number in range(1, NODES + 1)}
        self._impairments: dict[int, dict[int, tuple[float, float]]] = {number: {} for number in range(1, NODES + 1)}
        self._relays: dict[int, subprocess.Popen[bytes]] = {}
        Path("/run/netns").mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        # A port outside the bridge must not reply for the bridge.
        Path("/proc/sys/net/ipv4/conf/all/arp_ignore").write_text("1\n", encoding="ascii")
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "lan", "type", "bridge")
        _ip("link", "set", "lan", "up")
        _ip("addr", "add", f"{HARNESS_ADDRESS}/24", "dev", "lan")
        for number in self._rules:
            self._plug_in(number)
        self.has_netem = self._try_netem()

    def _plug_in(self, number: int) -> None:
        name, port = namespace(number), f"port{number}"
        _ip("netns", "add", name)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "add", f"join{number}", "type", "veth", "peer", "name", f"side{number}")
        _ip("link", "set", f"join{number}", "master", "lan", "up")
        _ip("link", "set", f"side{number}", "up")
        _ip("link", "set", port, "master", "lan", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{address(number)}/24", "brd", "+", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")

    def _try_netem(self) -> bool:
        if shutil.which("tc") is None:
            return False
        command = ["tc", "-n", namespace(1), "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "0ms"]
        found = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 0
        if found:
            _run("tc", "-n", namespace(1), "qdisc", "del", "dev", "eth0", "root")
        return found

    def close(self) -> None:
        """End the relays; the namespaces end with the harness."""
        for relay in self._relays.values():
            relay.kill()
            relay.wait(_TIMEOUT_S)

    # -- dropped packets -----------------------------------------------------------------------------------------------

    def block(self, fault: int, sources: Sequence[int], targets: Sequence[int], *, both_ways: bool) -> None:
        """Drop the packets from `sources` to `targets` until `unblock`, and with `both_ways` the replies."""
        there = ", ".join(map(address, targets))
        for number in sources if targets else ():
            self._rules[number][fault] = [f"output ip daddr {{ {there} }} drop"]
            if both_ways:
                self._rules[number][fault].append(f"input ip saddr {{ {there} }} drop")
            self._filter(number)

    def block_udp(self, fault: int, targets: Sequence[int]) -> None:
        """Drop all UDP packets of some nodes until `unblock`."""
        for number in targets:
            self._rules[number][fault] = ["output meta l4proto udp drop", "input meta l4proto udp drop"]
            self._filter(number)

    def unblock(self, fault: int) -> None:
        for number, rules in self._rules.items():
            if rules.pop(fault, None) is not None:
                self._filter(number)

    def _filter(self, number: int) -> None:
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0;\n"
            + "".join(
                f"{rule.removeprefix(hook)}\n"
                for rules in self._rules[number].values()
                for rule in rules
                if rule.startswith(hook)
            )
            + "}\n"
            for hook in ("input", "output")
        )
        text = f"table inet jepsen\ndelete table inet jepsen\ntable inet jepsen {{\n{chains}}}\n"
        _run("ip", "netns", "exec", namespace(number), "nft", "-f", "-", stdin=text)

    # -- delay and loss ------------------------------------------------------------------------------------------------

    def set_impairment(self, fault: int, targets: Sequence[int], delay_ms: float, loss: float) -> None:
        """Delay each packet of some nodes by about `delay_ms`, and lose a share `loss`, until `clear_impairment`."""
        for number in targets:
            self._impairments[number][fault] = (delay_ms, loss)
            self._apply_impairments(number)

    def clear_impairment(self, fault: int) -> None:
        """End a delay or loss."""
        for number, impairments in self._impairments.items():
            if impairments.pop(fault, None) is not None:
                self._apply_impairments(number)

    def _apply_impairments(self, number: int) -> None:
        present = self._impairments[number].values()
        delays, losses = zip(*present, strict=True) if present else ((), ())
        delay_ms, loss = sum(delays), max(losses, default=0.0)
        if self.has_netem:
            where = ("tc", "-n", namespace(number), "qdisc")
            action = "replace" if self._impairments[number] else "del"
            netem = ("netem", "delay", f"{delay_ms}ms", f"{delay_ms / 2}ms", "loss", f"{loss * 100}%")
            _run(*where, action, "dev", "eth0", "root", *(netem if self._impairments[number] else ()))
            return
        if number in self._relays:
            relay = self._relays.pop(number)
            relay.kill()
            relay.wait(_TIMEOUT_S)
            _ip("link", "set", f"port{number}", "master", "lan")
            # The bridge must not send frames for the node to the other port.
            _ip("link", "set", f"join{number}", "type", "bridge_slave", "fdb_flush")
        if self._impairments[number]:
            _ip("link", "set", f"port{number}", "nomaster")
            figures = (str(delay_ms), str(loss), str(self._seed + number))
            self._relays[number] = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("relay.py"), f"port{number}", f"side{number}", *figures]
            )


def namespace(number: int) -> str:
    return f"jepsen{number}"


def inside(number: int) -> list[str]:
    return [shutil.which("nsenter") or "nsenter", f"--net=/run/netns/{namespace(number)}"]


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, stdin: str = "") -> None:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{stdin}"
