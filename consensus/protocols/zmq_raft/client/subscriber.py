"""A client's subscription: committed entries after an index, as they commit, without a gap and without repetition.

    find the leader ──▶ request the URL of its PUB socket ──▶ connect a SUB socket
        ▲                                                            │
        │                                            fetch: RequestEntries from the last index on
        │                                                            │
        │              ┌── it ends before our index, or at it ──▶ drop it: these entries are known
        └─ none for 1 s ── a broadcast ── it continues after our index ──▶ yield the later entries
                       └── entries are missing before it, or it lacks the announced entries ──▶ fetch

A broadcast contains the leader's applied index, and may contain the last entries before it. PUB drops messages that a
slow connection cannot take, a subscription begins at any moment, and another leader broadcasts elsewhere. So broadcasts
are only early notices, and each gap is closed by RequestEntries, which returns every entry.

Broadcasts wait here while the consumer is slow or a gap is being closed. `ZmqClientOptions` limits their number and
size. Any excess is dropped, and shows as a gap. A leader also sends two broadcasts without entries each second;
adjacent ones take only one place. Without any broadcasts, new entries are fetched once a second.

A deposed leader may continue to broadcast, and its broadcasts do not show that entries are missing. So the subscription
follows the client: when any request of the same client has found another leader, the subscription moves there.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, assert_never

import trio

from consensus.core.model import Index
from consensus.protocols.zmq_raft.client.known_leader import KnownLeader
from consensus.protocols.zmq_raft.client.log_reader import CommittedEntry, LogItem, SnapshotPart, log_entry
from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.wire.codec import decode_broadcast
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError
from consensus.protocols.zmq_raft.wire.messages import StateBroadcast


class _Broadcasts:
    """Messages of one PUB socket, kept until they are taken. The end of its `with` block ends the subscription."""

    def __init__(self, leader: KnownLeader, url: str) -> None:
        self._ident = leader.ident
        self._options = leader.options
        self._counters = leader.links.counters
        self._buffered_broadcasts: deque[tuple[StateBroadcast, int]] = deque()
        self._buffered_bytes = 0
        self._arrived = trio.Event()
        self._received_s = trio.current_time()
        try:
            self._life = leader.links.subscribe(url, leader.ident, self._receive)
        except OSError:
            # A SUB socket that cannot be opened is handled like missing broadcasts.
            self._life = trio.CancelScope()
            self._counters[ClientEvent.BROADCAST_UNREACHABLE] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.cancel()

    async def next(self) -> StateBroadcast | None:
        if not self._buffered_broadcasts:
            self._arrived = trio.Event()
            with trio.CancelScope(deadline=self._received_s + self._options.broadcast_ttl_s):
                await self._arrived.wait()
        if not self._buffered_broadcasts:
            return None
        broadcast, size = self._buffered_broadcasts.popleft()
        self._buffered_bytes -= size
        return broadcast

    def _receive(self, frames: list[bytes], _user: str | None) -> None:
        options = self._options
        if frames[0] != self._ident:
            self._counters[ClientEvent.BROADCAST_OF_OTHER_CLUSTER] += 1
            return
        try:
            broadcast = decode_broadcast(frames)
        except ZmqRaftError:
            self._counters[ClientEvent.MALFORMED] += 1
            return
        self._received_s = trio.current_time()
        size = sum(map(len, frames))
        if self._buffered_broadcasts and not broadcast.entries and not self._buffered_broadcasts[-1][0].entries:
            self._buffered_bytes -= self._buffered_broadcasts.pop()[1]
        if self._buffered_broadcasts and (
            len(self._buffered_broadcasts) >= options.max_ahead or self._buffered_bytes + size > options.max_ahead_bytes
        ):
            self._counters[ClientEvent.BROADCAST_WITHOUT_ROOM] += 1
            return
        self._buffered_broadcasts.append((broadcast, size))
        self._buffered_bytes += size
        self._arrived.set()


class Subscriber:
    """One subscription, to entries after index `last`.

    `find_url` returns the URL of the leader's PUB socket, `fetch` committed entries after an index.
    """

    def __init__(
        self,
        leader: KnownLeader,
        last: Index,
        find_url: Callable[[], Awaitable[str]],
        fetch: Callable[[Index], AsyncGenerator[LogItem, None]],
    ) -> None:
        self._leader = leader
        self._last = last
        self._find_url = find_url
        self._fetch = fetch

    async def items(self) -> AsyncGenerator[LogItem, None]:
        """Yield every entry once, in order, without end. Exceptions of `find_url` and `fetch` end it."""
        while True:
            url = await self._find_url()
            leader = self._leader.url
            with _Broadcasts(self._leader, url) as broadcasts:
                is_behind = True
                while True:
                    if is_behind:
                        async with aclosing(self._fetch(self._last)) as missing:
                            async for item in missing:
                                self._read(item)
                                yield item
                    broadcast = await broadcasts.next()
                    if broadcast is None or self._leader.url not in {leader, None}:
                        break
                    is_behind, news = self._take(broadcast)
                    for entry in news:
                        yield entry
            if leader is not None:
                self._leader.lose(leader, waits_first=False)

    def _read(self, item: LogItem) -> None:
        match item:
            case CommittedEntry():
                self._last = item.index
            case SnapshotPart():
                if item.is_last:
                    self._last = item.last_index
            case _:
                assert_never(item)

    def _take(self, broadcast: StateBroadcast) -> tuple[bool, Sequence[CommittedEntry]]:
        """Return True if entries before the broadcast's end are missing; and its entries after the known ones."""
        known = self._last
        if broadcast.last_applied <= known:
            return False, ()
        first = broadcast.last_applied - len(broadcast.entries) + 1
        if first > known + 1:
            return True, ()
        self._last = broadcast.last_applied
        news = broadcast.entries[known + 1 - first :]
        return False, [log_entry(known + 1 + number, entry) for number, entry in enumerate(news)]
