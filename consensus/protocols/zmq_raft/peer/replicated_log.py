"""Clients' requests to the plain replicated log: updates and changes of the members, once for each request id.

    update ──▶ not leader?            UpdateRedirect
           ──▶ in the table?          UpdateCommitted, with the index of the first time
           ──▶ under way?             UpdateAccepted; the latest sender gets the final reply
           ──▶ too old, or too new?   UpdateExpired
           ──▶ submitted              UpdateAccepted ──committed and applied here──▶ UpdateCommitted
                                                     └──leadership lost──▶ UpdateRedirect: the client repeats it

The table (`executed_requests`) contains only committed entries, so two cases need special rules.

*A new leader* may hold entries of older terms whose commitment is unknown, and clients may repeat their requests. So
the leader delays updates until it has applied all entries that its log held at its election, usually one round trip.

*A leader that loses leadership* may have updates waiting for a batch. After a later election it could submit an update
that another leader has committed for the client since then. So updates that the core does not have yet are withdrawn
when the role changes.

A client gets UpdateCommitted when the entry is applied here, so that its next RequestEntries reads it. *Changes of the
members* use joint consensus and count as committed with C_old,new, whose entry carries the request's id.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

import trio
from msgspec import Struct

from consensus.core.effects import (
    ChangeOutcome,
    ChangeRefusal,
    ConfigurationResolved,
    Outcome,
    ProposalResolved,
    Role,
    RoleChanged,
)
from consensus.core.model import Entry, Index, Milliseconds, Server, Term
from consensus.protocols.zmq_raft.counters import PeerEvent
from consensus.protocols.zmq_raft.endpoint.served_log import LogDescription
from consensus.protocols.zmq_raft.peer.executed_requests import ExecutedRequests, request_id_of
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.entries import peers_of
from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS
from consensus.protocols.zmq_raft.wire.peers import PeersError, check_change
from consensus.protocols.zmq_raft.wire.request_ids import DEFAULT_WINDOW, Window, is_fresh
from consensus.server.batching import Proposal
from consensus.server.errors import ServerStoppedError
from consensus.server.server import ConsensusServer
from consensus.server.storage_reads import SnapshotChunk

_CHECKPOINT_POLL_S: Final = 0.02
_REFUSALS: Final = {
    ChangeRefusal.CATCH_UP_TOO_SLOW: "a new peer cannot keep up with the log",
    ChangeRefusal.CATCH_UP_STALLED: "a new peer does not answer: start it before it is made a member",
    ChangeRefusal.NEW_SERVER_IN_LATER_TERM: "a new peer is not new: it has seen a later term, start it empty",
    ChangeRefusal.TOO_MANY_SERVERS: "too many peers",
}


class LogOptions(Struct, frozen=True):
    """Limits of requests under way."""

    window: Window = DEFAULT_WINDOW
    max_updates: int = 4096
    """Limit of updates without a final reply; any excess is ignored, and its client repeats it."""
    max_update_bytes: int = DEFAULT_LIMITS.max_entry_data_bytes
    checkpoint_ms: Milliseconds = 5_000
    """Time that a change waits for the first commitment of the leader's term."""


class _Update(Struct, eq=False):
    """An update under way, with `proposal` None while it waits for the application of the new leader's log."""

    data: bytes
    answer: Callable[[wire.UpdateReply], None]
    proposal: Proposal | None = None
    is_accepted: bool = False
    """True if its client got "accepted": it then waits for a final reply and does not repeat the request."""


class _Change(Struct, eq=False):
    request: wire.ChangeRequest
    answer: Callable[[wire.ChangeReply], None]
    has_begun: bool = False
    has_answer: bool = False


class ReplicatedLog:
    """A `ServedLog` over a server. `run` runs together with the server, whose `RoleChanged` go to `role_changed`."""

    def __init__(
        self,
        server: ConsensusServer,
        machine: ExecutedRequests,
        now_ms: Callable[[], Milliseconds],
        broadcast_url: str | None = None,
        options: LogOptions | None = None,
    ) -> None:
        self.dropped: Counter[PeerEvent] = Counter()
        self._server = server
        self._machine = machine
        self._now_ms = now_ms
        self._broadcast_url = broadcast_url
        self._options = options or LogOptions()
        self._updates: dict[bytes, _Update] = {}
        self._change: _Change | None = None
        self._changes: trio.MemorySendChannel[_Change]
        self._changes, self._queued_changes = trio.open_memory_channel[_Change](self._options.max_updates)
        self._term: Term | None = None
        """Term of this server's leadership, if any."""
        self._complete_from: Index = 0
        """Index whose application completes the leader's table."""
        machine.watchers.append(self._applied)
        self.role_changed(server.role)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out changes of the members until canceled."""
        task_status.started()
        async for change in self._queued_changes:
            await self._carry_out(change)

    def role_changed(self, role: RoleChanged) -> None:
        """Process a change of the leader."""
        term = role.term if role.role is Role.LEADER else None
        if term is not None and term == self._term:
            return
        self._end_all()
        self._term = term
        self._complete_from = 0 if term is None else self._server.describe().raft.last.index

    def describe(self) -> LogDescription:
        """Return the present state of the log."""
        description, role = self._server.describe().raft, self._server.role
        configuration, snapshot = description.configuration, description.snapshot
        members = dict.fromkeys((*configuration.old_voters, *configuration.voters))
        return LogDescription(
            is_leader=role.role is Role.LEADER,
            leader=self._leader(),
            peers=peers_of(tuple(members)),
            term=description.term,
            first_index=description.log_start.index + 1,
            last_applied=self._machine.applied,
            commit=self._server.commit_index,
            last_index=description.last.index,
            snapshot_bytes=0 if snapshot is None else snapshot.size_bytes,
            prune_index=self._machine.prune_index,
        )

    async def read(self, first: Index, limit_entries: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Return committed entries. See `ServedLog`."""
        return await self._server.read(first, limit_entries, limit_bytes)

    async def read_snapshot(self, offset: int, limit_bytes: int) -> SnapshotChunk | None:
        """Return bytes of the snapshot. See `ServedLog`."""
        return await self._server.read_snapshot(offset, limit_bytes)

    def broadcast_url(self) -> str | None:
        """Return the URL of this peer's PUB socket, which sends only while this peer leads."""
        return self._broadcast_url

    def update(self, request: wire.UpdateRequest, user: str | None, answer: Callable[[wire.UpdateReply], None]) -> None:
        """Commit an update. See `ServedLog`."""
        del user
        request_id = request.request_id
        if self._term is None:
            answer(wire.UpdateRedirect(request_id, self._leader()))
            return
        index = self._machine.table.index_of(request_id)
        if index is not None:
            answer(wire.UpdateCommitted(request_id, index))
            return
        under_way = self._updates.get(request_id)
        if under_way is not None:
            under_way.answer = answer
            answer(wire.UpdateAccepted(request_id))
        elif not 0 < len(request.data) <= self._options.max_update_bytes:
            self.dropped[PeerEvent.UPDATE_SIZE] += 1
        elif len(self._updates) >= self._options.max_updates:
            self.dropped[PeerEvent.UPDATE_LIMIT] += 1
        elif not self._is_complete:
            self._updates[request_id] = _Update(request.data, answer, is_accepted=True)
            answer(wire.UpdateAccepted(request_id))
        else:
            self._submit(request_id, _Update(request.data, answer))

    def change(self, request: wire.ChangeRequest, answer: Callable[[wire.ChangeReply], None]) -> None:
        """Change the members. See `ServedLog`."""
        request_id, change = request.request_id, self._change
        if self._term is None:
            answer(wire.ChangeRedirect(request_id, self._leader()))
            return
        index = self._machine.table.index_of(request_id)
        if index is not None:
            answer(wire.ChangeCommitted(request_id, index))
        elif change is not None and change.request.request_id == request_id and not change.has_answer:
            change.answer = answer
            answer(wire.ChangeAccepted(request_id))
        elif change is not None:
            answer(wire.ChangeBusy(request_id))
        elif request_id in self._updates:
            answer(wire.ChangeRefused(request_id, "Error", "wrong request id log entry type"))
        else:
            change = _Change(request, answer)
            refusal = self._refusal(request) if self._is_complete else None
            if refusal is not None:
                answer(refusal)
                return
            self._change = change
            answer(wire.ChangeAccepted(request_id))
            if self._is_complete:
                self._begin(change)

    @property
    def _is_complete(self) -> bool:
        """Return True if the table contains every id in this leader's log at its election."""
        return self._machine.applied >= self._complete_from

    def _leader(self) -> str | None:
        leader = self._server.role.leader
        return leader if isinstance(leader, str) else None

    def _is_expired(self, request_id: bytes) -> bool:
        fresh = is_fresh(request_id, self._now_ms(), self._options.window)
        return not fresh or self._machine.table.may_be_forgotten(request_id)

    def _submit(self, request_id: bytes, update: _Update) -> None:
        if self._is_expired(request_id):
            update.answer(wire.UpdateExpired(request_id))
            return
        self._updates[request_id] = update
        update.proposal = self._server.submit((request_id + update.data,), partial(self._resolved, request_id, update))
        if self._updates.get(request_id) is update and not update.is_accepted:
            update.is_accepted = True
            update.answer(wire.UpdateAccepted(request_id))

    def _resolved(self, request_id: bytes, update: _Update, resolved: ProposalResolved) -> None:
        if self._updates.get(request_id) is not update:
            return
        match resolved.outcome:
            case Outcome.COMMITTED:
                pass  # answered when it is applied
            case Outcome.BUSY if not update.is_accepted:
                # The update is not accepted yet: the client does not get a reply, and repeats the update later.
                self.dropped[PeerEvent.UPDATE_BUSY] += 1
                del self._updates[request_id]
            case Outcome.BUSY | Outcome.NOT_LEADER | Outcome.UNKNOWN:
                del self._updates[request_id]
                leader = resolved.leader if isinstance(resolved.leader, str) else None
                update.answer(wire.UpdateRedirect(request_id, None if resolved.outcome is Outcome.BUSY else leader))
            case _:
                assert_never(resolved.outcome)

    def _applied(self, first: Index, entries: tuple[Entry, ...]) -> None:
        if self._updates or self._change is not None:
            for index, entry in enumerate(entries, first):
                self._answer_applied(request_id_of(entry), index)
        if self._term is not None and self._complete_from and self._is_complete:
            self._complete_from = 0
            self._admit_waiting()

    def _answer_applied(self, request_id: bytes, index: Index) -> None:
        update, change = self._updates.pop(request_id, None), self._change
        if update is not None:
            update.answer(wire.UpdateCommitted(request_id, self._machine.table.index_of(request_id) or index))
        elif change is not None and change.request.request_id == request_id and not change.has_answer:
            change.has_answer = True
            change.answer(wire.ChangeCommitted(request_id, index))

    def _admit_waiting(self) -> None:
        """Process requests that waited for the complete table. Requests in older entries already have their replies."""
        waiting = [(request_id, update) for request_id, update in self._updates.items() if update.proposal is None]
        for request_id, update in waiting:
            del self._updates[request_id]
            self._submit(request_id, update)
        change = self._change
        if change is not None and not change.has_begun:
            refusal = self._refusal(change.request)
            if change.has_answer or refusal is not None:
                self._change = None
                if refusal is not None and not change.has_answer:
                    change.answer(refusal)
            else:
                self._begin(change)

    def _end_all(self) -> None:
        """Redirect all requests: the next leader has the committed ones, and replies to their repetitions."""
        leader = self._leader()
        updates, self._updates = self._updates, {}
        for request_id, update in updates.items():
            if update.proposal is not None:
                update.proposal.abandon()
            update.answer(wire.UpdateRedirect(request_id, leader))
        change, self._change = self._change, None
        if change is not None and not change.has_answer:
            change.has_answer = True
            change.answer(wire.ChangeRedirect(change.request.request_id, leader))

    def _refusal(self, request: wire.ChangeRequest) -> wire.ChangeReply | None:
        """Return the reason why a change cannot begin now, in the order of the npm package; None if it can."""
        request_id, peers = request.request_id, request.peers
        if self._is_expired(request_id):
            return wire.ChangeExpired(request_id)
        if isinstance(peers, wire.MalformedPeers):
            return wire.ChangeRefused(request_id, peers.name, peers.message)
        configuration = self._server.describe().raft.configuration
        if configuration.is_joint:
            return wire.ChangeBusy(request_id)
        try:
            check_change(peers, peers_of(configuration.voters))
        except PeersError as error:
            return wire.ChangeRefused(request_id, error.malformed.name, error.malformed.message)
        return None

    def _begin(self, change: _Change) -> None:
        change.has_begun = True
        self._changes.send_nowait(change)

    async def _carry_out(self, change: _Change) -> None:
        peers = change.request.peers
        # A change whose client was redirected is not queued any more: another leader may have carried it out already.
        if change is not self._change or isinstance(peers, wire.MalformedPeers):
            return
        resolved = await self._resolve(change, peers)
        if resolved.outcome is ChangeOutcome.COMMITTED and resolved.position is not None:
            with suppress(ServerStoppedError):
                await self._server.wait_applied(resolved.position.index)
        if self._change is change:
            self._change = None
            if not change.has_answer:
                change.has_answer = True
                change.answer(self._change_reply(change.request.request_id, resolved))

    async def _resolve(self, change: _Change, peers: tuple[wire.Peer, ...]) -> ConfigurationResolved:
        """Change the configuration through the core; try again while the leader's first entry is uncommitted."""
        voters = tuple(Server(peer.peer_id, peer.url) for peer in peers)
        until_s = trio.current_time() + self._options.checkpoint_ms / 1000
        while True:
            resolved = await self._server.change_configuration(voters, (), change.request.request_id)
            too_early = resolved.refusal is ChangeRefusal.NO_COMMIT_IN_TERM
            if not too_early or self._change is not change or trio.current_time() >= until_s:
                return resolved
            await trio.sleep(_CHECKPOINT_POLL_S)

    def _change_reply(self, request_id: bytes, resolved: ConfigurationResolved) -> wire.ChangeReply:
        match resolved.outcome, resolved.refusal:
            case ChangeOutcome.COMMITTED, _:
                position = resolved.position
                return wire.ChangeCommitted(request_id, 0 if position is None else position.index)
            case (ChangeOutcome.UNKNOWN, _) | (_, ChangeRefusal.NOT_LEADER | ChangeRefusal.LEADERSHIP_LOST):
                return wire.ChangeRedirect(request_id, self._leader())
            case _, ChangeRefusal.BUSY | ChangeRefusal.CHANGE_UNDER_WAY | ChangeRefusal.NO_COMMIT_IN_TERM:
                return wire.ChangeBusy(request_id)
            case _, refusal:
                reason = "the members cannot change" if refusal is None else _REFUSALS.get(refusal, refusal.value)
                return wire.ChangeRefused(request_id, "Error", reason)
