"""On a LAN the farm's key is enough: routers with an interface each find one another by broadcast and found a farm.

The LAN is made of network namespaces: one holds a bridge, each router has one of its own with an address on it. Making
them needs root and iproute2; where they are not to be had the test is skipped with that reason.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.api.view import FarmView, Phase
from bridge.node.control.client import ask
from bridge.node.security.control_socket import SOCKET_NAME
from tests.end_to_end.farm import START_BOUND_S, call, command, tail, wait_until

pytestmark = pytest.mark.processes

ROUTERS = 3


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)  # noqa: S607 - wherever it lies


@pytest.fixture
def lan() -> Iterator[list[str]]:
    """The names of namespaces, each with one interface on a common bridge."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    prefix = f"gf{os.getpid()}"
    switch, names = f"{prefix}s", [f"{prefix}r{number}" for number in range(1, ROUTERS + 1)]
    with ExitStack() as stack:
        try:
            _ip("netns", "add", switch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        stack.callback(_ip, "netns", "del", switch)
        _ip("-n", switch, "link", "add", "lan", "type", "bridge")
        _ip("-n", switch, "link", "set", "lan", "up")
        for number, name in enumerate(names, start=1):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "lan", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"192.168.77.{number}/24", "brd", "+", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield names


def test_on_a_lan_the_farm_key_is_enough_and_no_address_is_needed(lan: list[str], tmp_path: Path) -> None:
    # given one key on three routers
    key = tmp_path / "farm.key"
    assert call("keys", "new-farm", "--expect", str(ROUTERS), "--output", key).returncode == 0
    with ExitStack() as stack:
        # when each is started with nothing but the key
        for name in lan:
            with (tmp_path / f"{name}.log").open("wb") as output:
                process = subprocess.Popen(
                    [
                        *("ip", "netns", "exec", name),
                        *command("run", "--farm-key", key, "--state-dir", tmp_path / name, "--name", name),
                        "--stop-with-stdin",
                    ],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            # Leaving the process's own context closes its pipe, upon which it stops, and waits for it.
            stack.enter_context(process)
        # then they found one farm and have a leader

        def views() -> list[FarmView]:
            return [ask(tmp_path / name / SOCKET_NAME, lambda client: client.view()) for name in lan]

        def founded() -> list[FarmView]:
            found = views()
            ready = all(view.node.phase is Phase.FOUNDED and view.raft.leader_id is not None for view in found)
            return found if ready else []

        found = wait_until(
            founded, START_BOUND_S, "a founded farm", lambda: "\n".join(tail(tmp_path / f"{name}.log") for name in lan)
        )
    assert len({view.farm.cluster_id for view in found}) == 1
    assert {member.address for view in found for member in view.members} == {
        f"192.168.77.{number}:7668" for number in range(1, ROUTERS + 1)
    }
