"""Small files of an output that are read and written as a whole: a killed run leaves the old content or the new one.

    directory   written and synced under another name, then renamed; `pipeline/lake.py` excludes other writers by a lock
    bucket      a conditional write: OvertakenError if the object has changed since this process read or wrote it

So in a bucket a writer that lost its lock, such as a suspended machine, cannot replace what its successor wrote.
"""

import os
from pathlib import Path

from pipeline.output.buckets import Output


def sync(*paths: Path) -> None:
    """Make files, and the names in directories, durable."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Document:
    """A small file of an output. In a bucket, a first write without a read must create it."""

    def __init__(self, path: Output) -> None:
        self._path = path
        self._tag: str | None = None

    def read(self) -> bytes | None:
        """Return the content; None without the file. Raise OSError."""
        if isinstance(self._path, Path):
            try:
                return self._path.read_bytes()
            except FileNotFoundError:
                return None
        found = self._path.read()
        if found is None:
            self._tag = None
            return None
        content, self._tag = found
        return content

    def write(self, content: bytes) -> None:
        """Replace the content durably. Raise OSError, in a bucket also OvertakenError."""
        if not isinstance(self._path, Path):
            self._tag = self._path.write(content, self._tag)
            return
        aside = self._path.with_name(f".{self._path.name}.new")
        aside.write_bytes(content)
        sync(aside)
        aside.replace(self._path)
        sync(self._path.parent)
