"""Datagrams between the machines: the port `gossip.node.udp.Network` of one machine in memory.

A socket drops datagrams when its queue is full, like the kernel. A datagram for a broadcast address reaches every
machine of the network that is bound to it, also the sender.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from gossip import Address
from tests.simulation.farm.host import Host
from tests.simulation.farm.network import Network

_QUEUE_MAX: Final = 1024
_FIRST_FREE_PORT: Final = 40_000


class MemoryDatagrams:
    """The datagram sockets of all machines."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._bound: dict[tuple[str, Address], DatagramSocket] = {}
        """Sockets by the name of the machine and the address."""
        self._listening: dict[Address, list[DatagramSocket]] = {}
        """Sockets at broadcast addresses."""
        self.on_sent: Callable[[Address, Address, bytes], None] | None = None
        """Called with the source, the target and the bytes of each datagram to one machine."""

    def of(self, host: Host) -> "HostDatagrams":
        """Return the network as one machine sees it."""
        return HostDatagrams(self, host)

    def bind(self, host: Host, address: Address) -> "DatagramSocket":
        if not is_own(host, address.host):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if address.port == 0:
            port = _FIRST_FREE_PORT
            while (host.name, Address(address.host, port)) in self._bound:
                port += 1
            address = Address(address.host, port)
        if (host.name, address) in self._bound:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return self._bound.setdefault((host.name, address), DatagramSocket(self, host, address))

    def listen(self, host: Host, address: Address) -> "DatagramSocket":
        found = DatagramSocket(self, host, address)
        self._listening.setdefault(address, []).append(found)
        return found

    def close(self, closed: "DatagramSocket") -> None:
        listening = self._listening.get(closed.address, [])
        if closed in listening:
            listening.remove(closed)
        elif self._bound.get((closed.host.name, closed.address)) is closed:
            del self._bound[closed.host.name, closed.address]

    def close_all(self, host: Host) -> None:
        """Close the sockets of a machine whose process has ended."""
        sockets = [each for (name, _), each in self._bound.items() if name == host.name]
        sockets += [each for sockets in self._listening.values() for each in sockets if each.host is host]
        for each in sockets:
            each.close()

    def send(self, source: "DatagramSocket", datagram: bytes, target: Address) -> bool:
        """Send a datagram; return False if the machine is off, or has lost the address of the socket."""
        host = source.host
        if not host.is_powered or not is_own(host, source.address.host):
            return False
        listening = self._listening.get(target)
        if listening is not None:
            for each in listening:
                if each.host is host or each.host.public is host.public is None:  # A NAT does not forward broadcasts.
                    self._deliver(source, datagram, each.host, target, each)
            return True
        owner = host if is_own(host, target.host) else self.network.owner(target.host)
        if owner is not None:
            if self.on_sent is not None:
                self.on_sent(source.address, target, datagram)
            self._deliver(source, datagram, owner, target)
        return True

    def forge(self, sender: Host, source: Address, datagram: bytes, target: Address) -> None:
        owner = self.network.owner(target.host)
        if owner is not None:
            self._deliver(DatagramSocket(self, sender, source), datagram, owner, target)

    def _deliver(
        self,
        source: "DatagramSocket",
        datagram: bytes,
        owner: Host,
        target: Address,
        listening: "DatagramSocket | None" = None,
    ) -> None:
        origin = source.address
        if listening is None and not is_own(source.host, target.host):
            origin = Address(self.network.outside(source.host, origin.host), origin.port)
        inside = Address(self.network.inside(owner, target.host), target.port)

        def deliver() -> None:
            receiver = self._bound.get((owner.name, inside)) if listening is None else listening
            if receiver is not None:
                receiver.arrive(datagram, origin)

        self.network.send_datagram(source.host, owner, len(datagram), deliver)


class HostDatagrams:
    """The port `Network` of one machine."""

    def __init__(self, datagrams: MemoryDatagrams, host: Host) -> None:
        self._datagrams = datagrams
        self._host = host

    def bind(self, address: Address, limit_bytes: int) -> "DatagramSocket":  # noqa: ARG002 - the port's parameter
        """Return a socket for sending and receiving."""
        return self._datagrams.bind(self._host, address)

    def bind_broadcast(self, address: Address, limit_bytes: int) -> "DatagramSocket":  # noqa: ARG002 - the port's parameter
        return self._datagrams.listen(self._host, address)

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Return the address of a machine by its name."""
        await trio.lowlevel.checkpoint()
        for each in self._datagrams.network.hosts():
            if each.name == host:
                return [Address(address, port) for address in each.addresses]
        raise OSError(-2, "Name or service not known")


class DatagramSocket:
    """A bound socket of one machine."""

    def __init__(self, datagrams: MemoryDatagrams, host: Host, address: Address) -> None:
        self.host = host
        self._address = address
        self._datagrams = datagrams
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._reader: trio.lowlevel.Task | None = None
        self._overflowed = 0
        self._is_closed = False

    @property
    def address(self) -> Address:
        return self._address

    def send(self, datagram: bytes, target: Address) -> bool:
        """Send immediately, or drop and return False."""
        return not self._is_closed and self._datagrams.send(self, datagram, target)

    def arrive(self, datagram: bytes, source: Address) -> None:
        """Queue a datagram from the network."""
        if len(self._waiting) >= _QUEUE_MAX:
            self._overflowed += 1
            return
        self._waiting.append((datagram, source))
        self._wake()

    async def readable(self) -> None:
        """Wait until a datagram is available."""
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._waiting:
            await trio.lowlevel.checkpoint()
            return
        self._reader = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if self._is_closed:
            raise trio.ClosedResourceError

    def receive_waiting(self) -> tuple[bytes, Address] | None:
        """Return the next waiting datagram or None."""
        return self._waiting.popleft() if self._waiting else None

    def overflowed(self) -> int:
        """Return the number of datagrams dropped by the full queue."""
        return self._overflowed

    def close(self) -> None:
        """Close the socket; closing twice is allowed."""
        self._is_closed = True
        self._datagrams.close(self)
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)


def is_own(host: Host, address: str) -> bool:
    return address in host.addresses or address.startswith("127.") or address in ("0.0.0.0", "::", "::1")  # noqa: S104 - compared
