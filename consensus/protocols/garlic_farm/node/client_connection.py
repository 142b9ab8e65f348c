"""The requesting side of a connection after the HTTP upgrade: replies arrive in the order of the requests.

    post(request) ─▶ queue ─▶ in flight ─▶ the next reply belongs to the oldest request

A reply does not name its request; only the order of replies matches them to requests. After a lost or surplus reply,
every later reply would be assigned to the wrong request. So any irregularity closes the connection. TCP may need a
quarter of an hour to detect a dead peer, so the oldest request without a reply has a timeout. A reply on another
connection shows that the peer is alive and perhaps has a slow disk (`prolong`). Each reply restarts the timeout of the
next request. The timeout includes the transfer of the request at the lowest assumed rate of the network. If no second
connection shows that the peer is alive, the caller passes the lower rate of the slowest link.

A call may have its own time limit. The connection ends late calls together, because a cancel scope for each call would
take longer than the other work for it. The reply to a late call is dropped.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from math import inf

import trio
from msgspec import Struct

from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.wire.codec import ReplyReader
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.messages import Reply
from consensus.server.callbacks import run_callback
from consensus.server.pending_calls import CallbackResult

_READ_BYTES = 65_536
_WRITE_BYTES = 262_144
_SLOWEST_BYTES_PER_S = 1_000_000
"""The lowest assumed rate of the network. At this rate, the reply timeout begins when the request has arrived."""


class Lost(Enum):
    """Reason for a missing reply."""

    QUEUE_FULL = "queue full"
    UNSENT = "unsent"
    UNANSWERED = "unanswered"
    LATE = "late"


OnReply = Callable[[Reply | Lost], None]


class _Posted(Struct, eq=False):
    size_bytes: int
    on_reply: OnReply
    due_s: float
    sent_s: float


def _drop(_: Reply | Lost) -> None:
    """Drop the reply to a late call."""


class ClientConnection:
    """The requests and replies of one connection.

    Replies arrive only while `run` runs. `post` itself sends a request of at most `_WRITE_BYTES`, if no earlier one
    waits for its reply.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        trailing: bytes = b"",
        *,
        reply_timeout_s: float,
        window: int = 256,
        queue_max: int = 1024,
        least_bytes_per_s: float = _SLOWEST_BYTES_PER_S,
    ) -> None:
        self._stream = stream
        self._reader = ReplyReader()
        self._reader.feed(trailing)
        self._reply_timeout_s = reply_timeout_s
        self._window = window
        self._queue_max = queue_max
        self._least_bytes_per_s = least_bytes_per_s
        self._queue: deque[tuple[bytes, _Posted]] = deque()
        self._in_flight: deque[_Posted] = deque()
        self._late_s = inf
        """No request is late before this time."""
        self._alive_until_s = -inf
        self.replied_s = self.posted_s = -inf
        """Times of the last reply and of the last posted request."""
        self._work = trio.Event()
        self._patience = trio.CancelScope()
        self._expires_s = inf
        """The deadline of `_patience`, a scope that serves many messages.

        If a reply has postponed the deadline, `_read` opens another scope when the old scope ends. A request that
        postpones the deadline by more than half of the timeout also moves the scope's deadline. So the scope does not
        end while heartbeats are regular.
        """
        self._fault: GarlicFarmError | None = None
        self.open = True
        self.replies = 0

    def post(self, request: bytes, on_reply: OnReply, due_s: float = inf) -> bool:
        """Queue a request and return True; `on_reply` is then called exactly once, with `Lost.LATE` at `due_s`.

        If the queue is full or the connection is closed, return False and do not call `on_reply`.
        """
        if not self.open or len(self._queue) >= self._queue_max:
            return False
        self.posted_s = trio.current_time()
        posted = _Posted(len(request), on_reply, due_s, self.posted_s)
        if self.waiting or not self._sent_immediately(request, posted):
            self._queue.append((request, posted))
            self._work.set()
        if due_s < self._late_s:
            self._late_s = due_s
            self._expect()
        return True

    async def call(self, request: bytes, due_s: float = inf) -> Reply | Lost:
        """Post a request and wait for its reply. Canceling the caller does not withdraw the request."""
        result: CallbackResult[Reply | Lost] = CallbackResult()
        if not self.post(request, result.give, due_s):
            return Lost.QUEUE_FULL
        return await result.wait() or Lost.UNANSWERED

    @property
    def waiting(self) -> int:
        """Requests without a reply."""
        return len(self._queue) + len(self._in_flight)

    @property
    def oldest_s(self) -> float:
        """Return the time when the oldest open request was sent; infinity without one."""
        return self._in_flight[0].sent_s if self._in_flight else inf

    def prolong(self) -> None:
        """Restart the reply timeout: the peer has replied on another connection."""
        self._alive_until_s = trio.current_time() + self._reply_timeout_s

    async def run(self) -> None:
        """Carry requests until the connection ends; raise GarlicFarmError after an invalid or missing reply."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.open = False
            # Abandon the requests first, because a cancellation may interrupt the closing of the stream.
            self._abandon()
            await trio.aclose_forcefully(self._stream)
        if self._fault is not None:
            raise self._fault

    def _sent_immediately(self, request: bytes, posted: _Posted) -> bool:
        """Send a single request without the writer task; return False if that is not possible now."""
        stream = self._stream
        if not isinstance(stream, TlsStream) or stream.unsent_bytes or posted.size_bytes > _WRITE_BYTES:
            return False
        try:
            stream.send_now(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        self._in_flight.append(posted)
        self._expect()
        if stream.unsent_bytes:
            self._work.set()
        return True

    async def _write(self, connection: trio.CancelScope) -> None:
        while True:
            if isinstance(self._stream, TlsStream) and self._stream.unsent_bytes:
                if not await self._send(b"", connection):
                    return
                continue
            if not self._queue or len(self._in_flight) >= self._window:
                self._work = trio.Event()
                await self._work.wait()
                continue
            batch, size_bytes, now_s = [], 0, trio.current_time()
            while self._queue and len(self._in_flight) < self._window and size_bytes < _WRITE_BYTES:
                request, posted = self._queue.popleft()
                posted.sent_s = now_s
                batch.append(request)
                size_bytes += posted.size_bytes
                self._in_flight.append(posted)
            self._expect()
            if not await self._send(b"".join(batch), connection):
                return

    async def _send(self, data: bytes, connection: trio.CancelScope) -> bool:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            connection.cancel()
            return False
        return True

    async def _read(self) -> None:
        try:
            while trio.current_time() < self._deadline():
                self._expires_s = min(self._deadline(), self._late_s)
                with trio.CancelScope(deadline=self._expires_s) as self._patience:
                    await self._deliver_all()
                    return
                self._end_late_calls(trio.current_time())
            text = f"no reply within {self._reply_timeout_s:g} s: the connection counts as dead"
            self._fault = GarlicFarmError(Fault.SILENT, text)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        except GarlicFarmError as error:
            self._fault = error

    async def _deliver_all(self) -> None:
        while True:
            while (reply := self._reader.next()) is not None:
                self._deliver(reply)
            data = await self._stream.receive_some(_READ_BYTES)
            if not data:
                return
            self._reader.feed(bytes(data))

    def _deliver(self, reply: Reply) -> None:
        if not self._in_flight:
            raise GarlicFarmError(Fault.OUT_OF_TURN, "a reply arrived that answers no request")
        self.replies += 1
        self.replied_s = trio.current_time()
        self._in_flight.popleft().on_reply(reply)
        if self._queue:
            self._work.set()

    def _end_late_calls(self, now_s: float) -> None:
        self._late_s = inf
        for posted in (*self._in_flight, *(queued for _, queued in self._queue)):
            if posted.due_s > now_s:
                self._late_s = min(self._late_s, posted.due_s)
            else:
                posted.due_s, on_reply, posted.on_reply = inf, posted.on_reply, _drop
                run_callback(on_reply, Lost.LATE)

    def _expect(self) -> None:
        due_s = min(self._deadline(), self._late_s)
        if due_s < self._expires_s or due_s > self._expires_s + self._reply_timeout_s / 2:
            self._patience.deadline = self._expires_s = due_s

    def _deadline(self) -> float:
        if not self._in_flight:
            return inf
        oldest = self._in_flight[0]
        start_s = max(oldest.sent_s, self.replied_s)
        due_s = start_s + self._reply_timeout_s + oldest.size_bytes / self._least_bytes_per_s
        return max(due_s, self._alive_until_s)

    def _abandon(self) -> None:
        in_flight, self._in_flight = self._in_flight, deque()
        queue, self._queue = self._queue, deque()
        for posted in in_flight:
            run_callback(posted.on_reply, Lost.UNANSWERED)
        for _, posted in queue:
            run_callback(posted.on_reply, Lost.UNSENT)
