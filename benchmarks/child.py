"""A process of a benchmark, controlled by lines of text; it always ends with the benchmark.

    start ─▶ send_line, receive_line (with a timeout) ─▶ processor time, memory ─▶ end (or kill, then a new start)

`async with await Child.start(…) as child` ends the process with the block.

The benchmark's own programs end when their standard input closes, so they do not outlive the benchmark. Other programs
do not watch their input, so they run under a shell that does (`start_foreign`). The standard error of a process goes to
a file; if the process ends early, the error shows its last lines.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import psutil
import trio

LINE_TIMEOUT_S = 60.0
STOP_GRACE_S = 5.0
POLL_S = 0.02
LOOPBACK = "127.0.0.1"
_LINE_LIMIT_BYTES = 256 * 1024 * 1024
_TAIL_CHARACTERS = 3000
READY = "ready"
_ENDS_WITH_ITS_INPUT = """
exec 3<&0
"$@" >&2 3<&- & program=$!
echo $program
{ cat <&3 && kill -9 $program; } >/dev/null 2>&1 & watch=$!
wait $program; status=$?
kill $watch 2>/dev/null
echo $status
"""
"""The shell around another program: it prints the process id and, when the program has ended, its exit status.

The shell waits for the end of the program, because a dying process still listens on a port that the next process needs.
"""


class BenchmarkError(Exception):
    """The processes did not reach the state to measure; the text names the expectation."""


class ChildError(BenchmarkError):
    """A process of the benchmark ended early or did not reply; the text shows its last output."""


class Child:
    """One process, created by `start`."""

    def __init__(self, name: str, process: trio.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.pid = process.pid
        self.log = log
        self._received = bytearray()

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})
    ) -> "Child":
        """Start a process that ends when its standard input closes, with additional environment variables."""
        with log.open("ab") as errors:
            process = await trio.lowlevel.open_process(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        return cls(name, process, log)

    @classmethod
    async def start_module(cls, name: str, module: str, argument: Mapping[str, object], log: Path) -> "Child":
        """Start a module of this project with a JSON document as its only argument."""
        return await cls.start(name, [sys.executable, "-m", module, json.dumps(argument)], log)

    @classmethod
    async def start_foreign(
        cls, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})
    ) -> "Child":
        """Start a program that does not watch its standard input; all its output goes to the file."""
        child = await cls.start(name, ["sh", "-c", _ENDS_WITH_ITS_INPUT, "sh", *command], log, environment)
        child.pid = int(await child.receive_line())
        return child

    @classmethod
    async def run_module(
        cls, name: str, module: str, argument: Mapping[str, object], log: Path, timeout_s: float = LINE_TIMEOUT_S
    ) -> dict[str, Any]:
        """Run a module of this project that prints one document, and return the document."""
        async with await cls.start_module(name, module, argument, log) as child:
            return await child.receive_document(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    @property
    def running(self) -> bool:
        """True if the program has not ended. An ended program may still wait for the shell that started it."""
        if self.process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        return False

    async def send_line(self, line: str) -> None:
        """Write one line to its standard input."""
        if self.process.stdin is None:
            raise ChildError(f"{self.name} lacks a standard input")
        try:
            await self.process.stdin.send_all(f"{line}\n".encode())
        except trio.BrokenResourceError as error:
            raise self._ended_early() from error

    async def receive_line(self, timeout_s: float = LINE_TIMEOUT_S) -> str:
        """Return one line of its standard output."""
        if self.process.stdout is None:
            raise ChildError(f"{self.name} lacks a standard output")
        with trio.move_on_after(timeout_s):
            while b"\n" not in self._received:
                data: bytes | bytearray = b""
                with suppress(trio.ClosedResourceError):  # `end` may close the output before the last bytes are read
                    data = await self.process.stdout.receive_some()
                if not data:
                    raise self._ended_early()
                self._received += data
                if len(self._received) > _LINE_LIMIT_BYTES:
                    raise ChildError(f"{self.name} printed a line that is too long")
            line, _, rest = self._received.partition(b"\n")
            self._received = bytearray(rest)
            return line.decode()
        raise ChildError(f"{self.name} did not print a line within {timeout_s:g} s{self._last_output()}")

    async def wait_ready(self, timeout_s: float = LINE_TIMEOUT_S) -> None:
        """Wait until it prints that it is ready."""
        if await self.receive_line(timeout_s) != READY:
            raise ChildError(f"{self.name} did not get ready")

    async def receive_document(self, timeout_s: float = LINE_TIMEOUT_S) -> dict[str, Any]:
        """Return one line, a JSON object."""
        return dict(json.loads(await self.receive_line(timeout_s)))

    async def request(self, question: str, timeout_s: float = LINE_TIMEOUT_S) -> dict[str, Any]:
        """Write a line, and return the document of the reply."""
        await self.send_line(question)
        return await self.receive_document(timeout_s)

    async def wait_listening(self, port: int, timeout_s: float = LINE_TIMEOUT_S) -> None:
        """Wait until the program accepts connections at a port of loopback; if it does not, end it."""
        with trio.move_on_after(timeout_s):
            while self.running:
                with suppress(OSError):
                    await (await trio.open_tcp_stream(LOOPBACK, port)).aclose()
                    return
                await trio.sleep(POLL_S)
        self.kill()
        await self.end()
        raise ChildError(f"{self.name} does not listen{self._last_output()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, if it has not ended."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL; `end` must follow."""
        self.signal(signal.SIGKILL)

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, wait for the end of the program up to this time, then end the process."""
        self.signal(signal.SIGTERM)
        with trio.move_on_after(timeout_s):
            while self.running:  # noqa: ASYNC110 - the end of another process does not wake a task
                await trio.sleep(POLL_S)
        await self.end()

    async def end(self) -> None:
        """Close its standard input, wait for a limited time, then kill it."""
        with trio.CancelScope(shield=True):
            if self.process.stdin is not None:
                await self.process.stdin.aclose()
            with trio.move_on_after(STOP_GRACE_S):
                await self.process.wait()
            self.kill()
            if self.process.poll() is None:
                self.process.kill()
            await self.process.wait()
            if self.process.stdout is not None:
                await self.process.stdout.aclose()

    def processor_seconds(self) -> float:
        """Return the processor time of the program so far, without its children."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        """Return the resident memory."""
        return psutil.Process(self.pid).memory_info().rss

    def _ended_early(self) -> ChildError:
        return ChildError(f"{self.name} ended early{self._last_output()}")

    def _last_output(self) -> str:
        words = self.log.read_text(encoding="utf-8", errors="replace").strip() if self.log.exists() else ""
        return f"; its last output: …{words[-_TAIL_CHARACTERS:]}" if words else ""
