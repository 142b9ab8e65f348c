"""The states of the model: servers, and for each term all sent contents.

Messages are not objects in flight. A network that loses, repeats, delays and reorders messages may deliver any sent
message at any later time, or never. So a state records all sent contents of each term, and any action may use them:

    vote requests      the end of the candidate's log, per candidate
    votes              the candidates that a server has voted for, per server
    appends, fetches   any part of the leader's log: within a term it only grows, so one log describes all messages
    acknowledgments    the highest index that a server has reported as durable: a higher one implies the lower ones
    commit indexes     the highest that the leader has sent

A server sends a message as soon as its disk holds the claimed content. This does not exclude a case, because the model
may ignore any sent message. Term `n` has the record `records[n - 1]`. Server numbers begin at 0, indexes of the log at
1.

Every server has a memory, and a disk that may lack the newest writes. `unsynced` has the earlier versions of term, vote
and log, oldest first: the disk holds the first version. It is empty if the disk holds everything.
"""

from functools import lru_cache
from typing import NamedTuple

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"
NO_SERVER = -1

Configuration = tuple[int, ...]
"""The sets of voters, as bit masks: (C_new,), or (C_new, C_old) in joint consensus; empty without a configuration."""


class Entry(NamedTuple):
    """An entry. The leader of a term makes one entry per index, so index and term identify the entry."""

    term: int
    configuration: Configuration = ()


class End(NamedTuple):
    """The end of a log, compared by the term first (section 5.4.1)."""

    term: int
    length: int


Log = tuple[Entry, ...]


class Version(NamedTuple):
    """The durable part of a server: currentTerm, votedFor and log (figure 2)."""

    term: int
    vote: int
    log: Log


class Node(NamedTuple):
    """One server."""

    term: int
    vote: int
    log: Log
    role: str
    commit: int
    initial: Configuration
    unsynced: tuple[Version, ...] = ()
    ahead: tuple[int, int] | tuple[()] = ()
    """Term and vote, if they are durable before the entries of the same write."""

    @property
    def memory(self) -> Version:
        return Version(self.term, self.vote, self.log)

    @property
    def disk(self) -> Version:
        if not self.unsynced:
            return self.memory
        oldest = self.unsynced[0]
        return Version(*self.ahead, oldest.log) if self.ahead else oldest


class TermRecord(NamedTuple):
    """All sent contents of one term."""

    leaders: int
    """Mask of the servers that won this term: at most one bit, if the protocol is correct."""
    log: Log
    """The longest log of the leader in this term."""
    commit: int
    """The highest commit index that the leader has sent."""
    requests: tuple[End | None, ...]
    """The end of the log in each server's vote request."""
    votes: tuple[int, ...]
    """Mask of the candidates that each server has voted for."""
    acknowledged: tuple[int, ...]
    """The highest index that each server has reported as durable and equal to the leader's log."""


class State(NamedTuple):
    """The whole group; `crashes` and `changes` are the numbers that the bounds still permit."""

    nodes: tuple[Node, ...]
    records: tuple[TermRecord, ...]
    crashes: int = 0
    changes: int = 0


def initial_node(initial: Configuration) -> Node:
    return Node(0, NO_SERVER, (), FOLLOWER, 0, initial)


def empty_record(servers: int) -> TermRecord:
    """Return the record of a term without messages."""
    return TermRecord(0, (), 0, (None,) * servers, (0,) * servers, (0,) * servers)


def end_of(log: Log) -> End:
    return End(log[-1].term, len(log)) if log else End(0, 0)


def term_at(log: Log, index: int) -> int | None:
    """Return the term of the entry at `index`; 0 before the first, None beyond the end."""
    if index > len(log):
        return None
    return log[index - 1].term if index else 0


def agreement(one: Log, other: Log) -> int:
    """Return the highest index with entries of the same term in both logs (the check of AppendEntries)."""
    index = min(len(one), len(other))
    while index and one[index - 1].term != other[index - 1].term:
        index -= 1
    return index


def first_of(servers: int) -> int:
    return (servers & -servers).bit_length() - 1


@lru_cache(maxsize=1 << 16)
def configurations_of(log: Log, initial: Configuration) -> tuple[tuple[int, Configuration], ...]:
    """Return the changes of the configuration in a log, with their indexes, oldest first."""
    changes = [(0, initial)]
    for index, entry in enumerate(log, start=1):
        if entry.configuration and entry.configuration != changes[-1][1]:
            changes.append((index, entry.configuration))
    return tuple(changes)


def configuration_of(node: Node) -> Configuration:
    """Return the latest configuration in the server's log, committed or not (section 6)."""
    return configurations_of(node.log, node.initial)[-1][1]
