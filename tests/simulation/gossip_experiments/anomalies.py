"""Slow members as Lifeguard's paper makes them: messages wait, clocks do not.

For the length of an anomaly whatever a member sends stays with it and whatever reaches it stays unread; its timers run
on. So it hears no answers, accuses, and counts its own suspicions down, all about members that are well; when the
anomaly ends, the accusations go out together. (A process without any processor time is the milder case: its timers
stand still too, which a core can notice.)
"""

from collections.abc import Iterable

from gossip.core.events import Event, Received
from gossip.core.member import Address
from gossip.core.messages import Message
from gossip.core.options import SwimOptions
from tests.simulation.gossip_network import GossipNetwork, Node


class SlowNetwork(GossipNetwork):
    """A network some of whose members are slow at times."""

    def __init__(self, random_seed: int, options: SwimOptions | None = None) -> None:
        super().__init__(random_seed, options)
        self._slow_until: dict[int, int] = {}
        self._held: list[tuple[Node, Address, Message]] = []

    def slow_down(self, nodes: Iterable[Node], duration_ms: int) -> None:
        """These members' messages wait for a while; no other member is slow."""
        assert not self._held
        self._slow_until = {node.number: self.now + duration_ms for node in nodes}

    def recover(self) -> None:
        """The anomaly is over: what the slow wanted to send goes out in its order."""
        self._slow_until = {}
        held, self._held = self._held, []
        for sender, target, message in held:
            self.deliver(sender, target, message)

    def step(self, node: Node, event: Event) -> None:
        """A slow member reads later what reaches it now."""
        until = self._slow_until.get(node.number, 0)
        if until > self.now and isinstance(event, Received):
            self._push(until, node, event)
        else:
            super().step(node, event)

    def deliver(self, sender: Node, target: Address, message: Message) -> None:
        """A slow member's datagram stays with it."""
        if self._slow_until.get(sender.number, 0) > self.now:
            self._held.append((sender, target, message))
        else:
            super().deliver(sender, target, message)
