"""`garlicfarm` processes that are forked from one which has imported the program.

A process needs longer to import some three hundred modules than for most of what a test has it do: half a second of a
processor that all farms share. So each worker has one process that imports them, and forks what the tests start:

    start ── arguments, directory, environment, descriptors ──▶ the source ── fork ──▶ a keeper ── fork ──▶ `main()`
      ▲                                                                                   │ waits
      └─────────────────────────── process id, and later how it ended ◀───────────────────┘

The program runs by its own `main` and ends as an interpreter does, in a session, with descriptors and signals of its
own. The source has one thread and has run nothing of the program, so a fork finds nothing half done. It ends when its
worker does. What starts by the command line itself: nodes of `up` (`up_process`), on a LAN (`test_lan`), and those that
are limited before their first step (`test_floods`).
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile

from tests.end_to_end import hung_disk
from tests.loop_watch.watch import ENVIRONMENT, install_if_wanted

ROOT = Path(__file__).parents[2]
REQUEST_BYTES = 128 * 1024
NUMBER_BYTES = 4
IMPORTED = ("run", "status", "events.event", "farm", "keys.farm_keys", "log", "node", "publish")
"""Modules of `bridge.cli` that the tests' commands are in."""


class Forked:
    """A process of the program: as much of `subprocess.Popen` as the tests use."""

    def __init__(self, told: int, stdin: FileIO | None) -> None:
        self.stdin = stdin
        self.returncode: int | None = None
        self._told = told
        self.pid = self._number()

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float) -> int:
        """As `poll`, in so many seconds; raises TimeoutExpired."""
        ended = self._ended(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired("garlicfarm", timeout)
        return ended

    def send_signal(self, number: signal.Signals) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout_s)[0]:
            self.returncode = self._number()
            os.close(self._told)
        return self.returncode

    def _number(self) -> int:
        said = os.read(self._told, NUMBER_BYTES)
        assert len(said) == NUMBER_BYTES, "the source of processes has ended"
        return int.from_bytes(said, signed=True)


def start(arguments: Sequence[str | Path], output: int, errors: int, *, piped: bool = False) -> Forked:
    """Start `garlicfarm` with these arguments; its standard input is empty, or a pipe that is open until it is closed.

    `output` and `errors` are descriptors. Directory and environment are those of the moment.
    """
    said = {"arguments": [*map(str, arguments)], "directory": str(Path.cwd()), "environment": dict(os.environ)}
    stdin, ours = os.pipe()
    told, telling = os.pipe()
    try:
        socket.send_fds(_source(), [json.dumps(said).encode() + b"\n"], [stdin, output, errors, telling])
    finally:
        os.close(stdin)
        os.close(telling)
    if not piped:
        os.close(ours)
    return Forked(told, FileIO(ours, "wb") if piped else None)


def run(arguments: Sequence[str | Path], timeout_s: float) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end, as `subprocess.run` does."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = start(arguments, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout_s)
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([*arguments], code, output.read().decode(), errors.read().decode())


@cache
def _source() -> socket.socket:
    """The socket of this worker's source, which is started when it is first needed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.forking", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != ENVIRONMENT},
        )

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


# -- in the source and its children ------------------------------------------------------------------------------------


def serve(asked: socket.socket) -> list[str] | None:
    """Fork what is asked for. In such a process this returns its arguments; in the source None, at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        said, descriptors, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 4)
        if not said:
            return None
        while not said.endswith(b"\n"):
            said += asked.recv(REQUEST_BYTES)
        if os.fork() == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return keep(json.loads(said), descriptors)
        for each in descriptors:
            os.close(each)


def keep(said: dict[str, object], descriptors: list[int]) -> list[str]:
    """Fork the process, which returns its arguments; the keeper tells how it ended, and ends."""
    *standard, telling = descriptors
    child = os.fork()
    if child == 0:
        os.close(telling)
        return become(said, standard)
    for each in standard:
        os.close(each)
    os.write(telling, child.to_bytes(NUMBER_BYTES, signed=True))
    _, status = os.waitpid(child, 0)
    os.write(telling, os.waitstatus_to_exitcode(status).to_bytes(NUMBER_BYTES, signed=True))
    os._exit(0)


def become(said: dict[str, object], standard: list[int]) -> list[str]:
    """Take on what the process was asked to be."""
    match said:
        case {"arguments": list(arguments), "directory": str(directory), "environment": dict(environment)}:
            os.setsid()
            for number, each in enumerate(standard):
                os.dup2(each, number)
                os.close(each)
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            hung_disk.install_if_wanted()
            install_if_wanted()
            return arguments
        case _:
            raise AssertionError(said)


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(f"bridge.cli.{name}")
    main = import_module("bridge.cli.main").main
    gc.freeze()
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        sys.argv = ["garlicfarm", *wanted]
        main()
