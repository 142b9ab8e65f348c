"""The temporary files of the pipeline's processes: below the temporary directory, for this user alone.

    /tmp/garlicfarm-spark-UID/           created with 0700; refused if others can write to it
        java-home/, log4j2.properties    the same for every run
        spark.log, spark.log.1           Spark's reports of failures, with stack traces; 10 MB each at most
        runs/NAME/                       files of the JVM of one run: shuffles, spilled rows, artifacts, native code
        runs/NAME/lock                   locked by the run until its end

Spark removes its files when it ends, but not when it is killed. So each run gets a directory that its JVM uses as its
temporary one. Each run first removes the directories of ended runs. A run has ended if no process holds the lock on its
file `lock`. The kernel releases a lock whenever the process that holds it ends, even if it is killed.

The pipeline executes a program from this directory (`java-home/bin/java`), and all users can write to `/tmp`. So it
refuses a directory that another user created.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

_RUNS, _LOCK = "runs", "lock"
_held: list[int] = []
"""Locks of this process; its end closes them."""


class ScratchError(Exception):
    """The directory cannot be used; the text has the reason and the remedy."""


def scratch_directory() -> Path:
    """Return the directory of this user, and create it if missing. Raise ScratchError."""
    path = Path(tempfile.gettempdir()) / f"garlicfarm-spark-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ScratchError(f"{path} cannot be made: {error.strerror or error}; {_ELSEWHERE}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ScratchError(
            f"{path} is not a directory that only this user can write, and the pipeline executes a program from there;"
            f" remove it, or {_ELSEWHERE}"
        )
    return path


_ELSEWHERE = "set TMPDIR to a directory that you can write"


@cache
def run_directory() -> Path:
    """Return a directory for the files of this process's JVM, after removing the directories of ended runs.

    Raises ScratchError.
    """
    runs = scratch_directory() / _RUNS
    try:
        runs.mkdir(mode=0o700, exist_ok=True)
        # Locked while directories are made and removed, so that a new directory is not removed as an abandoned one.
        among = os.open(runs / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(among, fcntl.LOCK_EX)
            for each in runs.iterdir():
                if each.is_dir() and not _is_held(each):
                    shutil.rmtree(each, ignore_errors=True)
            made = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=runs))
            lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            _held.append(lock)
        finally:
            os.close(among)
    except OSError as error:
        raise ScratchError(f"{runs} cannot be written: {error.strerror or error}; {_ELSEWHERE}") from error
    return made


def _is_held(directory: Path) -> bool:
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
