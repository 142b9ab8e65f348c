"""Proposals on their way to the core: how much is admitted, and how proposals become batches.

*Admission.* A number and a size bound what is submitted and unanswered; beyond them a client is told `BUSY` at once,
and nothing is kept. A client that goes away takes its proposal along if the core does not have it yet; what the core
has stays admitted until it answers.

*Batches.* Proposals that arrive while the owner is busy are joined to one `Proposed` event, up to `batch_commands` and
`batch_bytes`: one append, one write, one round to the followers. The commands of one event get adjacent indexes in one
term, so the place of each proposal follows from the place of the whole batch.

*Linger, in flight.* While a batch is unanswered, later proposals wait until it is answered, until they fill a batch, or
for `linger_in_flight_ms`, whatever comes first: each batch costs every server an append, a write and an answer, so a
busy cluster needs few large ones. If nothing is in flight no request waits: at low load a batch is one proposal. The
bound is for slow networks, on which a whole round trip more would be felt.

*Linger, idle.* Clients that wait for their answers send their next commands when a batch is answered, a moment after
each other. The first of them alone would be a batch, and the others would wait for it: two groups of clients would take
turns for ever, in twice as many rounds. So after a batch of several proposals the next one waits for as many proposals
as the last one had, at most `linger_idle_ms`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import trio

from consensus.core.effects import Outcome, ProposalAccepted, ProposalResolved
from consensus.core.events import Proposed
from consensus.core.model import LogId
from consensus.server.callbacks import log_failure
from consensus.server.interfaces import next_call
from consensus.server.options import ServerOptions
from consensus.server.pending_calls import PendingCalls

_LINGER_MIN_PROPOSALS = 4
"""Batches of fewer proposals are not worth a pause."""


@dataclass(slots=True)
class ProposalLimit:
    """Counts what is submitted and unanswered."""

    max_proposals: int
    max_bytes: int
    proposals: int = 0
    size_bytes: int = 0

    def allows(self, size_bytes: int) -> bool:
        """Whether one more fits. The first always does, so that no size is refused for ever."""
        return not self.proposals or (
            self.proposals < self.max_proposals and self.size_bytes + size_bytes <= self.max_bytes
        )

    def enter(self, size_bytes: int) -> None:
        """One more."""
        self.proposals += 1
        self.size_bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """One less."""
        self.proposals -= 1
        self.size_bytes -= size_bytes


class Proposal:
    """One client's commands, from admission to the answer."""

    def __init__(
        self,
        commands: tuple[bytes, ...],
        limit: ProposalLimit,
        answered: Callable[[ProposalResolved], None],
        accepted: Callable[[LogId], None] | None = None,
        *,
        control: bool = False,
    ) -> None:
        self.control = control
        self.commands = commands
        self.size_bytes = sum(map(len, commands))
        self.submitted = False
        self.abandoned = False
        self._limit = limit
        self._admitted = False
        self._answered: Callable[[ProposalResolved], None] | None = answered
        self._accepted = accepted

    @property
    def wants_accepted(self) -> bool:
        """Whether its client is to be told when its commands stand in the leader's log."""
        return self._accepted is not None

    def accept(self, position: LogId) -> None:
        """Tell the client, if it still waits, that its last command stands there."""
        if self._accepted is not None and self._answered is not None:
            try:
                self._accepted(position)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(self._accepted, error)

    def admit(self) -> None:
        """It counts from now on until it is answered, or abandoned before the core has it."""
        self._admitted = True
        self._limit.enter(self.size_bytes)

    def resolve(self, answer: ProposalResolved) -> None:
        """Answer the client, if it still waits."""
        self._leave()
        answered, self._answered = self._answered, None
        if answered is not None:
            try:
                answered(answer)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(answered, error)

    def abandon(self) -> None:
        """The caller has given up. Not yet submitted, it never takes effect; submitted, it still may."""
        self._answered = None
        if not self.submitted:
            self.abandoned = True
            self._leave()

    def _leave(self) -> None:
        if self._admitted:
            self._admitted = False
            self._limit.leave(self.size_bytes)


class Batches:
    """Proposals that wait to be batched, and batches that the core has not answered."""

    def __init__(self, calls: PendingCalls, options: ServerOptions) -> None:
        self._calls = calls
        self._waiting: deque[Proposal] = deque()
        self._waiting_bytes = 0
        self._first_waits_since_s = 0.0
        self._unaccepted: dict[int, list[Proposal]] = {}
        """Batches whose clients want to be told when they stand in the leader's log, by number."""
        self._last_size = 0
        self._idle_until_s = 0.0
        self._batch_commands = options.batch_commands
        self._batch_bytes = options.batch_bytes
        self._in_flight_s = options.linger_in_flight_ms / 1000
        self._idle_s = options.linger_idle_ms / 1000

    def __len__(self) -> int:
        """How many proposals wait to be batched."""
        return len(self._waiting)

    @property
    def in_flight(self) -> bool:
        """Whether the core has a batch that it has not answered."""
        return self._calls.batches.waiting > 0

    @property
    def lingers_idle(self) -> bool:
        """Whether nothing is in flight, and the clients of the last batch may still come back together."""
        return not self.in_flight and trio.current_time() < self._idle_until_s

    @property
    def had_several(self) -> bool:
        """Whether the last batch had several proposals."""
        return self._last_size > 1

    @property
    def is_full(self) -> bool:
        """Whether what waits fills a batch."""
        return len(self._waiting) >= self._batch_commands or self._waiting_bytes >= self._batch_bytes

    @property
    def is_due(self) -> bool:
        """Whether what waits should be submitted now."""
        if not self._waiting:
            return False
        if self.is_full:
            return True
        now_s = trio.current_time()
        if self.in_flight:
            return now_s >= self._first_waits_since_s + self._in_flight_s
        return self.is_as_large_as_last or now_s >= self._idle_until_s

    @property
    def is_as_large_as_last(self) -> bool:
        """Whether as many proposals wait as the last batch had."""
        return len(self._waiting) >= self._last_size

    @property
    def due_s(self) -> float:
        """When what waits is due at the latest."""
        return self._first_waits_since_s + self._in_flight_s if self.in_flight else self._idle_until_s

    def add(self, proposal: Proposal) -> None:
        """One more waits."""
        if not self._waiting:
            self._first_waits_since_s = trio.current_time()
        self._waiting.append(proposal)
        self._waiting_bytes += proposal.size_bytes

    def submit(self) -> Proposed | None:
        """The next batch, as the event for the core; None if every client has gone."""
        batch = self.take()
        if not batch:
            return None
        number = next_call()
        wants_accepted = any(proposal.wants_accepted for proposal in batch)
        if wants_accepted:
            self._unaccepted[number] = batch
        self._calls.begin(self._calls.batches, number, lambda answer: self._answered(number, batch, answer))
        commands = tuple(command for proposal in batch for command in proposal.commands)
        return Proposed(proposal_id=number, commands=commands, tell_accepted=wants_accepted, control=batch[0].control)

    def accepted(self, effect: ProposalAccepted) -> None:
        """The core has appended a batch: tell the clients that want to know."""
        for proposal, position in _places(self._unaccepted.pop(effect.proposal_id, []), effect.position):
            proposal.accept(position)

    def take(self) -> list[Proposal]:
        """The oldest proposals that fit into one batch."""
        batch: list[Proposal] = []
        commands = size_bytes = 0
        while self._waiting:
            proposal = self._waiting[0]
            if proposal.abandoned:
                self._take_oldest()
                continue
            commands += len(proposal.commands)
            size_bytes += proposal.size_bytes
            alike = not batch or batch[0].control == proposal.control
            if batch and (not alike or commands > self._batch_commands or size_bytes > self._batch_bytes):
                break
            proposal.submitted = True
            batch.append(self._take_oldest())
        self._last_size = len(batch)
        self._idle_until_s = 0.0
        return batch

    def end(self) -> None:
        """The server stops: what was never submitted never takes effect."""
        while self._waiting:
            proposal = self._take_oldest()
            if not proposal.abandoned:
                proposal.resolve(ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER))

    def _answered(self, number: int, batch: list[Proposal], answer: ProposalResolved | None) -> None:
        """Answer every proposal of a batch, each with its own place; None: the server stops, their fate is unknown."""
        answer = answer or ProposalResolved(proposal_id=0, outcome=Outcome.UNKNOWN)
        self._unaccepted.pop(number, None)
        places: Iterable[tuple[Proposal, LogId | None]] = ((proposal, None) for proposal in batch)
        if answer.position is not None:
            places = _places(batch, answer.position)
        for proposal, position in places:
            proposal.resolve(
                ProposalResolved(
                    proposal_id=answer.proposal_id, outcome=answer.outcome, position=position, leader=answer.leader
                )
            )
        if self._last_size >= _LINGER_MIN_PROPOSALS:
            self._idle_until_s = trio.current_time() + self._idle_s

    def _take_oldest(self) -> Proposal:
        proposal = self._waiting.popleft()
        self._waiting_bytes -= proposal.size_bytes
        return proposal


def _places(batch: list[Proposal], last: LogId) -> Iterator[tuple[Proposal, LogId]]:
    """The proposals of a batch that ends at `last`, each with the place of its own last command."""
    index = last.index - sum(len(proposal.commands) for proposal in batch)
    for proposal in batch:
        index += len(proposal.commands)
        yield proposal, LogId(index, last.term)
