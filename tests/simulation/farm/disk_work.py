"""Work of threads, without threads: it runs in place, and a sync takes virtual time.

    trio.to_thread.run_sync(work)     ──▶ `in_place`: the work, then the delay of the machine's disk if the work synced
    DiskThread.run, begin             ──▶ `DiskWorker`: one call after the other, like the thread that it replaces

While a disk hangs, no work of a `DiskWorker` begins. A canceled caller waits `STOP_SECONDS` more, and then gets
`DiskHangsError`, as from the thread.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import trio

from consensus.storage.disk import STOP_SECONDS, DiskHangsError
from tests.simulation.farm.host import Host, current_host

T = TypeVar("T")
HANG_LOOK_S = 0.1
"""Seconds between two checks of a disk that hangs."""


async def in_place(
    sync_fn: Callable[..., T],
    *arguments: Any,
    thread_name: str | None = None,  # noqa: ARG001 - trio's parameter
    abandon_on_cancel: bool = False,
    limiter: object = None,  # noqa: ARG001 - trio's parameter
) -> T:
    """Do the work of a thread in place, and wait for the delay of the disk."""
    await trio.lowlevel.checkpoint_if_cancelled()
    host = current_host.get()
    with trio.CancelScope(shield=not abandon_on_cancel):
        while host is not None and host.disk_hangs:  # noqa: ASYNC110 - a plain flag that tests set
            await trio.sleep(HANG_LOOK_S)
    syncs = 0 if host is None else host.disk.sync_count
    try:
        return sync_fn(*arguments)
    finally:
        with trio.CancelScope(shield=True):
            if host is not None and host.disk.sync_count > syncs and host.disk.sync_delay_s > 0:
                await trio.sleep(host.disk.sync_delay_s)
            else:
                await trio.lowlevel.checkpoint()


class _Call:
    def __init__(self, work: Callable[[], object], ended: Callable[[], None]) -> None:
        self.work = work
        self.ended = ended
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_done = False

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class DiskWorker:
    """A `DiskThread` without a thread."""

    def __init__(self, name: str, stop_s: float = STOP_SECONDS) -> None:
        del name
        self._stop_s = stop_s
        self._calls: deque[_Call] = deque()
        self._is_working = False

    async def run(self, work: Callable[[], T]) -> T:
        """Return or raise the result of `work`; `DiskHangsError` if canceled and not done."""
        await trio.lowlevel.checkpoint_if_cancelled()
        done = trio.Event()
        call = self._put(work, done.set)
        try:
            await done.wait()
        except trio.Cancelled:
            await self._finish(call, done)
        return call.result()  # type: ignore[no-any-return]

    async def run_last(self, work: Callable[[], object]) -> None:
        """Do `work` as the last call, even if canceled; raise `DiskHangsError` if it does not end in time."""
        done = trio.Event()
        call = self._put(work, done.set)
        await self._finish(call, done)
        call.result()

    async def _finish(self, call: _Call, done: trio.Event) -> None:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(self._stop_s):
                await done.wait()
            if not call.is_done:
                raise DiskHangsError

    def begin(self, work: Callable[[], object], ended: Callable[[Exception | None], None]) -> None:
        def report() -> None:
            if call.error is not None and not isinstance(call.error, Exception):
                raise call.error
            ended(call.error)

        call = self._put(work, report)

    def end(self) -> None:
        """Do nothing: a thread does not exist."""

    def close(self) -> None:
        """Do the remaining work."""
        while self._calls:
            call = self._calls.popleft()
            with suppress(Exception):
                call.work()

    def _put(self, work: Callable[[], object], ended: Callable[[], None]) -> _Call:
        call = _Call(work, ended)
        self._calls.append(call)
        if not self._is_working:
            self._is_working = True
            host = current_host.get()
            assert host is not None
            assert host.run is not None
            assert host.run.workers is not None
            host.run.workers.start_soon(self._work, host)
        return call

    async def _work(self, host: Host) -> None:
        while self._calls:
            call = self._calls[0]
            while host.disk_hangs:  # noqa: ASYNC110 - a plain flag that tests set
                await trio.sleep(HANG_LOOK_S)
            syncs = host.disk.sync_count
            try:
                call.value = call.work()
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                call.error = error
            if host.disk.sync_count > syncs and host.disk.sync_delay_s > 0:
                await trio.sleep(host.disk.sync_delay_s)
            self._calls.popleft()
            call.is_done = True
            call.ended()
        self._is_working = False
