"""The state of a quorum, for Kafka's quorum tool on a listener for clients: DescribeQuorum 55 (KIP-595).

    kafka-metadata-quorum --bootstrap-server … describe --status │ --replication
        ─▶ Metadata: the brokers ─▶ DescribeQuorum to any of them ─▶ `QuorumView`, as that server knows it

A broker of Kafka forwards the request to the active controller. Servers of such a listener may be unable to query each
other, and the tool uses any connected broker. So if the leader is among the brokers, any other server ends the
connection. The tool then retries at another broker, and soon reaches the leader.

If the leader is not among the brokers, a server reports its own view. The view has the leader, the epoch, the commit
index, and the end of the server's own log. The server reports this end also for the leader, as a lower bound, and -1
(unknown) for all others. Without a known leader it replies NOT_LEADER_OR_FOLLOWER, and the tool retries. For a KRaft
quorum `admin_service` makes the `QuorumView`: only the leader describes replicas.

*Times.* Kafka's leader stores the last contact of a replica by the machine's clock; ours has a monotonic clock and
reports ages. `ReplicaTimes` converts ages to times, and an unknown age to -1. The two clocks are not read in the same
instant, and the machine's clock may be set back. So `ReplicaTimes` never reports an earlier time of a replica than in
its previous reply of the same epoch.

A farm and a KRaft quorum both use this module.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Final, Generic, TypeVar
from uuid import UUID

import trio
from msgspec import Struct

from consensus.protocols.kafka.connections.service import AskElsewhereError, Caller, ServedApi, Service
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.limits import NO_REPLICA, PARTITION, TOPIC_NAME, ZERO_UUID

_UNKNOWN: Final = -1
K = TypeVar("K", bound=Hashable)


class ReplicaView(Struct, frozen=True):
    """One replica. Ages are in milliseconds; None if not known."""

    node_id: int
    log_end_offset: int | None = None
    contact_ago_ms: int | None = None
    caught_up_ago_ms: int | None = None
    listeners: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of each."""
    directory_id: UUID = ZERO_UUID


class QuorumView(Struct, frozen=True):
    """A quorum as one server knows it, with `leader_id` None if the leader is unknown."""

    node_id: int
    """Id of this server."""
    leader_id: int | None
    leader_is_listed: bool
    """True if clients have the leader's address, so that other servers end the connection. KRaft sets False."""
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaView, ...]
    observers: tuple[ReplicaView, ...]
    topic: str = TOPIC_NAME
    """The name of the log."""
    refusal: str = ""
    """The reason for a refusal to describe the replicas; empty: no refusal."""


class ReplicaTimes(Generic[K]):
    """Times of the last contact with replicas, and of their last catching up, for DescribeQuorum; see the module."""

    def __init__(self, unix_ms: Callable[[], int]) -> None:
        self._unix_ms = unix_ms
        self._epoch = _UNKNOWN
        self._reported: Mapping[K, tuple[int, int]] = {}

    def timestamps(self, epoch: int, ages: Mapping[K, tuple[int | None, int | None]]) -> Mapping[K, tuple[int, int]]:
        """Return the two times of each replica in ms since 1970, from their ages in ms; -1 for a missing age."""
        now_ms, before = self._unix_ms(), self._reported if epoch == self._epoch else {}

        def times(replica: K) -> tuple[int, int]:
            known = before.get(replica, (_UNKNOWN, _UNKNOWN))
            contacted, caught_up = (
                _UNKNOWN if ago_ms is None else max(now_ms - ago_ms, least)
                for ago_ms, least in zip(ages[replica], known, strict=True)
            )
            return contacted, caught_up

        self._epoch, self._reported = epoch, {replica: times(replica) for replica in ages}
        return self._reported


class QuorumViewService(Service):
    """A `Service` for DescribeQuorum. `describe` returns the present quorum, `unix_ms` the machine's clock."""

    def __init__(self, describe: Callable[[], QuorumView], unix_ms: Callable[[], int]) -> None:
        self._describe = describe
        self._times: ReplicaTimes[tuple[int, UUID]] = ReplicaTimes(unix_ms)

    def apis(self) -> Mapping[int, ServedApi]:
        """Return DescribeQuorum."""
        return {ApiKey.DESCRIBE_QUORUM: ServedApi(*VERSIONS[ApiKey.DESCRIBE_QUORUM], self.describe_quorum)}

    async def describe_quorum(
        self, request: admin.DescribeQuorumRequest, caller: Caller
    ) -> admin.DescribeQuorumResponse:
        """Return leader, epoch, high watermark, and the progress of each replica. Raises `AskElsewhereError`."""
        began_s = trio.current_time()
        quorum = self._describe()
        if [topic.topic_name for topic in request.topics] != [quorum.topic]:
            return admin.DescribeQuorumResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics=())
        if quorum.leader_is_listed and quorum.leader_id != quorum.node_id:
            raise AskElsewhereError(f"server {quorum.leader_id} leads")
        topic = admin.DescribeQuorumResponseTopic(topic_name=quorum.topic, partitions=(self._partition(quorum),))
        nodes = tuple(_node(replica) for replica in quorum.voters)
        caller.budget.charge(began_s, quorum.high_watermark)
        return admin.DescribeQuorumResponse(topics=(topic,), nodes=nodes)

    def _partition(self, quorum: QuorumView) -> admin.DescribeQuorumResponsePartition:
        leader_id, refusal = quorum.leader_id, quorum.refusal
        if leader_id is None:
            leader_id, refusal = NO_REPLICA, refusal or "no leader is known now"
        if refusal:
            return admin.DescribeQuorumResponsePartition(
                partition_index=PARTITION,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                error_message=refusal,
                leader_id=leader_id,
                leader_epoch=quorum.leader_epoch,
                high_watermark=_UNKNOWN,
                current_voters=(),
                observers=(),
            )
        replicas = (*quorum.voters, *quorum.observers)
        ages = {(each.node_id, each.directory_id): (each.contact_ago_ms, each.caught_up_ago_ms) for each in replicas}
        times = self._times.timestamps(quorum.leader_epoch, ages)
        return admin.DescribeQuorumResponsePartition(
            partition_index=PARTITION,
            leader_id=leader_id,
            leader_epoch=quorum.leader_epoch,
            high_watermark=quorum.high_watermark,
            current_voters=tuple(_row(each, times) for each in quorum.voters),
            observers=tuple(_row(each, times) for each in quorum.observers),
        )


def _row(
    replica: ReplicaView, times: Mapping[tuple[int, UUID], tuple[int, int]]
) -> admin.DescribeQuorumResponseReplica:
    contacted, caught_up = times[replica.node_id, replica.directory_id]
    return admin.DescribeQuorumResponseReplica(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        log_end_offset=_UNKNOWN if replica.log_end_offset is None else replica.log_end_offset,
        last_fetch_timestamp=contacted,
        last_caught_up_timestamp=caught_up,
    )


def _node(replica: ReplicaView) -> admin.DescribeQuorumResponseNode:
    return admin.DescribeQuorumResponseNode(
        node_id=replica.node_id,
        listeners=tuple(
            admin.DescribeQuorumResponseListener(name=name, host=host, port=port)
            for name, host, port in replica.listeners
        ),
    )


def cluster_response(
    request: admin.DescribeClusterRequest, cluster_id: str, controller_id: int, brokers: Iterable[tuple[int, str, int]]
) -> admin.DescribeClusterResponse:
    """Return the servers by id, host and port, or the refusal of a request for an unknown type of endpoints.

    The types are brokers (1) and controllers (2).
    """
    answer = partial(admin.DescribeClusterResponse, endpoint_type=request.endpoint_type, cluster_id=cluster_id)
    if request.endpoint_type not in {1, 2}:
        text = f"endpoint type {request.endpoint_type} is neither brokers (1) nor controllers (2)"
        return answer(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=text, brokers=())
    found = [admin.DescribeClusterResponseBroker(broker_id=each, host=host, port=port) for each, host, port in brokers]
    return answer(controller_id=controller_id, brokers=tuple(found))
