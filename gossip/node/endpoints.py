"""Addresses in the notation of operators, and the test for private networks.

Gossip between sites over the open internet would show every observer on the path which nodes belong together. So
private networks are listed here. All other addresses, except the shared range of VPNs, require `allow_wan`. (The
standard library's `is_private` also accepts documentation and reserved ranges, and the wildcard 0.0.0.0.)
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from gossip.core.member import Address

_PORT_LIMIT: Final = 65_535
_BROADCAST: Final = IPv4Address("255.255.255.255")
_SHOWN_CHARACTERS: Final = 60
_PRIVATE: Final = tuple(
    ip_network(each)
    for each in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "255.255.255.255/32",  # never leaves the link
        "224.0.0.0/24",  # never leaves the link either
        "239.0.0.0/8",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
        "ff01::/16",  # multicast within the machine, the link, the site
        "ff02::/16",
        "ff05::/16",
    )
)


_SHARED: Final = ip_network("100.64.0.0/10")
"""The shared range of RFC 6598. VPNs such as Tailscale assign these addresses; the internet does not route them."""


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return host (a name or a numeric address) and port of 'host:port' or '[v6]:port'; raise ValueError if wrong."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, as in [fd00::1]:7946")
    if not (colon and host):
        raise ValueError(f"{text!r}: expected HOST:PORT")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_LIMIT):
        raise ValueError(f"{text!r}: the port must be a number from 1 to {_PORT_LIMIT}")
    return host, int(port)


def numeric_address(text: str) -> Address:
    """Return the address of an endpoint; raise ValueError if it is wrong, or if the host is a name."""
    host, port = parse_endpoint(text)
    canonical = numeric(host)
    if canonical is None:
        shown = host if len(host) <= _SHOWN_CHARACTERS else f"{host[:_SHOWN_CHARACTERS]}…"
        raise ValueError(f"{shown!r} is not a numeric address such as 192.168.1.10 or fd00::1")
    return Address(canonical, port)


def dialed(address: Address) -> Address:
    """Return an address to send to; raise ValueError for a wildcard, multicast or broadcast address."""
    try:
        ip = ip_address(address.host)
    except ValueError:  # a name
        return address
    if ip.is_unspecified or ip.is_multicast or ip == _BROADCAST:
        raise ValueError(f"{endpoint(address)} is not the address of one machine, so nodes cannot connect to it")
    return address


def numeric(host: str) -> str | None:
    """Return the canonical notation of a numeric address; None if `host` is a name or carries a link's scope."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return None
    return str(address)


@lru_cache(maxsize=4096)
def is_private(host: str) -> bool:
    """Return True if a numeric address is within the machine, the link, the site or a private network."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _PRIVATE if network.version == address.version)


@lru_cache(maxsize=4096)
def may_gossip(host: str) -> bool:
    """Return True if gossip with a numeric address is allowed without `allow_wan`: private networks, and VPN addresses.

    `is_private` excludes these VPN addresses, because it decides about listeners without encryption: a provider may use
    the same range for several customers. Gossip is sealed (except with `insecure`), and its peers prove the farm's key.
    """
    if is_private(host):
        return True
    try:
        return ip_address(host) in _SHARED
    except (ValueError, TypeError):
        return False


def endpoint(address: Address) -> str:
    """Return the address in the notation of operators."""
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
