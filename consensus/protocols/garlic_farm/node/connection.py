"""The serving side of an upgraded connection.

    read ─▶ slot ─▶ handled concurrently, begun in order ─▶ written strictly in order

Replies carry no number, so they leave in the order of the requests. Up to `window` requests are handled concurrently,
because otherwise one slow disk write would delay every later heartbeat. While the window is full the connection is not
read, and TCP slows the sender down. Handlers are called in order, so appends reach the core in the leader's order.
Replies come by callback: a task for each request would cost more than the request.

`receive_budget` counts the bytes of requests in memory. A server's connection waits for room for its next large
request. If all clients together hold too much, the client that holds most loses a connection. A request must be
complete within a time that grows with its announced size. A limit on pauses between bytes would not detect a peer that
sends one byte every few seconds. Each connection has one deadline for replies: the deadline of its oldest request.

A peer that violates the protocol is disconnected, with an incident. Each request must be allowed for the proven role,
and a request between servers must carry the proven id. A peer that has not proven to be a server is a client: it may
submit entries, read, and request its addition. A client is also disconnected if the outcome of its entry is unknown,
since every reply of the protocol could be false. If the session of a client has expired, and the client lacks the
extension that reports this, it is disconnected, too. The replies "busy" and "expired" name this server as the leader;
"expired" also has a next index beyond the refused entry.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

import trio
from msgspec import Struct

from consensus.core import messages as core
from consensus.core.effects import Outcome, ProposalResolved, RoleChanged
from consensus.core.model import Index, LogId, ServerId, Term, integer_id
from consensus.net.receive_budget import FREE_BYTES, ReceiveBudget
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node.client_quota import ClientQuota
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import RequestReader, encode_reply
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.limits import UNKNOWN_SERVER
from consensus.protocols.garlic_farm.wire.mapping import (
    check_agreed,
    commands_from_wire,
    reply_to_wire,
    request_from_wire,
)
from consensus.protocols.garlic_farm.wire.peers import ProvenPeer
from consensus.protocols.garlic_farm.wire.upgrade import Extension, Identity
from consensus.protocols.garlic_farm.wire.upgrade_server import Upgraded
from consensus.protocols.garlic_farm.wire.values import ClusterServer, LogEntry
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.interfaces import Receiver, next_call

_READ_BYTES = 65_536
_UNANSWERED_BYTES_MAX = 16 * 2**20
"""Limit for the unanswered bytes of one client; its connection is not read beyond the limit."""
_FROM_CLIENTS = (wire.ClientRequest, wire.ReadIndexRequest, wire.AddServerRequest)
"""Requests that need neither the sender's nor the recipient's server id."""


class ClientAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The reply to a client.

    Accepted: the entries are committed, or, without entries, this server leads; `next_index` is one beyond the last
    entry. Not accepted: `leader` is the server to send to instead, if known. `busy`: this server can accept the
    request later. `expired`: an entry was committed, and the table of sessions has refused it.
    """

    term: Term
    accepted: bool = False
    leader: ServerId | None = None
    next_index: Index = 0
    busy: bool = False
    expired: bool = False


def client_answer(found: ProposalResolved, role: RoleChanged) -> ClientAnswer | None:
    """Return the reply for the outcome of a proposal; None if the outcome is unknown: the connection must end."""
    match found.outcome:
        case Outcome.COMMITTED:
            at = found.position or LogId(0, role.term)
            return ClientAnswer(accepted=True, leader=role.leader, next_index=at.index + 1, term=at.term)
        case Outcome.NOT_LEADER:
            return ClientAnswer(leader=found.leader, term=role.term)
        case Outcome.BUSY:
            return ClientAnswer(busy=True, term=role.term)
        case Outcome.UNKNOWN:
            return None


Cancel = Callable[[], None]
"""A function that cancels a request: `on_reply` is not called afterwards."""


def nothing_to_cancel() -> None:
    """Do nothing: the `Cancel` of a request that has its reply."""


def call_server(
    server: Receiver, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]
) -> Cancel:
    """Pass a peer's request to `server`; raise `GarlicFarmError` if it is busy or has stopped."""
    try:
        server.ask(sender, request, on_reply)
    except (ServerBusyError, ServerStoppedError) as error:
        raise GarlicFarmError(Fault.BUSY, str(error)) from error
    return lambda: server.forget(request.correlation)


class RequestHandler(Protocol):
    """Serves the requests of all connections, each by one call of a callback, immediately or later."""

    def request(self, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> Cancel:
        """Pass the request to the core; `on_reply(None)` reports a missing reply.

        May raise `GarlicFarmError` instead. `request.correlation` is from `next_call`.
        """
        ...

    def client_request(self, commands: tuple[bytes, ...], on_reply: Callable[[ClientAnswer | None], None]) -> Cancel:
        """Append `commands`; without commands, report only the leader.

        An unknown outcome calls `on_reply(None)`. May raise `GarlicFarmError` instead.
        """
        ...

    def read_index(self, on_reply: Callable[[ClientAnswer | None], None]) -> Cancel:
        """Serve a read; if accepted, `next_index` is one beyond the index that a linearizable read must wait for."""
        ...

    def membership_request(
        self, request: wire.MembershipRequest, on_reply: Callable[[wire.Reply | None], None]
    ) -> Cancel:
        """Add, remove or invite a server, or store a log pack; `on_reply(None)` ends the connection.

        May raise `GarlicFarmError` instead.
        """
        ...


class ConnectionOptions(Struct, frozen=True):
    """Times and bounds of one incoming connection."""

    window: int = 64
    idle_s: float = 300.0
    """Time limit between two requests; then the connection is closed, and the peer can connect again."""
    stalled_s: float = 10.0
    """Time that a request may pause, and that replies may stay unread."""
    request_s: float = 15.0
    """Time for a small request from its first byte to its last."""
    least_bytes_per_s: int = 64 * 1024
    """Additional time for a large request: its size divided by this rate."""
    answer_s: float = 30.0
    """Time limit for a handler's reply; the connection is closed at this limit."""


class _Slot(Struct):
    request: wire.Request
    due_s: float
    size: int
    reserved_bytes: int
    reply: wire.Reply | None = None
    ends_connection: bool = False
    cancel: Cancel | None = None


class ServerConnection:
    """One upgraded connection, from its first request to its end."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        upgraded: Upgraded,
        source: str,
        *,
        handler: RequestHandler,
        identity: Callable[[], Identity],
        metrics: Metrics,
        options: ConnectionOptions,
        budget: ReceiveBudget | None = None,
        quota: ClientQuota | None = None,
        voucher: bytes | None = None,
    ) -> None:
        """Serve a stream; `budget` and `quota` are shared by all connections of a server.

        `voucher` is the result of `PeerDirectory.voucher_of`.
        """
        proven = upgraded.proven
        self._is_server = proven is not None and proven.is_server
        self._quota = None if proven is not None and proven.is_member and voucher is None else quota
        self._budget = budget or ReceiveBudget()
        self._connection = trio.CancelScope()
        owner = f"key {proven.public_key.hex()}" if proven is not None and proven.is_member else source
        if voucher is not None:
            owner = f"vouched by {voucher.hex()}"
        self._account = self._budget.open(owner, is_server=self._is_server, close=self._evict)
        self._unanswered_bytes = 0
        self._reserved_bytes = 0
        self._began_s = inf
        self._stream = stream
        self._upgraded = upgraded
        self._source = source
        self._handler = handler
        self._identity = identity
        self._metrics = metrics
        self._options = options
        self._reader = RequestReader()
        self._slots: deque[_Slot] = deque()
        self._ready = trio.Event()
        self._patience = trio.CancelScope()
        self._expires_s = self._receive_due_s = inf
        self._room = trio.Event()

    async def run(self) -> None:
        """Serve until either side ends the connection. Never raises for a peer's fault."""
        async with trio.open_nursery() as nursery:
            self._connection = nursery.cancel_scope
            nursery.start_soon(self._write, nursery.cancel_scope)
            try:
                self._reader.feed(self._upgraded.trailing)
                await self._read()
            except GarlicFarmError as error:
                self._metrics.incident(error.fault, self._source, f"connection from {self._source} closed: {error}")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._metrics.count(ConnectionEvent.CONNECTIONS_BROKEN)
            finally:
                self._cancel_pending()
                self._budget.end(self._account)
                # Free the buffer now, not only at the next run of the garbage collector.
                self._reader.discard()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        handled = 0
        while True:
            due_s = trio.current_time() + self._options.answer_s
            while (request := self._reader.next()) is not None:
                size = self._reader.request_bytes
                self._check_turn(request)
                while len(self._slots) >= self._options.window:
                    self._room = trio.Event()
                    await self._room.wait()
                    due_s = trio.current_time() + self._options.answer_s
                slot = _Slot(request, due_s, size, self._reserved_bytes)
                self._reserved_bytes, self._began_s = 0, inf
                self._slots.append(slot)
                self._unanswered_bytes += size
                if self._unanswered_bytes > FREE_BYTES and not self._is_server:
                    self._budget.hold(self._account, self._unanswered_bytes + self._reader.buffered_bytes)
                self._expect(slot.due_s)
                self._begin(slot)
                handled += 1
                if not handled % self._options.window:
                    # Yield here: requests with immediate replies never fill the window, and thousands may arrive
                    # together.
                    await trio.lowlevel.checkpoint()
            if not await self._receive():
                return

    async def _receive(self) -> bool:
        partial = self._reader.buffered_bytes > 0
        if partial:
            await self._make_room()
        now_s = trio.current_time()
        if partial and self._began_s == inf:
            self._began_s = now_s
        timeout_s = self._options.stalled_s if partial else self._options.idle_s
        self._receive_due_s = min(now_s + timeout_s, self._whole_due_s)
        self._expect(self._receive_due_s)
        data = await self._stream.receive_some(_READ_BYTES)
        self._receive_due_s = inf
        self._reader.feed(bytes(data))
        return bool(data)

    @property
    def _whole_due_s(self) -> float:
        """Return the deadline of the present request; infinity without one."""
        return self._began_s + self._options.request_s + self._reader.announced_bytes / self._options.least_bytes_per_s

    def _expect(self, due_s: float) -> None:
        """Make the writer check all deadlines at `due_s`, or earlier: a scope for each message would cost more."""
        if due_s < self._expires_s:
            self._patience.deadline = self._expires_s = due_s

    def _is_overdue(self) -> bool:
        """Return True, and report the reason, if a reply or a request of the peer is too late."""
        now_s, options = trio.current_time(), self._options
        if self._slots and now_s >= self._slots[0].due_s:
            text = f"a request of {self._source} was not answered within {options.answer_s:g} s; closed"
            self._metrics.incident(Fault.BUSY, self._source, text)
        elif now_s < self._receive_due_s:
            return False
        elif not self._reader.buffered_bytes:
            self._metrics.count(ConnectionEvent.CONNECTIONS_IDLE)
        else:
            text = f"a request stopped half way for {options.stalled_s:g} s"
            if self._receive_due_s >= self._whole_due_s:
                text = f"a request was not complete {self._receive_due_s - self._began_s:.0f} s after it began"
            self._metrics.incident(Fault.SILENT, self._source, f"connection from {self._source} closed: {text}")
        return True

    async def _make_room(self) -> None:
        """Make room for a request that has begun, before the remaining bytes are read."""
        size = self._reader.announced_bytes
        if not self._is_server:
            while self._unanswered_bytes + size > _UNANSWERED_BYTES_MAX and self._slots:
                self._room = trio.Event()
                await self._room.wait()
            self._budget.hold(self._account, self._unanswered_bytes + self._reader.buffered_bytes)
            # `hold` may have closed this very connection.
            await trio.lowlevel.checkpoint_if_cancelled()
        elif size > FREE_BYTES and not self._reserved_bytes:
            start_s = trio.current_time()
            await self._budget.reserve(self._account, size)
            self._reserved_bytes = size
            self._began_s += trio.current_time() - start_s

    def _evict(self) -> None:
        text = (
            f"connection from {self._source} closed: it held {self._unanswered_bytes + self._reader.buffered_bytes}"
            " bytes of requests, and the requests of all clients exceeded the limit of this server"
        )
        self._metrics.incident(Fault.BUSY, self._source, text)
        self._connection.cancel()

    def _release_oldest(self) -> None:
        """Release the bytes of the oldest request, which has its reply."""
        slot = self._slots.popleft()
        self._unanswered_bytes -= slot.size
        if slot.reserved_bytes:
            self._budget.release(self._account, slot.reserved_bytes)
        elif not self._is_server and self._account.used_bytes:
            self._budget.hold(self._account, self._unanswered_bytes + self._reader.buffered_bytes)
        self._room.set()

    def _check_turn(self, request: wire.Request) -> None:
        check_agreed(request, self._upgraded.extensions)
        if isinstance(request, _FROM_CLIENTS):
            return
        spoken = type(request).__name__
        proven, own_id = self._upgraded.proven, self._identity().server_id
        if isinstance(request, wire.RemoveServerRequest):
            _check_own_removal(request, proven)
            return
        if proven is None or not proven.is_server:
            shown = "has not proven an identity" if proven is None else "belongs to a client"
            raise GarlicFarmError(
                Fault.OUT_OF_TURN, f"a {spoken}, which only servers may send, on a connection that {shown}"
            )
        if request.source != proven.server_id:
            text = f"a {spoken} in the name of server {request.source} on the connection of server {proven.server_id}"
            raise GarlicFarmError(Fault.OUT_OF_TURN, text)
        if own_id is None:
            text = f"a {spoken} came while this server is starting, or before it has an id; the peer will try again"
            raise GarlicFarmError(Fault.BUSY, text)
        if request.destination != own_id:
            text = f"a {spoken} to server {request.destination} reached server {own_id}"
            raise GarlicFarmError(Fault.WRONG_SERVER, text)
        if request.source in {0, own_id}:
            raise GarlicFarmError(Fault.OUT_OF_TURN, f"a {spoken} with the invalid sender id {request.source}")

    def _begin(self, slot: _Slot) -> None:
        """Pass a request to the handler; its reply fills the slot."""
        try:
            slot.cancel = self._handle(slot)
        except GarlicFarmError as error:
            self._metrics.incident(error.fault, self._source, f"connection from {self._source} closed: {error}")
            self._settle(slot, None)

    def _handle(self, slot: _Slot) -> Cancel:
        request = slot.request
        match request:
            case wire.ClientRequest():
                commands = commands_from_wire(request)
                if self._quota is not None and not self._quota.take(commands, trio.current_time()):
                    self._metrics.count(ConnectionEvent.CLIENT_REQUESTS_BEYOND_QUOTA)
                    busy = self._client_reply(wire.AppendEntriesResponse, ClientAnswer(busy=True, term=0))
                    self._settle(slot, busy)
                    return nothing_to_cancel
                return self._handler.client_request(
                    commands, lambda answer: self._settle(slot, self._client_reply(wire.AppendEntriesResponse, answer))
                )
            case (
                wire.AppendEntriesRequest()
                | wire.RequestVoteRequest()
                | wire.PreVoteRequest()
                | wire.TransferVoteRequest()
                | wire.TimeoutNowRequest()
                | wire.InstallSnapshotRequest()
            ):
                core_request = request_from_wire(request, next_call())
                return self._handler.request(
                    request.source,
                    core_request,
                    lambda reply: self._settle(slot, None if reply is None else reply_to_wire(reply, request)),
                )
            case wire.ReadIndexRequest():
                return self._handler.read_index(
                    lambda answer: self._settle(slot, self._client_reply(wire.ReadIndexResponse, answer))
                )
            case (
                wire.AddServerRequest()
                | wire.RemoveServerRequest()
                | wire.JoinClusterRequest()
                | wire.SyncLogRequest()
                | wire.LeaveClusterRequest()
            ):
                return self._handler.membership_request(request, lambda reply: self._settle(slot, reply))
            case _:
                text = f"a {type(request).__name__}, which this server does not answer"
                raise GarlicFarmError(Fault.OUT_OF_TURN, text)

    def _settle(self, slot: _Slot, reply: wire.Reply | None) -> None:
        """Store the slot's reply; without a reply the connection ends at this slot's turn."""
        slot.reply, slot.ends_connection = reply, reply is None
        if not self._slots or self._slots[0] is not slot:
            return
        if reply is not None and len(self._slots) == 1 and self._sent_immediately(encode_reply(reply)):
            self._release_oldest()
            return
        self._ready.set()

    def _sent_immediately(self, data: bytes) -> bool:
        """Send replies without waiting; return False if that is not possible now."""
        stream = self._stream
        if not isinstance(stream, TlsStream) or stream.unsent_bytes:
            return False
        try:
            stream.send_now(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        if stream.unsent_bytes:
            self._ready.set()
        return True

    def _cancel_pending(self) -> None:
        for slot in self._slots:
            if slot.cancel is not None and slot.reply is None and not slot.ends_connection:
                slot.cancel()

    def _client_reply(self, reply: type[wire.Reply], answer: ClientAnswer | None) -> wire.Reply | None:
        if answer is None or (answer.expired and Extension.SESSIONS not in self._upgraded.extensions):
            return None
        own_id = self._identity().server_id or UNKNOWN_SERVER
        leader = UNKNOWN_SERVER if answer.leader is None else integer_id(answer.leader)
        return reply(
            source=own_id,
            destination=own_id if answer.busy or answer.expired else leader,
            term=answer.term,
            next_index=answer.next_index,
            accepted=answer.accepted,
        )

    async def _write(self, connection: trio.CancelScope) -> None:
        while True:
            batch = bytearray()
            while self._slots and (reply := self._slots[0].reply) is not None:
                batch += encode_reply(reply)
                self._release_oldest()
            if batch and self._sent_immediately(bytes(batch)):
                continue
            if batch or (isinstance(self._stream, TlsStream) and self._stream.unsent_bytes):
                if not await self._send(bytes(batch)):
                    break
                continue
            if self._slots and self._slots[0].ends_connection:
                self._metrics.count(ConnectionEvent.CONNECTIONS_HUNG_UP)
                break
            self._ready = trio.Event()
            self._expires_s = min(self._slots[0].due_s if self._slots else inf, self._receive_due_s)
            with trio.CancelScope(deadline=self._expires_s) as self._patience:
                await self._ready.wait()
            if self._patience.cancelled_caught and self._is_overdue():
                break
        connection.cancel()

    async def _send(self, data: bytes) -> bool:
        try:
            with trio.move_on_after(self._options.stalled_s):
                await self._stream.send_all(data)
                return True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        self._metrics.incident(Fault.SILENT, self._source, f"{self._source} does not take its replies; closed")
        return False


def _check_own_removal(request: wire.RemoveServerRequest, proven: ProvenPeer | None) -> None:
    """Raise `GarlicFarmError` unless a server requests its own removal."""
    values = [each.value for each in request.entries if isinstance(each, LogEntry)]
    named = [server.server_id for server in values if isinstance(server, ClusterServer)]
    if proven is None or proven.server_id is None or named != [proven.server_id]:
        number = None if proven is None else proven.server_id
        asking = "a peer without an identity of a server" if number is None else f"server {number}"
        servers = ", ".join(map(str, named)) or "(none named)"
        text = f"{asking} requests the removal of server {servers}, which only that server or an operator may request"
        raise GarlicFarmError(Fault.OUT_OF_TURN, text)
