"""Replicas in KRaft's messages: ids, directory ids and endpoints, and the core's `ReplicaKey` for each.

    core                          wire
    ReplicaKey(id, directory)     the id, and the directory id if the message has one (zeros: none)
    no leader                     id -1

BeginQuorumEpoch, EndQuorumEpoch and the leader in every response contain only ids. `Names` maps such an id to a voter
of the configuration; an unknown id lacks a directory, unless it is our own. A request that names another replica than
this one, or its previous directory, is not for us (KIP-853).
"""

from typing import Protocol
from uuid import UUID

from consensus.core.model import ReplicaKey, ServerId
from consensus.protocols.kafka.wire.limits import NO_REPLICA, ZERO_UUID, KafkaWireError, Topic


class Names(Protocol):
    """Replicas of the configuration in force, and the name of the quorum's log."""

    def topic(self) -> Topic:
        """Return the topic of the log."""

    def local(self) -> ReplicaKey:
        """Return this replica."""

    def replica_key(self, replica_id: int, directory: bytes) -> ReplicaKey:
        """Return the key of a replica that names itself. A voter without a configured directory has only an id."""

    def voter_key(self, voter_id: int) -> ReplicaKey | None:
        """Return the voter of this id, or None."""

    def endpoint(self, replica: ReplicaKey) -> tuple[str, int] | None:
        """Return host and port of a replica on the listener of the quorum, or None."""

    def listeners(self) -> tuple[tuple[str, str, int], ...]:
        """Return name, host and port of each listener of this replica."""


def replica(server_id: ServerId) -> ReplicaKey:
    """Return the core's id of a server in KRaft's form; raises `KafkaWireError` for an id of another protocol."""
    if not isinstance(server_id, ReplicaKey):
        raise KafkaWireError(f"{server_id!r} is not the key of a replica: it is the id of a server in another protocol")
    return server_id


def leader_of(leader_id: int, names: Names) -> ReplicaKey | None:
    """Return the leader that a message names, or None."""
    return None if leader_id < 0 else leader_key(leader_id, names)


def leader_key(leader_id: int, names: Names) -> ReplicaKey:
    """Return the leader of this id. Our own id means this replica, even if it has removed itself from the voters."""
    local = names.local()
    return local if leader_id == local.id else names.voter_key(leader_id) or ReplicaKey(leader_id)


def id_of(leader: ReplicaKey | None) -> int:
    """Return a leader's id; -1 without a leader."""
    return NO_REPLICA if leader is None else leader.id


def endpoints_of(leader: ReplicaKey | None, names: Names) -> tuple[tuple[int, str, int], ...]:
    """Return id, host and port of a leader; empty without a leader or a known endpoint."""
    endpoint = None if leader is None else names.endpoint(leader)
    return () if leader is None or endpoint is None else ((leader.id, *endpoint),)


def is_for_us(voter_id: int, directory: UUID, names: Names) -> bool:
    """Return True if a request for this voter is for this replica; a field absent from the message matches."""
    local = names.local()
    if voter_id >= 0 and voter_id != local.id:
        return False
    return directory == ZERO_UUID or not local.directory or directory.bytes == local.directory


def uuid_of(directory: bytes) -> UUID:
    """Return a directory id in wire form; zeros without one."""
    return UUID(bytes=directory) if directory else ZERO_UUID


def directory_of(uuid: UUID) -> bytes:
    """Return a directory id in the core's form; empty without one."""
    return b"" if uuid == ZERO_UUID else uuid.bytes
