"""Replicas as KRaft's messages name them: ids, directory ids and endpoints, and the core's `ReplicaKey` for each.

    core                          wire
    ReplicaKey(id, directory)     the id, and where the message has it the directory id (zeros: none)
    no leader                     id -1

BeginQuorumEpoch, EndQuorumEpoch and the leader in every response have ids alone. `Names` says which voter that is, by
the configuration; an id that it does not know has no directory, unless it is our own. A request that names another
replica than this one, or its directory of before, is not for us (KIP-853).
"""

from typing import Protocol
from uuid import UUID

from consensus.core.model import ReplicaKey, ServerId
from consensus.protocols.kafka.wire.limits import NO_REPLICA, ZERO_UUID, KafkaWireError, Topic


class Names(Protocol):
    """What the configuration in force says of replicas, and what the quorum calls its log."""

    def topic(self) -> Topic:
        """The topic of the log."""

    def local(self) -> ReplicaKey:
        """This replica."""

    def replica_key(self, replica_id: int, directory: bytes) -> ReplicaKey:
        """A replica that names itself. A voter whom the configuration names without directory is meant by id alone."""

    def voter_key(self, voter_id: int) -> ReplicaKey | None:
        """The voter of this id; None: there is none."""

    def endpoint(self, replica: ReplicaKey) -> tuple[str, int] | None:
        """Host and port of a replica, on the listener of the quorum."""

    def listeners(self) -> tuple[tuple[str, str, int], ...]:
        """Name, host and port of each listener of this replica."""


def replica(server_id: ServerId) -> ReplicaKey:
    """The core's id of a server as KRaft has it; raises `KafkaWireError` for an id of another protocol."""
    if not isinstance(server_id, ReplicaKey):
        raise KafkaWireError(f"{server_id!r} is not the key of a replica: it is the id of a server in another protocol")
    return server_id


def leader_of(leader_id: int, names: Names) -> ReplicaKey | None:
    """The leader that a message names; None: it names none."""
    return None if leader_id < 0 else leader_key(leader_id, names)


def leader_key(leader_id: int, names: Names) -> ReplicaKey:
    """The leader of this id. Our own id is ours, also where we do not vote: we may have removed ourselves."""
    local = names.local()
    return local if leader_id == local.id else names.voter_key(leader_id) or ReplicaKey(leader_id)


def id_of(leader: ReplicaKey | None) -> int:
    """A leader's id; -1 without a leader."""
    return NO_REPLICA if leader is None else leader.id


def endpoints_of(leader: ReplicaKey | None, names: Names) -> tuple[tuple[int, str, int], ...]:
    """Id, host and port of a leader; none if there is no leader, or its endpoint is not known."""
    endpoint = None if leader is None else names.endpoint(leader)
    return () if leader is None or endpoint is None else ((leader.id, *endpoint),)


def is_for_us(voter_id: int, directory: UUID, names: Names) -> bool:
    """Whether a request for this voter is for this replica; a message may leave out either, and then it fits."""
    local = names.local()
    if voter_id >= 0 and voter_id != local.id:
        return False
    return directory == ZERO_UUID or not local.directory or directory.bytes == local.directory


def uuid_of(directory: bytes) -> UUID:
    """A directory id as it is written; zeros where there is none."""
    return UUID(bytes=directory) if directory else ZERO_UUID


def directory_of(uuid: UUID) -> bytes:
    """A directory id as the core has it; empty where there is none."""
    return b"" if uuid == ZERO_UUID else uuid.bytes
