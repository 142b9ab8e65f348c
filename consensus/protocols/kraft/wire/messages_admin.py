"""What Kafka's tools ask of controllers, and what controllers and brokers of Kafka ask of the active one.

    DescribeClusterRequest 60, DescribeQuorumRequest 55                  the quorum as it is
    AddRaftVoterRequest 80, RemoveRaftVoterRequest 81                    a change of the voters (KIP-853)
    DescribeConfigsRequest 32                                            settings of topics and brokers
    UpdateRaftVoterRequest 82                                            a voter tells its endpoints and versions
    BrokerRegistrationRequest 62, BrokerHeartbeatRequest 63, ControllerRegistrationRequest 70
        of Kafka's metadata: a server that keeps none answers NOT_CONTROLLER

Names, types and defaults are those of Kafka's schemas in the newest version that is served; fields that only older
versions have stand last. One class serves all versions: what a version lacks is not written, and has its default when
read. Times are integers of milliseconds (`*_ms`), error codes are numbers (`apis.ErrorCode`), a UUID of zeros is none.
The bytes are `codec`'s.
"""

from dataclasses import dataclass
from uuid import UUID

from consensus.protocols.kraft.wire.limits import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    """Which servers there are: `endpoint_type` 1 brokers, 2 controllers."""

    include_cluster_authorized_operations: bool
    endpoint_type: int = 1
    include_fenced_brokers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponseBroker:
    """One server."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    """Answer to DescribeCluster."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str
    controller_id: int = -1
    brokers: tuple[DescribeClusterResponseBroker, ...]
    cluster_authorized_operations: int = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumRequestPartition:
    """The log's partition."""

    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumRequestTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[DescribeQuorumRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumRequest:
    """How the quorum's replicas stand; only the leader knows."""

    topics: tuple[DescribeQuorumRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponseReplica:
    """How far one replica is. The timestamps are in milliseconds; -1: not known."""

    replica_id: int
    replica_directory_id: UUID = ZERO_UUID
    log_end_offset: int
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponsePartition:
    """The leader, its epoch, the high watermark and every replica."""

    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: tuple[DescribeQuorumResponseReplica, ...]
    observers: tuple[DescribeQuorumResponseReplica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponseTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[DescribeQuorumResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponseListener:
    """One listener of a voter."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponseNode:
    """A voter with its listeners."""

    node_id: int
    listeners: tuple[DescribeQuorumResponseListener, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponse:
    """Answer to DescribeQuorum."""

    error_code: int = 0
    error_message: str | None = None
    topics: tuple[DescribeQuorumResponseTopic, ...]
    nodes: tuple[DescribeQuorumResponseNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRaftVoterRequestListener:
    """One listener of the new voter."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRaftVoterRequest:
    """Make an observer a voter."""

    cluster_id: str | None = None
    timeout_ms: int
    voter_id: int
    voter_directory_id: UUID
    listeners: tuple[AddRaftVoterRequestListener, ...]
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRaftVoterResponse:
    """Answer to AddRaftVoter."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRaftVoterRequest:
    """Make a voter an observer."""

    cluster_id: str | None = None
    voter_id: int
    voter_directory_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRaftVoterResponse:
    """Answer to RemoveRaftVoter."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterRequestListener:
    """One listener of the voter."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterRequestKRaftVersion:
    """The levels of `kraft.version` that the voter can have."""

    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterRequest:
    """A voter tells the leader its listeners and versions."""

    cluster_id: str | None = None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: UUID
    listeners: tuple[UpdateRaftVoterRequestListener, ...]
    k_raft_version_feature: UpdateRaftVoterRequestKRaftVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterResponseCurrentLeader:
    """The leader that the answering server knows; -1: none."""

    leader_id: int = -1
    leader_epoch: int = -1
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterResponse:
    """Answer to UpdateRaftVoter."""

    throttle_time_ms: int = 0
    error_code: int = 0
    current_leader: UpdateRaftVoterResponseCurrentLeader = UpdateRaftVoterResponseCurrentLeader()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequestListener:
    """One listener of the broker."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequestFeature:
    """A feature with the levels that the broker can have."""

    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequest:
    """A broker of Kafka registers with the active controller."""

    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    listeners: tuple[BrokerRegistrationRequestListener, ...]
    features: tuple[BrokerRegistrationRequestFeature, ...]
    rack: str | None = None
    is_migrating_zk_broker: bool = False
    log_dirs: tuple[UUID, ...] = ()
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationResponse:
    """Answer to BrokerRegistration."""

    throttle_time_ms: int = 0
    error_code: int = 0
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequest:
    """A registered broker is alive."""

    broker_id: int
    broker_epoch: int = -1
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponse:
    """Answer to BrokerHeartbeat."""

    throttle_time_ms: int = 0
    error_code: int = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRegistrationRequestListener:
    """One listener of the controller."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRegistrationRequestFeature:
    """A feature with the levels that the controller can have."""

    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRegistrationRequest:
    """A controller of Kafka registers with the active one."""

    controller_id: int
    incarnation_id: UUID
    zk_migration_ready: bool
    listeners: tuple[ControllerRegistrationRequestListener, ...]
    features: tuple[ControllerRegistrationRequestFeature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRegistrationResponse:
    """Answer to ControllerRegistration."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequestResource:
    """A topic (2) or a broker (4), by its name or id; no keys mean all."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    """The settings of some resources."""

    resources: tuple[DescribeConfigsRequestResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponseSynonym:
    """Another setting that would decide, and its source."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponseConfig:
    """One setting."""

    name: str
    value: str | None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsResponseSynonym, ...]
    config_type: int = 0
    documentation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponseResult:
    """The settings of one resource."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[DescribeConfigsResponseConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    """Answer to DescribeConfigs."""

    throttle_time_ms: int = 0
    results: tuple[DescribeConfigsResponseResult, ...]
