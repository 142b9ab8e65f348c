"""Derived tables are made in parallel with the batches, by a separate thread with a limited share of the time.

    batch N written ──▶ `batch_done(N)` ──▶ the thread: tables from batches 0 to N ──▶ rest ──▶ the newest batch …

In a large farm, derived tables between two batches would delay the current state by seconds, and a user may be waiting
for it. The thread handles the newest written batch, so it combines batches that arrive while it works. After each
refresh it rests for `REST_TIMES` times the duration of the refresh, so it uses at most a fifth of the time. With the
local engine, whose batches cost little, it rests for `REST_TIMES_LOCAL` times the duration.

Spark runs the thread's jobs in a separate pool, so that a batch's jobs need not queue after them. An error in the
thread is stored. The run loop calls `check`, which raises it: the run ends as after an error in a batch. After a lost
start of one of Spark's Python processes, the thread retries instead (`lost_starts.py`).
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pipeline.spark.failures import is_lost_start
from pipeline.spark.lost_starts import LostStarts

LOG = logging.getLogger(__name__)
REST_TIMES = 4.0
REST_TIMES_LOCAL = 49.0
POOL = "derived"
END_S = 60.0
"""Longest wait for the thread at the end of a run, for example on a hanging disk. A cut write does not damage a table.
"""


class Deriving:
    """Calls `make` with the newest written batch, in a thread that `running` starts and ends."""

    def __init__(self, make: Callable[[int], None], lost_starts: LostStarts, *, rest_times: float = REST_TIMES) -> None:
        self._make = make
        self._lost_starts = lost_starts
        self._rest_times = rest_times
        self._changed = threading.Condition()
        self._written = self._made = -1
        self._ended = False
        self._failure: BaseException | None = None

    def batch_done(self, batch_id: int) -> None:
        """Record that all tables of history contain this batch."""
        with self._changed:
            self._written = batch_id
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error of the thread."""
        if self._failure is not None:
            raise self._failure

    def work(self) -> None:
        """Run the thread until its end or an error."""
        while (batch_id := self._next()) is not None:
            began = time.monotonic()
            try:
                self._make(batch_id)
            # This also catches errors that end a process, such as a closed pipe, because in a thread they would not be
            # reported.
            except BaseException as error:  # noqa: BLE001 - the run loop raises any error
                if self._is_over(error):
                    return
                continue
            self._lost_starts.reset()
            with self._changed:
                self._made = batch_id
                self._changed.wait_for(lambda: self._ended, (time.monotonic() - began) * self._rest_times)

    def _is_over(self, error: BaseException) -> bool:
        """Return True if this error ends the thread; after a lost start, pause first."""
        with self._changed:
            if not self._ended and is_lost_start(str(error)):
                try:
                    pause_s = self._lost_starts.pause_s(error)
                # The report of the lost start failed, for example because the pipe is closed.
                except BaseException as failure:  # noqa: BLE001 - as in `work`
                    error = failure
                else:
                    self._changed.wait_for(lambda: self._ended, pause_s)
                    return self._ended
            # Jobs that the end of the run canceled are not failures.
            self._failure = None if self._ended else error
            return True

    def end(self) -> None:
        """Stop further work."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._written > self._made)
            return None if self._ended else self._written


@contextmanager
def running(deriving: Deriving, session: SparkSession | None) -> Iterator[None]:
    """Run the thread while the block runs; cancel its job at the end."""
    context = None if session is None else session.sparkContext

    def work() -> None:
        if context is not None:
            context.setLocalProperty("spark.scheduler.pool", POOL)
            context.setJobGroup(POOL, "derived tables", interruptOnCancel=True)
        deriving.work()

    thread = threading.Thread(target=work, name="derived tables", daemon=True)
    thread.start()
    try:
        yield
    finally:
        deriving.end()
        if context is not None:
            # Without a JVM, the job has ended too.
            with suppress(Py4JError, OSError):
                context.cancelJobGroup(POOL)
        thread.join(END_S)
        if thread.is_alive():
            LOG.warning("the derived tables did not stop within %g s: the run ends without them", END_S)
            atexit.register(_end_process)


def _end_process() -> None:
    """End the process with code 1. The end of Python would crash a thread that runs DuckDB or delta-rs."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(1)
