"""The remedy for a file that this process may not use: if possible the exact command, for this user and path.

    the owner is another user     `chown USER PATH`       an operator made or moved the file as root, mode 0600
    the owner is this user        `chmod 600 PATH`
    a directory above is closed   put the file into another directory: a new owner of the file would not help
    no right to make a new file   name another place: its directory belongs to another user, or is immutable
    its directory is missing      name another place, or make the directory
    a read-only file system       mount it for writing, or name another place
    a full file system            free some space
    a file system without locks   name another place, on a local disk

A text such as "give this user access" would not name the user and the command, and a service's user is seldom the
operator. The commands never make a secret readable for a group or for others, so they change the owner. The error keeps
the system's own text.
"""

import errno
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = "; free some space there"
_NO_LOCKS = "; name a place on a local disk: this file system does not lock files"
_BY_NUMBER = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), _NO_LOCKS),
    errno.EROFS: "; mount the file system for writing (after an error of the disk the system mounts it read-only:"
    " see its log), or name another place",
}


@contextmanager
def errors_with_path(path: Path) -> Iterator[None]:
    """Add the path to errors of writes, syncs and closes: the system does not name their file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def access_advice(path: Path, error: OSError) -> str:
    """Return the advice for an error text about a file, such as `; chown …`; empty if the module lists no remedy."""
    place = path.absolute()
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _refusal_advice(place)
    if error.errno == errno.ENOENT and not os.path.lexists(place.parent):
        return f"; the directory {place.parent} does not exist: name another place, or make the directory"
    return _BY_NUMBER.get(error.errno or 0, "")


def _refusal_advice(place: Path) -> str:
    user_id = os.geteuid()
    user = _name_of(user_id)
    existing = [each for each in place.parents if os.access(each, os.F_OK)]
    closed = next((each for each in reversed(existing) if not os.access(each, os.X_OK)), None)
    if closed is not None:
        return f"; the user {user} of this process may not enter {closed}: put the file into another directory"
    try:
        status = place.stat()
    except FileNotFoundError:
        return f"; the user {user} of this process may not make files in {existing[0]}: name another place"
    except OSError:
        return ""
    if status.st_uid != user_id:
        return f"; give it to the user of this process: `chown {user} {shlex.quote(str(place))}`"
    if not status.st_mode & stat.S_IRUSR:
        return f"; let its owner read it: `chmod 600 {shlex.quote(str(place))}`"
    return ""


def _name_of(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
