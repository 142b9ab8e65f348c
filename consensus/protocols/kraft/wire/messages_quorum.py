"""What the members of a quorum say to each other: elections, and snapshots; replication itself is Fetch.

    VoteRequest 52                a candidate asks for a vote; from v2 on also for a pre-vote (KIP-996)
    BeginQuorumEpochRequest 53    a new leader tells the voters
    EndQuorumEpochRequest 54      a leader resigns
    FetchSnapshotRequest 59       a replica asks the leader for bytes of a snapshot (KIP-630)

Fetch (1) is the same request as a consumer's and stands in `messages_clients`.

Names, types and defaults are those of Kafka's schemas in the newest version that is served; fields that only older
versions have stand last. One class serves all versions: what a version lacks is not written, and has its default when
read. Times are integers of milliseconds (`*_ms`), error codes are numbers (`apis.ErrorCode`), a UUID of zeros is none.
The bytes are `codec`'s.
"""

from dataclasses import dataclass
from uuid import UUID

from consensus.protocols.kraft.wire.limits import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequestPartition:
    """The candidate, how far its log goes, and the epoch of the election; of a pre-vote, the epoch that it is in."""

    partition_index: int
    replica_epoch: int
    replica_id: int
    replica_directory_id: UUID = ZERO_UUID
    voter_directory_id: UUID = ZERO_UUID
    last_offset_epoch: int
    last_offset: int
    pre_vote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequestTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[VoteRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """A candidate asks `voter_id` for its vote."""

    cluster_id: str | None = None
    voter_id: int = -1
    topics: tuple[VoteRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponsePartition:
    """The answer, and the leader that the voter knows (-1: none)."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int
    vote_granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[VoteResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseNodeEndpoint:
    """Where the leader can be reached."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """Answer to a vote. With an `error_code` of its own it has no topics."""

    error_code: int = 0
    topics: tuple[VoteResponseTopic, ...]
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestPartition:
    """The leader, its epoch, and the directory id of the voter that is told."""

    partition_index: int
    voter_directory_id: UUID = ZERO_UUID
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[BeginQuorumEpochRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestLeaderEndpoint:
    """One listener of the leader."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """A leader tells `voter_id` of its election."""

    cluster_id: str | None = None
    voter_id: int = -1
    topics: tuple[BeginQuorumEpochRequestTopic, ...]
    leader_endpoints: tuple[BeginQuorumEpochRequestLeaderEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponsePartition:
    """The answer, and the leader and epoch that the voter knows."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponseTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[BeginQuorumEpochResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponseNodeEndpoint:
    """Where the leader can be reached."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    """Answer to BeginQuorumEpoch."""

    error_code: int = 0
    topics: tuple[BeginQuorumEpochResponseTopic, ...]
    node_endpoints: tuple[BeginQuorumEpochResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestCandidate:
    """A voter that could lead next."""

    candidate_id: int
    candidate_directory_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestPartition:
    """The leader that resigns, and the voters in the order of the lengths of their logs."""

    partition_index: int
    leader_id: int
    leader_epoch: int
    preferred_candidates: tuple[EndQuorumEpochRequestCandidate, ...] = ()
    preferred_successors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[EndQuorumEpochRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestLeaderEndpoint:
    """One listener of the leader."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """A leader resigns."""

    cluster_id: str | None = None
    topics: tuple[EndQuorumEpochRequestTopic, ...]
    leader_endpoints: tuple[EndQuorumEpochRequestLeaderEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponsePartition:
    """The answer, and the leader and epoch that the voter knows."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponseTopic:
    """The topic of the log."""

    topic_name: str
    partitions: tuple[EndQuorumEpochResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponseNodeEndpoint:
    """Where the leader can be reached."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    """Answer to EndQuorumEpoch."""

    error_code: int = 0
    topics: tuple[EndQuorumEpochResponseTopic, ...]
    node_endpoints: tuple[EndQuorumEpochResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequestSnapshotId:
    """A snapshot: the end offset and epoch of what it stands for."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequestPartition:
    """Which snapshot, and the byte from which it is read."""

    partition: int
    current_leader_epoch: int
    snapshot_id: FetchSnapshotRequestSnapshotId
    position: int
    replica_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequestTopic:
    """The topic of the log."""

    name: str
    partitions: tuple[FetchSnapshotRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """A replica asks for bytes of a snapshot."""

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2**31 - 1
    topics: tuple[FetchSnapshotRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponseSnapshotId:
    """A snapshot: the end offset and epoch of what it stands for."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponseLeaderIdAndEpoch:
    """The leader that the answering server knows; -1: none. Left out, both numbers are 0."""

    leader_id: int = 0
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponsePartition:
    """Bytes of a snapshot of `size` bytes from `position` on; they may end within a batch."""

    index: int
    error_code: int = 0
    snapshot_id: FetchSnapshotResponseSnapshotId
    current_leader: FetchSnapshotResponseLeaderIdAndEpoch = FetchSnapshotResponseLeaderIdAndEpoch()
    size: int
    position: int
    unaligned_records: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponseTopic:
    """The topic of the log."""

    name: str
    partitions: tuple[FetchSnapshotResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponseNodeEndpoint:
    """Where the leader can be reached."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """Answer to FetchSnapshot."""

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[FetchSnapshotResponseTopic, ...]
    node_endpoints: tuple[FetchSnapshotResponseNodeEndpoint, ...] = ()
