"""The interface between an endpoint for clients and the log that it serves.

    ServedLog ◀── the log of a ØMQ Raft peer, which takes updates and changes of its members
              ◀── the farm's log for a client endpoint, which may take updates

An endpoint (`client_endpoint`) reads frames and sends the replies that the log decides. The log handles request ids:
their freshness, their presence in the log, and their waiting clients. The endpoint handles client sockets: the target
of a reply, and the number of messages sent ahead of their confirmations.

A read covers one piece and does not keep files open, so thousands of clients may be in the middle of the log. This is a
separate module because the endpoint and both logs import it, and do not import each other.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from consensus.core.model import Entry, Index, Term
from consensus.protocols.zmq_raft.wire.messages import ChangeReply, ChangeRequest, Peer, UpdateReply, UpdateRequest
from consensus.server.storage_reads import SnapshotChunk


class LogDescription(Struct, frozen=True):
    """The description of a log for its clients; the defaults describe an empty log.

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


class SnapshotUnreadableError(Exception):
    """The stored snapshot is damaged, or another version wrote it; the text has the reason."""


class ServedLog(Protocol):
    """One log. All methods are called from one trio run; only reads wait."""

    def describe(self) -> LogDescription:
        """Return the present state. Called for each message to a client, so it must be cheap."""

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return at least one committed entry from `first` on; an empty tuple if the entries are compacted.

        Raises `ServerBusyError` (try again in a moment) or `ServerStoppedError`. `ConsensusServer.read` implements it.
        """

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """Return bytes of the stored snapshot from `offset` on.

        If `offset` is beyond its end, return an empty chunk with the offset `total_bytes`. None without a snapshot, or
        if it was replaced during the read. The chunk names its snapshot. Raises as `read` does.
        `ConsensusServer.read_snapshot` implements it. A log that decodes the snapshot may raise
        `SnapshotUnreadableError`.
        """

    def update(self, request: UpdateRequest, user: str | None, answer: Callable[[UpdateReply], None]) -> None:
        """Commit an update, once for each request id.

        Calls `answer` before it returns, or ignores the request: its client will repeat it. Any number of
        `UpdateAccepted` may come before the final reply: `UpdateCommitted`, `UpdateRedirect` or `UpdateExpired`. If a
        leader steps down before the commitment, the reply is `UpdateRedirect`, and the client repeats the request
        elsewhere. A log that does not lead redirects even an expired id. The age of an id in the log is not checked.

        If a client repeats the id of a request under way, the new `answer` gets `UpdateAccepted` immediately. Only one
        of the `answer`s of an id gets the final reply. The endpoint sends that reply to the latest sender of the id,
        since a reconnected client has another identity. An accepted request must get a final reply, or the endpoint
        waits forever.

        `user` is the sender's public key in hexadecimal digits, if the endpoint requires keys.
        """

    def change(self, request: ChangeRequest, answer: Callable[[ChangeReply], None]) -> None:
        """Change the members; `answer` as for an update, with `ChangeAccepted` first.

        A farm's log refuses every change. A peer's log checks the following conditions in this order. The first true
        one determines the reply:

            this peer does not lead                        `ChangeRedirect`
            the id is in the log                           `ChangeCommitted`
            the change with this id is under way           `ChangeAccepted`; `answer` gets the final reply
            another change of this leader is under way     `ChangeBusy`
            an update with this id is under way            `ChangeRefused`
            the id is not fresh                            `ChangeExpired`
            the peers are malformed                        `ChangeRefused`
            the configuration is joint                     `ChangeBusy`
            the peers cannot follow the present peers      `ChangeRefused`

        `MalformedPeers` is passed here too, because only a leader reports this error; a follower redirects.
        """

    def broadcast_url(self) -> str | None:
        """Return the URL of the PUB socket for applied entries; None without such a socket."""
