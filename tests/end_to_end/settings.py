"""Configuration files of single nodes, as operators write them."""

import shutil
import socket
import tomllib
from contextlib import suppress
from pathlib import Path

from bridge.node.security.key_files import save_farm_key, save_master_key, save_signing_key
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import Farm, Node
from tests.processes import free_ports

LOOPBACK = "127.0.0.1"


def free_port(kind: socket.SocketKind, host: str = LOOPBACK) -> int:
    """Return a port as `free_ports` does."""
    return free_ports(1, kind, host)[0]


def node_toml(
    directory: Path,
    *,
    farm_key: Path,
    gossip: str,
    consensus: str,
    seeds: list[str],
    broadcast: str = "off",
    signing_key: Path | None = None,
) -> Node:
    """Write a node's configuration file below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    key = "" if signing_key is None else f'signing_key = "{signing_key}"'
    (directory / "node.toml").write_text(
        f"""
name = "{directory.name}"
state_dir = "{directory}"
farm_key = "{farm_key}"
demo = true
[gossip]
bind = "{gossip}"
seeds = {seeds}
broadcast = "{broadcast}"
timing = "local"
[consensus]
bind = "{consensus}"
timing = "local"
segment_bytes = 4194304
admit = "all"
[publishing]
pace = "reporting-period"
reporting_period_ms = 2000
{key}
[[leaf]]
destination = "{new_demo_leaf().base64}"
"""
    )
    return Node(directory / "node.toml")


def broadcast_farm(directory: Path, hosts: list[str], gossip_port: int, consensus_port: int) -> Farm:
    """Return a farm with a new key. Its nodes find each other only by broadcast."""
    directory.mkdir()
    save_farm_key(directory / "farm.key", new_farm_key(len(hosts)))
    master = new_master_key(demo=True)
    nodes = []
    for number, host in enumerate(hosts, start=1):
        node_directory = directory / f"{directory.name}-{number}"
        node_directory.mkdir()
        nodes.append(
            node_toml(
                node_directory,
                farm_key=directory / "farm.key",
                gossip=f"{host}:{gossip_port}",
                consensus=f"{host}:{consensus_port}",
                seeds=[],
                broadcast=f"127.255.255.255:{gossip_port}",
                signing_key=_signing_key(node_directory, master),
            )
        )
    return Farm(directory, nodes)


def _signing_key(directory: Path, master: MasterKey) -> Path:
    path = directory / "signing.key"
    save_signing_key(path, master.as_signing_key())
    save_master_key(directory / "master.key", master)
    return path


def addresses(node: Node) -> tuple[str, str]:
    """Return the bound addresses of gossip and consensus."""
    settings = tomllib.loads(node.configuration.read_text())
    return settings["gossip"]["bind"], settings["consensus"]["bind"]


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # a running node has removed it since the listing
        shutil.copy2(source, target)


def copy_of(node: Node, directory: Path, *without: str) -> Node:
    """Return a copy of a node's state directory, configured with other ports."""
    ignore = shutil.ignore_patterns("*.sock", "*.log", *without)
    shutil.copytree(node.directory, directory, ignore=ignore, copy_function=_copy_if_there)
    gossip, consensus = addresses(node)
    text = node.configuration.read_text().replace(str(node.directory), str(directory))
    text = text.replace(f'bind = "{gossip}"', f'bind = "{LOOPBACK}:{free_port(socket.SOCK_DGRAM)}"')
    text = text.replace(f'bind = "{consensus}"', f'bind = "{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"')
    (directory / "node.toml").write_text(text)
    return Node(directory / "node.toml")
