"""One thread that does what would block, for one caller at a time: a disk's syncs must not hold up the event loop.

    run(work) ──▶ queue ──▶ the thread ──▶ back into the event loop, which wakes the caller

trio's own `to_thread` finds a thread for each call, copies its context and counts it against a limit that all share.
Here there is always the same thread and nothing to count, and a call costs three fifths: 41 µs instead of 67 µs of
processor time (docs/reference/benchmarks.md, where the time of consensus goes). An entry has two such calls on its
way, the leader's and the quicker follower's. The thread begins with the first call and ends with `close`.

A call that has begun is finished even if its caller is cancelled, since its progress would be unknown.
"""

from collections.abc import Callable
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
        if self._thread is None:
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        call = _Call(work)
        self._calls.put(cast("_Call[object]", call))
        await trio.lowlevel.wait_task_rescheduled(_is_finished_first)
        return call.result()

    def close(self) -> None:
        """End the thread, once it has done what it was given."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.perform()


class _Call(Generic[T]):
    """Work, and the task that waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()
        self._value: T | None = None
        self._error: BaseException | None = None

    def perform(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            self._error = error
        self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)

    def result(self) -> T:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return cast("T", self._value)


def _is_finished_first(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
