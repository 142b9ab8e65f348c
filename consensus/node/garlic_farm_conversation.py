"""The answering side of an upgraded connection.

    read ─▶ slot ─▶ handled concurrently, begun in order ─▶ written strictly in order

Replies carry no number, so they leave in the order of the requests, whatever finishes first. Up to `window` requests
are handled at once, otherwise one slow disk write would hold up every heartbeat behind it; beyond that the connection
is not read, and TCP slows the sender. Each handler is called only after the one before it has been: appends reach the
core in the order in which the leader sent them. There is a task for each request, and since tasks begin in any order,
each takes the oldest request that nobody has begun, whichever it was started for. (Tasks that wait for one another
begin one a turn of the event loop; a burst of requests then takes as many turns.)

As replies leave in order, only the oldest request's age matters: one deadline watches a connection, not one a request.

Whoever speaks out of turn (a reply, another server's id, an extension that was not agreed) is cut off, with a sentence.
A client whose entry's fate is unknown is cut off too: on this wire that is the only honest answer.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Protocol

import trio

from consensus.core import messages as core
from consensus.core.position import Index, ServerId, Term
from consensus.node.garlic_farm_tally import Tally
from consensus.wire.garlic_farm import messages as wire
from consensus.wire.garlic_farm.codec import RequestReader, encode_reply
from consensus.wire.garlic_farm.errors import Fault, GarlicFarmError
from consensus.wire.garlic_farm.limits import DEFAULT_LIMITS, UNKNOWN_SERVER, Limits
from consensus.wire.garlic_farm.mapping import check_agreed, commands_from_wire, reply_to_wire, request_from_wire
from consensus.wire.garlic_farm.upgrade import Identity
from consensus.wire.garlic_farm.upgrade_server import Upgraded

_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """What a client is told.

    Accepted: committed, or, if it sent nothing, that this server leads; `next_index` is one beyond its last entry.
    Not accepted: `leader` is who to ask instead; this server's own id means that it leads and is busy.
    """

    accepted: bool
    leader: ServerId | None
    next_index: Index
    term: Term


class RequestHandler(Protocol):
    """What stands behind the connections. Calls may be cancelled when the connection ends."""

    async def request(self, sender: ServerId, request: core.Request) -> core.Reply:
        """The core's reply. `request.correlation` is unique within the process."""
        ...

    async def client_request(self, commands: tuple[bytes, ...]) -> ClientAnswer | None:
        """Append `commands` (without any, only say who leads); None if it is unknown whether they are or will be."""
        ...


@dataclass(frozen=True, slots=True)
class ConversationTuning:
    """Times and bounds of one incoming connection."""

    window: int = 64
    idle_s: float = 300.0
    """Without any request for this long, a connection is closed: peers and clients simply come back."""
    stalled_s: float = 10.0
    """How long a request may stop half way, and replies may stay untaken."""
    answer_s: float = 30.0
    """How long a handler may take before the connection is given up."""


@dataclass(slots=True)
class _Slot:
    request: wire.Request
    due_s: float
    reply: wire.Reply | None = None
    hang_up: bool = False


_correlations = count(1)


class Conversation:
    """One upgraded connection, from its first request to its end."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        upgraded: Upgraded,
        source: str,
        *,
        handler: RequestHandler,
        identity: Callable[[], Identity],
        tally: Tally,
        tuning: ConversationTuning,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._stream = stream
        self._upgraded = upgraded
        self._source = source
        self._handler = handler
        self._identity = identity
        self._tally = tally
        self._tuning = tuning
        self._reader = RequestReader(limits)
        self._slots: deque[_Slot] = deque()
        self._unbegun: deque[_Slot] = deque()
        self._ready = trio.Event()
        self._patience = trio.CancelScope()
        self._room = trio.Event()

    async def run(self) -> None:
        """Answer until either side ends it. Never raises for what a peer did."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope)
            try:
                self._reader.feed(self._upgraded.trailing)
                await self._read(nursery)
            except GarlicFarmError as error:
                self._tally.incident(error.fault, self._source, f"connection from {self._source} closed: {error}")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._tally.count("connections-broken")
            nursery.cancel_scope.cancel()

    async def _read(self, nursery: trio.Nursery) -> None:
        while True:
            while (request := self._reader.next()) is not None:
                self._check_turn(request)
                while len(self._slots) >= self._tuning.window:
                    self._room = trio.Event()
                    await self._room.wait()
                slot = _Slot(request, trio.current_time() + self._tuning.answer_s)
                self._slots.append(slot)
                self._unbegun.append(slot)
                if len(self._slots) == 1:
                    self._patience.deadline = slot.due_s
                nursery.start_soon(self._answer)
            if not await self._receive():
                return

    async def _receive(self) -> bool:
        partial = self._reader.buffered_bytes > 0
        patience_s = self._tuning.stalled_s if partial else self._tuning.idle_s
        with trio.move_on_after(patience_s) as patience:
            data = await self._stream.receive_some(_READ_BYTES)
        if patience.cancelled_caught:
            if partial:
                raise GarlicFarmError(Fault.SILENT, f"a request stopped half way for {patience_s:g} s")
            self._tally.count("connections-idle")
            return False
        self._reader.feed(bytes(data))
        return bool(data)

    def _check_turn(self, request: wire.Request) -> None:
        spoken = type(request).__name__
        check_agreed(request, self._upgraded.extensions)
        if isinstance(request, wire.ClientRequest | wire.AddServerRequest | wire.RemoveServerRequest):
            return
        claimed, ours = self._upgraded.peer.server_id, self._identity().server_id
        if claimed is not None and request.source != claimed:
            text = f"a {spoken} in the name of server {request.source} on the connection of server {claimed}"
            raise GarlicFarmError(Fault.OUT_OF_TURN, text)
        if ours is None:
            raise GarlicFarmError(Fault.BUSY, f"a {spoken} came before this server has an id; the peer will try again")
        if request.destination != ours:
            text = f"a {spoken} to server {request.destination} reached server {ours}"
            raise GarlicFarmError(Fault.WRONG_SERVER, text)
        if request.source in {0, ours}:
            raise GarlicFarmError(Fault.OUT_OF_TURN, f"a {spoken} from server {request.source}, which is no peer")

    async def _answer(self) -> None:
        slot = self._unbegun.popleft()
        try:
            slot.reply = await self._reply(slot.request)
            slot.hang_up = slot.reply is None
        except GarlicFarmError as error:
            self._tally.incident(error.fault, self._source, f"connection from {self._source} closed: {error}")
            slot.hang_up = True
        if self._slots and self._slots[0] is slot:
            self._ready.set()

    async def _reply(self, request: wire.Request) -> wire.Reply | None:
        match request:
            case (
                wire.RequestVoteRequest()
                | wire.PreVoteRequest()
                | wire.TransferVoteRequest()
                | wire.TimeoutNowRequest()
                | wire.AppendEntriesRequest()
                | wire.InstallSnapshotRequest()
            ):
                asked = request_from_wire(request, next(_correlations))
                return reply_to_wire(await self._handler.request(ServerId(request.source), asked), request)
            case wire.ClientRequest():
                answer = await self._handler.client_request(commands_from_wire(request))
                return None if answer is None else self._client_reply(answer)
            case _:
                # Membership and catch-up are driven by the operator's side so far; accepted 0 changes nothing.
                self._tally.count("requests-refused")
                return await self._refusal(request)

    def _client_reply(self, answer: ClientAnswer) -> wire.Reply:
        leader = UNKNOWN_SERVER if answer.leader is None else answer.leader
        ours = self._identity().server_id or UNKNOWN_SERVER
        return wire.AppendEntriesResponse(ours, leader, answer.term, answer.next_index, accepted=answer.accepted)

    async def _refusal(self, request: wire.Request) -> wire.Reply | None:
        answer = await self._handler.client_request(())
        if answer is None:
            return None
        ours = self._identity().server_id or UNKNOWN_SERVER
        reply = wire.ANSWERS[type(request)]
        destination = request.source
        if isinstance(request, wire.AddServerRequest | wire.RemoveServerRequest):
            destination = UNKNOWN_SERVER if answer.leader is None else answer.leader
        return reply(ours, destination, answer.term, 0, accepted=False)

    async def _write(self, connection: trio.CancelScope) -> None:
        while True:
            batch = bytearray()
            while self._slots and (reply := self._slots[0].reply) is not None:
                batch += encode_reply(reply)
                self._slots.popleft()
            if batch:
                self._room.set()
                if not await self._send(bytes(batch)):
                    break
                continue
            if self._slots and self._slots[0].hang_up:
                self._tally.count("connections-hung-up")
                break
            self._ready = trio.Event()
            with trio.CancelScope(deadline=self._slots[0].due_s if self._slots else inf) as self._patience:
                await self._ready.wait()
            if self._patience.cancelled_caught:
                text = f"a request of {self._source} had no answer after {self._tuning.answer_s:g} s; closed"
                self._tally.incident(Fault.BUSY, self._source, text)
                break
        connection.cancel()

    async def _send(self, data: bytes) -> bool:
        try:
            with trio.move_on_after(self._tuning.stalled_s):
                await self._stream.send_all(data)
                return True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        self._tally.incident(Fault.SILENT, self._source, f"{self._source} does not take its replies; closed")
        return False
