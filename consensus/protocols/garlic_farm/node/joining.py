"""The joining server's side of the sequence in I2P proposal 150: invitation, log packs, and the order to leave.

    JoinClusterRequest ──▶ a voter that knows a leader? ── yes ──▶ refused
                                    │ no
                                    ▼
                           invited by this leader, in this term ──▶ accepted, with the index after its last pack
    SyncLogRequest     ──▶ from that leader and term? ── no ──▶ out of turn: the connection is closed
                                    │ yes
                                    ▼
                           an append: the core compares, stores, commits ──▶ the end of this server's log
    LeaveClusterRequest ─▶ reported to the callback `ordered_to_leave`

An invitation changes neither term nor vote nor log. The other existing implementation discards all three, so there a
server invited by mistake loses acknowledged entries. A server removed during its absence may be invited again. The core
checks a pack like every append.

A leader of another implementation omits the term of the entry before a pack. This server knows the term if the pack
continues the previous pack of that leader and term, or a snapshot. Otherwise it refuses the pack with the index to
continue from. An order to leave is only reported. The removal itself is an entry of the log; the leader appends it
unless it loses its leadership first.
"""

from collections.abc import Callable

from msgspec import Struct, field

from consensus.core.messages import AppendReply, Reply
from consensus.core.model import Index, LogId, ServerId, Term
from consensus.protocols.garlic_farm.node.connection import Cancel, call_server, nothing_to_cancel
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.joining_mapping import sync_from_wire, sync_reply_to_wire
from consensus.protocols.garlic_farm.wire.mapping import server_id
from consensus.server.interfaces import next_call
from consensus.server.server import ConsensusServer

OnReply = Callable[[wire.Reply | None], None]


class _Invitation(Struct):
    """The inviting leader, its term, and the end of the last pack from it."""

    leader: int
    term: Term
    synced: LogId = field(default_factory=lambda: LogId(0, 0))


class Joining:
    """Serves the three requests for one server. `ordered_to_leave` gets the leader of a LeaveClusterRequest."""

    def __init__(
        self, server: ConsensusServer, own_id: int, ordered_to_leave: Callable[[ServerId], None] = lambda _: None
    ) -> None:
        self._server = server
        self._own_id = own_id
        self._ordered_to_leave = ordered_to_leave
        self._invitation: _Invitation | None = None
        self.packs = 0
        """Number of stored log packs."""

    def join(self, request: wire.JoinClusterRequest) -> wire.JoinClusterResponse:
        """Process a leader's invitation."""
        raft, leader = self._server.describe().raft, server_id(request.source)
        known = self._invitation
        belongs = self._own_id in raft.configuration.voter_ids and self._server.role.leader is not None
        accepted = not belongs
        if accepted and (known is None or (known.leader, known.term) != (leader, request.term)):
            known = self._invitation = _Invitation(leader, request.term)
        next_index = known.synced.index + 1 if accepted and known is not None else raft.last.index + 1
        return wire.JoinClusterResponse(
            source=self._own_id, destination=leader, term=raft.term, next_index=next_index, accepted=accepted
        )

    def sync(self, request: wire.SyncLogRequest, on_reply: OnReply) -> Cancel:
        """Process a part of a leader's log."""
        invitation = self._invitation
        if invitation is None or (invitation.leader, invitation.term) != (request.source, request.term):
            text = f"a log pack of term {request.term} from server {request.source}, which has not invited this server"
            raise GarlicFarmError(Fault.OUT_OF_TURN, text)
        before = self._term_before(request, invitation)
        if before is None:
            on_reply(self._refused(request, invitation.synced.index + 1))
            return nothing_to_cancel
        append = sync_from_wire(request, before, next_call())
        last = LogId(append.previous.index + len(append.entries), append.entries[-1].term if append.entries else before)

        def stored(reply: Reply | None) -> None:
            if not isinstance(reply, AppendReply):
                on_reply(None)
                return
            if reply.success and reply.next_index == last.index + 1:
                self.packs += 1
                invitation.synced = max(invitation.synced, last, key=lambda position: position.index)
            on_reply(sync_reply_to_wire(reply, request))

        return call_server(self._server, invitation.leader, append, stored)

    def leave(self, request: wire.LeaveClusterRequest) -> wire.LeaveClusterResponse:
        """Process a leader's announcement that it will remove this server."""
        role = self._server.role
        accepted = request.source == role.leader and request.term == role.term
        if accepted:
            self._ordered_to_leave(request.source)
        last = self._server.describe().raft.last.index
        return wire.LeaveClusterResponse(
            source=self._own_id, destination=request.source, term=role.term, next_index=last + 1, accepted=accepted
        )

    def _term_before(self, request: wire.SyncLogRequest, invitation: _Invitation) -> Term | None:
        index = request.last_log_index
        if index == 0 or request.last_log_term:
            return request.last_log_term if index else 0
        snapshot = self._server.describe().raft.snapshot
        places = (invitation.synced, *(() if snapshot is None else (snapshot.last,)))
        return next((place.term for place in places if place.index == index), None)

    def _refused(self, request: wire.SyncLogRequest, next_index: Index) -> wire.SyncLogResponse:
        return wire.SyncLogResponse(
            source=self._own_id,
            destination=request.source,
            term=self._server.role.term,
            next_index=next_index,
            accepted=False,
        )
