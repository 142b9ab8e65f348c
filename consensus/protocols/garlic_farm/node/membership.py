"""The sequences of the document (I2P proposal 150) that add and remove servers: the leader's side, and the dispatch.

    AddServerRequest ──▶ refuse │ accept: AddServerResponse, and afterwards
        JoinClusterRequest ──accepted──▶ the core replicates to the server: log packs, or the snapshot, in rounds
                                         until it has caught up ──▶ a configuration with it ──committed──▶ done
    RemoveServerRequest ──▶ refuse │ accept: RemoveServerResponse, and afterwards
        LeaveClusterRequest ──reply or not──▶ a configuration without it ──committed──▶ done

*Accepted means begun*, as the document defines it: the reply precedes the invitation, and the log shows the completion.
A request may be repeated safely: a change under way, or a complete addition, is accepted without a further effect. One
change runs at a time: otherwise a second server would be invited, and then refused by the core.

A server that supports only the document becomes a voter when it has caught up (the core's `CatchUp`), since the
document does not have learners. If the leader fails before it appends the configuration, nothing remains. After that,
the next leader completes the change if it has the entry. A server without a vote joins by `add_learner`, with the same
messages.

`MemberRules` decides about additions and removals. The reason of a refusal goes to the operator as text, since the
reply has only one bit for it. `Members` passes requests to a leader to `MemberRequests`, and requests to a joining or
leaving server to `Joining`. A server with fixed members replies to all five with `refuse`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, assert_never

import trio
from msgspec import Struct

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Role
from consensus.core.model import MAX_MEMBERS, Configuration, Server, ServerId, integer_id
from consensus.protocols.garlic_farm.node.client_connection import Lost
from consensus.protocols.garlic_farm.node.connection import Cancel, nothing_to_cancel
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.node.joining import Joining
from consensus.protocols.garlic_farm.node.joining_peers import JoiningPeer
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault, malformed
from consensus.protocols.garlic_farm.wire.joining_mapping import invitation_to_wire
from consensus.protocols.garlic_farm.wire.limits import UNKNOWN_SERVER
from consensus.protocols.garlic_farm.wire.mapping import server_id
from consensus.protocols.garlic_farm.wire.values import ClusterServer, LogEntry
from consensus.server.callbacks import run_task
from consensus.server.server import ConsensusServer
from consensus.server.task_owner import TaskOwner

_R = TypeVar("_R", wire.AddServerResponse, wire.RemoveServerResponse)

_LOOK_S = 0.1


class MemberRules(Protocol):
    """Rules for adding and removing servers. A text is a refusal, for the operator."""

    def may_add(self, server: Server) -> PeerAddress | str:
        """Return the address of the server if it may be added."""

    def may_remove(self, server: ServerId, configuration: Configuration) -> str | None:
        """Return None if the server may be removed, else the reason."""


class MembershipOptions(Struct, frozen=True):
    """Time limits for the peer's replies to the requests before a change."""

    invitation_s: float = 15.0
    leave_s: float = 2.0


class MemberRequests(TaskOwner):
    """The handler of requests to add or remove a server. `run` must be running."""

    def __init__(
        self,
        server: ConsensusServer,
        own_id: int,
        links: PeerLinks,
        rules: MemberRules,
        metrics: Metrics,
        options: MembershipOptions | None = None,
    ) -> None:
        self._server = server
        self._own_id = own_id
        self._links = links
        self._rules = rules
        self._metrics = metrics
        self._options = options or MembershipOptions()
        self._under_way: ServerId | None = None
        """The server that is being added or removed."""

    def add(self, request: wire.AddServerRequest) -> wire.AddServerResponse:
        """Reply to a request to add a server, usually the requesting server."""
        newcomer = _server_of(request)
        accepted = self._leads() and self._begin_to_add(newcomer)
        return self._answer(wire.AddServerResponse, accepted=accepted)

    def remove(self, request: wire.RemoveServerRequest) -> wire.RemoveServerResponse:
        """Reply to a request to remove a server."""
        leaving = server_id(_named(request).server_id)
        accepted = self._leads() and self._begin_to_remove(leaving)
        return self._answer(wire.RemoveServerResponse, accepted=accepted)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _begin_to_add(self, newcomer: Server) -> bool:
        configuration = self._server.describe().raft.configuration
        known = next((each for each in configuration.voters if each.server_id == newcomer.server_id), None)
        if known == newcomer or self._under_way == newcomer.server_id:
            return True
        address = self._refusal_or_address(newcomer, configuration)
        if isinstance(address, str):
            return self._refuse(_adding(newcomer), address)
        return self._begin(newcomer.server_id, lambda: self._add(newcomer, address))

    def _refusal_or_address(self, newcomer: Server, configuration: Configuration) -> PeerAddress | str:
        if newcomer.server_id in configuration.voter_ids or newcomer.server_id == self._own_id:
            return "its id belongs to a member with another endpoint; each server needs a separate id"
        if len(configuration.member_ids) >= MAX_MEMBERS:
            return f"the cluster already has {MAX_MEMBERS} members; remove one first"
        return self._refusal_at_present() or self._rules.may_add(newcomer)

    def _begin_to_remove(self, leaving: int) -> bool:
        if self._under_way == leaving:
            return True
        refusal = self._refusal_to_remove(leaving)
        if refusal is not None:
            return self._refuse(_removing(leaving), refusal)
        return self._begin(leaving, lambda: self._remove(leaving))

    def _refusal_to_remove(self, leaving: int) -> str | None:
        configuration = self._server.describe().raft.configuration
        if leaving not in configuration.member_ids:
            return "it is not a member"
        if leaving == self._own_id:
            return "it leads; hand leadership to another server first, then send the request to that server"
        return self._refusal_at_present() or self._rules.may_remove(leaving, configuration)

    def _refusal_at_present(self) -> str | None:
        raft = self._server.describe().raft
        if self._under_way is not None or raft.change is not None or raft.configuration.is_joint:
            return "another change of the members runs; try again after its end"
        return None

    def _refuse(self, change: str, reason: str) -> bool:
        self._metrics.incident(Fault.REFUSED_CHANGE, change, f"{change}: refused: {reason}")
        return False

    def _leads(self) -> bool:
        return self._server.role.role is Role.LEADER

    def _answer(self, kind: type[_R], *, accepted: bool) -> _R:
        """Return a reply whose destination is the leader."""
        raft, role = self._server.describe().raft, self._server.role
        leader = UNKNOWN_SERVER if role.leader is None else integer_id(role.leader)
        return kind(
            source=self._own_id, destination=leader, term=role.term, next_index=raft.last.index + 1, accepted=accepted
        )

    # -- changes -------------------------------------------------------------------------------------------------------

    def _begin(self, server: ServerId, change: Callable[[], Awaitable[None]]) -> bool:
        if self._nursery is None:
            return self._refuse(f"a change of server {server}", "this server is stopping")
        self._under_way = server

        async def carry_out() -> None:
            try:
                await change()
            finally:
                self._under_way = None

        self._nursery.start_soon(run_task, carry_out)
        return True

    async def _add(self, newcomer: Server, address: PeerAddress) -> None:
        joining_peer = self._joining_peer(newcomer, address)
        try:
            refusal = await self._invite(newcomer.server_id, joining_peer)
            if refusal is not None:
                self._refuse(_adding(newcomer), refusal)
                return
            voters, learners = _without(self._server.describe().raft.configuration, newcomer.server_id)
            resolved = await self._server.change_configuration((*voters, newcomer), learners)
        finally:
            self._links.end_joining(newcomer.server_id)
            self._count(joining_peer)
        self._ended(resolved, ConnectionEvent.SERVERS_ADDED, _adding(newcomer))

    def _joining_peer(self, newcomer: Server, address: PeerAddress | None) -> JoiningPeer:
        server = integer_id(newcomer.server_id)
        return JoiningPeer(address, lambda extended: self._invitation(server, extended=extended))

    async def _invite(self, newcomer: ServerId, joining_peer: JoiningPeer) -> str | None:
        """Return the reason why the server has not joined, or None if it has accepted the invitation."""
        if not self._links.invite(newcomer, joining_peer):
            return "this server has too many links already"
        with trio.move_on_after(self._options.invitation_s):
            return None if await joining_peer.answer() else "it refused the invitation"
        return "it did not answer the invitation"

    async def _remove(self, leaving: int) -> None:
        await self.request_leave(leaving)
        voters, learners = _without(self._server.describe().raft.configuration, leaving)
        resolved = await self._server.change_configuration(voters, learners)
        self._ended(resolved, ConnectionEvent.SERVERS_REMOVED, _removing(leaving))

    async def add_learner(self, newcomer: Server) -> ConfigurationResolved | None:
        """Invite a server and replicate to it, without a vote. Return None if it has not accepted the invitation.

        The server becomes a member before it catches up. Then it gets log packs until it has every entry that the log
        had at that time.
        """
        joining_peer, resolved = self._joining_peer(newcomer, None), None
        try:
            if await self._invite(newcomer.server_id, joining_peer) is None:
                voters, learners = _without(self._server.describe().raft.configuration, newcomer.server_id)
                resolved = await self._server.change_configuration(voters, (*learners, newcomer))
        finally:
            is_committed = resolved is not None and resolved.outcome is ChangeOutcome.COMMITTED
            if is_committed and self._nursery is not None:
                self._nursery.start_soon(self._bring_up, integer_id(newcomer.server_id), joining_peer)
            else:
                self._links.end_joining(newcomer.server_id)
        return resolved

    async def _bring_up(self, newcomer: int, joining_peer: JoiningPeer) -> None:
        """Wait until the learner has the log's present entries, is removed, or this server loses its leadership."""
        goal = self._server.describe().raft.last.index
        try:
            while self._leads():
                raft = self._server.describe().raft
                match = next((each.match for each in raft.followers if each.server_id == newcomer), None)
                if match is None or match >= goal:
                    return
                await trio.sleep(_LOOK_S)
        finally:
            self._links.end_joining(newcomer)
            self._count(joining_peer)

    def _count(self, joining_peer: JoiningPeer) -> None:
        self._metrics.add(ConnectionEvent.LOG_PACKS_SENT, joining_peer.packs)
        self._metrics.add(ConnectionEvent.SNAPSHOT_CHUNKS_SENT, joining_peer.chunks)

    async def request_leave(self, leaving: int) -> None:
        """Announce the removal to the leaving server, if it can be reached. Its reply is only counted."""
        raft = self._server.describe().raft
        request = wire.LeaveClusterRequest(
            source=self._own_id,
            destination=leaving,
            term=raft.term,
            last_log_term=0,
            last_log_index=raft.last.index,
            commit_index=self._server.commit_index,
        )
        reply: wire.Reply | Lost = Lost.UNANSWERED
        with trio.move_on_after(self._options.leave_s):
            reply = await self._links.call(leaving, request)
        has_replied = isinstance(reply, wire.LeaveClusterResponse)
        self._metrics.count(ConnectionEvent.FAREWELLS_ANSWERED if has_replied else ConnectionEvent.FAREWELLS_UNANSWERED)

    def _invitation(self, newcomer: int, *, extended: bool) -> wire.JoinClusterRequest:
        raft, before = self._server.describe().raft, self._links.configuration_before
        configuration = raft.configuration if extended else Configuration(raft.configuration.voters)
        index = before(raft.last.index + 1)
        place = (index, before(index))
        return invitation_to_wire(
            self._own_id, newcomer, raft.term, raft.last.index, raft.commit_index, configuration, place
        )

    def _ended(self, resolved: ConfigurationResolved, counter: ConnectionEvent, change: str) -> None:
        match resolved.outcome:
            case ChangeOutcome.COMMITTED:
                self._metrics.count(counter)
            case ChangeOutcome.REFUSED:
                reason = "refused" if resolved.refusal is None else resolved.refusal.value
                self._refuse(change, f"{reason}; see docs/reference/configuration-changes.md")
            case ChangeOutcome.UNKNOWN:
                self._refuse(
                    change, "its result is unknown, because this server lost its leadership; query the next leader"
                )


def _adding(newcomer: Server) -> str:
    return f"adding server {newcomer.server_id} at {newcomer.endpoint}"


def _removing(leaving: int) -> str:
    return f"removing server {leaving}"


def _without(configuration: Configuration, server: ServerId) -> tuple[tuple[Server, ...], tuple[Server, ...]]:
    return (
        tuple(each for each in configuration.voters if each.server_id != server),
        tuple(each for each in configuration.learners if each.server_id != server),
    )


def _named(request: wire.Request) -> ClusterServer:
    match request.entries:
        case (LogEntry(value=ClusterServer() as named),):
            return named
        case _:
            raise malformed("a request about a server without its id")


def _server_of(request: wire.AddServerRequest) -> Server:
    named = _named(request)
    if named.endpoint is None:
        raise malformed(f"a request to add server {named.server_id} without an endpoint")
    if not named.endpoint.isprintable():
        # Such an endpoint would stay in the log and appear on operators' screens.
        raise malformed(f"the endpoint of server {named.server_id} has characters that cannot be printed")
    return Server(server_id(named.server_id), named.endpoint)


class Members:
    """The handler of the five requests about members."""

    def __init__(self, joining: Joining, requests: MemberRequests) -> None:
        self.joining = joining
        self.requests = requests

    def membership_request(
        self, request: wire.MembershipRequest, on_reply: Callable[[wire.Reply | None], None]
    ) -> Cancel:
        """Reply immediately, or later if the reply waits for the disk. May raise `GarlicFarmError` instead."""
        match request:
            case wire.SyncLogRequest():
                return self.joining.sync(request, on_reply)
            case wire.JoinClusterRequest():
                on_reply(self.joining.join(request))
            case wire.LeaveClusterRequest():
                on_reply(self.joining.leave(request))
            case wire.AddServerRequest():
                on_reply(self.requests.add(request))
            case wire.RemoveServerRequest():
                on_reply(self.requests.remove(request))
            case _:
                assert_never(request)
        return nothing_to_cancel


def refuse(request: wire.MembershipRequest, server: ConsensusServer, own_id: int) -> wire.Reply:
    """Return the reply of a server whose members do not change by requests."""
    role, last = server.role, server.describe().raft.last.index
    leader = UNKNOWN_SERVER if role.leader is None else integer_id(role.leader)
    is_from_client = isinstance(request, wire.AddServerRequest | wire.RemoveServerRequest)
    destination = leader if is_from_client else request.source
    return wire.ANSWERS[type(request)](
        source=own_id, destination=destination, term=role.term, next_index=last + 1, accepted=False
    )
