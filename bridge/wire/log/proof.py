"""The proof of an entry: its author, its farm, and the number that the author gave it.

    "proof":"PUBLICKEY.NUMBER.SIGNATURE"}    the last member of an entry that the farm acts on

docs/reference/application-json.md ("The proof of an entry's author") has the parts and the signed bytes. The signature
also covers the key and the number. Each author gives its entries increasing numbers. The state machine accepts each
number of an author once (`bridge.core.membership.authors`), so a copied entry does not have an effect.

A proof has exactly one spelling. A proof is invalid if its base64url has nonzero unused bits, its number has a leading
zero, or a space precedes the brace. It is also invalid if the entry has a second member of that name (also an escaped
one). Otherwise one signed entry could enter the log in two spellings, and the signed text would depend on a reader's
parser.

A key of small order is refused: one signature of it verifies for every text, so any client could write in its name.

`proven` is a function of the bytes alone, so all servers agree on it, and it never raises. Sources: RFC 8032 (Ed25519),
RFC 4648 section 5 (base64url).
"""

import base64
import re
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from bridge.core.formation.founding import CLUSTER_ID_BYTES
from bridge.core.log.fields import BRACKETS_LIMIT, ENTRY_LIMIT_BYTES
from consensus.protocols.garlic_farm import is_of_small_order
from gossip import NodeId
from gossip.wire import node_id_of

PURPOSE: Final = b"garlic farm entry 1\x00"
"""Prefix of the signed bytes, so that a proof cannot serve as another signature of an identity, nor the reverse."""
NUMBER_LIMIT: Final = 2**53
"""Numbers are below this limit, because other JSON readers do not represent larger integers exactly."""
MEMBER: Final = "proof"
SIGNATURE_CHARACTERS: Final = 86
_TAIL_BEGIN: Final = b',"proof":"'
_TAIL = re.compile(rb',"proof":"([A-Za-z0-9_-]{43})\.([1-9][0-9]{0,15})\.([A-Za-z0-9_-]{86})"\}\Z')
_TAIL_LIMIT_BYTES: Final = 159
"""Length of the longest text that `_TAIL` matches. The search is limited to this part at the end of an entry."""
_POINT: Final = -SIGNATURE_CHARACTERS - 3
"""Position of the dot before the signature, counted from the end."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Proof(Struct, frozen=True):
    """A verified proof: `author` wrote this entry, with its own number `number`."""

    author: NodeId
    public_key: bytes
    number: int


def ends_like_proof(data: bytes) -> bool:
    """Return True if the last member looks like a proof; otherwise no verification is needed."""
    return _tail(data) is not None


def proven(data: bytes, cluster_id: bytes) -> Proof | None:
    """Return the proof at the end of an entry; None without a proof, or if it is not valid for this farm."""
    tail = _tail(data)
    if tail is None or not _is_object_without_proof(data[: tail[0]] + b"}"):
        return None
    _, key_text, number_text, signature_text = tail
    public_key, signature = _octets(key_text, 32), _octets(signature_text, 64)
    number = int(number_text)
    if public_key is None or signature is None or number >= NUMBER_LIMIT or is_of_small_order(public_key):
        return None
    try:
        signed = _signed_bytes(data[: -SIGNATURE_CHARACTERS - 2], cluster_id)
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return None
    return Proof(node_id_of(public_key), public_key, number)


def sign_entry(entry: bytes, key: Ed25519PrivateKey, cluster_id: bytes, number: int) -> bytes:
    """Return the entry with a proof by `key` after its last member; all other bytes stay unchanged.

    Raise ValueError for an unreadable entry, an entry without members or with a proof, and a number out of range.
    """
    if len(cluster_id) != CLUSTER_ID_BYTES:
        raise ValueError(f"a cluster id has {CLUSTER_ID_BYTES} bytes, not {len(cluster_id)}")
    if not 1 <= number < NUMBER_LIMIT:
        raise ValueError(f"the number of an entry must be in 1 .. 2^53 - 1, and {number} is not")
    if not entry.endswith(b"}") or not _is_object_without_proof(entry):
        raise ValueError("only a JSON object that has a member, no member `proof`, and ends in its brace can be signed")
    public_key = _text(key.public_key().public_bytes_raw())
    unsigned = entry[:-1] + b',"proof":"' + public_key + b".%d." % number
    data = unsigned + _text(key.sign(_signed_bytes(unsigned, cluster_id))) + b'"}'
    if len(data) > ENTRY_LIMIT_BYTES:
        raise ValueError(f"with its proof the entry has {len(data)} bytes, the limit is {ENTRY_LIMIT_BYTES}")
    return data


def _signed_bytes(unsigned: bytes, cluster_id: bytes) -> bytes:
    return PURPOSE + cluster_id + unsigned


def _tail(data: bytes) -> tuple[int, bytes, bytes, bytes] | None:
    # These few bytes exclude nearly all entries without a proof; only other entries are searched.
    if not data.endswith(b'"}') or data[_POINT : _POINT + 1] != b"." or len(data) > ENTRY_LIMIT_BYTES:
        return None
    start = max(0, len(data) - _TAIL_LIMIT_BYTES)
    if data.find(_TAIL_BEGIN, start) < 0:
        return None
    found = _TAIL.search(data, start)
    return None if found is None else (found.start(), found[1], found[2], found[3])


def _is_object_without_proof(entry: bytes) -> bool:
    if entry.count(b"[") + entry.count(b"{") > BRACKETS_LIMIT:
        return False
    try:
        members = _members.decode(entry)
    except ValueError:
        return False
    return bool(members) and MEMBER not in members


def _octets(text: bytes, size: int) -> bytes | None:
    """Return the bytes of a canonical base64url text without padding."""
    value = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    return value if len(value) == size and _text(value) == text else None


def _text(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")
