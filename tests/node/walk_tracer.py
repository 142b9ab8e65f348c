"""Follows one thing through a running server: which modules, tasks and threads it passes on its way.

The three servers of a `LoopbackGroup` share a process, so each is started in a context that carries its number, which
its tasks inherit; a thread belongs to the server that started it. While the tracer records, the interpreter calls it
at every call of a Python function. At the functions that are stations of the way it looks at the stack: each step from
one module of consensus into another is a hop, and so is the step into a task or thread. A crossing counts once,
however often it is passed: the way to a second follower is the way to the first.

A helper that a station's caller uses beside the way (a codec, a clock, a dataclass) is on no station's stack, so it is
no hop.
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

SERVED: ContextVar[ServerId | None] = ContextVar("served", default=None)
"""The server whose task this is."""


Crossing = tuple[str | None, str]
"""From one module into another; from None where a task or thread begins."""


@dataclass
class Walk:
    """What was passed, in the order of the first time."""

    stations: frozenset[str]
    hops: dict[Crossing, set[str]] = field(default_factory=dict)
    """By which functions a module was entered there."""
    reached: set[str] = field(default_factory=set)

    def record(self, station: str, stack: list[tuple[str, str]]) -> None:
        """A station was called, from functions (module, name) of which the outermost stands first."""
        self.reached.add(station)
        before: str | None = None
        for module, function in stack:
            if module != before:
                self.hops.setdefault((before, module), set()).add(function)
            before = module


class WalkTracer:
    """Starts servers so that they can be told apart, and records one of them."""

    def __init__(self) -> None:
        self._threads: dict[int, ServerId | None] = {}
        self._walk: Walk | None = None
        self._followed: ServerId | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Notice which server starts which thread; tracing costs nothing until something is recorded."""
        start = threading.Thread.start

        def noted_start(thread: threading.Thread) -> None:
            served = SERVED.get()
            start(thread)
            if thread.ident is not None:
                self._threads[thread.ident] = served

        threading.Thread.start = noted_start  # type: ignore[assignment, method-assign]
        threading.setprofile(self._called)
        try:
            yield
        finally:
            threading.setprofile(None)
            threading.Thread.start = start  # type: ignore[method-assign]

    @contextmanager
    def recording(self, server: ServerId, stations: frozenset[str]) -> Iterator[Walk]:
        """Record what this server does."""
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
    """What is started within belongs to this server."""
    token = SERVED.set(server)
    try:
        yield
    finally:
        SERVED.reset(token)


async def until_reached(walk: Walk) -> None:
    """Wait until every station was passed: the disk's thread may come to its own after the client has its answer."""
    while walk.stations - walk.reached:  # noqa: ASYNC110 - a call sets no event
        await trio.sleep(0.005)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("consensus.")


def _name(frame: FrameType) -> str:
    """The function's dotted name; a function within it counts as itself."""
    return frame.f_code.co_qualname.partition(".<locals>")[0]
