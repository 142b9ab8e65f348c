"""The queue of the owner of a `Raft`: two lanes that share one wake-up.

    urgent      messages of peers, completions of the disk, handshakes      taken first, all of them
    proposals   clients' commands, as batches (`batching`)                  one batch at a time, when nothing is urgent

A task with an event runs the turn immediately and directly (`run_pending`). It wakes the owner's task only if a turn is
under way, or for proposals that may share a batch. To wake the owner for each message would cost several turns of
trio's loop for each entry.

There are two lanes because a burst of proposals must not delay a heartbeat or a vote. Otherwise a busy cluster would
lose its leader. A task cannot wait for several channels of trio with a preference for one of them, so the lanes are
bounded queues.
"""

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

import trio
from msgspec import Struct

from consensus.core.events import (
    AnswerArriving,
    AppendNotSent,
    DiskSpace,
    PeerEnded,
    PeerExtensions,
    Received,
    Rejected,
    Requested,
)
from consensus.server.batching import Batches, Proposal
from consensus.storage.jobs import Job, StorageReadResult, WriteJob


class JobDone(Struct, frozen=True):
    """The disk worker finished a job; `answer` is the result of a read."""

    job: Job
    answer: StorageReadResult | None = None


class JobBlocked(Struct, frozen=True):
    """The disk is full: the job resumes at operation `resume_at` when there is space."""

    job: WriteJob
    resume_at: int


POSTPONED_S: Final = 0.2
"""Least postponement of a set deadline, in seconds; a smaller postponement is ignored."""

Notified = Received | Rejected | AppendNotSent | AnswerArriving | PeerExtensions | PeerEnded
Urgent = Notified | Requested | JobDone | JobBlocked | DiskSpace


def _not_running() -> bool:
    return False


class Mailbox:
    """The two lanes."""

    def __init__(self, max_urgent: int, batches: Batches) -> None:
        self.run_pending: Callable[[], bool] = _not_running
        """Takes a turn immediately, if none is under way; otherwise the owner is woken."""
        self._batches = batches
        self._urgent: deque[Urgent] = deque()
        self._max_urgent = max_urgent
        self._lingering = self._lingering_idle = False
        self._wake = trio.Event()
        self._wait_scope = trio.CancelScope()
        self._wakes_s = inf

    def put(self, event: Urgent) -> bool:
        """Queue an urgent event; return False without queueing if the lane is full.

        Results of the disk always fit, because the disk has one job at a time. A dropped result would not be reported
        again.
        """
        if len(self._urgent) >= self._max_urgent and not isinstance(event, JobDone | JobBlocked | DiskSpace):
            return False
        self._urgent.append(event)
        if not self.run_pending():
            self._wake.set()
        return True

    def propose(self, proposal: Proposal) -> None:
        """Queue an admitted proposal."""
        batches = self._batches
        batches.add(proposal)
        if not self._lingering:
            # A single client need not wait for the owner's turn. With several clients, the first proposal would be a
            # batch on its own.
            if batches.had_several or not self.run_pending():
                self._wake.set()
        elif len(batches) == 1 or batches.is_full or (self._lingering_idle and batches.is_as_large_as_last):
            self._wake.set()

    def wake(self) -> None:
        """Make `wait` return now."""
        self._wake.set()

    async def wait(self, deadline_s: float) -> None:
        """Return when something is due, or at the deadline. Always a checkpoint of trio."""
        self._wake = trio.Event()
        self._wait_scope, self._wakes_s = trio.CancelScope(), inf
        with self._wait_scope:
            self.expect(deadline_s)
            await self._wake.wait()
        self._lingering = self._lingering_idle = False

    def expect(self, deadline_s: float) -> None:
        """Set the time for `wait` to return: when the next work is due, at the latest at the deadline.

        Called after each turn.
        """
        batches = self._batches
        if self._urgent or batches.is_due:
            self._wake.set()
            return
        self._lingering_idle = batches.lingers_idle
        self._lingering = self._lingering_idle or batches.in_flight
        if batches:
            deadline_s = min(deadline_s, batches.due_s)
        # Postponing the deadline at each event would cost more than an occasional early wake-up. A much later deadline
        # is set, because otherwise an idle follower would wake once in each election timeout.
        later_s = inf if self._lingering else self._wakes_s + POSTPONED_S
        if deadline_s < self._wakes_s or deadline_s > later_s:
            self._wait_scope.deadline = self._wakes_s = deadline_s

    def take_urgent(self) -> Iterator[Urgent]:
        """Yield the present urgent events, oldest first; events that arrive during the loop stay for the next turn."""
        for _ in range(len(self._urgent)):
            yield self._urgent.popleft()
