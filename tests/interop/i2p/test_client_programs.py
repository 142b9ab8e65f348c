"""Programs reach a farm through `garlicfarm connect`: ssh, with an SSH server at each leaf and bridges of both kinds.

ssh ─▶ connect --stdio ─▶ SAM of a router without a node ─▶ network ─▶ a leaf of the farm ─▶ sshd
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.end_to_end.farm import call, command, tail, wait_until
from tests.interop.i2p.farm import NetworkFarm, lan_farm
from tests.interop.i2p.java_router import JavaBridge
from tests.interop.i2p.namespace import BRIDGE_CLASSES, client_namespace
from tests.interop.i2p.network import Network
from tests.interop.i2p.router import LOOPBACK
from tests.interop.i2p.ssh_server import SshServer, ssh_server

pytestmark = pytest.mark.interop
READY_S: Final = 300.0
SSH_S: Final = 120.0
TRIES: Final = 5
BETWEEN_S: Final = 5.0
BYTES: Final = 200_000
SAM_PORT: Final = 7656


@dataclass(frozen=True)
class SshFarm:
    """A running farm whose leaves lead to one SSH server, and the link to it."""

    farm: NetworkFarm
    server: SshServer
    link: str

    def echo(self, sam: str, directory: Path, namespace: Sequence[str] = ()) -> str:
        """Send bytes through ssh and back; return the times of the tries. A try may fail, as in any I2P network."""
        directory.mkdir(exist_ok=True)
        options = ("--cache", directory, "--socket", directory / "socket", "--hops", "1")
        proxy = command("connect", "--stdio", self.link, "--sam", sam, *options)
        content = os.urandom(BYTES)
        tries = []
        for _ in range(TRIES):
            began_s = time.monotonic()
            arguments = [*namespace, *self.server.client(proxy, "cat")]
            done = subprocess.run(arguments, input=content, capture_output=True, timeout=SSH_S, check=False)
            tries.append(f"{time.monotonic() - began_s:.1f} s")
            if done.returncode == 0:
                assert done.stdout == content
                return ", ".join(tries)
            tries[-1] += f" ({done.stderr.decode().strip()})"
            time.sleep(BETWEEN_S)
        raise AssertionError(f"ssh failed: {tries}\n{tail(self.server.directory / 'sshd.log')}")


@pytest.fixture(scope="module")
def ssh_farm(_started_network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshFarm]:
    """Yield a farm next to a Java router and an i2pd."""
    network, directory = _started_network, tmp_path_factory.mktemp("ssh")
    network.repair()
    (directory / "server").mkdir()
    (directory / "farm").mkdir()
    with ssh_server(directory / "server") as server:
        routers = [network.java[1], network.i2pd[3], network.i2pd[4]]
        with lan_farm(network, directory / "farm", routers, server.port) as farm:
            farm.start_all()
            wait_until(farm.publishes_all_leaves, READY_S, "the farm publishes all leaves", farm.state)
            link = call("link", "--node", farm.running[0].directory).stdout.strip()
            yield SshFarm(farm, server, link)


def test_ssh_passes_through_network(network: Network, ssh_farm: SshFarm, tmp_path: Path) -> None:
    sam = network.i2pd[5].sam
    assert sam is not None
    print(f"\nssh through i2pd, {BYTES} bytes and back: {ssh_farm.echo(sam, tmp_path)}")


def test_ssh_passes_through_bridge_of_java(network: Network, ssh_farm: SshFarm, tmp_path: Path) -> None:
    if not BRIDGE_CLASSES.is_dir():
        pytest.skip(
            "Maven does not offer Java's SAM bridge; `make interop-i2p I2P_SOURCE=…` compiles it from a checkout"
        )
    with JavaBridge(network.observer, tmp_path) as sam:
        print(f"\nssh through Java, {BYTES} bytes and back: {ssh_farm.echo(sam, tmp_path)}")


def test_client_opens_connections_to_its_bridge_only(network: Network, ssh_farm: SshFarm, tmp_path: Path) -> None:
    bridge = network.i2pd[6].sam_bridge
    assert bridge is not None
    with client_namespace(SAM_PORT, (bridge.host, bridge.port)) as namespace:
        print(f"\nssh in a namespace: {ssh_farm.echo(f'{LOOPBACK}:{SAM_PORT}', tmp_path, namespace.inside([]))}")
        assert namespace.opened() == {"tcp": len(namespace.accepted), "udp": 0, "udp6": 0}
        assert namespace.accepted
        for address in ("192.0.2.1", "2001:db8::1"):
            other = f"import socket; socket.create_connection(({address!r}, 443))"
            subprocess.run(namespace.inside(["python3", "-c", other]), check=False, capture_output=True, timeout=SSH_S)
        assert namespace.opened()["tcp"] == len(namespace.accepted) + 2  # The counter has attempts elsewhere, too.
