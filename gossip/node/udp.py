"""UDP sockets under trio, and the interface for the simulated networks of tests.

Sending is synchronous and never blocks: when the kernel's buffer is full the datagram is dropped. Gossip tolerates this
like any loss in the network. The effects of one step are thus executed without interruption.

A receive requests one byte more than allowed, so that a datagram that is too long is not taken for a complete one.
"""

import errno
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
"""The option for a socket's memory use and drops: Linux 4.12, asm-generic/socket.h. Python does not name it."""
_MEMINFO: Final = struct.Struct("@9I")
_MEMINFO_DROPS: Final = 8


class DatagramSocket(Protocol):
    """A bound datagram socket."""

    @property
    def address(self) -> Address:
        """The bound address."""

    def send(self, datagram: bytes, target: Address) -> bool:
        """Send immediately, or drop and return False."""

    async def readable(self) -> None:
        """Wait until a datagram is available; it may be gone on return. Other tasks always get a turn."""

    def receive_waiting(self) -> tuple[bytes, Address] | None:
        """Return the next waiting datagram or None; a longer datagram is cut at one byte above the limit."""

    def overflowed(self) -> int:
        """Return the number of datagrams lost by the full queue since the bind; 0 if not counted."""

    def close(self) -> None:
        """Close the socket; closing twice is allowed."""


class Network(Protocol):
    """A node's interface to a network."""

    def bind(self, address: Address, limit_bytes: int) -> DatagramSocket:
        """Return a socket for sending and receiving, allowed to send to broadcast addresses."""

    def bind_broadcast(self, address: Address, limit_bytes: int) -> DatagramSocket:
        """Return a socket that receives at a broadcast address, shared with others on the same machine."""

    async def resolve(self, host: str, port: int) -> Iterable[Address]:
        """Return the usable numeric addresses of a name; raise OSError if the name cannot be resolved."""


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
        """The bound address."""
        return self._address

    def send(self, datagram: bytes, target: Address) -> bool:
        """Send immediately, or drop and return False (buffer full, no route, no such family)."""
        try:
            self._socket.sendto(datagram, (target.host, target.port))
        except OSError:
            return False
        return True

    async def readable(self) -> None:
        """Wait until a datagram is available; after an error of the socket, wait only for a moment."""
        if self._is_failing:
            self._is_failing = False
            await trio.sleep(_PAUSE_AFTER_ERROR_S)
        elif self._socket.fileno() < 0:
            raise trio.ClosedResourceError
        else:
            await trio.lowlevel.wait_readable(self._socket.fileno())

    def receive_waiting(self) -> tuple[bytes, Address] | None:
        """Return the next waiting datagram or None."""
        try:
            data, source = self._socket.recvfrom(self._limit_bytes + 1)
        except BlockingIOError:
            return None
        except OSError:  # for example, an interface went down: the socket stays usable (unless it was closed)
            self._is_failing = self._socket.fileno() >= 0
            return None
        return data, _address(source)

    def overflowed(self) -> int:
        """Return the number of datagrams that the kernel dropped because its queue was full; 0 except on Linux."""
        if sys.platform == "linux" and self._socket.fileno() >= 0:
            with suppress(OSError, struct.error):  # an older kernel, or another kernel that imitates Linux
                figures = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
                self._overflowed = _MEMINFO.unpack(figures)[_MEMINFO_DROPS]
        return self._overflowed

    def close(self) -> None:
        """Close the socket; closing twice is allowed."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket.fileno())
            self._socket.close()


class UdpNetwork:
    """The machine's own network. `interface` is the name of the interface that sends and receives multicast."""

    def __init__(self, interface: str | None = None) -> None:
        self._interface = interface

    def bind(self, address: Address, limit_bytes: int) -> UdpSocket:
        """Return a UDP socket at `address`; port 0 takes any free one."""
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

    def bind_broadcast(self, address: Address, limit_bytes: int) -> UdpSocket:
        """Return a UDP socket bound to the broadcast or multicast address itself, so it does not receive unicast."""
        kernel_socket = _new_socket(address)
        try:
            kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform != "linux":  # on Linux the option would bar other users of the machine from sharing
                kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if ip_address(address.host).is_multicast:
                self._join_group(kernel_socket, address.host)
            # A multicast group of link-local IPv6 must be bound with the number of its interface.
            scope = (0, self._index()) if kernel_socket.family == socket.AF_INET6 else ()
            kernel_socket.bind((address.host, address.port, *scope))
            return UdpSocket(kernel_socket, limit_bytes)
        except BaseException:
            kernel_socket.close()
            raise

    def _index(self) -> int:
        """Return the number of `interface`; 0 if it is not set, so that the kernel's routes choose one."""
        return 0 if self._interface is None else socket.if_nametoindex(self._interface)

    def _choose_multicast_interface(self, kernel_socket: socket.socket, address: Address) -> None:
        """Set the interface that the socket uses to send multicast: `interface`, if it is set.

        Otherwise, an IPv4 socket uses the interface with its bound address. The kernel's routes choose the interface
        for IPv6, and for an IPv4 socket bound to all addresses.
        """
        try:
            if kernel_socket.family == socket.AF_INET6:
                kernel_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index())
            else:
                local = socket.inet_aton(address.host)
                choice = struct.pack(_MULTICAST_REQUEST, bytes(4), local, self._index())
                kernel_socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, choice)
        except OSError as error:
            # An emulator (qemu) lacks this option; the kernel's routes then choose the interface.
            if error.errno != errno.ENOPROTOOPT or self._interface is not None:
                raise

    def _join_group(self, kernel_socket: socket.socket, group: str) -> None:
        if kernel_socket.family == socket.AF_INET6:
            request = socket.inet_pton(socket.AF_INET6, group) + struct.pack("@I", self._index())
            kernel_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
        else:
            request = struct.pack(_MULTICAST_REQUEST, socket.inet_aton(group), bytes(4), self._index())
            kernel_socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Resolve a name; omit addresses with a link's scope, because the wire format does not have a scope."""
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
    """Return the endpoint in a socket name; an IPv6 name also contains a flow and a scope."""
    host, port = name[:2]
    return Address(str(host), int(str(port)))


def open_socket(
    setting: str, address: Address, bind: Callable[[Address, int], DatagramSocket], limit_bytes: int
) -> DatagramSocket:
    """Return the socket for a setting; raise a ConfigError that names the setting."""
    try:
        return bind(address, limit_bytes)
    except OSError as error:
        raise ConfigError(
            f"{setting} = {endpoint(address)} cannot be opened ({error.strerror or error}): choose an address of this"
            " machine and a port that no other process uses"
        ) from error
