"""Serves the clients of a ØMQ Raft server: one function takes their messages, another sends the replies.

    frames ─▶ decode ─┬─ RequestConfig, RequestLogInfo ───▶ immediate reply from `log.describe()`, by any peer
                      ├─ RequestBroadcastStateUrl ────────▶ `log.broadcast_url()`
                      ├─ RequestUpdate, ConfigUpdate ─────▶ `log.update`, `log.change`: replies now and later
                      ├─ RequestEntries ──────────────────▶ `entry_streams`
                      ├─ a type of two bytes or more ─────▶ the service's own handler, if it has one
                      └─ any other message is dropped and counted

`receive` never raises and never waits: the task that reads the socket calls it with data from unknown senders.
Malformed messages and messages of another cluster or between peers are dropped, as in the npm package `zmq-raft`.

The log uses the request id of an update to execute it once. After a lost connection, a client repeats the request under
another identity of the socket. So the endpoint stores the latest identity for each request until its final reply. If
the client has left, the ROUTER socket drops the reply. The number of requests under way is limited, in total and per
client. The endpoint ignores further requests, and their clients repeat them.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar, assert_never

import trio
from msgspec import Struct, field

from consensus.core.model import Milliseconds
from consensus.protocols.zmq_raft.counters import EndpointDrop
from consensus.protocols.zmq_raft.endpoint.entry_streams import EntryStreams, StreamOptions
from consensus.protocols.zmq_raft.endpoint.served_log import ServedLog
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import decode_request, encode_reply
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS, FrameLimits, ZmqRaftError

A = TypeVar("A", wire.UpdateReply, wire.ChangeReply)
CustomHandler = Callable[[wire.CustomRequest, Callable[[wire.CustomReply], object]], None]
"""Handles a request of the service's own protocol; it replies immediately or later, any number of times, or never."""


class EndpointOptions(Struct, frozen=True):
    """Limits of one endpoint."""

    wire: FrameLimits = DEFAULT_LIMITS
    streams: StreamOptions = field(default_factory=StreamOptions)
    unanswered: int = 8_192
    """Limit of updates without a final reply; a separate, equal limit applies to changes of the members."""
    unanswered_of_client: int = 1_024
    accepted_after_ms: Milliseconds = 0
    """Time before "accepted" is sent.

    The reply prevents a client from repeating the update after 500 ms, but doubles the cost of replies. With 64 updates
    under way, nearly all are committed within 50 ms. 0: immediately.
    """


class _UnansweredRequest(Struct, eq=False):
    """A request under way: the target of its reply."""

    identity: bytes
    has_answer: bool = False
    is_delayed: bool = False
    """True if the log has accepted the request, and the reply "accepted" is still delayed."""


class _Unanswered(Generic[A]):
    """The requests of one kind without a final reply, by their ids."""

    def __init__(self, options: EndpointOptions, send: Callable[[bytes, A], object]) -> None:
        self._options = options
        self._send: Callable[[bytes, A], object] = send
        self._pending: dict[wire.RequestId, _UnansweredRequest] = {}
        self._of_client: Counter[bytes] = Counter()
        self._delayed: deque[tuple[float, wire.RequestId, _UnansweredRequest, A]] = deque()
        self._any_delayed = trio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def submit(
        self, request_id: wire.RequestId, identity: bytes, submit: Callable[[Callable[[A], None]], None]
    ) -> bool:
        """Pass a request to the log, and send its replies to `identity`; return False beyond the limit of requests."""
        pending = self._pending.get(request_id)
        if pending is None or pending.identity != identity:
            if self._of_client[identity] >= self._options.unanswered_of_client:
                return False
            if pending is None and len(self._pending) >= self._options.unanswered:
                return False
            if pending is not None:
                self._forget(request_id)
            pending = self._pending[request_id] = _UnansweredRequest(identity, has_answer=pending is not None)
            self._of_client[identity] += 1
        submit(partial(self._answer, request_id))
        if not pending.has_answer and self._pending.get(request_id) is pending:
            self._forget(request_id)
        return True

    async def run(self) -> None:
        """Send "accepted" for each update that waits longer for its commitment."""
        while True:
            await self._any_delayed.wait()
            await trio.sleep_until(self._delayed[0][0])
            self._send_delayed(trio.current_time())
            if not self._delayed:
                self._any_delayed = trio.Event()

    def _send_delayed(self, now_s: float) -> None:
        """Send the due replies. Most requests get their final reply earlier, so they do not cost a wake-up."""
        while self._delayed:
            due_s, request_id, pending, reply = self._delayed[0]
            waits = self._pending.get(request_id) is pending and pending.is_delayed
            if waits and due_s > now_s:
                return
            self._delayed.popleft()
            if waits:
                pending.is_delayed = False
                self._send(pending.identity, reply)

    def _answer(self, request_id: wire.RequestId, reply: A) -> None:
        pending = self._pending.get(request_id)
        if pending is None:
            return
        is_first, pending.has_answer = not pending.has_answer, True
        if isinstance(reply, wire.UpdateAccepted) and is_first and self._options.accepted_after_ms:
            pending.is_delayed = True
            self._delayed.append(
                (trio.current_time() + self._options.accepted_after_ms / 1000, request_id, pending, reply)
            )
            self._any_delayed.set()
            return
        pending.is_delayed = False
        if not isinstance(reply, wire.UpdateAccepted | wire.ChangeAccepted):
            self._forget(request_id)
        self._send(pending.identity, reply)

    def _forget(self, request_id: wire.RequestId) -> None:
        identity = self._pending.pop(request_id).identity
        self._of_client[identity] -= 1
        if not self._of_client[identity]:
            del self._of_client[identity]


class ClientEndpoint:
    """A server's endpoint for clients.

    `reply` sends frames to an identity, and returns False if its queue is full.
    """

    def __init__(
        self,
        log: ServedLog,
        ident: bytes,
        reply: Callable[[bytes, Sequence[bytes]], bool],
        *,
        options: EndpointOptions | None = None,
        custom: CustomHandler | None = None,
    ) -> None:
        self._log = log
        self._ident = ident
        self._reply = reply
        self._options = options or EndpointOptions()
        self._custom = custom
        self._counts: Counter[EndpointDrop] = Counter()
        self._updates = _Unanswered[wire.UpdateReply](self._options, self._send)
        self._changes = _Unanswered[wire.ChangeReply](self._options, self._send)
        self._streams = EntryStreams(log, self._send, self._counts, self._options.streams)

    @property
    def counts(self) -> Counter[EndpointDrop]:
        """Return the number of messages without a reply, by reason."""
        return self._counts

    @property
    def under_way(self) -> int:
        """Number of updates and changes without a final reply, and of streams of entries."""
        return len(self._updates) + len(self._changes) + self._streams.count

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send requested entries until canceled. All other requests are served without this task.

        With `accepted_after_ms`, it also sends "accepted" for updates.
        """
        async with trio.open_nursery() as nursery:
            if self._options.accepted_after_ms:
                nursery.start_soon(self._updates.run)
            await self._streams.run(task_status=task_status)

    def receive(self, identity: bytes, frames: list[bytes], user: str | None = None) -> None:
        """Process one message of a client, without its identity frame.

        `user` is the sender's public key in hexadecimal digits, if the socket requires keys.
        """
        try:
            request = decode_request(frames, self._options.wire)
        except ZmqRaftError:
            self._counts[EndpointDrop.MALFORMED] += 1
            return
        if request.ident != self._ident:
            self._counts[EndpointDrop.OTHER_CLUSTER] += 1
        elif isinstance(request, wire.RequestVoteRpc | wire.AppendEntriesRpc | wire.InstallSnapshotRpc):
            self._counts[EndpointDrop.PEER_MESSAGE] += 1
        else:
            self._take(identity, request, user)

    def _take(self, identity: bytes, request: wire.ClientRequest, user: str | None) -> None:
        match request:
            case wire.ConfigRequest(request_id):
                now = self._log.describe()
                self._send(
                    identity,
                    wire.ConfigReply(
                        request_id=request_id, is_leader=now.is_leader, leader=now.leader, peers=now.peers
                    ),
                )
            case wire.LogInfoRequest():
                self._send(identity, self._log_info(request))
            case wire.UrlRequest(request_id):
                self._send(identity, wire.UrlReply(request_id, self._log.broadcast_url()))
            case wire.UpdateRequest(request_id):
                take = partial(self._log.update, request, user)
                self._count_ignored(
                    EndpointDrop.TOO_MANY_UPDATES, taken=self._updates.submit(request_id, identity, take)
                )
            case wire.ChangeRequest(request_id):
                take_change = partial(self._log.change, request)
                self._count_ignored(
                    EndpointDrop.TOO_MANY_CHANGES, taken=self._changes.submit(request_id, identity, take_change)
                )
            case wire.EntriesRequest():
                self._streams.submit(identity, request)
            case wire.CustomRequest():
                if self._custom is None:
                    self._counts[EndpointDrop.UNHANDLED_TYPE] += 1
                else:
                    self._custom(request, partial(self._send, identity))
            case _:
                assert_never(request)

    def _log_info(self, request: wire.LogInfoRequest) -> wire.LogInfoReply:
        now = self._log.describe()
        return wire.LogInfoReply(
            request_id=request.request_id,
            is_leader=now.is_leader,
            leader=now.leader,
            term=now.term,
            first_index=now.first_index,
            last_applied=now.last_applied,
            commit=now.commit,
            last_index=now.last_index,
            snapshot_bytes=now.snapshot_bytes,
            prune_index=now.prune_index,
        )

    def _count_ignored(self, reason: EndpointDrop, *, taken: bool) -> None:
        if not taken:
            self._counts[reason] += 1

    def _send(self, identity: bytes, reply: wire.ClientReply) -> bool:
        try:
            frames = encode_reply(reply)
        except ZmqRaftError:
            self._counts[EndpointDrop.REPLY_UNENCODABLE] += 1
            return False
        return self._reply(identity, frames)
