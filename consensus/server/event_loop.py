"""The event loop around the core: it turns each event into a step.

    owner task              waits until something is due, takes a turn, again and again
    task with an event      takes a turn immediately, unless one is under way
    a turn                  everything urgent ──▶ the deadline ──▶ one batch of proposals ──▶ the next disk job

A turn never waits, and a turn does not begin within another one. Events during a turn, such as a submission by a
callback, stay in the mailbox until the next turn. So the core works without a lock, and its effects are carried out in
order.

A simpler design would wake the owner task for each event. But a round of trio's loop costs more than a step of the
core. Each entry would need five more rounds in the leader and its followers together.

All times come from trio's clock, so that a test's clock controls the core, its timers and a transport's nonces.
"""

import math
from collections.abc import Callable, Sequence

import trio

from consensus.core.effects import Effect
from consensus.core.events import DeadlineReached, Event
from consensus.core.model import Milliseconds
from consensus.core.raft import Raft
from consensus.server.batching import Batches
from consensus.server.errors import ServerStoppedError
from consensus.server.mailbox import JobBlocked, JobDone, Mailbox, Urgent


def now_ms() -> Milliseconds:
    """Return the monotonic time for steps of cores."""
    return round(trio.current_time() * 1000)


def next_tick_s(period_s: float, pause_s: float = 0.0) -> float:
    """Return the first multiple of the period on the loop's clock after a pause.

    Checks with the same period use the same moments, so one wake-up serves all of them.
    """
    earliest_s = trio.current_time() + pause_s
    tick_s = (math.floor(earliest_s / period_s) + 1) * period_s
    return tick_s if tick_s > earliest_s else tick_s + period_s


async def sleep_to_tick(period_s: float, pause_s: float = 0.0) -> None:
    """Sleep until the next multiple of the period after a pause.

    Use it for changes that do not cause an event, such as files of other programs.
    """
    await trio.sleep_until(next_tick_s(period_s, pause_s))


class EventLoop:
    """The core with its mailbox.

    `carry_out` dispatches the core's effects. `end_job` takes the result of a disk job, and returns the event for the
    core, if any. `start_job` begins the next job, if any.
    """

    def __init__(
        self,
        core: Raft,
        mailbox: Mailbox,
        batches: Batches,
        *,
        carry_out: Callable[[Sequence[Effect]], None],
        end_job: Callable[[JobDone | JobBlocked], Event | None],
        start_job: Callable[[], None],
    ) -> None:
        self._core = core
        self._mailbox = mailbox
        self._batches = batches
        self._carry_out = carry_out
        self._end_job = end_job
        self._start_job = start_job
        self._at_work = self._busy = False
        self._due_ms: Milliseconds | None = None
        self._failure: Exception | None = None
        mailbox.run_pending = self._run_pending

    async def run(self) -> None:
        """Run the owner task; raise the error of any turn, in any task."""
        self._at_work = True
        try:
            while True:
                self._run_pending()
                if self._failure is not None:
                    raise self._failure
                await self._mailbox.wait(self._deadline_ms() / 1000)
        finally:
            self._at_work = False

    def step(self, event: Event) -> None:
        """Step the core outside a turn, for a part of the server.

        Raises `ServerStoppedError` after an error in this or an earlier step; the owner raises the error itself.
        """
        if self._failure is None:
            self._busy = True
            try:
                self._step(event, now_ms())
            except Exception as error:  # noqa: BLE001 - raised by `run`
                self._fail(error)
                self._mailbox.wake()
            finally:
                self._busy = False
        if self._failure is not None:
            raise ServerStoppedError("the server stops because of an error") from self._failure
        self._expect()

    def _run_pending(self) -> bool:
        """Take a turn, unless one is under way; return True if it was taken.

        The owner task raises an error of the turn.
        """
        if self._busy or not self._at_work:
            return False
        self._busy = True
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._fail(error)
            return False
        finally:
            self._busy = False
        self._expect()
        return True

    def _fail(self, error: Exception) -> None:
        """Stop taking steps, because the state of the core can no longer be trusted."""
        self._failure = error
        self._at_work = False

    def _turn(self) -> None:
        now = now_ms()
        for urgent in self._mailbox.take_urgent():
            self._take(urgent, now)
        if now >= self._deadline_ms():
            self._step(DeadlineReached(), now)
        if self._batches.is_due:
            batch = self._batches.submit()
            if batch is not None:
                self._step(batch, now)
        self._start_job()

    def _take(self, urgent: Urgent, now: Milliseconds) -> None:
        event = self._end_job(urgent) if isinstance(urgent, JobDone | JobBlocked) else urgent
        if event is not None:
            self._step(event, now)

    def _step(self, event: Event, now: Milliseconds) -> None:
        self._due_ms = None
        self._carry_out(self._core.step(event, now))

    def _expect(self) -> None:
        self._mailbox.expect(self._deadline_ms() / 1000)

    def _deadline_ms(self) -> Milliseconds:
        """Return the core's deadline, computed once after each step, since it depends on all followers of a leader."""
        if self._due_ms is None:
            self._due_ms = self._core.deadline
        return self._due_ms
