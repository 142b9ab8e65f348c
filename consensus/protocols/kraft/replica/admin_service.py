"""A quorum server's replies to Kafka's tools: the quorum's state, and changes of its voters (KIP-595, KIP-853).

    DescribeCluster 60      any server: the voters and the leader
    DescribeQuorum 55       the leader: each replica's end offset and last contact
    AddRaftVoter 80         the leader: ApiVersions and identity of the new voter ─▶ it catches up ─▶ the voters' record
    RemoveRaftVoter 81      the leader: the voters' record without the voter
    UpdateRaftVoter 82      the leader: a test of the voter's new address ─▶ the voters' record; not for static voters
    62, 63, 70              registrations and heartbeats of Kafka's brokers and controllers: NOT_CONTROLLER

*A voter's first address is tested before it is recorded*: the leader connects, and refuses the address if another
server replies (`identification`). It accepts a server of unknown identity. A wrong address in the record may prevent
the election of a leader, and only a leader can correct the record. A voter that sent UpdateRaftVoter reports the
refusal.

The tools send DescribeCluster to any server, and then send requests to the leader in the reply. So the reply must
contain the leader's address. Our server does not keep Kafka's metadata: a controller that tries to register gets
NOT_CONTROLLER. The controller retries at least twenty times a second, and logs each attempt. So our server delays the
reply (`registration_pause_s`). Other requests do not wait, because each caller uses a separate connection for this.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

import trio

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved, Role
from consensus.core.model import Configuration, ReplicaKey, Server
from consensus.core.status import FollowerProgress
from consensus.protocols.kafka.connections.connection import DialOptions, KafkaConnectionError, connect
from consensus.protocols.kafka.connections.service import Caller, ServedApi
from consensus.protocols.kafka.topic.quorum_view import (
    QuorumView,
    QuorumViewService,
    ReplicaView,
    cluster_response,
)
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.limits import ZERO_UUID, KafkaWireError
from consensus.protocols.kraft.replica.identification import VoterMatch, identify
from consensus.protocols.kraft.replica.quorum_names import QuorumNames, host_port, server_of
from consensus.protocols.kraft.replica.quorum_service import AnsweringLeader
from consensus.protocols.kraft.wire.control_records import voters_of, voters_value
from consensus.protocols.kraft.wire.replica_names import replica, uuid_of
from consensus.server.callbacks import run_task
from consensus.server.server import ConsensusServer

KRAFT_VERSION: Final = "kraft.version"
UNREACHABLE: Final = "cannot be reached"
"""A part of the error text for an unreachable voter. When the voter is reachable again, the request may succeed."""
_CODES: Final[Mapping[ChangeRefusal, ErrorCode]] = {
    ChangeRefusal.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ChangeRefusal.LEADERSHIP_LOST: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ChangeRefusal.NO_VOTERS: ErrorCode.INVALID_REQUEST,
    ChangeRefusal.SERVER_TWICE: ErrorCode.DUPLICATE_VOTER,
    ChangeRefusal.IMPOSSIBLE_ID: ErrorCode.INVALID_REQUEST,
    ChangeRefusal.TOO_MANY_SERVERS: ErrorCode.INVALID_REQUEST,
    ChangeRefusal.MORE_THAN_ONE_SERVER: ErrorCode.INVALID_REQUEST,
    ChangeRefusal.NO_LEARNERS: ErrorCode.INVALID_REQUEST,
}
"""Error codes of refusals. Other refusals may be temporary: they get REQUEST_TIMED_OUT, and Kafka's clients retry."""

_Progress = tuple[int | None, int | None, int | None]
"""The end of the log of a replica, and its ages in `ReplicaView`."""
_UNKNOWN: Final[_Progress] = (None, None, None)

Outcome = tuple[ErrorCode, str | None]
"""An error code, and for most errors the reason. UpdateRaftVoter's response cannot carry this text."""


class AdminService:
    """A `Service` over a server."""

    def __init__(
        self,
        server: ConsensusServer,
        names: QuorumNames,
        cluster_id: str,
        unix_ms: Callable[[], int],
        leader_head: Callable[[], bytes],
        connection: DialOptions,
        *,
        is_dynamic: bool,
        registration_pause_s: float = 0.0,
    ) -> None:
        self._server = server
        self._names = names
        self._cluster_id = cluster_id
        self._view = QuorumViewService(self._quorum, unix_ms)
        self._leader_head = leader_head
        self._connection = connection
        self._is_dynamic = is_dynamic
        self._registration_pause_s = registration_pause_s
        self._answering = AnsweringLeader(server.soft_state)

    def apis(self) -> Mapping[int, ServedApi]:
        """See `Service.apis`."""
        answers: dict[ApiKey, Callable[[Any, Caller], Awaitable[Any]]] = {
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.DESCRIBE_QUORUM: self._view.describe_quorum,
            ApiKey.ADD_RAFT_VOTER: self._add_voter,
            ApiKey.REMOVE_RAFT_VOTER: self._remove_voter,
            ApiKey.UPDATE_RAFT_VOTER: self._update_voter,
            ApiKey.BROKER_REGISTRATION: self._register_broker,
            ApiKey.BROKER_HEARTBEAT: self._heartbeat_of_broker,
            ApiKey.CONTROLLER_REGISTRATION: self._register_controller,
        }
        return {key: ServedApi(*VERSIONS[key], answer) for key, answer in answers.items()}

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """See `Service.features`."""
        return {KRAFT_VERSION: (0, 1, 1 if self._is_dynamic else 0)}

    async def _describe_cluster(
        self, request: admin.DescribeClusterRequest, _caller: Caller
    ) -> admin.DescribeClusterResponse:
        voters = [replica(server.server_id) for server in self._server.describe().raft.configuration.voters]
        found = ((key.id, *where) for key in voters if (where := self._names.endpoint(key)) is not None)
        leader = self._server.role.leader
        return cluster_response(request, self._cluster_id, -1 if leader is None else replica(leader).id, found)

    def _quorum(self) -> QuorumView:
        raft, role = self._server.describe().raft, self._server.role
        own = replica(raft.server_id)
        found = {replica(each.server_id): _progress(each) for each in raft.followers}
        found[own] = (raft.last.index, 0, 0)
        voters = {replica(server.server_id): _listeners(server) for server in raft.configuration.voters}

        def views(keys: Iterable[ReplicaKey]) -> tuple[ReplicaView, ...]:
            return tuple(
                ReplicaView(key.id, *found.get(key, _UNKNOWN), voters.get(key, ()), uuid_of(key.directory))
                for key in sorted(keys)
            )

        return QuorumView(
            node_id=own.id,
            leader_id=None if role.leader is None else replica(role.leader).id,
            leader_is_listed=False,
            leader_epoch=role.term,
            high_watermark=self._answering.now().high_watermark(raft.term, raft.commit_index),
            voters=views(voters),
            observers=views(found.keys() - voters.keys()),
            topic=self._names.topic().name,
            refusal="" if role.role is Role.LEADER else "another server leads, or none does now",
        )

    async def _add_voter(self, request: admin.AddRaftVoterRequest, _caller: Caller) -> admin.AddRaftVoterResponse:
        code, text = self._refusal(request.cluster_id) or await self._add(request)
        return admin.AddRaftVoterResponse(error_code=code, error_message=text)

    async def _add(self, request: admin.AddRaftVoterRequest) -> Outcome:
        voters = self._server.describe().raft.configuration.voters
        if not request.listeners or request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
            return ErrorCode.INVALID_REQUEST, "the new voter needs an id, a directory id and at least one listener"
        first = request.listeners[0]
        key = ReplicaKey(request.voter_id, request.voter_directory_id.bytes)
        added = server_of(key, request.listeners)
        refusal = _objection_to(added, voters) or await self.refusal_of_place(key, (first.host, first.port))
        # The voters may have changed during the test: a voter may have moved, or have been added.
        voters = self._server.describe().raft.configuration.voters
        if (refusal := refusal or _objection_to(added, voters)) is not None:
            return refusal
        if not request.ack_when_committed:
            trio.lowlevel.spawn_system_task(run_task, self._change, (*voters, added))
            return ErrorCode.NONE, None
        with trio.move_on_after(max(1, request.timeout_ms) / 1000):
            return await self._change((*voters, added))
        return ErrorCode.REQUEST_TIMED_OUT, "the new voter did not catch up in time; the change may still come"

    async def refusal_of_place(self, voter: ReplicaKey, place: tuple[str, int]) -> Outcome | None:
        """Connect to an address, and test the server there; return the reason to refuse the address, if any.

        The reasons: no reply, another server, or no support of kraft.version 1.
        """
        host, port = place
        term, timeout_s = self._server.role.term, self._connection.request_timeout_ms / 1000
        try:
            async with aclosing(await connect(host, port, self._connection)) as connection:
                lowest, highest = connection.features.get(KRAFT_VERSION, (0, 0))
                identity = await identify(connection, voter, self._names, term, self._cluster_id, timeout_s)
        except KafkaConnectionError as error:
            return ErrorCode.REQUEST_TIMED_OUT, f"voter {voter.id} {UNREACHABLE}: {error}"
        if not lowest <= 1 <= highest:
            return (
                ErrorCode.INVALID_REQUEST,
                f"{host}:{port} does not support {KRAFT_VERSION} 1, only {lowest} to {highest}",
            )
        if identity is VoterMatch.ANOTHER:
            return ErrorCode.INVALID_VOTER_KEY, f"the server at {host}:{port} is not voter {voter.id} of this quorum"
        return None

    async def _remove_voter(
        self, request: admin.RemoveRaftVoterRequest, _caller: Caller
    ) -> admin.RemoveRaftVoterResponse:
        code, text = self._refusal(request.cluster_id) or await self._remove(request)
        return admin.RemoveRaftVoterResponse(error_code=code, error_message=text)

    async def _remove(self, request: admin.RemoveRaftVoterRequest) -> Outcome:
        voters = self._server.describe().raft.configuration.voters
        if request.voter_id < 0:
            return ErrorCode.INVALID_REQUEST, f"{request.voter_id} is not an id of a voter"
        key = ReplicaKey(request.voter_id, request.voter_directory_id.bytes)
        left = tuple(server for server in voters if server.server_id != key)
        if len(left) == len(voters):
            return ErrorCode.VOTER_NOT_FOUND, f"no voter has id {request.voter_id} and this directory id"
        return await self._change(left)

    async def _update_voter(
        self, request: admin.UpdateRaftVoterRequest, _caller: Caller
    ) -> admin.UpdateRaftVoterResponse:
        refusal = self._refusal(request.cluster_id, of_voter=True)
        code = refusal[0] if refusal is not None else (await self._update(request))[0]
        role = self._server.role
        where = None if role.leader is None else self._names.endpoint(replica(role.leader))
        if role.leader is None or where is None:
            return admin.UpdateRaftVoterResponse(error_code=code)
        leader = admin.UpdateRaftVoterResponseCurrentLeader(
            leader_id=replica(role.leader).id, leader_epoch=role.term, host=where[0], port=where[1]
        )
        return admin.UpdateRaftVoterResponse(error_code=code, current_leader=leader)

    async def _update(self, request: admin.UpdateRaftVoterRequest) -> Outcome:
        term = self._server.role.term
        if request.current_leader_epoch != term:
            is_old = request.current_leader_epoch < term
            return (ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH), None
        if not self._is_dynamic:
            return ErrorCode.NONE, None
        versions = request.k_raft_version_feature
        supports_voters = versions.min_supported_version <= 1 <= versions.max_supported_version
        if not supports_voters or not request.listeners or request.voter_id < 0:
            return ErrorCode.INVALID_REQUEST, None
        key = ReplicaKey(request.voter_id, request.voter_directory_id.bytes)
        updated = server_of(key, request.listeners)
        voters = self._server.describe().raft.configuration.voters
        if key not in {server.server_id for server in voters}:
            return ErrorCode.VOTER_NOT_FOUND, None
        return (ErrorCode.NONE, None) if updated in voters else await self._move(updated)

    async def _move(self, voter: Server) -> Outcome:
        """Record a voter's new addresses after a test of the first one."""
        place = host_port(voter.endpoint)
        if place is None:
            return ErrorCode.INVALID_REQUEST, f"{voter.endpoint!r} is not an address"
        refusal = await self.refusal_of_place(replica(voter.server_id), place)
        if refusal is not None:
            # REQUEST_TIMED_OUT means that the change may still come, and the response cannot carry a text.
            is_late = refusal[0] == ErrorCode.REQUEST_TIMED_OUT
            return (ErrorCode.NETWORK_EXCEPTION, refusal[1]) if is_late else refusal
        voters = self._server.describe().raft.configuration.voters
        return await self._change(tuple(voter if each.server_id == voter.server_id else each for each in voters))

    async def _change(self, voters: tuple[Server, ...]) -> Outcome:
        objection = _objection(voters)
        if objection is not None:
            return objection
        return _outcome(await self._server.change_configuration(voters, head=self._leader_head()))

    def _refusal(self, cluster_id: str | None, *, of_voter: bool = False) -> Outcome | None:
        if cluster_id is not None and cluster_id != self._cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {self._cluster_id}"
        if self._server.role.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "another server leads, or none does now"
        if not self._is_dynamic and not of_voter:
            return ErrorCode.UNSUPPORTED_VERSION, "the voters of this quorum are in its settings and never change"
        return None

    async def _register_broker(
        self, _request: admin.BrokerRegistrationRequest, _caller: Caller
    ) -> admin.BrokerRegistrationResponse:
        return admin.BrokerRegistrationResponse(error_code=await self._not_controller())

    async def _heartbeat_of_broker(
        self, _request: admin.BrokerHeartbeatRequest, _caller: Caller
    ) -> admin.BrokerHeartbeatResponse:
        return admin.BrokerHeartbeatResponse(error_code=await self._not_controller(), should_shut_down=False)

    async def _register_controller(
        self, _request: admin.ControllerRegistrationRequest, _caller: Caller
    ) -> admin.ControllerRegistrationResponse:
        return admin.ControllerRegistrationResponse(
            error_code=await self._not_controller(), error_message="this server does not keep Kafka's metadata"
        )

    async def _not_controller(self) -> ErrorCode:
        await trio.sleep(self._registration_pause_s)
        return ErrorCode.NOT_CONTROLLER


def _outcome(resolved: ConfigurationResolved) -> Outcome:
    if resolved.outcome is ChangeOutcome.COMMITTED:
        return ErrorCode.NONE, None
    if resolved.refusal is None:
        return ErrorCode.REQUEST_TIMED_OUT, "leadership was lost, and the change may still come: describe the quorum"
    code = _CODES.get(resolved.refusal, ErrorCode.REQUEST_TIMED_OUT)
    return code, f"the voters stay as they are: {resolved.refusal.value}"


def _progress(follower: FollowerProgress) -> _Progress:
    end = None if follower.contact_ms is None else follower.match
    return end, follower.contact_ms, follower.caught_up_ms


def _objection_to(added: Server, voters: tuple[Server, ...]) -> Outcome | None:
    """Return the reason why these voters cannot get a further one; None if they can."""
    new_id = replica(added.server_id).id
    if new_id in {replica(server.server_id).id for server in voters}:
        return ErrorCode.DUPLICATE_VOTER, f"voter {new_id} is in the quorum: remove it first"
    return _objection((*voters, added))


def _objection(voters: tuple[Server, ...]) -> Outcome | None:
    """Return the reason why other servers would stop permanently at the voters' record; None if they can read it."""
    try:
        voters_of(0, voters_value(Configuration(voters)))
    except KafkaWireError as error:
        return ErrorCode.INVALID_REQUEST, f"the log cannot name these voters: {error}"
    return None


def _listeners(server: Server) -> tuple[tuple[str, str, int], ...]:
    named = server.listeners or (("CONTROLLER", server.endpoint),)
    return tuple((name, *place) for name, endpoint in named if (place := host_port(endpoint)) is not None)
