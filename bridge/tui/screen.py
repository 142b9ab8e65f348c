"""A live screen on a terminal: draws when there is something new, and gives the terminal back as it was.

    picture(width, height) ──▶ rich Live on the alternate screen, redrawn in place ──▶ terminal
    redraw at each refresh, at a change of the window's size, and never otherwise; `q` or Ctrl-C ends it

The picture has exactly the size of the screen, so that each frame overwrites the last one without clearing it first:
that is what keeps it from flickering. Keys are read without echo; the terminal's settings are put back whatever ends
the screen.
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

Picture = Callable[[int, int], RenderableType]
REFRESH_S = 0.5
QUIT_KEYS = frozenset(b"qQ\x03\x04")
KEYS_READ_BYTES = 64


@contextmanager
def _silent_keys(descriptor: int) -> Iterator[None]:
    """Keys one by one and without echo."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


async def show(picture: Picture, console: Console | None = None, refresh_s: float = REFRESH_S) -> None:
    """Show `picture` until the operator quits."""
    console = console or Console()
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        await _draw(picture, console, refresh_s)
        return
    with _silent_keys(descriptor):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_draw, picture, console, refresh_s)
            await _until_quit(descriptor)
            nursery.cancel_scope.cancel()


async def _until_quit(descriptor: int) -> None:
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        keys = os.read(descriptor, KEYS_READ_BYTES)
        if not keys or QUIT_KEYS & set(keys):
            return


async def _draw(picture: Picture, console: Console, refresh_s: float) -> None:
    with (
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
        trio.open_signal_receiver(signal.SIGWINCH) as resized,
    ):
        while True:
            size = console.size
            live.update(picture(size.width, size.height), refresh=True)
            with trio.move_on_after(refresh_s):
                await resized.__anext__()
