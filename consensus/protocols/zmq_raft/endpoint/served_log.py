"""The interface between an endpoint for clients and the log that it serves.

    ServedLog ◀── the log of a ØMQ Raft peer, which takes updates and changes of its members
              ◀── the farm's log for a client endpoint, which may take updates

An endpoint (`client_endpoint`) reads frames and sends replies; the log decides them. The log handles request ids: their
freshness, their presence in the log, and their waiting clients. The endpoint handles client sockets: the target of a
reply, and the number of messages ahead.

A read covers one piece and keeps nothing open, so thousands of clients may be in the middle of the log. This is a
separate module because the endpoint and both logs need it, and none of them needs another.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from consensus.core.model import Entry, Index, Term
from consensus.protocols.zmq_raft.wire.messages import ChangeReply, ChangeRequest, Peer, UpdateReply, UpdateRequest
from consensus.server.storage_reads import SnapshotChunk


class LogDescription(Struct, frozen=True):
    """A log as its clients may know it; the defaults describe an empty log.

    `peers` are the members; during a change, the members of both configurations.
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
    """One log. All methods are called from one trio run; only reads wait."""

    def describe(self) -> LogDescription:
        """Return the present state. Called for each message to a client, so it must be cheap."""

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return committed entries from `first` on, at least one; none if they are compacted.

        Raises `ServerBusyError` (try again in a moment) or `ServerStoppedError`. `ConsensusServer.read` does this.
        """

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """Return bytes of the stored snapshot from `offset` on; an empty chunk at `total_bytes` beyond its end.

        None if there is no snapshot, or if it was replaced during the read. The chunk names its snapshot. Raises as
        `read` does. `ConsensusServer.read_snapshot` does this.
        """

    def update(self, request: UpdateRequest, user: str | None, answer: Callable[[UpdateReply], None]) -> None:
        """Commit an update, once for each request id.

        Calls `answer` before it returns, or ignores the request: its client will repeat it. The replies are any number
        of `UpdateAccepted`, and then a final one: `UpdateCommitted`, `UpdateRedirect` (also from a leader that steps
        down before the commitment: the client repeats the request elsewhere) or `UpdateExpired`. A log that does not
        lead redirects even an expired id, and the age of an id in the log is not checked.

        A repeated id of a request under way gets `UpdateAccepted` immediately, by the new `answer`. The final reply is
        given once, to any of these `answer`s. The endpoint sends it to the latest sender of the id, since a reconnected
        client has another identity. An accepted request must get a final reply, or the endpoint waits forever.

        `user` is the sender's public key in hexadecimal digits, if the endpoint requires keys.
        """

    def change(self, request: ChangeRequest, answer: Callable[[ChangeReply], None]) -> None:
        """Change the members; `answer` as for an update, with `ChangeAccepted` first.

        In this order: `ChangeRedirect`; `ChangeCommitted` for an id in the log; `ChangeBusy` during another change;
        `ChangeExpired`; `ChangeRefused` if the peers are malformed or cannot follow the present ones. An unreadable
        list gets here too, since a follower does not report its fault.
        """

    def broadcast_url(self) -> str | None:
        """Return the URL of the PUB socket for applied entries; None without such a socket."""
