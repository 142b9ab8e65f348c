"""Trace one operation through a running server: the modules, tasks and threads on its path.

The three servers of a `LoopbackGroup` share a process. Each is started in a context with its number, and its tasks
inherit the context; a thread belongs to the server that started it. While the tracer records, the interpreter reports
each call of a Python function.

At the listed functions (stations) the tracer reads the stack. A *hop* is a step from one module of `consensus` into
another, or into a task or thread. The tracer counts each hop once, because the paths to both followers are the same.

A station's caller may also use a helper such as a codec, a clock or a dataclass. The helper is not on the stack of a
station, so it is not a hop.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

import trio

from consensus.core.model import ServerId

BOUNDARY = "run_task"
"""A function that only catches the errors of the task that it runs. It is not a hop."""
SERVED: ContextVar[ServerId | None] = ContextVar("served", default=None)
"""Server of the current task."""


Hop = tuple[str | None, str]
"""A hop from one module into another; from None at the start of a task or thread."""


@dataclass
class Walk:
    """Hops and stations, in the order of their first call."""

    stations: frozenset[str]
    hops: dict[Hop, set[str]] = field(default_factory=dict)
    """Entered functions of each hop."""
    reached: set[str] = field(default_factory=set)

    def record(self, station: str, stack: list[tuple[str, str]]) -> None:
        """Record a station's stack of (module, function) pairs, outermost first."""
        self.reached.add(station)
        before: str | None = None
        for module, function in stack:
            if module != before:
                self.hops.setdefault((before, module), set()).add(function)
            before = module


class WalkTracer:
    """Distinguishes the servers of one process, and records one of them."""

    def __init__(self) -> None:
        self._threads: dict[int, ServerId | None] = {}
        self._walk: Walk | None = None
        self._followed: ServerId | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Record which server starts which thread; without a recording, each call costs only one check."""
        start = threading.Thread.start

        def record_and_start(thread: threading.Thread) -> None:
            served = SERVED.get()
            start(thread)
            if thread.ident is not None:
                self._threads[thread.ident] = served

        threading.Thread.start = record_and_start  # type: ignore[assignment, method-assign]
        threading.setprofile(self._called)
        try:
            yield
        finally:
            threading.setprofile(None)
            threading.Thread.start = start  # type: ignore[method-assign]

    @contextmanager
    def recording(self, server: ServerId, stations: frozenset[str]) -> Iterator[Walk]:
        walk = self._walk = Walk(stations)
        self._followed = server
        before = sys.getprofile()
        sys.setprofile(self._called)
        try:
            yield walk
        finally:
            sys.setprofile(before)
            self._walk = None

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        walk = self._walk
        if walk is None or event != "call" or not _is_ours(frame):
            return
        station = _name(frame)
        if station not in walk.stations or self._server() != self._followed:
            return
        stack = []
        caller: FrameType | None = frame
        while caller is not None:
            if _is_ours(caller):
                stack.append((caller.f_globals["__name__"], _name(caller)))
            caller = caller.f_back
        walk.record(station, stack[::-1])

    def _server(self) -> ServerId | None:
        if threading.current_thread() is threading.main_thread():
            return SERVED.get()
        return self._threads.get(threading.get_ident())


@contextmanager
def serving(server: ServerId) -> Iterator[None]:
    """Assign everything started in the block to this server."""
    token = SERVED.set(server)
    try:
        yield
    finally:
        SERVED.reset(token)


async def until_reached(walk: Walk) -> None:
    """Wait until every station was called: the disk thread may reach its stations after the client has its reply."""
    while walk.stations - walk.reached:  # noqa: ASYNC110 - a call sets no event
        await trio.sleep(0.005)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("consensus.") and _name(frame) != BOUNDARY


def _name(frame: FrameType) -> str:
    """Return the function's dotted name; a nested function counts as its outer function."""
    return frame.f_code.co_qualname.partition(".<locals>")[0]
