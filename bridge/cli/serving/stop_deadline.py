"""The end of a stopping process, even if a part of it does not end.

    the parts' own bounds (`consensus.storage.disk.STOP_SECONDS`, 1 s for small files)      they report the hanging part
    StopDeadline                                                                            any other hanging part

Nothing can end a call in another thread: a sync of a hung disk, a look-up of a name, a read from a dead server. Each
part could abandon its threads when it is canceled, but then a slow write could be completed after a later write. So the
parts wait for their threads, but the process has a deadline. At the deadline, a separate thread ends the process, with
a line about it and exit code 1. The thread needs neither the event loop nor the disk.
"""

import os
import time
from collections.abc import Callable
from math import inf
from threading import TIMEOUT_MAX, Condition, Thread
from typing import Final

import trio

from bridge.cli.failure import REFUSED
from consensus.storage import PROCESS_STOP_SECONDS

CLOSE_SECONDS: Final = PROCESS_STOP_SECONDS
"""Seconds to close all parts: longer than a server waits for its disk, so that the server can report it."""
TEXT: Final = (
    "this process did not end within {:.0f} s of the stop, and is killed now: a disk, a name server or another part"
    " of the system does not respond. Acknowledged entries are durable. Check the disk of the state directory, then"
    " start again"
)


class StopDeadline:
    """A deadline for the end of this process; none until `within` is called."""

    def __init__(self, report: Callable[[str], object], end: Callable[[int], object] = os._exit) -> None:
        """Set the function that reports the reason; it must return soon, even if the output is not read."""
        self._report = report
        self._end = end
        self._changed = Condition()
        self._at_s = inf
        self._seconds = 0.0
        self._thread: Thread | None = None

    def within(self, seconds: float | None) -> None:
        """End the process within this number of seconds; of several deadlines the earliest counts.

        None removes it.
        """
        with self._changed:
            if seconds is None:
                self._at_s = inf
            elif (at_s := time.monotonic() + seconds) < self._at_s:
                self._at_s, self._seconds = at_s, seconds
                if self._thread is None:
                    self._thread = Thread(target=self._watch, name="garlicfarm-stop", daemon=True)
                    self._thread.start()
            self._changed.notify_all()

    async def within_when_canceled(self) -> None:
        """Set the deadline when this task is canceled: with its nursery, for any reason."""
        try:
            await trio.sleep_forever()
        finally:
            self.within(CLOSE_SECONDS)

    def _watch(self) -> None:
        with self._changed:
            while (left_s := self._at_s - time.monotonic()) > 0:
                self._changed.wait(min(left_s, TIMEOUT_MAX))
        self._report(TEXT.format(self._seconds))
        self._end(REFUSED)
