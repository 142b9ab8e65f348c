"""A log for the endpoint of ØMQ Raft clients: a test sets its content, and it does not elect leaders."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.model import Entry, Index, LogId
from consensus.protocols.zmq_raft.endpoint.client_endpoint import ClientEndpoint, CustomHandler, EndpointOptions
from consensus.protocols.zmq_raft.endpoint.served_log import LogDescription, SnapshotUnreadableError
from consensus.protocols.zmq_raft.wire.codec import decode_reply, encode_request
from consensus.protocols.zmq_raft.wire.messages import (
    ChangeReply,
    ChangeRequest,
    ClientReply,
    ClientRequest,
    Peer,
    UpdateReply,
    UpdateRequest,
)
from consensus.server.errors import ServerBusyError
from consensus.server.storage_reads import SnapshotChunk

IDENT = b"testcluster"
PEERS = tuple(Peer(name, f"tcp://127.0.0.1:{port}") for name, port in (("1", 8047), ("2", 8147), ("3", 8247)))
CLIENT = b"\x00c1"


def update_entry(number: int, size: int = 1) -> Entry:
    """Return the entry of an update with a payload of `size` bytes."""
    return Entry.command(1, b"%012d" % number + b"x" * size)


@dataclass(frozen=True, slots=True)
class Taken:
    """A received update or change."""

    request: UpdateRequest | ChangeRequest
    user: str | None
    answer: Callable[[Any], None]
    """Function that receives the replies to the request."""


@dataclass
class FakeLog:
    """Entries from `first_index` on, after a snapshot. Updates and changes are kept until a test answers them."""

    entries: list[Entry] = field(default_factory=list)
    first_index: Index = 1
    snapshot: tuple[LogId, bytes] | None = None
    is_leader: bool = True
    leader: str | None = "2"
    url: str | None = "tcp://127.0.0.1:8048"
    first_update_answer: Callable[[UpdateRequest], UpdateReply] | None = None
    first_change_answer: Callable[[ChangeRequest], ChangeReply] | None = None
    updates: list[Taken] = field(default_factory=list)
    changes: list[Taken] = field(default_factory=list)
    reads: list[Index] = field(default_factory=list)
    """First indexes of the read entries."""
    offsets: list[int] = field(default_factory=list)
    """Offsets of the snapshot reads."""
    snapshot_is_damaged: bool = False
    busy: int = 0
    """Number of further reads that the log refuses."""
    open_for_reads: trio.Event | None = None
    """Event that reads wait for."""

    @property
    def last_index(self) -> Index:
        """Return the last index; all entries are applied."""
        return self.first_index + len(self.entries) - 1

    def describe(self) -> LogDescription:
        """Return the state that the test set."""
        last, size = self.last_index, len(self.snapshot[1]) if self.snapshot else 0
        return LogDescription(self.is_leader, self.leader, PEERS, 1, self.first_index, last, last, last, size, 0)

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        await self._wait()
        self.reads.append(first)
        found: list[Entry] = []
        for entry in self.entries[first - self.first_index :] if first >= self.first_index else ():
            limit_bytes -= len(entry.data)
            if len(found) == limit_entries or (found and limit_bytes < 0):
                break
            found.append(entry)
        return tuple(found)

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        await self._wait()
        self.offsets.append(offset)
        if self.snapshot is None:
            return None
        if self.snapshot_is_damaged:
            raise SnapshotUnreadableError
        last, data = self.snapshot
        start = min(offset, len(data))
        return SnapshotChunk(last, len(data), start, data[start : start + limit_bytes])

    def update(self, request: UpdateRequest, user: str | None, answer: Callable[[UpdateReply], None]) -> None:
        """Keep the request, and send the first reply if one is set."""
        self.updates.append(Taken(request, user, answer))
        if self.first_update_answer is not None:
            answer(self.first_update_answer(request))

    def change(self, request: ChangeRequest, answer: Callable[[ChangeReply], None]) -> None:
        """Keep the request, and send the first reply if one is set."""
        self.changes.append(Taken(request, None, answer))
        if self.first_change_answer is not None:
            answer(self.first_change_answer(request))

    def broadcast_url(self) -> str | None:
        """Return the URL that the test set."""
        return self.url

    def compact(self, upto: Index, state: bytes) -> None:
        """Replace the entries up to `upto` by a snapshot."""
        self.entries = self.entries[upto + 1 - self.first_index :]
        self.first_index = upto + 1
        self.snapshot = LogId(upto, 1), state

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.open_for_reads is not None:
            await self.open_for_reads.wait()
        if self.busy:
            self.busy -= 1
            raise ServerBusyError("busy")


class Stage:
    """An endpoint over a fake log, and its sent messages."""

    def __init__(
        self, log: FakeLog, options: EndpointOptions | None = None, custom: CustomHandler | None = None
    ) -> None:
        self.log = log
        self.sent: list[tuple[bytes, list[bytes]]] = []
        self.has_room = True
        self.endpoint = ClientEndpoint(log, IDENT, self._reply, options=options, custom=custom)
        self._request_types: dict[tuple[bytes, bytes], type[ClientRequest]] = {}

    def _reply(self, identity: bytes, frames: object) -> bool:
        assert isinstance(frames, list)
        if self.has_room:
            self.sent.append((identity, frames))
        return self.has_room

    def ask(self, request: ClientRequest, identity: bytes = CLIENT, user: str | None = None) -> None:
        """Send a request as a client does."""
        self._request_types[identity, request.request_id] = type(request)
        self.endpoint.receive(identity, encode_request(replace(request, ident=IDENT)), user)

    def replies(self, identity: bytes = CLIENT) -> list[ClientReply]:
        """Return the replies to the client since the last call."""
        mine = [frames for to, frames in self.sent if to == identity]
        self.sent = [(to, frames) for to, frames in self.sent if to != identity]
        return [decode_reply(self._request_types[identity, frames[0]], frames) for frames in mine]

    async def answer(self, *requests: ClientRequest, identity: bytes = CLIENT) -> list[ClientReply]:
        """Send requests, and return the replies after all tasks wait."""
        for request in requests:
            self.ask(request, identity)
        await trio.testing.wait_all_tasks_blocked()
        return self.replies(identity)


@asynccontextmanager
async def serving(log: FakeLog, options: EndpointOptions | None = None) -> AsyncIterator[Stage]:
    """Run an endpoint, and check that no request is in progress at the end."""
    stage = Stage(log, options)
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.endpoint.run)
        yield stage
        nursery.cancel_scope.cancel()
    assert stage.endpoint.under_way == 0
