"""Kafka's control records: two for the core (LeaderChange, Voters), and three others.

    type                key: version 2 │ type 2           value: a version 2, then                    tagged fields last
    2 LeaderChange      a new leader's first record       leader 4 │ voters │ voters that granted     id 4 │ tags
    3 SnapshotHeader    begins a snapshot                 time in ms 8: Kafka's, of the last record; ours, of the header
    4 SnapshotFooter    ends it                           nothing
    5 KRaftVersion      1: the log names the voters       level 2
    6 Voters            from here on these vote           voter …                                     (KIP-853)

    voter    = id 4 │ directory id 16 │ endpoints │ least and greatest kraft.version 2, 2 │ tags │ tags
    endpoint = name │ host │ port 2 │ tags           arrays and texts begin with length + 1, a varint without zigzag

*LeaderChange is written in version 0 only.* Kafka's controllers stop at any other version, even standby controllers.
Version 0 lacks directory ids, so a no-op contains only the ids of replicas. This also applies to the leader's own log,
because entries must not differ between replicas. Other records and versions stay encoded: the core ignores them.

*Voters* that cannot be decoded are refused, because the core could not use the configuration. The core's configuration
lacks the kraft.versions of each voter. All present servers support 0 and 1. Other versions are stored as bytes with the
configuration (`voters_of`): one pair of numbers for all voters, or one for each. The schemas of both records come from
the library kio. A value must equal its encoded record; this refuses trailing bytes and tagged fields of a later Kafka.
"""

import struct
from typing import Final, TypeVar
from uuid import UUID

from msgspec import Struct

from consensus.core.model import (
    Configuration,
    NoOp,
    ReplicaKey,
    Server,
    ServerId,
    endpoint_text,
    possible_configuration,
)
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError
from consensus.protocols.kafka.wire.schemas import Structure, record_structure
from consensus.protocols.kafka.wire.serialization import Cursor, structure_reader, write_structure
from consensus.protocols.kraft.wire.replica_names import directory_of, uuid_of

LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
VOTERS: Final = 6
KRAFT_VERSION_1: Final = b"\x00\x00\x00\x01\x00"
"""The value of a KRaftVersion record: version 0, level 1, without tagged fields."""

_KEY: Final = struct.Struct(">hh")
_HEADER: Final = struct.Struct(">hqB")
_FOOTER: Final = b"\x00\x00\x00"
_FEATURES: Final = struct.Struct(">hh")
_USUAL_FEATURES: Final = _FEATURES.pack(0, 1)
_VERSION_BYTES: Final = 2
_NO_LEADER: Final = -1
_MAX_ELEMENTS: Final = DEFAULT_LIMITS.max_voters * (1 + DEFAULT_LIMITS.max_listeners)
_Record = TypeVar("_Record", "LeaderChangeMessage", "VotersRecord")


class LeaderChangeVoter(Struct, frozen=True):
    """The id of a voter."""

    voter_id: int


class LeaderChangeMessage(Struct, frozen=True, kw_only=True):
    """The value of a LeaderChange record, as in Kafka's schema."""

    version: int = 0
    leader_id: int
    voters: tuple[LeaderChangeVoter, ...]
    granting_voters: tuple[LeaderChangeVoter, ...]


class VoterEndpoint(Struct, frozen=True):
    """A listener of a voter."""

    name: str
    host: str
    port: int


class KRaftVersions(Struct, frozen=True):
    """The least and the greatest kraft.version that a voter supports."""

    min_supported_version: int
    max_supported_version: int


class Voter(Struct, frozen=True):
    """A voter in a Voters record."""

    voter_id: int
    voter_directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...]
    k_raft_version_feature: KRaftVersions


class VotersRecord(Struct, frozen=True, kw_only=True):
    """The value of a Voters record, as in Kafka's schema."""

    version: int = 0
    voters: tuple[Voter, ...]


def control_key(control_type: int) -> bytes:
    """Return the key of a control record."""
    return _KEY.pack(0, control_type)


def control_type_of(key: bytes | None) -> tuple[int, int] | None:
    """Return the type and the version in a control record's key, or None for another key."""
    if key is None or len(key) != _KEY.size:
        return None
    version, control_type = _KEY.unpack(key)
    return control_type, version


def by_id_alone(server_id: ServerId) -> ServerId:
    """Return the name of a replica in a no-op: its id without the directory."""
    return ReplicaKey(server_id.id) if isinstance(server_id, ReplicaKey) else server_id


def snapshot_header(last_contained_ms: int) -> bytes:
    """Return the value of a SnapshotHeader record."""
    return _HEADER.pack(0, last_contained_ms, 0)


def snapshot_footer() -> bytes:
    """Return the value of a SnapshotFooter record."""
    return _FOOTER


def leader_change_value(no_op: NoOp) -> bytes:
    """Return the value of the LeaderChange record of a no-op; raises `KafkaWireError` if it cannot be expressed."""
    return _encoded(
        LeaderChangeMessage(
            leader_id=_NO_LEADER if no_op.leader is None else _bare_id(no_op.leader),
            voters=tuple(LeaderChangeVoter(_bare_id(each)) for each in no_op.voters),
            granting_voters=tuple(LeaderChangeVoter(_bare_id(each)) for each in no_op.granted_by),
        )
    )


def no_op_of(value: bytes) -> NoOp | None:
    """Return the no-op in a LeaderChange of version 0; None for other contents."""
    try:
        record = _decoded(LeaderChangeMessage, value)
    except KafkaWireError:
        return None
    leader, lists = record.leader_id, (record.voters, record.granting_voters)
    is_possible = leader >= _NO_LEADER and all(each.voter_id >= 0 for voters in lists for each in voters)
    if record.version or not is_possible or max(map(len, lists)) > DEFAULT_LIMITS.max_voters:
        return None
    voters, granted = (tuple(ReplicaKey(each.voter_id) for each in voters) for voters in lists)
    return NoOp(None if leader == _NO_LEADER else ReplicaKey(leader), voters, granted)


def voters_value(configuration: Configuration, features: bytes = b"") -> bytes:
    """Return the value of a Voters record; `features` are the voters' versions if they differ from 0 and 1.

    Raises `KafkaWireError` if it cannot be expressed.
    """
    if configuration.old_voters or configuration.learners:
        raise KafkaWireError("Kafka's log cannot contain joint configurations or learners")
    voters = configuration.voters
    features = features or _USUAL_FEATURES
    if len(features) == _FEATURES.size:
        features *= len(voters)
    if len(features) != _FEATURES.size * len(voters):
        raise KafkaWireError("the number of versions in a configuration differs from the number of its voters")
    versions = _FEATURES.iter_unpack(features)
    return _encoded(VotersRecord(voters=tuple(map(_voter, voters, versions))))


def voters_of(version: int, value: bytes) -> tuple[Configuration, bytes]:
    """Return the configuration of a Voters record, and its voters' versions if they differ from 0 and 1.

    Raises `KafkaWireError`.
    """
    inner = int.from_bytes(value[:_VERSION_BYTES], signed=True)
    if version or inner:
        raise KafkaWireError(f"a Voters record has version {max(version, inner)}; only version 0 is understood here")
    voters = _decoded(VotersRecord, value).voters
    configuration = Configuration(tuple(map(_server_of, voters)))
    if not possible_configuration(configuration) or len({each.voter_id for each in voters}) != len(voters):
        raise KafkaWireError("a Voters record is empty, or has a duplicate or invalid voter, or too many")
    supported = [each.k_raft_version_feature for each in voters]
    features = [_FEATURES.pack(each.min_supported_version, each.max_supported_version) for each in supported]
    if len(set(features)) > 1:
        return configuration, b"".join(features)
    return configuration, b"" if features[0] == _USUAL_FEATURES else features[0]


def endpoint_of(text: str) -> tuple[str, int]:
    """Parse the result of `endpoint_text`; raises `KafkaWireError`."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not port.isdecimal() or endpoint_text(host, int(port)) != text:
        raise KafkaWireError(f"{text!r} is not a host with a port, so Kafka's log cannot name a voter there")
    return host, int(port)


def _bare_id(server_id: ServerId) -> int:
    if not isinstance(server_id, ReplicaKey) or not 0 <= server_id.id < 2**31:
        raise KafkaWireError(f"{server_id!r} is not a replica that Kafka's log can name")
    return server_id.id


def _voter(server: Server, versions: tuple[int, int]) -> Voter:
    listeners = server.listeners
    if server.endpoint != (listeners[0][1] if listeners else ""):
        raise KafkaWireError(f"server {server.server_id} has another endpoint than its first listener")
    places = [(name, *endpoint_of(where)) for name, where in listeners]
    return Voter(
        voter_id=_bare_id(server.server_id),
        voter_directory_id=uuid_of(server.server_id.directory if isinstance(server.server_id, ReplicaKey) else b""),
        endpoints=tuple(VoterEndpoint(name=name, host=host, port=port) for name, host, port in places),
        k_raft_version_feature=KRaftVersions(*versions),
    )


def _server_of(voter: Voter) -> Server:
    """Return the server of a voter; raises `KafkaWireError`."""
    texts = [text.encode() for each in voter.endpoints for text in (each.name, each.host)]
    if (
        len(voter.endpoints) > DEFAULT_LIMITS.max_listeners
        or max(map(len, texts), default=0) > DEFAULT_LIMITS.max_text_bytes
    ):
        raise KafkaWireError(
            f"voter {voter.voter_id} of a Voters record has too many listeners, or a text that is too long"
        )
    if voter.voter_id < 0:
        raise KafkaWireError(f"a Voters record names a voter {voter.voter_id}")
    listeners = tuple((each.name, endpoint_text(each.host, each.port)) for each in voter.endpoints)
    for _, where in listeners:
        endpoint_of(where)
    key = ReplicaKey(voter.voter_id, directory_of(voter.voter_directory_id))
    return Server(key, listeners[0][1] if listeners else "", listeners)


def _structure_of(kind: type[Struct]) -> Structure:
    return record_structure(kind, "voters_record" if kind is VotersRecord else "leader_change_message")


def _encoded(record: LeaderChangeMessage | VotersRecord) -> bytes:
    parts: list[bytes] = []
    write_structure(_structure_of(type(record)), record, parts)
    return b"".join(parts)


def _decoded(kind: type[_Record], value: bytes) -> _Record:
    """Return the record of a value in its only form; raises `KafkaWireError`."""
    record: _Record = structure_reader(_structure_of(kind))(Cursor(value, 0, _MAX_ELEMENTS))
    if _encoded(record) != value:
        raise KafkaWireError(
            "a control record has trailing bytes, or fields of a later version of Kafka, not understood here"
        )
    return record
