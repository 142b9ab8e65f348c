"""What a machine sees of the world, and where its answers go."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from consensus.core.effects import Effect, ProposalResolved, ReadReady, ReadRefused
from consensus.core.events import Event
from consensus.core.model import Configuration, Index, ServerId
from consensus.protocols.kraft.replica.state_machine import QuorumLog
from tests.simulation.consensus.state import StateMachine

if TYPE_CHECKING:
    from tests.simulation.consensus.machine import Machine


class Schedule(Protocol):
    """The world's list of things to come."""

    @property
    def now(self) -> int:
        """Simulated time in milliseconds."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_ms`."""

    def stepped(self, machine: "Machine", event: Event, effects: Sequence[Effect]) -> None:
        """A server took a step, of which nothing is carried out yet."""

    def elected(self, server: ServerId) -> None:
        """A server became leader."""

    def may_lose(self, server: ServerId) -> bool:
        """Whether the group can do without this server for ever."""

    def lost(self, server: ServerId) -> None:
        """A server will never start again."""

    def described_quorum(self, server: ServerId) -> Configuration | None:
        """What a leader that this server reaches says of the voters; None: there is no such leader."""

    def kept(self, machine: "Machine", index: Index, log: QuorumLog) -> None:
        """A KRaft server's state began anew from a snapshot of this entry, with these records."""


class Desk(Protocol):
    """Where answers to clients go."""

    def resolved(self, state: StateMachine, resolve: ProposalResolved) -> None:
        """How a proposal ended."""

    def read_ready(self, state: StateMachine, ready: ReadReady) -> None:
        """A read may be answered."""

    def read_refused(self, refused: ReadRefused) -> None:
        """A read will not be answered."""
