"""The endpoint for Kafka's clients: a missing extra or certificate prevents the start.

The listener is bound before it serves.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bridge.node import client_endpoints as opening
from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode
from bridge.node.settings.clients import KafkaSettings
from gossip import Address

LOOPBACK = Address("127.0.0.1", 0)


def local_node(**settings: object) -> LocalNode:
    kafka = KafkaSettings(listen=LOOPBACK, advertise=LOOPBACK, **settings)  # type: ignore[arg-type]
    return cast("LocalNode", SimpleNamespace(configuration=SimpleNamespace(kafka=kafka, zmq=None), alarms=None))


async def test_missing_extra_is_refused_with_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda _: None)
    with pytest.raises(NodeStopped, match=r"pip install 'garlicfarm\[kafka\]'"):
        async with opening.client_endpoints(local_node(), CurrentFarm()):
            pass


async def test_unreadable_certificate_prevents_start(tmp_path: Path) -> None:
    with pytest.raises(NodeStopped, match=r"none\.pem cannot be used"):
        async with opening.client_endpoints(local_node(certificate=tmp_path / "none.pem"), CurrentFarm()):
            pass


async def test_listener_is_bound_with_empty_counters_before_serving() -> None:
    async with opening.client_endpoints(local_node(), CurrentFarm()) as endpoints:
        listener = endpoints["kafka"]
        assert (listener.url, dict(listener.counters)) == ("127.0.0.1:0", {})
