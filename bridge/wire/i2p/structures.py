"""The I2P structures that a farm handles: destinations, their texts and addresses, and mappings.

A destination is 384 bytes of key fields followed by a certificate; the signing key lies right-justified in the last 128
of them. An Ed25519 destination has 391 bytes (I2P common structures):

    encryption field 256 │ padding 96 │ signing key 32 │ 05 0004 0007 0000

Its names:

    hash      SHA-256 of the 391 bytes            in a Meta LeaseSet2
    base64    with `-~` instead of `+/`           in configuration files and the application JSON
    address   base32(hash) + ".b32.i2p"           typed by people

Reading is strict: one destination has exactly one text, so texts can be compared. With a lenient reader, two spellings
of one destination would count as two leaves.
"""

import base64
import binascii
import re
from hashlib import sha256
from typing import Final

from msgspec import Struct

HASH_BYTES: Final = 32
PADDING_SEED_BYTES: Final = 32

ED25519: Final = 7
RED_DSA: Final = 11

SIGNATURE_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("DSA-SHA1", 128, 40),
    1: ("ECDSA-SHA256-P256", 64, 64),
    2: ("ECDSA-SHA384-P384", 96, 96),
    3: ("ECDSA-SHA512-P521", 132, 132),
    4: ("RSA-SHA256-2048", 256, 256),
    5: ("RSA-SHA384-3072", 384, 384),
    6: ("RSA-SHA512-4096", 512, 512),
    ED25519: ("EdDSA-SHA512-Ed25519", 32, 64),
    8: ("EdDSA-SHA512-Ed25519ph", 32, 64),
    RED_DSA: ("RedDSA-SHA512-Ed25519", 32, 64),
}
"""Signature type → (name, bytes of the public key, bytes of a signature)."""

ADDRESS_SUFFIX: Final = ".b32.i2p"

_KEY_FIELDS_BYTES: Final = 384
_SIGNING_FIELD_BYTES: Final = 128
_CERTIFICATE_HEADER_BYTES: Final = 3
DESTINATION_HEAD_BYTES: Final = _KEY_FIELDS_BYTES + _CERTIFICATE_HEADER_BYTES
"""The first bytes of a destination, which show its length."""
_NULL_CERTIFICATE: Final = 0
_KEY_CERTIFICATE: Final = 5
_CERTIFICATE_LIMIT_BYTES: Final = 1024
_ED25519_CERTIFICATE: Final = bytes.fromhex("05000400070000")
_MAPPING_LIMIT_BYTES: Final = 65_535
_STRING_LIMIT_BYTES: Final = 255
_BASE64 = re.compile(r"[A-Za-z0-9~-]*={0,2}")
_BASE32_HASH = re.compile(r"[a-z2-7]{52}")


class I2pError(ValueError):
    """The bytes or the text are not the expected I2P structure."""


class Destination(Struct, frozen=True):
    """A destination in its form on the wire, with its signing key."""

    encoded: bytes
    signature_type: int
    signing_key: bytes

    @property
    def hash(self) -> bytes:
        """SHA-256 of the destination: its name in the network."""
        return sha256(self.encoded).digest()

    @property
    def base64(self) -> str:
        """The destination as text, in I2P's alphabet."""
        return base64_encode(self.encoded)

    @property
    def address(self) -> str:
        """The `.b32.i2p` address."""
        return address_of(self.hash)


def ed25519_destination(signing_key: bytes, padding_seed: bytes) -> Destination:
    """Build a destination around an Ed25519 public key.

    The unused fields repeat 32 random bytes, as I2P recommends: the destination stays unique, and compresses well.
    """
    if len(signing_key) != SIGNATURE_TYPES[ED25519][1]:
        raise I2pError(f"an Ed25519 public key has 32 bytes, not {len(signing_key)}")
    if len(padding_seed) != PADDING_SEED_BYTES:
        raise I2pError(f"the padding seed has {PADDING_SEED_BYTES} bytes, not {len(padding_seed)}")
    unused_bytes = _KEY_FIELDS_BYTES - len(signing_key)
    padding = padding_seed * (unused_bytes // PADDING_SEED_BYTES)
    return Destination(padding + signing_key + _ED25519_CERTIFICATE, ED25519, signing_key)


def destination_length(head: bytes) -> int:
    """Return the length of the destination that begins with these `DESTINATION_HEAD_BYTES`."""
    if len(head) < DESTINATION_HEAD_BYTES:
        raise I2pError(f"a destination has at least {DESTINATION_HEAD_BYTES} bytes, only {len(head)} are there")
    return DESTINATION_HEAD_BYTES + int.from_bytes(head[_KEY_FIELDS_BYTES + 1 : DESTINATION_HEAD_BYTES], "big")


def read_destination(data: bytes, offset: int = 0) -> tuple[Destination, int]:
    """Read the destination that begins at `offset`; return it and the offset after it."""
    certificate_at = offset + _KEY_FIELDS_BYTES
    payload_at = certificate_at + _CERTIFICATE_HEADER_BYTES
    end = offset + destination_length(data[offset:payload_at])
    kind, size = data[certificate_at], end - payload_at
    if size > _CERTIFICATE_LIMIT_BYTES or len(data) < end:
        raise I2pError(f"the destination's certificate claims {size} bytes that are not there or too many")
    signing_field = data[certificate_at - _SIGNING_FIELD_BYTES : certificate_at]
    payload = data[payload_at:end]
    if kind == _KEY_CERTIFICATE:
        signature_type, signing_key = _signing_key(payload, signing_field)
    elif kind == _NULL_CERTIFICATE and not payload:
        signature_type, signing_key = 0, signing_field
    else:
        raise I2pError(f"certificate type {kind} with {size} bytes is not used by destinations")
    return Destination(data[offset:end], signature_type, signing_key), end


def _signing_key(payload: bytes, signing_field: bytes) -> tuple[int, bytes]:
    header_bytes = 4
    if len(payload) < header_bytes:
        raise I2pError(f"a key certificate has at least 4 bytes, not {len(payload)}")
    signature_type = int.from_bytes(payload[:2], "big")
    _, key_bytes, _ = SIGNATURE_TYPES.get(signature_type, ("unknown", 0, 0))
    excess_bytes = max(0, key_bytes - _SIGNING_FIELD_BYTES)
    if len(payload) < header_bytes + excess_bytes:
        raise I2pError(f"the key certificate lacks part of a key of signature type {signature_type}")
    if excess_bytes:
        return signature_type, signing_field + payload[header_bytes : header_bytes + excess_bytes]
    return signature_type, signing_field[_SIGNING_FIELD_BYTES - key_bytes :]


def destination_from_bytes(data: bytes) -> Destination:
    """Parse a destination that must fill `data` exactly."""
    destination, end = read_destination(data)
    if end != len(data):
        raise I2pError(f"{len(data) - end} bytes too many after the destination")
    return destination


def destination_from_base64(text: str) -> Destination:
    """Parse a destination from its text, as configuration files carry it."""
    limit = 4 * (_KEY_FIELDS_BYTES + _CERTIFICATE_HEADER_BYTES + _CERTIFICATE_LIMIT_BYTES)
    if len(text) > limit:
        raise I2pError(f"a destination's text has fewer than {limit} characters, not {len(text)}")
    return destination_from_bytes(base64_decode(text))


def base64_encode(data: bytes) -> str:
    """Return base64 in I2P's alphabet."""
    return base64.b64encode(data, altchars=b"-~").decode("ascii")


def base64_decode(text: str) -> bytes:
    """Return the bytes of a text; strict inverse of `base64_encode`."""
    if _BASE64.fullmatch(text) is None:
        raise I2pError("not I2P base64 (letters, digits, `-`, `~`, then `=` as filling)")
    try:
        data = base64.b64decode(text, altchars=b"-~", validate=True)
    except binascii.Error as error:
        raise I2pError(f"not I2P base64: {error}") from None
    if base64_encode(data) != text:
        raise I2pError("not I2P base64: the last character has nonzero unused bits")
    return data


def address_of(destination_hash: bytes) -> str:
    """Return the `.b32.i2p` address of a destination's hash."""
    return base64.b32encode(destination_hash).decode("ascii").rstrip("=").lower() + ADDRESS_SUFFIX


def hash_of_address(text: str) -> bytes:
    """Return the hash in an address, in any case and with or without `.b32.i2p`; strict inverse of `address_of`."""
    name = text.lower().removesuffix(ADDRESS_SUFFIX)
    if _BASE32_HASH.fullmatch(name) is None:
        raise I2pError(f"{text[:64]!r} is not an I2P address (52 letters and digits, then {ADDRESS_SUFFIX})")
    destination_hash = base64.b32decode(name.upper() + "====")
    if address_of(destination_hash) != name + ADDRESS_SUFFIX:
        raise I2pError(f"{text[:64]!r} is not an I2P address: its last letter has nonzero unused bits")
    return destination_hash


def encode_mapping(pairs: dict[str, str]) -> bytes:
    """Encode a Mapping, keys sorted, so that equal mappings have equal bytes and signatures."""
    body = b"".join(
        _encode_string(key) + b"=" + _encode_string(pairs[key]) + b";" for key in sorted(pairs, key=_java_order)
    )
    if len(body) > _MAPPING_LIMIT_BYTES:
        raise I2pError(f"a mapping has at most {_MAPPING_LIMIT_BYTES} bytes, not {len(body)}")
    return len(body).to_bytes(2, "big") + body


def read_mapping(data: bytes, offset: int = 0) -> tuple[dict[str, str], int]:
    """Read the Mapping that begins at `offset`; return it and the offset after it.

    Unsorted or repeated keys are refused: routers encode a mapping again before they verify, so a signature over
    another order is never valid.
    """
    if len(data) < offset + 2:
        raise I2pError("the bytes end before the mapping's size")
    position = offset + 2
    end = position + int.from_bytes(data[offset:position], "big")
    if len(data) < end:
        raise I2pError("the mapping claims more bytes than are there")
    pairs: dict[str, str] = {}
    while position < end:
        key, position = _read_string(data, position, end, b"=")
        value, position = _read_string(data, position, end, b";")
        pairs[key] = value
    if encode_mapping(pairs) != data[offset:end]:
        raise I2pError("the mapping's keys are not sorted or repeat")
    return pairs, end


def _java_order(key: str) -> bytes:
    # Routers sort by UTF-16 code units. This order differs from code points beyond the basic plane.
    return key.encode("utf-16-be", "surrogatepass")


def _encode_string(text: str) -> bytes:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise I2pError("a mapping's text is not valid Unicode") from None
    if len(data) > _STRING_LIMIT_BYTES:
        raise I2pError(f"a mapping's text has at most {_STRING_LIMIT_BYTES} bytes, not {len(data)}")
    return bytes([len(data)]) + data


def _read_string(data: bytes, position: int, end: int, closing: bytes) -> tuple[str, int]:
    text_at = position + 1
    closing_at = text_at + data[position]
    if closing_at + 1 > end or data[closing_at : closing_at + 1] != closing:
        raise I2pError(f"a mapping's text is not closed by {closing.decode()!r}")
    if closing == b"=" and closing_at + 1 == end:
        raise I2pError("a key of a mapping lacks its value")
    try:
        return data[text_at:closing_at].decode("utf-8"), closing_at + 1
    except UnicodeDecodeError:
        raise I2pError("a mapping's text is not UTF-8") from None
