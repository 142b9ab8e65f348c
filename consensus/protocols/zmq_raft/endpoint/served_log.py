"""The interface between an endpoint for clients and the log that it serves.

    ServedLog ◀── the log of a ØMQ Raft peer, which takes updates and changes of its members
              ◀── the farm's log for a client endpoint, which may take updates

An endpoint (`client_endpoint`) reads frames and sends replies; the log decides them. The log handles request ids: their
freshness, their presence in the log, and their waiting clients. The endpoint handles client sockets: the target of a
reply, and the number of messages sent ahead of their confirmations.

A read covers one piece and does not keep files open, so thousands of clients may be in the middle of the log. This is a
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
        """Return bytes of the stored snapshot from `offset` on.

        If `offset` is beyond its end, return an empty chunk with the offset `total_bytes`. None if there is no
        snapshot, or if it was replaced during the read. The chunk names its snapshot. Raises as `read` does.
        `ConsensusServer.read_snapshot` does this.
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

        A farm's log refuses every change. A peer's log makes these checks in this order, and gives the reply of the
        first check that applies: `ChangeRedirect` without leadership; `ChangeCommitted` for an id in the log;
        `ChangeBusy` during another change that this leader began; `ChangeRefused` for the id of an update under way;
        `ChangeExpired`; `ChangeRefused` if the peers are malformed; `ChangeBusy` while the configuration is joint;
        `ChangeRefused` if the peers cannot follow the present ones. `MalformedPeers` is passed here too, because only a
        leader reports this error; a follower redirects.
        """

    def broadcast_url(self) -> str | None:
        """Return the URL of the PUB socket for applied entries; None without such a socket."""
