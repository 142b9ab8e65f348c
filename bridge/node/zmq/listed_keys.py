"""The keys of the ØMQ endpoint's clients with their permissions, and the endpoint's own key.

    zmq.keys     a file of mode 0600:      reader      rq5+wVEq…            may read the log
                                           collector   8.fG2x…   submit     may also have entries committed
    zmq.key      in the state directory: the endpoint's own key pair, made at the first start

The scopes are defined in `bridge.node.raft.client_scopes`.

A changed file is read again, so keys are added or removed without a restart. If the file becomes unreadable, its
previous content stays in force, and an alarm is set. A removed key's connection may read until it disconnects, but may
not write. A connection is identified by its key, and each update looks up the key's scopes. A look-up by name would be
unsafe: after a replacement of a leaked key under the same name, the leaked key could still write.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bridge.api.alarms import ZMQ_KEYS
from bridge.core.log.fields import NAME
from bridge.node.raft.client_scopes import CommitScope, scopes_in
from bridge.node.security.key_files import KeyFileError, load_curve_key, save_curve_key
from bridge.node.security.listed_file import ListedFile, read_lines
from bridge.wire.keys.curve_key import CurveKey, from_z85, new_curve_key

SERVER_KEY_FILE: Final = "zmq.key"
FILE_LIMIT_BYTES: Final = 256 * 1024


class ListedKey(Struct, frozen=True):
    """One line of the file."""

    name: str
    key: bytes
    scopes: frozenset[CommitScope]


class ListedKeys(ListedFile[tuple[ListedKey, ...]]):
    """The keys listed at the moment. `keys` is the result of `read_listed_keys` at the start."""

    def __init__(self, path: Path, keys: tuple[ListedKey, ...]) -> None:
        super().__init__(partial(read_listed_keys, path), (path,), ZMQ_KEYS, "keys")
        self._take(keys)

    def is_listed(self, key: bytes) -> bool:
        """Return True if a public key of 32 bytes may connect."""
        return key.hex() in self._scopes

    def may(self, user: str | None, scope: CommitScope) -> bool:
        """Return True if the public key `user`, in hexadecimal digits, has the scope."""
        return user is not None and scope in self._scopes.get(user, ())

    def _take(self, content: tuple[ListedKey, ...]) -> None:
        self._scopes: Mapping[str, frozenset[CommitScope]] = {each.key.hex(): each.scopes for each in content}


def read_listed_keys(path: Path) -> tuple[ListedKey, ...]:
    """Return the keys in a file; raise `KeyFileError`."""
    lines = read_lines(path, FILE_LIMIT_BYTES, "keys")
    found = [_listed(line.split(), place) for place, line in lines]
    for what, listed in (("name", [each.name for each in found]), ("key", [each.key for each in found])):
        if len(set(listed)) != len(listed):
            raise KeyFileError(f"{path} lists a {what} twice: each key has one line and a separate name")
    return tuple(found)


def _listed(words: list[str], place: str) -> ListedKey:
    name, text, *scopes = [*words, ""] if len(words) == 1 else words
    key = from_z85(text)
    if re.fullmatch(NAME, name) is None or key is None:
        raise KeyFileError(
            f"{place}: expected NAME KEY [SCOPE …], the key in Z85 as `garlicfarm keys new-curve` shows it"
        )
    try:
        return ListedKey(name, key, scopes_in(scopes))
    except ValueError as error:
        raise KeyFileError(f"{place}: {error}") from None


def own_key(state_dir: Path) -> CurveKey:
    """Return the endpoint's own key pair, made if it is missing; raise `KeyFileError`."""
    path = state_dir / SERVER_KEY_FILE
    if not os.path.lexists(path):
        save_curve_key(path, new_curve_key("endpoint"))
    return load_curve_key(path)
