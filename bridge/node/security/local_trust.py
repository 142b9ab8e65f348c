"""Which users may touch a node's files: the state directory, the way to it, and the control socket's two ends.

    /  ─▶ home ─▶ user ─▶ .local ─▶ … ─▶ state directory     each step judged as the kernel walks it, links as well

A user that can write a directory can replace what lies in it, so a state directory of mode 0700 below a directory that
others can write is worth nothing. Each directory on the way belongs to this user or to root, and no other user can
write it; if it is sticky (as /tmp is), others may write it, and what lies in it belongs to this user or to root. Of the
state directory itself not even that is enough: no other user can write it.

Once that holds, no other user (root apart) can plant a link or a file inside, whatever names the node uses there.

A control socket is judged at both ends by the kernel's word on who is on the other side (SO_PEERCRED). Where a system
has no such word, the directory's and the socket's owner and mode decide alone.

A node that a package installed runs as a user of its own, and its operator is root. In that one directory, which only
root could have made, root trusts the directory's owner, as it does when it installs the package.
"""

import errno
import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import trio

ROOT: Final = 0
SYSTEM_STATE_DIRECTORY: Final = Path("/var/lib/garlicfarm")
"""Where the packages have their service keep its state."""
_LINKS_MAX: Final = 40
"""As many as Linux follows in one path."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_DIRECTORY: Final = 0o700
_ACCESS_LIST: Final = "system.posix_acl_access"
_CREDENTIALS: Final = struct.Struct("3i")
_NO_USER: Final = -1


class NotConnectedError(OSError):
    """The socket has no process on its other side: the listener's backlog is full, or the connection was never made."""


class UntrustedPathError(Exception):
    """Another user of this machine could change what lies at a path; the text says who, and how to mend it."""


def _is_private_group(path: Path, status: os.stat_result) -> bool:
    """Whether a directory's group is its owner's own group, with no other user in it (the default of many systems)."""
    with suppress(OSError, AttributeError):
        if _ACCESS_LIST in os.listxattr(path, follow_symlinks=False):
            return False  # The group's bits are then a mask, and say nothing of who may write.
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == status.st_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the operating system says; a test puts its own in place."""

    user_id: int
    status: Callable[[Path], os.stat_result] = os.lstat
    link: Callable[[Path], str] = os.readlink
    is_private_group: Callable[[Path, os.stat_result], bool] = _is_private_group


def system_facts() -> Facts:
    """The facts for the user of this process."""
    return Facts(os.geteuid())


def facts_about_node(path: Path, directory: Path = SYSTEM_STATE_DIRECTORY, facts: Facts | None = None) -> Facts:
    """The facts by which to judge the control socket at `path`: root asks the packages' service as its user would."""
    known = facts or system_facts()
    if known.user_id != ROOT or path.parent != directory:
        return known
    try:
        return replace(known, user_id=known.status(directory).st_uid)
    except OSError:
        return known


def check_state_directory(path: Path, facts: Facts | None = None) -> None:
    """Raise UntrustedPathError if another user could change what lies in `path`, or put another one in its place.

    What does not exist yet is left out: its parents are judged.
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
        raise UntrustedPathError(
            f"{path} can be written by other users (mode {_mode(status):04o}): its content may be forged. `chmod go-w"
            f" {path}`, check that nothing in it was changed, and try again"
        )


def make_state_directory(path: Path, facts: Facts | None = None) -> None:
    """Make `path` if it is missing, for its owner only, and check it; raises UntrustedPathError, and OSError."""
    check_state_directory(path, facts)
    path.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    # Again: another user may have been quicker than mkdir, in a directory where all may write.
    check_state_directory(path, facts)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == (facts or system_facts()).user_id and _mode(status) & 0o077:
            os.fchmod(descriptor, _PRIVATE_DIRECTORY)
    finally:
        os.close(descriptor)


def _walk(path: Path, facts: Facts) -> tuple[list[tuple[Path, os.stat_result]], bool]:
    """Every directory and link on the way to `path`, each behind the directory that holds it, and whether all exist."""
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
    """Whether another user could replace what lies inside of one directory on the way (None: nothing does yet)."""
    if stat.S_ISLNK(status.st_mode):
        return  # Judged by the directory that holds it, and by its owner there.
    _check_owner(path, step, status, facts)
    if not _written_by_others(step, status, facts):
        return
    if not status.st_mode & stat.S_ISVTX:
        raise UntrustedPathError(
            f"{path} lies below {step}, which other users can write (mode {_mode(status):04o}): they could replace it"
            f" with another directory. `chmod go-w {step}`, or choose another state directory"
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
    """Raise UntrustedPathError if another user made the socket at `path`, or could have put it there."""
    known = facts or system_facts()
    check_state_directory(path.parent, known)
    try:
        status = known.status(path)
    except OSError:
        return  # Whether a node is there is found out by connecting.
    if not stat.S_ISSOCK(status.st_mode):
        raise UntrustedPathError(f"{path} is not a socket: name a node's state directory, or its control socket itself")
    _check_owner(path, path, status, known)


def peer_user_id(connected: socket.socket | trio.socket.SocketType) -> int | None:
    """Who is on the other side of a connected Unix socket, by the kernel's word; None where it has none.

    Raises NotConnectedError. A non-blocking connect to a full backlog ends with EAGAIN, and the socket is then writable
    and without an error, which looks like a connection; but the kernel names no process on its other side.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user_id, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    if user_id == _NO_USER:
        raise NotConnectedError(errno.EAGAIN, "no process has taken the connection")
    return int(user_id)


def is_trusted_user(user_id: int | None, own_user_id: int | None = None) -> bool:
    """Whether that user is this one or root, or unknown to the system."""
    return user_id is None or user_id in {os.geteuid() if own_user_id is None else own_user_id, ROOT}


def check_node_user(path: Path, user_id: int | None, own_user_id: int | None = None) -> None:
    """Raise UntrustedPathError unless the process that answers at `path` is run by this user or by root."""
    if not is_trusted_user(user_id, own_user_id):
        raise UntrustedPathError(
            f"the process that answers at {path} is run by {_user(user_id or 0)}, neither this user nor root: it may"
            f" not be your node. Run this command as that user (`sudo -u '#{user_id}' garlicfarm …`), if it is"
        )


def default_state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where `run` keeps a node's state unless told otherwise."""
    base = environment.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "garlicfarm"
