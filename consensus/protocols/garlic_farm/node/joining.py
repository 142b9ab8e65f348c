"""A newcomer's side of the document's sequence: invited, given the log in packs, and told when it has to go.

    JoinClusterRequest ──▶ a voter that hears its leader? ── yes ──▶ refused
                                    │ no
                                    ▼
                           invited by this leader, in this term ──▶ accepted, with the index that is wanted first
    SyncLogRequest     ──▶ of that leader and term? ── no ──▶ out of turn: the connection is closed
                                    │ yes
                                    ▼
                           an append: the core compares, stores, commits ──▶ where our log ends
    LeaveClusterRequest ─▶ told to whoever wants to hear it

An invitation changes no term, no vote and no log: a running implementation forgets all three, and a server that was
invited by mistake has then lost what it acknowledged. A server that was removed while it was away takes itself for a
member and hears nobody: it may be invited again. What comes after the invitation is checked by the core like every
append, so a pack can do no more harm than one.

A leader of another make does not tell the term of the entry before a pack. Where it must be known is where the pack
before ended, by the same leader in the same term, or where a snapshot ends; anywhere else such a pack is refused, and
the reply says where to go on. Being told to leave changes nothing either: a configuration without us will follow in the
log, or will not, if its leader falls.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from consensus.core.messages import AppendReply, Reply
from consensus.core.model import Index, LogId, ServerId, Term
from consensus.protocols.garlic_farm.node.connection import Cancel, nothing_to_cancel
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.joining_mapping import sync_from_wire, sync_reply_to_wire
from consensus.protocols.garlic_farm.wire.mapping import server_id
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.server import ConsensusServer

Answered = Callable[[wire.Reply | None], None]


@dataclass(slots=True)
class _Invitation:
    """By whom, in which term, and how far that leader's packs have brought us."""

    leader: int
    term: Term
    synced: LogId = field(default_factory=lambda: LogId(0, 0))


class Joining:
    """Answers the three requests for one server. `told_to_leave` hears which leader said so."""

    def __init__(
        self, server: ConsensusServer, own_id: int, told_to_leave: Callable[[ServerId], None] = lambda _: None
    ) -> None:
        self._server = server
        self._own_id = own_id
        self._told_to_leave = told_to_leave
        self._invitation: _Invitation | None = None
        self.packs = 0
        """Log packs that were taken."""

    def join(self, request: wire.JoinClusterRequest) -> wire.JoinClusterResponse:
        """A leader invites us."""
        raft, leader = self._server.describe().raft, server_id(request.source)
        known = self._invitation
        belongs = self._own_id in raft.configuration.voter_ids and self._server.role.leader is not None
        accepted = not belongs
        if accepted and (known is None or (known.leader, known.term) != (leader, request.term)):
            known = self._invitation = _Invitation(leader, request.term)
        wanted = known.synced.index + 1 if accepted and known is not None else raft.last.index + 1
        return wire.JoinClusterResponse(self._own_id, leader, raft.term, wanted, accepted=accepted)

    def sync(self, request: wire.SyncLogRequest, correlation: int, answered: Answered) -> Cancel:
        """A leader hands us a run of its log."""
        invitation = self._invitation
        if invitation is None or (invitation.leader, invitation.term) != (request.source, request.term):
            text = f"a log pack of term {request.term} from server {request.source}, which has not invited this server"
            raise GarlicFarmError(Fault.OUT_OF_TURN, text)
        before = self._term_before(request, invitation)
        if before is None:
            answered(self._refused(request, invitation.synced.index + 1))
            return nothing_to_cancel
        append = sync_from_wire(request, before, correlation)
        last = LogId(append.previous.index + len(append.entries), append.entries[-1].term if append.entries else before)

        def stored(reply: Reply | None) -> None:
            if not isinstance(reply, AppendReply):
                answered(None)
                return
            if reply.success and reply.next_index == last.index + 1:
                self.packs += 1
                invitation.synced = max(invitation.synced, last, key=lambda position: position.index)
            answered(sync_reply_to_wire(reply, request))

        server = self._server
        try:
            server.ask(invitation.leader, append, stored)
        except (ServerBusyError, ServerStoppedError) as error:
            raise GarlicFarmError(Fault.BUSY, str(error)) from error
        return lambda: server.forget(append.correlation)

    def leave(self, request: wire.LeaveClusterRequest) -> wire.LeaveClusterResponse:
        """A leader tells us that it is about to remove us."""
        role = self._server.role
        accepted = request.source == role.leader and request.term == role.term
        if accepted:
            self._told_to_leave(request.source)
        last = self._server.describe().raft.last.index
        return wire.LeaveClusterResponse(self._own_id, request.source, role.term, last + 1, accepted=accepted)

    def _term_before(self, request: wire.SyncLogRequest, invitation: _Invitation) -> Term | None:
        index = request.last_log_index
        if index == 0 or request.last_log_term:
            return request.last_log_term if index else 0
        snapshot = self._server.describe().raft.snapshot
        places = (invitation.synced, *(() if snapshot is None else (snapshot.last,)))
        return next((place.term for place in places if place.index == index), None)

    def _refused(self, request: wire.SyncLogRequest, wanted: Index) -> wire.SyncLogResponse:
        return wire.SyncLogResponse(self._own_id, request.source, self._server.role.term, wanted, accepted=False)
