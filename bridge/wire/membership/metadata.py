"""A node's description of itself in its signed gossip metadata: at most 512 bytes, opaque to gossip.

    [version, cluster, name, role, raft id | null, endpoint | null, fingerprint | null, feature level, notice,
     admissions]

    notice    null | [0, founders] a proposal | [1, founders, clock, nonce] a promise
                   | [2, packed promises of all founders] a founding (30 bytes each: NodeId, clock, nonce)

A founding's cluster id and log time are not included: the receiver derives them from the promises, so they cannot
contradict each other.

It is an array, not a map: keys would take a fifth of the 512 bytes. Elements after the tenth are ignored, so that a
later version can add some; the tenth may be missing.

    admissions    NodeId and Raft id (four bytes, big-endian) of servers that were admitted and have not started yet, 12
                  bytes each, in one byte string; sent by the leader

In a farm of nine founders with the longest names the 512 bytes have room for two admissions, in others for four. The
rest follows when the first ones have started (`fitting_admissions`).

The bytes come from a member (only the farm's key opens the datagram, and the node signed them), which may be broken or
hostile. So the CBOR is checked before it is decoded, every field is typed and bounded, and `MetadataError` is the only
error.
"""

import re
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from sys import intern
from typing import Any, Final, TypeVar

from bridge.core.formation.founding import (
    CLOCK_LIMIT_MS,
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
from gossip import METADATA_LIMIT_BYTES
from gossip.wire.cbor import CborError, dumps, loads

VERSION: Final = 2
FINGERPRINT_BYTES: Final = 32
NAME_LIMIT: Final = 32
ENDPOINT_LIMIT: Final = 96
_ELEMENTS: Final = 9
ADMISSIONS_LIMIT: Final = 4
_RAFT_ID_BYTES: Final = 4
_ADMISSION_BYTES: Final = NODE_ID_BYTES + _RAFT_ID_BYTES
_RAFT_ID_LIMIT: Final = 2**31
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_ENDPOINT = re.compile(r"tcp://(?:[A-Za-z0-9._-]{1,80}|\[[0-9A-Fa-f:.]{2,45}\]):([1-9][0-9]{0,4})")
_PORT_LIMIT: Final = 65_535

Number = TypeVar("Number", bound=IntEnum)


class MetadataError(ValueError):
    """The bytes are no metadata of a node, or the values do not fit."""


class RoleHint(IntEnum):
    """A node's role in Raft as it declares it; the configuration in the log decides."""

    OBSERVER = 0
    """Neither founds nor votes."""
    ELIGIBLE = 1
    """May found, or be made a voter."""
    VOTER = 2


class _Notice(IntEnum):
    PROPOSAL = 0
    PROMISE = 1
    FOUNDING = 2


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """One node's own description for the farm."""

    cluster: str
    name: str
    """The node's name."""
    role: RoleHint
    raft_id: int | None = None
    endpoint: str | None = None
    """The address of its Raft server: `tcp://host:port`."""
    fingerprint: bytes | None = None
    """SHA-256 of its TLS certificate; peers pin it."""
    feature_level: int = 1
    notice: FormationNotice = field(default_factory=FormationNotice)
    admissions: tuple[tuple[bytes, int], ...] = ()
    """Node id and Raft id of routers that the log has admitted and whose Raft servers do not run yet."""


def encode_metadata(metadata: NodeMetadata) -> bytes:
    """The bytes that gossip carries."""
    fields = [
        VERSION,
        metadata.cluster,
        metadata.name,
        int(metadata.role),
        metadata.raft_id,
        metadata.endpoint,
        metadata.fingerprint,
        metadata.feature_level,
        _notice_fields(metadata.notice),
    ]
    if metadata.admissions:
        fields.append(b"".join(each + raft_id.to_bytes(_RAFT_ID_BYTES, "big") for each, raft_id in metadata.admissions))
    # The encoder uses the decoder's checks: nothing is sent that other nodes would refuse.
    _from_fields(fields)
    data = dumps(fields)
    if len(data) > METADATA_LIMIT_BYTES:
        raise MetadataError(f"the node's metadata has {len(data)} bytes, gossip carries {METADATA_LIMIT_BYTES}")
    return data


def fitting_admissions(metadata: NodeMetadata) -> NodeMetadata:
    """This metadata with as many admissions as fit; everything else always fits."""
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
    """Read another node's metadata; raises `MetadataError` only."""
    if len(data) > METADATA_LIMIT_BYTES:
        raise MetadataError(f"metadata has at most {METADATA_LIMIT_BYTES} bytes, not {len(data)}")
    try:
        fields = loads(data)
    except CborError as error:
        raise MetadataError(f"not the CBOR of metadata: {error}") from None
    return _from_fields(fields)


def _from_fields(fields: Any) -> NodeMetadata:
    if not isinstance(fields, list) or len(fields) < _ELEMENTS:
        raise MetadataError(f"metadata is an array of at least {_ELEMENTS} elements")
    version, cluster, name, role, raft_id, endpoint, fingerprint, feature_level, notice = fields[:_ELEMENTS]
    if version != VERSION or isinstance(version, bool):
        raise MetadataError(f"this version reads metadata version {VERSION} only")
    return NodeMetadata(
        # All members of a farm send the same text: one object serves ten thousand.
        cluster=intern(_name(cluster, "cluster")),
        name=_name(name, "name"),
        role=_member(role, RoleHint, "role"),
        raft_id=None if raft_id is None else _number(raft_id, "Raft id", _RAFT_ID_LIMIT),
        endpoint=None if endpoint is None else _endpoint(endpoint),
        fingerprint=None if fingerprint is None else _bytes(fingerprint, FINGERPRINT_BYTES, "fingerprint"),
        feature_level=_number(feature_level, "feature level", 2**16),
        notice=_notice(notice),
        admissions=_admissions(fields[_ELEMENTS]) if len(fields) > _ELEMENTS else (),
    )


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise MetadataError(f"the {what} is not 1 to {NAME_LIMIT} of letters, digits, `.`, `_`, `-`, no mark first")
    return value


def _endpoint(value: Any) -> str:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) and len(value) <= ENDPOINT_LIMIT else None
    if found is None or int(found[1]) > _PORT_LIMIT:
        raise MetadataError("the endpoint is not tcp://host:port")
    return str(value)


def _number(value: Any, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise MetadataError(f"the {what} is not a number from 0 to {limit - 1}")
    return value


def _member(value: Any, kinds: type[Number], what: str) -> Number:
    number = _number(value, what, 2**8)
    try:
        return kinds(number)
    except ValueError:
        raise MetadataError(f"{what} {number} is unknown") from None


def _bytes(value: Any, size: int, what: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != size:
        raise MetadataError(f"the {what} is not {size} bytes")
    return value


def _notice_fields(notice: FormationNotice) -> list[Any] | None:
    if notice.founding is not None:
        return [int(_Notice.FOUNDING), notice.founding.packed]
    if notice.promise is not None:
        promise = notice.promise
        return [int(_Notice.PROMISE), list(promise.founders), promise.clock_ms, promise.nonce]
    return [int(_Notice.PROPOSAL), list(notice.proposal)] if notice.proposal else None


def _notice(fields: Any) -> FormationNotice:
    match fields:
        case None:
            return FormationNotice()
        case [kind, founders]:
            if _member(kind, _Notice, "kind of notice") is _Notice.FOUNDING:
                return FormationNotice(founding=_founding(founders))
            _expect(kind, _Notice.PROPOSAL)
            return FormationNotice(proposal=_founders(founders))
        case [kind, founders, clock_ms, nonce]:
            _expect(kind, _Notice.PROMISE)
            nonce = _bytes(nonce, NONCE_BYTES, "nonce")
            clock_ms = _number(clock_ms, "promise's clock", CLOCK_LIMIT_MS)
            return FormationNotice(promise=Promise(_founders(founders), clock_ms, nonce))
        case _:
            raise MetadataError("the formation notice is of no kind that is known")


def _expect(kind: Any, expected: _Notice) -> None:
    if _member(kind, _Notice, "kind of notice") is not expected:
        raise MetadataError(f"a formation notice of kind {kind} has another number of elements")


def _admissions(value: Any) -> tuple[tuple[bytes, int], ...]:
    limit = ADMISSIONS_LIMIT * _ADMISSION_BYTES
    if not isinstance(value, bytes) or len(value) > limit or len(value) % _ADMISSION_BYTES:
        raise MetadataError(f"admissions are at most {ADMISSIONS_LIMIT} times {_ADMISSION_BYTES} bytes")
    parts = (value[start : start + _ADMISSION_BYTES] for start in range(0, len(value), _ADMISSION_BYTES))
    return tuple(
        (
            each[:NODE_ID_BYTES],
            _number(int.from_bytes(each[NODE_ID_BYTES:], "big"), "Raft id", _RAFT_ID_LIMIT),
        )
        for each in parts
    )


def _founding(value: Any) -> Founding:
    if not isinstance(value, bytes):
        raise MetadataError("a founding is the packed promises of its founders")
    try:
        return _unpacked(value)
    except ValueError as error:
        raise MetadataError(str(error)) from None


# All members of a farm send the same founding: it is hashed once, and one object serves all.
_unpacked = lru_cache(maxsize=64)(unpacked)


def _founders(value: Any) -> Founders:
    if not isinstance(value, list) or not 1 <= len(value) <= EXPECT_MAX:
        raise MetadataError(f"founders are 1 to {EXPECT_MAX} node ids")
    founders = tuple(_bytes(founder, NODE_ID_BYTES, "founder's id") for founder in value)
    if not is_set_of_founders(founders, len(founders)):
        raise MetadataError("founders are not in ascending order, each once")
    return founders
