"""The limits of the machine, measured in the same run as the farm, for comparison with the farm's figures.

Two limits bound a replicated log on one machine. One is the rate of small durable writes (fdatasync of one 4 KiB block
in an allocated file). The other is the round trip of a small message between two processes over loopback TCP. Plain
blocking calls measure both, so they are limits of the machine and not of an event loop. A trio round trip is measured
too, because every server here is a trio program.
"""

import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

BLOCK_BYTES = 4096
RUNS, RUN_S = 5, 0.5
MESSAGE = b"x" * 256


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's name and its limits: medians of several short runs with the extremes."""

    description: str
    fdatasync_per_s: tuple[float, float, float]
    """The lowest, median and highest of the runs."""
    blocking_round_trip_us: tuple[float, float, float]
    trio_round_trip_us: tuple[float, float, float]

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        low, mid, high = self.fdatasync_per_s
        return [
            f"machine                       {self.description}",
            f"fdatasync of 4 KiB            {mid:,.0f}/s (runs {low:,.0f} to {high:,.0f})",
            _microseconds("loopback round trip, blocking", self.blocking_round_trip_us),
            _microseconds("loopback round trip, trio", self.trio_round_trip_us),
        ]


def measure(directory: Path) -> Machine:
    """Measure the limits; write files into `directory`, which should be on the farm's disk."""
    return Machine(
        description=describe(),
        fdatasync_per_s=_spread(lambda: _fdatasync_rate(directory)),
        blocking_round_trip_us=_spread(_blocking_round_trip_us),
        trio_round_trip_us=_spread(lambda: trio.run(_trio_round_trip_us)),
    )


def describe() -> str:
    """Return processor, cores, kernel and Python, without the names of machine and user."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def _microseconds(name: str, spread: tuple[float, float, float]) -> str:
    low, mid, high = spread
    return f"{name:<29} {mid:,.0f} us (runs {low:,.0f} to {high:,.0f})"


def _spread(measurement: Callable[[], float]) -> tuple[float, float, float]:
    values = [measurement() for _ in range(RUNS)]
    return min(values), statistics.median(values), max(values)


def _fdatasync_rate(directory: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        blocks = 256
        file.write(b"\0" * BLOCK_BYTES * blocks)
        file.flush()
        os.fsync(file.fileno())
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < RUN_S:
            os.pwrite(file.fileno(), MESSAGE, count % blocks * BLOCK_BYTES)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - started)


@contextmanager
def _echo_server() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(4096):
                connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        thread.join()
        listener.close()


def _blocking_round_trip_us() -> float:
    with _echo_server() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < RUN_S:
            client.sendall(MESSAGE)
            client.recv(4096)
            count += 1
        return (time.perf_counter() - started) / count * 1e6


async def _trio_round_trip_us() -> float:
    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, echo, 0)
        port = listeners[0].socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            count = 0
            started = time.perf_counter()
            while time.perf_counter() - started < RUN_S:
                await client.send_all(MESSAGE)
                await client.receive_some()
                count += 1
            elapsed = time.perf_counter() - started
        nursery.cancel_scope.cancel()
    return elapsed / count * 1e6
