"""A live screen on a terminal: draws the content again after changes, and restores the terminal at the end.

    lines(width, height) ──▶ padded to that width ──▶ terminal
    redraw   once a second, after a key or the mouse, at a change of the window's size, and after SIGCONT
    keys, mouse ──▶ press(input): True ends it
    SIGTSTP (Ctrl-Z) ──▶ terminal restored, process stopped;   SIGCONT ──▶ terminal taken again

Only changed lines are written, without clearing them first. This prevents flicker, and sends few bytes over a slow
link. If standard input is not a terminal, only a signal such as Ctrl-C ends it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, Protocol

import trio
from rich.console import Console
from rich.text import Text

from bridge.tui.keys import Input, KeyReader
from bridge.tui.terminal import Terminal, keys_descriptor

REFRESH_S: Final = 1.0
KEYS_READ_BYTES: Final = 1024


class Shown(Protocol):
    """The content of a screen."""

    @property
    def mouse(self) -> bool:
        """Return True if the mouse belongs to the view, not to the terminal's selection of text."""

    def lines(self, width: int, height: int) -> Sequence[Text]:
        """Return the picture: `height` lines, none wider than `width`."""

    def press(self, pressed: Input) -> bool:
        """Process a key or the mouse; return True to end the view."""


async def show(shown: Shown, console: Console) -> None:
    """Show the content until its `press` returns True, or the terminal of the keys is closed."""
    descriptor = keys_descriptor(sys.stdin.fileno())
    wake = _Wake()
    with Terminal(console.file, descriptor) as terminal:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_draw, shown, console, terminal, wake)
            nursery.start_soon(_notice_signals, terminal, wake)
            if descriptor is None:
                return
            await _until_enough(descriptor, shown, wake)
            nursery.cancel_scope.cancel()


class _Wake:
    """Wakes the drawing task after a change; `whole`: it writes all lines, because the screen's content is unknown."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.whole = False

    def set(self, *, whole: bool = False) -> None:
        self.whole = self.whole or whole
        self.event.set()


async def _until_enough(descriptor: int, shown: Shown, wake: _Wake) -> None:
    reader = KeyReader()
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        data = os.read(descriptor, KEYS_READ_BYTES)
        if not data or any(shown.press(each) for each in reader.keys_in(data)):
            return
        wake.set()


async def _notice_signals(terminal: Terminal, wake: _Wake) -> None:
    with trio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT) as signals:
        async for number in signals:
            if number == signal.SIGTSTP:
                terminal.leave()
                os.kill(os.getpid(), signal.SIGSTOP)
                # After SIGCONT, the process continues here.
            if number != signal.SIGWINCH:
                terminal.enter()
            wake.set(whole=True)


async def _draw(shown: Shown, console: Console, terminal: Terminal, wake: _Wake) -> None:
    while True:
        wake.event = trio.Event()
        whole, wake.whole = wake.whole, False
        # The size of the terminal itself: `COLUMNS` in the environment does not change with the window.
        size = os.get_terminal_size(console.file.fileno())
        width, height = size if all(size) else console.size
        lines = [padded(line, width) for line in shown.lines(width, height)]
        terminal.draw(rendered(lines, console), mouse=shown.mouse, whole=whole)
        with trio.move_on_after(REFRESH_S):
            await wake.event.wait()


def padded(line: Text, width: int) -> Text:
    """Return a line that overwrites the last one at its place."""
    line = line.copy()
    line.pad_right(max(0, width - line.cell_len))
    return line


def rendered(lines: Sequence[Text], console: Console) -> list[str]:
    """Return each line with the terminal's commands for its styles."""
    with console.capture() as captured:
        console.print(Text("\n", end="").join(lines), end="", soft_wrap=True)
    return captured.get().split("\n")
