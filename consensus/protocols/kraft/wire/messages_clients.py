"""What clients ask of a topic, and what opens a connection: Fetch is asked by replicas as well.

    ApiVersionsRequest 18, SaslHandshakeRequest 17, SaslAuthenticateRequest 36     what begins a connection
    MetadataRequest 3, ListOffsetsRequest 2, OffsetForLeaderEpochRequest 23        where a topic is, and its offsets
    FetchRequest 1                                                                 reading, also as a replica
    ProduceRequest 0, InitProducerIdRequest 22                                     writing

Names, types and defaults are those of Kafka's schemas in the newest version that is served; fields that only older
versions have stand last. One class serves all versions: what a version lacks is not written, and has its default when
read. Times are integers of milliseconds (`*_ms`), error codes are numbers (`apis.ErrorCode`), a UUID of zeros is none.
The bytes are `codec`'s.
"""

from dataclasses import dataclass
from uuid import UUID

from consensus.protocols.kraft.wire.limits import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """A client asks which APIs are served; the first request on a connection."""

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponseApi:
    """One API with the lowest and highest version that is served."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponseSupportedFeature:
    """A feature with the levels that the server can have."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponseFinalizedFeature:
    """A feature with the levels that the cluster has."""

    name: str
    max_version_level: int
    min_version_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """What is served. To a version that is not served the answer is in version 0, with error 35."""

    error_code: int = 0
    api_keys: tuple[ApiVersionsResponseApi, ...]
    throttle_time_ms: int = 0
    supported_features: tuple[ApiVersionsResponseSupportedFeature, ...] = ()
    finalized_features_epoch: int = -1
    finalized_features: tuple[ApiVersionsResponseFinalizedFeature, ...] = ()
    zk_migration_ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    """A client names the mechanism by which it will authenticate."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether the mechanism is there, and which are."""

    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """One message of the mechanism, from the client."""

    auth_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """One message of the mechanism, from the server."""

    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes
    session_lifetime_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    """A topic that is asked about, by name or by id."""

    topic_id: UUID = ZERO_UUID
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """Which brokers there are, and where topics are; `topics` None: of all topics."""

    topics: tuple[MetadataRequestTopic, ...] | None = None
    allow_auto_topic_creation: bool = True
    include_topic_authorized_operations: bool = False
    include_cluster_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseBroker:
    """A broker's address, on the listener that the client asked by."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponsePartition:
    """Who leads a partition, and who has a copy of it."""

    error_code: int = 0
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseTopic:
    """A topic, or why there is none."""

    error_code: int = 0
    name: str | None = None
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: int = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """Brokers and topics."""

    throttle_time_ms: int = 0
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None = None
    controller_id: int = -1
    topics: tuple[MetadataResponseTopic, ...]
    error_code: int = 0
    cluster_authorized_operations: int = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequestPartition:
    """A partition with a time, or -1 (the end), -2 (the start), -3 (the record of the latest time)."""

    partition_index: int
    current_leader_epoch: int = -1
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequestTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ListOffsetsRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """Which offsets partitions have at certain times."""

    replica_id: int
    isolation_level: int = 0
    topics: tuple[ListOffsetsRequestTopic, ...]
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponsePartition:
    """The offset that was asked for; -1: there is none."""

    partition_index: int
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponseTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ListOffsetsResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """Answer to ListOffsets."""

    throttle_time_ms: int = 0
    topics: tuple[ListOffsetsResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequestReplicaState:
    """The replica that fetches; -1: a consumer. From version 15 on, before that `FetchRequest.replica_id`."""

    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequestPartition:
    """From where a partition is read. A replica tells the epoch of its last record, from v18 on its high watermark."""

    partition: int
    current_leader_epoch: int = -1
    fetch_offset: int
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int
    replica_directory_id: UUID = ZERO_UUID
    high_watermark: int = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequestTopic:
    """Partitions of a topic, which is named by id from version 13 on."""

    topic_id: UUID = ZERO_UUID
    partitions: tuple[FetchRequestPartition, ...]
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequestForgottenTopic:
    """Partitions that a fetch session no longer has."""

    topic_id: UUID = ZERO_UUID
    partitions: tuple[int, ...] = ()
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What is behind certain offsets. The answer may wait until there are `min_bytes`, for `max_wait_ms`."""

    cluster_id: str | None = None
    replica_state: FetchRequestReplicaState = FetchRequestReplicaState()
    max_wait_ms: int
    min_bytes: int
    max_bytes: int = 2**31 - 1
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: tuple[FetchRequestTopic, ...]
    forgotten_topics_data: tuple[FetchRequestForgottenTopic, ...] = ()
    rack_id: str = ""
    replica_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseEpochEndOffset:
    """Where the log of a replica that has diverged may agree with the leader's; -1: it has not diverged."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseLeaderIdAndEpoch:
    """The leader that the answering server knows; -1: none."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseSnapshotId:
    """The snapshot that a replica is to fetch instead; -1: none."""

    end_offset: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseAbortedTransaction:
    """A transaction whose records are to be ignored."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponsePartition:
    """Record batches of a partition; the last one may be cut short."""

    partition_index: int
    error_code: int = 0
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: FetchResponseEpochEndOffset = FetchResponseEpochEndOffset()
    current_leader: FetchResponseLeaderIdAndEpoch = FetchResponseLeaderIdAndEpoch()
    snapshot_id: FetchResponseSnapshotId = FetchResponseSnapshotId()
    aborted_transactions: tuple[FetchResponseAbortedTransaction, ...] | None = None
    preferred_read_replica: int = -1
    records: bytes | None = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseTopic:
    """Partitions of a topic, which is named by id from version 13 on."""

    topic_id: UUID = ZERO_UUID
    partitions: tuple[FetchResponsePartition, ...]
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseNodeEndpoint:
    """Where the leader can be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """Answer to Fetch."""

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: tuple[FetchResponseTopic, ...]
    node_endpoints: tuple[FetchResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequestPartition:
    """An epoch, and the one that the client takes for the current."""

    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequestTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    """Where epochs end, so that a client sees whether what it has read is still in the log."""

    replica_id: int = -2
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponsePartition:
    """The end offset of the latest epoch up to the one that was asked for."""

    error_code: int = 0
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponseTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[OffsetForLeaderEpochResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    """Answer to OffsetForLeaderEpoch."""

    throttle_time_ms: int = 0
    topics: tuple[OffsetForLeaderEpochResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequestPartition:
    """One record batch for a partition."""

    index: int
    records: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequestTopic:
    """Partitions of a topic, which is named by id from version 13 on."""

    topic_id: UUID = ZERO_UUID
    partition_data: tuple[ProduceRequestPartition, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Records to be appended; with `acks` 0 there is no answer."""

    transactional_id: str | None = None
    acks: int
    timeout_ms: int
    topic_data: tuple[ProduceRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseRecordError:
    """Which record of a batch was refused."""

    batch_index: int
    batch_index_error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseLeaderIdAndEpoch:
    """The leader that the answering server knows; -1: none."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponsePartition:
    """Where the batch begins in the log, or why it was not taken."""

    index: int
    error_code: int = 0
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[ProduceResponseRecordError, ...] = ()
    error_message: str | None = None
    current_leader: ProduceResponseLeaderIdAndEpoch = ProduceResponseLeaderIdAndEpoch()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseTopic:
    """Partitions of a topic, which is named by id from version 13 on."""

    topic_id: UUID = ZERO_UUID
    partition_responses: tuple[ProduceResponsePartition, ...]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponseNodeEndpoint:
    """Where the leader can be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """Answer to Produce."""

    responses: tuple[ProduceResponseTopic, ...]
    throttle_time_ms: int = 0
    node_endpoints: tuple[ProduceResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """A producer asks for the id under which its batches are numbered."""

    transactional_id: str | None = None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """The id, and the epoch that goes with it."""

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int
