"""Slow members as in Lifeguard's paper: their messages wait, their clocks do not.

During an anomaly a member's sent messages wait, and received ones remain unread; its timers continue. So it receives no
replies, accuses members, and counts its suspicions down, all about healthy members. When the anomaly ends, the
accusations are sent together. (A process without any processor time is the milder case: its timers stop too, and a core
can detect that.)
"""

from collections.abc import Iterable

from gossip.core.events import Event, Received
from gossip.core.member import Address
from gossip.core.messages import Message
from gossip.core.options import SwimOptions
from tests.simulation.gossip_network import GossipNetwork, Node


class SlowNetwork(GossipNetwork):
    """A network with members that are slow at times."""

    def __init__(self, random_seed: int, options: SwimOptions | None = None) -> None:
        super().__init__(random_seed, options)
        self._slow_until: dict[int, int] = {}
        self._delayed: list[tuple[Node, Address, Message]] = []

    def slow_down(self, nodes: Iterable[Node], duration_ms: int) -> None:
        """Delay the messages of these members for a while; no other member is slow."""
        assert not self._delayed
        self._slow_until = {node.number: self.now + duration_ms for node in nodes}

    def recover(self) -> None:
        """End the anomaly: send the delayed messages in order."""
        self._slow_until = {}
        delayed, self._delayed = self._delayed, []
        for sender, target, message in delayed:
            self.deliver(sender, target, message)

    def step(self, node: Node, event: Event) -> None:
        """Let a slow member read later the messages that arrive now."""
        until = self._slow_until.get(node.number, 0)
        if until > self.now and isinstance(event, Received):
            self._push(until, node, event)
        else:
            super().step(node, event)

    def deliver(self, sender: Node, target: Address, message: Message) -> None:
        """Hold back the datagrams of a slow member."""
        if self._slow_until.get(sender.number, 0) > self.now:
            self._delayed.append((sender, target, message))
        else:
            super().deliver(sender, target, message)
