"""Ctrl-C and SIGTERM in a run: they take effect between two calls into the JVM, not in the middle of one.

Python raises KeyboardInterrupt at the current position of the main thread, which is nearly always a call that waits for
the JVM's reply. The bridge to the JVM then writes pages of frames and closes, and the queries cannot be stopped in
order any more. So while a run loop has `deferred` open, the first Ctrl-C is only recorded, and `check`, which the loop
calls once a second, raises. A batch calls it too while it waits for a broker, because the end of the run waits for the
batch. The second Ctrl-C does not wait.

Outside a run loop SIGTERM is Ctrl-C, for every command (`terminable`): it removes its scratch files and locks.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """The record of Ctrl-C, or of another end of the run."""

    def __init__(self) -> None:
        self._pressed = self.is_ending = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal. Raise KeyboardInterrupt at the second time."""
        if self._pressed:
            signal.default_int_handler(number, frame)
        self._pressed = self.is_ending = True

    def check(self) -> None:
        """Raise KeyboardInterrupt after Ctrl-C. In another thread, raise InterruptedError, which ends its query."""
        if self.is_ending:
            raise KeyboardInterrupt if _is_main() else InterruptedError("the run ends")


@contextmanager
def deferred(interrupt: Interrupt) -> Iterator[Interrupt]:
    """Defer Ctrl-C and SIGTERM to `check` while the block runs. Only the main thread receives them."""
    with _handling(interrupt.note, signal.SIGINT, signal.SIGTERM):
        yield interrupt


@contextmanager
def terminable() -> Iterator[None]:
    """Raise KeyboardInterrupt also on SIGTERM while the block runs."""
    with _handling(signal.default_int_handler, signal.SIGTERM):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    if not _is_main():
        yield
        return
    before = {each: signal.signal(each, handler) for each in numbers}
    try:
        yield
    finally:
        for each, earlier in before.items():
            signal.signal(each, earlier)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
