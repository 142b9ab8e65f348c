"""The disk's thread: its results, its errors, and its last work, also for a canceled caller."""

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import partial
from weakref import ref

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


async def test_work_runs_in_one_other_thread_in_order(disk_thread: DiskThread) -> None:
    seen: list[tuple[int, int]] = []

    async def call(number: int) -> None:
        await disk_thread.run(lambda: seen.append((number, threading.get_ident())))

    for number in range(3):
        await call(number)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_caller_receives_result_or_error(disk_thread: DiskThread) -> None:
    def fail() -> int:
        raise OSError(5, "Input/output error")

    assert await disk_thread.run(lambda: 42) == 42
    with pytest.raises(OSError, match="Input/output error"):
        await disk_thread.run(fail)
    assert await disk_thread.run(lambda: "continues") == "continues"


async def test_ended_work_is_freed_without_collection(disk_thread: DiskThread) -> None:
    written = frozenset({"the bytes of a write"})
    kept, ended = ref(written), trio.Event()
    gc.disable()
    try:
        disk_thread.begin(partial(len, written), lambda _: ended.set())
        del written
        with trio.fail_after(60):
            await ended.wait()
            await disk_thread.run(lambda: None)
        assert kept() is None
    finally:
        gc.enable()


async def test_started_work_completes_before_caller_is_canceled(disk_thread: DiskThread) -> None:
    started, may_end, done = trio.Event(), threading.Event(), []
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        token.run_sync_soon(started.set)
        may_end.wait(60)
        done.append("all of it")

    async def call() -> None:
        await disk_thread.run(work)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await started.wait()
        nursery.cancel_scope.cancel()
        may_end.set()
    assert done == ["all of it"]


async def test_canceled_caller_does_not_start_work(disk_thread: DiskThread) -> None:
    done: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk_thread.run(lambda: done.append("never"))
    await disk_thread.run(lambda: None)
    assert done == []


async def test_end_of_work_is_reported_in_event_loop_with_context(disk_thread: DiskThread) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    results: list[tuple[str | None, str, int]] = []
    done = trio.Event()

    def ended(error: Exception | None) -> None:
        results.append((None if error is None else str(error), CALLER.get(), threading.get_ident()))
        if len(results) == 2:
            done.set()

    CALLER.set("this test")
    disk_thread.begin(lambda: None, ended)
    disk_thread.begin(fail, ended)
    await done.wait()
    here = threading.get_ident()
    assert results == [(None, "this test", here), ("[Errno 5] Input/output error", "this test", here)]


async def test_close_ends_thread(disk_thread: DiskThread) -> None:
    worker = await disk_thread.run(threading.current_thread)
    disk_thread.close()
    assert not worker.is_alive()


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    released = threading.Event()
    yield released
    released.set()


async def test_hung_work_is_abandoned_after_cancellation(hung: threading.Event) -> None:
    disk_thread = DiskThread("a hung disk", stop_s=0.05)
    scope = trio.CancelScope()
    trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
    with trio.fail_after(60), scope, pytest.raises(DiskHangsError):
        await disk_thread.run(lambda: hung.wait(60))


async def test_last_work_after_hung_work_is_not_awaited(hung: threading.Event) -> None:
    disk_thread, closed = DiskThread("a hung disk", stop_s=0.05), threading.Event()
    disk_thread.begin(lambda: hung.wait(60), lambda _: None)
    with trio.fail_after(60), pytest.raises(DiskHangsError):
        await disk_thread.run_last(closed.set)
    assert not closed.is_set()
    # The files are closed only after the last write ended.
    hung.set()
    assert closed.wait(60)


async def test_last_work_completes_for_canceled_caller() -> None:
    disk_thread, done = DiskThread("a test's disk"), list[str]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk_thread.run_last(lambda: done.append("closed"))
    assert done == ["closed"]
