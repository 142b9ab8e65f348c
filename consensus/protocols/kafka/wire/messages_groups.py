"""The messages of consumer groups: their members, their offsets, and their descriptions for tools.

Generated from kio by `tests/wire/kafka_messages.py`, which has the rules; `test_kafka_messages.py` compares. Kafka's
documents explain the fields. A version that lacks a field does not write it, and has its default when read (`codec`).
"""

from typing import Final

from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ApiKey


class OffsetCommitRequestPartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


class OffsetCommitRequestTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


class OffsetCommitRequest(Struct, frozen=True, kw_only=True):
    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str
    group_instance_id: str | None = None
    topics: tuple[OffsetCommitRequestTopic, ...]
    retention_time_ms: int = -1


class OffsetCommitResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    error_code: int = 0


class OffsetCommitResponseTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[OffsetCommitResponsePartition, ...]


class OffsetCommitResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    topics: tuple[OffsetCommitResponseTopic, ...]


class OffsetFetchRequestTopic(Struct, frozen=True, kw_only=True):
    name: str
    partition_indexes: tuple[int, ...] = ()


class OffsetFetchRequestGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


class OffsetFetchRequest(Struct, frozen=True, kw_only=True):
    groups: tuple[OffsetFetchRequestGroup, ...] = ()
    require_stable: bool = False
    group_id: str = ""
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


class OffsetFetchResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    metadata: str | None = None
    error_code: int = 0


class OffsetFetchResponseTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


class OffsetFetchResponseGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...]
    error_code: int = 0


class OffsetFetchResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    groups: tuple[OffsetFetchResponseGroup, ...] = ()
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: int = 0


class FindCoordinatorRequest(Struct, frozen=True, kw_only=True):
    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()
    key: str = ""


class FindCoordinatorResponseCoordinator(Struct, frozen=True, kw_only=True):
    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


class FindCoordinatorResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    coordinators: tuple[FindCoordinatorResponseCoordinator, ...] = ()
    error_code: int = 0
    error_message: str | None = None
    node_id: int = 0
    host: str = ""
    port: int = 0


class JoinGroupRequestProtocol(Struct, frozen=True, kw_only=True):
    name: str
    metadata: bytes


class JoinGroupRequest(Struct, frozen=True, kw_only=True):
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None = None


class JoinGroupResponseMember(Struct, frozen=True, kw_only=True):
    member_id: str
    group_instance_id: str | None = None
    metadata: bytes


class JoinGroupResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str
    skip_assignment: bool = False
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]


class HeartbeatRequest(Struct, frozen=True, kw_only=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0


class LeaveGroupRequestMember(Struct, frozen=True, kw_only=True):
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(Struct, frozen=True, kw_only=True):
    group_id: str
    members: tuple[LeaveGroupRequestMember, ...] = ()
    member_id: str = ""


class LeaveGroupResponseMember(Struct, frozen=True, kw_only=True):
    member_id: str
    group_instance_id: str | None = None
    error_code: int = 0


class LeaveGroupResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    members: tuple[LeaveGroupResponseMember, ...] = ()


class SyncGroupRequestAssignment(Struct, frozen=True, kw_only=True):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Struct, frozen=True, kw_only=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupRequestAssignment, ...]


class SyncGroupResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes


class DescribeGroupsRequest(Struct, frozen=True, kw_only=True):
    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


class DescribeGroupsResponseMember(Struct, frozen=True, kw_only=True):
    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribeGroupsResponseGroup(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribeGroupsResponseMember, ...]
    authorized_operations: int = -2147483648


class DescribeGroupsResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    groups: tuple[DescribeGroupsResponseGroup, ...]


class ListGroupsRequest(Struct, frozen=True, kw_only=True):
    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


class ListGroupsResponseGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    protocol_type: str
    group_state: str = ""
    group_type: str = ""


class ListGroupsResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    groups: tuple[ListGroupsResponseGroup, ...]


MESSAGES: Final = {
    ApiKey.OFFSET_COMMIT: (OffsetCommitRequest, OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (OffsetFetchRequest, OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: (FindCoordinatorRequest, FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: (JoinGroupRequest, JoinGroupResponse),
    ApiKey.HEARTBEAT: (HeartbeatRequest, HeartbeatResponse),
    ApiKey.LEAVE_GROUP: (LeaveGroupRequest, LeaveGroupResponse),
    ApiKey.SYNC_GROUP: (SyncGroupRequest, SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: (DescribeGroupsRequest, DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: (ListGroupsRequest, ListGroupsResponse),
}
"""Request and response by API."""
