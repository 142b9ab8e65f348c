"""What waits for the owner of a `Raft`: two lanes, and the proposals' admission.

    urgent      messages of peers, completions of the disk, handshakes      taken first, all of them
    proposals   clients' commands                                           one batch at a time, when nothing is urgent

Whoever brings something has the owner's turn taken at once, in his own task, by `run_pending`; only if a turn is being
taken already, or company is to be waited for, the owner's task is woken. Waking it for each message would cost a turn
of the event loop each time, several in the life of every entry.

Why two: a burst of proposals must not delay a heartbeat or a vote, or the cluster would lose its leader exactly when it
is busy. trio's channels cannot be waited for together with a preference, so the lanes are bounded queues that share one
wake-up.

*Batching.* Proposals that arrive while the owner is busy are joined to one `Proposed` event, up to `batch_commands` and
`batch_bytes`: one append, one write, one round to the followers. The commands of one event get adjacent indexes in one
term, so the position of each proposal in the batch follows from that of the whole. While a batch is under way, those
that arrive are held until it is answered, until they fill a batch, or for `hold_s`, whatever comes first: each batch
costs every server an append, a write and an answer, so many small ones are what a busy cluster has no time for. When
nothing is under way nobody waits: at low load a batch is a single proposal. The bound is for slow networks, on which a
whole round trip more would be felt.

Clients that wait for their answers send their next commands when a batch is answered, a moment after each other. The
first of them alone would be a batch, and the others would be held for it: two groups of clients would take turns for
ever, in twice as many rounds. So after a batch of several proposals its answer is followed by a pause of at most
`gather_s`, which ends when as many have come.

*Admission.* A number and a size bound what is submitted and unanswered; beyond them a client is told `BUSY` at once,
and nothing is kept. A client that goes away takes its proposal along if the core does not have it yet; what the core
has stays admitted until it answers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import trio

from consensus.core.effects import Outcome, ProposalResolved
from consensus.core.events import AppendNotSent, DiskSpace, PeerExtensions, Proposed, Received, Rejected, Requested
from consensus.core.model import LogId
from consensus.server.executor import Job, StorageReadResult, WriteJob

T = TypeVar("T")


class Awaited(Generic[T]):
    """Something that a turn will hand to whoever waits for it; None when the server stops instead."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._given = trio.Event()

    def give(self, value: T | None) -> None:
        """Wake whoever waits. The first word counts: the server may stop before an answer was taken."""
        if not self._given.is_set():
            self._value = value
            self._given.set()

    async def wait(self) -> T | None:
        """The value, or None."""
        await self._given.wait()
        return self._value


@dataclass(frozen=True, slots=True)
class JobDone:
    """The disk worker finished a job; `answer` is what a read found."""

    job: Job
    answer: StorageReadResult | None = None


@dataclass(frozen=True, slots=True)
class JobBlocked:
    """The disk is full: the job goes on from operation `resume_at` when there is space."""

    job: WriteJob
    resume_at: int


Urgent = Received | Rejected | AppendNotSent | PeerExtensions | Requested | JobDone | JobBlocked | DiskSpace


@dataclass(slots=True)
class Admission:
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
        self, commands: tuple[bytes, ...], admission: Admission, answered: Callable[[ProposalResolved], None]
    ) -> None:
        self.commands = commands
        self.size_bytes = sum(map(len, commands))
        self.submitted = False
        self.abandoned = False
        self._admission = admission
        self._admitted = False
        self._answered: Callable[[ProposalResolved], None] | None = answered

    def admit(self) -> None:
        """It counts from now on until it is answered, or abandoned before the core has it."""
        self._admitted = True
        self._admission.enter(self.size_bytes)

    def resolve(self, answer: ProposalResolved) -> None:
        """Answer whoever waits."""
        self._leave()
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)

    def abandon(self) -> None:
        """Nobody waits any more. Not yet submitted, it never takes effect; submitted, it still may."""
        self._answered = None
        if not self.submitted:
            self.abandoned = True
            self._leave()

    def _leave(self) -> None:
        if self._admitted:
            self._admitted = False
            self._admission.leave(self.size_bytes)


def _nobody_attends() -> bool:
    return False


_COMPANY = 4
"""Batches of fewer proposals are not worth a pause."""


class Mailbox:
    """The two lanes."""

    def __init__(self, max_urgent: int, batch_commands: int, batch_bytes: int, hold_s: float, gather_s: float) -> None:
        self.run_pending: Callable[[], bool] = _nobody_attends
        """Deals with what is in the lanes at once, if nobody does yet; otherwise whoever waits is woken."""
        self._urgent: deque[Urgent] = deque()
        self._proposals: deque[Proposal] = deque()
        self._proposals_bytes = 0
        self._held_since_s = 0.0
        self._holding = False
        self._max_urgent = max_urgent
        self._batch_commands = batch_commands
        self._batch_bytes = batch_bytes
        self._hold_s = hold_s
        self._gather_s = gather_s
        self._gather_until_s = 0.0
        self._last_batch = 0
        self._gathering = False
        self._wake = trio.Event()
        self._patience = trio.CancelScope()

    def put(self, event: Urgent) -> bool:
        """Queue something urgent; False, and nothing queued, if the lane is full.

        What the disk says always fits: there is one job at a time, and nobody would say again that it is full.
        """
        if len(self._urgent) >= self._max_urgent and not isinstance(event, JobDone | JobBlocked | DiskSpace):
            return False
        self._urgent.append(event)
        if not self.run_pending():
            self._wake.set()
        return True

    def propose(self, proposal: Proposal) -> None:
        """Queue a proposal that was admitted."""
        if not self._proposals:
            self._held_since_s = trio.current_time()
        self._proposals.append(proposal)
        self._proposals_bytes += proposal.size_bytes
        count = len(self._proposals)
        if not self._holding:
            # A lone client need not wait for the owner's turn; of several the first would be a batch alone.
            if self._last_batch > 1 or not self.run_pending():
                self._wake.set()
        elif count == 1 or self._fill_a_batch() or (self._gathering and count >= self._last_batch):
            self._wake.set()

    def answered(self) -> None:
        """The batch under way was answered: its clients will soon be back."""
        if self._last_batch >= _COMPANY:
            self._gather_until_s = trio.current_time() + self._gather_s

    def batch_is_due(self, *, under_way: bool) -> bool:
        """Whether the waiting proposals should be submitted now; `under_way` tells that others are unanswered."""
        if not self._proposals:
            return False
        if self._fill_a_batch():
            return True
        now_s = trio.current_time()
        if under_way:
            return now_s >= self._held_since_s + self._hold_s
        return len(self._proposals) >= self._last_batch or now_s >= self._gather_until_s

    def wake(self) -> None:
        """Have `wait` return now."""
        self._wake.set()

    async def wait(self, deadline_seconds: float, *, under_way: bool) -> None:
        """Return when something is due, or at the deadline; a checkpoint in any case."""
        self._wake = trio.Event()
        self._patience = trio.CancelScope(deadline=inf)
        with self._patience:
            self.expect(deadline_seconds, under_way=under_way)
            await self._wake.wait()
        self._holding = self._gathering = False

    def expect(self, deadline_seconds: float, *, under_way: bool) -> None:
        """Have `wait` return when the next thing is due, at the latest at the deadline; again after each turn."""
        if self._urgent or self.batch_is_due(under_way=under_way):
            self._wake.set()
            return
        self._gathering = not under_way and trio.current_time() < self._gather_until_s
        self._holding = under_way or self._gathering
        if self._proposals:
            held_until_s = self._held_since_s + self._hold_s if under_way else self._gather_until_s
            deadline_seconds = min(deadline_seconds, held_until_s)
        # Never later: to be woken too early now and then costs less than to move the deadline on with each event.
        self._patience.deadline = min(self._patience.deadline, deadline_seconds)

    def _fill_a_batch(self) -> bool:
        return len(self._proposals) >= self._batch_commands or self._proposals_bytes >= self._batch_bytes

    def take_urgent(self) -> Urgent | None:
        """The oldest urgent event, if any."""
        return self._urgent.popleft() if self._urgent else None

    def take_batch(self) -> list[Proposal]:
        """Proposals to be joined to one event; empty if none waits."""
        batch: list[Proposal] = []
        commands = size_bytes = 0
        while self._proposals:
            proposal = self._proposals[0]
            if proposal.abandoned:
                self._take_oldest()
                continue
            commands += len(proposal.commands)
            size_bytes += proposal.size_bytes
            if batch and (commands > self._batch_commands or size_bytes > self._batch_bytes):
                break
            proposal.submitted = True
            batch.append(self._take_oldest())
        self._last_batch = len(batch)
        self._gather_until_s = 0.0
        return batch

    def _take_oldest(self) -> Proposal:
        proposal = self._proposals.popleft()
        self._proposals_bytes -= proposal.size_bytes
        return proposal

    def end(self) -> None:
        """The server stops: what was never submitted never takes effect."""
        while self._proposals:
            proposal = self._take_oldest()
            if not proposal.abandoned:
                proposal.resolve(ProposalResolved(0, Outcome.NOT_LEADER))

    @property
    def urgent_count(self) -> int:
        """Events in the urgent lane."""
        return len(self._urgent)


@dataclass(slots=True)
class Batches:
    """Batches that the core has and has not answered, by proposal id."""

    _batches: dict[int, list[Proposal]] = field(default_factory=dict)
    _number: int = 0

    @property
    def under_way(self) -> bool:
        """Whether the core has one."""
        return bool(self._batches)

    def submit(self, batch: list[Proposal]) -> Proposed:
        """The event for a batch."""
        self._number += 1
        self._batches[self._number] = batch
        return Proposed(self._number, tuple(command for proposal in batch for command in proposal.commands))

    def resolve(self, answer: ProposalResolved) -> None:
        """Answer every proposal of the batch, each with its own position."""
        behind = 0
        for proposal in reversed(self._batches.pop(answer.proposal_id, [])):
            position = answer.position
            if position is not None:
                position = LogId(position.index - behind, position.term)
            behind += len(proposal.commands)
            proposal.resolve(ProposalResolved(answer.proposal_id, answer.outcome, position, answer.leader))

    def end(self) -> None:
        """The server stops: what the core has may or may not be committed one day."""
        for batch in self._batches.values():
            for proposal in batch:
                proposal.resolve(ProposalResolved(0, Outcome.UNKNOWN))
        self._batches.clear()
