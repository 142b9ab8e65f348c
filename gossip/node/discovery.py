"""The discovery of other nodes: by broadcast in a LAN, and through seeds with names.

*Broadcast.* A node sends its `Broadcast` from its own socket to the broadcast address. It receives other nodes'
broadcasts on a second socket, bound to the broadcast address, which all nodes of the machine can bind. On that socket,
any message other than a Broadcast is dropped. A Broadcast only provides a seed, which the node joins as usual, sealed
and with a token. Both directions are limited, because a broadcast costs every machine of the LAN.

*Names.* A seed's name is resolved throughout the run of the node, because names appear late and their addresses change.
A failed resolution is retried with growing pauses, a successful one is repeated periodically, and only changes are
passed on. The core itself retries the addresses that it was given. An address that no name resolves to any more is
withdrawn. Otherwise a name with changing addresses would fill the list of seeds, without a place for its newest
address.
"""

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address, ip_network
from socket import AF_INET, AF_INET6
from typing import Final

import psutil
import trio
from msgspec import Struct

from gossip.core.member import Address
from gossip.core.options import TokenBucket
from gossip.node.endpoints import numeric, parse_endpoint
from gossip.node.settings import SEEDS_LIMIT, ConfigError
from gossip.node.udp import DatagramSocket, Network
from gossip.wire.codec import Code

ANNOUNCEMENTS_PER_SECOND: Final = 2.0
ANNOUNCEMENTS_BURST: Final = 4.0
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0
REFRESH_S: Final = 300.0
RESOLVE_TIMEOUT_S: Final = 20.0
ADDRESSES_OF_A_NAME: Final = 16
ALL_NODES: Final = "ff02::1"
"""All nodes of a link, the equivalent of a broadcast address in IPv6."""
_ONE_HOST: Final = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
GiveSeeds = Callable[[tuple[Address, ...], tuple[Address, ...]], None]
"""A callback for new seeds, and for addresses that are no longer seeds."""


class LanInterface(Struct, frozen=True):
    """An address of an interface of this machine; `host` is empty for an interface without one."""

    name: str
    host: str
    broadcast_host: str = ""
    """The address of all machines of its network: IPv4 broadcast, or all nodes of the link. Empty without one."""
    is_up: bool = True


def lan_interfaces() -> list[LanInterface]:
    """Return the interfaces except loopback, sorted by name, including inactive ones and ones without an address."""
    all_addresses = psutil.net_if_addrs()
    try:
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    except OSError:
        # A sandbox or an emulator does not support the request for the state (SIOCETHTOOL).
        up = set(all_addresses)
    found = []
    for name, addresses in sorted(all_addresses.items()):
        numeric_ones = [each for each in addresses if each.family in (AF_INET, AF_INET6)]
        hosts = [each.address.partition("%")[0] for each in numeric_ones]
        if any(ip_address(host).is_loopback for host in hosts):
            continue
        found += [
            LanInterface(name, host, _broadcast_host(host, each.netmask), name in up)
            for host, each in zip(hosts, numeric_ones, strict=True)
        ] or [LanInterface(name, "", is_up=name in up)]
    return found


def _broadcast_host(host: str, netmask: str | None) -> str:
    if ":" in host:
        return "" if ip_address(host).is_link_local or netmask == _ONE_HOST else ALL_NODES
    network = ip_network(f"{host}/{netmask}", strict=False) if netmask else None
    # A /31 or /32 does not have a broadcast address.
    return "" if network is None or network.num_addresses <= 2 else str(network.broadcast_address)  # noqa: PLR2004


class Discovery:
    """The broadcast address of a LAN, with the socket that listens there."""

    def __init__(self, target: Address, broadcast_socket: DatagramSocket) -> None:
        self.target = target
        self.broadcast_socket = broadcast_socket
        self._allowance = TokenBucket(ANNOUNCEMENTS_PER_SECOND, ANNOUNCEMENTS_BURST)

    def may_announce(self, now_ms: int) -> bool:
        """Return True if one more announcement is within the limit, and count it."""
        return self._allowance.take(now_ms)

    @staticmethod
    def is_presence(datagram: bytes) -> bool:
        """Return True if a datagram claims to be a Broadcast (its first byte is clear in sealed form, too)."""
        return datagram[:1] == bytes([Code.BROADCAST])


class NamesToFollow:
    """The seeds that are names, later ones included, each followed once."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, int], tuple[Address, ...]] = {}
        """The names, with their current addresses."""
        self._fixed: set[Address] = set()
        """Numeric seeds."""
        self._inlet, self._outlet = trio.open_memory_channel[tuple[str, int]](SEEDS_LIMIT)

    def add(self, seeds: tuple[str, ...]) -> None:
        """Follow these names as well. Raise ConfigError, and add none of them, if they are too many."""
        new = [name for name in dict.fromkeys(named_seeds(seeds)) if name not in self._given]
        if len(self._given) + len(new) > SEEDS_LIMIT:
            raise ConfigError(f"more than {SEEDS_LIMIT} seeds by name: they were not added, a few seeds are enough")
        self._fixed.update(numeric_seeds(seeds))
        for name in new:
            self._given[name] = ()
            self._inlet.send_nowait(name)

    async def follow(self, network: Network, give: GiveSeeds) -> None:
        """Resolve all names until canceled; `give` gets a name's addresses, and the former ones to withdraw."""
        async with trio.open_nursery() as nursery, self._outlet:
            async for host, port in self._outlet:
                nursery.start_soon(follow_name, host, port, network, partial(self._found, (host, port), give))

    def _found(
        self,
        name: tuple[str, int],
        give: GiveSeeds,
        addresses: tuple[Address, ...],
    ) -> None:
        before, self._given[name] = self._given[name], addresses
        retained = self._fixed.union(*self._given.values())
        give(addresses, tuple(address for address in before if address not in retained))


def numeric_seeds(seeds: tuple[str, ...]) -> tuple[Address, ...]:
    """Return the numeric seeds."""
    parsed = [(numeric(host), port) for host, port in map(parse_endpoint, seeds)]
    return tuple(Address(host, port) for host, port in parsed if host is not None)


def named_seeds(seeds: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return the seeds that are names."""
    return tuple((host, port) for host, port in map(parse_endpoint, seeds) if numeric(host) is None)


async def follow_name(host: str, port: int, network: Network, give: Callable[[tuple[Address, ...]], None]) -> None:
    """Resolve one name until canceled, and pass on changes."""
    known: tuple[Address, ...] = ()
    pause_s = RETRY_FIRST_S
    while True:
        found: tuple[Address, ...] = ()
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            try:
                found = tuple(sorted(await network.resolve(host, port)))[:ADDRESSES_OF_A_NAME]
            except (OSError, UnicodeError):  # the name is not known (yet), or cannot be encoded
                found = ()
        if found and found != known:
            known = found
            give(found)
        await trio.sleep(REFRESH_S if found else pause_s)
        pause_s = RETRY_FIRST_S if found else min(2 * pause_s, RETRY_LAST_S)
