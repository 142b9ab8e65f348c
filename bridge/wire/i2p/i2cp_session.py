"""The SessionConfig, which proves to a router that the client owns a destination (I2CP, Create Session).

    destination │ Mapping of options, sorted │ creation date 8 (ms) │ signature over all before it

A Java router accepts the signature of the destination's key, or of its transient key. With a transient key, three
options carry the contents of an offline block. The router first verifies the destination's signature in them:

    i2cp.leaseSetOfflineExpiration   seconds, as a decimal number
    i2cp.leaseSetTransientPublicKey  signature type, colon, base64
    i2cp.leaseSetOfflineSignature    base64

The date prevents replays: a Java router accepts a date within 30 s of its clock, a newer Java router within 3 min. So
the client uses the router's clock, which its first answer contains.

i2pd verifies with the destination's key only, and ignores the date. So the master signs one configuration in advance,
together with each transient key, and its options are fixed from then on.
"""

from collections.abc import Mapping
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from msgspec.structs import replace

from bridge.wire.i2p.field_reader import FieldReader
from bridge.wire.i2p.meta_lease_set import OfflineSignature, is_signed
from bridge.wire.i2p.structures import Destination, base64_encode, encode_mapping

OFFLINE_EXPIRATION: Final = "i2cp.leaseSetOfflineExpiration"
TRANSIENT_KEY: Final = "i2cp.leaseSetTransientPublicKey"
OFFLINE_SIGNATURE: Final = "i2cp.leaseSetOfflineSignature"

META_SESSION_OPTIONS: Final[Mapping[str, str]] = {
    "i2cp.fastReceive": "true",
    "i2cp.leaseSetType": "7",
    "i2cp.messageReliability": "none",
    "inbound.nickname": "Garlic Farm",
    "inbound.quantity": "2",
    "outbound.nickname": "Garlic Farm",
    "outbound.quantity": "2",
}
"""Options of tunnels that carry only the structure to the floodfills; clients do not send to a Meta destination.

Key files contain configurations with these options, so a change reaches i2pd only with new signing keys.
"""


class SessionConfig(Struct, frozen=True):
    """The configuration, with `signature` empty until it is signed."""

    destination: Destination
    options: dict[str, str]
    created_ms: int
    signature: bytes = b""

    @property
    def signed_part(self) -> bytes:
        """The bytes that the signature covers."""
        return self.destination.encoded + encode_mapping(self.options) + self.created_ms.to_bytes(8, "big")

    @property
    def encoded(self) -> bytes:
        """The signed configuration, as a message carries it."""
        return self.signed_part + self.signature

    @property
    def is_signed_by_destination(self) -> bool:
        """True if the signature is the destination's own."""
        return is_signed(self.destination.signing_key, self.signature, self.signed_part)

    def signed(self, private_key: Ed25519PrivateKey) -> "SessionConfig":
        """Return the configuration with its signature."""
        return replace(self, signature=private_key.sign(self.signed_part))


def offline_options(offline: OfflineSignature) -> dict[str, str]:
    """Return the options that carry the destination's signature of a transient key."""
    return {
        OFFLINE_EXPIRATION: str(offline.expires_s),
        TRANSIENT_KEY: f"{offline.signature_type}:{base64_encode(offline.transient_key)}",
        OFFLINE_SIGNATURE: base64_encode(offline.signature),
    }


def decode_session(data: bytes) -> SessionConfig:
    """Parse a signed configuration that must fill `data` exactly; raise `I2pError` only. It is not verified."""
    reader = FieldReader(data)
    destination, options = reader.destination(), reader.mapping()
    return SessionConfig(destination, options, reader.number(8, "the date"), reader.rest())
