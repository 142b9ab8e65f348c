"""SessionConfig: proves to a router that the client owns a destination (I2CP, Create Session).

    destination │ Mapping of options, sorted │ creation date 8 (ms) │ signature over all before it

The destination's key signs, or its transient key if the destination's key is offline. Then three options carry the
contents of an offline block, and the router verifies the destination's signature in them first:

    i2cp.leaseSetOfflineExpiration   seconds, as a decimal number
    i2cp.leaseSetTransientPublicKey  signature type, colon, base64
    i2cp.leaseSetOfflineSignature    base64

The date prevents replays: a router accepts a date within 30 s of its clock (newer Java routers within 3 min). So the
client uses the router's clock, which its first answer contains.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bridge.wire.i2p.destination_keys import SigningKey
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
"""Options of the tunnels, which carry only the structure to the floodfills: no client sends to a Meta destination."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The configuration, with `signature` empty until it is signed."""

    destination: Destination
    options: dict[str, str]
    created_ms: int
    signature: bytes = b""

    @property
    def signed_part(self) -> bytes:
        """The bytes that the signature covers."""
        return self.destination.encoded + encode_mapping(self.options) + self.created_ms.to_bytes(8, "big")


def signed_session(key: SigningKey, created_ms: int, options: Mapping[str, str]) -> SessionConfig:
    """Return the configuration of a session for the key's destination, signed."""
    complete = dict(options)
    if key.offline is not None:
        complete[OFFLINE_EXPIRATION] = str(key.offline.expires_s)
        complete[TRANSIENT_KEY] = f"{key.offline.signature_type}:{base64_encode(key.offline.transient_key)}"
        complete[OFFLINE_SIGNATURE] = base64_encode(key.offline.signature)
    unsigned = SessionConfig(key.destination, complete, created_ms)
    return replace(unsigned, signature=key.private_key.sign(unsigned.signed_part))
