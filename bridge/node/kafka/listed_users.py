"""The users of the Kafka listener, and their permissions.

    kafka.users     a file of mode 0600:   reader      SCRAM-SHA-512$4096:…                may read the log
                                           collector   SCRAM-SHA-512$4096:…    submit      may produce (`kafka.write`)

    the same with kafka.client_ca:         "CN=collector,O=Example" certificate submit

If clients use passwords, the listener serves only listed users. If they use certificates, it serves every client whose
certificate the authority of `kafka.client_ca` has signed. The file grants scopes to some of them, by the subject of
their certificates in the form of RFC 4514. Words are separated as in a shell, so a subject with spaces is in quotes.
The scopes are defined in `bridge.node.raft.client_scopes`.

A changed file is read again, so users are added or removed without a restart. If the file becomes unreadable, its
previous content stays in force, and an alarm is set. The open connection of a removed user may read, and store offsets
of its group, until it ends. It cannot produce, because scopes are looked up for each batch.
"""

import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bridge.api.alarms import KAFKA_USERS
from bridge.core.log.fields import NAME
from bridge.node.raft.client_scopes import CommitScope, scopes_in
from bridge.node.security.key_files import KeyFileError
from bridge.node.security.listed_file import ListedFile, read_lines
from bridge.wire.keys.scram_text import credential_in
from consensus.protocols.kafka import Mechanism, ScramCredential, UnknownUsers

FILE_LIMIT_BYTES: Final = 1024 * 1024
SUBJECT_CHARACTERS: Final = 1_024
CERTIFICATE: Final = "certificate"
_PREFIX: Final = "User:"


class ListedUser(Struct, frozen=True):
    """One line of the file. Users with a certificate, which proves the name, do not have a `credential`."""

    name: str
    credential: tuple[Mechanism, ScramCredential] | None
    scopes: frozenset[CommitScope]


class ListedUsers(ListedFile[tuple[ListedUser, ...]]):
    """The users listed at the moment. `users` is the result of `read_listed_users` at the start."""

    def __init__(self, path: Path, users: tuple[ListedUser, ...], *, by_certificate: bool) -> None:
        read = partial(read_listed_users, path, by_certificate=by_certificate)
        super().__init__(read, (path,), KAFKA_USERS, "users")
        self._take(users)

    def scram(self, mechanism: Mechanism, user: str) -> ScramCredential | None:
        """Return the stored data of the user's password; None without such a user with this mechanism."""
        found = self._users.get(user)
        if found is None or found.credential is None or found.credential[0] is not mechanism:
            return None
        return found.credential[1]

    def scopes_of(self, principal: str | None) -> frozenset[CommitScope]:
        """Return the scopes of a connection, by its principal (`User:` and the name)."""
        if principal is None or not principal.startswith(_PREFIX):
            return frozenset()
        found = self._users.get(principal.removeprefix(_PREFIX))
        return frozenset() if found is None else found.scopes

    def _take(self, content: tuple[ListedUser, ...]) -> None:
        self._users: Mapping[str, ListedUser] = {each.name: each for each in content}
        self.unknown = UnknownUsers.of({each.name: dict([each.credential]) for each in content if each.credential})


def read_listed_users(path: Path, *, by_certificate: bool) -> tuple[ListedUser, ...]:
    """Return the users in a file, with passwords or certificates; raise `KeyFileError`."""
    lines = read_lines(path, FILE_LIMIT_BYTES, "users")
    found = [_listed(line, place, by_certificate=by_certificate) for place, line in lines]
    if len({each.name for each in found}) != len(found):
        raise KeyFileError(f"{path} lists a user twice: write one line for each user")
    return tuple(found)


def _listed(line: str, place: str, *, by_certificate: bool) -> ListedUser:
    try:
        words = shlex.split(line)
        name, word, scopes = words[0], "".join(words[1:2]), words[2:]
        user = ListedUser(name, None if by_certificate else credential_in(word), scopes_in(scopes))
    except ValueError as error:
        raise KeyFileError(f"{place}: {error}") from None
    if by_certificate:
        if word != CERTIFICATE or not 0 < len(name) <= SUBJECT_CHARACTERS:
            raise KeyFileError(
                f'{place}: expected "SUBJECT" certificate [SCOPE …], for kafka.client_ca is set and clients show'
                " certificates"
            )
    elif user.credential is None or re.fullmatch(NAME, name) is None:
        raise KeyFileError(f"{place}: expected NAME CREDENTIAL [SCOPE …], as `garlicfarm keys kafka-user` shows it")
    return user
