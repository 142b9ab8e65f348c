"""A node whose system calls fail once per calling line.

    python -m tests.end_to_end.faulty_node DIRECTORY garlicfarm's arguments …

Before it imports the program, the module replaces Python's calls for files and sockets, which `CALLS` lists. While
`DIRECTORY/errno` contains an error name, each line of the program that makes such a call gets this error once. If names
of folders follow, calls from these folders do not fail. Each failed call is appended to `DIRECTORY/failed`.

The line is the innermost one of `gossip`, `consensus` or `bridge` on the stack. So each loop that accepts connections,
each thread that writes, and each background task gets the error at its own call.
"""

import builtins
import errno
import io
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = tuple(f"{ROOT / name}{os.sep}" for name in ("gossip", "consensus", "bridge"))
CALLS: Final = {
    "ENOSPC": (
        "open",
        "os.open",
        "os.write",
        "os.pwrite",
        "os.pwritev",
        "os.writev",
        "os.fsync",
        "os.fdatasync",
        "os.replace",
        "os.rename",
        "os.mkdir",
        "os.ftruncate",
        "os.posix_fallocate",
    ),
    "EIO": (
        "open",
        "os.open",
        "os.read",
        "os.pread",
        "os.write",
        "os.pwrite",
        "os.pwritev",
        "os.writev",
        "os.fsync",
        "os.fdatasync",
        "os.replace",
        "os.rename",
        "os.unlink",
        "os.listdir",
        "os.scandir",
    ),
    "EMFILE": ("open", "os.open", "os.scandir", "os.listdir", "os.dup", "socket.accept", "socket.__init__"),
    "ECONNRESET": (
        "socket.connect",
        "socket.recv",
        "socket.recv_into",
        "socket.recvfrom",
        "socket.send",
        "socket.sendto",
        "socket.sendmsg",
        "socket.accept",
        "socket.setsockopt",
        "socket.getpeername",
    ),
}
"""The calls that can return each error, from the kernel's manual pages."""
OWN_PIPES: Final = ("trio/_core/_wakeup_socketpair.py", "asyncio/selector_events.py")
"""Sockets within the process: a network cannot reset them."""


class Faults:
    """The calls that failed, and the error that other calls get."""

    def __init__(self, directory: Path) -> None:
        self._errno_file = directory / "errno"
        self._log = os.open(directory / "failed", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._failed: set[tuple[str, str, str]] = set()
        self._lock = Lock()
        self._write = os.write
        self._read = Path.read_text
        self._is_reading = False

    def fail_once(self, call: str) -> None:
        """Raise the current error, unless this call in this line already got it."""
        place = _place(sys._getframe(2))
        if place is None or self._is_reading:
            return
        with self._lock:
            name, *spared = self._setting()
            if (
                place.startswith(tuple(spared))
                or call not in CALLS.get(name, ())
                or (name, place, call) in self._failed
            ):
                return
            self._failed.add((name, place, call))
            self._write(self._log, f"{name} {call} {place}\n".encode())
        code = int(getattr(errno, name))
        raise OSError(code, os.strerror(code))

    def _setting(self) -> list[str]:
        """Return the error and the spared folders. One file contains both, so they change together."""
        self._is_reading = True
        try:
            return self._read(self._errno_file).split() or [""]
        except FileNotFoundError:
            return [""]
        finally:
            self._is_reading = False


def _place(frame: FrameType | None) -> str | None:
    while frame is not None:
        if frame.f_code.co_filename.endswith(OWN_PIPES):
            return None
        if frame.f_code.co_filename.startswith(PACKAGES):
            return f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _failing(faults: Faults, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def failing(*arguments: Any, **options: Any) -> Any:
        faults.fail_once(name)
        return call(*arguments, **options)

    return failing


def install(directory: Path) -> None:
    """Replace the system calls of this process by calls that can fail."""
    faults = Faults(directory)
    plain = socket.socket
    for name in {call for calls in CALLS.values() for call in calls}:
        home, _, attribute = name.rpartition(".")
        owner = {"": builtins, "os": os, "socket": plain}[home]
        setattr(owner, attribute, _failing(faults, name, getattr(owner, attribute)))
    io.open = builtins.open


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.argv = ["garlicfarm", *sys.argv[2:]]
    from bridge.cli.main import main

    main()
