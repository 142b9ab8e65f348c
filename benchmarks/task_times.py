"""A node that measures its tasks: `python -m benchmarks.task_times run …`, the command `garlicfarm` with an instrument.

    loop ─▶ task step ─▶ loop ─▶ task step ─▶ loop ─▶ wait for sockets and timers ─▶ loop …
            └ its name     └ "event loop"             └ "system call of the wait"

An interval of processor time belongs to the step of a task, to the loop's own work, or to the call that waits. The rest
of the time of the process is time of other threads. After `SETTLED_S`, the node measures for `WINDOW_S` and writes
one JSON document to the file in the environment variable `TASK_TIMES_FILE`; it continues without the instrument.
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
LOOP, WAIT, THREADS = "event loop", "system call of the wait", "other threads"


class TaskTimes(trio.abc.Instrument):
    """The processor time of each task by name."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic() + SETTLED_S
        self._spent_ns: defaultdict[str, int] = defaultdict(int)
        self._steps: defaultdict[str, int] = defaultdict(int)
        self._process_s = 0.0
        self._last_ns = thread_time_ns()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """End an interval of the loop."""
        del task
        self._end(LOOP)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """End the step of a task."""
        self._end(task.name)

    def before_io_wait(self, timeout: float) -> None:
        """End an interval of the loop."""
        del timeout
        self._end(LOOP)

    def after_io_wait(self, timeout: float) -> None:
        """End the wait; begin the measurement or end it when it is time."""
        del timeout
        self._end(WAIT)
        now_s = time.monotonic()
        if not self._process_s and now_s >= self._begin_s:
            self._begin_s, self._process_s = now_s, time.process_time()
            self._spent_ns.clear()
            self._steps.clear()
        elif self._process_s and now_s >= self._begin_s + WINDOW_S:
            self._write(now_s - self._begin_s)
            trio.lowlevel.remove_instrument(self)

    def _end(self, name: str) -> None:
        now_ns = thread_time_ns()
        self._spent_ns[name] += now_ns - self._last_ns
        self._steps[name] += 1
        self._last_ns = now_ns

    def _write(self, passed_s: float) -> None:
        process_ms = (time.process_time() - self._process_s) * 1000
        spent_ms = {name: spent_ns / 1e6 for name, spent_ns in self._spent_ns.items()}
        spent_ms[THREADS] = process_ms - sum(spent_ms.values())
        document = {
            "ms": {name: each / passed_s for name, each in spent_ms.items()},
            "steps": {name: each / passed_s for name, each in self._steps.items()},
        }
        Path(os.environ[TASK_TIMES_FILE]).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    # The node's own call of `trio.run` does not have instruments.
    vars(trio).update(run=partial(trio.run, instruments=[TaskTimes()]))
    from bridge.cli.main import main

    main()
