"""What the defaults of a node are made of: this machine's name, its state directory, and its address on the LAN.

    one private IPv4 network that is up          its address
    several                                      the one that the default route leaves by
    several, and no default route among them     refused: only the operator knows which network the farm is in
    none                                         refused

Guessing among several would work on most days and put a farm into a container bridge on the others, where no peer can
be found and nothing says why.

A module of its own: it asks the operating system, and a test brings its own `Machine`.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bridge.node.security.local_trust import default_state_directory
from gossip.node import LanInterface, lan_interfaces

ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation: connecting a UDP socket to it sends nothing and shows the route."""


class NoAddressError(Exception):
    """No single address can be chosen; `example` is one that the operator could name."""

    def __init__(self, text: str, example: str) -> None:
        super().__init__(text)
        self.example = example


def default_route_host() -> str | None:
    """The local address from which packets leave for elsewhere, if there is a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(ELSEWHERE)
        return str(probe.getsockname()[0])
    return None


@dataclass(frozen=True, slots=True)
class Network:
    """What this machine's operating system tells about its networks."""

    interfaces: Callable[[], list[LanInterface]] = field(default=lan_interfaces)
    route_host: Callable[[], str | None] = field(default=default_route_host)


@dataclass(frozen=True, slots=True)
class Machine:
    """What defaults are made of; a test brings its own."""

    hostname: str = field(default_factory=socket.gethostname)
    state_dir: Path = field(default_factory=default_state_directory)
    network: Network = field(default_factory=Network)


def private_host(network: Network) -> str:
    """The one private address to use on the LAN; `NoAddressError` if there is none or no telling which."""
    hosts = sorted({each.host for each in network.interfaces()})
    if not hosts:
        raise NoAddressError("this machine has no private LAN address: say where to listen", "127.0.0.1")
    if len(hosts) == 1:
        return hosts[0]
    route_host = network.route_host()
    if route_host in hosts:
        return route_host
    raise NoAddressError(f"this machine has several LAN addresses ({', '.join(hosts)}): say which", hosts[0])
