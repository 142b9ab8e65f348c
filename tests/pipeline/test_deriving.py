"""The thread that computes the derived tables: only the newest batch, a rest after its work, failures, and the end."""

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pipeline.gold.deriving import Deriving, running
from pipeline.spark.lost_starts import LostStarts, RetryPolicy
from tests.processes import END_S

TIMEOUT_S = 60.0
FULL, CUT = "no space left on device", "canceled"


def lost_starts(count: Callable[[], None] = lambda: None) -> LostStarts:
    return LostStarts("tables", RetryPolicy(notify=lambda _: None, count=count))


class Work:
    """Controllable work of the thread: each call is recorded, and blocks until the test releases it."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.began = threading.Semaphore(0)
        self.finish = threading.Semaphore(0)

    def make(self, batch_id: int) -> None:
        """Do one piece of work."""
        self.made.append(batch_id)
        self.began.release()
        assert self.finish.acquire(timeout=TIMEOUT_S)

    def await_start(self) -> None:
        assert self.began.acquire(timeout=TIMEOUT_S)


def start(deriving: Deriving) -> threading.Thread:
    thread = threading.Thread(target=deriving.work)
    thread.start()
    return thread


def end(deriving: Deriving, thread: threading.Thread) -> None:
    deriving.end()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_batches_during_derivation_are_combined() -> None:
    work = Work()
    deriving = Deriving(work.make, lost_starts(), rest_times=0.0)
    thread = start(deriving)
    deriving.batch_done(0)
    work.await_start()
    for batch in (1, 2, 3):
        deriving.batch_done(batch)
    work.finish.release()
    work.await_start()
    work.finish.release()
    end(deriving, thread)
    assert work.made == [0, 3]


def test_thread_rests_after_work_despite_new_batches() -> None:
    work = Work()
    deriving = Deriving(work.make, lost_starts(), rest_times=1e9)
    thread = start(deriving)
    deriving.batch_done(0)
    work.await_start()
    deriving.batch_done(1)
    work.finish.release()
    # The end interrupts the rest, or prevents it.
    end(deriving, thread)
    assert work.made == [0]


def test_failure_is_raised_in_run_loop() -> None:
    def fail(_: int) -> None:
        raise OSError(FULL)

    deriving = Deriving(fail, lost_starts())
    thread = start(deriving)
    deriving.check()
    deriving.batch_done(0)
    thread.join(TIMEOUT_S)
    with pytest.raises(OSError, match="no space left"):
        deriving.check()


def test_closed_pipe_ends_run_loop() -> None:
    def leave(_: int) -> None:
        # as `rich` does if standard output is closed
        sys.exit(1)

    deriving = Deriving(leave, lost_starts())
    thread = start(deriving)
    deriving.batch_done(0)
    thread.join(TIMEOUT_S)
    with pytest.raises(SystemExit):
        deriving.check()


def test_work_canceled_by_end_does_not_fail() -> None:
    began, cut = threading.Event(), threading.Event()

    def canceled(_: int) -> None:
        began.set()
        assert cut.wait(TIMEOUT_S)
        raise OSError(CUT)

    deriving = Deriving(canceled, lost_starts())
    thread = start(deriving)
    deriving.batch_done(0)
    assert began.wait(TIMEOUT_S)
    deriving.end()
    cut.set()
    thread.join(TIMEOUT_S)
    deriving.check()


def test_tables_are_derived_again_after_lost_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.spark.lost_starts.PAUSE_FIRST_S", 0.001)
    work, counted = Work(), list[int]()

    def make(batch_id: int) -> None:
        work.make(batch_id)
        if len(work.made) == 1:
            raise RuntimeError("Python worker failed to connect back.")

    deriving = Deriving(make, lost_starts(lambda: counted.append(1)), rest_times=0.0)
    thread = start(deriving)
    deriving.batch_done(7)
    for _ in range(2):
        work.await_start()
        work.finish.release()
    end(deriving, thread)
    deriving.check()
    assert (work.made, counted) == ([7, 7], [1])


def test_closed_pipe_at_lost_start_ends_run_loop() -> None:
    def lose(_: int) -> None:
        raise RuntimeError("Python worker failed to connect back.")

    def leave(_: str) -> None:
        sys.exit(1)

    deriving = Deriving(lose, LostStarts("tables", RetryPolicy(notify=leave, count=lambda: None)))
    deriving.batch_done(0)
    deriving.work()
    with pytest.raises(SystemExit):
        deriving.check()


def test_thread_ends_without_jvm() -> None:
    def refuse(_: str) -> None:
        raise ConnectionRefusedError

    context = SimpleNamespace(
        setLocalProperty=lambda *_: None, setJobGroup=lambda *_, **__: None, cancelJobGroup=refuse
    )

    def names() -> list[str]:
        return [each.name for each in threading.enumerate()]

    with running(Deriving(lambda _: None, lost_starts()), cast("SparkSession", SimpleNamespace(sparkContext=context))):
        assert "derived tables" in names()
    assert "derived tables" not in names()


def test_end_does_not_wait_for_hanging_work() -> None:
    """Python would crash at its normal end while a thread runs DuckDB, so the process ends with code 1 instead."""
    program = """if True:
        import threading, duckdb
        from pipeline.gold import deriving
        deriving.END_S, started = 0.05, threading.Event()
        def work(_):
            started.set()
            while True:
                duckdb.sql("SELECT sum(range) FROM range(1000000)").fetchall()
        made = deriving.Deriving(work, None)
        with deriving.running(made, None):
            made.batch_done(0)
            started.wait()
        print("ended")"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=END_S)
    assert (done.returncode, done.stdout) == (1, "ended\n"), done.stderr
    assert "did not stop within 0.05 s" in done.stderr
