"""What consumer groups ask of their coordinator (the classic protocol), and what they note there.

    FindCoordinatorRequest 10                                                     which broker it is
    JoinGroupRequest 11, SyncGroupRequest 14, HeartbeatRequest 12, LeaveGroupRequest 13    membership
    OffsetCommitRequest 8, OffsetFetchRequest 9                                   positions
    ListGroupsRequest 16, DescribeGroupsRequest 15                                for tools

Names, types and defaults are those of Kafka's schemas in the newest version that is served; fields that only older
versions have stand last. One class serves all versions: what a version lacks is not written, and has its default when
read. Times are integers of milliseconds (`*_ms`), error codes are numbers (`apis.ErrorCode`), a UUID of zeros is none.
The bytes are `codec`'s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Which broker coordinates groups: several from version 4 on, one (`key`) before."""

    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponseCoordinator:
    """The coordinator of one group."""

    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """Answer to FindCoordinator: `coordinators` from version 4 on, the other fields before."""

    throttle_time_ms: int = 0
    coordinators: tuple[FindCoordinatorResponseCoordinator, ...] = ()
    error_code: int = 0
    error_message: str | None = None
    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    """A way of assignment that the member can follow, with what it tells about itself."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """A consumer joins a group, or joins again for a new generation."""

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    """A member, as the group's leader learns of it."""

    member_id: str
    group_instance_id: str | None = None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """The generation, and who leads it; `members` is for the leader alone."""

    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str
    skip_assignment: bool = False
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    """What one member gets, from the leader."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """A member asks for its assignment; the leader brings those of all."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupRequestAssignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    """What the member is to read."""

    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A member is alive."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """Answer to a heartbeat; the error tells of a new generation."""

    throttle_time_ms: int = 0
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequestMember:
    """A member that leaves."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    """Members leave: several from version 3 on, one (`member_id`) before."""

    group_id: str
    members: tuple[LeaveGroupRequestMember, ...] = ()
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponseMember:
    """Whether one member has left."""

    member_id: str
    group_instance_id: str | None = None
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """Answer to LeaveGroup."""

    throttle_time_ms: int = 0
    error_code: int = 0
    members: tuple[LeaveGroupResponseMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    """How far the group has read a partition."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """A member notes how far the group has read."""

    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str
    group_instance_id: str | None = None
    topics: tuple[OffsetCommitRequestTopic, ...]
    retention_time_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    """Whether it is noted."""

    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[OffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """Answer to OffsetCommit."""

    throttle_time_ms: int = 0
    topics: tuple[OffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    """Partitions of a topic."""

    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    """A group; `topics` None: all that it has noted."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """How far groups have read: several from version 8 on, one (`group_id`, `topics`) before."""

    groups: tuple[OffsetFetchRequestGroup, ...] = ()
    require_stable: bool = False
    group_id: str = ""
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    """What is noted; an offset of -1: nothing."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    metadata: str | None = None
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    """What one group has noted."""

    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...]
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """Answer to OffsetFetch: `groups` from version 8 on, `topics` and `error_code` before."""

    throttle_time_ms: int = 0
    groups: tuple[OffsetFetchResponseGroup, ...] = ()
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    """Which groups there are, perhaps of certain states and types alone."""

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponseGroup:
    """One group."""

    group_id: str
    protocol_type: str
    group_state: str = ""
    group_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """Answer to ListGroups."""

    throttle_time_ms: int = 0
    error_code: int = 0
    groups: tuple[ListGroupsResponseGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    """What certain groups do."""

    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponseMember:
    """One member with its assignment."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponseGroup:
    """One group, or why it is not told."""

    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribeGroupsResponseMember, ...]
    authorized_operations: int = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """Answer to DescribeGroups."""

    throttle_time_ms: int = 0
    groups: tuple[DescribeGroupsResponseGroup, ...]
