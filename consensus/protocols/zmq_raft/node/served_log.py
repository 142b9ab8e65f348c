"""What an endpoint for clients needs of the log that it serves.

    ServedLog ◀── the log of a ØMQ Raft peer, which takes updates and changes of its members
              ◀── the farm's log behind a client endpoint, which may take updates

An endpoint (`client_endpoint`) reads frames, checks them and keeps the state of each client's request; what the log
answers is decided behind this port. A module of its own, because the endpoint and both logs need it, and none of them
needs another.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from consensus.core.model import Index, Term
from consensus.protocols.zmq_raft.wire.messages import ChangeReply, ChangeRequest, Peer, UpdateReply, UpdateRequest
from consensus.server.log_stream import StreamItem


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log as its clients may know it. `peers` are the members; during a change those of both configurations."""

    is_leader: bool
    leader: str | None
    peers: tuple[Peer, ...]
    term: Term
    first_index: Index
    last_applied: Index
    commit: Index
    last_index: Index
    snapshot_bytes: int
    prune_index: Index
    """Up to here no request id is fresh, so a snapshot may replace the entries."""


class ServedLog(Protocol):
    """One log. Nothing here waits."""

    def describe(self) -> LogDescription:
        """How it is now."""

    def entries(self, first: Index) -> AbstractContextManager[AsyncIterator[StreamItem]]:
        """What is committed from `first` on, or the snapshot that stands for it; waits at the commit index.

        The `with` raises `ServerBusyError` or `ServerStoppedError`.
        """

    def update(self, request: UpdateRequest, user: str | None, answer: Callable[[UpdateReply], None]) -> None:
        """Have something committed; `answer` is called once or more, last with what is final.

        `user` is the name under which the sender's key is listed, where the endpoint asks for keys.
        """

    def change(self, request: ChangeRequest, answer: Callable[[ChangeReply], None]) -> None:
        """Change the members; `answer` as for an update."""

    def broadcast_url(self) -> str | None:
        """Where the PUB socket is that tells of applied entries; None: ask the leader, or there is none."""
