"""Round trips per second of a ØMQ socket in an event loop: `ZmqSocket` for trio, and other ways to use pyzmq.

    ours        `ZmqSocket`: one task waits for the descriptor; a send that clears the descriptor's signal wakes it
    asyncio     pyzmq's own `zmq.asyncio.Socket`, in an asyncio run
    thread      a thread owns the socket; it passes received messages to the trio run, and gets others by inproc
    polling     a trio task tries to receive, and sleeps for a millisecond without a message

A DEALER socket sends messages of 64 bytes to a ROUTER in another process, which returns them. 1 or 64 messages are in
flight. For all designs, the other process uses blocking calls of pyzmq. The designs take turns, run by run, in threads
of one process. `python -m benchmarks.zmq_sockets` is that other process; it ends when its standard input closes.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import trio
import zmq
import zmq.asyncio

from benchmarks.child import Child
from benchmarks.figures import Figure
from benchmarks.job import Job
from consensus.protocols.zmq_raft import SocketKind, ZmqSocket, zmq_context

MESSAGE: Final = b"x" * 64
WINDOWS: Final = (1, 64)
SECONDS: Final = 0.5
POLL_S: Final = 0.001
GROUP: Final = "a ØMQ socket in an event loop"

ContextT = TypeVar("ContextT", bound="zmq.Context[Any]")
Design = Callable[[str, int, float], int]
"""The function that measures a design: (URL, messages in flight, seconds) → number of round trips."""


async def measure(job: Job) -> list[Figure]:
    """Measure the designs in turns."""
    rates: dict[tuple[str, int], list[float]] = {(name, window): [] for name in DESIGNS for window in WINDOWS}
    async with await Child.start_module("echo", "benchmarks.zmq_sockets", {}, job.directory / "echo.log") as echo:
        url = (await echo.receive_document())["url"]
        for _ in range(job.runs):
            for (name, window), found in rates.items():
                count = await trio.to_thread.run_sync(partial(DESIGNS[name], url, window, SECONDS))
                found.append(count / SECONDS)
    return _figures(rates)


def _figures(rates: dict[tuple[str, int], list[float]]) -> list[Figure]:
    figures = []
    for (name, window), found in rates.items():
        ratios = [own / other for own, other in zip(rates[OURS, window], found, strict=True)]
        note = "" if name == OURS else f"ours is {min(ratios):.2f} to {max(ratios):.2f} times as fast"
        figures.append(Figure(GROUP, f"{name}, {window} under way", "/s", tuple(found), note))
    return figures


@contextmanager
def _context(kind: type[ContextT]) -> Iterator[ContextT]:
    """Return a context whose sockets discard unsent messages when they are closed."""
    with kind(io_threads=1) as context:
        context.setsockopt(zmq.LINGER, 0)
        yield context


def _own_rate(url: str, window: int, seconds: float) -> int:
    count = 0

    async def exchange() -> None:
        def came_back(frames: list[bytes], _user: str | None) -> None:
            nonlocal count
            count += 1
            socket.send(frames)

        with zmq_context() as context:
            socket = ZmqSocket(context, SocketKind.DEALER, came_back)
            socket.connect(url)
            for _ in range(window):
                socket.send([MESSAGE])
            with trio.move_on_after(seconds):
                await socket.run()

    trio.run(exchange)
    return count


def _asyncio(url: str, window: int, seconds: float) -> int:
    count = 0

    async def exchange() -> None:
        nonlocal count
        with _context(zmq.asyncio.Context) as context, context.socket(zmq.DEALER) as socket:
            socket.connect(url)
            for _ in range(window):
                await socket.send_multipart([MESSAGE])
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while True:
                        frames = await socket.recv_multipart()
                        count += 1
                        await socket.send_multipart(frames)

    asyncio.run(exchange())
    return count


def _polling(url: str, window: int, seconds: float) -> int:
    count = 0

    async def exchange() -> None:
        nonlocal count
        with _context(zmq.Context) as context, context.socket(zmq.DEALER) as socket:
            socket.connect(url)
            for _ in range(window):
                socket.send_multipart([MESSAGE])
            with trio.move_on_after(seconds):
                while True:
                    try:
                        frames = socket.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        await trio.sleep(POLL_S)
                        continue
                    count += 1
                    socket.send_multipart(frames, zmq.NOBLOCK)
                    await trio.lowlevel.checkpoint()

    trio.run(exchange)
    return count


def _thread(url: str, window: int, seconds: float) -> int:
    count = 0

    async def exchange() -> None:
        def came_back(frames: list[bytes]) -> None:
            nonlocal count
            count += 1
            outgoing.send_multipart(frames, zmq.NOBLOCK)

        with _context(zmq.Context) as context, context.socket(zmq.PAIR) as outgoing:
            outgoing.bind("inproc://outgoing")
            owner = threading.Thread(
                target=_own_socket, args=(context, url, came_back, trio.lowlevel.current_trio_token())
            )
            owner.start()
            for _ in range(window):
                outgoing.send_multipart([MESSAGE])
            await trio.sleep(seconds)
            outgoing.send_multipart([b""])
            await trio.to_thread.run_sync(owner.join)

    trio.run(exchange)
    return count


def _own_socket(
    context: "zmq.Context[zmq.Socket[bytes]]",
    url: str,
    came_back: Callable[[list[bytes]], None],
    token: trio.lowlevel.TrioToken,
) -> None:
    """Run the thread of `_thread`; an empty message on the inproc socket ends it."""
    with context.socket(zmq.DEALER) as socket, context.socket(zmq.PAIR) as outgoing:
        socket.connect(url)
        outgoing.connect("inproc://outgoing")
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(outgoing, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if outgoing in ready:
                frames = outgoing.recv_multipart()
                if frames == [b""]:
                    return
                socket.send_multipart(frames)
            if socket in ready:
                trio.from_thread.run_sync(came_back, socket.recv_multipart(), trio_token=token)


def _echo() -> None:
    """Return each message, until the standard input ends."""
    with _context(zmq.Context) as context, context.socket(zmq.ROUTER) as socket:
        socket.bind("tcp://127.0.0.1:*")
        print(json.dumps({"url": socket.get_string(zmq.LAST_ENDPOINT)}), flush=True)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if sys.stdin.fileno() in ready:
                return
            if socket in ready:
                socket.send_multipart(socket.recv_multipart())


OURS: Final = "ours"
DESIGNS: Final[dict[str, Design]] = {OURS: _own_rate, "asyncio": _asyncio, "thread": _thread, "polling": _polling}

if __name__ == "__main__":
    _echo()
