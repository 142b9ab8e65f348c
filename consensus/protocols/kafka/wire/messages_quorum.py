"""The messages of the servers of a quorum: Vote, the begin and end of an epoch, snapshots; not Fetch.

Generated from kio by `tests/wire/kafka_messages.py`, which has the rules; `test_kafka_messages.py` compares. Kafka's
documents explain the fields. A version that lacks a field does not write it, and has its default when read (`codec`).
"""

from typing import Final
from uuid import UUID

from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import ZERO_UUID


class VoteRequestPartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    replica_epoch: int
    replica_id: int
    replica_directory_id: UUID = ZERO_UUID
    voter_directory_id: UUID = ZERO_UUID
    last_offset_epoch: int
    last_offset: int
    pre_vote: bool = False


class VoteRequestTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[VoteRequestPartition, ...]


class VoteRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    voter_id: int = -1
    topics: tuple[VoteRequestTopic, ...]


class VoteResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int
    vote_granted: bool


class VoteResponseTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[VoteResponsePartition, ...]


class VoteResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    node_id: int
    host: str
    port: int


class VoteResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    topics: tuple[VoteResponseTopic, ...]
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


class BeginQuorumEpochRequestPartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    voter_directory_id: UUID = ZERO_UUID
    leader_id: int
    leader_epoch: int


class BeginQuorumEpochRequestTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[BeginQuorumEpochRequestPartition, ...]


class BeginQuorumEpochRequestLeaderEndpoint(Struct, frozen=True, kw_only=True):
    name: str
    host: str
    port: int


class BeginQuorumEpochRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    voter_id: int = -1
    topics: tuple[BeginQuorumEpochRequestTopic, ...]
    leader_endpoints: tuple[BeginQuorumEpochRequestLeaderEndpoint, ...] = ()


class BeginQuorumEpochResponsePartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


class BeginQuorumEpochResponseTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[BeginQuorumEpochResponsePartition, ...]


BeginQuorumEpochResponseNodeEndpoint = VoteResponseNodeEndpoint


class BeginQuorumEpochResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    topics: tuple[BeginQuorumEpochResponseTopic, ...]
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


class EndQuorumEpochRequestCandidate(Struct, frozen=True, kw_only=True):
    candidate_id: int
    candidate_directory_id: UUID


class EndQuorumEpochRequestPartition(Struct, frozen=True, kw_only=True):
    partition_index: int
    leader_id: int
    leader_epoch: int
    preferred_candidates: tuple[EndQuorumEpochRequestCandidate, ...] = ()
    preferred_successors: tuple[int, ...] = ()


class EndQuorumEpochRequestTopic(Struct, frozen=True, kw_only=True):
    topic_name: str
    partitions: tuple[EndQuorumEpochRequestPartition, ...]


EndQuorumEpochRequestLeaderEndpoint = BeginQuorumEpochRequestLeaderEndpoint


class EndQuorumEpochRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    topics: tuple[EndQuorumEpochRequestTopic, ...]
    leader_endpoints: tuple[BeginQuorumEpochRequestLeaderEndpoint, ...] = ()


EndQuorumEpochResponsePartition = BeginQuorumEpochResponsePartition


EndQuorumEpochResponseTopic = BeginQuorumEpochResponseTopic


EndQuorumEpochResponseNodeEndpoint = VoteResponseNodeEndpoint


class EndQuorumEpochResponse(Struct, frozen=True, kw_only=True):
    error_code: int = 0
    topics: tuple[BeginQuorumEpochResponseTopic, ...]
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


class FetchSnapshotRequestSnapshotId(Struct, frozen=True, kw_only=True):
    end_offset: int
    epoch: int


class FetchSnapshotRequestPartition(Struct, frozen=True, kw_only=True):
    partition: int
    current_leader_epoch: int
    snapshot_id: FetchSnapshotRequestSnapshotId
    position: int
    replica_directory_id: UUID = ZERO_UUID


class FetchSnapshotRequestTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[FetchSnapshotRequestPartition, ...]


class FetchSnapshotRequest(Struct, frozen=True, kw_only=True):
    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: tuple[FetchSnapshotRequestTopic, ...]


FetchSnapshotResponseSnapshotId = FetchSnapshotRequestSnapshotId


class FetchSnapshotResponseLeaderIdAndEpoch(Struct, frozen=True, kw_only=True):
    leader_id: int = 0
    leader_epoch: int = 0


class FetchSnapshotResponsePartition(Struct, frozen=True, kw_only=True):
    index: int
    error_code: int = 0
    snapshot_id: FetchSnapshotRequestSnapshotId
    current_leader: FetchSnapshotResponseLeaderIdAndEpoch = FetchSnapshotResponseLeaderIdAndEpoch()
    size: int
    position: int
    unaligned_records: bytes


class FetchSnapshotResponseTopic(Struct, frozen=True, kw_only=True):
    name: str
    partitions: tuple[FetchSnapshotResponsePartition, ...]


FetchSnapshotResponseNodeEndpoint = VoteResponseNodeEndpoint


class FetchSnapshotResponse(Struct, frozen=True, kw_only=True):
    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[FetchSnapshotResponseTopic, ...]
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


MESSAGES: Final = {
    ApiKey.VOTE: (VoteRequest, VoteResponse),
    ApiKey.BEGIN_QUORUM_EPOCH: (BeginQuorumEpochRequest, BeginQuorumEpochResponse),
    ApiKey.END_QUORUM_EPOCH: (EndQuorumEpochRequest, EndQuorumEpochResponse),
    ApiKey.FETCH_SNAPSHOT: (FetchSnapshotRequest, FetchSnapshotResponse),
}
"""Request and response by API."""
