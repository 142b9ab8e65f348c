"""A destination's private key file as I2P routers keep it (`eepPriv.dat`, i2pd's `keys.dat`), read as a master key.

    destination │ encryption private key │ signing private key │ [offline section]

The encryption key belongs to protocols that a farm does not use, so it is skipped. Its length follows from the type in
the destination's certificate. A signing key of zeros means that the file holds a transient key and an offline section
instead (I2P proposal 123). A transient key cannot sign further transient keys, so such a file is refused.

An existing multihomed service has an address that its users know. With this service's key file, the farm uses the same
address.

SAM's private key text is the same content in base64. So a SAM session can use a destination made here. The encryption
key in the text is zeros, because a session with X25519 (`i2cp.leaseSetEncType=4`) makes its own encryption key.
"""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.wire.i2p.destination_keys import DestinationKeyError, MasterKey
from bridge.wire.i2p.field_reader import FieldReader
from bridge.wire.i2p.structures import (
    ED25519,
    SIGNATURE_TYPES,
    Destination,
    I2pError,
    base64_decode,
    base64_encode,
    read_destination,
)

FILE_LIMIT_BYTES: Final = 8_192
_ENCRYPTION_TYPE_AT: Final = 389
_ENCRYPTION_KEY_BYTES: Final = {0: 256, 4: 32}
"""Encryption type in the certificate (0: ElGamal, 4: X25519) → length of its private key."""
_SIGNING_KEY_BYTES: Final = 32


def parse_i2p_key_file(data: bytes) -> MasterKey:
    """Read the file's content; raises `DestinationKeyError`, which never holds key material."""
    if len(data) > FILE_LIMIT_BYTES:
        raise DestinationKeyError(f"it has {len(data)} bytes, a destination's key file at most {FILE_LIMIT_BYTES}")
    try:
        return _parse(FieldReader(data))
    except I2pError as error:
        raise DestinationKeyError(f"it is not a private key file of an I2P destination: {error}") from None


def sam_private_key(key: MasterKey) -> str:
    """Return SAM's private key text of a destination, for a session with X25519."""
    encryption_key = bytes(_ENCRYPTION_KEY_BYTES[_encryption_type(key.destination)])
    return base64_encode(key.destination.encoded + encryption_key + key.private_key.private_bytes_raw())


def parse_sam_private_key(text: str) -> MasterKey:
    """Read SAM's private key text of an Ed25519 destination; raises `DestinationKeyError`."""
    return parse_i2p_key_file(_sam_bytes(text))


def destination_of_sam_key(text: str) -> Destination:
    """Return the destination in SAM's private key text, of any signature type; raises `DestinationKeyError`."""
    try:
        destination, _ = read_destination(_sam_bytes(text))
    except I2pError as error:
        raise DestinationKeyError(f"it is not a private key of SAM: {error}") from None
    return destination


def _sam_bytes(text: str) -> bytes:
    if len(text) > 4 * FILE_LIMIT_BYTES:
        raise DestinationKeyError(f"it has {len(text)} characters, more than a private key of SAM")
    try:
        return base64_decode(text)
    except I2pError as error:
        raise DestinationKeyError(f"it is not a private key of SAM: {error}") from None


def _parse(reader: FieldReader) -> MasterKey:
    destination = reader.destination()
    if destination.signature_type != ED25519:
        name, _, _ = SIGNATURE_TYPES.get(destination.signature_type, (f"type {destination.signature_type}", 0, 0))
        raise DestinationKeyError(f"{destination.address} signs with {name}; only an Ed25519 destination can be used")
    encryption_type = _encryption_type(destination)
    if encryption_type not in _ENCRYPTION_KEY_BYTES:
        raise DestinationKeyError(f"the length of an encryption key of type {encryption_type} is not known")
    reader.take(_ENCRYPTION_KEY_BYTES[encryption_type], "the encryption key")
    seed = reader.take(_SIGNING_KEY_BYTES, "the signing key")
    if not any(seed):
        raise DestinationKeyError(
            f"it holds only a transient key of {destination.address}: the file with the destination's own key is needed"
        )
    if reader.rest():
        raise DestinationKeyError("more bytes follow the signing key than a key file has")
    private_key = Ed25519PrivateKey.from_private_bytes(seed)
    if private_key.public_key().public_bytes_raw() != destination.signing_key:
        raise DestinationKeyError(f"its signing key does not belong to {destination.address}: the file is damaged")
    return MasterKey(destination, private_key)


def _encryption_type(destination: Destination) -> int:
    return int.from_bytes(destination.encoded[_ENCRYPTION_TYPE_AT : _ENCRYPTION_TYPE_AT + 2], "big")
