"""Addresses as operators write them, and which of them lie within a private network.

Gossip between sites over the open internet would show every observer on the way which nodes belong together. So what
counts as private is listed here, and everything else needs `allow_wan`. (The standard library's `is_private` also holds
documentation and reserved ranges, and the wildcard 0.0.0.0, for private.)
"""

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from gossip.core.member import Address

_PORT_LIMIT: Final = 65_535
_PRIVATE: Final = tuple(
    ip_network(each)
    for each in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "255.255.255.255/32",  # never leaves the link
        "224.0.0.0/24",  # nor does this
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
"""RFC 6598. VPNs such as Tailscale give these addresses out; they are not routed on the internet."""


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host (a name or a numeric address) and port of 'host:port' or '[v6]:port'; `ValueError` says what is wrong."""
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


def numeric(host: str) -> str | None:
    """The canonical spelling of a numeric address, or nothing if `host` is a name or carries a link's scope."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return None
    return str(address)


@lru_cache(maxsize=4096)
def is_private(host: str) -> bool:
    """Whether a numeric address stays within the machine, the link or a private network."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _PRIVATE if network.version == address.version)


@lru_cache(maxsize=4096)
def may_gossip(host: str) -> bool:
    """Return True if gossip with a numeric address needs no `allow_wan`: private networks, and the addresses of VPNs.

    Not part of `is_private`: a plain listener on an address that a provider shares among its customers is open to them.
    Gossip is sealed, and its peers prove the farm's key.
    """
    if is_private(host):
        return True
    try:
        return ip_address(host) in _SHARED
    except (ValueError, TypeError):
        return False


def endpoint(address: Address) -> str:
    """The address as operators write it."""
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
