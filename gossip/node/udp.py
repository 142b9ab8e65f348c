"""UDP sockets under trio, and the interface through which tests use a network of their own.

Sending is synchronous and never blocks: when the kernel's buffer is full the datagram is dropped, which gossip expects
of a network anyway. Effects of one step are thereby carried out without a gap in which something else could happen.

Receiving asks the kernel for one byte more than is allowed, so that a datagram that was too long shows as such instead
of arriving cut off.
"""

import socket
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, Protocol

import trio

from gossip.core.member import Address
from gossip.node.endpoints import endpoint
from gossip.node.settings import ConfigError

_RECEIVE_BUFFER_BYTES: Final = 1 << 20
_PAUSE_AFTER_ERROR_S: Final = 0.1
_MULTICAST_REQUEST: Final = "@4s4si"
"""Group, local address, number of the interface (ip_mreqn)."""
_ADDRESSES_REMEMBERED: Final = 4096
_SO_MEMINFO: Final = 55
"""Linux 4.12, asm-generic/socket.h (Python has no name for it): what a socket holds, and what found no room."""
_MEMINFO: Final = struct.Struct("@9I")
_MEMINFO_DROPS: Final = 8


class DatagramSocket(Protocol):
    """A bound datagram socket."""

    @property
    def address(self) -> Address:
        """Where it is bound."""

    def send(self, datagram: bytes, target: Address) -> bool:
        """Send now, or drop and return false."""

    async def readable(self) -> None:
        """Until a datagram waits (or did: it may be gone again). Other tasks have their turn in any case."""

    def receive_waiting(self) -> tuple[bytes, Address] | None:
        """The next datagram if one waits; a longer one than allowed comes with one byte more than the limit."""

    def overflowed(self) -> int:
        """How many datagrams found no room since it was bound; 0 if that is not counted."""

    def close(self) -> None:
        """Close it; closing twice is fine."""


class Network(Protocol):
    """What a node needs of a network."""

    def bind(self, address: Address, limit_bytes: int) -> DatagramSocket:
        """A socket for sending and receiving, allowed to send to broadcast addresses."""

    def hear_broadcasts(self, address: Address, limit_bytes: int) -> DatagramSocket:
        """A socket that receives what is sent to a broadcast address, beside others on the same machine."""

    async def resolve(self, host: str, port: int) -> Iterable[Address]:
        """Numeric addresses of a name; `OSError` if there are none (now)."""


class UdpSocket:
    """A `DatagramSocket` of the kernel."""

    def __init__(self, kernel_socket: socket.socket, limit_bytes: int) -> None:
        kernel_socket.settimeout(0)
        self._socket = kernel_socket
        self._limit_bytes = limit_bytes
        self._is_failing = False
        self._overflowed = 0
        self._address = _address(kernel_socket.getsockname())

    @property
    def address(self) -> Address:
        """Where it is bound."""
        return self._address

    def send(self, datagram: bytes, target: Address) -> bool:
        """Send now, or drop and return false (buffer full, no route, no such family)."""
        try:
            self._socket.sendto(datagram, (target.host, target.port))
        except OSError:
            return False
        return True

    async def readable(self) -> None:
        """Until a datagram waits; after an error of the socket, for a moment."""
        if self._is_failing:
            self._is_failing = False
            await trio.sleep(_PAUSE_AFTER_ERROR_S)
        elif self._socket.fileno() < 0:
            raise trio.ClosedResourceError
        else:
            await trio.lowlevel.wait_readable(self._socket.fileno())

    def receive_waiting(self) -> tuple[bytes, Address] | None:
        """The next datagram if one waits."""
        try:
            data, source = self._socket.recvfrom(self._limit_bytes + 1)
        except BlockingIOError:
            return None
        except OSError:  # an interface went down, memory is short: the socket lives on (unless it was closed)
            self._is_failing = self._socket.fileno() >= 0
            return None
        return data, _address(source)

    def overflowed(self) -> int:
        """How many datagrams the kernel dropped because its queue was full. Linux tells; elsewhere it is 0."""
        if sys.platform == "linux" and self._socket.fileno() >= 0:
            with suppress(OSError, struct.error):  # an older kernel, or one that only looks like Linux
                told = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
                self._overflowed = _MEMINFO.unpack(told)[_MEMINFO_DROPS]
        return self._overflowed

    def close(self) -> None:
        """Close it; closing twice is fine."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket.fileno())
            self._socket.close()


class UdpNetwork:
    """The machine's own network. `interface` is the one that multicast goes out on and is heard on."""

    def __init__(self, interface: str | None = None) -> None:
        self._interface = interface

    def bind(self, address: Address, limit_bytes: int) -> UdpSocket:
        """A UDP socket at `address`; port 0 takes any free one."""
        kernel_socket = _new_socket(address)
        try:
            if kernel_socket.family == socket.AF_INET:
                kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            self._choose_multicast_interface(kernel_socket, address)
            kernel_socket.bind((address.host, address.port))
            return UdpSocket(kernel_socket, limit_bytes)
        except BaseException:
            kernel_socket.close()
            raise

    def hear_broadcasts(self, address: Address, limit_bytes: int) -> UdpSocket:
        """A UDP socket bound to the broadcast or multicast address itself: what is sent to a host does not come."""
        kernel_socket = _new_socket(address)
        try:
            kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform != "linux":  # on Linux the option would bar other users of the machine from sharing
                kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if ip_address(address.host).is_multicast:
                self._join_group(kernel_socket, address.host)
            # A group of one link has to be bound with the link's number.
            scope = (0, self._index()) if kernel_socket.family == socket.AF_INET6 else ()
            kernel_socket.bind((address.host, address.port, *scope))
            return UdpSocket(kernel_socket, limit_bytes)
        except BaseException:
            kernel_socket.close()
            raise

    def _index(self) -> int:
        """The interface's number; 0 leaves the choice to the kernel's routes."""
        return 0 if self._interface is None else socket.if_nametoindex(self._interface)

    def _choose_multicast_interface(self, kernel_socket: socket.socket, address: Address) -> None:
        """Multicast of a socket bound to one IPv4 address goes out where that lives, unless an interface is named."""
        if kernel_socket.family == socket.AF_INET6:
            kernel_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index())
        else:
            local = socket.inet_aton(address.host)
            choice = struct.pack(_MULTICAST_REQUEST, bytes(4), local, self._index())
            kernel_socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, choice)

    def _join_group(self, kernel_socket: socket.socket, group: str) -> None:
        if kernel_socket.family == socket.AF_INET6:
            request = socket.inet_pton(socket.AF_INET6, group) + struct.pack("@I", self._index())
            kernel_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
        else:
            request = struct.pack(_MULTICAST_REQUEST, socket.inet_aton(group), bytes(4), self._index())
            kernel_socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Ask the resolver; addresses of a link's scope are left out, the wire has no room for scopes."""
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        return list(dict.fromkeys(_address(each[4]) for each in found if "%" not in str(each[4][0])))


def _new_socket(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    kernel_socket = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        kernel_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # no mapped IPv4: one spelling per address
    return kernel_socket


@lru_cache(maxsize=_ADDRESSES_REMEMBERED)
def _address(name: tuple[object, ...]) -> Address:
    """The part of a socket name that names an endpoint; IPv6 names carry flow and scope behind it."""
    host, port = name[:2]
    return Address(str(host), int(str(port)))


def open_socket(
    setting: str, address: Address, bind: Callable[[Address, int], DatagramSocket], limit_bytes: int
) -> DatagramSocket:
    """The socket for a setting; `ConfigError` names the setting."""
    try:
        return bind(address, limit_bytes)
    except OSError as error:
        raise ConfigError(
            f"{setting} = {endpoint(address)} cannot be opened ({error.strerror or error}): choose an address of this"
            " machine and a port that no other process uses"
        ) from error
