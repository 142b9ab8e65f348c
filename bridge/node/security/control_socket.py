"""The Unix socket of a control endpoint: only its owner can open it, and only a stale one is removed.

    bind     umask 0177 during bind, so that the socket is never open to others, not even for a moment
    stale    a socket without a listener remains from a killed process and is removed; a socket in use is kept
    close    the file is removed only if it is still this process's (another one may have replaced it)

A socket's address holds about 100 bytes; a state directory's path may be longer. If `/proc` exists, the directory is
opened and the socket is addressed through its descriptor. Elsewhere a long path is refused with a remedy.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET_NAME = "control.sock"
ADDRESS_LIMIT_BYTES = 100
PROBE_TIMEOUT_S = 1.0
BACKLOG = 32


class ControlSocketError(OSError):
    """The control socket cannot be made or reached; the text contains the reason and the remedy."""


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address of `path` that is short enough for a Unix socket."""
    if len(os.fsencode(path)) <= ADDRESS_LIMIT_BYTES:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir() or len(os.fsencode(path.name)) > ADDRESS_LIMIT_BYTES // 2:
        raise ControlSocketError(f"the path of the control socket is too long: {path}; use a shorter state directory")
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def answers(path: Path) -> bool:
    """Return True if a process listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except TimeoutError:
            return True
        except OSError as error:
            return error.errno == errno.EAGAIN  # its backlog is full, so a process listens
    return True


def listen(
    path: Path, in_use: str = "a node already runs with this state directory"
) -> tuple[socket.socket, tuple[int, int] | None]:
    """Return a listening socket at `path`, mode 0600, and its file's identity; `in_use` is the reason of a refusal."""
    _clear_stale(path, in_use)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        with socket_address(path) as address:
            listening.bind(address)
    except OSError as error:
        listening.close()
        raise ControlSocketError(f"cannot make the control socket {path}: {error.strerror or error}") from error
    finally:
        os.umask(previous)
    listening.listen(BACKLOG)
    return listening, identity(path)


def _clear_stale(path: Path, in_use: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ControlSocketError(f"cannot read the status of {path}: {error.strerror or error}") from error
    if not stat.S_ISSOCK(mode):
        raise ControlSocketError(f"{path} exists and is not a socket: move it, then start again")
    if answers(path):
        raise ControlSocketError(f"{in_use}: {path} answers")
    path.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at `path`; None without one."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def remove_if_ours(path: Path, socket_id: tuple[int, int] | None) -> None:
    """Remove the socket unless another process has replaced it."""
    if socket_id is not None and identity(path) == socket_id:
        with suppress(OSError):
            path.unlink()
