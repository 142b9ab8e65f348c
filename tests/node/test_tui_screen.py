"""`top` on a real pseudo-terminal: it draws, follows the window size, quits by `q`, and restores the terminal.

The mouse belongs to `top` while it runs, and to the terminal after its end, after a fault, and while it is suspended.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from select import select

import pytest

from bridge.tui import terminal
from bridge.tui.terminal import Terminal as OwnTerminal
from tests.end_to_end import forking
from tests.processes import END_S

ENTER_SCREEN = b"\x1b[?1049h"
LEAVE_SCREEN = b"\x1b[?1049l"
MOUSE_OFF = terminal.MOUSE_OFF.encode()
MOUSE_ON = terminal.MOUSE_ON.encode()
TIMEOUT_S = 60.0


class Terminal:
    """A pseudo-terminal and the process on it."""

    def __init__(self, command: list[str], environment: dict[str, str], stdin: int | None, *, is_child: bool) -> None:
        self._outer, self.inner = pty.openpty()
        self.resize(24, 80, None)
        given = self.inner if stdin is None else stdin
        environment = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = (
            subprocess.Popen(
                [sys.executable, "-m", "bridge.cli.main", *command],
                stdin=given,
                stdout=self.inner,
                stderr=self.inner,
                env=environment,
                start_new_session=True,
            )
            if is_child
            else forking.start(command, self.inner, self.inner, given=given, environment=environment)
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
        os.write(self._outer, keys)

    def close(self) -> None:
        """Kill the process, and close the terminal."""
        self.process.kill()
        self.process.wait(END_S)
        os.close(self._outer)
        os.close(self.inner)


@contextmanager
def top(tmp_path: Path, stdin: int | None = None, *, is_child: bool = False, **environment: str) -> Iterator[Terminal]:
    """Run `top` on a terminal; as a child of this process (`is_child`), the test can wait for its stop."""
    shown = Terminal(["top", "--node", str(tmp_path / "control.sock")], environment, stdin, is_child=is_child)
    try:
        yield shown
    finally:
        shown.close()


def test_top_shows_missing_node_and_quits_by_key(tmp_path: Path) -> None:
    with top(tmp_path) as shown:
        before = termios.tcgetattr(shown.inner)
        shown.wait_for(ENTER_SCREEN)
        shown.wait_for(b"no node runs")
        shown.type(b"q")
        shown.wait_for(LEAVE_SCREEN)
        assert shown.process.wait(TIMEOUT_S) == 0
        assert termios.tcgetattr(shown.inner) == before


def test_effect_of_key_is_drawn_immediately(tmp_path: Path) -> None:
    with top(tmp_path) as shown:
        shown.wait_for(b"no node runs")
        shown.type(b"?")
        shown.wait_for(b"hand leadership to the chosen member")
        shown.type(b"\x1b[Z/node\r")
        shown.wait_for(b"only: node")


def test_top_redraws_at_new_size_and_ends_by_interrupt(tmp_path: Path) -> None:
    with top(tmp_path, NO_COLOR="1", COLUMNS="200", LINES="50") as shown:
        shown.wait_for(b"no node runs")
        shown.seen = b""
        shown.resize(10, 40, shown.process.pid)
        shown.wait_for(b" e  l  p  t  ?  / q s T X V L")
        assert not re.search(rb"\x1b\[[39]\dm", shown.seen)
        os.kill(shown.process.pid, signal.SIGINT)
        shown.wait_for(LEAVE_SCREEN)
        assert shown.process.wait(TIMEOUT_S) == 0


def test_top_on_terminal_without_size_uses_environment(tmp_path: Path) -> None:
    with top(tmp_path, NO_COLOR="1", COLUMNS="40", LINES="10") as shown:
        shown.wait_for(b"p publish")
        shown.resize(0, 0, shown.process.pid)
        shown.wait_for(b" e  l  p  t  ?  / q s T X V L")


def test_mouse_is_on_until_m_or_end(tmp_path: Path) -> None:
    with top(tmp_path) as shown:
        shown.wait_for(MOUSE_ON)
        shown.wait_for(b"p publish")
        # The help tab is the last tab of the last line.
        shown.type(b"\x1b[<0;48;24M\x1b[<0;48;24m")
        shown.wait_for(b"hand leadership to the chosen member")
        shown.type(b"m")
        shown.wait_for(MOUSE_OFF)
        shown.seen = b""
        shown.type(b"mq")
        shown.wait_for(MOUSE_OFF + b"\x1b[?25h" + LEAVE_SCREEN)


def test_suspended_top_restores_terminal_and_resumes_drawing(tmp_path: Path) -> None:
    with top(tmp_path, is_child=True) as shown:
        before = termios.tcgetattr(shown.inner)
        shown.wait_for(b"no node runs")
        os.kill(shown.process.pid, signal.SIGTSTP)
        shown.wait_for(MOUSE_OFF + b"\x1b[?25h" + LEAVE_SCREEN)
        _, status = os.waitpid(shown.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert termios.tcgetattr(shown.inner) == before
        shown.seen = b""
        os.kill(shown.process.pid, signal.SIGCONT)
        shown.wait_for(ENTER_SCREEN)
        shown.wait_for(MOUSE_ON)
        shown.wait_for(b"no node runs")
        shown.seen = b""
        os.kill(shown.process.pid, signal.SIGTERM)
        shown.wait_for(MOUSE_OFF + b"\x1b[?25h" + LEAVE_SCREEN)
        shown.process.wait(TIMEOUT_S)
        assert termios.tcgetattr(shown.inner) == before


def test_top_without_keyboard_restores_suspended_terminal(tmp_path: Path) -> None:
    with Path(os.devnull).open() as empty, top(tmp_path, empty.fileno(), is_child=True) as shown:
        shown.wait_for(b"no node runs")
        os.kill(shown.process.pid, signal.SIGTSTP)
        shown.wait_for(LEAVE_SCREEN)
        _, status = os.waitpid(shown.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        shown.seen = b""
        os.kill(shown.process.pid, signal.SIGCONT)
        shown.wait_for(ENTER_SCREEN)
        shown.wait_for(b"no node runs")


def test_fault_restores_terminal_with_mouse_off() -> None:
    outer, inner = pty.openpty()
    before, output = termios.tcgetattr(inner), StringIO()
    with pytest.raises(TypeError), OwnTerminal(output, inner) as own:
        own.draw(0, mouse=True)  # type: ignore[arg-type]
    assert output.getvalue().endswith(f"{terminal.MOUSE_OFF}\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(inner) == before
    os.close(outer)
    os.close(inner)


def test_screen_writes_only_changed_lines() -> None:
    output = StringIO()
    with OwnTerminal(output, None) as own:
        own.draw(["one", "two", "three"], mouse=True)
        assert terminal.MOUSE_ON not in output.getvalue()
        output.truncate(0)
        own.draw(["one", "TWO", "three"], mouse=True)
        assert output.getvalue().strip("\0") == "\x1b[2;1HTWO"
        output.truncate(0)
        own.draw(["one", "TWO", "three"], mouse=True, whole=True)
        assert output.getvalue().count("H") == 3
