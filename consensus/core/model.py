"""The nouns that every part of Raft shares: servers, terms, indexes, positions, entries, configurations.

A `ServerId` is whatever the protocol calls a server: an integer (Garlic Farm), a string (ZeroMQ Raft), an integer with
a directory (KRaft). The core compares and hashes ids, puts them in order so that a seed gives the same run, and does
nothing else with them. All ids of one group are of one kind.

`LogId(index, term)` is the shared noun of all three protocols: a vote's last entry, AppendEntries' `prev` and
Fetch's (offset, last fetched epoch) are the same thing. Indexes are 1-based and inclusive; index 0 with term 0 is the
empty log.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, assert_never

DIRECTORY_BYTES = 16
MAX_ID_CHARACTERS = 255
_ID_LIMIT = 2**63


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """A replica as KRaft names it (KIP-853): the node's id, and the id of the directory that holds its log.

    The same id with another directory is another replica. It holds another log, so what the one fetched or voted says
    nothing about the other: a node that lost its disk must not complete a majority with an empty log. `directory` has
    the 16 bytes of a UUID, or none where the protocol gives none (KRaft before voters can be changed).
    """

    id: int
    directory: bytes = b""

    def __str__(self) -> str:
        """As in messages for operators."""
        return f"{self.id} (directory {self.directory.hex()})" if self.directory else str(self.id)


ServerId = int | str | ReplicaKey
"""Positive, if it is an integer; see `possible_id`."""


def possible_id(server_id: ServerId) -> bool:
    """Whether it can be an id at all: in range, and of a length that every table and file has room for."""
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
    """The id of a server in a protocol whose ids are integers; raises `TypeError` for an id of another protocol."""
    if not isinstance(server_id, int):
        raise TypeError(f"{server_id!r} is not an integer: it is the id of a server in another protocol")
    return server_id


Term = int
Index = int
Milliseconds = int

MAX_NUMBER = 2**63 - 1
"""Terms, indexes and correlations are signed 64-bit on the wires."""
MAX_MEMBERS = 64
"""Servers that one configuration may name."""


@dataclass(frozen=True, slots=True)
class LogId:
    """An entry's place: its index, and the term in which a leader created it."""

    index: Index
    term: Term

    def at_least_as_up_to_date_as(self, other: "LogId") -> bool:
        """The vote restriction (Raft section 5.4.1): the later term wins, then the longer log."""
        return (self.term, self.index) >= (other.term, other.index)


ORIGIN = LogId(0, 0)
"""Where the empty log ends."""


@dataclass(frozen=True, slots=True)
class Server:
    """A member of a configuration: its Raft id and where the other servers reach it, such as `tcp://127.0.0.1:7669`.

    `listeners` are its endpoints by the name of a listener, in the protocol's order, where it has several (KIP-853).
    """

    server_id: ServerId
    endpoint: str
    listeners: tuple[tuple[str, str], ...] = ()


def _ids(servers: tuple[Server, ...]) -> frozenset[ServerId]:
    return frozenset(server.server_id for server in servers)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Raft's member set. Takes effect when appended, not when committed (Raft section 6).

    With `old_voters` it is joint consensus, C_old,new: elections and commitment need a majority of `voters` (C_new) and
    one of `old_voters` (C_old). `learners` get the log and count in nothing; a server of C_old that C_new keeps as a
    learner stands in both lists and votes until C_new.
    """

    voters: tuple[Server, ...]
    old_voters: tuple[Server, ...] = ()
    learners: tuple[Server, ...] = ()

    @property
    def is_joint(self) -> bool:
        """Whether this is C_old,new."""
        return bool(self.old_voters)

    @property
    def majorities(self) -> tuple[frozenset[ServerId], ...]:
        """The sets of voters of which each must agree by a majority of its own."""
        return (_ids(self.voters), _ids(self.old_voters)) if self.old_voters else (_ids(self.voters),)

    @property
    def voter_ids(self) -> frozenset[ServerId]:
        """The ids that count towards any majority."""
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


def possible_configuration(configuration: Configuration) -> bool:
    """Whether it has voters, lists no server twice, makes no voter a learner, and has possible ids."""
    return (
        bool(configuration.voters)
        and names_each_once(configuration)
        and len(configuration.member_ids) <= MAX_MEMBERS
        and possible_ids(configuration)
    )


def possible_ids(*configurations: Configuration) -> bool:
    """Whether all ids are in range and of one kind: ids of different kinds have no order among each other."""
    ids = [server_id for configuration in configurations for server_id in configuration.member_ids]
    return len(set(map(type, ids))) == 1 and all(map(possible_id, ids))


def names_each_once(configuration: Configuration) -> bool:
    """Whether no server stands twice among the members of C_new, or twice in C_old."""
    lists = ((*configuration.voters, *configuration.learners), configuration.old_voters)
    return all(len({server.server_id for server in servers}) == len(servers) for servers in lists)


@dataclass(frozen=True, slots=True)
class SnapshotDescription:
    """A snapshot: the state machine after the entry at `last`, with the configuration that was in force there.

    `last` is also its name: every server that holds a snapshot of this position holds an equal state, though not
    necessarily equal bytes. `size_bytes` and `checksum` are of the bytes that travel between servers.
    """

    last: LogId
    configuration: Configuration
    size_bytes: int
    checksum: int


class EntryKind(IntEnum):
    """What an entry is for, as a small number that is stored."""

    COMMAND = 1
    """An application's entry: opaque to Raft."""
    CONFIGURATION = 2
    """The member set from here on (`entry_data.encode_configuration`)."""
    NO_OP = 3
    """The first entry of a leader's term where the set of features has one (`entry_data.encode_no_op`)."""
    CONTROL = 4
    """Any other record of the protocol's own, opaque to Raft (Kafka: KRaftVersion)."""


COMMAND: Final = EntryKind.COMMAND


@dataclass(slots=True, unsafe_hash=True)  # not frozen: one is made for each entry, and a frozen one costs three times
class Entry:
    """One entry of the log, the same object on its whole way through a server; it is never changed.

    `data` are the bytes that came from the client, or from the leader: they are never encoded again. What a
    configuration or a no-op says is read from them where it is needed. A configuration that repeats the current one is
    the no-op where the protocol has none.
    """

    term: Term
    kind: EntryKind
    data: bytes

    @classmethod
    def command(cls, term: Term, data: bytes) -> "Entry":
        """An application's entry."""
        return cls(term, COMMAND, data)


@dataclass(frozen=True, slots=True)
class NoOp:
    """What a no-op says. Kafka's, a LeaderChange, names the leader and its voters; those of others are empty."""

    leader: ServerId | None = None
    voters: tuple[ServerId, ...] = ()
    granted_by: tuple[ServerId, ...] = ()


@dataclass(frozen=True, slots=True)
class HardState:
    """What a server must remember about elections: the latest term it saw, and for whom it voted in it."""

    term: Term
    voted_for: ServerId | None = None
