"""Maps the core's messages to KRaft's, and back.

    core                          wire
    term                          LeaderEpoch, CurrentLeaderEpoch, ReplicaEpoch; a pre-vote sends the previous term
    LogId(index, term)            (offset, epoch): an exclusive end offset is the index of the last entry
    ReplicaKey(id, directory)     `replica_names`
    commit                        HighWatermark
    RefusalReason                 an error code: of the partition, or of the whole message for a wrong cluster
    correlation                   not on the wire: the transport matches responses, which come in order

*A request for another replica.* Vote and BeginQuorumEpoch name their target. A server that lost its directory is
another replica than before. It refuses requests to the former replica (`INVALID_VOTER_KEY`). A request for another
replica or topic, or with negative numbers, becomes a `RefusedRequest`. The core does not receive it.

*High watermark.* A new leader sends -1 at first (`Answering.began`; docs/explanation/other-protocols.md). Versions of
Vote before 2 lack the *pre-vote*: if a peer has such a version, the core counts its pre-vote as granted (KIP-996). To
transfer leadership, the leader sends EndQuorumEpoch.

This module does not decode record batches; `entries` does.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar, assert_never

from msgspec import Struct

from consensus.core import messages as core
from consensus.core.messages import RefusalReason
from consensus.core.model import Entry, Index, LogId, ReplicaKey, ServerId, Term
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire import messages_quorum as quorum
from consensus.protocols.kafka.wire.apis import ErrorCode, error_name
from consensus.protocols.kafka.wire.limits import NO_EPOCH, PARTITION, KafkaWireError
from consensus.protocols.kraft.wire.replica_names import (
    Names,
    directory_of,
    endpoints_of,
    id_of,
    is_for_us,
    leader_key,
    leader_of,
    replica,
    uuid_of,
)

QuorumRequest = (
    quorum.VoteRequest
    | quorum.BeginQuorumEpochRequest
    | quorum.EndQuorumEpochRequest
    | clients.FetchRequest
    | quorum.FetchSnapshotRequest
)
QuorumResponse = (
    quorum.VoteResponse
    | quorum.BeginQuorumEpochResponse
    | quorum.EndQuorumEpochResponse
    | clients.FetchResponse
    | quorum.FetchSnapshotResponse
)
_Element = TypeVar("_Element")
_Announced = TypeVar("_Announced", core.BeginQuorumEpochReply, core.EndQuorumEpochReply)
_AnnouncedResponse = TypeVar("_AnnouncedResponse", quorum.BeginQuorumEpochResponse, quorum.EndQuorumEpochResponse)
ReadEntries = Callable[[bytes, LogId], tuple[Entry, ...]]
"""Decodes the entries of record batches after a position (`entries.fetched_entries`)."""

FIRST_PRE_VOTE_VERSION: Final = 2
"""First version of Vote with pre-vote."""
_CODES: Final[Mapping[RefusalReason, ErrorCode]] = MappingProxyType(
    {
        RefusalReason.FOREIGN_CLUSTER: ErrorCode.INCONSISTENT_CLUSTER_ID,
        # KIP-595 has INVALID_REQUEST here. But a restarted former leader sends EndQuorumEpoch of its epoch to voters
        # that no longer follow it, and INVALID_REQUEST would stop a controller of Kafka.
        RefusalReason.ANOTHER_LEADER: ErrorCode.FENCED_LEADER_EPOCH,
        RefusalReason.STALE_TERM: ErrorCode.FENCED_LEADER_EPOCH,
        RefusalReason.NEWER_TERM: ErrorCode.UNKNOWN_LEADER_EPOCH,
        RefusalReason.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        RefusalReason.INCONSISTENT_VOTERS: ErrorCode.INCONSISTENT_VOTER_SET,
        RefusalReason.SNAPSHOT_UNKNOWN: ErrorCode.SNAPSHOT_NOT_FOUND,
        RefusalReason.OFFSET_OUT_OF_RANGE: ErrorCode.POSITION_OUT_OF_RANGE,
        RefusalReason.BUSY: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        RefusalReason.IMPLAUSIBLE: ErrorCode.INVALID_REQUEST,
    }
)
_REASONS: Final[Mapping[int, RefusalReason]] = MappingProxyType({int(code): reason for reason, code in _CODES.items()})
"""The last reason of each code: FENCED_LEADER_EPOCH becomes STALE_TERM, which the core treats as ANOTHER_LEADER."""
_REFUSALS: Final[Mapping[type, Callable[..., QuorumResponse]]] = MappingProxyType(
    {
        **dict.fromkeys((quorum.VoteRequest, core.VoteReply), partial(quorum.VoteResponse, topics=())),
        **dict.fromkeys(
            (quorum.BeginQuorumEpochRequest, core.BeginQuorumEpochReply),
            partial(quorum.BeginQuorumEpochResponse, topics=()),
        ),
        **dict.fromkeys(
            (quorum.EndQuorumEpochRequest, core.EndQuorumEpochReply), partial(quorum.EndQuorumEpochResponse, topics=())
        ),
        **dict.fromkeys((clients.FetchRequest, core.FetchReply), partial(clients.FetchResponse, responses=())),
        **dict.fromkeys(
            (quorum.FetchSnapshotRequest, core.FetchSnapshotReply), partial(quorum.FetchSnapshotResponse, topics=())
        ),
    }
)
"""The class of the response with only an error, by the class of the request and of the core's reply."""


class RefusedRequest(Struct, frozen=True):
    """A request that does not reach the core, and its response."""

    response: QuorumResponse


class Answering(Struct, frozen=True):
    """Facts about this server in each response. Their term may be later than the term of the core's reply."""

    leader: ServerId | None
    """The leader that this server follows, for replies without a leader."""
    log_start_offset: int = 0
    term: Term | None = None
    """Term of `leader`; None means the reply's term."""
    began: LogId | None = None
    """Position of the leader's first entry of its epoch: lower commit indexes are not sent. None if all are sent."""

    def leader_in(self, term: Term) -> ServerId | None:
        """Return the leader of `term`, if known."""
        return self.leader if self.term in (None, term) else None

    def high_watermark(self, term: Term, commit: Index) -> int:
        """Return the commit index that a leader of this term sends: -1 until it has committed an entry of its epoch."""
        began = self.began
        return commit if began is None or (term == began.term and commit >= began.index) else -1


def request_to_wire(request: core.Request, peer: ReplicaKey, names: Names) -> QuorumRequest:
    """Return the wire form of a request to `peer`. Raises `KafkaWireError` for requests without a message in KRaft."""
    match request:
        case core.RequestVote():
            return _vote_request(request, peer, names)
        case core.Fetch():
            return _fetch_request(request, names)
        case core.FetchSnapshot():
            return _fetch_snapshot_request(request, names)
        case core.BeginQuorumEpoch():
            return _begin_request(request, peer, names)
        case core.EndQuorumEpoch():
            return _end_request(request, names)
        case _:
            raise KafkaWireError(f"KRaft does not have a message for {type(request).__name__}")


def request_from_wire(request: QuorumRequest, correlation: int, names: Names) -> core.Request | RefusedRequest:
    """Convert a peer's request to the core's form; return the response instead if the core must not receive it."""
    try:
        match request:
            case quorum.VoteRequest():
                return _vote_from_wire(request, correlation, names)
            case quorum.BeginQuorumEpochRequest():
                return _begin_from_wire(request, correlation, names)
            case quorum.EndQuorumEpochRequest():
                return _end_from_wire(request, correlation, names)
            case clients.FetchRequest():
                return _fetch_from_wire(request, correlation, names)
            case quorum.FetchSnapshotRequest():
                return _fetch_snapshot_from_wire(request, correlation, names)
            case _:
                assert_never(request)
    except KafkaWireError:
        return RefusedRequest(refusal(request, ErrorCode.INVALID_REQUEST))


def refusal(message: QuorumRequest | core.Reply, code: ErrorCode) -> QuorumResponse:
    """Return a response that contains only an error, to a request or in place of the core's reply."""
    return _REFUSALS[type(message)](error_code=code)


def reply_to_wire(reply: core.Reply, answering: Answering, names: Names, records: bytes = b"") -> QuorumResponse:
    """Return the response to a peer; `records` are the batches of a FetchReply's entries.

    Raises `KafkaWireError` for a reply without a message in KRaft.
    """
    if isinstance(
        reply, core.FetchReply | core.FetchSnapshotReply | core.BeginQuorumEpochReply | core.EndQuorumEpochReply
    ):
        leader, error = reply.leader, reply.error
    elif isinstance(reply, core.VoteReply):
        reported_term = reply.term - 1 if reply.pre_vote and reply.granted else reply.term
        leader, error = answering.leader_in(reported_term), reply.error
    else:
        raise KafkaWireError(f"KRaft does not have a message for {type(reply).__name__}")
    key = None if leader is None else replica(leader)
    if error is RefusalReason.FOREIGN_CLUSTER and not isinstance(reply, core.FetchReply):
        return refusal(reply, ErrorCode.INCONSISTENT_CLUSTER_ID)
    code = ErrorCode.NONE if error is None else _CODES[error]
    match reply:
        case core.FetchReply():
            return _fetch_response(reply, key, code, answering, names, records)
        case core.FetchSnapshotReply():
            return _fetch_snapshot_response(reply, key, code, names)
        case core.VoteReply():
            return _vote_response(reply, key, code, names)
        case core.BeginQuorumEpochReply(term=term):
            return _announced(quorum.BeginQuorumEpochResponse, term, id_of(key), code, names, key)
        case core.EndQuorumEpochReply(term=term):
            return _announced(quorum.EndQuorumEpochResponse, term, id_of(key), code, names, key)
        case _:
            assert_never(reply)


def reply_from_wire(
    response: QuorumResponse, request: core.Request, names: Names, read_entries: ReadEntries
) -> core.Reply:
    """Return the core form of a peer's reply to `request`.

    Raises `KafkaWireError` for another kind of reply, or for an error outside Raft. In both cases the request has
    failed, and the core sends it again later.
    """
    match response, request:
        case quorum.VoteResponse(), core.RequestVote():
            return _vote_reply(response, request)
        case clients.FetchResponse(), core.Fetch():
            return _fetch_reply(response, request, names, read_entries)
        case quorum.FetchSnapshotResponse(), core.FetchSnapshot():
            return _fetch_snapshot_reply(response, request, names)
        case quorum.BeginQuorumEpochResponse(), core.BeginQuorumEpoch():
            return _announcement_reply(core.BeginQuorumEpochReply, response, request, names)
        case quorum.EndQuorumEpochResponse(), core.EndQuorumEpoch():
            return _announcement_reply(core.EndQuorumEpochReply, response, request, names)
        case _:
            raise KafkaWireError(f"{type(response).__name__} is not a reply to {type(request).__name__}")


def named_endpoints(message: QuorumRequest | QuorumResponse) -> Mapping[int, tuple[str, int]]:
    """Return the addresses in a message by replica id; messages contain only addresses of leaders."""
    match message:
        case quorum.BeginQuorumEpochRequest() | quorum.EndQuorumEpochRequest() if message.leader_endpoints:
            named = [partition.leader_id for topic in message.topics for partition in topic.partitions]
            leader_id, first = _only(tuple(named)), message.leader_endpoints[0]
            return {leader_id: (first.host, first.port)}
        case quorum.BeginQuorumEpochRequest() | quorum.EndQuorumEpochRequest() | quorum.VoteRequest():
            return {}
        case clients.FetchRequest() | quorum.FetchSnapshotRequest():
            return {}
        case _:
            return {node.node_id: (node.host, node.port) for node in message.node_endpoints}


def _vote_request(request: core.RequestVote, peer: ReplicaKey, names: Names) -> quorum.VoteRequest:
    candidate = replica(request.candidate)
    partition = quorum.VoteRequestPartition(
        partition_index=PARTITION,
        replica_epoch=request.term - 1 if request.pre_vote else request.term,
        replica_id=candidate.id,
        replica_directory_id=uuid_of(candidate.directory),
        voter_directory_id=uuid_of(peer.directory),
        last_offset_epoch=request.last.term,
        last_offset=request.last.index,
        pre_vote=request.pre_vote,
    )
    topic = quorum.VoteRequestTopic(topic_name=names.topic().name, partitions=(partition,))
    return quorum.VoteRequest(cluster_id=request.cluster_id, voter_id=peer.id, topics=(topic,))


def _fetch_request(request: core.Fetch, names: Names) -> clients.FetchRequest:
    key, log = replica(request.replica), names.topic()
    partition = clients.FetchRequestPartition(
        partition=PARTITION,
        current_leader_epoch=request.term,
        fetch_offset=request.position.index,
        last_fetched_epoch=request.position.term,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=uuid_of(key.directory),
        high_watermark=request.commit,
    )
    return clients.FetchRequest(
        cluster_id=request.cluster_id,
        replica_state=clients.FetchRequestReplicaState(replica_id=key.id),
        replica_id=key.id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(clients.FetchRequestTopic(topic_id=log.id, topic=log.name, partitions=(partition,)),),
    )


def _fetch_snapshot_request(request: core.FetchSnapshot, names: Names) -> quorum.FetchSnapshotRequest:
    key = replica(request.replica)
    partition = quorum.FetchSnapshotRequestPartition(
        partition=PARTITION,
        current_leader_epoch=request.term,
        snapshot_id=quorum.FetchSnapshotRequestSnapshotId(
            end_offset=request.snapshot.index, epoch=request.snapshot.term
        ),
        position=request.offset,
        replica_directory_id=uuid_of(key.directory),
    )
    return quorum.FetchSnapshotRequest(
        cluster_id=request.cluster_id,
        replica_id=key.id,
        max_bytes=request.max_bytes,
        topics=(quorum.FetchSnapshotRequestTopic(name=names.topic().name, partitions=(partition,)),),
    )


def _begin_request(request: core.BeginQuorumEpoch, peer: ReplicaKey, names: Names) -> quorum.BeginQuorumEpochRequest:
    partition = quorum.BeginQuorumEpochRequestPartition(
        partition_index=PARTITION,
        voter_directory_id=uuid_of(peer.directory),
        leader_id=replica(request.leader).id,
        leader_epoch=request.term,
    )
    return quorum.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id,
        voter_id=peer.id,
        topics=(quorum.BeginQuorumEpochRequestTopic(topic_name=names.topic().name, partitions=(partition,)),),
        leader_endpoints=_listeners(names),
    )


def _end_request(request: core.EndQuorumEpoch, names: Names) -> quorum.EndQuorumEpochRequest:
    preferred = [replica(server_id) for server_id in request.preferred]
    partition = quorum.EndQuorumEpochRequestPartition(
        partition_index=PARTITION,
        leader_id=replica(request.leader).id,
        leader_epoch=request.term,
        preferred_successors=tuple(key.id for key in preferred),
        preferred_candidates=tuple(
            quorum.EndQuorumEpochRequestCandidate(candidate_id=key.id, candidate_directory_id=uuid_of(key.directory))
            for key in preferred
        ),
    )
    return quorum.EndQuorumEpochRequest(
        cluster_id=request.cluster_id,
        topics=(quorum.EndQuorumEpochRequestTopic(topic_name=names.topic().name, partitions=(partition,)),),
        leader_endpoints=_listeners(names),
    )


def _vote_from_wire(request: quorum.VoteRequest, correlation: int, names: Names) -> core.RequestVote | RefusedRequest:
    partition = _only(_only(request.topics).partitions)
    _check_log((request.topics[0].topic_name, partition.partition_index), names)
    _check_numbers(partition.replica_id, partition.replica_epoch, partition.last_offset, partition.last_offset_epoch)
    if not is_for_us(request.voter_id, partition.voter_directory_id, names):
        denied = core.VoteReply(term=partition.replica_epoch, granted=False, correlation=correlation)
        return RefusedRequest(_vote_response(denied, None, ErrorCode.INVALID_VOTER_KEY, names))
    return core.RequestVote(
        term=partition.replica_epoch + 1 if partition.pre_vote else partition.replica_epoch,
        candidate=names.replica_key(partition.replica_id, directory_of(partition.replica_directory_id)),
        last=LogId(partition.last_offset, partition.last_offset_epoch),
        correlation=correlation,
        pre_vote=partition.pre_vote,
        cluster_id=request.cluster_id,
    )


def _begin_from_wire(
    request: quorum.BeginQuorumEpochRequest, correlation: int, names: Names
) -> core.BeginQuorumEpoch | RefusedRequest:
    partition = _only(_only(request.topics).partitions)
    _check_log((request.topics[0].topic_name, partition.partition_index), names)
    _check_numbers(partition.leader_id, partition.leader_epoch)
    if not is_for_us(request.voter_id, partition.voter_directory_id, names):
        code = ErrorCode.INVALID_VOTER_KEY
        epoch, leader_id = partition.leader_epoch, partition.leader_id
        return RefusedRequest(_announced(quorum.BeginQuorumEpochResponse, epoch, leader_id, code, names, None))
    return core.BeginQuorumEpoch(
        term=partition.leader_epoch,
        leader=leader_key(partition.leader_id, names),
        correlation=correlation,
        cluster_id=request.cluster_id,
    )


def _end_from_wire(request: quorum.EndQuorumEpochRequest, correlation: int, names: Names) -> core.EndQuorumEpoch:
    partition = _only(_only(request.topics).partitions)
    _check_log((request.topics[0].topic_name, partition.partition_index), names)
    candidates = partition.preferred_candidates
    named = [candidate.candidate_id for candidate in candidates] or [*partition.preferred_successors]
    _check_numbers(partition.leader_id, partition.leader_epoch, *named)
    preferred = (
        [names.replica_key(one.candidate_id, directory_of(one.candidate_directory_id)) for one in candidates]
        if candidates
        else [names.voter_key(voter_id) or ReplicaKey(voter_id) for voter_id in partition.preferred_successors]
    )
    return core.EndQuorumEpoch(
        term=partition.leader_epoch,
        leader=leader_key(partition.leader_id, names),
        preferred=tuple(preferred),
        correlation=correlation,
        cluster_id=request.cluster_id,
    )


def _fetch_from_wire(request: clients.FetchRequest, correlation: int, names: Names) -> core.Fetch:
    topic = _only(request.topics)
    partition = _only(topic.partitions)
    log = names.topic()
    _check_log((log.name if topic.topic_id == log.id else topic.topic, partition.partition), names)
    replica_id = max(request.replica_state.replica_id, request.replica_id)
    newer = partition.current_leader_epoch - partition.last_fetched_epoch
    _check_numbers(replica_id, request.max_wait_ms, partition.fetch_offset, partition.last_fetched_epoch, newer)
    # Kafka's replicas set only the limit of the request, and leave the partition's limit at 0. Both are 0 in a fetch
    # that only shows that the replica is alive (`quorum_service.FETCH_SIZES`).
    limits = [limit for limit in (request.max_bytes, partition.partition_max_bytes) if limit > 0]
    is_keep_alive = request.max_bytes == partition.partition_max_bytes == 0
    return core.Fetch(
        term=partition.current_leader_epoch,
        replica=names.replica_key(replica_id, directory_of(partition.replica_directory_id)),
        position=LogId(partition.fetch_offset, partition.last_fetched_epoch),
        commit=max(0, partition.high_watermark),
        max_wait_ms=request.max_wait_ms,
        max_bytes=min(limits, default=0 if is_keep_alive else 1),
        correlation=correlation,
        cluster_id=request.cluster_id,
        is_keep_alive=is_keep_alive,
    )


def _fetch_snapshot_from_wire(
    request: quorum.FetchSnapshotRequest, correlation: int, names: Names
) -> core.FetchSnapshot:
    partition = _only(_only(request.topics).partitions)
    _check_log((request.topics[0].name, partition.partition), names)
    snapshot, epoch = partition.snapshot_id, partition.current_leader_epoch
    _check_numbers(request.replica_id, epoch, snapshot.end_offset, snapshot.epoch)
    _check_numbers(partition.position, request.max_bytes - 1)
    return core.FetchSnapshot(
        term=epoch,
        replica=names.replica_key(request.replica_id, directory_of(partition.replica_directory_id)),
        snapshot=LogId(snapshot.end_offset, snapshot.epoch),
        offset=partition.position,
        max_bytes=request.max_bytes,
        correlation=correlation,
        cluster_id=request.cluster_id,
    )


def _vote_response(
    reply: core.VoteReply, leader: ReplicaKey | None, code: ErrorCode, names: Names
) -> quorum.VoteResponse:
    partition = quorum.VoteResponsePartition(
        partition_index=PARTITION,
        error_code=code,
        leader_id=id_of(leader),
        leader_epoch=reply.term - 1 if reply.pre_vote and reply.granted else reply.term,
        vote_granted=reply.granted,
    )
    return quorum.VoteResponse(
        topics=(quorum.VoteResponseTopic(topic_name=names.topic().name, partitions=(partition,)),),
        node_endpoints=_endpoints(leader, names),
    )


def _fetch_response(
    reply: core.FetchReply,
    leader: ReplicaKey | None,
    code: ErrorCode,
    answering: Answering,
    names: Names,
    records: bytes,
) -> clients.FetchResponse:
    diverging, snapshot, log = reply.diverging or _NOWHERE, reply.snapshot or _NOWHERE, names.topic()
    partition = clients.FetchResponsePartition(
        partition_index=PARTITION,
        error_code=code,
        high_watermark=-1 if code else answering.high_watermark(reply.term, reply.commit),
        log_start_offset=answering.log_start_offset,
        diverging_epoch=clients.FetchResponseEpochEndOffset(epoch=diverging.term, end_offset=diverging.index),
        current_leader=clients.FetchResponseLeaderIdAndEpoch(leader_id=id_of(leader), leader_epoch=reply.term),
        snapshot_id=clients.FetchResponseSnapshotId(end_offset=snapshot.index, epoch=snapshot.term),
        records=records,
    )
    return clients.FetchResponse(
        # A server of this package stops at this error if the reply also names its sender as leader. Kafka's form of the
        # error does not name a leader, and Kafka's replicas ignore all other fields.
        error_code=code if reply.error is RefusalReason.FOREIGN_CLUSTER else ErrorCode.NONE,
        responses=(clients.FetchResponseTopic(topic_id=log.id, topic=log.name, partitions=(partition,)),),
        node_endpoints=tuple(
            clients.FetchResponseNodeEndpoint(node_id=node_id, host=host, port=port)
            for node_id, host, port in endpoints_of(leader, names)
        ),
    )


def _fetch_snapshot_response(
    reply: core.FetchSnapshotReply, leader: ReplicaKey | None, code: ErrorCode, names: Names
) -> quorum.FetchSnapshotResponse:
    partition = quorum.FetchSnapshotResponsePartition(
        index=PARTITION,
        error_code=code,
        snapshot_id=quorum.FetchSnapshotResponseSnapshotId(end_offset=reply.snapshot.index, epoch=reply.snapshot.term),
        current_leader=quorum.FetchSnapshotResponseLeaderIdAndEpoch(leader_id=id_of(leader), leader_epoch=reply.term),
        size=reply.size_bytes,
        position=reply.offset,
        unaligned_records=reply.data,
    )
    return quorum.FetchSnapshotResponse(
        topics=(quorum.FetchSnapshotResponseTopic(name=names.topic().name, partitions=(partition,)),),
        node_endpoints=_endpoints(leader, names),
    )


def _announced(
    kind: type[_AnnouncedResponse],
    term: Term,
    leader_id: int,
    code: ErrorCode,
    names: Names,
    leader: ReplicaKey | None,
) -> _AnnouncedResponse:
    """Return the response to the begin or the end of an epoch, with the address of `leader`."""
    partition = quorum.BeginQuorumEpochResponsePartition(
        partition_index=PARTITION, error_code=code, leader_id=leader_id, leader_epoch=term
    )
    topic = quorum.BeginQuorumEpochResponseTopic(topic_name=names.topic().name, partitions=(partition,))
    return kind(topics=(topic,), node_endpoints=_endpoints(leader, names))


def _announcement_reply(
    kind: type[_Announced],
    response: quorum.BeginQuorumEpochResponse | quorum.EndQuorumEpochResponse,
    request: core.BeginQuorumEpoch | core.EndQuorumEpoch,
    names: Names,
) -> _Announced:
    if response.error_code:
        error = _reason(response.error_code)
        return kind(term=request.term, leader=None, correlation=request.correlation, error=error)
    partition = _only(_only(response.topics).partitions)
    return kind(
        term=_term(partition.leader_epoch, request),
        leader=leader_of(partition.leader_id, names),
        correlation=request.correlation,
        error=_reason(partition.error_code),
    )


def _vote_reply(response: quorum.VoteResponse, request: core.RequestVote) -> core.VoteReply:
    if response.error_code:
        return core.VoteReply(
            term=request.term,
            granted=False,
            correlation=request.correlation,
            pre_vote=request.pre_vote,
            error=_reason(response.error_code),
        )
    partition = _only(_only(response.topics).partitions)
    error = _reason(partition.error_code)
    granted = partition.vote_granted and error is None
    # The core counts a granted pre-vote for the requested term, regardless of the voter's own epoch.
    term = request.term if granted and request.pre_vote else _term(partition.leader_epoch, request)
    return core.VoteReply(
        term=term, granted=granted, correlation=request.correlation, pre_vote=request.pre_vote, error=error
    )


def _fetch_reply(
    response: clients.FetchResponse, request: core.Fetch, names: Names, read_entries: ReadEntries
) -> core.FetchReply:
    if response.error_code:
        leaders = [part.current_leader.leader_id for topic in response.responses for part in topic.partitions]
        leader = leader_of(leaders[0], names) if len(leaders) == 1 else None
        return core.FetchReply(
            term=request.term,
            leader=leader,
            commit=0,
            correlation=request.correlation,
            error=_reason(response.error_code),
        )
    partition = _only(_only(response.responses).partitions)
    error = _reason(partition.error_code)
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    diverges, snapshotted = diverging.epoch >= 0, snapshot.epoch >= 0 or snapshot.end_offset >= 0
    if (diverges and diverging.end_offset < 0) or (snapshotted and min(snapshot.epoch, snapshot.end_offset) < 0):
        raise KafkaWireError("FetchResponse names a place in the log that is below zero")
    has_records = error is None and not diverges and not snapshotted and partition.records
    return core.FetchReply(
        term=_term(partition.current_leader.leader_epoch, request),
        leader=leader_of(partition.current_leader.leader_id, names),
        commit=max(0, partition.high_watermark),
        correlation=request.correlation,
        entries=read_entries(partition.records or b"", request.position) if has_records else (),
        diverging=LogId(diverging.end_offset, diverging.epoch) if diverges else None,
        snapshot=LogId(snapshot.end_offset, snapshot.epoch) if snapshotted and not diverges else None,
        error=error,
    )


def _fetch_snapshot_reply(
    response: quorum.FetchSnapshotResponse, request: core.FetchSnapshot, names: Names
) -> core.FetchSnapshotReply:
    refused = partial(
        core.FetchSnapshotReply, snapshot=request.snapshot, offset=request.offset, correlation=request.correlation
    )
    if response.error_code:
        return refused(term=request.term, leader=None, error=_reason(response.error_code))
    partition = _only(_only(response.topics).partitions)
    error = _reason(partition.error_code)
    leader = leader_of(partition.current_leader.leader_id, names)
    term = _term(partition.current_leader.leader_epoch, request)
    if error is not None:
        return refused(term=term, leader=leader, error=error)
    snapshot = partition.snapshot_id
    if min(snapshot.end_offset, snapshot.epoch, partition.size, partition.position) < 0:
        raise KafkaWireError("FetchSnapshotResponse has a place or a size that is below zero")
    return core.FetchSnapshotReply(
        term=term,
        leader=leader,
        snapshot=LogId(snapshot.end_offset, snapshot.epoch),
        offset=partition.position,
        correlation=request.correlation,
        data=partition.unaligned_records,
        size_bytes=partition.size,
    )


_NOWHERE: Final = LogId(-1, -1)


def _only(elements: tuple[_Element, ...]) -> _Element:
    if len(elements) != 1:
        raise KafkaWireError(f"a message of the quorum has {len(elements)} topics or partitions instead of one")
    return elements[0]


def _check_log(place: tuple[str, int], names: Names) -> None:
    """Raise `KafkaWireError` if a topic and a partition are not the log's."""
    if place != (names.topic().name, PARTITION):
        raise KafkaWireError(f"partition {place[1]} of {place[0]!r} is not the log")


def _check_numbers(*numbers: int) -> None:
    """Raise `KafkaWireError` if one of a request's numbers is below zero."""
    if min(numbers) < 0:
        raise KafkaWireError("a request has a number below zero")


def _endpoints(leader: ReplicaKey | None, names: Names) -> tuple[quorum.VoteResponseNodeEndpoint, ...]:
    """Return the leader's address for a response."""
    return tuple(
        quorum.VoteResponseNodeEndpoint(node_id=node_id, host=host, port=port)
        for node_id, host, port in endpoints_of(leader, names)
    )


def _listeners(names: Names) -> tuple[quorum.BeginQuorumEpochRequestLeaderEndpoint, ...]:
    """Return this server's address for a request."""
    return tuple(
        quorum.BeginQuorumEpochRequestLeaderEndpoint(name=name, host=host, port=port)
        for name, host, port in names.listeners()
    )


def _reason(error_code: int) -> RefusalReason | None:
    if error_code == ErrorCode.NONE:
        return None
    reason = _REASONS.get(error_code)
    if reason is None:
        raise KafkaWireError(f"the peer answers {error_name(error_code)}")
    return reason


def _term(epoch: int, request: core.Request) -> int:
    return epoch if epoch != NO_EPOCH and epoch >= 0 else request.term
