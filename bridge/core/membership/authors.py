"""The rights of authors to write entries, and the effect of each entry exactly once.

docs/reference/application-json.md ("The proof of an entry's author") lists the authors of each kind.

The farm key permits a program to connect and submit; it does not identify the author. The rights of an entry are the
rights of the identity that signed it; `bridge.wire.log.proof` verifies the signature. A server that an operator removed
from the group keeps its identity, but its reports do not count (`bridge.core.farm.state_machine`).

*Numbers.* A reader of the log can submit one of its entries a second time. So each author numbers its entries upwards.
For each author the state keeps the highest number that had effect, and a bit for each of the 64 numbers below it. The
entries of one author may overtake each other within this window (`bridge.node.raft.entry_signer`). An entry does not
have an effect if its number is used or below the window.

The state keeps numbers only for admitted identities and client keys; both tables are limited. The row of a removed
identity or client key remains. Otherwise its old entries could have an effect again after another admission. Such a row
is dropped only when the table of numbers is full (`NUMBERED_MAX`).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log.kinds import kind_of
from bridge.core.log.records import Author, EntryRecord, Foreign, ProvenRecord, Report, ServerRecord
from bridge.core.membership.admission import ADMITTED_MAX, Admitted, raft_id_of
from bridge.core.membership.client_keys import CLIENTS_MAX, Client

NUMBERS_WINDOW = 64
"""Size of the window below the highest number, and so the maximum number of an author's entries in flight."""
NUMBERED_MAX = 2 * (ADMITTED_MAX + CLIENTS_MAX)
"""Maximum number of authors whose numbers are kept, from `BOUNDS_LEVEL` on. Half of the rows are for former authors."""


class NoEffect(Enum):
    """The reasons why an entry does not have an effect, each with its word, its cause and the sender's remedy."""

    UNSIGNED = (
        "unsigned",
        "the entry does not carry a proof",
        "submit it at a node of the farm, or sign it with a client key",
    )
    FORGED = (
        "forged",
        "the proof of the entry does not verify",
        "it was changed after it was signed, or signed for another farm",
    )
    UNKNOWN_AUTHOR = (
        "unknown-author",
        "no member admitted the key that signed the entry",
        "`garlicfarm node admit-client`",
    )
    EXPELLED = "expelled", "the key that signed the entry was retired, evicted or removed", ""
    WRONG_AUTHOR = "wrong-author", "the entry is about one server, and the identity of another signed it", ""
    OUT_OF_SCOPE = (
        "out-of-scope",
        "the client key that signed the entry was not admitted for this kind of entry",
        "`garlicfarm node admit-client` with another scope",
    )
    REPEATED = (
        "repeated",
        "its author has used the number of this entry before, or much higher ones since",
        "sign it again",
    )
    OUTDATED = "outdated", "a later report of the same server has already had an effect", ""

    _value_: str
    meaning: str
    remedy: str

    def __new__(cls, word: str, meaning: str, remedy: str) -> Self:
        """Make the member, whose value is the word."""
        member = object.__new__(cls)
        member._value_, member.meaning, member.remedy = word, meaning, remedy
        return member

    @property
    def refusal(self) -> str:
        """The text for the sender of the entry."""
        return f"{self.meaning}: {self.remedy}" if self.remedy else self.meaning


class EntryWithoutEffect(Struct, frozen=True):
    """A committed entry without effect, of a kind that acts on the farm; `author` is set if the signature verifies."""

    kind: str
    author: bytes | None
    reason: NoEffect


class AuthorNumbers(Struct, frozen=True):
    """The numbers of one author's entries that had effect."""

    highest: int = 0
    seen: int = 0
    """Bit n: the number `highest` - 1 - n had effect."""
    report: int = 0
    """The number of its last report that counted."""

    def has_seen(self, number: int) -> bool:
        """Return True if this number had effect, or lies below the window."""
        below = self.highest - number
        return below == 0 or below > NUMBERS_WINDOW or (below > 0 and self.seen >> (below - 1) & 1 == 1)

    def after(self, number: int) -> "AuthorNumbers":
        """Return these numbers with one more."""
        rise = number - self.highest
        if rise < 0:
            return replace(self, seen=self.seen | 1 << (-rise - 1))
        # A rise beyond the window empties it. The shift is limited, because its cost must not grow with the number.
        seen = (self.seen << 1 | 1) << (rise - 1) if rise <= NUMBERS_WINDOW else 0
        return replace(self, highest=number, seen=seen & ((1 << NUMBERS_WINDOW) - 1))


def without_effect(
    entry: ProvenRecord,
    admitted: Mapping[int, Admitted],
    clients: Mapping[bytes, Client],
    numbers: Mapping[bytes, AuthorNumbers],
) -> NoEffect | None:
    """Return the reason why this entry does not have an effect.

    None if its author may write it and writes it for the first time.
    """
    record, author = entry.record, entry.author
    if isinstance(record, Foreign):
        return None
    if author is None:
        return NoEffect.FORGED if entry.forged else NoEffect.UNSIGNED
    refusal = _unauthorized(record, author, admitted, clients)
    if refusal is not None:
        return refusal
    used = numbers.get(author.node_id, AuthorNumbers())
    if used.has_seen(author.number):
        return NoEffect.REPEATED
    if isinstance(record, Report) and author.number < used.report:
        return NoEffect.OUTDATED
    return None


def numbers_after(numbers: Mapping[bytes, AuthorNumbers], entry: ProvenRecord) -> Mapping[bytes, AuthorNumbers]:
    """Return the numbers after an entry that has effect."""
    author = entry.author
    if author is None or isinstance(entry.record, Foreign):
        return numbers
    used = numbers.get(author.node_id, AuthorNumbers()).after(author.number)
    if isinstance(entry.record, Report):
        used = replace(used, report=author.number)
    return {**numbers, author.node_id: used}


def without_former(
    numbers: Mapping[bytes, AuthorNumbers], admitted: Mapping[int, Admitted], clients: Mapping[bytes, Client]
) -> Mapping[bytes, AuthorNumbers]:
    """Return the numbers with room for one more author; in a full table, drop a former author."""
    if len(numbers) < NUMBERED_MAX:
        return numbers
    present = {each.node_id for each in admitted.values()} | clients.keys()
    removed_id = min(numbers.keys() - present)
    return {node_id: each for node_id, each in numbers.items() if node_id != removed_id}


def _unauthorized(
    record: EntryRecord, author: Author, admitted: Mapping[int, Admitted], clients: Mapping[bytes, Client]
) -> NoEffect | None:
    if isinstance(record, ServerRecord):
        named = admitted.get(record.server_id)
        if named is not None and named.node_id == author.node_id:
            return None if named.is_member else NoEffect.EXPELLED
        refusal = _not_a_server(author, admitted, clients)
        return NoEffect.WRONG_AUTHOR if refusal is None else refusal
    scope = kind_of(record).scope
    client = clients.get(author.node_id)
    if scope is not None and client is not None and client.admitted and scope in client.scopes:
        return None
    return _not_a_server(author, admitted, clients)


def _not_a_server(author: Author, admitted: Mapping[int, Admitted], clients: Mapping[bytes, Client]) -> NoEffect | None:
    server_id = raft_id_of(admitted, author.node_id)
    if server_id is not None:
        return None if admitted[server_id].is_member else NoEffect.EXPELLED
    client = clients.get(author.node_id)
    if client is None:
        return NoEffect.UNKNOWN_AUTHOR
    return NoEffect.OUT_OF_SCOPE if client.admitted else NoEffect.EXPELLED
