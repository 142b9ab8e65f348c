"""This machine as `router detect` reads it: files with a limit, processes of routers, listening ports.

    read ──▶ the content, or None: the file does not exist, or `unread` has the reason ("permission denied", …)

Each file outside of `/proc/PID` is opened without blocking and must be a regular file. Some paths come from the command
line of another user's process, which could name a pipe or a device. Only processes of this user, root, system users and
the user of `sudo` count: another user must not offer a false router. A router in another network or mount namespace is
ignored. A router counts if this user may not see its namespaces.
"""

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from bridge.node.security.local_trust import account_home, home_variable
from bridge.wire.routers.process_files import (
    Listener,
    RouterCommand,
    read_command_line,
    read_listeners,
    read_service_unit,
)
from bridge.wire.routers.text_file import FILE_LIMIT_BYTES, RouterFileError

SYSTEM_USERS: Final = 1_000
"""User ids below it belong to services, not to people."""
NAMES_MAX: Final = 256
_PORTS_LIMIT_BYTES: Final = 8 * 1024 * 1024
Content = TypeVar("Content")
_NAMESPACES: Final = ("net", "mnt")
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with listening ports, never bound


class Unread(Struct, frozen=True):
    """A path that was not read, the reason, and a command that corrects the problem, if one is known."""

    path: Path
    reason: str
    action: str = ""


class RouterProcess(Struct, frozen=True):
    """A running router."""

    pid: int
    user_id: int
    command: RouterCommand
    unit: str | None
    """The unit of systemd that runs it."""
    directory: Path | None
    """Working directory of the process, if this user may see it."""
    group_id: int

    @property
    def restart(self) -> str:
        """Instruction for the operator to restart it."""
        return f"run `sudo systemctl restart {self.unit}`" if self.unit else f"restart the router (process {self.pid})"


def _sudo_user() -> int | None:
    text = os.environ.get("SUDO_UID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(1 << 32)) else None


@dataclass
class MachineFiles:
    """The files and processes below `root`; tests give another root. `unread` has the paths that were not read."""

    root: Path = Path("/")
    user_id: int = field(default_factory=os.geteuid)
    sudo_user_id: int | None = field(default_factory=_sudo_user)
    home_of: Callable[[int], Path | None] = account_home
    home_variable: Path | None = field(default_factory=home_variable)
    """$HOME, which i2pd uses instead of the account's home."""
    unread: dict[Path, Unread] = field(default_factory=dict)

    def real(self, path: Path) -> Path:
        """Return a path of this machine as a path below `root`."""
        return self.root / path.relative_to("/") if path.is_absolute() else self.root / path

    @property
    def homes(self) -> tuple[Path, ...]:
        """The home directories of this user, $HOME included, and of the user of `sudo`."""
        sudo_home = None if self.sudo_user_id is None else self.home_of(self.sudo_user_id)
        found = dict.fromkeys((self.home_of(self.user_id), self.home_variable, sudo_home))
        return tuple(each for each in found if each is not None)

    def read(self, path: Path, limit_bytes: int = FILE_LIMIT_BYTES) -> bytes | None:
        """Return the content of a file; None if it does not exist, or was noted in `unread`."""
        content = self.read_head(path, limit_bytes + 1)
        if content is not None and len(content) > limit_bytes:
            self.unread[path] = Unread(path, f"it has more than {limit_bytes} bytes")
            return None
        return content

    def decoded(self, path: Path, decode: Callable[[bytes], Content]) -> Content | None:
        """Return the decoded content of a router's file; None if it does not exist, or was noted in `unread`."""
        content = self.read(path)
        try:
            return None if content is None else decode(content)
        except RouterFileError as error:
            self.unread[path] = Unread(path, str(error))
            return None

    def read_head(self, path: Path, size: int) -> bytes | None:
        """Read only the first bytes of a file; return None if it does not exist, or was noted in `unread`."""
        try:
            descriptor = os.open(self.real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._note(path, error)
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.unread[path] = Unread(path, "it is not a file")
                return None
            return b"".join(_parts(descriptor, size))
        except OSError as error:
            self._note(path, error)
            return None
        finally:
            os.close(descriptor)

    def names(self, directory: Path, suffix: str) -> list[Path]:
        """Return the sorted paths of the files of a directory with this suffix, at most `NAMES_MAX`."""
        try:
            found = sorted(each.name for each in self.real(directory).iterdir() if each.name.endswith(suffix))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._note(directory, error)
            return []
        return [directory / each for each in found[:NAMES_MAX]]

    def exists(self, path: Path) -> bool:
        """Return True if there is such a file or directory; note a directory that this user may not enter."""
        try:
            self.real(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._note(path, error)
            return False
        return True

    def _note(self, path: Path, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        action = self._action(path) if isinstance(error, PermissionError) else ""
        self.unread[path] = Unread(path, reason, action)

    def _action(self, path: Path) -> str:
        """Return the advice to use `sudo`, or to join the group of the directory or file if that group may read it."""
        as_root = "run this command with `sudo`"
        for each in reversed((path, *path.parents)):
            try:
                status = self.real(each).stat()
            except OSError:
                return as_root
            needed = stat.S_IRGRP | (stat.S_IXGRP if stat.S_ISDIR(status.st_mode) else 0)
            group = _group_name(status.st_gid)
            if not os.access(self.real(each), os.R_OK) and status.st_mode & needed == needed and group is not None:
                user = shlex.quote(_user_name(self.user_id))
                return f"{as_root}; or let {user} read it: `sudo usermod -aG {group} {user}`, and log in again"
        return as_root

    @cached_property
    def listeners(self) -> tuple[Listener, ...]:
        """The listening TCP ports of this machine."""
        tables = (self.read(Path("/proc/net") / each, _PORTS_LIMIT_BYTES) for each in ("tcp", "tcp6"))
        return tuple(each for table in tables if table is not None for each in read_listeners(table))

    def listens(self, host: str, port: int, user_id: int | None = None) -> bool:
        """Return True if a process listens at this address. With `user_id`, only processes of this user count."""
        return any(
            each.port == port and each.host in {host, *_ANY} and user_id in {None, each.user_id}
            for each in self.listeners
        )

    @cached_property
    def processes(self) -> tuple[RouterProcess, ...]:
        """The processes of I2P routers, sorted by their ids."""
        try:
            numbers = sorted(int(each.name) for each in self.real(Path("/proc")).iterdir() if each.name.isdecimal())
        except OSError:
            return ()
        return tuple(found for each in numbers if (found := self._process(each)) is not None)

    def _process(self, pid: int) -> RouterProcess | None:
        place = Path("/proc") / str(pid)
        real = self.real(place)
        try:
            status = real.stat()
            command = read_command_line(_head(real / "cmdline"))
            unit = read_service_unit(_head(real / "cgroup")) if command is not None else None
        except (OSError, RouterFileError):
            return None  # It has ended, or belongs to a user who hides it.
        if command is None or not all(self._is_shared(real, each) for each in _NAMESPACES):
            return None
        user_id = status.st_uid
        if user_id >= SYSTEM_USERS and user_id not in {self.user_id, self.sudo_user_id}:
            user = _user_name(user_id)
            reason = f"a router ({command.software}) of {user}, another user, so it is not considered"
            self.unread[place] = Unread(place, reason, f"for this router run the command as {user}")
            return None
        return RouterProcess(pid, user_id, command, unit, _link(real / "cwd"), status.st_gid)

    def _is_shared(self, process: Path, namespace: str) -> bool:
        """Return True if a process shares a namespace with this one, or if this user may not see it."""
        own = _link(self.real(Path("/proc/self/ns")) / namespace)
        other = _link(process / "ns" / namespace)
        return None in {own, other} or own == other


def _parts(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the next bytes of a file, at most `size`: a file of /proc gives a page at each read."""
    left = size
    while left > 0 and (part := os.read(descriptor, left)):
        left -= len(part)
        yield part


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_LIMIT_BYTES)


def _link(path: Path) -> Path | None:
    try:
        return path.readlink()
    except OSError:
        return None


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"


def _group_name(group_id: int) -> str | None:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return None
