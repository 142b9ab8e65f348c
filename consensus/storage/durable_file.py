"""Replace a file such that a crash at any moment leaves either the old content or the new content.

    write aside ──▶ fsync the file ──▶ rename over ──▶ fsync the directory

Without the first fsync a crash can leave the new name without content; without the second, the old name.
"""

import os
import tempfile
from pathlib import Path

from consensus.storage.file_access import errors_with_path


def replace_file(path: Path, content: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Make `content` the durable content of `path`, with a user and group. Raises OSError; the old content stays."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    aside = Path(name)
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


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
