"""A group of `Swim` cores in virtual time, on a network that loses and delays datagrams, and partitions.

One random seed determines a whole run, so the seed of a failing run reproduces it. A minimal correct model replaces the
wire layer. For OfferToken it sends a JoinNak whose token contains the applicant's address. A JoinReq is `token_valid`
if it comes from that address with that token.

    network = GossipNetwork(7, SwimOptions.lan(), Node)
    nodes = [network.add(0), network.add(1, seeds=(0,))]
    network.run(10_000)
    network.kill(nodes[0])
"""

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from gossip.core.effects import Effect, OfferToken, Send
from gossip.core.events import DeadlineReached, Event, Received, SeedsGiven
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo
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
    """One simulated node, with its running core, if any."""

    number: int
    address: Address
    swim: Swim | None = None
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


NodeT = TypeVar("NodeT", bound=Node)


class GossipNetwork(Generic[NodeT]):
    """The nodes, the clock and the datagrams between them."""

    def __init__(
        self, random_seed: int, options: SwimOptions, new_node: Callable[[int, Address], NodeT], loss: float = 0.0
    ) -> None:
        self.random_seed = random_seed
        self.random = Random(random_seed)
        self.options = options
        self.loss = loss
        self.delay_ms = (1, 10)
        self._new_node = new_node
        self.now = 0
        self.nodes: dict[int, NodeT] = {}
        self.watch: Callable[[NodeT, Effect], None] | None = None
        self._at: dict[Address, NodeT] = {}
        self._queue: dict[int, list[tuple[NodeT, Event | None]]] = {}
        self._times: list[int] = []
        self._side: dict[int, int] = {}

    # -- building -----------------------------------------------------------------------------------------------------

    def add(self, number: int, *, seeds: tuple[int, ...] = (), capacity: int = 64) -> NodeT:
        """Start a node; `seeds` are numbers of nodes."""
        return self._begin(number, NodeInfo(node_id(number), address_of(number), Incarnation(1, 0), capacity), seeds)

    def _begin(self, number: int, info: NodeInfo, seeds: tuple[int, ...], keys: Keyring | None = None) -> NodeT:
        node = self.nodes.get(number)
        if node is None:
            node = self.nodes[number] = self._new_node(number, address_of(number))
            self._at[node.address] = node
        node.swim = Swim(info, self.options, Random(self.random.getrandbits(64)), self.now, keys=keys)
        node.wakes_at = None
        if seeds:
            self.step(node, SeedsGiven(tuple(address_of(seed) for seed in seeds)))
        self._arm(node)
        return node

    def kill(self, node: NodeT) -> None:
        """Stop the process without notice."""
        node.swim = None
        node.wakes_at = None

    def freeze(self, node: NodeT, duration_ms: int) -> None:
        """Withhold processor time from the process for a while; its datagrams wait in its socket."""
        node.frozen_until = self.now + duration_ms

    def partition(self, *sides: Collection[NodeT]) -> None:
        """Let datagrams pass only between nodes of one side."""
        self._side = {node.number: index for index, side in enumerate(sides) for node in side}

    def heal(self) -> None:
        """Let datagrams pass between all nodes."""
        self._side = {}

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        end = self.now + duration_ms
        while self._times and self._times[0] <= end:
            self._serve_next()
        self.now = end

    def _serve_next(self) -> None:
        self.now = self._times[0]
        self._serve(self._queue[self.now])
        # The event is removed after serving, so that a failed run can be inspected.
        del self._queue[heapq.heappop(self._times)]

    def _serve(self, due: list[tuple[NodeT, Event | None]]) -> None:
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

    def step(self, node: NodeT, event: Event) -> None:
        """Pass one event to one node and execute its effects."""
        for effect in node.core.step(event, self.now):
            if self.watch is not None:
                self.watch(node, effect)
            self._carry_out(node, effect)
        self._arm(node)

    def _arm(self, node: NodeT) -> None:
        deadline = node.core.deadline
        if deadline is not None and (node.wakes_at is None or deadline < node.wakes_at):
            node.wakes_at = max(deadline, self.now)
            self._push(node.wakes_at, node, None)

    def _push(self, time: int, node: NodeT, event: Event | None) -> None:
        due = self._queue.get(time)
        if due is None:
            due = self._queue[time] = []
            heapq.heappush(self._times, time)
        due.append((node, event))

    def _carry_out(self, node: NodeT, effect: Effect) -> None:
        match effect:
            case Send(target, message, _):
                self.deliver(node, target, message)
            case OfferToken(target, _, generation):
                nak = JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, token_for(target), generation)
                self.deliver(node, target, nak)
            case _:
                pass  # only tests observe the other effects, and datagrams are not sealed here

    def deliver(self, sender: NodeT, target: Address, message: Message) -> None:
        """Put a datagram on the network, which may lose it."""
        receiver = self._at.get(target)
        if receiver is None:
            return
        if self._side and self._side.get(sender.number) != self._side.get(receiver.number):
            return
        token_valid = isinstance(message, JoinReq) and message.token == token_for(sender.address)
        self._transmit(receiver, Received(sender.address, message, token_valid))

    def _transmit(self, receiver: NodeT, received: Received) -> None:
        if not self.loss or self.random.random() >= self.loss:
            shortest_ms, longest_ms = self.delay_ms
            delay_ms = shortest_ms + int(self.random.random() * (longest_ms - shortest_ms + 1))
            self._push(self.now + delay_ms, receiver, received)

    # -- inspecting ---------------------------------------------------------------------------------------------------

    @property
    def up(self) -> list[NodeT]:
        """The running nodes."""
        return [node for node in self.nodes.values() if node.swim is not None]

    def peers(self, node: NodeT) -> set[int]:
        """Return the numbers of a node's peers."""
        return {int.from_bytes(peer_id, "big") for peer_id in node.core.membership.links}

    def reached_from(self, start: NodeT) -> set[int]:
        """Return the numbers of `start` and of the running nodes that links connect with it."""
        found, todo = {start.number}, [start.number]
        running = {node.number for node in self.up}
        while todo:
            for peer in self.peers(self.nodes[todo.pop()]) & running:
                if peer not in found:
                    found.add(peer)
                    todo.append(peer)
        return found
