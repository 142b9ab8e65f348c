"""The facts about this machine that defaults derive from: its name, its state directory, and its address.

    interface               by its name: LAN (eth0, wlan0, …), VPN (tailscale0, wg0, …), or of this machine alone
                            (docker0, virbr0, br-…, veth…)
    candidates, in order    private IPv4 of a LAN ─▶ private IPv6 of a LAN ─▶ private or shared address of a VPN
    of several candidates   the address of the default route; otherwise the first, if one interface has them all.
                            Several interfaces are refused: only the operator knows the network of the farm
    no candidate            refused: the text lists up to 8 addresses or interfaces, each with the reason

A guess could choose the address of a container bridge on some machines. That address is the same on all machines, so
nodes would not find each other, and no error would show the cause. Until its lease arrives, an interface has only
link-local addresses (169.254.…, fe80::…). While a LAN address is missing, `waits_for` lists the interfaces that may
still get one, and `garlicfarm run` waits up to 30 s for them.

This module queries the operating system; tests replace the answers by their own `Machine`.
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from pathlib import Path

from msgspec import Struct

from bridge.node.security.local_trust import default_state_directory
from gossip.node import LanInterface, is_private, lan_interfaces, may_gossip

ELSEWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Addresses reserved for documentation.

Connecting a UDP socket to one does not send a packet, and shows the local address of the route.
"""
LOOPBACK = "127.0.0.1"
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_OF_THIS_MACHINE = (
    *("docker", "br-", "veth", "virbr", "vnet", "lxc", "lxd", "incus", "cni", "flannel", "cali", "cilium", "podman"),
    *("kube", "nodelocaldns", "weave", "vxlan", "genev", "ovs", "vmnet", "vboxnet", "vEthernet"),
    *("dummy", "ifb", "sit", "gre", "ip6", "ip_vti", "erspan", "teql"),
)
_VPN = ("tailscale", "wg", "tun", "tap", "utun", "zt", "nebula", "ipsec", "wt", "nordlynx", "proton", "vpn")
_SHOWN_MAX = 8
_LAN_BRIDGES = frozenset({"br-lan"})
"""OpenWrt's name of its LAN bridge. The bridges of Docker's networks have hexadecimal digits after `br-`."""


class NoAddressError(Exception):
    """This machine lacks a candidate for the address, or has several. The operator could set the address `example`."""

    def __init__(self, text: str, example: str, *, needs_wan: bool = False, waits_for: tuple[str, ...] = ()) -> None:
        """Set the text.

        With `needs_wan` the example needs `allow_wan`; the interfaces in `waits_for` may still get addresses.
        """
        super().__init__(text)
        self.example = example
        self.needs_wan = needs_wan
        self.waits_for = waits_for


def default_route_host() -> str | None:
    """Return the local address of packets to other networks, if there is a route; IPv4 before IPv6."""
    for family, target in zip((socket.AF_INET, socket.AF_INET6), ELSEWHERE, strict=True):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return None


@dataclass(frozen=True, slots=True)
class Network:
    """The networks of this machine, as its operating system shows them now."""

    interfaces: Callable[[], list[LanInterface]] = field(default=lan_interfaces)
    route_host: Callable[[], str | None] = field(default=default_route_host)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts for defaults; tests use their own."""

    hostname: str = field(default_factory=socket.gethostname)
    state_dir: Path = field(default_factory=default_state_directory)
    network: Network = field(default_factory=Network)


class Reach(Enum):
    """The machines that are reachable through an interface."""

    LAN = "a LAN"
    VPN = "a VPN"
    MACHINE = "containers and virtual machines of this machine"


class ChosenAddress(Struct, frozen=True):
    """The address of a node without a configured one."""

    host: str
    interface: str
    reason: str
    """The reason of the choice, as text."""
    broadcast_host: str = ""
    """The broadcast address of its network; empty if it is missing or useless (VPN)."""
    waits_for: tuple[str, ...] = ()
    """Interfaces that may still get a better address."""

    def __str__(self) -> str:
        return f"{self.interface}, {self.reason}"


def reach_of(interface: str) -> Reach:
    """Classify an interface by its name and not by its kind, because in a container even `eth0` is virtual."""
    if interface in _LAN_BRIDGES:
        return Reach.LAN
    if interface.startswith(_OF_THIS_MACHINE):
        return Reach.MACHINE
    return Reach.VPN if interface.startswith(_VPN) else Reach.LAN


def choose_address(network: Network) -> ChosenAddress:
    """Choose by interface and route, as the module describes. Raise `NoAddressError` without a unique candidate."""
    found, route_host = network.interfaces(), network.route_host()
    usable = [each for each in found if each.is_up and each.host and not _is_special(each.host)]
    lan = [each for each in usable if reach_of(each.name) is Reach.LAN and is_private(each.host)]
    vpn = [each for each in usable if reach_of(each.name) is Reach.VPN and may_gossip(each.host)]
    for group, what in (
        ([each for each in lan if ":" not in each.host], "private address of a LAN"),
        ([each for each in lan if ":" in each.host], "private IPv6 address of a LAN"),
    ):
        if group:
            return _one_of(group, route_host, what)
    waits_for = _without_address(found, usable)
    if vpn:
        return _one_of(vpn, route_host, "private address of a VPN", waits_for)
    raise _no_candidate(found, waits_for)


def _one_of(
    group: Sequence[LanInterface], route_host: str | None, what: str, waits_for: tuple[str, ...] = ()
) -> ChosenAddress:
    routed = next((each for each in group if each.host == route_host), None)
    if routed is not None:
        return _chosen(routed, f"{what} that the default route uses", waits_for)
    if len({each.name for each in group}) == 1:
        return _chosen(group[0], f"the only interface with a {what}", waits_for)
    raise NoAddressError(
        f"this machine has several private addresses ({_listed(group)}), and the default route does not use any of"
        " them: choose the network of the farm",
        group[0].host,
        waits_for=waits_for,
    )


def _chosen(each: LanInterface, reason: str, waits_for: tuple[str, ...]) -> ChosenAddress:
    return ChosenAddress(each.host, each.name, reason, broadcast_host_of(each), waits_for)


def broadcast_host_of(each: LanInterface) -> str:
    """Return the host for announcements to the network of an address; empty if they would be lost, as in a VPN."""
    return "" if reach_of(each.name) is Reach.VPN else each.broadcast_host


def _no_candidate(found: Sequence[LanInterface], waits_for: tuple[str, ...]) -> NoAddressError:
    shown = list(_without_link_addresses(found))
    named = [each for each in shown if each.host]
    if not shown:
        return NoAddressError(
            f"this machine has only loopback addresses: set the address to listen on ({LOOPBACK} is enough if all"
            " nodes of the farm run here)",
            LOOPBACK,
        )
    public = next((each for each in named if each.is_up and _is_public(each)), None)
    example = public or min(named, key=lambda each: reach_of(each.name) is Reach.MACHINE, default=None)
    reasons = "; ".join(f"{each.name}: {_why_not(each)}" for each in shown[:_SHOWN_MAX])
    more = f"; and {len(shown) - _SHOWN_MAX} more" if len(shown) > _SHOWN_MAX else ""
    return NoAddressError(
        f"this machine lacks a private LAN address that other machines can reach ({reasons}{more}): set the address to"
        " listen on",
        LOOPBACK if example is None else example.host,
        needs_wan=public is not None,
        waits_for=waits_for,
    )


def _without_link_addresses(found: Sequence[LanInterface]) -> Iterator[LanInterface]:
    """Omit IPv6 link-local addresses: each interface has one, and a setting cannot contain such an address."""
    kept = [each for each in found if not (":" in each.host and _is_special(each.host))]
    yield from sorted(kept, key=lambda each: not each.host)
    for name in dict.fromkeys(each.name for each in found if each.name not in {one.name for one in kept}):
        yield LanInterface(name, "", is_up=any(each.is_up for each in found if each.name == name))


def _why_not(each: LanInterface) -> str:
    if not each.host:
        return "no address" if each.is_up else "down"
    reach = reach_of(each.name)
    if not each.is_up:
        why = "is down"
    elif _is_special(each.host):
        why = "is link-local: a machine has it until it gets a lease"
    elif reach is Reach.MACHINE:
        why = f"reaches {reach.value} only"
    else:
        why = "is not a private address"
    return f"{each.host} {why}"


def _is_public(each: LanInterface) -> bool:
    return bool(each.host) and reach_of(each.name) is not Reach.MACHINE and not is_private(each.host)


def _without_address(found: Sequence[LanInterface], usable: Iterable[LanInterface]) -> tuple[str, ...]:
    """Return the LAN interfaces without a usable address so far."""
    served = {each.name for each in usable}
    return tuple(
        dict.fromkeys(each.name for each in found if each.name not in served and reach_of(each.name) is Reach.LAN)
    )


def _is_special(host: str) -> bool:
    address = ip_address(host)
    return address.is_link_local or address.is_loopback or address.is_unspecified or address.is_multicast


def _listed(addresses: Iterable[LanInterface]) -> str:
    return ", ".join(f"{each.host} of {each.name}" for each in addresses)
