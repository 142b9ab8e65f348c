"""Entries about identities as JSON: documented bytes, round trips, and malformed entries, which are foreign."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.core.log.fields import BOX_BYTES, BOXES_LIMIT, ENTRY_LIMIT_BYTES, ApplicationError
from bridge.core.log.records import Admission, Approval, Eviction, Foreign, KeyReplacement, Level
from bridge.wire.log.entries import decode, encode
from gossip.wire.identity import node_id_of
from tests.effort import each_case

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
NODE = bytes(node_id_of(KEY))
OTHER = bytes(range(8))
BOX = bytes(BOX_BYTES)


@each_case(
    "record",
    [
        Admission(NODE, "node-4", KEY, 4),
        Admission(OTHER, "node-4", server_id=5),
        Approval(NODE, "node-4", OTHER, KEY, 4),
        Approval(NODE, "node-4", OTHER, server_id=4),
        Eviction(OTHER, 1, ((NODE, BOX),)),
        Eviction(OTHER, 2**32 - 1, ()),
        KeyReplacement(3, ((NODE, BOX),)),
        Level(2, "0.1.0"),
    ],
)
def test_identity_entry_round_trips(record: Admission | Approval | Eviction | KeyReplacement | Level) -> None:
    assert decode(encode(record)) == record


def test_identity_entry_has_documented_bytes() -> None:
    text = base64.b64encode(KEY).decode()
    assert json.loads(encode(Approval(NODE, "n", OTHER, KEY, 6))) == {
        "approval": {"server": 6, "node": NODE.hex(), "name": "n", "replaces": OTHER.hex(), "key": text}
    }
    box = base64.b64encode(BOX).decode()
    assert json.loads(encode(Eviction(OTHER, 1, ((NODE, BOX),)))) == {
        "eviction": {"node": OTHER.hex(), "era": 1, "boxes": {NODE.hex(): box}}
    }
    assert json.loads(encode(KeyReplacement(2, ((NODE, BOX),)))) == {"rekeying": {"era": 2, "boxes": {NODE.hex(): box}}}
    assert encode(Level(2, "0.1.0")) == b'{"level":{"number":2,"version":"0.1.0"}}'


def test_maximum_number_of_boxes_fits_into_entry() -> None:
    boxes = tuple((number.to_bytes(8, "big"), BOX) for number in range(BOXES_LIMIT))
    assert len(encode(Eviction(OTHER, 2**32 - 1, boxes))) <= ENTRY_LIMIT_BYTES
    with pytest.raises(ApplicationError):
        encode(Eviction(OTHER, 1, (*boxes, (b"one more", BOX))))


@each_case(
    "content",
    [
        {"admission": {"server": 6, "node": OTHER.hex(), "name": "n", "key": base64.b64encode(KEY).decode()}},
        {"admission": {"server": 6, "node": NODE.hex(), "name": "n", "key": "short"}},
        {"admission": {"node": NODE.hex(), "name": "n"}},
        {"admission": {"server": 0, "node": NODE.hex(), "name": "n"}},
        {"admission": {"server": 2**31, "node": NODE.hex(), "name": "n"}},
        {"approval": {"server": 6, "node": NODE.hex(), "name": "n"}},
        {"approval": {"server": 6, "node": NODE.hex(), "name": "-n", "replaces": OTHER.hex()}},
        {"eviction": {"node": NODE.hex(), "era": 0, "boxes": {}}},
        {"rekeying": {"era": 0, "boxes": {}}},
        {"rekeying": {"era": 1}},
        {"rekeying": {"era": 1, "boxes": {NODE.hex(): "AAAA"}}},
        {"eviction": {"node": NODE.hex(), "era": 1, "boxes": {NODE.hex(): "AAAA"}}},
        {"eviction": {"node": NODE.hex(), "era": 1, "boxes": {"unknown": base64.b64encode(BOX).decode()}}},
        {"eviction": {"node": NODE.hex(), "era": 1, "boxes": []}},
        {"level": {"number": 0, "version": "0"}},
        {"level": "info", "message": "an application's own object"},
        {"level": {"number": 2, "version": "0"}, "approval": {}},
    ],
)
def test_malformed_identity_entry_is_foreign(content: dict[str, object]) -> None:
    assert isinstance(decode(json.dumps(content).encode()), Foreign)
