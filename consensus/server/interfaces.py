"""What a server needs of its neighbours: a core to step, and a way out to the other servers."""

from collections.abc import Collection
from typing import Protocol

from consensus.core.effects import Effect
from consensus.core.events import Event
from consensus.core.messages import Request
from consensus.core.model import Milliseconds, ServerId
from consensus.core.status import Description


class Core(Protocol):
    """What the server needs of a `Raft`."""

    @property
    def deadline(self) -> Milliseconds:
        """When `DeadlineReached` is due."""

    def step(self, event: Event, now: Milliseconds) -> list[Effect]:
        """Take one event."""

    def describe(self) -> Description:
        """Plain data."""


class PeerLink(Protocol):
    """The way out: a transport, or several behind one."""

    def send(self, recipient: ServerId, message: Request) -> None:
        """Queue a request and return at once; drop it if the queue is full or the peer unknown (Raft repeats)."""

    def keep(self, peers: Collection[ServerId]) -> None:
        """These are the members: be ready to send to each."""
