"""`top` on a real pseudo-terminal: it draws, follows the window size, quits by `q`, and restores the terminal."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from tests.processes import END_S

ENTER_SCREEN = b"\x1b[?1049h"
LEAVE_SCREEN = b"\x1b[?1049l"
TIMEOUT_S = 60.0


# A size in the environment would override the terminal's own size; test runners set one.
_OWN_SIZE = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}


class Terminal:
    """A pseudo-terminal and the process on it."""

    def __init__(self, rows: int, columns: int, arguments: list[str], environment: dict[str, str]) -> None:
        self._outer, self.inner = pty.openpty()
        self.resize(rows, columns, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bridge.cli.main", *arguments],
            stdin=self.inner,
            stdout=self.inner,
            stderr=self.inner,
            env={**_OWN_SIZE, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        self.seen = b""

    def resize(self, rows: int, columns: int, signaled_pid: int | None) -> None:
        """Change the window size, and send the signal to the process."""
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if signaled_pid is not None:
            os.kill(signaled_pid, signal.SIGWINCH)

    def wait_for(self, text: bytes) -> None:
        """Read until `text` appears."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.seen:
            readable, _, _ = select([self._outer], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{text!r} was never shown, but {self.seen[-2000:]!r}"
            self.seen += os.read(self._outer, 65_536)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._outer, keys)

    def close(self) -> None:
        """End the process if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_S)
        os.close(self._outer)
        os.close(self.inner)


@contextmanager
def top(tmp_path: Path, **environment: str) -> Iterator[Terminal]:
    terminal = Terminal(24, 80, ["top", "--node", str(tmp_path / "control.sock")], environment)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_top_shows_missing_node_and_quits_by_key(tmp_path: Path, key: bytes) -> None:
    with top(tmp_path) as terminal:
        before = termios.tcgetattr(terminal.inner)
        terminal.wait_for(ENTER_SCREEN)
        terminal.wait_for(b"no node runs")
        terminal.type(key)
        terminal.wait_for(LEAVE_SCREEN)
        assert terminal.process.wait(TIMEOUT_S) == 0
        assert termios.tcgetattr(terminal.inner) == before


def test_key_is_drawn_immediately(tmp_path: Path) -> None:
    with top(tmp_path) as terminal:
        terminal.wait_for(b"no node runs")
        terminal.type(b"?")
        terminal.wait_for(b"hand leadership to the chosen member")
        terminal.type(b"\x1b[Z/node\r")
        terminal.wait_for(b"only: node")


def test_top_redraws_at_new_size_and_ends_by_interrupt(tmp_path: Path) -> None:
    with top(tmp_path, NO_COLOR="1") as terminal:
        terminal.wait_for(b"no node runs")
        terminal.seen = b""
        terminal.resize(10, 40, terminal.process.pid)
        terminal.wait_for(b"l log  p publish  ? \xe2\x80\xa6")
        assert b"\x1b[3" not in terminal.seen
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for(LEAVE_SCREEN)
        assert terminal.process.wait(TIMEOUT_S) == 0
