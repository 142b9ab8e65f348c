"""The farm's log for ØMQ Raft clients: the entries that this node has applied, with the same indexes.

    the farm's log                              the client's view
    application entry            ──▶  STATE       the same bytes as the value in `GET /v1/log`
      with a named reqid                          with that reqid
      without one                                 with a reqid of its log time and its index
      a copy, or a request out of time            CHECKPOINT
    configuration, no-op         ──▶  CHECKPOINT  so each entry keeps its index
    the stored snapshot          ──▶  a JSON document of its state (`bridge.node.zmq.log_snapshot`)

A client of this protocol finds a leader and reads from no other server. Every node has the committed log, so each
endpoint presents itself as the leader. A client stays at its node, but can change to another node, because entries have
the same indexes and reqids there. The log of an endpoint ends at the applied index of its node. Before a node has
applied an entry, it does not know the entry's log time, or whether the entry is a copy.

A *reqid* is the id of a request in ØMQ Raft. A generated reqid consists of 4 bytes of log time in seconds and 8 bytes
of index, both big-endian. It is unique, and equal on the nodes that know the entry's log time. If a node no longer
knows this time (`LogTimeIndex`), the seconds are 0.

While this node is not a server of a farm, the endpoint has neither a leader nor entries.
"""

from collections.abc import Callable
from typing import Final

import trio
from msgspec import MsgspecError

from bridge.api.json import encode
from bridge.core.log.records import request_of
from bridge.core.state.reqids import OLDEST_S, REQID_BYTES, reqid_in
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.raft.applied_state import AppliedState
from bridge.node.zmq.log_snapshot import log_snapshot
from bridge.node.zmq.updates import FarmUpdates
from bridge.wire.log.entries import decode
from bridge.wire.log.snapshot import FarmSnapshotError, decode_farm_at_once
from consensus import Entry, EntryKind, Index, LogId, NoOp, SnapshotChunk, no_op_entry
from consensus.protocols.zmq_raft import (
    ChangeRefused,
    ChangeReply,
    ChangeRequest,
    LogDescription,
    Peer,
    SnapshotUnreadableError,
    UpdateReply,
    UpdateRequest,
)
from consensus.storage import ImageReader, RecordError

SNAPSHOT_READ_BYTES: Final = 1024 * 1024
_SECONDS_LIMIT: Final = 2**32
_MEMBERS_ARE_THE_FARMS: Final = (
    "this protocol cannot change the members of a farm: nodes join and leave by the farm's own rules (garlicfarm"
    " node, garlicfarm servers)"
)


class FarmLog:
    """A `ServedLog` over the farm that this node serves at the moment.

    Clients reach this endpoint at `url`. `peers` are the URLs of other nodes' endpoints; each URL is also the peer's
    id, so that all nodes use the same ids. `broadcast` is the URL of the PUB socket, if any.
    """

    def __init__(
        self, current: CurrentFarm, url: str, peers: tuple[str, ...], broadcast: str | None, updates: FarmUpdates
    ) -> None:
        self._current = current
        self._url = url
        self._peers = tuple(Peer(each, each) for each in dict.fromkeys((url, *peers)))
        self._broadcast = broadcast
        self._updates = updates
        self._document: tuple[LogId, bytes] | None = None
        self._making_document = trio.Lock()
        self._pruned: tuple[int, Index] = (0, 0)
        """Log time, and the prune index at that time."""

    def describe(self) -> LogDescription:
        """Return the present state of the log."""
        farm = self._current.farm
        if farm is None:
            return LogDescription(is_leader=False, leader=None, peers=self._peers)
        about = farm.replica.server.describe()
        raft, applied = about.raft, about.applied
        return LogDescription(
            is_leader=True,
            leader=self._url,
            peers=self._peers,
            term=raft.term,
            first_index=raft.log_start.index + 1,
            last_applied=applied,
            commit=applied,
            last_index=max(applied, raft.last.index),
            snapshot_bytes=self._snapshot_bytes(None if raft.snapshot is None else raft.snapshot.last),
            prune_index=self._prune_index(farm),
        )

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return committed entries from `first` on in the clients' form; none if they are compacted."""
        farm = self._current.serving()
        limit = min(limit_entries, farm.replica.server.describe().applied - first + 1)
        if limit < 1:
            await trio.lowlevel.checkpoint()
            return ()
        entries = await farm.replica.server.read(first, limit, limit_bytes)
        return tuple(as_clients_see(first + offset, entry, farm.applied_state) for offset, entry in enumerate(entries))

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """Return bytes of the document that replaces the compacted entries."""
        async with self._making_document:
            made = await self._document_of(self._current.serving())
        if made is None:
            return None
        last, document = made
        start = min(offset, len(document))
        return SnapshotChunk(last, len(document), start, document[start : start + limit_bytes])

    def update(self, request: UpdateRequest, user: str | None, answer: Callable[[UpdateReply], None]) -> None:
        """Have an entry committed, if `user` may."""
        self._updates.update(request, user, answer)

    def change(self, request: ChangeRequest, answer: Callable[[ChangeReply], None]) -> None:
        """Refuse the change: the farm has its own rules for members."""
        answer(ChangeRefused(request.request_id, "Error", _MEMBERS_ARE_THE_FARMS))

    def broadcast_url(self) -> str | None:
        """Return the URL of the PUB socket, if any."""
        return self._broadcast if self._current.farm is not None else None

    async def news(self) -> None:
        """Wait until something is applied after the call."""
        farm = await self._current.founded()
        await farm.applied_state.news()

    def _prune_index(self, farm: FoundedFarm) -> Index:
        log_time_ms = farm.state.log_time_ms
        if self._pruned[0] != log_time_ms:
            self._pruned = log_time_ms, farm.applied_state.moments.last_until(log_time_ms - OLDEST_S * 1000)
        return self._pruned[1]

    def _snapshot_bytes(self, last: LogId | None) -> int:
        """Return the size of the document.

        It is 0 before the first request for the document, because making it reads the entire snapshot.
        """
        return len(self._document[1]) if self._document is not None and self._document[0] == last else 0

    async def _document_of(self, farm: FoundedFarm) -> tuple[LogId, bytes] | None:
        snapshot = farm.replica.server.describe().raft.snapshot
        if snapshot is None:
            await trio.lowlevel.checkpoint()
            return None
        if self._document is None or self._document[0] != snapshot.last:
            image = await _image(farm)
            if image is None:
                return None
            last, parts = image
            self._document = last, await trio.to_thread.run_sync(document_of, last, parts)
        return self._document


def as_clients_see(index: Index, entry: Entry, applied_state: AppliedState) -> Entry:
    """Return the entry of the farm's log at `index`, with the head of a ØMQ Raft entry."""
    if entry.kind is not EntryKind.COMMAND or not entry.data or applied_state.is_skipped(index, entry.data):
        return no_op_entry(entry.term, NoOp())
    reqid = _named_reqid(entry.data) or made_reqid(index, applied_state.moments.time_at(index))
    return Entry(entry.term, EntryKind.COMMAND, reqid + entry.data)


def made_reqid(index: Index, log_time_ms: int | None) -> bytes:
    """Return the reqid of an entry without one."""
    second = 0 if log_time_ms is None else max(0, log_time_ms // 1000) % _SECONDS_LIMIT
    return second.to_bytes(4, "big") + index.to_bytes(REQID_BYTES - 4, "big")


def document_of(last: LogId, image: tuple[bytes, ...]) -> bytes:
    """Return the document of a stored snapshot, from the pieces of its image; raise `SnapshotUnreadableError`."""
    reader = ImageReader()
    try:
        state = [each for piece in image for each in reader.feed(piece)]
        reader.finish()
        return encode(log_snapshot(decode_farm_at_once(state).farm, last.index, last.term))
    except (RecordError, FarmSnapshotError, MsgspecError) as error:
        raise SnapshotUnreadableError(f"the stored snapshot of entry {last.index} cannot be read: {error}") from error


def _named_reqid(data: bytes) -> bytes | None:
    """Return the reqid in an entry. Decode the entry only if its bytes contain a reqid's prefix or an escape."""
    return reqid_in(request_of(decode(data))) if b"zmq:" in data or b"\\" in data else None


async def _image(farm: FoundedFarm) -> tuple[LogId, tuple[bytes, ...]] | None:
    """Return the stored snapshot from the disk; None if it was replaced during the read."""
    pieces: list[bytes] = []
    offset, last = 0, None
    while True:
        chunk = await farm.replica.server.read_snapshot(offset, SNAPSHOT_READ_BYTES)
        if chunk is None or (last is not None and chunk.last != last):
            return None
        pieces.append(chunk.data)
        last, offset = chunk.last, offset + len(chunk.data)
        if offset >= chunk.total_bytes:
            return last, tuple(pieces)
