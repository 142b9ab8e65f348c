"""The fixture `network`: the closed I2P network, started once for all stories."""

from collections.abc import Iterator

import pytest

from tests.interop.i2p import namespace
from tests.interop.i2p.network import Network


@pytest.fixture(scope="session")
def _started_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    reason = namespace.missing() or namespace.outside()
    if reason is not None:
        pytest.skip(reason)
    network = Network(tmp_path_factory.mktemp("network"))
    try:
        network.start()
        print(f"\nthe network of {len(network.routers)} routers was ready after {network.ready_after_s:.0f} s")
        print(network.state())
        yield network
    finally:
        network.stop()


@pytest.fixture
def network(_started_network: Network) -> Network:
    _started_network.repair()
    return _started_network
