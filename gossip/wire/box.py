"""Keyring updates for one identity only: its identity key opens them, regardless of its gossip keys.

    code 71 | version 1 | label 8 | zeros 4 | ephemeral X25519 public key 32 | ChaCha20-Poly1305(body) | tag 16
    └─────────── clear, and authenticated as associated data ───────────┘
    key     HKDF-SHA256(X25519(ephemeral, recipient), salt = both public keys, info = purpose)
    nonce   zeros: each box has a separate key

Two members with different keyrings may be unable to read each other's datagrams, and neither ring has a key that would
help. But each member has the other's identity key from its signed description. So a node that receives unreadable
datagrams from the address of a member boxes its keyring for that member (`gossip.core.keyring_exchange`).

The recipient's X25519 key is its Ed25519 identity key on the other curve. The Ed25519 public key (x, y) is the
Montgomery point u = (1 + y) / (1 - y) (RFC 7748, section 4.1). The secret scalar is the first half of SHA-512 of the
seed, as in Ed25519 itself (RFC 8032, section 5.1.5). To use one key for both purposes is secure if the KEM derives its
key from a hash of the shared secret, as here: E. Thormarker, "On using the same key pair for Ed25519 and an X25519
based KEM", 2021.

A box does not prove its sender. The keyring update in it has the sender's signature.
"""

from hashlib import sha512
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gossip.core.keyring import KEY_ID_BYTES
from gossip.wire.codec import Code
from gossip.wire.seal import PREFIX_BYTES, TAG_BYTES, prefix

MARK: Final = bytes(KEY_ID_BYTES)
"""Zeros in place of the key id of sealed datagrams."""
_CODE: Final = bytes([Code.KEYRING_UPDATE])
_PUBLIC_BYTES: Final = 32
_HEADER_BYTES: Final = PREFIX_BYTES + KEY_ID_BYTES + _PUBLIC_BYTES
BOX_OVERHEAD_BYTES: Final = _HEADER_BYTES - 1 + TAG_BYTES
_PRIME: Final = 2**255 - 19
_SIGN_BIT: Final = 1 << 255
_NONCE: Final = bytes(12)
_PURPOSE: Final = b"garlic farm, gossip 1: boxed keyring updates"


class BoxError(ValueError):
    """A box that this identity does not open, or a public key that does not allow a box."""


def is_boxed(datagram: bytes, label: bytes) -> bool:
    """Return True if this is a box of the farm of this label, for any identity."""
    return (
        datagram[:1] == _CODE and datagram[: PREFIX_BYTES + KEY_ID_BYTES] == prefix(Code.KEYRING_UPDATE, label) + MARK
    )


def box(plain: bytes, recipient: bytes, label: bytes) -> bytes:
    """Return the box with `plain` (code and body) for the holder of this Ed25519 public key; raise BoxError."""
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(x25519_public(recipient)))
    except ValueError as error:
        raise BoxError("a box cannot be sealed for this public key") from error
    header = prefix(plain[0], label) + MARK + public
    return header + _cipher(shared, public, recipient).encrypt(_NONCE, plain[1:], header)


def unbox(datagram: bytes, identity: Ed25519PrivateKey) -> bytes:
    """Return the plain datagram in a box for this identity; raise only BoxError."""
    if len(datagram) < _HEADER_BYTES + TAG_BYTES:
        raise BoxError("too short for a box")
    header, sealed = datagram[:_HEADER_BYTES], datagram[_HEADER_BYTES:]
    public = header[-_PUBLIC_BYTES:]
    try:
        shared = x25519_private(identity).exchange(X25519PublicKey.from_public_bytes(public))
        cipher = _cipher(shared, public, identity.public_key().public_bytes_raw())
        return header[:1] + cipher.decrypt(_NONCE, sealed, header)
    except (ValueError, InvalidTag) as error:
        raise BoxError("this box is for another identity, or damaged") from error


def x25519_public(public_key: bytes) -> bytes:
    """Return the X25519 form of an Ed25519 public key, without a check that y is on the curve; raise BoxError."""
    if len(public_key) != _PUBLIC_BYTES:
        raise BoxError(f"a public key has {_PUBLIC_BYTES} bytes")
    y = int.from_bytes(public_key, "little") % _SIGN_BIT
    if y >= _PRIME or y == 1:
        raise BoxError("this public key does not have an X25519 form")
    return ((1 + y) * pow(1 - y, -1, _PRIME) % _PRIME).to_bytes(32, "little")


def x25519_private(identity: Ed25519PrivateKey) -> X25519PrivateKey:
    """Return the identity's key on the other curve."""
    return X25519PrivateKey.from_private_bytes(sha512(identity.private_bytes_raw()).digest()[:32])


def _cipher(shared: bytes, ephemeral: bytes, recipient: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), 32, ephemeral + recipient, _PURPOSE).derive(shared))
