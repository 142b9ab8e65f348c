"""One thread that does what would block, for one caller at a time: a disk's syncs must not hold up the event loop.

    run(work)           ──▶ queue ──▶ the thread ──▶ back into the event loop, which wakes the caller
    begin(work, ended)  ──▶ queue ──▶ the thread ──▶ back into the event loop, which calls `ended`

trio's own `to_thread` finds a thread for each call, copies its context and counts it against a limit that all share.
Here there is always the same thread and nothing to count, and a call costs three fifths: 41 µs instead of 67 µs of
processor time (docs/reference/benchmarks.md, where the time of consensus goes). An entry has two such calls on its
way, the leader's and the quicker follower's. So `begin` has no task that would have to be woken before and behind it.
The thread begins with the first call and ends with `close`.

A call that has begun is finished even if its caller is cancelled, since its progress would be unknown.
"""

from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar, cast

import trio

T = TypeVar("T")


class DiskThread:
    """Works in the order of the calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._thread: Thread | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, done in the thread."""
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        call = _Call(work, lambda: trio.lowlevel.reschedule(task))
        self._put(call)
        await trio.lowlevel.wait_task_rescheduled(_is_finished_first)
        return call.result()

    def begin(self, work: Callable[[], object], ended: Callable[[Exception | None], None]) -> None:
        """Have `work` done. `ended` gets what it raised, or None, in the event loop, which ends if `ended` raises.

        The trio run must last until then.
        """
        context = copy_context()
        call = _Call(work, lambda: context.run(ended, call.error()))
        self._put(call)

    def close(self) -> None:
        """End the thread, once it has done what it was given."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join()

    def _put(self, call: "_Call[T]") -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(cast("_Call[object]", call))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.perform()


class _Call(Generic[T]):
    """Work, and what is called in the event loop when it is done."""

    def __init__(self, work: Callable[[], T], ended: Callable[[], object]) -> None:
        self._work = work
        self._ended = ended
        self._token = trio.lowlevel.current_trio_token()
        self._value: T | None = None
        self._error: BaseException | None = None

    def perform(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            self._error = error
        self._token.run_sync_soon(self._ended)

    def result(self) -> T:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return cast("T", self._value)

    def error(self) -> Exception | None:
        """What the work raised; an error that is no `Exception` is raised here."""
        error, self._error = self._error, None
        if error is not None and not isinstance(error, Exception):
            raise error
        return error


def _is_finished_first(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
