"""Ctrl-C in a run: it takes effect between two calls into the JVM, not in the middle of one.

Python raises KeyboardInterrupt at the current position of the main thread, which is nearly always a call that waits for
the JVM's reply. The bridge to the JVM then writes pages of frames and closes, and the queries cannot be stopped in
order any more. So while a run loop has `deferred` open, the first Ctrl-C is only recorded, and `check`, which the loop
calls once a second, raises. The second Ctrl-C does not wait.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """The record of Ctrl-C."""

    def __init__(self) -> None:
        self._pressed = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal. Raise KeyboardInterrupt at the second time."""
        if self._pressed:
            signal.default_int_handler(number, frame)
        self._pressed = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._pressed:
            raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[Interrupt]:
    """Defer Ctrl-C to `check` while the block runs. It reaches the main thread only; other threads notice nothing."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
