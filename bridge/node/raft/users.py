"""Credentials of connections between servers: those of the farm key, or those in files.

    users_file     user:password               users that may connect here, instead of holders of the farm key
    logins_file    host:port user:password     credentials for the server at that address

The farm key's credentials belong to the cluster: every server sends and accepts the same. With files each server has
its own users, so a password from one server does not open another. A changed file is read again, so an operator can add
or remove users without a restart. If a file becomes unreadable, its previous content stays in force and an alarm is
set. Both files contain passwords: mode 0600; lines that begin with `#` are comments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from bridge.api.alarms import USERS
from bridge.node.events.alarms import Alarms
from bridge.node.security import key_files
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import KeyFileError, read_private_file
from consensus.protocols.garlic_farm import Credentials, GarlicFarmError

LOOK_EVERY_S = 5.0
FILE_LIMIT_BYTES = 256 * 1024
USERS_LIMIT = 1_024


class UsersError(Exception):
    """A file of users or a password file is unusable; the text contains the reason and the remedy."""


class Users:
    """The credentials of one node's servers. `files` is the result of `read_files` at the start."""

    def __init__(self, farm_keys: FarmKeys, files: "UserFiles") -> None:
        self._farm_keys = farm_keys
        self._files = files

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
        """Read changed files, until cancelled."""
        if self._files.paths == (None, None):
            return
        while True:
            await trio.sleep(LOOK_EVERY_S)
            await self.look(alarms)

    async def look(self, alarms: Alarms) -> None:
        """Read the files again; set or clear the alarm."""
        try:
            self._files = await trio.to_thread.run_sync(read_files, *self._files.paths)
        except UsersError as error:
            alarms.set(USERS, f"{error}; the content that was read before stays in use")
        else:
            alarms.clear(USERS)


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The accepted users, None for the farm key's users; and the credentials to send, by `host:port`."""

    users: Mapping[str, Credentials] | None
    logins: Mapping[str, Credentials]
    paths: tuple[Path | None, Path | None]
    """Paths of the files of users and of logins."""


def read_files(users_file: Path | None = None, logins_file: Path | None = None) -> UserFiles:
    """Read the given files; raise UsersError."""
    users = logins = None
    if users_file is not None:
        found = [_credentials(users_file, number, line) for number, line in _lines(users_file)]
        users = {each.user: each for each in found}
    if logins_file is not None:
        logins = {}
        for number, line in _lines(logins_file):
            address, _, pair = line.partition(" ")
            logins[address] = _credentials(logins_file, number, pair.strip())
    return UserFiles(users, logins or {}, (users_file, logins_file))


def _lines(path: Path) -> list[tuple[int, str]]:
    text = _ascii(path, lambda file: read_private_file(file, FILE_LIMIT_BYTES))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    kept = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if len(kept) > USERS_LIMIT:
        raise UsersError(f"{path} has {len(kept)} lines, at most {USERS_LIMIT} are read")
    return kept


def _credentials(path: Path, number: int, pair: str) -> Credentials:
    user, colon, password = pair.partition(":")
    try:
        if not (user and colon and password):
            raise UsersError(f"{path}, line {number}: expected user:password")
        return Credentials(user, password)
    except GarlicFarmError as error:
        raise UsersError(f"{path}, line {number}: {error}") from error


def read_password(path: Path) -> str:
    """Return the one line of a password file; raise UsersError."""
    return _ascii(path, key_files.read_password)


def _ascii(path: Path, read: Callable[[Path], str]) -> str:
    try:
        text = read(path)
    except KeyFileError as error:
        raise UsersError(str(error)) from error
    if not text.isascii():
        raise UsersError(f"{path} has characters outside ASCII, which Digest cannot encode")
    return text
