"""Proposals on their way to the core: admission limits, and batches of proposals.

*Admission.* Admitted proposals without a result are limited in number and size. Beyond the limits a client gets `BUSY`
immediately, and the proposal is not stored. If a client leaves before the core has its proposal, the proposal is
dropped. A proposal in the core stays admitted until the core replies.

*Batches.* Proposals that arrive while the server's event loop (the owner) is busy are joined to one `Proposed` event.
So they need one append, one write, and one round to the followers. `batch_commands` and `batch_bytes` are the limits.
The commands of one event get adjacent indexes in one term, so the place of each proposal follows from the place of the
batch.

*Linger, in flight.* While a batch is unanswered, later proposals wait until its reply arrives, until they fill a batch,
or for `linger_in_flight_ms`. Each batch costs every server an append, a write and a reply. If no batch is in flight,
proposals wait only as described below. `linger_in_flight_ms` is for slow networks with long round trips.

*Linger, idle.* Clients that wait for a reply send their next command shortly after the result of a batch. Without a
pause, the first of these commands would be a batch on its own. The clients would split into two groups that take turns,
which needs twice as many rounds. So after a batch of at least four proposals, the next batch waits until the same
number has arrived, but at most `linger_idle_ms`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import trio
from msgspec import Struct

from consensus.core.effects import Outcome, ProposalAccepted, ProposalResolved
from consensus.core.events import Proposed
from consensus.core.model import LogId
from consensus.server.callbacks import log_failure
from consensus.server.interfaces import next_call
from consensus.server.options import ServerOptions
from consensus.server.pending_calls import PendingCalls

_LINGER_MIN_PROPOSALS = 4
"""Least number of proposals in a batch that justifies a pause after it."""


class ProposalLimit(Struct):
    """The number and size of admitted, unanswered proposals, and their limits."""

    max_proposals: int
    max_bytes: int
    proposals: int = 0
    size_bytes: int = 0

    def allows(self, size_bytes: int) -> bool:
        """Return True if one more proposal fits.

        The first one always fits, so that a large proposal is not refused permanently.
        """
        return not self.proposals or (
            self.proposals < self.max_proposals and self.size_bytes + size_bytes <= self.max_bytes
        )

    def enter(self, size_bytes: int) -> None:
        """Count an admitted proposal."""
        self.proposals += 1
        self.size_bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """Stop counting an admitted proposal."""
        self.proposals -= 1
        self.size_bytes -= size_bytes


class Proposal:
    """One client's commands, from admission to the result."""

    def __init__(
        self,
        commands: tuple[bytes, ...],
        limit: ProposalLimit,
        on_reply: Callable[[ProposalResolved], None],
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
        self._on_reply: Callable[[ProposalResolved], None] | None = on_reply
        self._accepted = accepted
        self.wants_accepted = accepted is not None
        """True if the client requested a report of the append, before the commitment."""

    def accept(self, position: LogId) -> None:
        """Report the place of the last command to the client, if it still waits."""
        if self._accepted is not None and self._on_reply is not None:
            try:
                self._accepted(position)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(self._accepted, error)

    def admit(self) -> None:
        """Count the proposal toward the limits, until its reply, or until it is abandoned before the core has it."""
        self._admitted = True
        self._limit.enter(self.size_bytes)

    def resolve(self, answer: ProposalResolved) -> None:
        """Report the result to the client, if it still waits."""
        self._leave()
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            try:
                on_reply(answer)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(on_reply, error)

    def abandon(self) -> None:
        """Stop reporting to the client, which no longer waits.

        If the core does not have the proposal yet, it never takes effect. Otherwise it may still take effect.
        """
        self._on_reply = None
        if not self.submitted:
            self.abandoned = True
            self._leave()

    def _leave(self) -> None:
        if self._admitted:
            self._admitted = False
            self._limit.leave(self.size_bytes)


class Batches:
    """Proposals that wait to be batched, and batches without a result from the core."""

    def __init__(self, calls: PendingCalls, options: ServerOptions) -> None:
        self._calls = calls
        self._waiting: deque[Proposal] = deque()
        self._waiting_bytes = 0
        self._first_waits_since_s = 0.0
        self._unaccepted: dict[int, list[Proposal]] = {}
        """Batches, by number, with a client that requested a report of the append."""
        self._last_size = 0
        self._idle_until_s = 0.0
        self._batch_commands = options.batch_commands
        self._batch_bytes = options.batch_bytes
        self._in_flight_s = options.linger_in_flight_ms / 1000
        self._idle_s = options.linger_idle_ms / 1000

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> bool:
        """Return True if the core has an unanswered batch."""
        return self._calls.batches.waiting > 0

    @property
    def lingers_idle(self) -> bool:
        """Return True if nothing is in flight, and the clients of the last batch may still submit together."""
        return self._idle_until_s > 0 and not self.in_flight and trio.current_time() < self._idle_until_s

    @property
    def had_several(self) -> bool:
        """Return True if the last batch had several proposals."""
        return self._last_size > 1

    @property
    def is_full(self) -> bool:
        """Return True if the waiting proposals fill a batch."""
        return len(self._waiting) >= self._batch_commands or self._waiting_bytes >= self._batch_bytes

    @property
    def is_due(self) -> bool:
        """Return True if the waiting proposals should be submitted now."""
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
        """Return True if at least as many proposals wait as the last batch had."""
        return len(self._waiting) >= self._last_size

    @property
    def due_s(self) -> float:
        """Latest time to submit the waiting proposals, in seconds."""
        return self._first_waits_since_s + self._in_flight_s if self.in_flight else self._idle_until_s

    def add(self, proposal: Proposal) -> None:
        """Add a waiting proposal."""
        if not self._waiting:
            self._first_waits_since_s = trio.current_time()
        self._waiting.append(proposal)
        self._waiting_bytes += proposal.size_bytes

    def submit(self) -> Proposed | None:
        """Return the next batch as the event for the core; None if every client has left."""
        batch = self.take()
        if not batch:
            return None
        number = next_call()
        wants_accepted = any(proposal.wants_accepted for proposal in batch)
        if wants_accepted:
            self._unaccepted[number] = batch
        self._calls.begin(self._calls.batches, number, lambda answer: self._resolve_batch(number, batch, answer))
        commands = tuple([command for proposal in batch for command in proposal.commands])
        return Proposed(proposal_id=number, commands=commands, report_accepted=wants_accepted, control=batch[0].control)

    def accepted(self, effect: ProposalAccepted) -> None:
        """Report the append of a batch to the clients that requested it."""
        for proposal, position in _places(self._unaccepted.pop(effect.proposal_id, []), effect.position):
            proposal.accept(position)

    def take(self) -> list[Proposal]:
        """Remove and return the oldest proposals that fit into one batch."""
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
        """Stop: refuse the waiting proposals, which never take effect."""
        while self._waiting:
            proposal = self._take_oldest()
            if not proposal.abandoned:
                proposal.resolve(ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER))

    def _resolve_batch(self, number: int, batch: list[Proposal], answer: ProposalResolved | None) -> None:
        """Reply to every proposal of a batch with its own place.

        Without `answer` the server is stopping, and the outcome of the proposals is unknown.
        """
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
    """Yield the proposals of a batch that ends at `last`, each with the place of its last command."""
    index = last.index - sum(len(proposal.commands) for proposal in batch)
    for proposal in batch:
        index += len(proposal.commands)
        yield proposal, LogId(index, last.term)
