"""The basic types of Raft: servers, terms, indexes, positions, entries, configurations.

A `ServerId` has the type that the protocol uses: an integer (Garlic Farm), a string (ØMQ Raft), an integer with a
directory (KRaft). The core compares and hashes ids, and sorts them so that one random seed always gives the same run.
All ids of one group have one type.

`LogId(index, term)` is common to all three protocols: a vote's last entry, AppendEntries' `previous` and Fetch's
(offset, last fetched epoch) are the same thing. Indexes are 1-based and inclusive; index 0 with term 0 is the empty
log.
"""

from enum import IntEnum
from typing import Any, ClassVar, Final, assert_never

from msgspec import Struct, structs

DIRECTORY_BYTES = 16
MAX_ID_CHARACTERS = 255
_ID_LIMIT = 2**63


class ReplicaKey(Struct, frozen=True, order=True):
    """A replica as KRaft names it (KIP-853): the node's id, and the id of the directory that holds its log.

    The same id with another directory is another replica with another log, so fetches and votes of the two are
    independent. A node that lost its disk must not complete a majority with an empty log. `directory` has the 16 bytes
    of a UUID, or is empty if the protocol does not name it (KRaft before voters can be changed).
    """

    id: int
    directory: bytes = b""

    def __str__(self) -> str:
        return f"{self.id} (directory {self.directory.hex()})" if self.directory else str(self.id)


ServerId = int | str | ReplicaKey
"""Positive, if it is an integer; see `possible_id`."""


def possible_id(server_id: ServerId) -> bool:
    """Return True if the id is valid: in range, and short enough for every table and file."""
    match server_id:
        case str():
            return 0 < len(server_id) <= MAX_ID_CHARACTERS and server_id.isprintable()
        case ReplicaKey():
            return 0 <= server_id.id < _ID_LIMIT and len(server_id.directory) in (0, DIRECTORY_BYTES)
        case int():
            return 0 < server_id < _ID_LIMIT
        case _:
            assert_never(server_id)


def integer_id(server_id: ServerId) -> int:
    """Return the id of a server in a protocol with integer ids; raises `TypeError` for an id of another protocol."""
    if not isinstance(server_id, int):
        raise TypeError(f"{server_id!r} is not an integer: it is the id of a server in another protocol")
    return server_id


Term = int
Index = int
Milliseconds = int

MAX_NUMBER = 2**63 - 1
"""Greatest term, index and correlation in the core; the limit of a wire may be lower (`Options.max_term`)."""
MAX_MEMBERS = 64
"""Servers that one configuration may name."""


class LogId(Struct, frozen=True, gc=False):
    """An entry's place: its index, and the term of the leader that created it."""

    index: Index
    term: Term

    def at_least_as_up_to_date_as(self, other: "LogId") -> bool:
        """Return True if this is the end of the more up-to-date log, or equal.

        Later term, then longer log (section 5.4.1).
        """
        return (self.term, self.index) >= (other.term, other.index)


ORIGIN = LogId(0, 0)
"""End of the empty log."""


class Server(Struct, frozen=True):
    """A member of a configuration: its Raft id and its endpoint for the other servers, such as `tcp://127.0.0.1:7669`.

    `listeners` maps names of listeners to endpoints, in the protocol's order, for a server with several (KIP-853).
    """

    server_id: ServerId
    endpoint: str
    listeners: tuple[tuple[str, str], ...] = ()


def _ids(servers: tuple[Server, ...]) -> frozenset[ServerId]:
    return frozenset(server.server_id for server in servers)


class Configuration(Struct, frozen=True):
    """Raft's member set, which takes effect when appended, not when committed (Raft section 6).

    With `old_voters` it is joint consensus, C_old,new: elections and commitment need a majority of `voters` (C_new) and
    one of `old_voters` (C_old). `learners` get the log and do not count for a majority. A server of C_old that C_new
    keeps as a learner is in both lists, and votes until C_new is in effect.
    """

    voters: tuple[Server, ...]
    old_voters: tuple[Server, ...] = ()
    learners: tuple[Server, ...] = ()

    @property
    def is_joint(self) -> bool:
        """Return True if this is C_old,new."""
        return bool(self.old_voters)

    @property
    def majorities(self) -> tuple[frozenset[ServerId], ...]:
        """Return the voter sets; a decision needs a majority in each of them."""
        return (_ids(self.voters), _ids(self.old_voters)) if self.old_voters else (_ids(self.voters),)

    @property
    def voter_ids(self) -> frozenset[ServerId]:
        """The ids that count toward any majority."""
        return _ids(self.voters) | _ids(self.old_voters)

    @property
    def learner_ids(self) -> frozenset[ServerId]:
        """The ids that get the log and do not vote."""
        return _ids(self.learners) - self.voter_ids

    @property
    def member_ids(self) -> frozenset[ServerId]:
        """The servers that get the log."""
        return self.voter_ids | _ids(self.learners)

    @property
    def servers(self) -> tuple[Server, ...]:
        """Every member once, with its latest endpoint, in order of id."""
        latest = {server.server_id: server for server in (*self.old_voters, *self.learners, *self.voters)}
        return tuple(latest[server_id] for server_id in sorted(latest))


def endpoint_text(host: str, port: int) -> str:
    """Return an address as text, as in a URL: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def possible_configuration(configuration: Configuration) -> bool:
    """Return True if it has voters, at most `MAX_MEMBERS` servers, and valid unique ids."""
    return (
        bool(configuration.voters)
        and names_each_once(configuration)
        and len(configuration.member_ids) <= MAX_MEMBERS
        and possible_ids(configuration)
    )


def possible_ids(*configurations: Configuration) -> bool:
    """Return True if all ids are in range and of one type: ids of different types cannot be sorted."""
    ids = [server_id for configuration in configurations for server_id in configuration.member_ids]
    return len(set(map(type, ids))) == 1 and all(map(possible_id, ids))


def names_each_once(configuration: Configuration) -> bool:
    """Return True if no server appears twice among the members of C_new, or twice in C_old."""
    lists = ((*configuration.voters, *configuration.learners), configuration.old_voters)
    return all(len({server.server_id for server in servers}) == len(servers) for servers in lists)


class SnapshotDescription(Struct, frozen=True):
    """A snapshot: the state machine after the entry at `last`, with the configuration in force at `last`.

    `last` identifies it: all snapshots of one position contain equal states, but not necessarily equal bytes.
    `size_bytes` and `checksum` describe the bytes that servers exchange.
    """

    last: LogId
    configuration: Configuration
    size_bytes: int
    checksum: int


class EntryKind(IntEnum):
    """Purpose of an entry, as a small stored number."""

    COMMAND = 1
    """An application's entry: opaque to Raft."""
    CONFIGURATION = 2
    """The member set from here on (`entry_data.encode_configuration`)."""
    NO_OP = 3
    """The first entry of a leader's term, if the set of features has one (`entry_data.encode_no_op`)."""
    CONTROL = 4
    """Any other record of the protocol's own, opaque to Raft (Kafka: KRaftVersion)."""


COMMAND: Final = EntryKind.COMMAND


class ComparedInPart(Struct, frozen=True):
    """A record whose fields in `REPEATED` follow from its other fields: `==`, `hash` and `repr` leave them out."""

    REPEATED: ClassVar[frozenset[str]]

    def _compared(self) -> dict[str, Any]:
        return {name: value for name, value in structs.asdict(self).items() if name not in self.REPEATED}

    def __eq__(self, other: object) -> bool:
        """Compare the fields that do not follow from others."""
        return isinstance(other, ComparedInPart) and type(other) is type(self) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(tuple(self._compared().values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._compared().items())
        return f"{type(self).__name__}({fields})"


class Entry(Struct, frozen=True, gc=False):
    """One entry of the log, the same object on its whole way through a server; it is never changed.

    `data` are the bytes from the client or the leader: they are never encoded again. The contents of a configuration or
    a no-op are decoded when needed. In protocols without a no-op, a leader appends the current configuration again
    instead.
    """

    term: Term
    kind: EntryKind
    data: bytes

    @classmethod
    def command(cls, term: Term, data: bytes) -> "Entry":
        """Return an application's entry."""
        return cls(term, COMMAND, data)


class NoOp(Struct, frozen=True):
    """The contents of a no-op. Kafka's LeaderChange names the leader, the voters and its electors; others are empty."""

    leader: ServerId | None = None
    voters: tuple[ServerId, ...] = ()
    granted_by: tuple[ServerId, ...] = ()


class HardState(Struct, frozen=True):
    """The durable state of elections: the latest term that the server saw, and its vote in that term."""

    term: Term
    voted_for: ServerId | None = None
