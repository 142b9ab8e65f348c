"""A network in memory for gossip agents: datagrams arrive immediately, unless the test isolates a node."""

from collections import deque

import trio

from gossip.core.member import Address

QUEUE_LIMIT = 4096


class MemorySocket:
    """One endpoint of a `MemoryNetwork`."""

    def __init__(self, network: "MemoryNetwork", address: Address) -> None:
        self.network = network
        self.address = address
        self.waiting: deque[tuple[bytes, Address]] = deque(maxlen=QUEUE_LIMIT)
        self.arrived = trio.Event()

    def send(self, datagram: bytes, target: Address) -> bool:
        """Deliver a datagram immediately."""
        self.network.deliver(datagram, self.address, target)
        return True

    async def readable(self) -> None:
        """Wait until a datagram is available."""
        if not self.waiting:
            self.arrived = trio.Event()
            await self.arrived.wait()
        else:
            await trio.lowlevel.checkpoint()

    def receive_waiting(self) -> tuple[bytes, Address] | None:
        """Return the next waiting datagram, or None."""
        return self.waiting.popleft() if self.waiting else None

    def overflowed(self) -> int:
        """Return 0: overflow is not counted."""
        return 0

    def close(self) -> None:
        self.network.unplug(self)


class MemoryNetwork:
    """Hosts by address; port 0 is replaced by a port from 40000 on."""

    def __init__(self) -> None:
        self.sockets: dict[Address, MemorySocket] = {}
        self.listeners: list[MemorySocket] = []
        self.cut_off: set[Address] = set()
        self.names: dict[str, list[str]] = {}
        self.lookups: list[str] = []
        self.sent: list[tuple[Address, Address, bytes]] = []

    def bind(self, address: Address, limit_bytes: int) -> MemorySocket:  # noqa: ARG002 - the Network protocol
        if address.port == 0:
            address = Address(address.host, 40_000 + len(self.sockets))
        if address in self.sockets:
            raise OSError(98, "Address already in use")
        return self.sockets.setdefault(address, MemorySocket(self, address))

    def bind_broadcast(self, address: Address, limit_bytes: int) -> MemorySocket:  # noqa: ARG002 - the Network protocol
        """Return a socket that shares its address with others."""
        self.listeners.append(MemorySocket(self, address))
        return self.listeners[-1]

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Resolve a name with `names`."""
        await trio.lowlevel.checkpoint()
        self.lookups.append(host)
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return [Address(each, port) for each in self.names[host]]

    def deliver(self, datagram: bytes, source: Address, target: Address) -> None:
        self.sent.append((source, target, datagram))
        if {source, target} & self.cut_off:
            return
        listeners = [each for each in self.listeners if each.address == target]
        for socket in [*listeners, *filter(None, [self.sockets.get(target)])]:
            socket.waiting.append((datagram, source))
            socket.arrived.set()

    def unplug(self, socket: MemorySocket) -> None:
        """Detach a socket; datagrams to it are lost."""
        if socket in self.listeners:
            self.listeners.remove(socket)
        else:
            self.sockets.pop(socket.address, None)
