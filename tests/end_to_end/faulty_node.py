"""A node whose system calls fail, each once for each place of the program that makes it.

    python -m tests.end_to_end.faulty_node DIRECTORY garlicfarm's arguments …

The calls of Python that open, write, sync, rename, list and remove files, and that open, accept, connect, read and
write sockets, are replaced before the program is imported. While `DIRECTORY/errno` names an error, the next call from
each place (file and line of the program, and the call) raises it. What failed is appended to `DIRECTORY/failed`.

A place is the innermost line of `gossip`, `consensus` or `bridge` on the stack. So a loop that waits for a connection,
a thread that writes a file and a task without a waiting caller each meet the error where it would come from the kernel.
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
"""The calls that an error comes from, in the kernel's manual pages."""
OWN_PIPES: Final = ("trio/_core/_wakeup_socketpair.py", "asyncio/selector_events.py")
"""Sockets within the process, which no network resets."""


class Faults:
    """What has failed, and what is to fail."""

    def __init__(self, directory: Path) -> None:
        self._wanted = directory / "errno"
        self._log = os.open(directory / "failed", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._failed: set[tuple[str, str, str]] = set()
        self._lock = Lock()
        self._write = os.write
        self._read = Path.read_text
        self._is_reading = False

    def meet(self, call: str) -> None:
        """Raise the wanted error, if this place has not met it yet."""
        place = _place(sys._getframe(2))
        if place is None or self._is_reading:
            return
        with self._lock:
            name = self._name()
            if (
                place.startswith(self._spared())
                or call not in CALLS.get(name, ())
                or (name, place, call) in self._failed
            ):
                return
            self._failed.add((name, place, call))
            self._write(self._log, f"{name} {call} {place}\n".encode())
        code = int(getattr(errno, name))
        raise OSError(code, os.strerror(code))

    def _spared(self) -> tuple[str, ...]:
        self._is_reading = True
        try:
            return tuple(self._read(self._wanted.with_name("spared")).split())
        except FileNotFoundError:
            return ()
        finally:
            self._is_reading = False

    def _name(self) -> str:
        self._is_reading = True
        try:
            return self._read(self._wanted).strip()
        except FileNotFoundError:
            return ""
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
    def met(*arguments: Any, **options: Any) -> Any:
        faults.meet(name)
        return call(*arguments, **options)

    return met


def install(directory: Path) -> None:
    """Replace the calls."""
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
