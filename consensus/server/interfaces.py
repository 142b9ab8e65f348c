"""What a server needs of its neighbors: a transport to the other servers, and a state machine.

    Transport       one folder in `protocols`, or `net.memory`  requests out; everything else in, through `Receiver`
    StateMachine    the application's                           committed entries in
    ServerDisk      `storage.disk_worker`                       a directory behind a thread, or a test's disk in memory

A transport matches each reply with its request. How it does so is its own matter: by order, by a number in the message,
or by a function call. The server asks for one thing only: the `correlation` of a request that came in is from
`next_call`, so that no two calls under way in one process have the same number, also if different callers make them.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import trio

from consensus.core.features import Extensions
from consensus.core.messages import Reply, Request
from consensus.core.model import Entry, Index, LogId, ServerId

APPLIED_AT_ONCE = 64
"""Entries that a state machine takes before others get the event loop: heartbeats wait no longer than for these."""

_calls = count(1)


def next_call() -> int:
    """A number for one more call, which no other call of this process ever has."""
    return next(_calls)


class Receiver(Protocol):
    """What a transport feeds: a `ConsensusServer`. Nothing here waits."""

    def ask(self, sender: ServerId, request: Request, answered: Callable[[Reply | None], None]) -> None:
        """A peer asks; `answered` gets the reply, at once or later, or None if the server stops.

        Raises `ServerBusyError` or `ServerStoppedError`: then `answered` is never called.
        """

    def forget(self, number: int) -> None:
        """The caller no longer waits for the reply to the request with this correlation."""

    def deliver_reply(self, sender: ServerId, reply: Reply) -> None:
        """A peer answered a request of this server, whose correlation the reply carries."""

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """The transport kept back an append, because the peer lacks the entries from `next_index` on."""

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        """Bytes of an answer have arrived, which is not complete yet."""

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        """A connection to the peer is up; this is what the peer understands."""


class Transport(Protocol):
    """The way to the other servers. It may lose messages, since Raft repeats; it never delivers one twice."""

    def send(self, recipient: ServerId, request: Request) -> None:
        """Queue a request and return at once; drop it if the queue is full or the peer unknown."""

    def connect(self, peers: Collection[ServerId]) -> None:
        """These are the members: hold a connection to each, and to no other without need."""

    async def run(self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry messages until cancelled, which ends every connection. The server runs it, once."""


class StateMachine(Protocol):
    """What the committed entries are for."""

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Take committed entries from index `first` on, in order, each once since the start or the last `restore`.

        The server gives at most `APPLIED_AT_ONCE` at a time.
        """

    def snapshot(self) -> Iterator[bytes] | AsyncIterator[bytes]:
        """The state as it is now, in chunks of any size. Later entries must not change what the iterator gives.

        Others get the event loop after each chunk. One that reads a file, or waits for anything, is asynchronous.
        """

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Become what `snapshot` gave after the entry at `last`; forget everything else.

        An error out of `state` may interrupt it, when a newer snapshot has come; another `restore` follows.
        """


def _accept(_content: object) -> None:
    """No objection."""


@dataclass(frozen=True, slots=True)
class ContentChecks:
    """What the state machine's owner is asked before this server stores what another server sends.

    An entry in the log is applied when a leader says so, after every restart again: one that the state machine cannot
    take would end the server for good. So it is refused where it comes in. An append that is refused so is no contact
    with a leader: no timer starts anew, and no lease and no majority rests on its answer. A snapshot that is refused
    was received whole and is not installed. Each check says in words what it objects to, or None; neither may raise.
    """

    entries: Callable[[tuple[Entry, ...]], str | None] = _accept
    """Asked in the trio run, for every append; it must be fast."""
    snapshot: Callable[[Iterator[bytes]], str | None] = _accept
    """Asked in the disk's thread, with the state in chunks, once the checksums have matched."""
