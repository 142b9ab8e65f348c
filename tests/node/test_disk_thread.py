"""The disk's thread: what it returns, what it raises, and what becomes of it when no caller waits any more."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import pytest
import trio

from consensus.storage.disk import DiskHangsError
from consensus.storage.disk_thread import DiskThread

CALLER = ContextVar("CALLER", default="no caller")


@pytest.fixture
async def disk_thread() -> AsyncIterator[DiskThread]:
    thread = DiskThread("a test's disk")
    yield thread
    thread.close()


async def test_work_is_done_in_one_other_thread_in_the_order_of_the_calls(disk_thread: DiskThread) -> None:
    seen: list[tuple[int, int]] = []

    async def call(number: int) -> None:
        await disk_thread.run(lambda: seen.append((number, threading.get_ident())))

    for number in range(3):
        await call(number)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_the_caller_gets_what_the_work_returns_or_raises(disk_thread: DiskThread) -> None:
    def fail() -> int:
        raise OSError(5, "Input/output error")

    assert await disk_thread.run(lambda: 42) == 42
    with pytest.raises(OSError, match="Input/output error"):
        await disk_thread.run(fail)
    assert await disk_thread.run(lambda: "goes on") == "goes on"


async def test_work_that_has_begun_is_finished_before_its_caller_is_cancelled(disk_thread: DiskThread) -> None:
    begun, may_end, done = trio.Event(), threading.Event(), []
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        token.run_sync_soon(begun.set)
        may_end.wait(10)
        done.append("all of it")

    async def call() -> None:
        await disk_thread.run(work)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await begun.wait()
        nursery.cancel_scope.cancel()
        may_end.set()
    assert done == ["all of it"]


async def test_a_caller_that_is_cancelled_already_gives_it_no_work(disk_thread: DiskThread) -> None:
    done: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk_thread.run(lambda: done.append("never"))
    await disk_thread.run(lambda: None)
    assert done == []


async def test_the_end_of_what_was_begun_is_told_in_the_event_loop_and_in_the_context_of_the_call(
    disk_thread: DiskThread,
) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    told: list[tuple[str | None, str, int]] = []
    done = trio.Event()

    def ended(error: Exception | None) -> None:
        told.append((None if error is None else str(error), CALLER.get(), threading.get_ident()))
        if len(told) == 2:
            done.set()

    CALLER.set("this test")
    disk_thread.begin(lambda: None, ended)
    disk_thread.begin(fail, ended)
    await done.wait()
    here = threading.get_ident()
    assert told == [(None, "this test", here), ("[Errno 5] Input/output error", "this test", here)]


async def test_closing_ends_the_thread(disk_thread: DiskThread) -> None:
    worker = await disk_thread.run(threading.current_thread)
    disk_thread.close()
    assert not worker.is_alive()


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """What a disk that hangs waits for."""
    answers = threading.Event()
    yield answers
    answers.set()


async def test_hung_work_is_left_after_its_caller_is_cancelled(hung: threading.Event) -> None:
    disk_thread = DiskThread("a hung disk", stop_s=0.05)
    scope = trio.CancelScope()
    trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
    with trio.fail_after(10), scope, pytest.raises(DiskHangsError):
        await disk_thread.run(lambda: hung.wait(60))


async def test_last_work_behind_a_hung_one_is_not_waited_for(hung: threading.Event) -> None:
    disk_thread, closed = DiskThread("a hung disk", stop_s=0.05), threading.Event()
    disk_thread.begin(lambda: hung.wait(60), lambda _: None)
    with trio.fail_after(10), pytest.raises(DiskHangsError):
        await disk_thread.run_last(closed.set)
    assert not closed.is_set()
    # The files are closed only when nothing writes to them any more.
    hung.set()
    assert closed.wait(10)


async def test_last_work_is_done_although_its_caller_is_cancelled() -> None:
    disk_thread, done = DiskThread("a test's disk"), list[str]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk_thread.run_last(lambda: done.append("closed"))
    assert done == ["closed"]
