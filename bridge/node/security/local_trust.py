"""Checks that no other user can change a node's state directory or its path, or run an end of its control socket.

    /  ─▶ home ─▶ user ─▶ .local ─▶ … ─▶ state directory     each step checked as the kernel walks it, including links

A user with write access to a directory can replace its content. So a state directory of mode 0700 is unsafe below a
directory that others can write. Each directory on the path must belong to this user or to root, and no other user may
have write access. In a sticky directory (such as /tmp), others may write if the next step of the path belongs to this
user or root. The state directory itself must not be writable by others at all.

If this holds, no other user (except root) can place a link or a file inside, regardless of the file names in use.

A control socket is checked at both ends by the kernel's record of the peer's user (SO_PEERCRED). On a system without
SO_PEERCRED, only the owner of the socket and its directory are checked.

A node from a package runs as its own user, and its operator is root. Only root can make the directory of this node, so
root trusts the owner of that directory.
"""

import errno
import grp
import os
import pwd
import shlex
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

ROOT: Final = 0
SYSTEM_STATE_DIRECTORY: Final = Path("/var/lib/garlicfarm")
"""The directory for the state of the packages' service."""
_LINKS_MAX: Final = 40
"""The limit of Linux for links in one path."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_DIRECTORY: Final = 0o700
_ACCESS_LIST: Final = "system.posix_acl_access"
_CREDENTIALS: Final = struct.Struct("3i")
_NO_USER: Final = -1


class ConnectedSocket(Protocol):
    """A socket of the standard library or of trio."""

    def getsockopt(self, level: int, optname: int, buflen: int) -> bytes:
        """Return an option as bytes."""


class NotConnectedError(OSError):
    """The socket does not have a peer process: the listener's backlog is full, or it was never connected."""


class UntrustedPathError(Exception):
    """Another user of this machine could change the content of a path; the text names the user and the remedy."""


@contextmanager
def acting_as_owner(path: Path) -> Iterator[None]:
    """Act as the owner and group of a path, and as root again afterwards."""
    owner, user_id, group_id = path.stat(), os.geteuid(), os.getegid()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(user_id)
        os.setegid(group_id)


def _is_private_group(path: Path, status: os.stat_result) -> bool:
    """Return True if the directory's group contains only the directory's owner (the default of many systems)."""
    with suppress(OSError, AttributeError):
        if _ACCESS_LIST in os.listxattr(path, follow_symlinks=False):
            return False  # With an access list the mode's group bits are a mask, and do not show who may write.
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == status.st_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


class Facts(Struct, frozen=True):
    """The facts of the operating system; tests replace them."""

    user_id: int
    status: Callable[[Path], os.stat_result] = os.lstat
    link: Callable[[Path], str] = os.readlink
    is_private_group: Callable[[Path, os.stat_result], bool] = _is_private_group


def system_facts() -> Facts:
    """Return the facts for the user of this process."""
    return Facts(os.geteuid())


def facts_about_node(path: Path, directory: Path = SYSTEM_STATE_DIRECTORY, facts: Facts | None = None) -> Facts:
    """Return the facts for checking the control socket at `path`: root acts as the user of the packages' service."""
    known = facts or system_facts()
    if known.user_id != ROOT or path.parent != directory:
        return known
    try:
        return replace(known, user_id=known.status(directory).st_uid)
    except OSError:
        return known


def check_state_directory(path: Path, facts: Facts | None = None) -> None:
    """Raise UntrustedPathError if another user could change the content of `path`, or replace it.

    If `path` does not exist yet, only its existing parents are checked.
    """
    known = facts or system_facts()
    steps, whole = _walk(path.absolute(), known)
    for (step, status), (_, inside) in pairwise(steps):
        _check_parent(path, step, status, inside, known)
    step, status = steps[-1]
    if not whole:
        _check_parent(path, step, status, None, known)
        return
    _check_owner(path, step, status, known)
    if _written_by_others(step, status, known):
        remedy = f"`chmod go-w {shlex.quote(str(path))}`, check that nothing in it was changed, and try again"
        if status.st_mode & stat.S_ISVTX:
            # Other programs use such a directory, so its mode must stay.
            remedy = "Name another directory, which only its owner can write"
        raise UntrustedPathError(
            f"{path} can be written by other users (mode {_mode(status):04o}): its content may be forged. {remedy}"
        )


def make_state_directory(path: Path, facts: Facts | None = None) -> None:
    """Make `path` if it is missing, for its owner only, and check it; raise UntrustedPathError or OSError."""
    check_state_directory(path, facts)
    path.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    # Checked again: in a directory that all users may write, another user may have made it before mkdir.
    check_state_directory(path, facts)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == (facts or system_facts()).user_id and _mode(status) & 0o077:
            os.fchmod(descriptor, _PRIVATE_DIRECTORY)
    finally:
        os.close(descriptor)


def _walk(path: Path, facts: Facts) -> tuple[list[tuple[Path, os.stat_result]], bool]:
    """Return every directory and link on the path, each after its parent directory, and True if all exist."""
    at = Path("/")
    steps, waiting, links = [(at, facts.status(at))], list(reversed(path.parts[1:])), 0
    while waiting:
        name = waiting.pop()
        found = at.parent if name == ".." else at / name
        try:
            status = facts.status(found)
        except (FileNotFoundError, NotADirectoryError):
            return steps, False
        except OSError as error:
            raise UntrustedPathError(f"the status of {found} cannot be read: {error.strerror or error}") from error
        steps.append((found, status))
        if not stat.S_ISLNK(status.st_mode):
            at = found
            continue
        links += 1
        if links > _LINKS_MAX:
            raise UntrustedPathError(f"{path} leads through more than {_LINKS_MAX} links: name the directory itself")
        target = Path(facts.link(found))
        if target.is_absolute():
            at = Path("/")
        steps.append((at, facts.status(at)))
        waiting.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return steps, True


def _check_parent(path: Path, step: Path, status: os.stat_result, inside: os.stat_result | None, facts: Facts) -> None:
    """Check that no other user can replace the next step of the path, `inside`, in a directory (None: missing)."""
    if stat.S_ISLNK(status.st_mode):
        return  # A link is checked through its parent directory and its owner.
    _check_owner(path, step, status, facts)
    if not _written_by_others(step, status, facts):
        return
    if not status.st_mode & stat.S_ISVTX:
        raise UntrustedPathError(
            f"{path} lies below {step}, which other users can write (mode {_mode(status):04o}): they could replace it"
            f" with another directory. `chmod go-w {shlex.quote(str(step))}`, or choose another state directory"
        )
    if inside is not None and inside.st_uid not in {facts.user_id, ROOT}:
        raise UntrustedPathError(
            f"{path} leads through a file of {_user(inside.st_uid)} in {step}, a directory that all users may write:"
            " choose another state directory"
        )


def _check_owner(path: Path, step: Path, status: os.stat_result, facts: Facts) -> None:
    if status.st_uid in {facts.user_id, ROOT}:
        return
    where = str(path) if step == path else f"{path} lies below {step}, which"
    raise UntrustedPathError(
        f"{where} belongs to {_user(status.st_uid)}, but this command runs as {_user(facts.user_id)}: run it as the"
        f" owner (`sudo -u '#{status.st_uid}' garlicfarm …`), or choose another state directory"
    )


def _written_by_others(step: Path, status: os.stat_result, facts: Facts) -> bool:
    mode = _mode(status)
    if not mode & _OTHERS_WRITE:
        return False
    return bool(mode & stat.S_IWOTH) or not facts.is_private_group(step, status)


def _mode(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode)


def _user(user_id: int) -> str:
    try:
        return f"user {pwd.getpwuid(user_id).pw_name} (id {user_id})"
    except KeyError:
        return f"user id {user_id}"


def check_control_socket(path: Path, facts: Facts | None = None) -> None:
    """Raise UntrustedPathError if another user made the socket at `path`, or could have placed it there."""
    known = facts or system_facts()
    check_state_directory(path.parent, known)
    try:
        status = known.status(path)
    except OSError:
        return  # A missing socket is not an error here: the attempt to connect shows if a node is there.
    if not stat.S_ISSOCK(status.st_mode):
        raise UntrustedPathError(f"{path} is not a socket: name a node's state directory, or its control socket itself")
    _check_owner(path, path, status, known)


def peer_user_id(connected: ConnectedSocket) -> int | None:
    """Return the user of the peer of a connected Unix socket, from the kernel; None on systems without it.

    Raise NotConnectedError if the kernel does not report a peer process. After a non-blocking connect to a full
    backlog, which ends with EAGAIN, the socket is writable as if it was connected.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user_id, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    if user_id == _NO_USER:
        raise NotConnectedError(errno.EAGAIN, "no process has taken the connection")
    return int(user_id)


def is_trusted_user(user_id: int | None, own_user_id: int | None = None) -> bool:
    """Return True for this user, for root, and if the system does not report the user."""
    return user_id is None or user_id in {os.geteuid() if own_user_id is None else own_user_id, ROOT}


def check_node_user(path: Path, user_id: int | None, own_user_id: int | None = None) -> None:
    """Raise UntrustedPathError unless this user or root runs the process that listens at `path`."""
    if not is_trusted_user(user_id, own_user_id):
        raise UntrustedPathError(
            f"the process that answers at {path} is run by {_user(user_id or 0)}, neither this user nor root: it may"
            f" not be your node. Run this command as that user (`sudo -u '#{user_id}' garlicfarm …`), if it is"
        )


def default_state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default directory of `run` for a node's state."""
    return user_directory("XDG_STATE_HOME", ".local/state", environment)


def user_directory(variable: str, below_home: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return `garlicfarm` in the directory of a variable of the XDG specification, or else below the user's home.

    A relative path does not count: it would name another directory in each working directory.
    """
    base = Path(environment.get(variable, ""))
    if not base.is_absolute():
        base = (home_variable() or account_home(os.getuid()) or Path("/")) / below_home
    return base / "garlicfarm"


def with_home(text: str) -> Path:
    """Return a path with `~` or `~NAME` at its beginning replaced by a home. Raise ValueError if it is unknown."""
    path = Path(text)
    if not text.startswith("~"):
        return path
    first, *below = path.parts
    home = (home_variable() or account_home(os.getuid())) if first == "~" else account_home(first[1:])
    if home is not None:
        return home.joinpath(*below)
    raise ValueError(f"the home of {first} is unknown: write the whole path instead of {text}")


def home_variable() -> Path | None:
    """Return $HOME, which may differ from the account's home; None unless it is absolute."""
    home = Path(os.environ.get("HOME", ""))
    return home if home.is_absolute() else None


def account_home(user: int | str) -> Path | None:
    """Return the home directory of the account of a user, by id or name; None without an account."""
    try:
        return Path((pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)).pw_dir)
    except KeyError:
        return None
