"""Farms with a node next to each of some routers: their files, as an operator writes them, and their processes.

Each node signs with a transient key and has a leaf: a server tunnel of its router to one small service.
"""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from bridge.api.view import LeafView, PublishingView
from bridge.node.security.key_files import save_farm_key, save_signing_key
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.i2p.structures import Destination
from bridge.wire.keys.farm_key import new_farm_key
from tests.end_to_end.farm import Farm, Node
from tests.end_to_end.settings import free_port
from tests.interop.i2p.network import Network
from tests.interop.i2p.router import ITOOPIE, LOOPBACK, Router
from tests.processes import END_S

LAN: Final = """
[consensus]
bind = "{loopback}:{consensus_port}"
timing = "local"
segment_bytes = 4194304
admit = "all"
[gossip]
bind = "{loopback}:{gossip_port}"
seeds = {seeds}
broadcast = "off"
timing = "local"
"""
"""The sections for a farm whose nodes reach each other over loopback."""


@contextmanager
def service() -> Iterator[int]:
    """Accept and close connections on loopback within the block, for the probes of nodes; yield the port."""
    with socketserver.TCPServer((LOOPBACK, 0), socketserver.BaseRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(END_S)


@dataclass(frozen=True)
class Site:
    """A node, its router and its leaf."""

    node: Node
    router: Router
    leaf: Destination


class NetworkFarm(Farm):
    """A farm on the closed network: `site-a`, `site-b`, … next to the routers."""

    def __init__(self, directory: Path, master: MasterKey, sites: Sequence[Site]) -> None:
        super().__init__(directory, [site.node for site in sites])
        self.master = master
        self.sites = list(sites)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for site in self.sites:
            site.router.remove_tunnels()

    @property
    def hash(self) -> bytes:
        return self.master.destination.hash

    def publishing(self) -> PublishingView | None:
        """Return the publication in the view of the first running node."""
        return next(iter(self.running[0].view().publishing), None)

    def handed_over_by(self) -> str | None:
        """Return the name of the last node whose router took a structure."""
        publishing = self.publishing()
        return None if publishing is None else publishing.handed_over_by_name

    def publishes_all_leaves(self) -> bool:
        """Return True if the first node has handed over a structure with all leaves, and all leaves are healthy."""
        publishing, leaves, first = self.publishing(), self.leaves(), self.sites[0].node.name
        return (
            publishing is not None
            and publishing.publisher_name == publishing.handed_over_by_name == first
            and len(publishing.entries) == len(leaves) == len(self.sites)
            and all(leaf.healthy for leaf in leaves)
        )

    def state(self) -> str:
        """Return the publication, the leaves and the ends of the logs."""
        return f"{self.publishing()}\n{self.leaves()}\n{self.logs()}"

    def leaves(self) -> list[LeafView]:
        return [leaf for report in self.running[0].view().reports for leaf in report.leaves]


def lan_farm(
    network: Network,
    directory: Path,
    routers: Sequence[Router],
    service_ports: int | Sequence[int],
    preferred: str = "site-a",
) -> NetworkFarm:
    """Write the files of a farm on loopback; the preferred node publishes when it can.

    The leaves lead to one service, or each to its own.
    """
    services = [service_ports] * len(routers) if isinstance(service_ports, int) else service_ports
    master = new_master_key()
    save_farm_key(directory / "farm.key", new_farm_key(len(routers)))
    ports = [free_port(socket.SOCK_DGRAM) for _ in routers]
    sites = []
    for letter, router, port, service_port in zip("abcdefg", routers, ports, services, strict=False):
        name = f"site-{letter}"
        transport = LAN.format(
            loopback=LOOPBACK,
            consensus_port=free_port(socket.SOCK_STREAM),
            gossip_port=port,
            seeds=[f"{LOOPBACK}:{each}" for each in ports],
        )
        publish = "on" if name == preferred else "auto"
        sites.append(site(network, directory / name, router, master, service_port, transport, publish))
    return NetworkFarm(directory, master, sites)


def site(
    network: Network,
    directory: Path,
    router: Router,
    master: MasterKey,
    service_port: int,
    transport: str,
    publish: str = "auto",
    reporting_period_ms: int | None = 5000,
) -> Site:
    """Make the leaf of a node, and write the node's files."""
    leaf = network.tunnel(router, f"leaf-{master.destination.address[:8]}", service_port)
    directory.mkdir()
    save_signing_key(directory / "signing.key", master.sign_transient(int(time.time())))
    password = directory / "i2pcontrol.password"
    password.touch(0o600)
    password.write_text(f"{ITOOPIE}\n")
    control = "" if router.i2pcontrol is None else f'i2pcontrol = "{router.i2pcontrol}"\n'
    control += "" if router.i2pcontrol is None else f'i2pcontrol_password_file = "{password.name}"\n'
    period = "" if reporting_period_ms is None else f"reporting_period_ms = {reporting_period_ms}\n"
    (directory / "node.toml").write_text(
        f"""
name = "{directory.name}"
state_dir = "."
farm_key = "../farm.key"
{transport}
[publishing]
signing_key = "signing.key"
publish = "{publish}"
{period}[router]
kind = "i2cp"
software = "{router.software}"
i2cp = "{router.i2cp}"
sam = "{router.sam or "off"}"
{control}[[leaf]]
destination = "{leaf.base64}"
probe = "{LOOPBACK}:{service_port}"
"""
    )
    return Site(Node(directory / "node.toml"), router, leaf)
