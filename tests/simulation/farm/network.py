"""The network between the machines: the owner of each address, and the arrival time of each packet.

    Network.send_datagram(…)              a packet, which arrives later, twice or never
    outside(host, address) · inside       the addresses that a static NAT (`Host.public`) replaces
    block(a, b) · part(groups) · heal()   one-way blocks between machines

Both datagrams and streams use it. A link has a delay, jitter, and rates of loss, duplication and reordering. The random
source is the network's own, so that a node's randomness does not depend on the traffic of other nodes.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from random import Random

from tests.simulation.farm.host import Host
from tests.simulation.farm.virtual_time import VirtualClock


@dataclass(frozen=True, slots=True)
class Link:
    """The quality of the link from one machine to another. Rates are probabilities for each packet."""

    delay_s: float = 0.000_5
    jitter_s: float = 0.000_5
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    """Probability of an extra delay of up to 20 times `delay_s`; on streams it delays all later segments."""
    mtu_bytes: int = 1500
    drops_fragments: bool = False
    """True if datagrams larger than the MTU are lost."""


LOOPBACK = Link(delay_s=0.000_02, jitter_s=0.0)
IP_AND_UDP_BYTES = 28


class Network:
    """The machines by address, and the links between them."""

    def __init__(self, clock: VirtualClock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.link = Link()
        """The quality of links that are not in `links`."""
        self.links: dict[tuple[str, str], Link] = {}
        """Other qualities, by names of machines, from and to."""
        self.blocked: set[tuple[str, str]] = set()
        self.datagrams = 0
        self.segments = 0
        self._owners: dict[str, Host] = {}
        self._hosts: dict[str, Host] = {}

    def add(self, host: Host) -> None:
        """Connect a machine with its addresses."""
        self._hosts[host.name] = host
        for address in _reached(host):
            self._owners[address] = host

    def move(self, host: Host, addresses: list[str]) -> None:
        """Replace the addresses of a machine."""
        for address in _reached(host):
            self._owners.pop(address, None)
        host.addresses = addresses
        self.add(host)

    def owner(self, address: str) -> Host | None:
        """Return the machine with this address, if there is one and it has power."""
        host = self._owners.get(address)
        return host if host is not None and host.is_powered else None

    def hosts(self) -> Collection[Host]:
        return self._hosts.values()

    @staticmethod
    def outside(host: Host, address: str) -> str:
        """Return the source address that other machines see: a NAT replaces the machine's own."""
        return host.public if host.public is not None and address in host.addresses else address

    @staticmethod
    def inside(host: Host, address: str) -> str:
        """Return the target address after the NAT of a machine: the machine's own."""
        return host.addresses[0] if address == host.public else address

    # -- faults --------------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Drop all packets from one machine to another; the other direction stays open."""
        self.blocked.add((source, target))

    def part(self, *groups: Iterable[str]) -> None:
        """Block all packets between the groups, in both directions."""
        sets = [list(each) for each in groups]
        for group in sets:
            for other in sets:
                if other is not group:
                    self.blocked.update((a, b) for a in group for b in other)

    def isolate(self, name: str) -> None:
        """Block all packets from and to a machine."""
        self.part([name], [each for each in self._hosts if each != name])

    def heal(self) -> None:
        """Open all links again, with the default quality."""
        self.blocked.clear()
        self.links.clear()

    # -- packets -------------------------------------------------------------------------------------------------------

    def is_open(self, source: Host, target: Host) -> bool:
        """Return True if packets pass from one machine to another."""
        return target.is_powered and source.is_powered and (source.name, target.name) not in self.blocked

    def link_of(self, source: Host, target: Host) -> Link:
        """Return the quality of the link from one machine to another."""
        if source is target:
            return LOOPBACK
        return self.links.get((source.name, target.name), self.link)

    def delay_s(self, link: Link) -> float:
        delay_s = link.delay_s + link.jitter_s * self.random.random() if link.jitter_s else link.delay_s
        if link.reordering and self.random.random() < link.reordering:
            delay_s += 20 * link.delay_s * self.random.random()
        return delay_s

    def send_datagram(self, source: Host, target: Host, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Call `deliver` when a datagram arrives: never if it is lost, twice if it is duplicated."""
        self.datagrams += 1
        link = self.link_of(source, target)
        if link.drops_fragments and size_bytes + IP_AND_UDP_BYTES > link.mtu_bytes:
            return
        copies = 2 if link.duplication and self.random.random() < link.duplication else 1
        for _ in range(copies):
            if link.loss and self.random.random() < link.loss:
                continue

            def arrive() -> None:
                if self.is_open(source, target):
                    deliver()

            self.clock.call_at(self.clock.now_s + self.delay_s(link), arrive)


def _reached(host: Host) -> list[str]:
    """Return the addresses of a machine that other machines use."""
    return host.addresses if host.public is None else [host.public]
