"""A group of `Swim` cores in virtual time, on a network that loses, delays and duplicates datagrams, and partitions.

One random seed determines a whole run, so the seed of a failing run reproduces it. A minimal correct model replaces the
wire layer. For OfferToken it sends a JoinNak whose token contains the applicant's address. A JoinReq is `token_valid`
if it comes from that address with that token.

    network = GossipNetwork(random_seed=7)
    nodes = network.start(5)                the first is the seed of all others
    network.run_until(lambda: network.is_full_mesh(), limit_ms=30_000)
    network.kill(nodes[0])
    network.run(10_000)
"""

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

from gossip.core.effects import (
    AdoptGeneration,
    Alarm,
    Announce,
    Effect,
    KeyOffered,
    MembershipChanged,
    OfferToken,
    QueryAnswered,
    QueryEnded,
    QueryReceived,
    Send,
    UseKeyring,
    UserEventReceived,
)
from gossip.core.events import DeadlineReached, Event, LeaveRequested, MetadataChanged, Received, SeedsGiven
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import DOMAIN, JoinNak, JoinReq, Message, RefusalCode
from gossip.core.options import SwimOptions
from gossip.core.swim import Swim


def node_id(number: int) -> NodeId:
    """Return a node id for a small number."""
    return NodeId(number.to_bytes(8, "big"))


def address_of(number: int) -> Address:
    """Return the address of the node with that number."""
    return Address(f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}", 7_669)


def token_for(address: Address) -> bytes:
    """Return the token that the simulated wire layer mints for an address."""
    return f"token:{address.host}:{address.port}".encode()


_DEADLINE = DeadlineReached()


@dataclass(slots=True)
class Node:
    """One simulated node: its running core, if any, and the state that survives a crash."""

    number: int
    address: Address
    swim: Swim | None
    generation: int
    changes: list[tuple[int, MembershipChanged]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    received: list[UserEventReceived | QueryReceived | QueryAnswered | QueryEnded] = field(default_factory=list)
    wakes_at: int | None = None
    frozen_until: int = 0

    @property
    def node_id(self) -> NodeId:
        """The node's id."""
        return node_id(self.number)

    @property
    def core(self) -> Swim:
        """The running core."""
        if self.swim is None:
            raise RuntimeError(f"node {self.number} is down")
        return self.swim


class GossipNetwork:
    """The nodes, the clock and the datagrams between them."""

    def __init__(
        self,
        random_seed: int,
        options: SwimOptions | None = None,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        delay_ms: tuple[int, int] = (1, 10),
        broadcast: bool = False,
        keys: Keyring | None = None,
        keep_changes: bool = True,
    ) -> None:
        self.random_seed = random_seed
        self.random = Random(random_seed)
        self.options = options or SwimOptions.lan()
        self.loss = loss
        self.duplication = duplication
        self.delay_ms = delay_ms
        self.broadcast = broadcast
        self.keys = keys
        self.keep_changes = keep_changes
        self.now = 0
        self.nodes: dict[int, Node] = {}
        self.messages_sent = 0
        self.watch: Callable[[Node, Effect], None] | None = None
        self._at: dict[Address, Node] = {}
        self._queue: dict[int, list[tuple[Node, Event | None]]] = {}
        self._times: list[int] = []
        self._side: dict[int, int] = {}

    # -- building -----------------------------------------------------------------------------------------------------

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
        node = self.nodes.get(number)
        if node is None:
            node = self.nodes[number] = Node(number, address_of(number), None, generation)
            self._at[node.address] = node
        node.generation = generation
        node.swim = Swim(info, self.options, Random(self.random.getrandbits(64)), self.now, keys=self.keys)
        node.wakes_at = None
        if seeds:
            self.step(node, SeedsGiven(tuple(address_of(seed) for seed in seeds)))
        self._arm(node)
        return node

    def start(self, size: int, *, capacity: int = 64, apart_ms: int = 0) -> list[Node]:
        """Start nodes 0 to size - 1; node 0 is the seed of the others."""
        nodes = []
        for number in range(size):
            nodes.append(self.add(number, seeds=() if number == 0 else (0,), capacity=capacity))
            if apart_ms:
                self.run(apart_ms)
        return nodes

    def kill(self, node: Node) -> None:
        """Stop the process without notice."""
        node.swim = None
        node.wakes_at = None

    def restart(self, node: Node, *, seeds: tuple[int, ...] = (), capacity: int = 64) -> None:
        """Start the process again, with the next generation."""
        self.add(node.number, seeds=seeds, capacity=capacity, generation=node.generation + 1)

    def freeze(self, node: Node, duration_ms: int) -> None:
        """Withhold processor time from the process for a while; its datagrams wait in its socket."""
        node.frozen_until = self.now + duration_ms

    def partition(self, *sides: Collection[Node]) -> None:
        """Let datagrams pass only between nodes of one side."""
        self._side = {node.number: index for index, side in enumerate(sides) for node in side}

    def heal(self) -> None:
        """Let datagrams pass between all nodes."""
        self._side = {}

    def set_metadata(self, node: Node, metadata: bytes) -> None:
        """Change the metadata that a node announces."""
        self.step(node, MetadataChanged(metadata))

    def leave(self, node: Node) -> None:
        """Make a node leave the group."""
        self.step(node, LeaveRequested())

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        self.run_until(None, limit_ms=duration_ms)

    def run_until(self, holds: Callable[[], bool] | None, *, limit_ms: int, check_every_ms: int = 100) -> bool:
        """Let time pass until `holds` (called periodically) is True, or until the limit; return its last result."""
        end = self.now + limit_ms
        check_at = self.now
        while True:
            if holds is not None and self.now >= check_at:
                if holds():
                    return True
                check_at = self.now + check_every_ms
            if not self._times or self._times[0] > end:
                self.now = end
                return holds is not None and holds()
            self.now = self._times[0]
            self._serve(self._queue[self.now])
            # The event is removed after serving, so that a failed run can be inspected.
            del self._queue[heapq.heappop(self._times)]

    def _serve(self, due: list[tuple[Node, Event | None]]) -> None:
        """Handle all events of this millisecond, including events that other events add to it."""
        for node, event in due:
            if node.swim is None:
                continue
            if node.frozen_until > self.now:
                self._push(node.frozen_until, node, event)
            elif event is not None:
                self.step(node, event)
            elif node.wakes_at is not None and node.wakes_at <= self.now:
                node.wakes_at = None
                deadline = node.swim.deadline
                if deadline is not None and deadline > self.now:
                    self._arm(node)
                else:
                    self.step(node, _DEADLINE)

    def step(self, node: Node, event: Event) -> None:
        """Pass one event to one node and execute its effects."""
        for effect in node.core.step(event, self.now):
            if self.watch is not None:
                self.watch(node, effect)
            self._carry_out(node, effect)
        self._arm(node)

    def _arm(self, node: Node) -> None:
        deadline = node.core.deadline
        if deadline is not None and (node.wakes_at is None or deadline < node.wakes_at):
            node.wakes_at = max(deadline, self.now)
            self._push(node.wakes_at, node, None)

    def _push(self, time: int, node: Node, event: Event | None) -> None:
        due = self._queue.get(time)
        if due is None:
            due = self._queue[time] = []
            heapq.heappush(self._times, time)
        due.append((node, event))

    def _carry_out(self, node: Node, effect: Effect) -> None:  # noqa: C901 - one case per effect
        match effect:
            case Send(target, message, _):
                self.deliver(node, target, message)
            case OfferToken(target, _, generation):
                nak = JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, token_for(target), generation)
                self.deliver(node, target, nak)
            case Announce(message):
                if self.broadcast:
                    for other in self.nodes.values():
                        if other is not node:
                            self.deliver(node, other.address, message)
            case MembershipChanged():
                if self.keep_changes:
                    node.changes.append((self.now, effect))
            case AdoptGeneration(generation):
                node.generation = generation
            case Alarm():
                node.alarms.append(effect)
            case UserEventReceived() | QueryReceived() | QueryAnswered() | QueryEnded():
                node.received.append(effect)
            case UseKeyring() | KeyOffered():
                pass  # datagrams are not sealed here; tests inspect the core's own keyring

    def deliver(self, sender: Node, target: Address, message: Message) -> None:
        """Put a datagram on the network, which may lose or duplicate it."""
        self.messages_sent += 1
        receiver = self._at.get(target)
        if receiver is None:
            return
        if self._side and self._side.get(sender.number) != self._side.get(receiver.number):
            return
        copies = 2 if self.duplication and self.random.random() < self.duplication else 1
        token_valid = isinstance(message, JoinReq) and message.token == token_for(sender.address)
        received = Received(sender.address, message, token_valid)
        for _ in range(copies):
            if not self.loss or self.random.random() >= self.loss:
                shortest_ms, longest_ms = self.delay_ms
                delay_ms = shortest_ms + int(self.random.random() * (longest_ms - shortest_ms + 1))
                self._push(self.now + delay_ms, receiver, received)

    # -- inspecting ---------------------------------------------------------------------------------------------------

    @property
    def up(self) -> list[Node]:
        """The running nodes."""
        return [node for node in self.nodes.values() if node.swim is not None]

    def status(self, of: Node, seen_by: Node) -> Status | None:
        """Return the status of one node in another's view."""
        entry = seen_by.core.membership.get(of.node_id)
        return None if entry is None else entry.status

    def peers(self, node: Node) -> set[int]:
        """Return the numbers of a node's peers."""
        return {int.from_bytes(peer_id, "big") for peer_id in node.core.membership.links}

    def is_full_mesh(self, nodes: Collection[Node] | None = None) -> bool:
        """Return True if each of `nodes` (default: all running) has exactly the others as peers, all alive."""
        members = self.up if nodes is None else nodes
        numbers = {node.number for node in members}
        return all(
            self.peers(node) == numbers - {node.number}
            and all(self.status(other, node) is Status.ALIVE for other in members if other is not node)
            for node in members
        )

    def is_symmetrical(self) -> bool:
        """Return True if each peer of a running node runs, and has that node as a peer."""
        links = {node.number: self.peers(node) for node in self.up}
        return all(number in links.get(peer, set()) for number, peers in links.items() for peer in peers)

    def reached_from(self, start: Node) -> set[int]:
        """Return the numbers of `start` and of the running nodes that links connect with it."""
        found, todo = {start.number}, [start.number]
        running = {node.number for node in self.up}
        while todo:
            for peer in self.peers(self.nodes[todo.pop()]) & running:
                if peer not in found:
                    found.add(peer)
                    todo.append(peer)
        return found

    def ever(self, status: Status, of: Node | None = None) -> list[str]:
        """Return a line for each time that a node saw a member (or only `of`) get this status."""
        return [
            f"at {time} ms node {node.number} saw {int.from_bytes(change.info.node_id, 'big')} {status.name}"
            for node in self.nodes.values()
            for time, change in node.changes
            if change.status is status and (of is None or change.info.node_id == of.node_id)
        ]
