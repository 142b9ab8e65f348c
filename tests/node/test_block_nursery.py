"""A public `async with` block raises errors without an exception group. A failed callback does not end a server."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from consensus.server.block_nursery import block_nursery, single_errors
from consensus.server.callbacks import run_callback, run_task


async def fail_with(error: BaseException) -> None:
    await trio.lowlevel.checkpoint()
    raise error


async def run_block(task: Callable[[], Awaitable[None]], block: Callable[[], Awaitable[None]]) -> None:
    async with block_nursery() as nursery:
        nursery.start_soon(task)
        await block()


async def test_block_nursery_with_failed_task_raises_its_error() -> None:
    with pytest.raises(OSError, match="no space"):
        await run_block(partial(fail_with, OSError("no space")), trio.sleep_forever)


async def test_block_nursery_with_failed_block_raises_its_error() -> None:
    with pytest.raises(KeyError):
        await run_block(trio.sleep_forever, partial(fail_with, KeyError()))


async def test_block_nursery_at_end_of_block_cancels_tasks(autojump_clock: trio.testing.MockClock) -> None:
    with trio.fail_after(1):
        async with block_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)


async def test_block_nursery_in_canceled_scope_ends_with_it(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(1) as scope:
        async with block_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught


def test_single_errors_with_several_errors_raises_first() -> None:
    first = OSError("first")
    with pytest.raises(OSError, match="first") as caught, single_errors():
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [first]), ValueError("second")])
    assert caught.value is first
    assert caught.value.__notes__ == ["another task failed: ValueError: second"]


def test_single_errors_with_interrupt_raises_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), single_errors():
        raise BaseExceptionGroup("", [OSError("first"), KeyboardInterrupt()])


@pytest.mark.parametrize("callback", [lambda _: 1 // 0, "no function"])
def test_run_callback_with_error_logs_it(callback: Callable[[int], object], caplog: pytest.LogCaptureFixture) -> None:
    run_callback(callback, 1)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a fault of the program" in caplog.text


async def test_run_task_with_error_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    await run_task(fail_with, OSError("no descriptors"))
    assert "no descriptors" in caplog.text


async def test_run_task_with_error_after_cancellation_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    """One group contains the error of the task and the cancellation of its caller."""

    async def fail_at_end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("no descriptors")

    with trio.CancelScope() as scope:
        scope.cancel()
        await run_task(fail_at_end)
    assert scope.cancelled_caught
    assert "no descriptors" in caplog.text
