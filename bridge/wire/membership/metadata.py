"""A node's description of itself in its signed gossip metadata: at most 512 bytes, opaque to gossip.

    [version, cluster, name, role, raft id | null, endpoint | null, fingerprint | null, feature level, notice,
     admissions, endorsement]
    notice        null | [0, founders] a proposal | [1, founders, clock, nonce] a promise
                      | [2, packed promises of all founders] a founding (30 bytes each: NodeId, clock, nonce)
    admissions    from the leader: the admitted servers that have not started yet, as one byte string. Each has 12
                  bytes: NodeId, Raft id (four bytes, big-endian)
    endorsement   the cluster id of the founding that the node endorses, after it has received all promises

The receiver derives a founding's cluster id and log time from the promises, so a founding cannot contradict its
promises. The description is an array, because keys would take a fifth of the 512 bytes. The last two elements may be
missing. Elements after the eleventh are ignored, so that a later version can add some. A version without support for
`endorsement` ignores it and never sends it. A description has at most four admissions; with nine founders and the
longest names, the bytes have room for two. The leader sends further admissions when the first admitted servers have
started (`fitting_admissions`).

The bytes come from a member: it has the farm's key, and it signed them. But a member may be faulty or hostile. So the
CBOR is checked before it is decoded, every field is typed and bounded, and `MetadataError` is the only error.
"""

from functools import lru_cache
from sys import intern
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from bridge.core.formation.founding import (
    CLOCK_LIMIT_MS,
    CLUSTER_ID_BYTES,
    EXPECT_MAX,
    NODE_ID_BYTES,
    NONCE_BYTES,
    FormationNotice,
    Founders,
    Founding,
    Promise,
    is_set_of_founders,
    unpacked,
)
from bridge.core.formation.member import NodeMetadata, RoleHint
from bridge.core.log.fields import NAME
from gossip import METADATA_LIMIT_BYTES
from gossip.wire import CborError, dumps, loads

VERSION: Final = 2
ADMISSIONS_LIMIT: Final = 4
_RAFT_ID_BYTES: Final = 4
_ADMISSION_BYTES: Final = NODE_ID_BYTES + _RAFT_ID_BYTES
_RAFT_ID_LIMIT: Final = 2**31
_PORT_LIMIT: Final = 65_535
_ELEMENTS_MIN: Final = 9
"""Number of elements that are always sent. After these, empty elements at the end are omitted, so that a description
without later elements has the bytes of older versions."""
_BYTES: Final = (bytes,)
"""Types that `convert` must not decode from text: otherwise it would accept base64 in place of bytes."""


class MetadataError(ValueError):
    """The bytes are not the metadata of a node, or the values do not fit."""


_Name = Annotated[str, Meta(pattern=f"^{NAME}\\Z")]
_Endpoint = Annotated[
    str,
    Meta(max_length=96, pattern=r"^tcp://(?:[A-Za-z0-9._-]{1,80}|\[[0-9A-Fa-f:.]{2,45}\]):[1-9][0-9]{0,4}\Z"),
]
_Fingerprint = Annotated[bytes, Meta(min_length=32, max_length=32)]
_RaftId = Annotated[int, Meta(ge=0, lt=_RAFT_ID_LIMIT)]
_NodeId = Annotated[bytes, Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
_Founders = Annotated[tuple[_NodeId, ...], Meta(min_length=1, max_length=EXPECT_MAX)]


_Endorsement = Annotated[bytes, Meta(max_length=CLUSTER_ID_BYTES)]
"""Empty bytes, or a whole cluster id."""


class _Proposal(Struct, array_like=True, tag=0, forbid_unknown_fields=True):
    founders: _Founders


class _Promise(Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    founders: _Founders
    clock_ms: Annotated[int, Meta(ge=0, lt=CLOCK_LIMIT_MS)]
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class _Founding(Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    packed: bytes


_Notice = _Proposal | _Promise | _Founding | None


class _Elements(Struct, array_like=True):
    version: Literal[2]
    cluster: _Name
    name: _Name
    role: RoleHint
    raft_id: _RaftId | None
    endpoint: _Endpoint | None
    fingerprint: _Fingerprint | None
    feature_level: Annotated[int, Meta(ge=0, lt=2**16)]
    notice: _Notice
    admissions: Annotated[bytes, Meta(max_length=ADMISSIONS_LIMIT * _ADMISSION_BYTES)] = b""
    endorsement: _Endorsement = b""


def encode_metadata(metadata: NodeMetadata) -> bytes:
    """Return the bytes that gossip carries."""
    elements = _Elements(
        VERSION,
        metadata.cluster,
        metadata.name,
        metadata.role,
        metadata.raft_id,
        metadata.endpoint,
        metadata.fingerprint,
        metadata.feature_level,
        _written(metadata.notice),
        b"".join(each + raft_id.to_bytes(_RAFT_ID_BYTES, "big") for each, raft_id in metadata.admissions),
        metadata.notice.endorsement,
    )
    array = to_builtins(elements, builtin_types=_BYTES)
    # The encoder uses the decoder's checks, so that it never makes bytes that other nodes would refuse.
    _read(array)
    while len(array) > _ELEMENTS_MIN and not array[-1]:
        array.pop()
    data = dumps(array)
    if len(data) > METADATA_LIMIT_BYTES:
        raise MetadataError(f"the node's metadata has {len(data)} bytes, gossip carries {METADATA_LIMIT_BYTES}")
    return data


def fitting_admissions(metadata: NodeMetadata) -> NodeMetadata:
    """Return this metadata with as many admissions as fit into the bytes; all other fields always fit."""
    fitting = replace(metadata, admissions=metadata.admissions[:ADMISSIONS_LIMIT])
    while fitting.admissions:
        try:
            encode_metadata(fitting)
        except MetadataError:
            fitting = replace(fitting, admissions=fitting.admissions[:-1])
        else:
            break
    return fitting


def decode_metadata(data: bytes) -> NodeMetadata:
    """Read another node's metadata; raise `MetadataError` only."""
    if len(data) > METADATA_LIMIT_BYTES:
        raise MetadataError(f"metadata has at most {METADATA_LIMIT_BYTES} bytes, not {len(data)}")
    try:
        array = loads(data)
    except CborError as error:
        raise MetadataError(f"not the CBOR of metadata: {error}") from None
    return _read(array)


def _read(array: Any) -> NodeMetadata:
    try:
        found = convert(array, _Elements, builtin_types=_BYTES)
    except ValidationError as error:
        raise MetadataError(f"not as expected: {error}") from None
    if found.endpoint is not None and int(found.endpoint.rpartition(":")[2]) > _PORT_LIMIT:
        raise MetadataError(f"no port is above {_PORT_LIMIT}")
    if len(found.endorsement) not in {0, CLUSTER_ID_BYTES}:
        raise MetadataError(f"an endorsement has {CLUSTER_ID_BYTES} bytes")
    return NodeMetadata(
        # All members of a farm send the same text, so they share one object.
        cluster=intern(found.cluster),
        name=found.name,
        role=found.role,
        raft_id=found.raft_id,
        endpoint=found.endpoint,
        fingerprint=found.fingerprint,
        feature_level=found.feature_level,
        notice=_notice(found.notice, found.endorsement),
        admissions=_admissions(found.admissions),
    )


def _written(notice: FormationNotice) -> _Notice:
    if notice.founding is not None:
        return _Founding(notice.founding.packed)
    if notice.promise is not None:
        return _Promise(notice.promise.founders, notice.promise.clock_ms, notice.promise.nonce)
    return _Proposal(notice.proposal) if notice.proposal else None


_NO_NOTICE: Final = FormationNotice()
"""One object for all members without a notice of formation."""


def _notice(found: _Notice, endorsement: bytes) -> FormationNotice:
    match found:
        case None:
            return FormationNotice(endorsement=endorsement) if endorsement else _NO_NOTICE
        case _Proposal(founders):
            return FormationNotice(proposal=_checked(founders), endorsement=endorsement)
        case _Promise(founders, clock_ms, nonce):
            promise = Promise(_checked(founders), clock_ms, nonce)
            return FormationNotice(promise=promise, endorsement=endorsement)
        case _Founding(packed):
            return FormationNotice(founding=_founding(packed))


def _checked(founders: Founders) -> Founders:
    if not is_set_of_founders(founders, len(founders)):
        raise MetadataError("founders are not in ascending order, or one occurs twice")
    return founders


@lru_cache(maxsize=64)
def _founding(packed: bytes) -> Founding:
    """Return the founding of these bytes from a cache: all members of a farm send the same one."""
    try:
        return unpacked(packed)
    except ValueError as error:
        raise MetadataError(str(error)) from None


def _admissions(packed: bytes) -> tuple[tuple[bytes, int], ...]:
    if len(packed) % _ADMISSION_BYTES:
        raise MetadataError(f"admissions have {_ADMISSION_BYTES} bytes each")
    parts = (packed[start : start + _ADMISSION_BYTES] for start in range(0, len(packed), _ADMISSION_BYTES))
    found = tuple((each[:NODE_ID_BYTES], int.from_bytes(each[NODE_ID_BYTES:], "big")) for each in parts)
    if any(raft_id >= _RAFT_ID_LIMIT for _, raft_id in found):
        raise MetadataError(f"an admission's Raft id is not below {_RAFT_ID_LIMIT}")
    return found
