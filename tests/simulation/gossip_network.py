"""The simulated network of gossip nodes, with duplicated datagrams, broadcasts, keys, restarts, and records.

network = GossipNetwork(random_seed=7)
nodes = network.start(5)                the first is the seed of all others
network.run_until(lambda: network.is_full_mesh(), limit_ms=30_000)
network.kill(nodes[0])
network.run(10_000)
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gossip.core.effects import (
    AdoptGeneration,
    Alarm,
    Announce,
    Effect,
    MembershipChanged,
    QueryAnswered,
    QueryEnded,
    QueryReceived,
    UserEventReceived,
)
from gossip.core.events import LeaveRequested, MetadataChanged, Received
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeInfo, Status
from gossip.core.messages import Message
from gossip.core.options import SwimOptions
from gossip.simulation import network as simulated
from gossip.simulation.network import NodeT, address_of, node_id, token_for

__all__ = ["GossipNetwork", "Node", "address_of", "is_symmetrical", "must", "node_id", "token_for"]


@dataclass(slots=True)
class Node(simulated.Node):
    """A node with the state that survives a crash, and with records of its effects."""

    generation: int = 1
    changes: list[tuple[int, MembershipChanged]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    received: list[UserEventReceived | QueryReceived | QueryAnswered | QueryEnded] = field(default_factory=list)


class GossipNetwork(simulated.GossipNetwork[Node]):
    """A simulated network whose datagrams may be duplicated, and whose nodes are restarted and observed."""

    def __init__(
        self,
        random_seed: int,
        options: SwimOptions | None = None,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        broadcast: bool = False,
        keys: Keyring | None = None,
    ) -> None:
        super().__init__(random_seed, options or SwimOptions.lan(), Node, loss)
        self.duplication = duplication
        self.broadcast = broadcast
        self.keys = keys
        self.messages_sent = 0

    def add(
        self,
        number: int,
        *,
        seeds: tuple[int, ...] = (),
        capacity: int = 64,
        metadata: bytes = b"",
        generation: int = 1,
        identity: int | None = None,
    ) -> Node:
        """Start a node; `seeds` are numbers of nodes. With `identity` it has the NodeId of the node of that number."""
        name = node_id(number if identity is None else identity)
        info = NodeInfo(name, address_of(number), Incarnation(generation, 0), capacity, metadata)
        node = self._begin(number, info, seeds, self.keys)
        node.generation = generation
        return node

    def start(self, size: int, *, capacity: int = 64, apart_ms: int = 0) -> list[Node]:
        """Start nodes 0 to size - 1; node 0 is the seed of the others."""
        nodes = []
        for number in range(size):
            nodes.append(self.add(number, seeds=() if number == 0 else (0,), capacity=capacity))
            if apart_ms:
                self.run(apart_ms)
        return nodes

    def restart(self, node: Node, *, seeds: tuple[int, ...] = (), capacity: int = 64) -> None:
        """Start the process again, with the next generation."""
        self.add(node.number, seeds=seeds, capacity=capacity, generation=node.generation + 1)

    def set_metadata(self, node: Node, metadata: bytes) -> None:
        """Change the metadata that a node announces."""
        self.step(node, MetadataChanged(metadata))

    def leave(self, node: Node) -> None:
        """Make a node leave the group."""
        self.step(node, LeaveRequested())

    def run_until(self, holds: Callable[[], bool], *, limit_ms: int, check_every_ms: int = 100) -> bool:
        """Let time pass until `holds` (called periodically) is True, or until the limit; return its last result."""
        end = self.now + limit_ms
        check_at = self.now
        while True:
            if self.now >= check_at:
                if holds():
                    return True
                check_at = self.now + check_every_ms
            if not self._times or self._times[0] > end:
                self.now = end
                return holds()
            self._serve_next()

    def _carry_out(self, node: Node, effect: Effect) -> None:
        match effect:
            case Announce(message):
                if self.broadcast:
                    for other in self.nodes.values():
                        if other is not node:
                            self.deliver(node, other.address, message)
            case MembershipChanged():
                node.changes.append((self.now, effect))
            case AdoptGeneration(generation):
                node.generation = generation
            case Alarm():
                node.alarms.append(effect)
            case UserEventReceived() | QueryReceived() | QueryAnswered() | QueryEnded():
                node.received.append(effect)
            case _:
                super()._carry_out(node, effect)

    def deliver(self, sender: Node, target: Address, message: Message) -> None:
        """Count a datagram, and put it on the network, which may lose or duplicate it."""
        self.messages_sent += 1
        super().deliver(sender, target, message)

    def _transmit(self, receiver: Node, received: Received) -> None:
        copies = 2 if self.duplication and self.random.random() < self.duplication else 1
        for _ in range(copies):
            super()._transmit(receiver, received)

    def status(self, of: Node, seen_by: Node) -> Status | None:
        """Return the status of one node in another's view."""
        entry = seen_by.core.membership.get(of.node_id)
        return None if entry is None else entry.status

    def is_full_mesh(self, nodes: Collection[Node] | None = None) -> bool:
        """Return True if each of `nodes` (default: all running) has exactly the others as peers, all alive."""
        members = self.up if nodes is None else nodes
        numbers = {node.number for node in members}
        return all(
            self.peers(node) == numbers - {node.number}
            and all(self.status(other, node) is Status.ALIVE for other in members if other is not node)
            for node in members
        )

    def ever(self, status: Status, of: Node | None = None) -> list[str]:
        """Return a line for each time that a node saw a member (or only `of`) get this status."""
        return [
            f"at {time} ms node {node.number} saw {int.from_bytes(change.info.node_id, 'big')} {status.name}"
            for node in self.nodes.values()
            for time, change in node.changes
            if change.status is status and (of is None or change.info.node_id == of.node_id)
        ]


def is_symmetrical(network: simulated.GossipNetwork[NodeT]) -> bool:
    """Return True if each peer of a running node runs, and has that node as a peer."""
    links = {node.number: network.peers(node) for node in network.up}
    return all(number in links.get(peer, set()) for number, peers in links.items() for peer in peers)


def must(network: GossipNetwork, holds: Callable[[], bool], *, within_ms: int, what: str) -> int:
    """Run until the condition holds; return the duration. The failure names the random seed."""
    started = network.now
    is_reached = network.run_until(holds, limit_ms=within_ms)
    assert is_reached, f"random seed {network.random_seed}: not within {within_ms} ms: {what}"
    return network.now - started
