"""The file of a node's history: opened, repaired, written in place, read.

    open_history ─▶ HistoryFile ─▶ write, content, close          all block: call them in a thread

The file is not synced. A killed process does not lose a written record, because the operating system has it. A power
failure may lose the last seconds; the checksums show the end of the intact records. A sync for each record
would delay the log of the farm on the same disk.

A new file reserves its space, so a full disk later does not interrupt the history. Operators need the history most for
the time of a full disk.

A lock keeps other processes of this node from writing the file. Only a regular file in this format is used. Any other
file is renamed to `history.ring.aside`, and replaces an earlier file of that name.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bridge.core.history.records import Record
from bridge.wire.history.records import RegionError
from bridge.wire.history.ring import FILE_BYTES, RingWriter, Stored, read_ring

FILE_NAME: Final = "history.ring"
ASIDE: Final = f"{FILE_NAME}.aside"
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class HistoryFileError(Exception):
    """The history cannot be used; the text has the file and the reason."""


class _ForeignFileError(Exception):
    """The file is not a history."""


class HistoryFile:
    """An open file. A failed write makes it unusable: the caller closes it, and opens it again."""

    def __init__(self, descriptor: int, writer: RingWriter, cut_off: int) -> None:
        self._descriptor = descriptor
        self._writer = writer
        self.cut_off = cut_off
        """Number of damaged places found when the file was opened."""

    def write(self, records: Iterable[Record]) -> None:
        """Append records; raise OSError if the disk refuses them."""
        for each in self._writer.append(records):
            _write_at(self._descriptor, each.data, each.offset)

    def content(self) -> Stored:
        """Return all records; raise `RegionError` if another program has replaced the content."""
        return read_ring(_read_all(self._descriptor))

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._descriptor)


def open_history(state_dir: Path) -> tuple[HistoryFile, str]:
    """Open or make the history of a node; raise `HistoryFileError` or OSError.

    A foreign file is renamed; the second value is the report of this, or empty.
    """
    path = state_dir / FILE_NAME
    try:
        return _opened(path), ""
    except _ForeignFileError as error:
        path.replace(state_dir / ASIDE)
        return _opened(path), f"{path} is not a history of this version: {error}; it is now {ASIDE}"


def read_history(state_dir: Path) -> Stored:
    """Return the history of a node, which may be stopped; the file is not changed.

    Raise `HistoryFileError` or OSError.
    """
    path = state_dir / FILE_NAME
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        _check_regular(descriptor)
        return read_ring(_read_all(descriptor))
    except (RegionError, _ForeignFileError) as error:
        raise HistoryFileError(f"{path} is not a history of this version: {error}") from error
    finally:
        os.close(descriptor)


def _opened(path: Path) -> HistoryFile:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise _ForeignFileError("not a regular file") from error
        raise
    try:
        _check_regular(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = read_ring(_read_all(descriptor))
        _reserve(descriptor)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise HistoryFileError(f"another process writes {path}") from error
        if isinstance(error, RegionError):
            raise _ForeignFileError(str(error)) from error
        raise
    return HistoryFile(descriptor, RingWriter(found.last), found.cut_off)


def _reserve(descriptor: int) -> None:
    """Reserve the space of the file. A file system without that feature allocates the space at the writes."""
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
    os.ftruncate(descriptor, FILE_BYTES)


def _check_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise _ForeignFileError("not a regular file")


def _read_all(descriptor: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < FILE_BYTES and (part := os.pread(descriptor, FILE_BYTES - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
