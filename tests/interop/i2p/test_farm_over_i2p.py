"""A farm whose nodes reach each other through I2P only, as docs/how-to/over-i2p.md describes it.

Each node has its own i2pd. The node's Raft server listens on loopback, and a server tunnel of the i2pd leads to it. The
node's own connections leave through the i2pd's HTTP proxy. The nodes use the default timing for I2P, so the test takes
minutes.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.node.security.key_files import save_farm_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.end_to_end.settings import free_port
from tests.interop.i2p.farm import NetworkFarm, service, site
from tests.interop.i2p.network import Network
from tests.interop.i2p.router import LOOPBACK

pytestmark = pytest.mark.interop
FORMATION_S = 600.0
PUBLICATION_S = 600.0
TAKE_OVER_S = 900.0

TRANSPORT = """
transport = "i2p"
[consensus]
advertise = "{own}"
seeds = {seeds}
bind = "{bind}"
segment_bytes = 4194304
[proxy]
address = "{proxy}"
mode = "absolute-uri"
"""


@pytest.fixture
def farm(network: Network, tmp_path: Path) -> Iterator[NetworkFarm]:
    """Yield a farm of three nodes with tunnels to their servers; the nodes do not run yet."""
    routers = network.i2pd[5:8]
    master = new_master_key()
    save_farm_key(tmp_path / "farm.key", new_farm_key(len(routers)))
    ports = [free_port(socket.SOCK_STREAM) for _ in routers]
    names = [
        f"{network.tunnel(router, f'server-{port}', port).address}:{port}"
        for router, port in zip(routers, ports, strict=True)
    ]
    with service() as service_port:
        sites = []
        for letter, router, port, own in zip("abc", routers, ports, names, strict=True):
            transport = TRANSPORT.format(own=own, seeds=names, bind=f"{LOOPBACK}:{port}", proxy=router.http_proxy)
            directory = tmp_path / f"site-{letter}"
            sites.append(site(network, directory, router, master, service_port, transport, reporting_period_ms=None))
        with NetworkFarm(tmp_path, master, sites) as farm:
            yield farm


def test_farm_over_i2p_forms_publishes_and_takes_over(network: Network, farm: NetworkFarm) -> None:
    # Given three nodes without any other connection, they create a farm, and one of them publishes.
    began_s = time.monotonic()
    farm.start_all()
    farm.wait_until(farm.leader, FORMATION_S, "the nodes create a farm and elect a leader")
    formed_s = time.monotonic() - began_s
    farm.wait_until(farm.handed_over_by, PUBLICATION_S, "a router takes a structure")
    handed_over_s = time.monotonic() - began_s
    farm.wait_until(lambda: network.is_stored(farm.hash), PUBLICATION_S, "a floodfill stores it")
    stored_s = time.monotonic() - began_s
    print(f"\nformed {formed_s:.0f} s, handed over {handed_over_s:.0f} s, stored {stored_s:.0f} s after the start")
    assert network.lookup(farm.hash).startswith("type=7 verifies=true")

    # When the publisher's node and router are killed, another node publishes.
    first = farm.handed_over_by()
    dead = next(each for each in farm.sites if each.node.name == first)
    dead.node.kill()
    dead.router.kill()
    began_s = time.monotonic()
    farm.wait_until(lambda: farm.handed_over_by() != first, TAKE_OVER_S, "another router takes a structure")
    print(f"another node publishes {time.monotonic() - began_s:.0f} s after the kill")
