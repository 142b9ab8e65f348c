"""Proof of identity: an Ed25519 signature of each side over this one handshake.

    request 2 ──▶ X-Garlic-Proof: 1 ROLE PUBLICKEY SIGNATURE       signed by the connecting side
    101       ◀── X-Garlic-Proof: 1 server PUBLICKEY SIGNATURE     signed by the accepting side

Every holder of the farm's key file knows the password. So a Raft id counts only with a signature by the identity that
the farm has bound to that id. The signature covers both ids and the role, the cluster, both nonces with their count,
the extensions, and the *channel*. The channel is the hash of the server's certificate, or the dialed I2P name. An
attacker that relays a challenge has another certificate or name, so the relayed proof is invalid. A recorded proof is
also invalid, because a nonce with its count is accepted only once.

    signed = "garlic farm handshake 1" 0 │ then each field: length 2 │ bytes
    fields   direction, role, own id, the other's id, cluster id, server nonce, client nonce, nc, channel,
             offered extensions, chosen extension, lease, SHA-256 of the introductions

Ids are decimal. A missing value is an empty field. The hash covers the introductions joined by commas. Admissions are
not signed here: each has the signature of the admitting member. The proof is separate from TLS, because Python's `ssl`
cannot check a client's certificate by a function or export keying material. It also works without TLS.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from enum import Enum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

from consensus.protocols.garlic_farm.wire.errors import malformed

PROOF_HEADER = "X-Garlic-Proof"
VERSION = "1"
_CONTEXT = b"garlic farm handshake 1\x00"
_LENGTH_BYTES = 2
_FIELD_BYTES_MAX = 2 ** (8 * _LENGTH_BYTES) - 1
_SMALL_ORDER_KEYS = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""The points of an order that divides 8, in each encoding that OpenSSL reads, with the sign bit cleared."""
_PROOF = re.compile(rf"{VERSION} (server|client) ([A-Za-z0-9_-]{{43}}) ([A-Za-z0-9_-]{{86}})")


class ConnectionRole(Enum):
    """Purpose of a connection: a server may send every message, a client only the requests of clients."""

    SERVER = "server"
    CLIENT = "client"


class ProofDirection(Enum):
    """The signed half of the handshake. A proof of one half is invalid for the other."""

    REQUEST = "request"
    ANSWER = "answer"


class Proof(Struct, frozen=True):
    """The contents of the header: the holder of this key signed the handshake."""

    role: ConnectionRole
    public_key: bytes
    signature: bytes

    def header(self) -> str:
        """Return the value of the header."""
        return f"{VERSION} {self.role.value} {_text(self.public_key)} {_text(self.signature)}"

    def holds(self, signed: bytes) -> bool:
        """Return True if the key has signed exactly these bytes of a handshake (`signed_bytes`)."""
        if is_of_small_order(self.public_key):
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(self.signature, signed)
        except (InvalidSignature, ValueError):
            return False
        return True


def is_of_small_order(public_key: bytes) -> bool:
    """Return True if this Ed25519 key (32 bytes) has a small order: with it one signature is valid for every text."""
    return public_key[:31] + bytes([public_key[31] & 0x7F]) in _SMALL_ORDER_KEYS


def tls_channel(certificate_sha256: bytes) -> str:
    """Return the channel of a TLS connection to the server with this certificate."""
    return f"tls {certificate_sha256.hex()}"


def i2p_channel(name: str) -> str:
    """Return the channel of a connection through I2P to this name."""
    return f"i2p {name.lower()}"


def signed_bytes(fields: Iterable[str | int | None], introductions: Iterable[str]) -> bytes:
    """Return the bytes that a proof signs: `fields` in the order above, and the introductions."""
    parts = ["" if field is None else str(field) for field in fields]
    joined = [*(part.encode() for part in parts), hashlib.sha256(",".join(introductions).encode()).digest()]
    if any(len(part) > _FIELD_BYTES_MAX for part in joined):
        raise malformed(f"a field of a handshake has more than {_FIELD_BYTES_MAX} bytes")
    return _CONTEXT + b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in joined)


def parse_proof(header: str) -> Proof:
    """Return the proof in a header."""
    found = _PROOF.fullmatch(header)
    if found is None:
        raise malformed(f"{PROOF_HEADER} is not `{VERSION} ROLE PUBLICKEY SIGNATURE`")
    return Proof(ConnectionRole(found[1]), _raw(found[2]), _raw(found[3]))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _raw(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise malformed(f"{PROOF_HEADER} is not base64url") from error
    if _text(data) != text:
        # The unused bits after the last byte must be zero, so that a proof has only one spelling.
        raise malformed(f"{PROOF_HEADER} is not in the one base64url form of its bytes")
    return data
