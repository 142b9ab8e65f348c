"""Virtual time for one trio run: a clock that jumps, timed calls, and an order of tasks that a seed determines.

    all tasks wait ──▶ VirtualClock ──▶ the next deadline of trio, or the next timed call, if that is earlier

The network delivers by timed calls. They run in trio's loop, without a task, so a message reaches its reader without a
switch of tasks.

`TaskOrder` takes the place of trio's random source. trio passes it each batch of tasks that can run. It shuffles them
by the seed, and holds back the tasks of paused hosts: to the others, such a host is a process with SIGSTOP.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final

import trio
from trio._core import _run as trio_run  # trio does not offer a public way to set its random source
from trio.testing import MockClock

_NEVER_S: Final = 999_999_999.0


class VirtualClock:
    """A clock that advances only when all tasks wait. `for_trio` is the clock of the trio run."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.for_trio = MockClock(autojump_threshold=0)
        # trio's loop jumps only with a MockClock. This class is final, so the methods of the instance are replaced.
        methods = {
            "current_time": lambda: self.now_s,
            "deadline_to_sleep_time": lambda deadline: 0.0 if deadline <= self.now_s else _NEVER_S,
            "_autojump": self._jump,
        }
        for name, method in methods.items():
            setattr(self.for_trio, name, method)

    def call_at(self, at_s: float, call: Callable[[], None]) -> None:
        """Call `call` in the loop at a time, after earlier calls of the same time."""
        heappush(self._calls, (at_s, next(self._numbers), call))

    def _jump(self) -> None:
        next_s = trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        calls = self._calls
        if calls and calls[0][0] < next_s:
            next_s = calls[0][0]
        if self.now_s < next_s < math.inf:
            self.now_s = next_s
        while calls and calls[0][0] <= self.now_s:
            heappop(calls)[2]()


class TaskOrder:
    """The order of tasks: a seed's, without the tasks that `is_held` selects, which run after `release`."""

    def __init__(self, random: Random) -> None:
        self.is_held: Callable[[trio.lowlevel.Task], bool] = lambda _: False
        self._random = random
        self._held: list[trio.lowlevel.Task] = []
        self.holds = False
        """True while a host is paused."""

    def shuffle(self, batch: list[trio.lowlevel.Task]) -> None:
        """Order a batch of trio's loop in place."""
        if self.holds:
            self._held += [each for each in batch if self.is_held(each)]
            batch[:] = [each for each in batch if not self.is_held(each)]
        if len(batch) > 1:
            self._random.shuffle(batch)

    def release(self) -> None:
        """Let the tasks run that `is_held` no longer selects."""
        held, self._held = self._held, []
        for each in held:
            if self.is_held(each):
                self._held.append(each)
            else:
                trio_run.GLOBAL_RUN_CONTEXT.runner.runq.append(each)


@contextmanager
def ordered_by(order: TaskOrder) -> Iterator[None]:
    """Let trio run tasks in this order."""
    internals: Any = trio_run
    before = internals._ALLOW_DETERMINISTIC_SCHEDULING, internals._r
    internals._ALLOW_DETERMINISTIC_SCHEDULING, internals._r = True, order
    try:
        yield
    finally:
        internals._ALLOW_DETERMINISTIC_SCHEDULING, internals._r = before
