"""EventLoop at the core: what makes events into steps, one after the other.

    owner task          waits until something is due, takes a turn, again and again
    whoever brings      takes one at once, in its own task, unless one is being taken
    a turn              everything urgent ──▶ the deadline ──▶ one batch of proposals ──▶ the next disk job

A turn never waits, and none begins within another: what comes up meanwhile, such as a client that submits again from
within its answer, lies in the mailbox until the next. So the core needs no lock, and its effects are carried out in the
order in which it gave them.

The simpler design wakes the owner task for each event. A turn of the event loop costs more than a step of the core, and
an entry on its way through a leader and its followers would need five more of them.
"""

from collections.abc import Callable, Sequence

from consensus.core.events import DeadlineReached, Event
from consensus.core.model import Milliseconds
from consensus.server.clock import now_ms
from consensus.server.errors import ServerStoppedError
from consensus.server.executor import Executor, Job, Released, StorageReadResult
from consensus.server.interfaces import Core
from consensus.server.mailbox import Batches, JobBlocked, JobDone, Mailbox, Urgent


class EventLoop:
    """The core behind its mailbox.

    `carry_out` does what the executor lets go. `end_job` takes a disk job that is done and says what the core is to be
    told of it; `start_job` begins the next, if there is one.
    """

    def __init__(
        self,
        core: Core,
        executor: Executor,
        mailbox: Mailbox,
        batches: Batches,
        *,
        carry_out: Callable[[Sequence[Released]], None],
        end_job: Callable[[Job, StorageReadResult | None], Event | None],
        start_job: Callable[[], None],
    ) -> None:
        self._core = core
        self._executor = executor
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
        """The owner task; raises what went wrong in a turn, whoever has taken it."""
        self._at_work = True
        try:
            while True:
                self._run_pending()
                if self._failure is not None:
                    raise self._failure
                await self._mailbox.wait(self._deadline_ms() / 1000, under_way=self._batches.under_way)
        finally:
            self._at_work = False

    def step(self, event: Event) -> None:
        """Step the core for a part of its server that is in no turn.

        Raises `ServerStoppedError` if that goes wrong, or something has before: what it was is the owner's to raise.
        """
        if self._failure is None:
            self._busy = True
            try:
                self._step(event)
            except Exception as error:  # noqa: BLE001 - raised by `run`
                self._fail(error)
                self._mailbox.wake()
            finally:
                self._busy = False
        if self._failure is not None:
            raise ServerStoppedError("the server stops because of an error") from self._failure
        self._expect()

    def _run_pending(self) -> bool:
        """Take a turn, unless one is being taken; whether it was. What goes wrong in it is the owner's to raise."""
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
        """No step is taken any more: nobody knows what the core is worth."""
        self._failure = error
        self._at_work = False

    def _turn(self) -> None:
        for _ in range(self._mailbox.urgent_count):
            self._take(self._mailbox.take_urgent())
        if now_ms() >= self._deadline_ms():
            self._step(DeadlineReached())
        if self._mailbox.batch_is_due(under_way=self._batches.under_way):
            batch = self._mailbox.take_batch()
            if batch:
                self._step(self._batches.submit(batch))
        self._start_job()

    def _take(self, urgent: Urgent | None) -> None:
        match urgent:
            case None:
                return
            case JobBlocked(job, resume_at):
                self._carry_out(self._executor.blocked(job, resume_at))
                return
            case JobDone(job, answer):
                event = self._end_job(job, answer)
            case _:
                event = urgent
        if event is not None:
            self._step(event)

    def _step(self, event: Event) -> None:
        self._due_ms = None
        self._carry_out(self._executor.accept(self._core.step(event, now_ms())))

    def _expect(self) -> None:
        self._mailbox.expect(self._deadline_ms() / 1000, under_way=self._batches.under_way)

    def _deadline_ms(self) -> Milliseconds:
        """The core's deadline, asked for once after each step: a leader has to look at all its followers to tell."""
        if self._due_ms is None:
            self._due_ms = self._core.deadline
        return self._due_ms
