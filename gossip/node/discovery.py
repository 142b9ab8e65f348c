"""Finding the others of a LAN by broadcast, so that no address need be configured.

A node sends its `Broadcast` from its own socket to the broadcast address, and hears those of others on a second socket
that is bound to the broadcast address and shared by all nodes of the machine. Presence is all that comes this way: any
other message on that socket is dropped, and what is heard only becomes a seed to be joined in the ordinary way, sealed
and with a token. Both directions are limited, because a broadcast costs every machine of the LAN.
"""

from dataclasses import dataclass
from ipaddress import ip_interface
from socket import AF_INET
from typing import Final

import psutil

from gossip.core.member import Address
from gossip.node.endpoints import is_private
from gossip.node.rate_limit import Bucket
from gossip.node.udp import DatagramSocket
from gossip.wire.layout import Code

ANNOUNCEMENTS_PER_SECOND: Final = 2.0
ANNOUNCEMENTS_BURST: Final = 4.0


@dataclass(frozen=True, slots=True)
class LanInterface:
    """A local IPv4 address in a private network, and where to broadcast to reach that network."""

    name: str
    host: str
    broadcast_host: str


def lan_interfaces() -> list[LanInterface]:
    """The interfaces that are up and have a private IPv4 network to broadcast in (loopback left out), by name."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        for each in addresses:
            if name not in up or each.family != AF_INET or not each.netmask:
                continue
            interface = ip_interface(f"{each.address}/{each.netmask}")
            broadcast = str(interface.network.broadcast_address)
            if is_private(each.address) and not interface.is_loopback and interface.network.prefixlen <= 30:  # noqa: PLR2004 - a /31 or /32 has no broadcast
                found.append(LanInterface(name, each.address, broadcast))
    return found


class Discovery:
    """The broadcast address of a LAN, with the socket that hears it."""

    def __init__(self, target: Address, broadcast_socket: DatagramSocket) -> None:
        self.target = target
        self.broadcast_socket = broadcast_socket
        self._allowance = Bucket(ANNOUNCEMENTS_PER_SECOND, ANNOUNCEMENTS_BURST)

    def may_announce(self, now_ms: int) -> bool:
        """Whether another announcement is within the limit; if so it is counted."""
        return self._allowance.take(now_ms)

    @staticmethod
    def is_presence(datagram: bytes) -> bool:
        """Whether a datagram claims to be a Broadcast (its first byte is clear in sealed form, too)."""
        return datagram[:1] == bytes([Code.BROADCAST])
