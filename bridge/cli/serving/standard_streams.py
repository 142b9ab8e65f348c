"""The three standard streams, after any start of this process: each may be full, closed, or without a reader.

    stdin   closed ──▶ empty
    stdout  closed ──▶ nothing is written; cannot be written (full disk, reader gone) ──▶ OSError that names the stream
    stderr  closed, or cannot be written ──▶ the text is lost: it cannot be reported elsewhere

A closed descriptor is opened on `/dev/null` first. Otherwise the next socket or file of the process gets its number,
and receives the printed text. Python keeps buffered output after a failed write and writes it once more at its exit.
This would end a command with a second error and exit code 120. So after its first error a stream accepts everything.
"""

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDOUT_NAME: Final = "standard output"
_STDIN, _STDOUT, _STDERR = range(3)


class StandardOutput(io.FileIO):
    """A descriptor that reports only its first failed write, with the name of the stream."""

    def __init__(self, descriptor: int, stream_name: str | None) -> None:
        """Set the name of the stream for the error; without a name, an error is not raised."""
        super().__init__(descriptor, "wb", closefd=False)
        self._stream_name = stream_name
        self._is_lost = False

    def write(self, data: "Buffer", /) -> int:
        """Write some of the data; return the number of bytes. Raise `OSError` once."""
        size_bytes = memoryview(data).nbytes
        while not self._is_lost:
            try:
                return os.write(self.fileno(), data)
            except BlockingIOError:
                # Another process that shares the pipe has made it nonblocking.
                select.select((), (self,), ())
            except OSError as error:
                if self._stream_name is None:
                    # A log on a full disk is lost until there is space again.
                    return size_bytes
                self._is_lost = True
                error.filename = self._stream_name
                raise
        return size_bytes


def guard_streams() -> None:
    """Replace the streams of this process as described above; keep streams that a test has replaced."""
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        _open_if_closed(descriptor)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if sys.stdout is sys.__stdout__:
        sys.stdout = _guarded(sys.stdout, _STDOUT, STDOUT_NAME)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _guarded(sys.stderr, _STDERR, None)


def _open_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        # The opened descriptor has this number, because it is the lowest free one.
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - the standard library's own signature


def _guarded(stream: TextIO | None, descriptor: int, name: str | None) -> TextIO:
    raw = StandardOutput(descriptor, name)
    if not isinstance(stream, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace")
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering
    )
