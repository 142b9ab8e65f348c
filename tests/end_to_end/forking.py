"""`garlicfarm` processes, forked from a process that has imported the program.

The import of some three hundred modules takes half a second of processor time, more than most tests. So each
test worker has one source process, which imports them and forks the processes of the tests:

    start ── arguments, directory, environment, descriptors ──▶ the source ── fork ──▶ a keeper ── fork ──▶ `main()`
      ▲                                                                                   │ waits
      └─────────────────────────── process id, and later the exit code ◀──────────────────┘

The program runs its own `main` and ends like an interpreter, with its own session, descriptors and signals. The source
has one thread and has not run the program, so a fork starts from a clean state. The source ends with its worker. Some
processes start from the command line instead, such as nodes of `up` (`up_process`), and nodes with limits before their
first step (`test_floods`).
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL, get_errno
from functools import cache
from importlib import import_module
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from trio._core import _run

from tests.end_to_end import hung_disk
from tests.loop_watch.watch import ENVIRONMENT, install_if_wanted
from tests.processes import END_S

ROOT = Path(__file__).parents[2]
REQUEST_BYTES = 128 * 1024
NUMBER_BYTES = 4
CLONE_NEWNET = 0x40000000
IMPORTED = ("run", "status", "events.event", "farm", "keys.farm_keys", "kraft.serve", "log", "node", "publish")
"""Modules of `bridge.cli` with the commands that tests use."""


class Forked:
    """A process of the program, with the parts of `subprocess.Popen` that tests use."""

    def __init__(self, reports: int, stdin: FileIO | None) -> None:
        self.stdin = stdin
        self.returncode: int | None = None
        self._reports = reports
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._exit_code(0.0)

    def wait(self, timeout: float) -> int:
        """Wait for the exit code; raise TimeoutExpired after `timeout` seconds."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("garlicfarm", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _exit_code(self, timeout_s: float) -> int | None:
        if self.returncode is None and select.select([self._reports], [], [], timeout_s)[0]:
            self.returncode = self._number()
            os.close(self._reports)
        return self.returncode

    def _number(self) -> int:
        data = os.read(self._reports, NUMBER_BYTES)
        assert len(data) == NUMBER_BYTES, "the source of processes has ended"
        return int.from_bytes(data, signed=True)


def start(
    arguments: Sequence[str | Path],
    output: int,
    errors: int,
    *,
    piped: bool = False,
    given: int | None = None,
    namespace: str = "",
    directory: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Forked:
    """Start `garlicfarm` with these arguments.

    Its standard input is empty, the descriptor `given`, or a pipe that the test closes.
    `output` and `errors` are descriptors. `namespace` is a network namespace of `ip netns`; `directory` is the current
    one by default.
    """
    request = {
        "arguments": [*map(str, arguments)],
        "directory": str(directory or Path.cwd()),
        "environment": dict(environment),
        "namespace": namespace,
    }
    stdin, ours = os.pipe()
    reports, reporting = os.pipe()
    try:
        socket.send_fds(
            _source(),
            [json.dumps(request).encode() + b"\n"],
            [stdin if given is None else given, output, errors, reporting],
        )
    finally:
        os.close(stdin)
        os.close(reporting)
    if not piped:
        os.close(ours)
    return Forked(reports, FileIO(ours, "wb") if piped else None)


def run(
    arguments: Sequence[str | Path],
    timeout_s: float,
    directory: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    given: bytes = b"",
) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end, like `subprocess.run`; `given` is its standard input, at most a pipe's buffer."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = start(
            arguments, output.fileno(), errors.fileno(), piped=True, directory=directory, environment=environment
        )
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout_s)
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([*arguments], code, output.read().decode(), errors.read().decode())


@contextmanager
def child(arguments: Sequence[str | Path]) -> Iterator[tuple[Forked, IO[str], IO[str]]]:
    """Yield a running command with its output and its errors; kill it at the end of the block if it still runs."""
    (reading, writing), (reading_errors, writing_errors) = os.pipe(), os.pipe()
    with os.fdopen(reading) as output, os.fdopen(reading_errors) as errors:
        try:
            process = start(arguments, writing, writing_errors)
        finally:
            os.close(writing)
            os.close(writing_errors)
        try:
            yield process, output, errors
        finally:
            process.kill()
            process.wait(END_S)


@cache
def _source() -> socket.socket:
    """Return the socket of this worker's source; start the source at the first call."""
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
        process.wait(60)

    atexit.register(end)
    return ours


# -- in the source and its children ------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> list[str] | None:
    """Fork a process per request. In a forked process, return its arguments; in the source, return None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not request:
            return None
        while not request.endswith(b"\n"):
            request += requests.recv(REQUEST_BYTES)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return keep(json.loads(request), descriptors)
        for each in descriptors:
            os.close(each)


def keep(request: dict[str, object], descriptors: list[int]) -> list[str]:
    """Fork the process, which returns its arguments. The keeper sends its id and its exit code, and ends."""
    *standard, reporting = descriptors
    child = os.fork()
    if child == 0:
        os.close(reporting)
        return become(request, standard)
    for each in standard:
        os.close(each)
    os.write(reporting, child.to_bytes(NUMBER_BYTES, signed=True))
    _, status = os.waitpid(child, 0)
    os.write(reporting, os.waitstatus_to_exitcode(status).to_bytes(NUMBER_BYTES, signed=True))
    os._exit(0)


def become(request: dict[str, object], standard: list[int]) -> list[str]:
    """Apply the requested directory, environment and descriptors; return the arguments."""
    match request:
        case {
            "arguments": list(arguments),
            "directory": str(directory),
            "environment": dict(environment),
            "namespace": str(namespace),
        }:
            os.setsid()
            # Otherwise all nodes would have one random clock, and begin their probe rounds at the same moment.
            _run._r.seed()
            if namespace:
                enter(namespace)
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
            raise AssertionError(request)


def enter(namespace: str) -> None:
    """Move this process into a network namespace. Python 3.12 has `os.setns`."""
    with Path("/run/netns", namespace).open("rb") as file:
        if CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(get_errno(), f"the namespace {namespace} cannot be entered")


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(f"bridge.cli.{name}")
    main = import_module("bridge.cli.main").main
    # kio imports hypothesis if it is installed. Nodes of users run without it.
    sys.modules["hypothesis"] = None  # type: ignore[assignment] # so its import fails
    gc.freeze()
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv = ["garlicfarm", *arguments]
        main()
