"""The JSON of entries about identities ⇄ `bridge.core.log.records`: admissions, approvals, evictions, level.

    {"admission": {"server": N, "node": ID, "name": NAME, "key": KEY}}       the leader's, KEY may be missing
    {"approval": {"server": N, "node": ID, "name": NAME, "replaces": ID, "key": KEY}}     an operator's, by the leader
    {"eviction": {"node": ID, "era": N, "boxes": {ID: BOX, …}}}              an operator's, by the leader
    {"rekeying": {"era": N, "boxes": {ID: BOX, …}}}                          an operator's, by the leader
    {"level": {"number": N, "version": TEXT}}                                the leader's

ID is a NodeId in hexadecimal, KEY the Ed25519 public key that it is a hash of, base64; another key is refused. BOX is
base64 (`bridge.wire.keys.box`).
"""

import base64
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from bridge.core.formation.founding import NODE_ID_BYTES
from bridge.core.log.records import Admission, Approval, Eviction, IdentityRecord, KeyReplacement, Level
from bridge.wire.keys.box import BOX_BYTES
from bridge.wire.log.fields import NodeName, octets
from gossip.wire import PUBLIC_KEY_BYTES, node_id_of

KINDS: Final = ("admission", "approval", "eviction", "rekeying", "level")
BOXES_LIMIT: Final = 256
"""The most boxes of one entry, so that it stays below the limit of all entries."""

_NodeId = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * NODE_ID_BYTES}}}\\Z")]
_RaftId = Annotated[int, Meta(ge=1, lt=2**31)]
_KeyText = Annotated[str, Meta(min_length=44, max_length=44)]
_BoxText = Annotated[str, Meta(max_length=4 * -(-BOX_BYTES // 3))]


class _Admission(Struct, omit_defaults=True):
    server: _RaftId
    node: _NodeId
    name: NodeName
    key: _KeyText | None = None


class _Approval(Struct, omit_defaults=True):
    server: _RaftId
    node: _NodeId
    name: NodeName
    replaces: _NodeId
    key: _KeyText | None = None


class _Eviction(Struct):
    node: _NodeId
    era: Annotated[int, Meta(ge=1, lt=2**32)]
    boxes: Annotated[dict[_NodeId, _BoxText], Meta(max_length=BOXES_LIMIT)]


class _Rekeying(Struct):
    era: Annotated[int, Meta(ge=1, lt=2**32)]
    boxes: Annotated[dict[_NodeId, _BoxText], Meta(max_length=BOXES_LIMIT)]


class _Level(Struct):
    number: Annotated[int, Meta(ge=1, lt=2**16)]
    version: Annotated[str, Meta(max_length=32)]


class _AdmissionEntry(Struct):
    admission: _Admission


class _ApprovalEntry(Struct):
    approval: _Approval


class _EvictionEntry(Struct):
    eviction: _Eviction


class _RekeyingEntry(Struct):
    rekeying: _Rekeying


class _LevelEntry(Struct):
    level: _Level


_admission = msgspec.json.Decoder(_AdmissionEntry)
_approval = msgspec.json.Decoder(_ApprovalEntry)
_eviction = msgspec.json.Decoder(_EvictionEntry)
_rekeying = msgspec.json.Decoder(_RekeyingEntry)
_level = msgspec.json.Decoder(_LevelEntry)


def decode_identity(kind: str, data: bytes) -> IdentityRecord:
    """The record of an entry of one of KINDS; raises ValueError."""
    match kind:
        case "admission":
            admission = _admission.decode(data).admission
            node_id = bytes.fromhex(admission.node)
            return Admission(node_id, admission.name, _key(node_id, admission.key), admission.server)
        case "approval":
            approval = _approval.decode(data).approval
            node_id = bytes.fromhex(approval.node)
            replaces = bytes.fromhex(approval.replaces)
            return Approval(node_id, approval.name, replaces, _key(node_id, approval.key), approval.server)
        case "eviction":
            eviction = _eviction.decode(data).eviction
            return Eviction(bytes.fromhex(eviction.node), eviction.era, _boxes(eviction.boxes))
        case "rekeying":
            rekeying = _rekeying.decode(data).rekeying
            return KeyReplacement(rekeying.era, _boxes(rekeying.boxes))
        case _:
            level = _level.decode(data).level
            return Level(level.number, level.version)


def encode_identity(record: IdentityRecord) -> Struct:
    """The Struct that is encoded as JSON."""
    match record:
        case Admission(node_id, name, key, server_id):
            return _AdmissionEntry(_Admission(server_id, node_id.hex(), name, _text(key)))
        case Approval(node_id, name, replaces, key, server_id):
            return _ApprovalEntry(_Approval(server_id, node_id.hex(), name, replaces.hex(), _text(key)))
        case Eviction(node_id, era, boxes):
            return _EvictionEntry(_Eviction(node_id.hex(), era, _box_texts(boxes)))
        case KeyReplacement(era, boxes):
            return _RekeyingEntry(_Rekeying(era, _box_texts(boxes)))
        case Level(number, version):
            return _LevelEntry(_Level(number, version))


def _boxes(told: dict[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((bytes.fromhex(each), octets(box, BOX_BYTES)) for each, box in told.items())


def _box_texts(boxes: tuple[tuple[bytes, bytes], ...]) -> dict[str, str]:
    return {each.hex(): base64.b64encode(box).decode() for each, box in boxes}


def _key(node_id: bytes, text: str | None) -> bytes | None:
    if text is None:
        return None
    key = octets(text, PUBLIC_KEY_BYTES)
    if node_id_of(key) != node_id:
        raise ValueError(f"this public key is not the one of node {node_id.hex()}")
    return key


def _text(key: bytes | None) -> str | None:
    return None if key is None else base64.b64encode(key).decode()
