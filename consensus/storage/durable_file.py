"""Replace a file such that a crash at any moment leaves either the old content or the new content.

    write aside ──▶ fsync the file ──▶ rename over ──▶ fsync the directory

Without the first fsync a crash can leave an empty file; without the second it can restore the old content later. A
killed writer leaves its temporary file, possibly with a secret. Each writer holds an flock on its temporary file until
the rename, so the next writer of the same file can remove an unlocked one. A file system without locks keeps them.
"""

import fcntl
import glob
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from consensus.storage.file_access import errors_with_path


def replace_file(path: Path, content: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Make `content` the durable content of `path`, with a user and group. Raises OSError."""
    descriptor, aside = open_aside(path)
    try:
        with errors_with_path(path), os.fdopen(descriptor, "wb") as file:
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def open_aside(path: Path) -> tuple[int, Path]:
    """Remove files that killed writers of `path` left next to it, and open a new one there, mode 0600 and locked."""
    remove_left_over(path.parent, path.name)
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, Path(name)
        os.close(descriptor)  # Another writer locked and removed it first.


def remove_left_over(directory: Path, name: str | None = None) -> None:
    """Remove the files that killed writers of one file, or of all files, left in a directory."""
    for left in directory.glob(f".{'*' if name is None else glob.escape(name)}.????????.tmp"):
        with suppress(OSError):  # It is locked, belongs to another user, or is gone.
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
