"""The messages of consumers and producers, of every connection, and Fetch, which servers send as well.

Generated from kio by `tests/wire/kafka_messages.py`, which has the rules; `test_kafka_messages.py` compares. Kafka's
documents explain the fields. A version that lacks a field does not write it, and has its default when read (`codec`).
"""

from typing import Final
from uuid import UUID

from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import ZERO_UUID


class ProduceRequestPartition(Struct, frozen=True, kw_only=True):
    index: int
    records: bytes | None = None


class ProduceRequestTopic(Struct, frozen=True, kw_only=True):
    topic_id: UUID = ZERO_UUID
    partition_data: tuple[ProduceRequestPartition, ...]
    name: str = ""


class ProduceRequest(Struct, frozen=True, kw_only=True):
    transactional_id: str | None = None
    acks: int
    timeout_ms: int
    topic_data: tuple[ProduceRequestTopic, ...]


class ProduceResponseRecordError(Struct, frozen=True, kw_only=True):
    batch_index: int
    batch_index_error_message: str | None = None


class ProduceResponseLeaderIdAndEpoch(Struct, frozen=True, kw_only=True):
    leader_id: int = -1
    leader_epoch: int = -1


class ProduceResponsePartition(Struct, frozen=True, kw_only=True):
    index: int
    error_code: int = 0
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[ProduceResponseRecordError, ...] = ()
    error_message: str | None = None
    current_leader: ProduceResponseLeaderIdAndEpoch = ProduceResponseLeaderIdAndEpoch()


class ProduceResponseTopic(Struct, frozen=True, kw_only=True):
    topic_id: UUID = ZERO_UUID
    partition_responses: tuple[ProduceResponsePartition, ...]
    name: str = ""


class ProduceResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class ProduceResponse(Struct, frozen=True, kw_only=True):
    responses: tuple[ProduceResponseTopic, ...]
    throttle_time_ms: int = 0
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = ()


class FetchRequestReplicaState(Struct, frozen=True, kw_only=True):
    replica_id: int = -1
    replica_epoch: int = -1


class FetchRequestPartition(Struct, frozen=True, kw_only=True):
    partition: int
    current_leader_epoch: int = -1
    fetch_offset: int
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int
    replica_directory_id: UUID = ZERO_UUID
    high_watermark: int = 9223372036854775807


class FetchRequestTopic(Struct, frozen=True, kw_only=True):
    topic_id: UUID = ZERO_UUID
    partitions: tuple[FetchRequestPartition, ...]
    topic: str = ""


class FetchRequestForgottenTopic(Struct, frozen=True, kw_only=True):
    topic_id: UUID = ZERO_UUID
    partitions: tuple[int, ...] = ()
    topic: str = ""


class FetchRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    replica_state: FetchRequestReplicaState = FetchRequestReplicaState()
    max_wait_ms: int
    min_bytes: int
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: tuple[FetchRequestTopic, ...]
    forgotten_topics_data: tuple[FetchRequestForgottenTopic, ...] = ()
    rack_id: str = ""
    replica_id: int = -1


class FetchResponseEpochEndOffset(Struct, frozen=True, kw_only=True):
    epoch: int = -1
    end_offset: int = -1


FetchResponseLeaderIdAndEpoch = ProduceResponseLeaderIdAndEpoch


class FetchResponseSnapshotId(Struct, frozen=True, kw_only=True):
    end_offset: int = -1
    epoch: int = -1


class FetchResponseAbortedTransaction(Struct, frozen=True, kw_only=True):
    producer_id: int
    first_offset: int


class FetchResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    error_code: int = 0
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: FetchResponseEpochEndOffset = FetchResponseEpochEndOffset()
    current_leader: ProduceResponseLeaderIdAndEpoch = ProduceResponseLeaderIdAndEpoch()
    snapshot_id: FetchResponseSnapshotId = FetchResponseSnapshotId()
    aborted_transactions: tuple[FetchResponseAbortedTransaction, ...] | None = None
    preferred_read_replica: int = -1
    records: bytes | None = b""


class FetchResponseTopic(Struct, frozen=True, kw_only=True):
    topic_id: UUID = ZERO_UUID
    partitions: tuple[FetchResponsePartition, ...]
    topic: str = ""


FetchResponseNodeEndpoint = ProduceResponseNodeEndpoint


class FetchResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: tuple[FetchResponseTopic, ...]
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = ()


class ListOffsetsRequestPartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    current_leader_epoch: int = -1
    timestamp: int


class ListOffsetsRequestTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[ListOffsetsRequestPartition, ...]


class ListOffsetsRequest(Struct, frozen=True, kw_only=True):
    replica_id: int
    isolation_level: int = 0
    topics: tuple[ListOffsetsRequestTopic, ...]
    timeout_ms: int = 0


class ListOffsetsResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class ListOffsetsResponseTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[ListOffsetsResponsePartition, ...]


class ListOffsetsResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    topics: tuple[ListOffsetsResponseTopic, ...]


class MetadataRequestTopic(Struct, frozen=True, kw_only=True):
    topic_id: UUID = ZERO_UUID
    name: str | None = None


class MetadataRequest(Struct, frozen=True, kw_only=True):
    topics: tuple[MetadataRequestTopic, ...] | None = None
    allow_auto_topic_creation: bool = True
    include_topic_authorized_operations: bool = False
    include_cluster_authorized_operations: bool = False


MetadataResponseBroker = ProduceResponseNodeEndpoint


class MetadataResponsePartition(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


class MetadataResponseTopic(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    name: str | None = None
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: int = -2147483648


class MetadataResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    brokers: tuple[ProduceResponseNodeEndpoint, ...]
    cluster_id: str | None = None
    controller_id: int = -1
    topics: tuple[MetadataResponseTopic, ...]
    error_code: int = 0
    cluster_authorized_operations: int = -2147483648


class SaslHandshakeRequest(Struct, frozen=True, kw_only=True):
    mechanism: str


class SaslHandshakeResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


class ApiVersionsRequest(Struct, frozen=True, kw_only=True):
    client_software_name: str = ""
    client_software_version: str = ""


class ApiVersionsResponseApi(Struct, frozen=True, kw_only=True):
    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponseSupportedFeature(Struct, frozen=True, kw_only=True):
    name: str
    min_version: int
    max_version: int


class ApiVersionsResponseFinalizedFeature(Struct, frozen=True, kw_only=True):
    name: str
    max_version_level: int
    min_version_level: int


class ApiVersionsResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    api_keys: tuple[ApiVersionsResponseApi, ...]
    throttle_time_ms: int = 0
    supported_features: tuple[ApiVersionsResponseSupportedFeature, ...] = ()
    finalized_features_epoch: int = -1
    finalized_features: tuple[ApiVersionsResponseFinalizedFeature, ...] = ()
    zk_migration_ready: bool = False


class InitProducerIdRequest(Struct, frozen=True, kw_only=True):
    transactional_id: str | None = None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class InitProducerIdResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int


class OffsetForLeaderEpochRequestPartition(Struct, frozen=True, kw_only=True):
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


class OffsetForLeaderEpochRequestTopic(Struct, frozen=True, kw_only=True):
    topic: str
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...]


class OffsetForLeaderEpochRequest(Struct, frozen=True, kw_only=True):
    replica_id: int = -2
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...]


class OffsetForLeaderEpochResponsePartition(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpochResponseTopic(Struct, frozen=True, kw_only=True):
    topic: str
    partitions: tuple[OffsetForLeaderEpochResponsePartition, ...]


class OffsetForLeaderEpochResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    topics: tuple[OffsetForLeaderEpochResponseTopic, ...]


class SaslAuthenticateRequest(Struct, frozen=True, kw_only=True):
    auth_bytes: bytes


class SaslAuthenticateResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes
    session_lifetime_ms: int = 0


MESSAGES: Final = {
    ApiKey.PRODUCE: (ProduceRequest, ProduceResponse),
    ApiKey.FETCH: (FetchRequest, FetchResponse),
    ApiKey.LIST_OFFSETS: (ListOffsetsRequest, ListOffsetsResponse),
    ApiKey.METADATA: (MetadataRequest, MetadataResponse),
    ApiKey.SASL_HANDSHAKE: (SaslHandshakeRequest, SaslHandshakeResponse),
    ApiKey.API_VERSIONS: (ApiVersionsRequest, ApiVersionsResponse),
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest, InitProducerIdResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    ApiKey.SASL_AUTHENTICATE: (SaslAuthenticateRequest, SaslAuthenticateResponse),
}
"""Request and response by API."""
