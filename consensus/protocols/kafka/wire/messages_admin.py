"""The messages of tools, of changes of the voters, and of servers of Kafka that look for a controller.

Generated from kio by `tests/wire/kafka_messages.py`, which has the rules; `test_kafka_messages.py` compares. Kafka's
documents explain the fields. A version that lacks a field does not write it, and has its default when read (`codec`).
"""

from typing import Final
from uuid import UUID

from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import ZERO_UUID


class DescribeConfigsRequestResource(Struct, frozen=True, kw_only=True):
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = ()


class DescribeConfigsRequest(Struct, frozen=True, kw_only=True):
    resources: tuple[DescribeConfigsRequestResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


class DescribeConfigsResponseSynonym(Struct, frozen=True, kw_only=True):
    name: str
    value: str | None = None
    source: int


class DescribeConfigsResponseConfig(Struct, frozen=True, kw_only=True):
    name: str
    value: str | None = None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsResponseSynonym, ...]
    config_type: int = 0
    documentation: str | None = None


class DescribeConfigsResponseResult(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str
    configs: tuple[DescribeConfigsResponseConfig, ...]


class DescribeConfigsResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    results: tuple[DescribeConfigsResponseResult, ...]


class DescribeQuorumRequestPartition(Struct, frozen=True, kw_only=True):
    partition_index: int


class DescribeQuorumRequestTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[DescribeQuorumRequestPartition, ...]


class DescribeQuorumRequest(Struct, frozen=True, kw_only=True):
    topics: tuple[DescribeQuorumRequestTopic, ...]


class DescribeQuorumResponseReplica(Struct, frozen=True, kw_only=True):
    replica_id: int
    replica_directory_id: UUID = ZERO_UUID
    log_end_offset: int
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1


class DescribeQuorumResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: tuple[DescribeQuorumResponseReplica, ...]
    observers: tuple[DescribeQuorumResponseReplica, ...]


class DescribeQuorumResponseTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[DescribeQuorumResponsePartition, ...]


class DescribeQuorumResponseListener(Struct, frozen=True, kw_only=True):
    name: str
    host: str
    port: int


class DescribeQuorumResponseNode(Struct, frozen=True, kw_only=True):
    node_id: int
    listeners: tuple[DescribeQuorumResponseListener, ...]


class DescribeQuorumResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    error_message: str | None = None
    topics: tuple[DescribeQuorumResponseTopic, ...]
    nodes: tuple[DescribeQuorumResponseNode, ...] = ()


class DescribeClusterRequest(Struct, frozen=True, kw_only=True):
    include_cluster_authorized_operations: bool
    endpoint_type: int = 1
    include_fenced_brokers: bool = False


class DescribeClusterResponseBroker(Struct, frozen=True, kw_only=True):
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


class DescribeClusterResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str
    controller_id: int = -1
    brokers: tuple[DescribeClusterResponseBroker, ...]
    cluster_authorized_operations: int = -2147483648


class BrokerRegistrationRequestListener(Struct, frozen=True, kw_only=True):
    name: str
    host: str
    port: int
    security_protocol: int


class BrokerRegistrationRequestFeature(Struct, frozen=True, kw_only=True):
    name: str
    min_supported_version: int
    max_supported_version: int


class BrokerRegistrationRequest(Struct, frozen=True, kw_only=True):
    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    listeners: tuple[BrokerRegistrationRequestListener, ...]
    features: tuple[BrokerRegistrationRequestFeature, ...]
    rack: str | None = None
    is_migrating_zk_broker: bool = False
    log_dirs: tuple[UUID, ...] = ()
    previous_broker_epoch: int = -1


class BrokerRegistrationResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    broker_epoch: int = -1


class BrokerHeartbeatRequest(Struct, frozen=True, kw_only=True):
    broker_id: int
    broker_epoch: int = -1
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: tuple[UUID, ...] = ()


class BrokerHeartbeatResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool


ControllerRegistrationRequestListener = BrokerRegistrationRequestListener


ControllerRegistrationRequestFeature = BrokerRegistrationRequestFeature


class ControllerRegistrationRequest(Struct, frozen=True, kw_only=True):
    controller_id: int
    incarnation_id: UUID
    zk_migration_ready: bool
    listeners: tuple[BrokerRegistrationRequestListener, ...]
    features: tuple[BrokerRegistrationRequestFeature, ...]


class ControllerRegistrationResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


AddRaftVoterRequestListener = DescribeQuorumResponseListener


class AddRaftVoterRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    timeout_ms: int
    voter_id: int
    voter_directory_id: UUID
    listeners: tuple[DescribeQuorumResponseListener, ...]
    ack_when_committed: bool = True


class AddRaftVoterResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


class RemoveRaftVoterRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    voter_id: int
    voter_directory_id: UUID


class RemoveRaftVoterResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


UpdateRaftVoterRequestListener = DescribeQuorumResponseListener


class UpdateRaftVoterRequestKRaftVersion(Struct, frozen=True, kw_only=True):
    min_supported_version: int
    max_supported_version: int


class UpdateRaftVoterRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: UUID
    listeners: tuple[DescribeQuorumResponseListener, ...]
    k_raft_version_feature: UpdateRaftVoterRequestKRaftVersion


class UpdateRaftVoterResponseCurrentLeader(Struct, frozen=True, kw_only=True):
    leader_id: int = -1
    leader_epoch: int = -1
    host: str = ""
    port: int = 0


class UpdateRaftVoterResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    current_leader: UpdateRaftVoterResponseCurrentLeader = UpdateRaftVoterResponseCurrentLeader()


MESSAGES: Final = {
    ApiKey.DESCRIBE_CONFIGS: (DescribeConfigsRequest, DescribeConfigsResponse),
    ApiKey.DESCRIBE_QUORUM: (DescribeQuorumRequest, DescribeQuorumResponse),
    ApiKey.DESCRIBE_CLUSTER: (DescribeClusterRequest, DescribeClusterResponse),
    ApiKey.BROKER_REGISTRATION: (BrokerRegistrationRequest, BrokerRegistrationResponse),
    ApiKey.BROKER_HEARTBEAT: (BrokerHeartbeatRequest, BrokerHeartbeatResponse),
    ApiKey.CONTROLLER_REGISTRATION: (ControllerRegistrationRequest, ControllerRegistrationResponse),
    ApiKey.ADD_RAFT_VOTER: (AddRaftVoterRequest, AddRaftVoterResponse),
    ApiKey.REMOVE_RAFT_VOTER: (RemoveRaftVoterRequest, RemoveRaftVoterResponse),
    ApiKey.UPDATE_RAFT_VOTER: (UpdateRaftVoterRequest, UpdateRaftVoterResponse),
}
"""Request and response by API."""
