"""What an endpoint for clients needs of the log that it serves.

    ServedLog ◀── the log of a ØMQ Raft peer, which takes updates and changes of its members
              ◀── the farm's log behind a client endpoint, which may take updates

An endpoint (`client_endpoint`) reads frames and carries answers; the log decides them. What belongs to a request's id
is the log's: whether the id is fresh, whether its entry stands in the log already, who waits for it. What belongs to a
client's socket is the endpoint's: where an answer goes, and how far it may be sent ahead.

The reads are of one piece each and keep nothing open, so thousands of clients may be in the middle of the log at once.
A module of its own, because the endpoint and both logs need it, and none of them needs another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from consensus.core.model import Entry, Index, Term
from consensus.protocols.zmq_raft.wire.messages import ChangeReply, ChangeRequest, Peer, UpdateReply, UpdateRequest
from consensus.server.log_stream import SnapshotChunk


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log as its clients may know it; the defaults describe an empty log.

    `peers` are the members, during a change of both configurations.
    """

    is_leader: bool
    leader: str | None
    peers: tuple[Peer, ...]
    term: Term = 0
    first_index: Index = 1
    last_applied: Index = 0
    commit: Index = 0
    last_index: Index = 0
    snapshot_bytes: int = 0
    prune_index: Index = 0
    """Up to here no request id is fresh, so a snapshot may replace the entries."""


class ServedLog(Protocol):
    """One log. Everything is called from one trio run; nothing but the reads waits."""

    def describe(self) -> LogDescription:
        """How it is now. Asked for each message to a client, so it must be cheap."""

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Committed entries from `first` on, at least one; none if they are compacted.

        Raises `ServerBusyError` (ask again in a moment) or `ServerStoppedError`. `ConsensusServer.read` does this.
        """

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """Bytes of the stored snapshot from `offset` on; an empty chunk at `total_bytes` for an offset beyond them.

        None if there is no snapshot, or if it was replaced during the read. The chunk says which snapshot it is of.
        Raises as `read` does. `ConsensusServer.read_snapshot` does this.
        """

    def update(self, request: UpdateRequest, user: str | None, answer: Callable[[UpdateReply], None]) -> None:
        """Have something committed, once for each request id.

        Calls `answer` before it returns, or ignores the request for good: its client will repeat it. The answers are
        any number of `UpdateAccepted`, and then one that is final: `UpdateCommitted`, `UpdateRedirect` (also of a
        leader that steps down while the entry is not committed: the client repeats the request elsewhere) or
        `UpdateExpired`. In this order: a log that does not lead redirects even an expired id, and an id that is in the
        log is no longer asked for its age.

        An id that comes again while its request is under way is answered `UpdateAccepted` at once, by the new
        `answer`. The final answer is given once, by any of them: the endpoint sends it where the id came from last,
        for a client that has connected anew has another identity. What was accepted must get one, or the endpoint
        waits for it for good.

        `user` is the sender's public key in hexadecimal digits, where the endpoint asks for keys.
        """

    def change(self, request: ChangeRequest, answer: Callable[[ChangeReply], None]) -> None:
        """Change the members; `answer` as for an update, with `ChangeAccepted` first.

        In this order: `ChangeRedirect`; `ChangeCommitted` for an id that is in the log; `ChangeBusy` if another change
        is under way; `ChangeExpired`; `ChangeRefused` if the peers are malformed or cannot follow the present ones. A
        list that cannot be read gets here too, for a follower does not say what is wrong with it.
        """

    def broadcast_url(self) -> str | None:
        """Where the PUB socket is that tells of applied entries; None: ask the leader, or there is none."""
