"""Credentials of connections between servers: from the farm key, or from files.

    users_file     user:password               users that may connect here, instead of holders of the farm key
    logins_file    host:port user:password     credentials for the server at that address

The farm key's credentials belong to the cluster: every server sends and accepts the same. With files, each server has
its own users, and their passwords need not be valid at other servers. A changed file is read again, so an operator can
add or remove users without a restart. If a file becomes unreadable, its previous content stays in force and an alarm is
set. Both files contain passwords: mode 0600; lines that begin with `#` are comments.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from bridge.api.alarms import USERS
from bridge.node.events.alarms import Alarms
from bridge.node.security import key_files
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import KeyFileError
from bridge.node.security.listed_file import ListedFile, read_lines
from consensus.protocols.garlic_farm import Credentials, GarlicFarmError

FILE_LIMIT_BYTES = 256 * 1024


class Users(ListedFile["UserFiles"]):
    """The credentials of one node's servers. `files` is the result of `read_files` at the start."""

    def __init__(self, farm_keys: FarmKeys, files: "UserFiles") -> None:
        paths = (each for each in files.paths if each is not None)
        super().__init__(partial(read_files, *files.paths), paths, USERS, "users and logins")
        self._farm_keys = farm_keys
        self._take(files)

    def credentials(self) -> tuple[Credentials, ...]:
        """Return the credentials for any other server of the farm."""
        return self._farm_keys.credentials()

    def login(self, address: str) -> Credentials | None:
        """Return the credentials that replace the farm's for the server at `host:port`; None without such a line."""
        return self._files.logins.get(address)

    def password_of(self, user: str) -> str | None:
        """Return the password that a user must prove; None for an unknown user."""
        if self._files.users is None:
            return self._farm_keys.password_of(user)
        known = self._files.users.get(user)
        return None if known is None else known.password

    async def watch(self, alarms: Alarms) -> None:
        """Read changed files, until canceled."""
        if self._files.paths != (None, None):
            await super().watch(alarms)

    def _take(self, content: "UserFiles") -> None:
        self._files = content


class UserFiles(Struct, frozen=True):
    """The accepted users, None for the farm key's users; and the credentials to send, by `host:port`."""

    users: Mapping[str, Credentials] | None
    logins: Mapping[str, Credentials]
    paths: tuple[Path | None, Path | None]
    """Paths of the files of users and of logins."""


def read_files(users_file: Path | None = None, logins_file: Path | None = None) -> UserFiles:
    """Read the given files; raise KeyFileError."""
    users = logins = None
    if users_file is not None:
        found = [_credentials(place, line) for place, line in read_lines(users_file, FILE_LIMIT_BYTES, "users")]
        users = {each.user: each for each in found}
    if logins_file is not None:
        logins = {}
        for place, line in read_lines(logins_file, FILE_LIMIT_BYTES, "logins"):
            address, _, pair = line.strip().partition(" ")
            if not address.isascii():
                raise KeyFileError(f"{place}: {address!r} has characters outside ASCII, which no address has")
            logins[address] = _credentials(place, pair)
    return UserFiles(users, logins or {}, (users_file, logins_file))


def _credentials(place: str, pair: str) -> Credentials:
    user, colon, password = pair.strip().partition(":")
    try:
        if not (user and colon and password):
            raise KeyFileError(f"{place}: expected user:password")
        return Credentials(user, password)
    except GarlicFarmError as error:
        raise KeyFileError(f"{place}: {error}") from error


def read_password(path: Path) -> str:
    """Return the one line of a password file; raise KeyFileError."""
    text = key_files.read_password(path)
    if not text.isascii():
        raise KeyFileError(f"{path} has characters outside ASCII, which Digest cannot encode")
    return text
