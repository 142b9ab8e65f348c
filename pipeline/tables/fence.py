"""One pipeline at a time writes into an output directory.

Two that write the same batch would each take the other's commit for its own, and keep a state of their own in memory.
A commit by a local rename excludes no second writer. So a run holds a lock on `<output>/.lock` for as long as it lives;
the kernel gives it back, however the run ended. The process that holds the lock is the one that commits: what still
lives of a run that was killed, the JVM and its tasks, can leave files that no commit names, and nothing else.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.source.log_client import FarmLogError

LOCK_FILE = ".lock"


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """No other pipeline writes into `output` while the block runs. Raises FarmLogError if one does, or if none can."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        lock = os.open(output / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FarmLogError(
            f"{output} cannot be written: {error.strerror or error}; let this user write it, or choose another --output"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FarmLogError(
                f"another pipeline writes into {output}: stop that one, or choose another --output"
            ) from None
        yield
    finally:
        os.close(lock)
