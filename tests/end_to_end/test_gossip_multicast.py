"""Announcements by broadcast and multicast, IPv4 and IPv6, on a LAN of network namespaces.

Namespaces need root and iproute2; without them the tests are skipped with this reason. Each node is a process in its
own namespace: loopback would hide a wrong interface.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

TIMEOUT_S = 60
NODE = """
import sys, trio, gossip
host, target, others = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main():
    settings = {"broadcast": gossip.Address(target, 7946), "interface": "eth0"}
    async with gossip.open_group(gossip.Address(host, 7946), key=b"k" * 32, **settings) as group:
        async for event in group.events():
            if len(group.members()) == others:
                print("found", *sorted(each.info.address.host for each in group.members()), flush=True)
                break
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)  # noqa: S607 - at any path


@pytest.fixture
def lan() -> Iterator[list[str]]:
    """Create two namespaces on a common bridge, 192.168.78.x and fd78::x; yield their names."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    prefix = f"gm{os.getpid()}"
    switch, names = f"{prefix}s", [f"{prefix}r{number}" for number in (1, 2)]
    with ExitStack() as stack:
        try:
            _ip("netns", "add", switch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        stack.callback(_ip, "netns", "del", switch)
        _ip("-n", switch, "link", "add", "lan", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", switch, "link", "set", "lan", "up")
        for number, name in enumerate(names, start=1):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "lan", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"192.168.78.{number}/24", "brd", "+", "dev", "eth0")
            _ip("-n", name, "addr", "add", f"fd78::{number}/64", "dev", "eth0", "nodad")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield names


@pytest.mark.parametrize(
    ("hosts", "target"),
    [
        pytest.param(("192.168.78.1", "192.168.78.2"), "192.168.78.255", marks=pytest.mark.soak),  # test_lan uses it
        (("192.168.78.1", "192.168.78.2"), "239.76.69.7"),
        (("fd78::1", "fd78::2"), "ff02::7669"),
        pytest.param(("fd78::1", "fd78::2"), "ff05::7669", marks=pytest.mark.soak),
    ],
    ids=["IPv4 broadcast", "IPv4 multicast", "IPv6 multicast on the link", "IPv6 multicast in the site"],
)
def test_lan_nodes_discover_each_other_without_addresses(lan: list[str], hosts: tuple[str, str], target: str) -> None:
    with ExitStack() as stack:
        processes = []
        for name, host in zip(lan, hosts, strict=True):
            process = subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-c", NODE, host, target, "1"],  # noqa: S607
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)  # at its end, the standard input closes, and the process ends
            stack.callback(process.kill)
            processes.append(process)
        for process, other in zip(processes, reversed(hosts), strict=True):
            assert process.stdout is not None
            assert process.stdout.readline().split() == ["found", other]
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(TIMEOUT_S) == 0
