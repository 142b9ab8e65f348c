"""Publication of a farm through Java I2P and through i2pd.

The nodes run in the namespace of the network and reach each other over loopback. The master key is not on a node.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.wire.i2p.meta_lease_set import decode, verify
from tests.end_to_end.farm import call
from tests.interop.i2p.farm import NetworkFarm, lan_farm, service
from tests.interop.i2p.network import Network

pytestmark = pytest.mark.interop
FORMATION_S = 120.0
ARRIVAL_S = 180.0


@pytest.fixture
def farm(network: Network, tmp_path: Path) -> Iterator[NetworkFarm]:
    """Yield a running farm: `site-a` is next to a Java router, the other two nodes are next to i2pd."""
    routers = [network.java[1], network.i2pd[3], network.i2pd[4]]
    with service() as port, lan_farm(network, tmp_path, routers, port) as farm:
        farm.start_all()
        yield farm


def test_farm_publishes_through_java_then_through_i2pd(network: Network, farm: NetworkFarm) -> None:
    # The node of the Java router publishes. Another Java router does not have the structure, and finds and verifies it.
    farm.wait_until(lambda: farm.handed_over_by() == "site-a", FORMATION_S, "site-a hands a structure over")
    assert network.observer.local(farm.hash) == "absent"
    began_s = time.monotonic()
    farm.wait_until(lambda: network.is_stored(farm.hash), ARRIVAL_S, "a floodfill stores it")
    stored_s = time.monotonic() - began_s
    text = farm.wait_until(lambda: found(network, farm), ARRIVAL_S, "a look-up finds the structure")
    print(f"\nthrough Java: stored {stored_s:.1f} s, found {time.monotonic() - began_s:.1f} s after the hand-over")
    structure = decode(bytes.fromhex(text.rpartition(" ")[2]))
    assert verify(structure).signed_by == "transient key"
    assert {lease.destination_hash for lease in structure.leases} <= {site.leaf.hash for site in farm.sites}

    # Each router finds the leaf of its node, and I2PControl of i2pd reports its version.
    farm.wait_until(lambda: all_healthy(farm), ARRIVAL_S, "all leaves are healthy")
    doctor = call("doctor", "--config", farm.sites[1].node.configuration).stdout
    assert "version 2." in doctor, doctor

    # When the first node stops, an i2pd publishes, and at least one floodfill stores a newer structure.
    before = [each.stored(farm.hash) for each in network.floodfills]
    farm.sites[0].node.stop()
    began_s = time.monotonic()
    farm.wait_until(lambda: farm.handed_over_by() in {"site-b", "site-c"}, ARRIVAL_S, "i2pd takes a structure")
    handed_over_s = time.monotonic() - began_s
    farm.wait_until(
        lambda: [each.stored(farm.hash) for each in network.floodfills] != before, ARRIVAL_S, "a floodfill stores it"
    )
    print(f"through i2pd: handed over {handed_over_s:.1f} s, stored {time.monotonic() - began_s:.1f} s after the stop")


def found(network: Network, farm: NetworkFarm) -> str | None:
    text = network.lookup(farm.hash)
    return text if text.startswith("type=7 verifies=true") else None


def all_healthy(farm: NetworkFarm) -> bool:
    leaves = farm.leaves()
    return len(leaves) == len(farm.sites) and all(leaf.healthy for leaf in leaves)
