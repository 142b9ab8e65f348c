"""Writes lines to one standard stream in a separate thread, so that a reader of a log cannot stop a node.

    write(line) ──▶ queue of at most `WAITING_BYTES` ──▶ thread ──▶ stream
                └── full: dropped and counted; a line after the next written one has the number

A pipe whose reader has stopped, or a terminal after Ctrl-S, blocks a process that writes to it. A write in the event
loop would stop the whole node until the reader continues. A nonblocking descriptor is not an option: other processes
share it.

The thread writes to the descriptor, not to Python's stream. A blocked write would hold the stream's lock, and the
interpreter needs that lock when it ends. If a stream does not have a descriptor, as in a test, the thread writes to the
stream itself. A line whose write fails is dropped: a node must not end because its log cannot be written.
"""

import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Final, TextIO

from consensus import counted

WAITING_BYTES: Final = 1024 * 1024
CLOSE_SECONDS: Final = 1.0
"""Maximum time in seconds that an ending process waits for a reader of its last lines."""


def lost_lines(count: int) -> str:
    """Return the line that replaces `count` dropped ones."""
    return f"{counted(count, 'line was', 'lines were')} left out here, because the output was not read in time"


class LineWriter:
    """The writer of one stream."""

    def __init__(
        self, stream: TextIO | None, lost: Callable[[int], str] = lost_lines, waiting_bytes: int = WAITING_BYTES
    ) -> None:
        """Open the writer; without a `stream` (the process was started without it) each line is dropped."""
        self._stream = stream
        self.lost = lost
        self._waiting_bytes = waiting_bytes
        self._changed = Condition()
        self._lines: deque[bytes] = deque()
        self._size_bytes = 0
        self._is_writing = False
        self._thread: Thread | None = None
        self.dropped = 0
        """Number of unreported dropped lines."""

    def write(self, line: str) -> None:
        """Queue a line; never wait."""
        if self._stream is None:
            return
        data = (line + "\n").encode(self._stream.encoding or "utf-8", self._stream.errors or "replace")
        with self._changed:
            if self._size_bytes + len(data) > self._waiting_bytes and self._lines:
                self.dropped += 1
                return
            self._lines.append(data)
            self._size_bytes += len(data)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="garlicfarm-output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, within_s: float = CLOSE_SECONDS) -> bool:
        """Wait until all lines are written, and return True; return False after `within_s` without a reader."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._is_writing, within_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._is_writing = True
                data = self._lines.popleft()
                self._size_bytes -= len(data)
            self._put(data)
            with self._changed:
                dropped, self.dropped = self.dropped, 0
            if dropped:
                self._put(self._loss_line(dropped))

    def _loss_line(self, dropped: int) -> bytes:
        return (self.lost(dropped) + "\n").encode("utf-8", "replace")

    def _put(self, data: bytes) -> None:
        stream = self._stream
        if stream is None:
            return
        # A closed stream raises ValueError.
        with suppress(OSError, ValueError):
            descriptor = _descriptor_of(stream)
            if descriptor is None:
                stream.write(data.decode(stream.encoding or "utf-8", "replace"))
                stream.flush()
            else:
                _write_all(descriptor, data)


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except OSError:
        return None  # io.UnsupportedOperation: the stream is in memory


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select((), (descriptor,), ())
