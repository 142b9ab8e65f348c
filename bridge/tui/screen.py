"""A live screen on a terminal: draws when there is something new, and gives the terminal back as it was.

    picture(width, height) ──▶ rich Live on the alternate screen, redrawn in place ──▶ terminal
    redraw once a second, at a key, at a change of the window's size, and never otherwise
    keys ──▶ press(key): True ends it

The picture has exactly the size of the screen, so that each frame overwrites the last one without clearing it first.
This prevents flicker. Keys are read without echo; the terminal's settings are restored at any end of the screen.
Without a terminal to read keys from, Ctrl-C ends it.
"""

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from rich.console import Console, RenderableType
from rich.live import Live

from bridge.tui.keys import keys_in

Picture = Callable[[int, int], RenderableType]
Press = Callable[[str], bool]
REFRESH_S = 1.0
KEYS_READ_BYTES = 1024


@contextmanager
def _silent_keys(descriptor: int) -> Iterator[None]:
    """Read keys one by one and without echo."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


async def show(picture: Picture, press: Press, console: Console, refresh_s: float = REFRESH_S) -> None:
    """Show `picture` until `press` returns True."""
    descriptor = sys.stdin.fileno()
    wake = _Wake()
    if not os.isatty(descriptor):
        await _draw(picture, console, refresh_s, wake)
        return
    with _silent_keys(descriptor):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_draw, picture, console, refresh_s, wake)
            nursery.start_soon(_notice_size, wake)
            await _until_enough(descriptor, press, wake)
            nursery.cancel_scope.cancel()


class _Wake:
    """Wakes the drawing task after a change."""

    def __init__(self) -> None:
        self.event = trio.Event()

    def set(self) -> None:
        self.event.set()


async def _until_enough(descriptor: int, press: Press, wake: _Wake) -> None:
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        data = os.read(descriptor, KEYS_READ_BYTES)
        if not data or any(press(key) for key in keys_in(data)):
            return
        wake.set()


async def _notice_size(wake: _Wake) -> None:
    with trio.open_signal_receiver(signal.SIGWINCH) as resized:
        async for _ in resized:
            wake.set()


async def _draw(picture: Picture, console: Console, refresh_s: float, wake: _Wake) -> None:
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            wake.event = trio.Event()
            size = console.size
            live.update(picture(size.width, size.height), refresh=True)
            with trio.move_on_after(refresh_s):
                await wake.event.wait()
