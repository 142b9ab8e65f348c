"""A gossip key sealed for one node, so that no other holder of the box can open it.

    key box    ephemeral X25519 public key 32 | ChaCha20-Poly1305(era 4, used at 8, gossip key 32) | tag 16
    key        HKDF-SHA256(X25519(ephemeral, recipient), salt = both public keys, info = purpose and farm label)
    nonce      zeros: each box has a separate key

The recipient's X25519 key is its Ed25519 identity key, converted (`gossip.wire.box`). A separate key pair would have to
be generated, stored, distributed, and bound to the identity key by a signature.

The time of use is chosen by the author: it may be any 64 bits, and `gossip.Keyring.rekeyed` replaces it if it is out of
range. If the recipient refused the box because of the time, it would lack the farm's key.

A box does not authenticate its author, since all members know all public keys. In the log, the signature of the entry
authenticates the author. For a node without a log, an `Offer` carries the box with a member's signature.
"""

import os
import struct
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from bridge.core.log.fields import BOX_BYTES
from gossip import ERA_LIMIT, KEY_BYTES
from gossip.wire import PUBLIC_KEY_BYTES, node_id_of, x25519_private, x25519_public

_CONTENT: Final = struct.Struct(f">IQ{KEY_BYTES}s")
_USED_AT_LIMIT: Final = 2**64
_NONCE: Final = bytes(12)
_PURPOSE: Final = b"garlic farm, key box 1: "
_OFFER: Final = b"garlic farm, key offer 1\x00"
_SIGNATURE_BYTES: Final = 64
OFFER_BYTES: Final = BOX_BYTES + PUBLIC_KEY_BYTES + _SIGNATURE_BYTES


class KeyBoxError(ValueError):
    """A box or an offer that cannot be made, is for another node, is damaged, or has an invalid signature."""


class EraKey(Struct, frozen=True):
    """The key that begins an era of the farm's gossip keys."""

    era: int
    used_at: int
    """Lamport time of the choice of this key as the primary. A value from a box is unchecked."""
    key: bytes

    def __repr__(self) -> str:
        return f"EraKey(era={self.era}, used_at={self.used_at})"


def seal_key(content: EraKey, recipient: bytes, label: bytes) -> bytes:
    """Return the box for the node with this Ed25519 public key; raise KeyBoxError if it cannot be made."""
    if not 0 < content.era < ERA_LIMIT or not 0 <= content.used_at < _USED_AT_LIMIT or len(content.key) != KEY_BYTES:
        raise KeyBoxError(f"{content} cannot be in a box: eras are 1 to {ERA_LIMIT - 1}, and times of use have 64 bits")
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(x25519_public(recipient)))
    except ValueError as error:
        raise KeyBoxError("this public key cannot seal a box") from error
    plain = _CONTENT.pack(content.era, content.used_at, content.key)
    return public + ChaCha20Poly1305(_derived(shared, public, recipient, label)).encrypt(_NONCE, plain, label)


def open_key(box: bytes, identity: Ed25519PrivateKey, label: bytes) -> EraKey:
    """Open a box for this node; raise KeyBoxError only."""
    if len(box) != BOX_BYTES:
        raise KeyBoxError(f"a key box has {BOX_BYTES} bytes, not {len(box)}")
    public, sealed = box[:32], box[32:]
    try:
        shared = x25519_private(identity).exchange(X25519PublicKey.from_public_bytes(public))
        derived = _derived(shared, public, identity.public_key().public_bytes_raw(), label)
        plain = ChaCha20Poly1305(derived).decrypt(_NONCE, sealed, label)
    except (ValueError, InvalidTag) as error:
        raise KeyBoxError("this key box is sealed for another node, or damaged") from error
    era, used_at, key = _CONTENT.unpack(plain)
    if not 0 < era < ERA_LIMIT:
        raise KeyBoxError(f"no era has the number {era}")
    return EraKey(era, used_at, key)


class Offer(Struct, frozen=True):
    """A box and the NodeId of the member that signed it."""

    box: bytes
    sponsor: bytes
    """NodeId."""


def sign_offer(box: bytes, recipient: bytes, label: bytes, sponsor: Ed25519PrivateKey) -> bytes:
    """Return the box with this node's signature for the NodeId `recipient`.

    By the signature, this node confirms that the box holds the farm's present key.
    """
    return box + sponsor.public_key().public_bytes_raw() + sponsor.sign(_OFFER + label + recipient + box)


def read_offer(data: bytes, recipient: bytes, label: bytes) -> Offer:
    """Return a signed offer for `recipient`; raise KeyBoxError only."""
    if len(data) != OFFER_BYTES:
        raise KeyBoxError(f"an offer has {OFFER_BYTES} bytes, not {len(data)}")
    box, public, signature = data[:BOX_BYTES], data[BOX_BYTES:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _OFFER + label + recipient + box)
    except (InvalidSignature, ValueError) as error:
        raise KeyBoxError("the signature of the offer is not its author's") from error
    return Offer(box, node_id_of(public))


def _derived(shared: bytes, ephemeral: bytes, recipient: bytes, label: bytes) -> bytes:
    return HKDF(SHA256(), 32, ephemeral + recipient, _PURPOSE + label).derive(shared)


def new_key() -> bytes:
    """Return a random gossip key."""
    return os.urandom(KEY_BYTES)
