"""ØMQ Raft's peers on their sockets, with real frames between them.

    core ─▶ mapping ─▶ codec ─▶ frames ──DEALER to ROUTER──▶ codec ─▶ debouncing ─▶ mapping ─▶ core
    core ◀─ mapping ◀─ codec ◀─ frames ◀─────────────────── codec ◀─────────────── mapping ◀─ core

Messages that the wire cannot express are lost here, too. Replies about a part of the entries, and terms below the term
of the request, are not sent. A failure may lack a hint, and a snapshot lacks the configuration.

*The asker* has one DEALER for each other server. It repeats only the newest request. It keeps the last few requests,
each for one reply, because a follower with a slow disk replies late but correctly. A cut link or a stopped end breaks a
connection, whose messages under way are lost. The next connection has another identity.

*The answerer* processes appends and chunks once. A request with the id and identity of the newest one gets the same
reply; before this reply, the core receives only a heartbeat. A request whose reply the wire cannot express is dropped.

*A server of the package* does not read while it processes an append or a chunk, so it replies in order. Our servers
answer a heartbeat before an append that waits for the disk.

*A snapshot's members.* The receiver of the first chunk requests the members from the sender, as a client would. Without
a reply, the receiver uses its newest configuration; without one it drops the chunk.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from msgspec.structs import replace

from consensus.core.messages import AppendEntries, Reply, Request
from consensus.core.model import ORIGIN, Configuration, Index, LogId, ServerId, Term
from consensus.protocols.zmq_raft.wire.codec import decode_reply, decode_request, encode_reply, encode_request
from consensus.protocols.zmq_raft.wire.frames import MAX_MESSAGE_ID, MESSAGE_ID_BYTES, ZmqRaftError, read_uint
from consensus.protocols.zmq_raft.wire.mapping import reply_from_wire, reply_to_wire, request_from_wire, request_to_wire
from consensus.protocols.zmq_raft.wire.messages import (
    AppendEntriesResponse,
    AppendEntriesRpc,
    InstallSnapshotRpc,
    PeerReply,
    PeerRequest,
    RequestVoteRpc,
)
from tests.simulation.consensus.checker import ViolationError
from tests.simulation.consensus.connections import TcpConnections, Way
from tests.simulation.consensus.marks import Marks
from tests.simulation.consensus.profile import Profile

IDENT = b"simulated"
_NO_MEMBERS = Configuration(())
_REMEMBERED = 4
_RECONNECT_MS = 30
_UNSENT_MS = 20
_NEAR_THE_LAST_ID = MAX_MESSAGE_ID - 40


class Host(Protocol):
    """A server as its sockets see it."""

    @property
    def clock_ms(self) -> int:
        """Return the time of the server's monotonic clock."""

    @property
    def configuration(self) -> Configuration | None:
        """Return the newest configuration in its log; None while it is down."""

    @property
    def snapshot_bytes(self) -> int:
        """Return the size of its stored snapshot."""

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` now or after a pause, if this run has not ended by then."""


class Judge(Protocol):
    """Rules for the messages between peers."""

    def check_request(
        self, asker: ServerId, answerer: ServerId, request: Request, unanswered: "PendingRequest | None"
    ) -> None:
        """Check a new request, which replaces the unanswered one."""

    def arrived(self, answerer: ServerId, request: PeerRequest) -> None:
        """Check a processed request, not a debounced repetition."""

    def follows_package(self, server: ServerId) -> bool:
        """Return True if this server answers like a server of the npm package."""

    def end_of(self, server: ServerId) -> Index:
        """Return the last index of the server's log."""

    def acknowledged(self, answerer: ServerId, request: AppendEntriesRpc) -> None:
        """Record that the server acknowledged a complete append."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that may still get a reply."""

    request: Request
    rpc: PeerRequest
    frames: list[bytes]
    sent_ms: int
    """Time of the asker's clock."""
    times_sent: int = 0


@dataclass(slots=True, eq=False)
class _Connection:
    asker: ServerId
    answerer: ServerId
    requests_until_ms: int = 0
    replies_until_ms: int = 0
    is_broken: bool = False


@dataclass(slots=True, eq=False)
class _Dealer:
    last_id: int
    connection: _Connection | None = None
    opens_at_ms: int = 0
    unanswered: PendingRequest | None = None
    """The newest request."""
    remembered: dict[int, PendingRequest] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Taken:
    """A request that has arrived, and its reply."""

    connection: _Connection
    rpc: PeerRequest
    reply: PeerReply | None = None


@dataclass(slots=True, eq=False)
class _Transfer:
    """A snapshot that a leader sends to a server, and its members when the receiver knows them."""

    term: Term
    last: LogId
    configuration: Configuration | None = None
    waiting: _Taken | None = None


class ZmqSockets(TcpConnections[_Connection]):
    """The sockets of all servers of one history."""

    def __init__(
        self,
        random: Random,
        profile: Profile,
        hosts: Mapping[ServerId, Host],
        judge: Judge,
        marks: Marks,
        way: Way,
    ) -> None:
        super().__init__(random, way)
        self._profile = profile
        self._hosts = hosts
        self._judge = judge
        self._marks = marks
        self._dealers: dict[tuple[ServerId, ServerId], _Dealer] = {}
        self._taken: dict[tuple[ServerId, ServerId], _Taken] = {}
        self._transfers: dict[tuple[ServerId, ServerId], _Transfer] = {}
        self._pending: dict[tuple[ServerId, int], _Taken] = {}
        self._working: dict[ServerId, _Taken] = {}
        """The request that each server of the package is processing."""
        self._unread: dict[ServerId, deque[tuple[_Connection, list[bytes]]]] = {}
        # A forger's messages have correlation 1.
        self._correlation = 1

    def send_request(self, asker: ServerId, answerer: ServerId, request: Request) -> None:
        """Send a request of a core; it replaces the pending one."""
        dealer = self._dealer(asker, answerer)
        self._judge.check_request(asker, answerer, request, dealer.unanswered)
        if dealer.unanswered is not None:
            self._marks.see("request replaced by a newer one")
        if dealer.last_id == MAX_MESSAGE_ID:
            self._marks.see("message ids wrapped around")
        dealer.last_id = (dealer.last_id + 1) & MAX_MESSAGE_ID
        rpc = request_to_wire(request, dealer.last_id, IDENT, self._hosts[asker].snapshot_bytes)
        pending = PendingRequest(request, rpc, encode_request(rpc), self._hosts[asker].clock_ms)
        dealer.unanswered = dealer.remembered[rpc.message_id] = pending
        if len(dealer.remembered) > _REMEMBERED:
            del dealer.remembered[next(iter(dealer.remembered))]
        self._transmit(asker, answerer, pending)

    def send_reply(self, answerer: ServerId, asker: ServerId, reply: Reply) -> None:
        """Send the reply of a core to a request."""
        taken = self._pending.pop((answerer, reply.correlation), None)
        if taken is None or taken.connection.asker != asker:
            self.lost += 1
            return
        self._way.after(0, lambda: self._read_on(answerer, taken))
        wire_reply = self._as_package(answerer, reply_to_wire(reply, taken.rpc), taken.rpc)
        if wire_reply is None:
            self._marks.see("reply that the wire cannot express")
            self._forget(taken)
            return
        if (
            isinstance(wire_reply, AppendEntriesResponse)
            and isinstance(taken.rpc, AppendEntriesRpc)
            and wire_reply.success
        ):
            self._judge.acknowledged(answerer, taken.rpc)
        taken.reply = wire_reply
        self._send_reply(taken.connection, wire_reply)

    def stopped(self, server: ServerId) -> None:
        """Close the sockets of a stopped server, and drop their state."""
        for connection in [dealer.connection for dealer in self._dealers.values() if dealer.connection is not None]:
            if server in (connection.asker, connection.answerer):
                self._break(connection)
        self._dealers = {pair: dealer for pair, dealer in self._dealers.items() if pair[0] != server}
        self._taken = {pair: taken for pair, taken in self._taken.items() if pair[0] != server}
        self._transfers = {pair: transfer for pair, transfer in self._transfers.items() if pair[0] != server}
        self._working.pop(server, None)
        self._unread.pop(server, None)
        self._pending = {key: taken for key, taken in self._pending.items() if key[0] != server}

    def keep_members(self, server: ServerId, members: frozenset[ServerId]) -> None:
        for asker, answerer in list(self._dealers):
            if asker == server and answerer not in members:
                dealer = self._dealers[asker, answerer]
                if dealer.connection is not None:
                    self._break(dealer.connection)
                dealer.unanswered = None
                dealer.remembered.clear()

    def _dealer(self, asker: ServerId, answerer: ServerId) -> _Dealer:
        dealer = self._dealers.get((asker, answerer))
        if dealer is None:
            first = self._random.choice((0, 0, 0, _NEAR_THE_LAST_ID))
            dealer = self._dealers[asker, answerer] = _Dealer(first)
        return dealer

    def _transmit(self, asker: ServerId, answerer: ServerId, pending: PendingRequest) -> None:
        """Send the newest request; repeat it until it is answered, if it may be repeated."""
        dealer = self._dealers.get((asker, answerer))
        if dealer is None or dealer.unanswered is not pending:
            return
        connection = self._connect(asker, answerer, dealer)
        wait_ms = _UNSENT_MS
        if connection is not None:
            if pending.times_sent and not may_be_repeated(pending.request):
                return
            wait_ms = self._profile.repeat_ms
            self.repeated += pending.times_sent > 0
            pending.times_sent += 1
            connection.requests_until_ms = self._arrival_ms(connection, connection.requests_until_ms)
            self._at(connection.requests_until_ms, lambda: self._arrive(connection, pending.frames))
        again = self._hosts[asker].when_awake
        self._way.after(wait_ms, lambda: again(lambda: self._transmit(asker, answerer, pending)))

    def _connect(self, asker: ServerId, answerer: ServerId, dealer: _Dealer) -> _Connection | None:
        if dealer.connection is None and self._way.now >= dealer.opens_at_ms and self._is_open(asker, answerer):
            dealer.connection = _Connection(asker, answerer)
        return dealer.connection

    def _is_open(self, one: ServerId, other: ServerId) -> bool:
        return self._is_up(other) and self._way.reaches(one, other) and self._way.reaches(other, one)

    def _arrive(self, connection: _Connection, frames: list[bytes]) -> None:
        if self._is_whole(connection, connection.asker, connection.answerer):
            self._hosts[connection.answerer].when_awake(lambda: self._take(connection, frames))

    def _take(self, connection: _Connection, frames: list[bytes]) -> None:
        answerer = connection.answerer
        if answerer in self._working:
            self._unread.setdefault(answerer, deque()).append((connection, frames))
            return
        try:
            rpc = decode_request(frames)
        except ZmqRaftError as error:
            raise ViolationError(f"wire: {connection.asker} sends an invalid message: {error}") from error
        if not isinstance(rpc, RequestVoteRpc | AppendEntriesRpc | InstallSnapshotRpc):
            raise ViolationError(f"wire: {connection.asker} sends {rpc}, a message of a client")
        taken = _Taken(connection, rpc)
        if not isinstance(rpc, RequestVoteRpc):
            before = self._taken.get((answerer, rpc.leader))
            if before is not None and is_repetition(before.connection, before.rpc, connection, rpc):
                self._debounce(before, rpc)
                return
            self._taken[answerer, rpc.leader] = taken
            if self._judge.follows_package(answerer):
                self._working[answerer] = taken
        self._judge.arrived(answerer, rpc)
        if isinstance(rpc, InstallSnapshotRpc):
            self._take_chunk(taken, rpc)
        else:
            self._hand_over(taken, _NO_MEMBERS)

    def _read_on(self, answerer: ServerId, taken: _Taken) -> None:
        """Continue to read after a request is answered or dropped."""
        if self._working.get(answerer) is taken:
            del self._working[answerer]
        unread = self._unread.get(answerer, ())
        while unread and answerer not in self._working:
            self._take(*unread.popleft())

    def _debounce(self, before: _Taken, rpc: PeerRequest) -> None:
        if before.reply is not None:
            self._marks.see("repetition answered by the same reply")
            self._send_reply(before.connection, replace(before.reply, message_id=rpc.message_id))
            return
        self._marks.see("repetition passed on as a heartbeat")
        asker, answerer = before.connection.asker, before.connection.answerer
        keep_alive = AppendEntries(
            term=before.rpc.term,
            leader=asker,
            previous=ORIGIN,
            entries=(),
            commit=0,
            correlation=self._next_correlation(),
        )
        self._way.deliver(asker, answerer, keep_alive)

    def _take_chunk(self, taken: _Taken, rpc: InstallSnapshotRpc) -> None:
        """Pass a chunk to the core when the members are known."""
        asker, answerer = taken.connection.asker, taken.connection.answerer
        transfer, last = self._transfers.get((answerer, asker)), LogId(rpc.last_index, rpc.last_term)
        if transfer is None or (transfer.term, transfer.last) != (rpc.term, last):
            transfer = self._transfers[answerer, asker] = _Transfer(rpc.term, last)
            way, started = taken.connection, transfer
            delay_ms = self._way.draw_delay_ms() + self._way.draw_delay_ms()
            when_awake = self._hosts[answerer].when_awake
            self._way.after(delay_ms, lambda: when_awake(lambda: self._members_received(way, started)))
        if transfer.configuration is None:
            transfer.waiting = taken
        else:
            self._hand_over(taken, transfer.configuration)

    def _members_received(self, connection: _Connection, transfer: _Transfer) -> None:
        asker, answerer = connection.asker, connection.answerer
        if self._transfers.get((answerer, asker)) is not transfer:
            return
        sender = self._hosts[asker].configuration
        if sender is not None and not connection.is_broken:
            configuration = members_in_reply(sender)
        else:
            self._marks.see("members of a snapshot not sent by its sender")
            configuration = self._hosts[answerer].configuration or _NO_MEMBERS
        waiting, transfer.waiting = transfer.waiting, None
        if not configuration.voters:
            del self._transfers[answerer, asker]
            if waiting is not None:
                self._forget(waiting)
            return
        transfer.configuration = configuration
        if waiting is not None:
            self._hand_over(waiting, configuration)

    def _forget(self, taken: _Taken) -> None:
        """Drop a request without a reply; it may be processed again."""
        key = taken.connection.answerer, taken.connection.asker
        if self._taken.get(key) is taken:
            del self._taken[key]
        self._way.after(0, lambda: self._read_on(taken.connection.answerer, taken))

    def _hand_over(self, taken: _Taken, configuration: Configuration) -> None:
        correlation, connection = self._next_correlation(), taken.connection
        self._pending[connection.answerer, correlation] = taken
        request = request_from_wire(taken.rpc, correlation, configuration)
        self._way.deliver(connection.asker, connection.answerer, request)

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _send_reply(self, connection: _Connection, reply: PeerReply) -> None:
        frames = encode_reply(reply)
        connection.replies_until_ms = self._arrival_ms(connection, connection.replies_until_ms)
        self._at(connection.replies_until_ms, lambda: self._arrive_back(connection, frames))

    def _arrive_back(self, connection: _Connection, frames: list[bytes]) -> None:
        if self._is_whole(connection, connection.answerer, connection.asker):
            self._hosts[connection.asker].when_awake(lambda: self._take_reply(connection, frames))

    def _take_reply(self, connection: _Connection, frames: list[bytes]) -> None:
        asker, answerer = connection.asker, connection.answerer
        dealer = self._dealers.get((asker, answerer))
        message_id = read_uint(frames[0], "message id", max_bytes=MESSAGE_ID_BYTES)
        pending = None if dealer is None else dealer.remembered.pop(message_id, None)
        if dealer is None or pending is None:
            self._marks.see("reply to a dropped request")
            return
        reply = reply_from_wire(decode_reply(type(pending.rpc), frames), pending.request)
        if dealer.unanswered is pending:
            dealer.unanswered = None
        else:
            self._marks.see("late reply to a replaced request")
        self._way.deliver(answerer, asker, reply)

    def _as_package(self, server: ServerId, reply: PeerReply | None, request: PeerRequest) -> PeerReply | None:
        """Return the reply of the package: a refusal has a hint only if the log is too short.

        Without a hint the leader steps back by one entry.
        """
        is_refusal = isinstance(reply, AppendEntriesResponse) and not reply.success and reply.term == request.term
        if not is_refusal or not isinstance(request, AppendEntriesRpc) or not self._judge.follows_package(server):
            return reply
        end = self._judge.end_of(server)
        is_short = end < request.previous_index
        if not is_short:
            self._marks.see("append refused without a hint")
        hint = end + 1 if is_short else None
        return AppendEntriesResponse(
            message_id=request.message_id, term=request.term, success=False, conflict_index=hint
        )

    def _is_up(self, server: ServerId) -> bool:
        return self._hosts[server].configuration is not None

    def _break(self, connection: _Connection) -> None:
        if connection.is_broken:
            return
        connection.is_broken = True
        self.broken += 1
        dealer = self._dealers.get((connection.asker, connection.answerer))
        if dealer is None or dealer.connection is not connection:
            return
        dealer.connection = None
        dealer.opens_at_ms = self._way.now + self._random.randrange(_RECONNECT_MS)


def may_be_repeated(request: Request) -> bool:
    """Return True if a message that may have arrived may be sent again.

    Over a new connection the follower treats a repetition as a new request. Because of the first message, the follower
    may have committed entries after `previous`; a server of the package would then exit. So the core builds another
    request, from its own log.
    """
    return not isinstance(request, AppendEntries) or request.commit <= request.previous.index


def is_repetition(before: _Connection, taken: PeerRequest, now: _Connection, request: PeerRequest) -> bool:
    return before is now and request.message_id == taken.message_id


def members_in_reply(configuration: Configuration) -> Configuration:
    """Return the members in a RequestConfig reply: one list of old and new ones during a change."""
    new = {server.server_id for server in configuration.voters}
    return Configuration(
        (*configuration.voters, *(old for old in configuration.old_voters if old.server_id not in new))
    )
