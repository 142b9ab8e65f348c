"""A voter of a dynamic quorum records its address through the leader; an observer with auto join becomes a voter.

    each 5 s:   the record has our address                    nothing
                the record has another one      follower ──▶ UpdateRaftVoter to the leader, which tries the address
                                                leader   ──▶ tries the address itself, then appends the voters' record
                we do not vote, with auto join           ──▶ AddRaftVoter

*A refused address* is reported once for each reason (`AddressRefused`), by the server with the wrong settings.
Otherwise an operator would notice the error only when the record is needed.

*A leader tries its own address*, because Kafka does not have a request for a test by another server. From the leader
itself, a loopback address always works. So a loopback address is refused if another voter is not on loopback.

*A removed voter stays removed.* With auto join it would return five seconds after `remove-voter`. So if a committed
record has made a server a voter since its start, the server does not join automatically until it is started again. An
operator may still add it (KAFKA-19850).
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final
from uuid import UUID

import trio
from msgspec import Struct

from consensus.core.effects import Role
from consensus.core.model import Configuration, Index, Server
from consensus.core.status import RaftDescription
from consensus.protocols.kafka.connections.connection import (
    DialOptions,
    KafkaConnectionError,
    open_connection,
)
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import ErrorCode, error_name
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kraft.operators.settings import VoterSettings, wire_listeners
from consensus.protocols.kraft.replica.admin_service import UNREACHABLE, AdminService
from consensus.protocols.kraft.replica.quorum_names import QuorumNames, host_port, server_of
from consensus.protocols.kraft.wire.replica_names import replica
from consensus.server.server import ConsensusServer

JOIN_S: Final = 5.0
_REASONS: Final = {
    ErrorCode.NETWORK_EXCEPTION: "the leader, server {leader}, does not find a server of the quorum there",
    ErrorCode.INVALID_VOTER_KEY: "the leader, server {leader}, finds another server there",
}

_LATER: Final = (
    ErrorCode.NONE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""Codes that do not refuse the address: a later announcement may record it."""


class AddressRefused(Struct, frozen=True):
    """An alarm: the address that this server advertises is not recorded. The other servers use `recorded`."""

    address: str
    recorded: str
    reason: str


class Announcing:
    """The announcements of one server, from its start on."""

    def __init__(
        self,
        server: ConsensusServer,
        administration: AdminService,
        names: QuorumNames,
        settings: VoterSettings,
        connection: DialOptions,
        cluster_id: str,
        head: Callable[[], bytes],
        observe: Callable[[AddressRefused], None],
    ) -> None:
        self._server = server
        self._administration = administration
        self._names = names
        self._settings = settings
        self._connection = connection
        self._cluster_id = cluster_id
        self._head = head
        self._observe = observe
        self._advertised = server_of(names.local(), settings.advertised)
        self._reported: AddressRefused | None = None
        self._named_by: Index | None = None
        """End of the log when a configuration with this server was first seen."""
        self._has_voted = False

    async def run(self) -> None:
        """Announce until canceled."""
        while True:
            self._remember(self._server.describe().raft)
            await trio.sleep(JOIN_S)
            raft = self._server.describe().raft
            self._remember(raft)
            found = self._own(raft)
            if found == self._advertised:
                self._reported = None
            elif found is not None:
                await self._announce(raft, found)
            elif self._settings.auto_join and not self._has_voted:
                await self._join(raft)

    def _own(self, raft: RaftDescription) -> Server | None:
        own = self._names.local()
        return next((each for each in raft.configuration.voters if each.server_id == own), None)

    def _remember(self, raft: RaftDescription) -> None:
        """Record that this server is a voter, once this is committed and later leaders cannot revoke it."""
        if self._own(raft) is None:
            self._named_by = None
            return
        if self._named_by is None:
            self._named_by = raft.last.index
        self._has_voted = self._has_voted or raft.commit_index >= self._named_by

    async def _announce(self, raft: RaftDescription, found: Server) -> None:
        if raft.role is Role.LEADER:
            reason = await self._objection(raft.configuration)
            if reason is None:
                own = self._advertised.server_id
                now = self._server.describe().raft.configuration.voters
                voters = tuple(self._advertised if each.server_id == own else each for each in now)
                await self._server.change_configuration(voters, head=self._head())
        else:
            response = await self._call_leader(raft, self._update(raft.term))
            code = ErrorCode.NONE if response is None else response.error_code
            leader = "?" if raft.leader is None else replica(raft.leader).id
            reason = self._reason(code, leader)
        if reason is not None:
            self._report(AddressRefused(self._advertised.endpoint, found.endpoint, reason))

    async def _objection(self, configuration: Configuration) -> str | None:
        """Return the reason why the leader does not record its own address."""
        place = host_port(self._advertised.endpoint)
        if place is None:
            return "it is not an address"
        own = self._advertised.server_id
        others = [host_port(each.endpoint) for each in configuration.voters if each.server_id != own]
        if is_loopback(place[0]) and not all(other is None or is_loopback(other[0]) for other in others):
            return "other voters are on other machines, which cannot connect to a loopback address of this one"
        refusal = await self._administration.refusal_of_place(self._names.local(), place)
        return None if refusal is None else refusal[1]

    def _reason(self, code: int, leader: object) -> str | None:
        """Return the reason why a leader refuses the address; None if it has recorded it, or may do so later."""
        if code in _LATER:
            return None
        known = next((text for each, text in _REASONS.items() if each == code), None)
        if known is None:
            return f"the leader, server {leader}, refuses it: {error_name(code)}"
        return known.format(leader=leader)

    def _report(self, refused: AddressRefused) -> None:
        if refused != self._reported:
            self._reported = refused
            self._observe(refused)

    async def _join(self, raft: RaftDescription) -> None:
        request = admin.AddRaftVoterRequest(
            cluster_id=self._cluster_id,
            timeout_ms=self._settings.request_timeout_ms,
            voter_id=self._names.local().id,
            voter_directory_id=UUID(bytes=self._names.local().directory),
            listeners=wire_listeners(self._settings.advertised),
        )
        response = await self._call_leader(raft, request)
        if not isinstance(response, admin.AddRaftVoterResponse):
            return
        text = response.error_message or error_name(response.error_code)
        if response.error_code in (ErrorCode.INVALID_VOTER_KEY, ErrorCode.INVALID_REQUEST) or UNREACHABLE in text:
            self._report(AddressRefused(self._advertised.endpoint, "", text))

    def _update(self, term: int) -> admin.UpdateRaftVoterRequest:
        return admin.UpdateRaftVoterRequest(
            cluster_id=self._cluster_id,
            current_leader_epoch=term,
            voter_id=self._names.local().id,
            voter_directory_id=UUID(bytes=self._names.local().directory),
            listeners=wire_listeners(self._settings.advertised),
            k_raft_version_feature=admin.UpdateRaftVoterRequestKRaftVersion(
                min_supported_version=0, max_supported_version=1
            ),
        )

    async def _call_leader(
        self, raft: RaftDescription, request: admin.AddRaftVoterRequest | admin.UpdateRaftVoterRequest
    ) -> admin.AddRaftVoterResponse | admin.UpdateRaftVoterResponse | None:
        """Return the leader's reply; None without a leader or a reply.

        The leader tests our address before its reply, in at most two request timeouts.
        """
        if raft.leader is None:
            return None
        leader = replica(raft.leader)
        places = (self._names.endpoint(leader), *self._names.elsewhere(leader))
        wait_ms = 2 * self._settings.request_timeout_ms
        for place in dict.fromkeys(place for place in places if place is not None):
            try:
                async with open_connection(*place, self._connection) as connection:
                    answer: admin.AddRaftVoterResponse | admin.UpdateRaftVoterResponse = await connection.ask(
                        request, wait_ms=wait_ms
                    )
                    return answer
            except (KafkaConnectionError, KafkaWireError):
                continue
        return None


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
