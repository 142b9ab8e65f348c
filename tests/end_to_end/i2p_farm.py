"""Farms without gossip. Their servers reach each other only through an HTTP proxy."""

import socket
from pathlib import Path

from bridge.node.security.key_files import save_farm_key, save_signing_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import Farm, Node
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.i2p_proxy import b32_name


class I2pFarm:
    """The files of `count` nodes; `founders` of them create the farm. `names` maps names to ports for a proxy."""

    def __init__(self, directory: Path, founders: int, count: int) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self._key = directory / "farm.key"
        save_farm_key(self._key, new_farm_key(founders))
        self._master = new_master_key(demo=True)
        self._ports = {b32_name(number): free_port(socket.SOCK_STREAM) for number in range(1, count + 1)}
        self.names = dict(self._ports)

    def farm(self, proxy: str) -> Farm:
        """Return the nodes, configured for this proxy. Each node has the first two nodes as seeds."""
        names = list(self._ports)
        nodes = [self._node(number, name, proxy, [names[0], names[1]]) for number, name in enumerate(names, start=1)]
        return Farm(self.directory, nodes)

    def _node(self, number: int, name: str, proxy: str, seeds: list[str]) -> Node:
        directory = self.directory / f"node-{number}"
        directory.mkdir()
        save_signing_key(directory / "signing.key", self._master.as_signing_key())
        (directory / "node.toml").write_text(
            f"""
name = "node-{number}"
state_dir = "{directory}"
farm_key = "{self._key}"
demo = true
transport = "i2p"
[consensus]
bind = "{LOOPBACK}:{self._ports[name]}"
advertise = "{name}:7669"
seeds = {[f"{seed}:7669" for seed in seeds]}
timing = "local"
segment_bytes = 4194304
admit = "all"
[proxy]
{proxy}
[publishing]
pace = "reporting-period"
reporting_period_ms = 2000
signing_key = "{directory / "signing.key"}"
[[leaf]]
destination = "{new_demo_leaf().base64}"
"""
        )
        return Node(directory / "node.toml")
