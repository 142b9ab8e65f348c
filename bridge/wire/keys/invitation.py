"""The token of an invitation, and the messages of its exchange (docs/reference/invitations.md).

    token      version | addresses of the inviting node | SHA-256 of its certificate | secret | checksum, in base32
    exchange   TLS, whose certificate has that SHA-256:
              node   ──▶ Hello(nonce)
              joiner ──▶ JoinRequest(secret, name, public key, signature over certificate, nonce, secret and name)
              node   ──▶ Granted(farm key, settings, seeds, signing keys) or a refusal

The token does not contain the farm key. It only proves to one node, until its uses are spent, that an operator has
invited its holder. The signature binds a use to one identity, and the nonce makes a recorded request worthless.

Each message is JSON after its length in four bytes. Every decoder raises `InvitationError` only.
"""

import base64
import binascii
import hashlib
import re
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta, Struct

from bridge.core.log.fields import NAME
from bridge.wire.keys.text import other_version
from consensus import endpoint_text

VERSION: Final = 1
SECRET_BYTES: Final = 16
NONCE_BYTES: Final = 32
FINGERPRINT_BYTES: Final = 32
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
ADDRESSES_MAX: Final = 4
TOKEN_LIMIT_BYTES: Final = 112
"""Maximum size of a token: room for four addresses of IPv4, or three of IPv6."""
TOKEN_LIMIT_CHARACTERS: Final = 256
LENGTH_BYTES: Final = 4
REQUEST_LIMIT_BYTES: Final = 2_048
REPLY_LIMIT_BYTES: Final = 256 * 1024
_CHECKSUM_BYTES: Final = 4
_PORT_BYTES: Final = 2
_GROUP: Final = 8
"""Number of characters between two hyphens of a token."""
_SECRET_DOMAIN: Final = b"garlicfarm invitation 1 secret"
_TOKEN_DOMAIN: Final = b"garlicfarm invitation 1 token"
_REQUEST_DOMAIN: Final = b"garlicfarm invitation 1 request"
_COPY_AGAIN: Final = "copy the whole token again, from the line that begins with `garlicfarm join`"


class InvitationError(ValueError):
    """The token or the message is not valid; the text contains the reason and never a secret."""


class InviterAddress(Struct, frozen=True):
    """An address of the inviting node."""

    host: str
    port: int

    def __str__(self) -> str:
        return endpoint_text(self.host, self.port)


class Token(Struct, frozen=True):
    """The content of a token. `str` returns its text, which is secret until its uses are spent."""

    places: tuple[InviterAddress, ...]
    fingerprint: bytes
    """SHA-256 of the certificate of the inviting node."""
    secret: bytes

    def __post_init__(self) -> None:
        if not 1 <= len(self.places) <= ADDRESSES_MAX:
            raise InvitationError(f"a token names 1 to {ADDRESSES_MAX} addresses, not {len(self.places)}")
        if len(self.fingerprint) != FINGERPRINT_BYTES or len(self.secret) != SECRET_BYTES:
            raise InvitationError("a token has a secret of 16 bytes and a fingerprint of 32")
        if len(self._packed()) > TOKEN_LIMIT_BYTES:
            raise InvitationError(f"a token has at most {TOKEN_LIMIT_BYTES} bytes: name fewer addresses")

    def __repr__(self) -> str:
        return f"Token({', '.join(map(str, self.places))})"

    def __str__(self) -> str:
        text = base64.b32encode(self._packed()).decode().rstrip("=").lower()
        return "-".join(text[start : start + _GROUP] for start in range(0, len(text), _GROUP))

    def _packed(self) -> bytes:
        places = b"".join(map(_packed_address, self.places))
        body = bytes([VERSION, len(self.places)]) + places + self.fingerprint + self.secret
        return body + _checksum(body)


def parse_token(text: str) -> Token:
    """Read a token; letters may be in either case, and hyphens and white space do not count."""
    found = re.sub(r"[-\s]", "", text[: TOKEN_LIMIT_CHARACTERS + 1]).upper()
    if not found:
        raise InvitationError(f"the token is empty: {_COPY_AGAIN}")
    if len(text) > TOKEN_LIMIT_CHARACTERS:
        raise InvitationError(f"a token has at most {TOKEN_LIMIT_CHARACTERS} characters: {_COPY_AGAIN}")
    try:
        packed = base64.b32decode(found + "=" * (-len(found) % 8))
    except (binascii.Error, ValueError):
        raise InvitationError(f"this is not a token, or a part of it is missing: {_COPY_AGAIN}") from None
    body, checksum = packed[:-_CHECKSUM_BYTES], packed[-_CHECKSUM_BYTES:]
    if len(packed) > TOKEN_LIMIT_BYTES or len(body) < 2 or checksum != _checksum(body):  # noqa: PLR2004 - two counts
        raise InvitationError(f"the token was changed or cut: {_COPY_AGAIN}")
    if body[0] != VERSION:
        raise InvitationError(f"the token {other_version(body[0], VERSION)}")
    places, rest = _addresses_in(body[2:], body[1])
    token = Token(places, rest[:FINGERPRINT_BYTES], rest[FINGERPRINT_BYTES:])
    if str(token).replace("-", "").upper() != found:
        raise InvitationError(f"the token was changed or cut: {_COPY_AGAIN}")
    return token


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(_TOKEN_DOMAIN + body).digest()[:_CHECKSUM_BYTES]


def _packed_address(place: InviterAddress) -> bytes:
    try:
        address = ip_address(place.host)
        return bytes([address.version]) + address.packed + place.port.to_bytes(_PORT_BYTES, "big")
    except (ValueError, OverflowError):
        raise InvitationError(f"{place} is not a numeric address with a port") from None


def _addresses_in(data: bytes, count: int) -> tuple[tuple[InviterAddress, ...], bytes]:
    places = []
    for _ in range(count):
        size = {4: 4, 6: 16}.get(data[0] if data else 0)
        if size is None or len(data) < 1 + size + _PORT_BYTES:
            raise InvitationError(f"the token names an address of an unknown kind: {_COPY_AGAIN}")
        raw = data[1 : 1 + size]
        address = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)  # noqa: PLR2004 - the bytes of IPv4
        places.append(InviterAddress(str(address), int.from_bytes(data[1 + size : 1 + size + _PORT_BYTES], "big")))
        data = data[1 + size + _PORT_BYTES :]
    return tuple(places), data


def secret_hash(secret: bytes) -> bytes:
    """Return the hash that the inviting node stores. The secret is random, so a plain hash suffices."""
    return hashlib.sha256(_SECRET_DOMAIN + secret).digest()


# -- the exchange ------------------------------------------------------------------------------------------------------


class RefusalCode(Enum):
    """The reason why a node does not redeem a token."""

    UNKNOWN = "unknown"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"
    MALFORMED = "malformed"
    UNPROVEN = "unproven"
    NAME_TAKEN = "name-taken"
    FAILED = "failed"


class _Message(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A message, or a part of one; its repr hides all values, because some are secret."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Hello(_Message, frozen=True):
    """The first message, of the inviting node."""

    version: int
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class JoinRequest(_Message, frozen=True):
    """The message of the joining node."""

    version: int
    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    name: Annotated[str, Meta(pattern=f"^(?:{NAME})\\Z")]
    public_key: Annotated[bytes, Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class Granted(_Message, frozen=True):
    """The files and settings for a new node. Secret."""

    bundle: str
    """The text of `garlicfarm config export`: the farm key, and the settings that nodes share."""
    inviter: str
    """The name of the inviting node."""
    signing_keys: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    """Texts of signing key files for this node alone, at most one for each master."""


class Refusal(_Message, frozen=True):
    """The reason why the inviting node does not redeem the token."""

    code: RefusalCode
    text: Annotated[str, Meta(max_length=500)]


class Reply(_Message, frozen=True):
    """The last message: the grant or the refusal."""

    granted: Granted | None = None
    refusal: Refusal | None = None


M = TypeVar("M", bound=_Message)


def encode_message(message: _Message) -> bytes:
    """Return the bytes of a message, with its length."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(head: bytes, limit: int) -> int:
    """Return the length of a message from its first bytes."""
    size = int.from_bytes(head, "big")
    if len(head) != LENGTH_BYTES or not 0 < size <= limit:
        raise InvitationError(f"a message has 1 to {limit} bytes, not {size}")
    return size


def decode_message(body: bytes, kind: type[M]) -> M:
    """Read the body of a message."""
    try:
        found: M = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        # The reason quotes values, which may be secret.
        raise InvitationError(f"this is not a {kind.__name__.lower()} of an invitation") from None
    version = getattr(found, "version", VERSION)
    if version != VERSION:
        raise InvitationError(
            f"the other node uses version {version} of invitations, this one {VERSION}: update the older node"
        )
    if isinstance(found, Reply) and (found.granted is None) is (found.refusal is None):
        raise InvitationError("a reply has either a grant or a refusal")
    return found


def signed_bytes(fingerprint: bytes, nonce: bytes, secret: bytes, name: str) -> bytes:
    """Return the bytes that a joining node signs; the parts before the name have fixed lengths."""
    return _REQUEST_DOMAIN + fingerprint + nonce + secret_hash(secret) + name.encode()


def is_proven(request: JoinRequest, fingerprint: bytes, nonce: bytes) -> bool:
    """Return True if the holder of the identity's key has signed the request for this connection."""
    signed = signed_bytes(fingerprint, nonce, request.secret, request.name)
    try:
        Ed25519PublicKey.from_public_bytes(request.public_key).verify(request.signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True
