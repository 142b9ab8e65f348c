"""Calls to farms and stores in a few threads that never delay the end of the process.

    submit(call), map(call, values) ──▶ queue ──▶ a daemon thread ──▶ result or error
    end of the `with` block         ──▶ queued calls are dropped, threads end after their current call

A farm or a store may take minutes to reply. The interpreter joins the threads of a `ThreadPoolExecutor` at its exit,
and the executor's own `with` block waits for all queued calls. So either would keep a stopped run waiting for a reply.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")


class DaemonPool:
    """At most `threads` daemon threads; each of the first calls starts one. One thread at a time submits calls."""

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._started = 0
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], Found]) -> "Future[Found]":
        """Queue a call; return the future of its result."""
        future: Future[Found] = Future()
        self._work.put((future, call))
        if self._started < self._most:
            self._started += 1
            threading.Thread(target=self._run, name="waits-for-reply", daemon=True).start()
        return future

    def map(self, call: Callable[[Given], Found], values: Iterable[Given]) -> Iterator[Found]:
        """Queue a call for each value; yield the results in order. Raise the error of a call."""
        futures = deque([self.submit(partial(call, each)) for each in values])
        while futures:
            yield futures.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Empty):
            while True:
                self._work.get_nowait()
        for _thread in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (queued := self._work.get()) is not None:
            future, call = queued
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the caller receives it
                future.set_exception(error)
