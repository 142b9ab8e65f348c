"""Publishing through i2pd with transient keys, and take-overs with a standby, measured at the floodfills.

`site-a` publishes whenever it can, `site-b` is the standby, and `site-c` completes the farm. The nodes run in the
namespace of the network and reach each other over loopback. No master key is on a node.
"""

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.api.view import PublishingView
from bridge.node.security.key_files import save_farm_key, save_signing_key
from bridge.wire.i2p.destination_keys import SigningKey, new_master_key
from bridge.wire.i2p.meta_lease_set import decode, verify
from bridge.wire.keys.farm_key import new_farm_key
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import Node, tail, wait_until
from tests.end_to_end.settings import free_port
from tests.interop.i2p.network import Network
from tests.interop.i2p.router import LOOPBACK, Router
from tests.processes import END_S

pytestmark = pytest.mark.interop
FORMATION_S = 120.0
ARRIVAL_S = 180.0
READY_S = 300.0
TAKE_OVERS = 3
GOAL_S = 25.0
LOOK_EVERY_S = 0.5
QUIET_S = 60
"""Seconds between the last structure and the end of its router: no earlier structure is in transit then."""


@dataclass(frozen=True)
class Farm:
    """Three nodes with their routers, and their master."""

    nodes: list[Node]
    keys: list[SigningKey]
    routers: list[Router]

    @property
    def hash(self) -> bytes:
        return self.keys[0].destination.hash

    def publishing(self) -> PublishingView | None:
        """Return the publication as `site-c` sees it; None before its first report."""
        return next(iter(self.nodes[2].view().publishing), None)

    def publisher(self) -> str | None:
        publishing = self.publishing()
        return None if publishing is None else publishing.publisher_name

    def is_settled(self) -> bool:
        """Return True if `site-a` published a while ago, and `site-b` is ready to take over."""
        publishing = self.publishing()
        return self.is_quiet() and publishing is not None and "site-b" in standbys(publishing)

    def is_quiet(self) -> bool:
        """Return True if `site-a` published a while ago."""
        publishing = self.publishing()
        if publishing is None or publishing.handed_over_s is None:
            return False
        names = (publishing.publisher_name, publishing.handed_over_by_name)
        return names == ("site-a", "site-a") and time.time() - publishing.handed_over_s > QUIET_S

    def state(self) -> str:
        return "\n".join(tail(each.log_file) for each in self.nodes)


def standbys(publishing: PublishingView) -> list[str | None]:
    return [each.name for each in publishing.standings if each.standby]


@pytest.fixture
def new_farm(tmp_path: Path) -> Iterator[Callable[[list[Router]], Farm]]:
    """Yield a function that starts a farm with a node next to each of three routers."""
    with ExitStack() as stack:

        def start(routers: list[Router]) -> Farm:
            master = new_master_key()
            save_farm_key(tmp_path / "farm.key", new_farm_key(3))
            ports = [free_port(socket.SOCK_DGRAM) for _ in routers]
            farm = Farm([], [], routers)
            for name, router, port, publish in zip("abc", routers, ports, ("on", "auto", "off"), strict=True):
                key = master.sign_transient(int(time.time()))
                node = _node(tmp_path / f"site-{name}", router, key, port, ports, publish)
                farm.nodes.append(node)
                farm.keys.append(key)
                stack.callback(node.kill)
                node.start()
            wait_until(lambda: farm.publisher() == "site-a", FORMATION_S, "site-a publishes", farm.state)
            return farm

        yield start


def _node(directory: Path, router: Router, key: SigningKey, port: int, ports: list[int], publish: str) -> Node:
    directory.mkdir()
    save_signing_key(directory / "signing.key", key)
    (directory / "node.toml").write_text(
        f"""
name = "{directory.name}"
state_dir = "."
farm_key = "../farm.key"
[gossip]
bind = "{LOOPBACK}:{port}"
seeds = {[f"{LOOPBACK}:{each}" for each in ports]}
broadcast = "off"
timing = "local"
[consensus]
bind = "{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"
timing = "local"
segment_bytes = 4194304
admit = "all"
[publishing]
signing_key = "signing.key"
publish = "{publish}"
reporting_period_ms = 5000
[router]
kind = "i2cp"
software = "{router.software}"
i2cp = "{router.i2cp}"
[[leaf]]
destination = "{new_demo_leaf().base64}"
"""
    )
    return Node(directory / "node.toml")


def test_i2pd_publishes_with_transient_key(network: Network, new_farm: Callable[[list[Router]], Farm]) -> None:
    """A Java router that is not a floodfill finds the structure, so the structure is in the network."""
    farm = new_farm([*network.i2pd[3:6]])
    began = time.monotonic()

    def found() -> str | None:
        text = network.lookup(farm.hash)
        return text if text.startswith("type=7 verifies=true") else None

    text = wait_until(found, ARRIVAL_S, "a Java router finds the structure", farm.state)
    print(f"\nfound {time.monotonic() - began:.1f} s after the choice of the publisher")
    structure = decode(bytes.fromhex(text.rpartition(" ")[2]))
    assert verify(structure).signed_by == "transient key"
    assert structure.offline == farm.keys[0].offline


@pytest.mark.parametrize("standby", ["i2pd-5", "java-2"])
def test_standby_takes_over_within_seconds(
    network: Network, new_farm: Callable[[list[Router]], Farm], standby: str
) -> None:
    farm = new_farm([network.routers["i2pd-4"], network.routers[standby], network.routers["i2pd-6"]])
    times_s = [take_over_s(network, farm) for _ in range(TAKE_OVERS)]
    print(f"\ntake-over through {standby}: {', '.join(f'{each:.1f}' for each in times_s)} s")
    assert statistics.median(times_s) <= GOAL_S


def test_nodes_at_one_java_router_take_over(network: Network, new_farm: Callable[[list[Router]], Farm]) -> None:
    """The second node takes over when the process of the first node ends; the router continues."""
    shared = network.routers["java-2"]
    farm = new_farm([shared, shared, network.routers["i2pd-6"]])
    wait_until(farm.is_quiet, READY_S, "site-a publishes", farm.state)
    publishing = farm.publishing()
    assert publishing is not None
    print(f"\nnodes with a session ready: {standbys(publishing)}")
    taken_s = until_newer_s(network, farm, farm.nodes[0].kill)
    print(f"take-over at the same router: {taken_s:.1f} s")
    wait_until(lambda: farm.publisher() == "site-b", END_S, "site-b publishes", farm.state)


def take_over_s(network: Network, farm: Farm) -> float:
    """Kill the publisher's router; return the seconds until a floodfill has the structure of the standby."""
    wait_until(farm.is_settled, READY_S, "site-a publishes and site-b is ready", farm.state)
    taken_s = until_newer_s(network, farm, farm.routers[0].kill)
    wait_until(lambda: farm.publisher() == "site-b", END_S, "site-b publishes", farm.state)
    farm.routers[0].start()
    return taken_s


def until_newer_s(network: Network, farm: Farm, kill: Callable[[], object]) -> float:
    """Kill; return the seconds until a floodfill has another structure."""
    floodfills = [each for each in network.floodfills if each not in farm.routers]
    before = [each.stored(farm.hash) for each in floodfills]
    kill()
    began = time.monotonic()
    while [each.stored(farm.hash) for each in floodfills] == before:
        assert time.monotonic() - began < ARRIVAL_S, f"no floodfill has another structure\n{farm.state()}"
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began
