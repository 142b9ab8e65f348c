"""The thread of derived tables: it takes the newest batch, rests, tells its failures, and ends when it is told."""

import sys
import threading
from collections.abc import Callable

import pytest

from pipeline.gold.deriving import Deriving
from pipeline.spark.lost_starts import LostStarts, Patience

PATIENCE_S = 20.0
FULL, CUT = "no space left on device", "cancelled"


def patient(count: Callable[[], None] = lambda: None) -> LostStarts:
    return LostStarts("tables", Patience(notify=lambda _: None, count=count))


class Work:
    """What the thread is to do: each piece is begun, noted, and waits until it is let go."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)

    def make(self, batch_id: int) -> None:
        """A piece of work."""
        self.made.append(batch_id)
        self.begun.release()
        assert self.let_go.acquire(timeout=PATIENCE_S)

    def await_begin(self) -> None:
        """Return when a piece is begun."""
        assert self.begun.acquire(timeout=PATIENCE_S)


def started(deriving: Deriving) -> threading.Thread:
    thread = threading.Thread(target=deriving.work)
    thread.start()
    return thread


def ended(deriving: Deriving, thread: threading.Thread) -> None:
    deriving.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_batches_that_are_written_while_tables_are_made_are_taken_together() -> None:
    work = Work()
    deriving = Deriving(work.make, patient(), rest_times=0.0)
    thread = started(deriving)
    deriving.batch_done(0)
    work.await_begin()
    for batch in (1, 2, 3):
        deriving.batch_done(batch)
    work.let_go.release()
    work.await_begin()
    work.let_go.release()
    ended(deriving, thread)
    assert work.made == [0, 3]


def test_after_its_work_the_thread_rests_whatever_is_written() -> None:
    work = Work()
    deriving = Deriving(work.make, patient(), rest_times=1e9)
    thread = started(deriving)
    deriving.batch_done(0)
    work.await_begin()
    deriving.batch_done(1)
    work.let_go.release()
    # The end finds it at rest, also if it comes sooner than the rest begins.
    ended(deriving, thread)
    assert work.made == [0]


def test_what_goes_wrong_is_raised_in_the_run_loop() -> None:
    def fail(_: int) -> None:
        raise OSError(FULL)

    deriving = Deriving(fail, patient())
    thread = started(deriving)
    deriving.check()
    deriving.batch_done(0)
    thread.join(PATIENCE_S)
    with pytest.raises(OSError, match="no space left"):
        deriving.check()


def test_a_closed_pipe_ends_the_run_loop() -> None:
    def leave(_: int) -> None:
        # what `rich` does when standard output is closed
        sys.exit(1)

    deriving = Deriving(leave, patient())
    thread = started(deriving)
    deriving.batch_done(0)
    thread.join(PATIENCE_S)
    with pytest.raises(SystemExit):
        deriving.check()


def test_work_that_is_cut_off_by_the_end_is_no_failure() -> None:
    begun, cut = threading.Event(), threading.Event()

    def cancelled(_: int) -> None:
        begun.set()
        assert cut.wait(PATIENCE_S)
        raise OSError(CUT)

    deriving = Deriving(cancelled, patient())
    thread = started(deriving)
    deriving.batch_done(0)
    assert begun.wait(PATIENCE_S)
    deriving.end()
    cut.set()
    thread.join(PATIENCE_S)
    deriving.check()


def test_tables_are_made_again_after_a_lost_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.spark.lost_starts.PAUSE_FIRST_S", 0.001)
    work, counted = Work(), list[int]()

    def make(batch_id: int) -> None:
        work.make(batch_id)
        if len(work.made) == 1:
            raise RuntimeError("Python worker failed to connect back.")

    deriving = Deriving(make, patient(lambda: counted.append(1)), rest_times=0.0)
    thread = started(deriving)
    deriving.batch_done(7)
    for _ in range(2):
        work.await_begin()
        work.let_go.release()
    ended(deriving, thread)
    deriving.check()
    assert (work.made, counted) == ([7, 7], [1])
