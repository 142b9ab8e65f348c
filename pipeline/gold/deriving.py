"""Derived tables are made beside the batches, by a thread of their own, and never more than a share of the time.

    batch N written ──▶ `batch_done(N)` ──▶ the thread: tables out of batches 0 to N ──▶ rest ──▶ the newest N of then …

If they were made between two batches, they would delay the current state, which a user may be waiting for, by seconds
in a large farm. The thread takes the newest batch that is written, so it takes batches that arrive while it works
together. After each time it rests for `REST_TIMES` as long as it worked, so that it gets a fifth of the time of a small
machine.

Spark runs the thread's jobs in a pool of its own, so that a batch's jobs need not queue behind them. What goes wrong in
the thread is kept, and `check`, which the run loop calls, raises it there: the run ends as if it had happened in a
batch. Only after a lost start of one of Spark's Python processes the thread tries again (`lost_starts.py`).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pipeline.spark.failures import is_lost_start
from pipeline.spark.lost_starts import LostStarts

REST_TIMES = 4.0
POOL = "derived"


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
        """All tables of history hold what this batch adds to them."""
        with self._changed:
            self._written = batch_id
            self._changed.notify_all()

    def check(self) -> None:
        """Raises what went wrong in the thread."""
        if self._failure is not None:
            raise self._failure

    def work(self) -> None:
        """The thread: until it is ended or something goes wrong."""
        while (batch_id := self._next()) is not None:
            began = time.monotonic()
            try:
                self._make(batch_id)
            # Also what ends a process, such as a closed pipe: in a thread nothing would report it.
            except BaseException as error:  # noqa: BLE001 - whatever it is, the run loop raises it
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
                self._changed.wait_for(lambda: self._ended, self._lost_starts.pause_s(error))
                return self._ended
            # Jobs that were cancelled because the run ends are no failure.
            self._failure = None if self._ended else error
            return True

    def end(self) -> None:
        """Nothing more is begun."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._written > self._made)
            return None if self._ended else self._written


@contextmanager
def running(deriving: Deriving, session: SparkSession) -> Iterator[None]:
    """The thread works while the block runs; what it is doing at the end of it is cancelled."""
    context = session.sparkContext

    def work() -> None:
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(POOL, "derived tables", interruptOnCancel=True)
        deriving.work()

    thread = threading.Thread(target=work, name="derived tables", daemon=True)
    thread.start()
    try:
        yield
    finally:
        deriving.end()
        context.cancelJobGroup(POOL)
        thread.join()
