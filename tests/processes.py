"""Child processes and threads of tests: each ends with its block, and each wait for an end is limited.

A `MockClock` jumps to the next timeout when all tasks are blocked, even if one of them waits for a thread. On a busy
machine a thread needs longer than any threshold, so the clock must count threads (`hold_for_threads`). The same applies
to bytes between sockets of the process (`hold_for_sockets`).

`with subprocess.Popen(…)` waits without a limit at the end of its block, even after an exception. A child that ignores
a signal would then block its test, its worker and the whole run forever. `child` kills the process at the end of the
block.
"""

import atexit
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock

from bridge.node.local.farm_files import LOOPBACK, hold_free_port

END_S = 60.0
"""The longest wait for the end of a killed process or a stopped thread."""


_returned_ports: set[int] = set()


def free_ports(count: int, kind: socket.SocketKind = socket.SOCK_STREAM, host: str = LOOPBACK) -> list[int]:
    """Return ports without a listener, and none of them twice: its server may not listen yet at the next call.

    The system does not assign them to outgoing connections.
    """
    found: list[int] = []
    with ExitStack() as reserved:
        while len(found) < count:
            port = hold_free_port(reserved, kind, host)
            if port not in _returned_ports:
                _returned_ports.add(port)
                found.append(port)
    return found


@contextmanager
def child(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | IO[str] | None = subprocess.PIPE,
    stderr: int | IO[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command with text pipes; kill it at the end of the block if it still runs."""
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True, env=env, cwd=cwd, stdin=stdin)
    try:
        yield process
    finally:
        process.kill()
        process.wait(END_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def hold_for_threads(clock: MockClock) -> None:
    _hold(clock, lambda: bool(trio.to_thread.current_default_thread_limiter().borrowed_tokens))


def hold_for_sockets(clock: MockClock) -> None:
    """Prevent jumps of a clock while trio's threads work, or bytes are on their way over loopback.

    On a busy machine the kernel delivers them later than any threshold.
    """
    _hold(clock, _bytes_arrive)
    hold_for_threads(clock)


def _hold(clock: MockClock, is_busy: Callable[[], bool]) -> None:
    clock.autojump_threshold = 0.001
    jump = clock._autojump

    def jump_if_idle() -> None:
        if not is_busy():
            jump()

    clock._autojump = jump_if_idle  # type: ignore[method-assign]


def _bytes_arrive() -> bool:
    """Wait until all bytes sent by this process have arrived; return True if a task of trio waited for them."""
    processors, ends = os.sched_getaffinity(0), _loopback()
    try:
        # The kernel has a queue for each processor. A connection needs three packets, each after the previous one.
        for each in processors:
            os.sched_setaffinity(0, {each})
            for sender, receiver in 2 * (ends, ends[::-1]):
                sender.send(b"x")
                receiver.recv(1)
    finally:
        os.sched_setaffinity(0, processors)
    ready = select.poll()  # select() refuses descriptors from 1,024 on
    ready.register(GLOBAL_RUN_CONTEXT.runner.io_manager._epoll, select.POLLIN)
    return bool(ready.poll(0))


@cache
def _loopback() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection to this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender, receiver = socket.create_connection(listener.getsockname(), END_S), listener.accept()[0]
        receiver.settimeout(END_S)
    atexit.register(sender.close)
    atexit.register(receiver.close)
    return sender, receiver
