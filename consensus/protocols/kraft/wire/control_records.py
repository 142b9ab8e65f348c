"""Kafka's control records: two for the core (LeaderChange, Voters), and three of a snapshot.

    type                key: version 2 │ type 2           value: a version 2, then                    tagged fields last
    2 LeaderChange      a new leader's first record       leader 4 │ voters │ voters that granted     id 4 │ tags
    3 SnapshotHeader    begins a snapshot                 time of the last record in it, ms 8
    4 SnapshotFooter    ends it                           nothing
    5 KRaftVersion      1: the log names the voters       level 2
    6 Voters            from here on these vote           voter …                                     (KIP-853)

    voter    = id 4 │ directory id 16 │ endpoints │ least and greatest kraft.version 2, 2 │ tags │ tags
    endpoint = name │ host │ port 2 │ tags           arrays and texts begin with length + 1, a varint without zigzag

*LeaderChange is written in version 0 only.* Kafka's controllers stop at any other version, even standby controllers.
Version 0 lacks directory ids, so a no-op contains only the ids of replicas (`ReplicaKey` without a directory). This
also applies to the leader's own log, because entries must not differ between replicas. A record with other contents,
such as tagged fields of a later Kafka, is not decoded: the core does not need a no-op's contents.

*Voters* that cannot be decoded are refused, because the core could not use the configuration. The core's configuration
lacks the kraft.versions that each voter supports. All present servers support 0 and 1. Other versions are stored as
bytes with the configuration (`voters_of`): one pair of numbers for all voters, or one for each.
"""

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from consensus.core.model import (
    DIRECTORY_BYTES,
    Configuration,
    NoOp,
    ReplicaKey,
    Server,
    ServerId,
    endpoint_text,
    possible_configuration,
)
from consensus.protocols.kafka.wire.limits import DEFAULT_LIMITS, KafkaWireError
from consensus.protocols.kafka.wire.serialization import encode_varint

LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
VOTERS: Final = 6
KRAFT_VERSION_1: Final = b"\x00\x00\x00\x01\x00"
"""The value of a KRaftVersion record: version 0, level 1, without tagged fields."""

_KEY: Final = struct.Struct(">hh")
_LEADER_CHANGE: Final = struct.Struct(">hi")
_HEADER: Final = struct.Struct(">hqB")
_FOOTER: Final = b"\x00\x00\x00"
_VERSION: Final = struct.Struct(">h")
_ID: Final = struct.Struct(">i")
_PORT: Final = struct.Struct(">H")
_FEATURES: Final = struct.Struct(">hh")
_USUAL_FEATURES: Final = _FEATURES.pack(0, 1)
_NO_TAGS: Final = b"\x00"
_NO_LEADER: Final = -1
_NO_DIRECTORY: Final = bytes(DIRECTORY_BYTES)
_Element = TypeVar("_Element")


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
    leader = _NO_LEADER if no_op.leader is None else _bare_id(no_op.leader)
    voters = [_ID.pack(_bare_id(each)) + _NO_TAGS for each in no_op.voters]
    granted = [_ID.pack(_bare_id(each)) + _NO_TAGS for each in no_op.granted_by]
    return _LEADER_CHANGE.pack(0, leader) + _array(voters) + _array(granted) + _NO_TAGS


def no_op_of(value: bytes) -> NoOp | None:
    """Return the no-op in a LeaderChange of version 0; None for other contents."""
    reader = _ValueReader(value)
    try:
        version, leader = reader.take(_LEADER_CHANGE)
        voters = reader.array(lambda: _member(reader))
        granted = reader.array(lambda: _member(reader))
        reader.end()
    except KafkaWireError:
        return None
    if version or leader < _NO_LEADER:
        return None
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
    parts = [
        _voter(voter) + features[_FEATURES.size * at : _FEATURES.size * (at + 1)] + _NO_TAGS + _NO_TAGS
        for at, voter in enumerate(voters)
    ]
    return _VERSION.pack(0) + _array(parts) + _NO_TAGS


def voters_of(version: int, value: bytes) -> tuple[Configuration, bytes]:
    """Return the configuration of a Voters record, and its voters' versions if they differ from 0 and 1.

    Raises `KafkaWireError`.
    """
    reader = _ValueReader(value)
    (inner,) = reader.take(_VERSION)
    if version or inner:
        raise KafkaWireError(f"a Voters record has version {max(version, inner)}; only version 0 is understood here")
    voters = reader.array(lambda: _read_voter(reader))
    reader.end()
    configuration = Configuration(tuple(server for server, _ in voters))
    features = [each for _, each in voters]
    ids = {_bare_id(server.server_id) for server, _ in voters}
    if not possible_configuration(configuration) or len(ids) != len(voters):
        raise KafkaWireError("a Voters record is empty, or has a duplicate or invalid voter, or too many")
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


def _voter(server: Server) -> bytes:
    listeners = server.listeners
    if server.endpoint != (listeners[0][1] if listeners else ""):
        raise KafkaWireError(f"server {server.server_id} has another endpoint than its first listener")
    endpoints = []
    for name, where in listeners:
        host, port = endpoint_of(where)
        try:
            endpoints.append(_text(name) + _text(host) + _PORT.pack(port) + _NO_TAGS)
        except struct.error as error:
            raise KafkaWireError(f"port {port} of server {server.server_id} is out of range") from error
    number = _ID.pack(_bare_id(server.server_id))
    directory = server.server_id.directory if isinstance(server.server_id, ReplicaKey) else b""
    return number + (directory or _NO_DIRECTORY) + _array(endpoints)


def _read_voter(reader: "_ValueReader") -> tuple[Server, bytes]:
    (number,) = reader.take(_ID)
    directory = reader.take_bytes(DIRECTORY_BYTES)
    listeners = reader.array(lambda: _read_endpoint(reader), DEFAULT_LIMITS.max_listeners)
    features = reader.take_bytes(_FEATURES.size)
    reader.no_tags()
    reader.no_tags()
    if number < 0:
        raise KafkaWireError(f"a Voters record names a voter {number}")
    key = ReplicaKey(number, b"" if directory == _NO_DIRECTORY else directory)
    return Server(key, listeners[0][1] if listeners else "", listeners), features


def _read_endpoint(reader: "_ValueReader") -> tuple[str, str]:
    name, host = reader.text(), reader.text()
    (port,) = reader.take(_PORT)
    reader.no_tags()
    where = endpoint_text(host, port)
    endpoint_of(where)
    return name, where


def _member(reader: "_ValueReader") -> ReplicaKey:
    (number,) = reader.take(_ID)
    reader.no_tags()
    if number < 0:
        raise KafkaWireError(f"a LeaderChange names a voter {number}")
    return ReplicaKey(number)


def _array(parts: list[bytes]) -> bytes:
    return _length(len(parts)) + b"".join(parts)


def _text(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise KafkaWireError(f"{text!r} is not text that Kafka's log can contain") from error
    return _length(len(data)) + data


def _length(count: int) -> bytes:
    return encode_varint(count + 1)


class _ValueReader:
    """Reads the value of a control record; raises `KafkaWireError` for an invalid one."""

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._at = 0

    def take(self, fields: struct.Struct) -> tuple[int, ...]:
        return fields.unpack(self.take_bytes(fields.size))

    def take_bytes(self, count: int) -> bytes:
        taken = self._value[self._at : self._at + count]
        if len(taken) != count:
            raise KafkaWireError("a control record is cut off")
        self._at += count
        return taken

    def array(self, element: Callable[[], _Element], limit: int = DEFAULT_LIMITS.max_voters) -> tuple[_Element, ...]:
        count = self._length()
        if count > limit:
            raise KafkaWireError(f"a control record has {count} elements, of {limit} at most")
        return tuple([element() for _ in range(count)])

    def text(self) -> str:
        length = self._length()
        if length > DEFAULT_LIMITS.max_text_bytes:
            raise KafkaWireError(f"a text in a control record has {length} bytes")
        try:
            return self.take_bytes(length).decode()
        except UnicodeDecodeError as error:
            raise KafkaWireError("a control record contains invalid text") from error

    def no_tags(self) -> None:
        if self.take_bytes(1) != _NO_TAGS:
            raise KafkaWireError("a control record has fields of a later version of Kafka, not understood here")

    def end(self) -> None:
        self.no_tags()
        if self._at != len(self._value):
            raise KafkaWireError("bytes trail a control record")

    def _length(self) -> int:
        """Return the length of an array or a text; refuse null and leading zeros."""
        number, shift = 0, 0
        while True:
            (byte,) = self.take_bytes(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit of a further byte
                break
            shift += 7
            if shift > 28:  # noqa: PLR2004 - five bytes of seven bits
                raise KafkaWireError("a length in a control record has more than 32 bits")
        if not number or (shift and not byte):
            raise KafkaWireError("an array or a text in a control record is null, or its length has zeros in front")
        return number - 1
