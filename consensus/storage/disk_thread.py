"""One thread for blocking calls, for one caller at a time: a disk's syncs must not block the event loop.

    run(work)           ──▶ queue ──▶ the thread ──▶ back into the event loop, which wakes the caller
    begin(work, ended)  ──▶ queue ──▶ the thread ──▶ back into the event loop, which calls `ended`

trio's own `to_thread` finds a thread for each call, copies its context and counts it against a shared limit. With one
fixed thread a call costs 41 µs instead of 67 µs of processor time (docs/reference/benchmarks.md). An entry needs two
such calls, on the leader and on the quicker follower. So `begin` uses a callback instead of a task, which would have to
be woken before and after each call. The thread begins with the first call and ends with `run_last`, `end` or `close`.

A call that has begun is finished even if its caller is canceled, since otherwise its progress would be unknown. Only a
call to a hung disk is abandoned: `STOP_SECONDS` after the cancellation the caller gets `DiskHangsError`. The time is
measured by the machine's clock, because a test's clock is independent of the thread. The thread is a daemon, so it does
not prevent the end of the process.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread, Timer
from typing import Generic, TypeVar, cast

import trio

from consensus.storage.disk import STOP_SECONDS, DiskHangsError

T = TypeVar("T")
_SHORTEST_WAIT_S = 0.2


class DiskThread:
    """A thread that performs the calls in their order."""

    def __init__(self, name: str, stop_s: float = STOP_SECONDS) -> None:
        self._name = name
        self._stop_s = stop_s
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._began_s: float | None = None
        """Start time of the call under way."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread; return its result. Raise `DiskHangsError` if it hangs after a cancellation."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._run(work, [])

    async def run_last(self, work: Callable[[], object]) -> None:
        """Run `work` last, even if canceled, and end the thread; raise `DiskHangsError` if that takes too long."""
        with trio.CancelScope(shield=True):
            try:
                await self._run(work, [self._left_s()])
            finally:
                self.end()

    async def _run(self, work: Callable[[], T], limits_s: Sequence[float]) -> T:
        task = trio.lowlevel.current_task()
        call = _Call(work, lambda _: trio.lowlevel.reschedule(task))
        self._put(call)
        timers = [call.left_after(each) for each in limits_s]

        def wait_for_the_end(_: object) -> trio.lowlevel.Abort:
            timers.append(call.left_after(self._stop_s))
            return trio.lowlevel.Abort.FAILED

        await trio.lowlevel.wait_task_rescheduled(wait_for_the_end)
        for timer in timers:
            timer.cancel()
        return call.result()

    def begin(self, work: Callable[[], object], ended: Callable[[Exception | None], None]) -> None:
        """Queue `work`, and call `ended` in the event loop after it.

        `ended` gets the error of the work, or None. An error of `ended` ends the loop. The trio run must last until the
        call of `ended`.
        """
        context = copy_context()
        self._put(_Call(work, lambda call: context.run(ended, call.error())))

    def _left_s(self) -> float:
        """Return the time limit for the last call: the limit of a stop, minus the age of the call under way."""
        began_s = self._began_s
        taken_s = 0.0 if began_s is None else time.monotonic() - began_s
        return max(_SHORTEST_WAIT_S, self._stop_s - taken_s)

    def end(self) -> None:
        """End the thread after its queued work, without waiting for it."""
        if self._thread is not None:
            self._thread = None
            self._calls.put(None)

    def close(self) -> None:
        """End the thread after its queued work, and wait for that. Blocks: not for an event loop."""
        thread = self._thread
        self.end()
        if thread is not None:
            thread.join()

    def _put(self, call: "_Call[T]") -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(cast("_Call[object]", call))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._began_s = time.monotonic()
            call.perform()
            del call  # Its bytes are not needed until the next call.
            self._began_s = None


class _Call(Generic[T]):
    """Work, and the callback that the event loop runs after it.

    The callback gets the call: with a reference to it, the written bytes would wait for a collection of garbage.
    """

    def __init__(self, work: Callable[[], T], ended: "Callable[[_Call[T]], object]") -> None:
        self._work = work
        self._ended = ended
        self._is_left = self._is_reported = False
        self._token = trio.lowlevel.current_trio_token()
        self._value: T | None = None
        self._error: BaseException | None = None

    def perform(self) -> None:
        error: BaseException | None = None
        try:
            self._value = self._work()
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it is the caller's
            error = failure
        if not self._is_left:
            self._error = error
        with suppress(trio.RunFinishedError):  # the call was abandoned
            self._token.run_sync_soon(self._report)

    def left_after(self, seconds: float) -> Timer:
        """Start a timer that abandons the work after `seconds`; return the timer."""
        timer = Timer(seconds, self._leave_soon)
        timer.daemon = True
        timer.start()
        return timer

    def _leave_soon(self) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._leave)

    def _leave(self) -> None:
        if not self._is_reported:
            self._error, self._is_left = DiskHangsError(), True
            self._ended(self)

    def _report(self) -> None:
        if not self._is_left:
            self._is_reported = True
            self._ended(self)

    def result(self) -> T:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return cast("T", self._value)

    def error(self) -> Exception | None:
        """Return the exception of the work; raise it here if it is not an `Exception`."""
        error, self._error = self._error, None
        if error is not None and not isinstance(error, Exception):
            raise error
        return error
