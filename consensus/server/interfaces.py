"""The interfaces of a server: a transport to the other servers, a state machine, and a disk.

    Transport       one folder in `protocols`, or `net.memory`  requests out; everything else in, through `Receiver`
    StateMachine    the application's                           committed entries in
    ServerDisk      `storage.disk_worker`                       a directory with a thread, or a test's disk in memory

A transport matches each reply with its request: by order, by a number in the message, or by a function call. The server
requires only that the `correlation` of an arriving request is from `next_call`. Then no two calls under way in one
process have the same number, even if different callers make them.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from itertools import count
from typing import Protocol

import trio
from msgspec import Struct

from consensus.core.features import Extensions
from consensus.core.messages import Reply, Request
from consensus.core.model import Entry, Index, LogId, ServerId

APPLIED_AT_ONCE = 64
"""Maximum number of entries that a state machine gets in one call."""

_calls = count(1)


def next_call() -> int:
    """Return a number for one more call, unique in this process."""
    return next(_calls)


class Receiver(Protocol):
    """The receiving side of a transport: a `ConsensusServer`. Its methods never wait."""

    def ask(self, sender: ServerId, request: Request, on_reply: Callable[[Reply | None], None]) -> None:
        """Process a peer's request; `on_reply` gets the reply, immediately or later, or None if the server stops.

        Raises `ServerBusyError` or `ServerStoppedError`: then `on_reply` is never called.
        """

    def forget(self, number: int) -> None:
        """Stop waiting for the reply to the request with this correlation."""

    def deliver_reply(self, sender: ServerId, reply: Reply) -> None:
        """Process a peer's reply to a request of this server, whose correlation the reply carries."""

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Process an append that the transport did not send, because the peer lacks entries from `next_index` on."""

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        """Record that bytes of an incomplete reply have arrived."""

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        """Record a new connection to the peer and the peer's extensions."""

    def peer_ended(self, peer: ServerId) -> None:
        """Record that the connection to the peer ended, and that no process listens at its address."""


class Transport(Protocol):
    """The way to the other servers. It may lose messages, since Raft repeats them."""

    def send(self, recipient: ServerId, request: Request) -> None:
        """Queue a request without waiting; drop it if the queue is full or the peer unknown."""

    def connect(self, peers: Collection[ServerId]) -> None:
        """Hold a connection to each of these members, and to other servers only on demand."""

    async def run(self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry messages until canceled, which ends every connection. The server runs it, once."""


class StateMachine(Protocol):
    """The consumer of committed entries."""

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Apply committed entries from index `first` on, in order, each once since the start or the last `restore`.

        The server passes at most `APPLIED_AT_ONCE` entries at a time.
        """

    def snapshot(self) -> Iterator[bytes] | AsyncIterator[bytes]:
        """Return the present state, in chunks of any size. Later entries must not change the chunks.

        Other tasks run after each chunk. An iterator that reads a file, or waits, must be asynchronous.
        """

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Restore the state that `snapshot` returned after the entry at `last`; discard everything else.

        The iterator `state` may raise an error if a newer snapshot has arrived; then another `restore` follows.
        """


def _accept(_content: object) -> None:
    """Accept any content."""


class ContentChecks(Struct, frozen=True):
    """Checks by the state machine's owner before this server stores content from another server.

    Each restart applies the entries after the snapshot again. So an entry that the state machine cannot apply would
    stop the server at each start, and is refused on arrival. A refused append is not contact with a leader. It does not
    restart a timer, and its reply does not count for a lease or a majority. A refused snapshot has been received
    completely, but is not installed. Each check returns its objection as text, or None; it must not raise.
    """

    entries: Callable[[tuple[Entry, ...]], str | None] = _accept
    """Called in the trio run, for every append or fetch reply with entries; it must be fast."""
    snapshot: Callable[[Iterator[bytes]], str | None] = _accept
    """Called in the disk's thread with the chunks of a snapshot, after its checksums have matched."""
