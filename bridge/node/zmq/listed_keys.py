"""Which keys the ØMQ endpoint answers, and what each may do; and the endpoint's own key.

    zmq.keys     a file of mode 0600:      reader      rq5+wVEq…            may read the log
                                           collector   8.fG2x…   submit     may also have entries committed
    zmq.key      in the state directory: the endpoint's own key pair, made at the first start

The scopes are those of `bridge.node.raft.client_scopes`.

The file is read again when it has changed, so a key is listed or taken away without a restart; a file that cannot be
read any more leaves in force what was read before, with an alarm. What has connected with a key that is taken away
stays connected and may read on until it disconnects; it may not write any more. A connection is known by its key, and
the scopes are looked up by the key at each update. If it were known by the name, a leaked key that is replaced by a new
one under the same name would keep its right to write.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from bridge.api.alarms import ZMQ_KEYS
from bridge.core.log.fields import NAME
from bridge.node.events.alarms import Alarms
from bridge.node.raft.client_scopes import Scope, scopes_in
from bridge.node.security.key_files import KeyFileError, load_curve_key, read_private_file, save_curve_key
from bridge.wire.keys.curve_key import CurveKey, from_z85, new_curve_key

SERVER_KEY_FILE: Final = "zmq.key"
LOOK_EVERY_S: Final = 5.0
FILE_LIMIT_BYTES: Final = 256 * 1024
KEYS_LIMIT: Final = 1_024


@dataclass(frozen=True, slots=True)
class ListedKey:
    """One line of the file."""

    name: str
    key: bytes
    scopes: frozenset[Scope]


class ListedKeys:
    """The keys that are listed at the moment. `keys`: what `read_listed_keys` found at the start."""

    def __init__(self, path: Path, keys: tuple[ListedKey, ...]) -> None:
        self._path = path
        self._take(keys)

    def is_listed(self, key: bytes) -> bool:
        """Whether a public key of 32 bytes may connect."""
        return key.hex() in self._scopes

    def may(self, user: str | None, scope: Scope) -> bool:
        """Whether the public key `user`, in hexadecimal digits, has the scope."""
        return user is not None and scope in self._scopes.get(user, ())

    async def watch(self, alarms: Alarms) -> None:
        """Take over a changed file, until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            await self.look(alarms)

    async def look(self, alarms: Alarms) -> None:
        """Read the file again."""
        try:
            self._take(await trio.to_thread.run_sync(read_listed_keys, self._path))
        except KeyFileError as error:
            alarms.set(ZMQ_KEYS, f"{error}; the keys that were read before stay in use")
        else:
            alarms.clear(ZMQ_KEYS)

    def _take(self, keys: tuple[ListedKey, ...]) -> None:
        self._scopes: Mapping[str, frozenset[Scope]] = {each.key.hex(): each.scopes for each in keys}


def read_listed_keys(path: Path) -> tuple[ListedKey, ...]:
    """The keys in a file; raises `KeyFileError`."""
    lines = read_private_file(path, FILE_LIMIT_BYTES).splitlines()
    found = [
        _listed(line.split(), f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if len(found) > KEYS_LIMIT:
        raise KeyFileError(f"{path} lists {len(found)} keys, at most {KEYS_LIMIT} are read")
    for what, listed in (("name", [each.name for each in found]), ("key", [each.key for each in found])):
        if len(set(listed)) != len(listed):
            raise KeyFileError(f"{path} lists a {what} twice: each key has one line and a name of its own")
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
    """The endpoint's own key pair, made if there is none; raises `KeyFileError`."""
    path = state_dir / SERVER_KEY_FILE
    if not os.path.lexists(path):
        save_curve_key(path, new_curve_key("endpoint"))
    return load_curve_key(path)
