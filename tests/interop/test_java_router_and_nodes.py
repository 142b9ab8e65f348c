"""Nodes started as by an operator, with real Java routers: from configuration files to a published structure.

Two nodes create a farm, each with its own router. The publisher's router stores the structure, even after a restart of
that router. When the publisher stops, the other node's router stores a structure.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.node.security.key_files import save_farm_key, save_signing_key
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import Node, wait_until
from tests.end_to_end.settings import free_port
from tests.interop import java_i2p
from tests.processes import END_S

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(java_i2p.missing() is not None, reason=java_i2p.missing() or "all is there"),
]
TIMEOUT_S = 90.0


def node(directory: Path, master: MasterKey, gossip_port: int, seed_port: int, i2cp_port: int) -> Node:
    directory.mkdir()
    save_signing_key(directory / "signing.key", master.sign_transient(int(time.time())))
    (directory / "node.toml").write_text(
        f"""
name = "{directory.name}"
state_dir = "state"
farm_key = "../farm.key"
[gossip]
bind = "127.0.0.1:{gossip_port}"
seeds = ["127.0.0.1:{seed_port}"]
broadcast = "off"
timing = "local"
[consensus]
bind = "127.0.0.1:{free_port(socket.SOCK_STREAM)}"
timing = "local"
segment_bytes = 4194304
admit = "all"
[publishing]
signing_key = "signing.key"
reporting_period_ms = 2000
[router]
kind = "i2cp"
i2cp = "127.0.0.1:{i2cp_port}"
[[leaf]]
destination = "{new_demo_leaf().base64}"
"""
    )
    return Node(directory / "node.toml")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Yield a stack that ends all started processes."""
    with ExitStack() as stack:
        yield stack


def test_farm_publishes_through_restarted_java_routers(tmp_path: Path, stack: ExitStack) -> None:
    master = new_master_key()
    save_farm_key(tmp_path / "farm.key", new_farm_key(2))
    routers, nodes = [], []
    gossip = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
    for number in range(2):
        routers.append(stack.enter_context(java_i2p.loopback_router(tmp_path / f"router-{number}")))
        nodes.append(
            node(tmp_path / f"node-{number}", master, gossip[number], gossip[1 - number], routers[number].port)
        )
        stack.callback(nodes[number].kill)
        nodes[number].start()

    def logs() -> str:
        return "\n".join(each.log_file.read_text()[-2000:] for each in nodes)

    def held(router: java_i2p.LoopbackRouter) -> str | None:
        found = router.holds(master.destination.hash)
        return found if found.startswith("type=7 verifies=true ") else None

    # Given a farm, one of the two routers stores its node's publication.
    def publisher() -> int | None:
        return next((number for number in range(2) if held(routers[number])), None)

    wait_until(lambda: publisher() is not None, TIMEOUT_S, "a router stores the structure", logs)
    first = publisher()
    assert first is not None

    # When that router is killed and restarted at the same port, its node sends the structure again.
    routers[first].process.kill()
    routers[first].process.wait(END_S)
    again = stack.enter_context(java_i2p.loopback_router(tmp_path / "router-again", routers[first].port))
    wait_until(lambda: held(again) or held(routers[1 - first]), TIMEOUT_S, "a router stores a structure again", logs)

    # When the node of that router stops, the other's router stores a structure, and the first one deletes its own.
    last = again if held(again) else routers[1 - first]
    leaving, staying = (first, 1 - first) if last is again else (1 - first, first)
    other = routers[staying] if staying != first else again
    nodes[leaving].stop()
    wait_until(
        lambda: last.holds(master.destination.hash) == "absent",
        TIMEOUT_S,
        "the stopped node's structure is deleted",
        logs,
    )
    wait_until(lambda: held(other), TIMEOUT_S, "the other node's router stores it", logs)
