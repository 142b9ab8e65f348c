"""The processor time of an event loop's thread by kind of work, and a node that measures its tasks.

    loop ─▶ task step ─▶ loop ─▶ task step ─▶ loop ─▶ wait for sockets and timers ─▶ loop …
            └ its kind     └ "event loop"             └ "system call that waits"

An interval of processor time belongs to the step of a task, to the loop's own work, or to the call that waits. The rest
of the time of the process is time of other threads.

`python -m benchmarks.task_times run …` is the command `garlicfarm` with an instrument, and the kind of a step is its
task's name. After `SETTLED_S`, the node measures for `WINDOW_S` and writes one JSON document to the file in the
environment variable `TASK_TIMES_FILE`; it continues without the instrument.
"""

import json
import os
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from time import thread_time_ns

import trio

SETTLED_S = 10.0
WINDOW_S = 20.0
TASK_TIMES_FILE = "GARLICFARM_TASK_TIMES"
LOOP, WAIT, THREADS = "event loop", "event loop: system call that waits", "other threads"


class LoopTimes(trio.abc.Instrument):
    """The times of this process, from its creation on. Create it in the loop's thread."""

    def __init__(self) -> None:
        self.kind = LOOP
        self._spent_ns: defaultdict[str, int] = defaultdict(int)
        self._last_ns = thread_time_ns()
        self._process_s = time.process_time()

    def kind_of(self, task: trio.lowlevel.Task) -> str:
        """Return the kind of a task's step."""
        return task.name

    def begin(self, kind: str) -> None:
        """End the present interval, and begin one of this kind."""
        now_ns = thread_time_ns()
        self._spent_ns[self.kind] += now_ns - self._last_ns
        self._last_ns, self.kind = now_ns, kind

    def take(self) -> dict[str, float]:
        """Return the seconds of each kind since the last call."""
        self.begin(self.kind)
        process_s = time.process_time()
        taken = {kind: spent_ns / 1e9 for kind, spent_ns in self._spent_ns.items()}
        taken[THREADS] = process_s - self._process_s - sum(taken.values())
        self._process_s = process_s
        self._spent_ns.clear()
        return taken

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """End an interval of the loop."""
        self.begin(self.kind_of(task))

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """End the step of a task."""
        del task
        self.begin(LOOP)

    def before_io_wait(self, timeout: float) -> None:
        """End an interval of the loop."""
        del timeout
        self.begin(WAIT)

    def after_io_wait(self, timeout: float) -> None:
        """End the wait."""
        del timeout
        self.begin(LOOP)


class TaskTimes(LoopTimes):
    """The processor time of each task by name, with the number of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self._begin_s = time.monotonic() + SETTLED_S
        self._is_measuring = False
        self._steps: defaultdict[str, int] = defaultdict(int)

    def begin(self, kind: str) -> None:
        """Count the interval, too."""
        self._steps[kind] += 1
        super().begin(kind)

    def after_io_wait(self, timeout: float) -> None:
        """End the wait; begin the measurement or end it when it is time."""
        super().after_io_wait(timeout)
        now_s = time.monotonic()
        if not self._is_measuring and now_s >= self._begin_s:
            self._begin_s, self._is_measuring = now_s, True
            self.take()
            self._steps.clear()
        elif self._is_measuring and now_s >= self._begin_s + WINDOW_S:
            self._write(now_s - self._begin_s)
            trio.lowlevel.remove_instrument(self)

    def _write(self, passed_s: float) -> None:
        document = {
            "ms": {name: 1000 * spent_s / passed_s for name, spent_s in self.take().items()},
            "steps": {name: each / passed_s for name, each in self._steps.items()},
        }
        Path(os.environ[TASK_TIMES_FILE]).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    # The node's own call of `trio.run` does not have instruments.
    vars(trio).update(run=partial(trio.run, instruments=[TaskTimes()]))
    from bridge.cli.main import main

    main()
