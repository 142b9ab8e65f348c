"""The interfaces that a machine uses: the world's schedule, and the receiver of its answers."""

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
    """The world's schedule of actions."""

    @property
    def now(self) -> int:
        """Return simulated time in milliseconds."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`."""

    def stepped(self, machine: "Machine", event: Event, effects: Sequence[Effect]) -> None:
        """Report a step of a server before its effects are performed."""

    def elected(self, server: ServerId) -> None:
        """Report that a server became leader."""

    def may_lose(self, server: ServerId) -> bool:
        """Return True if the group can work without this server permanently."""

    def lost(self, server: ServerId) -> None:
        """Report that a server will never start again."""

    def described_quorum(self, server: ServerId) -> Configuration | None:
        """Return the configuration of a leader that this server reaches; None if there is no such leader."""

    def records_restored(self, machine: "Machine", index: Index, log: QuorumLog) -> None:
        """Report that a KRaft server restored its state from a snapshot at `index`, with the records of `log`."""


class AnswerReceiver(Protocol):
    """The receiver of answers to clients."""

    def resolved(self, state: StateMachine, resolve: ProposalResolved) -> None:
        """Report the outcome of a proposal."""

    def read_ready(self, state: StateMachine, ready: ReadReady) -> None:
        """Report that a read may be answered."""

    def read_refused(self, refused: ReadRefused) -> None:
        """Report that a read will not be answered."""
