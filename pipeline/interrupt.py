"""Ctrl-C in a run: it takes effect between two calls into the JVM, not in the middle of one.

Python raises KeyboardInterrupt wherever the main thread is, and that is nearly always a call that waits for the JVM's
answer: the bridge to it then writes pages of frames and closes, and the queries cannot be stopped in order any more. So
while a run loop has `deferred` open, the first Ctrl-C only notes the command, and `check`, which the loop calls once a
second, raises. The second one does not wait.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """The command to end, as far as it was uttered."""

    def __init__(self) -> None:
        self._wished = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. Raises KeyboardInterrupt at the second time."""
        if self._wished:
            signal.default_int_handler(number, frame)
        self._wished = True

    def check(self) -> None:
        """Raises KeyboardInterrupt if the end was wished for."""
        if self._wished:
            raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[Interrupt]:
    """While the block runs, Ctrl-C waits for `check`; only the main thread hears it, so elsewhere nothing changes."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
