"""Who may connect to this server, and what this node shows to others: the farm key's credentials, or files.

    users_file     user:password               which users may connect here, instead of holders of the farm key
    logins_file    host:port user:password     what the server at that address wants to see

The farm key's credentials are the cluster's: every server shows and accepts the same. With files each server has its
own users, so a password taken from one server opens only what it was made for. A file is read when it has changed, so
a user is added or refused without a restart; one that cannot be read any more leaves what was read before in force,
with an alarm. Both hold passwords: mode 0600, lines beginning with `#` are comments.
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
    """A file of users or a password file cannot be used; the text says why and what to do."""


class Users:
    """The credentials of one node's servers. `files` is what `read_files` found at the start."""

    def __init__(self, farm_keys: FarmKeys, files: "UserFiles") -> None:
        self._farm_keys = farm_keys
        self._files = files

    def credentials(self) -> tuple[Credentials, ...]:
        """What any other server of the farm is shown."""
        return self._farm_keys.credentials()

    def login(self, address: str) -> Credentials | None:
        """What the server at `host:port` is shown instead."""
        return self._files.logins.get(address)

    def password_of(self, user: str) -> str | None:
        """What a user must prove to know; None for a stranger."""
        if self._files.users is None:
            return self._farm_keys.password_of(user)
        known = self._files.users.get(user)
        return None if known is None else known.password

    async def watch(self, alarms: Alarms) -> None:
        """Take over changed files, until cancelled."""
        if self._files.paths == (None, None):
            return
        while True:
            await trio.sleep(LOOK_EVERY_S)
            await self.look(alarms)

    async def look(self, alarms: Alarms) -> None:
        """Read the files again."""
        try:
            self._files = await trio.to_thread.run_sync(read_files, *self._files.paths)
        except UsersError as error:
            alarms.set(USERS, f"{error}; the content that was read before stays in use")
        else:
            alarms.clear(USERS)


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The users that are accepted, None where the farm key's are; and what is shown, by `host:port`."""

    users: Mapping[str, Credentials] | None
    logins: Mapping[str, Credentials]
    paths: tuple[Path | None, Path | None]
    """The files of users and of logins."""


def read_files(users_file: Path | None = None, logins_file: Path | None = None) -> UserFiles:
    """Read the files that are named; raises UsersError."""
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
    """The one line of a password file; raises UsersError."""
    return _ascii(path, key_files.read_password)


def _ascii(path: Path, read: Callable[[Path], str]) -> str:
    try:
        text = read(path)
    except KeyFileError as error:
        raise UsersError(str(error)) from error
    if not text.isascii():
        raise UsersError(f"{path} has characters outside ASCII, which Digest cannot encode")
    return text
