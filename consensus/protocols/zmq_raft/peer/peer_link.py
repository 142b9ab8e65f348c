"""The link to one peer: a DEALER socket, one request that waits for its reply, and the request's repetition.

    send ──▶ the outstanding request ──▶ sent again each `interval_s` ──▶ answered │ abandoned
                     └── a newer request replaces it

ØMQ loses messages without an error when a connection ends. So the protocol repeats the same frames with the same
message id, and the peer repeats its reply. If the core repeats a request with other contents, the new request has
another id and replaces the first.

*An append with entries* is sent once. The npm package `zmq-raft` crashes if a follower receives the same append again
over another connection after it has committed the entries. So a lost append is not repeated. The core notices the
overdue reply, and probes from the end of its log (`Features.probes_from_the_end`), which harms no server.

*Late replies.* A reply to a replaced request has only the message id. So the link keeps the last requests, each for one
reply, to find the correlation for the core. It drops and counts other replies. Messages are queued only with a
connection (`only_connected`), because otherwise a returning peer would get old requests first.

*RequestConfig.* A leader's snapshot does not contain the members, so its receiver queries the sender over this link's
socket (`peer_transport`). The id of this query has four bytes, and the id of a request between peers at most three. So
the length shows which reply it is.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

import trio
from msgspec import Struct

from consensus.core import messages as core
from consensus.core.model import ServerId
from consensus.core.options import Options
from consensus.protocols.zmq_raft.counters import PeerEvent
from consensus.protocols.zmq_raft.sockets import DEFAULT_OPTIONS, SocketKind, SocketOptions, ZmqContext, ZmqSocket
from consensus.protocols.zmq_raft.wire.codec import decode_reply, encode_request
from consensus.protocols.zmq_raft.wire.frames import (
    DEFAULT_LIMITS,
    MAX_MESSAGE_ID,
    MESSAGE_ID_BYTES,
    ZmqRaftError,
    read_uint,
)
from consensus.protocols.zmq_raft.wire.mapping import reply_from_wire
from consensus.protocols.zmq_raft.wire.messages import ConfigReply, ConfigRequest, MessageId, Peer, PeerRequest

REMEMBERED_REQUESTS: Final = 16
SEND_QUEUE: Final = 4
_CONFIG_ID_BYTES: Final = 4
_MOST_FRAMES: Final = 16
"""Limit of the frames of a reply; none has more than five."""


class PeerTimes(Struct, frozen=True):
    """Intervals for repeating messages between peers, in milliseconds; the first three equal the package's.

    `for_options` returns intervals for peers with a slower connection.
    """

    vote_ms: int = 50
    heartbeat_ms: int = 70
    chunk_ms: int = 140
    """Interval for the chunks of a snapshot."""
    unsent_ms: int = 20
    """Interval for a message that could not be sent because of a missing connection."""
    repeats: int = 20
    """Number of intervals before a request is abandoned. The core then decides the next message."""
    configuration_ms: int = 200
    """Time that the receiver of a snapshot waits for the leader's list of members."""
    reconnect_ms: int = 50
    lost_ms: int = 2_000
    """Maximum time without a connection or an acknowledgment before the connection is replaced."""
    elsewhere_ms: int = 1_000
    """Time without a reply until a member is tried at its other URL: several elections and heartbeats."""

    @classmethod
    def for_options(cls, options: Options) -> "PeerTimes":
        """Return the times of a server with these options.

        With `retry_ms` 140, the minimum, the result has the defaults of this class, except perhaps `vote_ms`. Votes are
        repeated for at least the maximum election timeout, because opening a connection may take long.
        """
        retry_ms = options.retry_ms
        return cls(
            vote_ms=max(50, math.ceil(options.election_timeout_max_ms / DEFAULT_TIMES.repeats)),
            heartbeat_ms=retry_ms // 2,
            chunk_ms=retry_ms,
            configuration_ms=max(200, retry_ms),
            lost_ms=max(2_000, options.election_timeout_min_ms),
            elsewhere_ms=max(1_000, 2 * options.election_timeout_min_ms),
        )


DEFAULT_TIMES: Final = PeerTimes()


class _Outstanding(Struct):
    message_id: MessageId
    frames: list[bytes]
    interval_s: float
    until_s: float
    due_s: float = math.inf
    was_sent: bool = False


class _Question(Struct, frozen=True):
    request_id: bytes
    on_reply: Callable[[tuple[Peer, ...] | None], None]
    due_s: float


class PeerLink:
    """The link to one peer, while it is a member. Call `run` once; it closes the socket at its end.

    `deliver` gets the peer's replies. `wake_at` gets the times when `expire` is due, in seconds of trio's clock. The
    constructor raises `OSError` for an invalid URL of the peer.
    """

    def __init__(
        self,
        context: ZmqContext,
        peer: Peer,
        deliver: Callable[[ServerId, core.Reply], None],
        wake_at: Callable[[float], None],
        counters: Counter[PeerEvent],
        times: PeerTimes = DEFAULT_TIMES,
    ) -> None:
        self.peer = peer
        self.scope = trio.CancelScope()
        """The scope of `run`; canceled when the peer is no longer a member."""
        self._deliver = deliver
        self._wake_at = wake_at
        self._counters = counters
        self._times = times
        self._last_id: MessageId = 0
        self._last_question = 0
        self._remembered: dict[MessageId, tuple[core.Request, type[PeerRequest]]] = {}
        self._unanswered_since_s: float | None = None
        """Time of the first `send` after the last reply; None without one."""
        self._outstanding: _Outstanding | None = None
        self._question: _Question | None = None
        options = SocketOptions(
            send_queue=SEND_QUEUE,
            only_connected=True,
            reconnect_ms=times.reconnect_ms,
            connect_ms=times.lost_ms,
            handshake_ms=max(DEFAULT_OPTIONS.handshake_ms, times.lost_ms),
            unacknowledged_ms=times.lost_ms,
            max_frames=_MOST_FRAMES,
            max_message_bytes=DEFAULT_LIMITS.max_json_bytes,
        )
        self._socket = ZmqSocket(context, SocketKind.DEALER, self._receive, options)
        try:
            self._socket.connect(peer.url)
        except OSError:
            self._socket.close()
            raise

    @property
    def due_s(self) -> float:
        """The time of the next work of `expire`."""
        request_s = math.inf if self._outstanding is None else self._outstanding.due_s
        return request_s if self._question is None else min(request_s, self._question.due_s)

    @property
    def unanswered_s(self) -> float:
        """Seconds since the first `send` after the last reply, even if no connection existed; 0 without one."""
        return 0.0 if self._unanswered_since_s is None else trio.current_time() - self._unanswered_since_s

    def next_id(self) -> MessageId:
        """Return the id of the next request: 1 to 16777215, then 0."""
        self._last_id = (self._last_id + 1) & MAX_MESSAGE_ID
        return self._last_id

    def send(
        self, core_request: core.Request, request: PeerRequest, frames: list[bytes], interval_ms: int | None
    ) -> None:
        """Send the frames of a request, and repeat them until the reply, the next request, or `repeats` intervals.

        The id of the request is from `next_id`. Without an interval the request is sent once, when a connection exists.
        """
        if self._unanswered_since_s is None:
            self._unanswered_since_s = trio.current_time()
        if self._outstanding is not None:
            self._counters[PeerEvent.REQUEST_REPLACED] += 1
        self._remembered[request.message_id] = core_request, type(request)
        if len(self._remembered) > REMEMBERED_REQUESTS:
            del self._remembered[next(iter(self._remembered))]
        interval_s = math.inf if interval_ms is None else interval_ms / 1000
        until_s = trio.current_time() + self._times.repeats * interval_s
        self._outstanding = _Outstanding(request.message_id, frames, interval_s, until_s)
        self._transmit(self._outstanding)

    def query_members(self, ident: bytes, on_reply: Callable[[tuple[Peer, ...] | None], None]) -> None:
        """Query the peer for the members; `on_reply` gets them, or None if no reply came in time.

        A later query replaces an unanswered one, whose `on_reply` is then never called.
        """
        self._last_question = (self._last_question + 1) % 2 ** (8 * _CONFIG_ID_BYTES)
        request_id = self._last_question.to_bytes(_CONFIG_ID_BYTES, "little")
        self._question = _Question(request_id, on_reply, trio.current_time() + self._times.configuration_ms / 1000)
        self._socket.send(encode_request(ConfigRequest(request_id, ident)))
        self._wake_at(self._question.due_s)

    def expire(self, now_s: float) -> None:
        """Repeat an overdue request, or abandon it after its last interval; end an overdue query."""
        outstanding, question = self._outstanding, self._question
        if outstanding is not None and outstanding.due_s <= now_s:
            if outstanding.until_s <= now_s:
                self._counters[PeerEvent.REQUEST_GIVEN_UP] += 1
                self._outstanding = None
            else:
                self._counters[PeerEvent.REQUEST_REPEATED] += outstanding.was_sent
                self._transmit(outstanding)
        if question is not None and question.due_s <= now_s:
            self._question = None
            question.on_reply(None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive replies until canceled, also by `scope`."""
        with self.scope:
            await self._socket.run(task_status=task_status)

    def _transmit(self, outstanding: _Outstanding) -> None:
        if self._socket.send(outstanding.frames):
            outstanding.was_sent = True
            wait_s = outstanding.interval_s
        else:
            wait_s = self._times.unsent_ms / 1000
        outstanding.due_s = trio.current_time() + wait_s
        self._wake_at(outstanding.due_s)

    def _receive(self, frames: list[bytes], _user: str | None) -> None:
        try:
            if len(frames[0]) == _CONFIG_ID_BYTES:
                self._take_members(frames)
            else:
                self._take_reply(frames)
        except ZmqRaftError:
            self._counters[PeerEvent.MALFORMED_REPLY] += 1

    def _take_reply(self, frames: list[bytes]) -> None:
        message_id = read_uint(frames[0], "message id", max_bytes=MESSAGE_ID_BYTES)
        if message_id not in self._remembered:
            self._counters[PeerEvent.UNMATCHED_REPLY] += 1
            return
        core_request, request_type = self._remembered[message_id]
        reply = reply_from_wire(decode_reply(request_type, frames), core_request)
        del self._remembered[message_id]
        self._unanswered_since_s = None
        if self._outstanding is not None and self._outstanding.message_id == message_id:
            self._outstanding = None
        self._deliver(self.peer.peer_id, reply)

    def _take_members(self, frames: list[bytes]) -> None:
        question = self._question
        if question is None or question.request_id != frames[0]:
            self._counters[PeerEvent.UNMATCHED_REPLY] += 1
            return
        reply = decode_reply(ConfigRequest, frames)
        if isinstance(reply, ConfigReply) and reply.peers:
            self._question = None
            question.on_reply(reply.peers)
