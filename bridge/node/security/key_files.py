"""Key files on disk: written with mode 0600, and read only if no other user can read them.

A key that others on the machine can read is not secret, and an operator does not notice. So the reading of such a key
fails with a command as remedy. A new file has its mode from the start, because others could read the file before a
later chmod. It gets its name only after it is synced. Only a farm key file can be replaced (`replace_farm_key`): an
overwritten master key means a lost farm.
"""

import errno
import os
import shlex
import stat
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import time_ns
from typing import Final, Generic, TypeVar

from bridge.wire.i2p.destination_keys import (
    DestinationKeyError,
    MasterKey,
    SigningKey,
    master_key_text,
    parse_master_key,
    parse_signing_key,
    signing_key_text,
)
from bridge.wire.i2p.key_file import FILE_LIMIT_BYTES, parse_i2p_key_file
from bridge.wire.keys.client_key import (
    ClientKeyFile,
    client_key_text,
    parse_client_key,
    parse_public_client_key,
    public_client_key_text,
)
from bridge.wire.keys.curve_key import CurveKey, curve_key_text, parse_curve_key
from bridge.wire.keys.farm_key import FarmKey, FarmKeyError, farm_key_text, parse_farm_key
from bridge.wire.keys.text import KeyTextError
from consensus.storage import access_advice, open_aside, replace_file, sync_directory

Key = TypeVar("Key")
Content = TypeVar("Content")
Stamp = tuple[int, int, int, int, int] | None
"""Inode, size and times of a file, and for a new file the time of the check in ns, else 0; None if inaccessible."""
_NEW_NS: Final = 2_100_000_000
"""Nanoseconds until a changed file is no longer new: more than one tick of a file system's clock (FAT: 2 s)."""
_OWNER_ONLY: Final = 0o600
_WITHOUT_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links, as on most memory sticks."""
_PUBLIC: Final = 0o644
_SIZE_LIMIT_BYTES: Final = 65_536
PASSWORD_LIMIT_BYTES: Final = 255
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KeyFileError(Exception):
    """A key file cannot be read or written; the message contains the file, the reason and the remedy."""


class KeyAccessError(KeyFileError):
    """The system, or the owner or mode of the file, does not permit its use, regardless of its content."""


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of a file. After a change of the file, the stamp differs.

    Two changes within one tick of the file system's clock can leave the same size and times. So each stamp of a new
    file differs from all others, and the next check reads the file again.
    """
    # The clock is read first: a later change has a later time.
    now_ns = time_ns()
    try:
        status = path.stat()
    except OSError:
        return None
    is_new = any(abs(now_ns - changed_ns) < _NEW_NS for changed_ns in (status.st_mtime_ns, status.st_ctime_ns))
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, now_ns if is_new else 0


class ChangedFiles(Generic[Content]):
    """The content of files. They are read again only if one has changed since the last successful reading."""

    def __init__(self, read: Callable[[], Content], *paths: Path) -> None:
        self._read = read
        self._paths = paths
        self._last: tuple[tuple[Stamp, ...], Content] | None = None

    def read(self) -> Content:
        """Return the content. Raise the errors of the reader; the next call reads again."""
        # The stamps are taken before the reading, so that the next call detects a change during the reading.
        stamps, last = tuple(map(stamp_of, self._paths)), self._last
        if last is None or last[0] != stamps:
            self._last = last = stamps, self._read()
        return last[1]


def write_private_file(path: Path, text: str) -> None:
    """Create `path`, readable by its owner only, with `text` durable in it. A kill never leaves a part of the file."""
    try:
        # It has mode 0600 from the start: the umask can only remove bits.
        descriptor, aside = open_aside(path)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                # Some file systems add bits.
                os.fchmod(file.fileno(), _OWNER_ONLY)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                _name_new(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(path.parent)
    except FileExistsError:
        raise KeyFileError(
            f"{path} exists already and is not overwritten: move it away, or choose another name"
        ) from None
    except OSError as error:
        advice = access_advice(path, error)
        raise KeyFileError(f"{path} cannot be written: {error.strerror or error}{advice}") from None


def _name_new(aside: Path, path: Path) -> None:
    """Give a file its name; raise FileExistsError if there is a file or a link with this name."""
    try:
        os.link(aside, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        aside.rename(path)


def read_private_file(path: Path, limit_bytes: int = _SIZE_LIMIT_BYTES) -> str:
    """Read a file that belongs to this user or to root and that no other user can read."""
    try:
        # Checked by descriptor, so that the checked file is the read file; a pipe must not block the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise KeyFileError(f"{path} does not exist: copy the file there, or name another place") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise KeyFileError(f"{path} is a link, and links are not followed: name the file itself") from None
        raise KeyAccessError(f"{path} cannot be read: {error.strerror or error}{access_advice(path, error)}") from None
    try:
        _check_private(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
    if len(content) > limit_bytes:
        raise KeyFileError(f"{path} has more than {limit_bytes} bytes: is it the right file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is not a text file: is it the right file?") from None


def read_password(path: Path) -> str:
    """Return the one line of a password file."""
    password = read_private_file(path).removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password or len(password.encode()) > PASSWORD_LIMIT_BYTES:
        raise KeyFileError(f"{path}: one line with the password is needed, of at most {PASSWORD_LIMIT_BYTES} bytes")
    return password


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path} is not a file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS:
        advice = f"if it is the right file, `chmod 600 {shlex.quote(str(path))}` and try again"
        raise KeyAccessError(f"{path} can be read by others (mode {mode:04o}); {advice}")
    if status.st_uid not in {os.geteuid(), 0}:
        raise KeyAccessError(
            f"{path} belongs to user id {status.st_uid}, not to this one: run the command as that user (`sudo -u"
            f" '#{status.st_uid}' garlicfarm …`), or `chown {os.geteuid()} {shlex.quote(str(path))}`, then try again"
        )


def _loaded(path: Path, parse: Callable[[str], Key]) -> Key:
    try:
        return parse(read_private_file(path))
    except (FarmKeyError, KeyTextError, DestinationKeyError) as error:
        raise KeyFileError(f"{path}: {error}") from None


def save_farm_key(path: Path, farm_key: FarmKey) -> None:
    """Write a new farm key file."""
    write_private_file(path, farm_key_text(farm_key))


def replace_farm_key(
    path: Path, farm_key: FarmKey, *, earlier: bool = False, reader: AbstractContextManager[None] | None = None
) -> None:
    """Replace a farm key file of the same farm; with `earlier`, replace also a file with a later epoch.

    `reader` changes the user for the reading. The file keeps its owner, so that the node's user can still read it.
    """
    with reader or nullcontext():
        older = load_farm_key(path)
    if older.label != farm_key.label:
        raise KeyFileError(
            f"{path} is the key file of farm {older.label.hex()}, not of {farm_key.label.hex()}, and is not "
            "overwritten: choose another name"
        )
    if older.age > farm_key.age and not earlier:
        raise KeyFileError(
            f"{path} has epoch {older.epoch}, later than epoch {farm_key.epoch} of this node's ring, and is not"
            " overwritten: restart the node with that file, and it sends the keys to the other nodes"
        )
    try:
        status = path.stat()
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        replace_file(path, farm_key_text(farm_key).encode(), owner=owner)
    except OSError as error:
        raise KeyFileError(
            f"{path} cannot be written, and stays as it was: {error.strerror or error}{access_advice(path, error)}"
        ) from None


def load_farm_key(path: Path) -> FarmKey:
    """Read a farm key file."""
    return _loaded(path, parse_farm_key)


def save_client_key(path: Path, client: ClientKeyFile) -> None:
    """Write a new client key file, and its public half next to it."""
    public = public_path_of(path)
    if public.exists():
        raise KeyFileError(f"{public} exists already and is not overwritten: move it away, or choose another name")
    write_private_file(path, client_key_text(client))
    write_private_file(public, public_client_key_text(client))
    public.chmod(_PUBLIC)


def public_path_of(path: Path) -> Path:
    """Return the path of the public half of a client key."""
    return path.with_name(f"{path.name}.pub")


def load_public_client_key(path: Path) -> tuple[str, str]:
    """Read the name and the public key in a `.pub` file, or in a client key file."""
    try:
        text = path.read_text(encoding="utf-8")
        if "private_key" not in text:
            return parse_public_client_key(text)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror or error}{access_advice(path, error)}") from None
    except (UnicodeDecodeError, KeyTextError) as error:
        raise KeyFileError(f"{path}: {error}") from None
    client = load_client_key(path)
    return client.name, client.public_key


def load_client_key(path: Path) -> ClientKeyFile:
    """Read a client key file."""
    return _loaded(path, parse_client_key)


def save_curve_key(path: Path, key: CurveKey) -> None:
    """Write a new file with a CURVE key of ØMQ."""
    write_private_file(path, curve_key_text(key))


def load_curve_key(path: Path) -> CurveKey:
    """Read the file of a CURVE key."""
    return _loaded(path, parse_curve_key)


def save_master_key(path: Path, key: MasterKey) -> None:
    """Write a new master key file."""
    write_private_file(path, master_key_text(key))


def load_master_key(path: Path) -> MasterKey:
    """Read a master key file."""
    return _loaded(path, parse_master_key)


def load_i2p_key_file(path: Path) -> MasterKey:
    """Read a destination's key from a router's own key file; the router is responsible for its mode."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        return parse_i2p_key_file(content)
    except DestinationKeyError as error:
        raise KeyFileError(f"{path}: {error}") from None


def save_signing_key(path: Path, key: SigningKey, *, again: bool = False) -> None:
    """Write a node's signing key file; with `again`, an existing file with the same key is accepted."""
    text = signing_key_text(key)
    if not (again and os.path.lexists(path) and read_private_file(path) == text):
        write_private_file(path, text)


def save_signing_keys(keys: Mapping[Path, SigningKey]) -> None:
    """Write the signing key files of several nodes. If one cannot be written, remove the others."""
    made: list[Path] = []
    try:
        for path, key in keys.items():
            save_signing_key(path, key)
            made.append(path)
    except KeyFileError as error:
        # Removed: the keys are not in use yet, and the existing files would block a second attempt.
        for path in made:
            path.unlink(missing_ok=True)
        raise KeyFileError(f"{error}; no key was made") from None


def load_signing_key(path: Path) -> SigningKey:
    """Read a node's signing key file, or a master key file used as one."""
    return _loaded(path, parse_signing_key)
